//! From many threads to one consumer: pieces of the result, in block order or as they come, within a bounded memory.
//!
//! In block order, pieces of the chunk that is next are handed through at once; pieces of later chunks wait, and a thread
//! that has too many of them waits too. Nobody waits for ever: the chunk that is next is in the hands of a thread which
//! works on its chunks in order, and that thread does not wait.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Bytes that all threads together hold back at most, besides one page's rows each.
const BUFFERED: usize = 32 << 20;

/// And of one thread at least.
const BUFFERED_LEAST: usize = 1 << 20;

/// The consumer wants no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cancelled;

/// What the consumer gets.
#[derive(Debug)]
pub(crate) enum Next<T> {
    Piece(T),
    /// The scan of the chunk whose turn it is has failed. Nothing comes after it.
    Failed,
    /// Nothing came in time.
    Nothing,
    End,
}

#[derive(Debug)]
struct Piece<T> {
    value: T,
    worker: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Output<T> {
    pieces: VecDeque<Piece<T>>,
    ended: bool,
    failed: bool,
}

impl<T> Default for Output<T> {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), ended: false, failed: false }
    }
}

#[derive(Debug)]
struct State<T> {
    /// By the number of the chunk; all under 0 if the order does not matter.
    chunks: BTreeMap<u32, Output<T>>,
    /// The chunk whose turn it is.
    head: u32,
    /// Bytes that wait, by the thread that made them.
    buffered: Vec<usize>,
    /// Threads that have not ended.
    working: usize,
    /// Threads that wait for room.
    waiting: usize,
    consumer_waits: bool,
    cancelled: bool,
    /// Pieces that the consumer is done with.
    spare: Vec<T>,
}

/// The meeting place.
#[derive(Debug)]
pub(crate) struct Merge<T> {
    ordered: bool,
    /// Bytes of one thread that may wait.
    share: usize,
    state: Mutex<State<T>>,
    /// For the threads: the turn has moved on, or pieces were taken.
    room: Condvar,
    /// For the consumer: something came that it can take.
    arrived: Condvar,
}

impl<T> Merge<T> {
    pub(crate) fn new(workers: usize, ordered: bool) -> Self {
        Self {
            ordered,
            share: (BUFFERED / workers.max(1)).max(BUFFERED_LEAST),
            state: Mutex::new(State {
                chunks: BTreeMap::new(),
                head: 0,
                buffered: vec![0; workers],
                working: workers,
                waiting: 0,
                consumer_waits: false,
                cancelled: false,
                spare: Vec::new(),
            }),
            room: Condvar::new(),
            arrived: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Consistent whenever it is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, seq: u32) -> u32 {
        if self.ordered { seq } else { 0 }
    }

    fn tell_consumer(&self, state: &MutexGuard<'_, State<T>>, key: u32) {
        if state.consumer_waits && key == state.head {
            self.arrived.notify_one();
        }
    }

    /// Adds a piece of `bytes` bytes to a chunk. Does not wait.
    pub(crate) fn push(&self, worker: usize, seq: u32, value: T, bytes: usize) -> Result<(), Cancelled> {
        let key = self.key(seq);
        let mut state = self.lock();
        if state.cancelled {
            return Err(Cancelled);
        }
        state.buffered[worker] += bytes;
        state.chunks.entry(key).or_default().pieces.push_back(Piece { value, worker, bytes });
        self.tell_consumer(&state, key);
        Ok(())
    }

    /// Waits while the thread has too much waiting and its chunk `seq` is not the one whose turn it is.
    pub(crate) fn wait_for_room(&self, worker: usize, seq: u32) -> Result<(), Cancelled> {
        let mut state = self.lock();
        while !state.cancelled && state.buffered[worker] >= self.share && !(self.ordered && state.head == seq) {
            state.waiting += 1;
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        if state.cancelled { Err(Cancelled) } else { Ok(()) }
    }

    /// Nothing more comes of a chunk.
    pub(crate) fn end_chunk(&self, seq: u32) {
        if self.ordered {
            let mut state = self.lock();
            state.chunks.entry(seq).or_default().ended = true;
            self.tell_consumer(&state, seq);
        }
    }

    /// A chunk has failed behind the pieces that it has; in block order only.
    pub(crate) fn fail_chunk(&self, seq: u32) {
        if self.ordered {
            let mut state = self.lock();
            state.chunks.entry(seq).or_default().failed = true;
            self.tell_consumer(&state, seq);
        }
    }

    /// A thread has ended, for whatever reason.
    pub(crate) fn leave(&self) {
        let mut state = self.lock();
        state.working -= 1;
        if state.consumer_waits {
            self.arrived.notify_one();
        }
    }

    /// The consumer wants no more.
    pub(crate) fn cancel(&self) {
        let (chunks, spare) = {
            let mut state = self.lock();
            state.cancelled = true;
            (std::mem::take(&mut state.chunks), std::mem::take(&mut state.spare))
        };
        self.room.notify_all();
        // Values may run code of others when dropped: not under the lock.
        drop((chunks, spare));
    }

    /// The next piece, waiting for it up to `patience`.
    pub(crate) fn next(&self, patience: Duration) -> Next<T> {
        let mut state = self.lock();
        let mut waited = false;
        loop {
            let head = state.head;
            let mut over = false;
            if let Some(output) = state.chunks.get_mut(&head) {
                if let Some(Piece { value, worker, bytes }) = output.pieces.pop_front() {
                    state.buffered[worker] -= bytes;
                    if state.waiting > 0 && state.buffered[worker] < self.share {
                        self.room.notify_all();
                    }
                    return Next::Piece(value);
                }
                if output.failed {
                    return Next::Failed;
                }
                over = output.ended;
            }
            if over {
                state.chunks.remove(&head);
                state.head += 1;
                if state.waiting > 0 {
                    self.room.notify_all();
                }
                continue;
            }
            if state.working == 0 {
                return Next::End;
            }
            if waited {
                return Next::Nothing;
            }
            state.consumer_waits = true;
            let (guard, timeout) = self.arrived.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.consumer_waits = false;
            waited = timeout.timed_out();
        }
    }

    /// A piece that the consumer was done with, to be used again.
    pub(crate) fn spare(&self) -> Option<T> {
        self.lock().spare.pop()
    }

    /// Gives a piece back.
    pub(crate) fn recycle(&self, value: T) {
        let mut state = self.lock();
        if state.spare.len() < 2 * state.buffered.len() {
            state.spare.push(value);
        }
    }
}

/// Cancels when it is dropped: no thread waits for a consumer that is gone.
pub(crate) struct CancelOnDrop<T>(pub(crate) Arc<Merge<T>>);

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);

    fn take(merge: &Merge<u32>) -> Vec<u32> {
        let mut all = Vec::new();
        while let Next::Piece(value) = merge.next(SOON) {
            all.push(value);
        }
        all
    }

    #[test]
    fn pieces_come_in_the_order_of_their_chunks() {
        let merge = Merge::new(2, true);
        merge.push(1, 1, 10, 1).unwrap();
        merge.end_chunk(1);
        merge.push(0, 0, 0, 1).unwrap();
        merge.push(0, 0, 1, 1).unwrap();
        assert_eq!(take(&merge), [0, 1]);
        merge.end_chunk(0);
        assert_eq!(take(&merge), [10]);
        merge.end_chunk(2);
        merge.push(1, 3, 30, 1).unwrap();
        assert_eq!(take(&merge), [30]);
        merge.leave();
        assert!(matches!(merge.next(SOON), Next::Nothing));
        merge.leave();
        assert!(matches!(merge.next(SOON), Next::End));
    }

    #[test]
    fn without_order_they_come_as_they_are_made() {
        let merge = Merge::new(1, false);
        merge.push(0, 7, 1, 1).unwrap();
        merge.end_chunk(7);
        merge.push(0, 3, 2, 1).unwrap();
        assert_eq!(take(&merge), [1, 2]);
        merge.leave();
        assert!(matches!(merge.next(SOON), Next::End));
    }

    #[test]
    fn the_error_comes_behind_what_was_right() {
        let merge = Merge::new(2, true);
        merge.push(1, 1, 10, 1).unwrap();
        merge.fail_chunk(1);
        merge.push(1, 2, 20, 1).unwrap();
        merge.push(0, 0, 0, 1).unwrap();
        assert_eq!(take(&merge), [0]);
        merge.end_chunk(0);
        assert_eq!(take(&merge), [10]);
        assert!(matches!(merge.next(SOON), Next::Failed));
    }

    #[test]
    fn whoever_is_ahead_waits_and_whose_turn_it_is_does_not() {
        let merge = &Merge::new(2, true);
        let full = merge.share;
        merge.push(0, 0, 0, full).unwrap();
        merge.wait_for_room(0, 0).unwrap();
        merge.push(1, 1, 1, full).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || merge.wait_for_room(1, 1));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished());
            assert_eq!(take(merge), [0]);
            merge.end_chunk(0);
            assert_eq!(take(merge), [1]);
            waiter.join().unwrap().unwrap();
            merge.push(1, 5, 5, full).unwrap();
            let waiter = scope.spawn(move || merge.wait_for_room(1, 5));
            std::thread::sleep(Duration::from_millis(20));
            merge.cancel();
            assert_eq!(waiter.join().unwrap(), Err(Cancelled));
        });
        assert_eq!(merge.push(0, 9, 9, 1), Err(Cancelled));
        assert!(matches!(merge.next(SOON), Next::Nothing));
    }
}
