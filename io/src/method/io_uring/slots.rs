//! The operations that a ring has in flight.

use crate::transfer::Transfer;

/// Names one operation in the kernel: slot in the lower half, generation in the upper. A completion with another
/// generation than that of its slot belongs to an operation that ended before, and is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(pub(super) u64);

impl Ticket {
    fn new(slot: usize, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | slot as u64)
    }

    pub(super) fn slot(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

struct Slot {
    generation: u32,
    /// `None`: free, or taken out by whoever handles a completion.
    transfer: Option<Transfer>,
}

/// A fixed number of slots. That number is the bound on operations in flight: nothing is submitted without a slot, and a
/// slot is free again only after the last completion of its request.
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        let slots = (0..count).map(|_| Slot { generation: 0, transfer: None }).collect();
        Self { slots, free: (0..count).rev().collect() }
    }

    /// A free slot, which is the caller's now.
    pub(super) fn claim(&mut self) -> Option<usize> {
        self.free.pop()
    }

    pub(super) fn release(&mut self, slot: usize) {
        debug_assert!(self.slots[slot].transfer.is_none() && !self.free.contains(&slot));
        self.free.push(slot);
    }

    /// Puts a transfer into the caller's slot; the ticket is that of its next operation.
    pub(super) fn put(&mut self, slot: usize, transfer: Transfer) -> (Ticket, &Transfer) {
        let place = &mut self.slots[slot];
        place.generation = place.generation.wrapping_add(1);
        (Ticket::new(slot, place.generation), place.transfer.insert(transfer))
    }

    /// Takes out the transfer that the ticket names; the slot stays the caller's.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Transfer> {
        let place = self.slots.get_mut(ticket.slot())?;
        if place.generation == ticket.generation() { place.transfer.take() } else { None }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Transfer> {
        self.slots.iter().filter_map(|slot| slot.transfer.as_ref())
    }

    /// All transfers, to be leaked.
    pub(super) fn take_all(&mut self) -> Vec<Transfer> {
        self.slots.iter_mut().filter_map(|slot| slot.transfer.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataFile, OpenFileOptions, Request};
    use std::sync::Arc;

    #[allow(unsafe_code, reason = "requests")]
    fn transfer(tag: u64) -> Transfer {
        let file = Arc::new(
            DataFile::open(std::path::Path::new("/proc/self/exe"), OpenFileOptions::default()).expect("a file"),
        );
        // SAFETY: no segments, no memory.
        Transfer::new(unsafe { Request::new(file, 0, Vec::new(), tag) })
    }

    #[test]
    fn duplicate_late_and_unknown_completions_find_nothing() {
        let mut slots = Slots::new(2);
        let slot = slots.claim().expect("free");
        let first = slots.put(slot, transfer(1)).0;
        assert_eq!(slots.take(first).expect("in flight").request().tag(), 1);
        assert!(slots.take(first).is_none(), "a completion delivered twice");
        slots.release(slot);
        let again = slots.claim().expect("free");
        assert_eq!(again, slot, "the slot is used again");
        let second = slots.put(again, transfer(2)).0;
        assert!(slots.take(first).is_none(), "a late completion of the earlier request");
        assert!(slots.take(Ticket(u64::MAX)).is_none(), "a ticket that was never given");
        assert_eq!(slots.take(second).expect("in flight").request().tag(), 2);
    }

    #[test]
    fn there_are_never_more_than_the_bound() {
        let mut slots = Slots::new(3);
        let claimed: Vec<_> = std::iter::from_fn(|| slots.claim()).collect();
        assert_eq!(claimed.len(), 3);
        slots.release(claimed[1]);
        assert_eq!((slots.claim(), slots.claim()), (Some(claimed[1]), None));
    }
}
