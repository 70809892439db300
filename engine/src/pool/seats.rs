//! What `read_block` needs of a stream: a session, counters, a part in the choice of victims. One for a few threads each,
//! so that threads that look up single blocks do not meet on a cache line.

use super::{
    chooser::{Chooser, thread_ordinal},
    frames::Frames,
    metrics::ReadMetrics,
    shared::{Session, Shared, lock},
    strategy::Strategy,
};
use crossbeam_utils::CachePadded;
use std::sync::{
    Arc, Mutex, TryLockError,
    atomic::{AtomicU64, Ordering},
};

/// More threads than this share seats, which costs them speed and nothing else.
const MOST: usize = 256;

#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) session: Arc<Session>,
    hits: AtomicU64,
    chooser: Mutex<Chooser>,
}

impl Seat {
    pub(crate) fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs something that needs frames. Nobody waits for the seat's chooser: whoever finds it in use takes a new one.
    pub(crate) fn with_chooser<T>(&self, frames: &Frames, work: impl FnOnce(&mut Chooser) -> T) -> T {
        match self.chooser.try_lock() {
            Ok(mut chooser) => work(&mut chooser),
            // What a panic left in it is consistent.
            Err(TryLockError::Poisoned(chooser)) => work(&mut chooser.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let mut chooser = Chooser::new(frames, Strategy::Normal, false, None);
                let result = work(&mut chooser);
                chooser.report(frames, &ReadMetrics::default());
                chooser.close(frames);
                result
            }
        }
    }
}

/// The seats of a pool.
#[derive(Debug)]
pub(crate) struct Seats(Box<[CachePadded<Seat>]>);

impl Seats {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (processors * 4).next_power_of_two().clamp(8, MOST);
        let seat = |_| {
            CachePadded::new(Seat {
                session: Arc::new(Session::new(Arc::clone(shared), 0)),
                hits: AtomicU64::new(0),
                chooser: Mutex::new(Chooser::new(&shared.frames, Strategy::Normal, false, None)),
            })
        };
        Self((0..count).map(seat).collect())
    }

    /// The seat of the calling thread.
    pub(crate) fn mine(&self) -> &Seat {
        &self.0[thread_ordinal() as usize & (self.0.len() - 1)]
    }

    /// Adds what was done from all seats.
    pub(crate) fn add_to(&self, totals: &mut ReadMetrics) {
        for seat in &self.0 {
            totals.add(&lock(&seat.session.metrics));
            totals.hits += seat.hits.load(Ordering::Relaxed);
        }
    }

    /// Tells the partitions' counters what they do not know yet.
    pub(crate) fn report(&self, frames: &Frames) {
        for seat in &self.0 {
            if let Ok(mut chooser) = seat.chooser.try_lock() {
                let mut metrics = *lock(&seat.session.metrics);
                metrics.hits += seat.hits.load(Ordering::Relaxed);
                chooser.report(frames, &metrics);
            }
        }
    }
}
