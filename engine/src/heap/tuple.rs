//! A tuple on a page: its header and its bytes.

/// `t_infomask` and `t_infomask2` bits (`access/htup_details.h`), by their PostgreSQL names without `HEAP_`.
pub mod infomask {
    /// There is a NULL bitmap.
    pub const HASNULL: u16 = 0x0001;
    /// There is a value of variable width.
    pub const HASVARWIDTH: u16 = 0x0002;
    /// There is an out-of-line (TOAST) value.
    pub const HASEXTERNAL: u16 = 0x0004;
    /// xmax is a key-share locker.
    pub const XMAX_KEYSHR_LOCK: u16 = 0x0010;
    /// xmax is an exclusive locker.
    pub const XMAX_EXCL_LOCK: u16 = 0x0040;
    /// xmax, if valid, only locked. Before 9.3 the same bit said "shared lock", which also only locks.
    pub const XMAX_LOCK_ONLY: u16 = 0x0080;
    /// All bits that tell how strong a lock is.
    pub const LOCK_MASK: u16 = XMAX_KEYSHR_LOCK | XMAX_EXCL_LOCK;
    /// xmin is known to be committed.
    pub const XMIN_COMMITTED: u16 = 0x0100;
    /// xmin is known to be aborted.
    pub const XMIN_INVALID: u16 = 0x0200;
    /// Both together, which else would contradict one another: xmin is older than any snapshot.
    pub const XMIN_FROZEN: u16 = XMIN_COMMITTED | XMIN_INVALID;
    /// xmax is known to be committed.
    pub const XMAX_COMMITTED: u16 = 0x0400;
    /// xmax is known to be aborted, or there is none.
    pub const XMAX_INVALID: u16 = 0x0800;
    /// xmax is a multixact id.
    pub const XMAX_IS_MULTI: u16 = 0x1000;
    /// This is the newer version of an updated row.
    pub const UPDATED: u16 = 0x2000;
    /// Moved away by a VACUUM FULL of 8.4 or older.
    pub const MOVED_OFF: u16 = 0x4000;
    /// Moved here by a VACUUM FULL of 8.4 or older.
    pub const MOVED_IN: u16 = 0x8000;
    /// `t_infomask2`: number of attributes.
    pub const NATTS_MASK: u16 = 0x07ff;
    /// `t_infomask2`: updated and its successor is on the same page.
    pub const HOT_UPDATED: u16 = 0x4000;
    /// `t_infomask2`: no index points here.
    pub const ONLY_TUPLE: u16 = 0x8000;
}

/// Bytes of a tuple header without NULL bitmap (23) with its padding: the least a tuple has.
pub(crate) const TUPLE_HEADER_MIN: usize = 24;
/// Where the NULL bitmap lies (`SizeofHeapTupleHeader`).
pub(crate) const BITMAP_OFFSET: usize = 23;

/// A tuple of a [`ValidPage`](super::ValidPage): its header was validated, its values were not.
#[derive(Clone, Copy, Debug)]
pub struct TupleRef<'a> {
    header: &'a [u8; TUPLE_HEADER_MIN],
    bytes: &'a [u8],
    block: u32,
    number: u16,
}

impl<'a> TupleRef<'a> {
    /// `None` if `bytes` is shorter than a header. That `t_hoff` and the bitmap fit was checked by the page.
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], block: u32, number: u16) -> Option<Self> {
        Some(Self { header: bytes.first_chunk()?, bytes, block, number })
    }

    /// The block it lies in.
    #[inline]
    pub fn block(&self) -> u32 {
        self.block
    }

    /// Its line pointer's number, from 1 (`OffsetNumber`). With [`block`](Self::block) it is the row's `ctid`.
    #[inline]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The whole tuple with its header.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The inserting transaction as stored, also when frozen.
    #[inline(always)]
    pub fn xmin(&self) -> u32 {
        u32::from_le_bytes([self.header[0], self.header[1], self.header[2], self.header[3]])
    }

    /// The deleting or locking transaction, or a multixact; 0 when there is none.
    #[inline(always)]
    pub fn xmax(&self) -> u32 {
        u32::from_le_bytes([self.header[4], self.header[5], self.header[6], self.header[7]])
    }

    /// `t_field3`: command id, or the transaction of an ancient VACUUM FULL.
    #[inline]
    pub fn field3(&self) -> u32 {
        u32::from_le_bytes([self.header[8], self.header[9], self.header[10], self.header[11]])
    }

    /// `t_ctid`: block and number of the newer version, of itself, or a token (number 0xfffe: speculative, 0xfffd:
    /// moved to another partition). Never a way to find rows.
    #[inline]
    pub fn ctid(&self) -> (u32, u16) {
        let h = self.header;
        let high = u32::from(u16::from_le_bytes([h[12], h[13]]));
        let low = u32::from(u16::from_le_bytes([h[14], h[15]]));
        (high << 16 | low, u16::from_le_bytes([h[16], h[17]]))
    }

    /// `t_infomask2`.
    #[inline(always)]
    pub fn infomask2(&self) -> u16 {
        u16::from_le_bytes([self.header[18], self.header[19]])
    }

    /// `t_infomask`.
    #[inline(always)]
    pub fn infomask(&self) -> u16 {
        u16::from_le_bytes([self.header[20], self.header[21]])
    }

    /// Bytes of the header: where the values begin.
    #[inline(always)]
    pub fn hoff(&self) -> usize {
        usize::from(self.header[22])
    }

    /// Number of attributes that the tuple holds; later ones take their missing value.
    #[inline(always)]
    pub fn natts(&self) -> usize {
        usize::from(self.infomask2() & infomask::NATTS_MASK)
    }

    /// Whether there is a NULL bitmap.
    #[inline(always)]
    pub fn has_nulls(&self) -> bool {
        self.infomask() & infomask::HASNULL != 0
    }

    /// The NULL bitmap: bit `i % 8` of byte `i / 8` is set when attribute `i` (from 0) is there. `None` when all are.
    #[inline]
    pub fn null_bitmap(&self) -> Option<&'a [u8]> {
        if !self.has_nulls() {
            return None;
        }
        Some(self.bytes.get(BITMAP_OFFSET..BITMAP_OFFSET + self.natts().div_ceil(8)).unwrap_or(&[]))
    }

    /// The values, from `t_hoff` on.
    #[inline(always)]
    pub fn data(&self) -> &'a [u8] {
        self.bytes.get(self.hoff()..).unwrap_or(&[])
    }
}
