//! A page taken apart by column: where each value of each row lies.

use super::LinePointer;
use std::ops::Range;

/// Where one value lies on its page, in 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

impl Slot {
    /// NULL.
    pub const NULL: Self = Self(0);
    /// The row is older than the column: [`DeformPlan::missing`](super::DeformPlan::missing).
    pub const MISSING: Self = Self(u32::MAX);

    /// A page has at most 32 kB and begins with its header: no value is at 0, none at the end of 64 kB.
    #[inline(always)]
    pub(crate) fn new(offset: usize, length: usize) -> Self {
        Self((offset as u32) << 16 | (length as u32 & 0xffff))
    }

    /// Whether the value is NULL.
    #[inline(always)]
    pub fn is_null(self) -> bool {
        self == Self::NULL
    }

    /// Whether the row has no such value because it is older.
    #[inline(always)]
    pub fn is_missing(self) -> bool {
        self == Self::MISSING
    }

    /// Byte of the page where the value begins.
    #[inline(always)]
    pub fn offset(self) -> usize {
        (self.0 >> 16) as usize
    }

    /// Its bytes: varlenas with their header, C strings without the zero byte.
    #[inline(always)]
    pub fn length(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// Both.
    #[inline(always)]
    pub fn range(self) -> Range<usize> {
        self.offset()..self.offset() + self.length()
    }
}

/// The places of all wanted values of some rows of a page, column by column. Reused from page to page.
#[derive(Clone, Debug, Default)]
pub struct PageColumns {
    slots: Vec<Slot>,
    rows: usize,
}

impl PageColumns {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The places of the values of output `column`, one a row.
    ///
    /// # Panics
    /// If the plan has no such output.
    #[inline]
    pub fn column(&self, column: usize) -> &[Slot] {
        &self.slots[column * self.rows..(column + 1) * self.rows]
    }

    pub(super) fn reset(&mut self, columns: usize, rows: usize) {
        self.slots.clear();
        self.slots.resize(columns * rows, Slot::NULL);
        self.rows = rows;
    }

    #[inline(always)]
    pub(super) fn set(&mut self, column: usize, row: usize, at: Option<Range<usize>>) {
        self.slots[column * self.rows + row] = at.map_or(Slot::MISSING, |at| Slot::new(at.start, at.end - at.start));
    }

    /// A column that lies `offset` bytes behind the start of every tuple.
    pub(super) fn set_fixed(&mut self, column: usize, rows: &[LinePointer], offset: usize, length: usize) {
        let slots = &mut self.slots[column * self.rows..(column + 1) * self.rows];
        for (slot, row) in slots.iter_mut().zip(rows) {
            *slot = Slot::new(usize::from(row.offset) + offset, length);
        }
    }

    pub(super) fn repeat(&mut self, from: usize, to: usize) {
        self.slots.copy_within(from * self.rows..(from + 1) * self.rows, to * self.rows);
    }
}
