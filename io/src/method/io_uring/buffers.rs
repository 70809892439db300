//! Registered buffers: the pool's memory, pinned once and known to every ring.

use super::lane::Lane;
use crate::Segment;
use std::{io, os::fd::AsRawFd};

/// Bytes of one registered buffer at most (the kernel refuses more), a multiple of every huge page up to that size.
const SLICE: usize = 1 << 30;
/// Buffers of a ring at most (`IORING_MAX_REG_BUFFERS`).
const PLACES: usize = 1 << 14;
/// The memory of rings that were closed is unpinned late; so often a refusal because of the limit is tried again.
const RETRIES: u32 = 3;

/// Memory that a ring knows, as addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedBuffer {
    base: usize,
    len: usize,
    index: u16,
}

/// The buffer that holds all of `base .. base + len`. `buffers` are in the order of their addresses.
pub(super) fn find(buffers: &[FixedBuffer], base: usize, len: usize) -> Option<u16> {
    let behind = buffers.partition_point(|buffer| buffer.base <= base);
    let buffer = &buffers[behind.checked_sub(1)?];
    (base.saturating_add(len) <= buffer.base + buffer.len).then_some(buffer.index)
}

fn slices(memory: &[Segment]) -> Result<Vec<FixedBuffer>, String> {
    let mut slices: Vec<_> = memory
        .iter()
        .flat_map(|segment| {
            let base = segment.ptr.as_ptr() as usize;
            (0..segment.len).step_by(SLICE).map(move |at| (base + at, (segment.len - at).min(SLICE)))
        })
        .collect();
    if slices.is_empty() || slices.len() > PLACES {
        return Err(format!("{} slices of up to 1 GiB: a ring takes 1 to {PLACES}", slices.len()));
    }
    slices.sort_unstable();
    Ok((0u16..).zip(slices).map(|(index, (base, len))| FixedBuffer { base, len, index }).collect())
}

/// Registers `memory` with the first ring and has the others share it (Linux 6.12), or registers it with each of them:
/// says which. On an error none of the rings uses it.
///
/// # Safety
/// The memory must stay mapped until the rings are closed.
#[allow(unsafe_code, reason = "the kernel pins memory")]
pub(super) unsafe fn register(lanes: &[Lane], memory: &[Segment]) -> Result<String, String> {
    let slices = slices(memory)?;
    let iovecs: Vec<_> = slices
        .iter()
        .map(|slice| libc::iovec { iov_base: std::ptr::without_provenance_mut(slice.base), iov_len: slice.len })
        .collect();
    let bytes: usize = slices.iter().map(|slice| slice.len).sum();
    let register = |lane: &Lane| {
        let mut patience = RETRIES;
        loop {
            // SAFETY: mapped until the rings are closed, the caller promises.
            match unsafe { lane.ring.submitter().register_buffers(&iovecs) } {
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                result => return result,
            }
        }
    };
    let refused = |error: io::Error| {
        format!("the kernel refused to register {bytes} bytes: {error} (the limit on locked memory, ulimit -l?)")
    };
    let Some((first, others)) = lanes.split_first() else { return Err("there is no ring".to_owned()) };
    register(first).map_err(refused)?;
    let mut not_cloned = None;
    for (done, lane) in others.iter().enumerate() {
        let cloned = match not_cloned {
            None => lane.ring.submitter().register_buffers_clone(first.ring.as_raw_fd()),
            Some(_) => register(lane),
        };
        let Err(error) = cloned else { continue };
        let again = if not_cloned.is_none() { register(lane) } else { Err(io::Error::last_os_error()) };
        not_cloned.get_or_insert(error);
        if let Err(error) = again {
            for lane in &lanes[..=done] {
                // It stays pinned if the kernel refuses this too, and is not used.
                let _ = lane.ring.submitter().unregister_buffers();
            }
            return Err(refused(error));
        }
    }
    for lane in lanes {
        // Registered once only, so it is empty.
        let _ = lane.buffers.set(slices.clone().into_boxed_slice());
    }
    let mib = bytes >> 20;
    Ok(match not_cloned {
        _ if others.is_empty() => format!("registered, {mib} MiB in {} slices", slices.len()),
        None => format!("registered, {mib} MiB in {} slices, cloned into {} rings", slices.len(), others.len()),
        Some(error) => {
            format!("registered with each of {} rings, {mib} MiB in {} slices ({error})", lanes.len(), slices.len())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_uses_a_buffer_only_if_it_lies_within_it() {
        let buffer = |base, len, index| FixedBuffer { base, len, index };
        let buffers = [buffer(4096, 8192, 0), buffer(12288, 4096, 1), buffer(65536, 4096, 2)];
        assert_eq!(find(&buffers, 4096, 8192), Some(0));
        assert_eq!(find(&buffers, 8192, 8192), None, "across two");
        assert_eq!(find(&buffers, 12288, 1), Some(1));
        assert_eq!(find(&buffers, 20000, 1), None, "between");
        assert_eq!(find(&buffers, 0, 1), None, "in front");
        assert_eq!(find(&buffers, 65536, 4097), None, "over the end");
        assert_eq!(find(&[], 0, 1), None);
    }

    #[test]
    fn memory_is_cut_into_slices_that_the_kernel_takes() {
        let segment = |base: usize, len| Segment {
            ptr: std::ptr::NonNull::without_provenance(base.try_into().expect("not 0")),
            len,
        };
        let cut = slices(&[segment(1 << 40, (1 << 31) + 4096), segment(1 << 30, 4096)]).expect("few");
        assert_eq!(
            cut.iter().map(|s| (s.index, s.len)).collect::<Vec<_>>(),
            [(0, 4096), (1, SLICE), (2, SLICE), (3, 4096)]
        );
        assert!(slices(&[]).is_err());
        assert!(slices(&[segment(1 << 30, SLICE * (PLACES + 1))]).is_err());
    }
}
