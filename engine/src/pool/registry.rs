//! The relations that a pool knows.

use super::shared::{RelationId, lock};
use crate::{Error, ErrorKind, RelationFork, Result};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// Ids in the first piece of the flags; each further piece has twice as many.
const FIRST: u32 = 64;

#[derive(Debug, Default)]
struct Forks {
    /// By id. `None`: unregistered; ids are not given out twice, because frames may still hold blocks of the old owner.
    by_id: Vec<Option<Arc<RelationFork>>>,
    ids: HashMap<usize, RelationId>,
}

/// Relations by id.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    forks: Mutex<Forks>,
    /// Whether an id is registered, to be asked without a lock by those who look up blocks that are in the pool. Pieces
    /// are never moved, so they can grow under readers.
    live: [OnceLock<Box<[AtomicBool]>>; 27],
}

/// The piece of an id and its place in it.
fn place(id: u32) -> (usize, usize) {
    let step = u64::from(id) / u64::from(FIRST) + 1;
    let piece = step.ilog2();
    (piece as usize, (u64::from(id) - u64::from(FIRST) * ((1 << piece) - 1)) as usize)
}

impl Registry {
    /// Makes a fork known; the same `Arc` has the same id.
    ///
    /// # Errors
    /// `Limit` when there are no more ids.
    pub(crate) fn register(&self, fork: Arc<RelationFork>) -> Result<RelationId> {
        let mut forks = lock(&self.forks);
        let key = Arc::as_ptr(&fork) as usize;
        if let Some(&id) = forks.ids.get(&key) {
            return Ok(id);
        }
        let id = u32::try_from(forks.by_id.len())
            .ok()
            .filter(|&id| id < u32::MAX)
            .ok_or_else(|| Error::new(ErrorKind::Limit, "too many relations were registered with the buffer pool"))?;
        let (piece, index) = place(id);
        let flags = self.live[piece].get_or_init(|| (0..FIRST << piece).map(|_| AtomicBool::new(false)).collect());
        flags[index].store(true, Ordering::Release);
        forks.by_id.push(Some(fork));
        forks.ids.insert(key, RelationId(id));
        Ok(RelationId(id))
    }

    /// Forgets a fork.
    pub(crate) fn unregister(&self, relation: RelationId) {
        let mut forks = lock(&self.forks);
        if let Some(fork) = forks.by_id.get_mut(relation.0 as usize).and_then(Option::take) {
            forks.ids.remove(&(Arc::as_ptr(&fork) as usize));
            let (piece, index) = place(relation.0);
            if let Some(flags) = self.live[piece].get() {
                flags[index].store(false, Ordering::Release);
            }
        }
    }

    /// Whether it is registered, without a lock.
    pub(crate) fn is_live(&self, relation: RelationId) -> bool {
        let (piece, index) = place(relation.0);
        self.live.get(piece).and_then(OnceLock::get).is_some_and(|flags| flags[index].load(Ordering::Acquire))
    }

    /// The fork of an id.
    ///
    /// # Errors
    /// `Usage` if it is not registered.
    pub(crate) fn fork(&self, relation: RelationId) -> Result<Arc<RelationFork>> {
        let forks = lock(&self.forks);
        forks
            .by_id
            .get(relation.0 as usize)
            .cloned()
            .flatten()
            .ok_or_else(|| Error::new(ErrorKind::Usage, "the relation is not registered with this buffer pool"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_has_a_place_of_its_own() {
        assert_eq!(
            [place(0), place(63), place(64), place(191), place(192)],
            [(0, 0), (0, 63), (1, 0), (1, 127), (2, 0)]
        );
        let mut expected = (0, 0);
        for id in 0..100_000 {
            assert_eq!(place(id), expected);
            expected = if expected.1 + 1 == (FIRST as usize) << expected.0 {
                (expected.0 + 1, 0)
            } else {
                (expected.0, expected.1 + 1)
            };
        }
        let (piece, index) = place(u32::MAX - 1);
        assert!(piece < 27 && index < (FIRST as usize) << piece);
    }
}
