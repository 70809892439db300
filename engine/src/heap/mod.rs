//! Heap pages as they lie on disk: checksum, page and line pointers, tuples, values, TOAST.
//!
//! Nothing here reads files. A page is validated once ([`ValidPage::check`]); what follows relies on it and still
//! bounds-checks whatever depends on a tuple's own bytes. The layout is that of `src/include/storage/bufpage.h`,
//! `access/htup_details.h` and `varatt.h` (page layout version 4, little-endian, 8-byte maximal alignment), which is
//! the same in PostgreSQL 12 to 18.

pub mod checksum;
mod chunk_map;
mod columns;
mod deform;
mod page;
mod toast;
mod tuple;
mod uniform;
mod varlena;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use chunk_map::{Chunk, ChunkLocation, ChunkMap, ChunkMapBuilder};
pub use columns::{PageColumns, Slot};
pub(crate) use deform::UNSTORED;
pub use deform::{Datum, DeformPlan, FixedColumn};
pub use page::{LinePointer, PageCheck, PageFault, PageSummary, ValidPage, VerifyMode};
pub use toast::{ChunkSource, Detoaster, NoToast, assemble};
pub use tuple::{TupleRef, infomask};
pub use uniform::Uniform;
pub(crate) use uniform::UniformRows;
pub use varlena::{CompressionMethod, ToastPointer, Varlena, decompress};

/// Little-endian loads at constant or validated places.
pub(crate) mod load {
    /// The `u16` at `at`; 0 when the slice is too short, which validated callers never see.
    #[inline(always)]
    pub(crate) fn u16(bytes: &[u8], at: usize) -> u16 {
        match bytes.get(at..).and_then(|b| b.first_chunk()) {
            Some(b) => u16::from_le_bytes(*b),
            None => 0,
        }
    }

    /// The `u32` at `at`; 0 when the slice is too short, which validated callers never see.
    #[inline(always)]
    pub(crate) fn u32(bytes: &[u8], at: usize) -> u32 {
        match bytes.get(at..).and_then(|b| b.first_chunk()) {
            Some(b) => u32::from_le_bytes(*b),
            None => 0,
        }
    }
}
