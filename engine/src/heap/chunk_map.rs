//! Finding the chunks of a TOAST value without its index: one scan of the TOAST relation builds a sorted list.

use super::{TupleRef, ValidPage, varlena::Varlena};
use crate::{Error, ErrorKind, Result};

/// A row of a TOAST relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// `chunk_id`.
    pub value_id: u32,
    /// `chunk_seq`, from 0.
    pub seq: i32,
    /// `chunk_data`.
    pub data: &'a [u8],
}

impl<'a> Chunk<'a> {
    /// The chunk in a tuple of a TOAST relation.
    ///
    /// # Errors
    /// `Corrupt` if the tuple is none.
    pub fn parse(tuple: &TupleRef<'a>) -> Result<Self> {
        let data = tuple.data();
        // chunk_id oid, chunk_seq int4, chunk_data bytea: never NULL, so always at 0, 4 and 8.
        let parsed = (tuple.natts() == 3 && !tuple.has_nulls())
            .then(|| Some((*data.first_chunk()?, *data.get(4..)?.first_chunk()?, data.get(8..)?)))
            .flatten();
        if let Some((value_id, seq, rest)) = parsed
            && let Ok((Varlena::Plain(data), _)) = Varlena::parse(rest)
        {
            return Ok(Self { value_id: u32::from_le_bytes(value_id), seq: i32::from_le_bytes(seq), data });
        }
        Err(Error::new(ErrorKind::Corrupt, format!("tuple {} is no TOAST chunk", tuple.number()))
            .with_block(tuple.block()))
    }
}

/// Where a chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLocation {
    /// `chunk_seq`.
    pub seq: i32,
    /// Block of the TOAST relation.
    pub block: u32,
    /// Line pointer number, from 1.
    pub number: u16,
}

/// 16 bytes a chunk, of which the largest chunk covers about 2 kB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    value_id: u32,
    seq: i32,
    block: u32,
    number: u16,
}

/// Collects the chunks of a TOAST relation page by page, in any order.
#[derive(Debug)]
pub struct ChunkMapBuilder {
    entries: Vec<Entry>,
    limit: usize,
}

impl ChunkMapBuilder {
    /// An empty one that refuses to hold more than `limit` chunks (16 bytes each).
    pub fn new(limit: usize) -> Self {
        Self { entries: Vec::new(), limit }
    }

    /// Adds the chunks of `page` that `visible` lets through.
    ///
    /// # Errors
    /// What `visible` says, `Corrupt` if a tuple is no chunk, `Limit` if there are too many.
    pub fn add_page(
        &mut self,
        page: &ValidPage<'_>,
        mut visible: impl FnMut(&TupleRef<'_>) -> Result<bool>,
    ) -> Result<()> {
        for tuple in page.tuples() {
            if visible(&tuple)? {
                self.add(&tuple)?;
            }
        }
        Ok(())
    }

    /// Adds one chunk, known to be visible.
    ///
    /// # Errors
    /// `Corrupt` if the tuple is no chunk, `Limit` if there are too many.
    pub fn add(&mut self, tuple: &TupleRef<'_>) -> Result<()> {
        let Chunk { value_id, seq, .. } = Chunk::parse(tuple)?;
        if self.entries.len() >= self.limit {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("the TOAST relation has more than {} chunks", self.limit),
            ));
        }
        self.entries.push(Entry { value_id, seq, block: tuple.block(), number: tuple.number() });
        Ok(())
    }

    /// Merges what another thread collected.
    ///
    /// # Errors
    /// `Limit` if there are too many together.
    pub fn merge(&mut self, other: Self) -> Result<()> {
        if self.entries.len() + other.entries.len() > self.limit {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("the TOAST relation has more than {} chunks", self.limit),
            ));
        }
        self.entries.extend(other.entries);
        Ok(())
    }

    /// The map.
    pub fn finish(mut self) -> ChunkMap {
        self.entries.sort_unstable();
        self.entries.shrink_to_fit();
        ChunkMap { entries: self.entries }
    }
}

/// Where the chunks of all values of a TOAST relation lie.
#[derive(Debug, Default)]
pub struct ChunkMap {
    entries: Vec<Entry>,
}

impl ChunkMap {
    /// The chunks of a value by `chunk_seq`. The same `chunk_seq` twice stays so, for [`assemble`](super::assemble)
    /// to refuse.
    pub fn chunks(&self, value_id: u32) -> impl ExactSizeIterator<Item = ChunkLocation> {
        let from = self.entries.partition_point(|e| e.value_id < value_id);
        let count = self.entries[from..].partition_point(|e| e.value_id == value_id);
        self.entries[from..from + count].iter().map(|e| ChunkLocation { seq: e.seq, block: e.block, number: e.number })
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
