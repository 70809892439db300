//! A page: validated once, then read without further doubt.

use super::{
    checksum::page_checksum,
    columns::Slot,
    infomask, load,
    tuple::{BITMAP_OFFSET, TUPLE_HEADER_MIN, TupleRef},
    uniform::{Uniform, scan_uniform},
};
use crate::{Error, ErrorKind};
use std::{fmt, path::Path};

/// `SizeOfPageHeaderData`: the line pointers begin here.
const PAGE_HEADER: usize = 24;
/// Page layout version of PostgreSQL 8.3 and later.
const LAYOUT_VERSION: u16 = 4;
/// `pd_flags` that exist: free lines, full, all visible.
const VALID_FLAGS: u16 = 0x0007;
/// `PD_ALL_VISIBLE`.
const ALL_VISIBLE: u16 = 0x0004;
/// `MaxTupleAttributeNumber`.
const MAX_NATTS: u16 = 1664;
/// `SEQ_MAGIC`: a sequence is a heap page with this word in its special space.
const SEQUENCE_MAGIC: u32 = 0x1717;
/// Bytes of a sequence's special space.
const SEQUENCE_SPECIAL: usize = 8;

pub(super) const LP_NORMAL: u32 = 1;
const LP_REDIRECT: u32 = 2;

/// Whether page checksums are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyMode {
    /// Compute and compare: the cluster has data checksums.
    Checksum,
    /// Compare with this one, which [`page_checksums`](super::checksum::page_checksums) gave for the page.
    Computed(u16),
    /// Structure only: the cluster has none, or the caller accepts pages with a wrong one.
    Structure,
}

/// What [`ValidPage::check`] finds on a page without fault.
#[derive(Clone, Copy, Debug)]
pub enum PageCheck<'a> {
    /// All bytes are zero: the relation was extended, nothing was written yet.
    New,
    /// A page.
    Valid(ValidPage<'a>),
}

/// What is wrong with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFault {
    /// The bytes are no whole block of a size that PostgreSQL knows.
    Size {
        /// Number of bytes.
        bytes: usize,
    },
    /// The header says "new" (`pd_upper` 0), but not all bytes are zero.
    NewNotZero {
        /// Offset of the first byte that is not zero.
        at: usize,
    },
    /// The page was written by a machine of the other byte order.
    ByteOrder,
    /// The checksum does not match.
    Checksum {
        /// `pd_checksum`.
        stored: u16,
        /// What the bytes give.
        computed: u16,
    },
    /// The page size and layout version word is another one.
    Layout {
        /// `pd_pagesize_version`.
        word: u16,
        /// What it should be.
        expected: u16,
    },
    /// Impossible bits in `pd_flags`.
    Flags {
        /// `pd_flags`.
        flags: u16,
    },
    /// `pd_lower`, `pd_upper` and `pd_special` do not follow one another within the page.
    Bounds {
        /// `pd_lower`.
        lower: u16,
        /// `pd_upper`.
        upper: u16,
        /// `pd_special`.
        special: u16,
    },
    /// There is a special space that is not a sequence's: an index page, or another access method.
    Special {
        /// `pd_special`.
        special: u16,
    },
    /// A line pointer leads to no tuple.
    LinePointer {
        /// Its number, from 1.
        number: u16,
        /// `lp_off`.
        offset: u16,
        /// `lp_len`.
        length: u16,
        /// What is wrong.
        reason: &'static str,
    },
    /// A tuple's header is impossible.
    TupleHeader {
        /// Number of its line pointer, from 1.
        number: u16,
        /// What is wrong.
        reason: &'static str,
    },
}

impl PageFault {
    /// The fault as an error at `block` of the file `path`.
    pub fn into_error(self, path: &Path, block: u32) -> Error {
        let kind = match self {
            Self::Checksum { .. } => ErrorKind::Checksum,
            Self::ByteOrder => ErrorKind::Unsupported,
            _ => ErrorKind::Corrupt,
        };
        Error::new(kind, self.to_string()).with_path(path).with_block(block)
    }
}

impl fmt::Display for PageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { bytes } => write!(f, "{bytes} bytes are no page"),
            Self::NewNotZero { at } => write!(f, "the page says it is new, but byte {at} is not zero"),
            Self::ByteOrder => f.write_str("the page was written by a machine of the other byte order"),
            Self::Checksum { stored, computed } => {
                write!(f, "checksum mismatch: the page says {stored}, its bytes give {computed}")
            }
            Self::Layout { word, expected } => write!(
                f,
                "page size {} and layout version {}, expected {} and {}",
                word & 0xff00,
                word & 0xff,
                expected & 0xff00,
                expected & 0xff
            ),
            Self::Flags { flags } => write!(f, "page flags {flags:#06x} do not exist"),
            Self::Bounds { lower, upper, special } => {
                write!(f, "page header: lower {lower}, upper {upper}, special {special} cannot be")
            }
            Self::Special { special } => {
                write!(f, "special space at {special}: not a heap page (an index, or another access method)")
            }
            Self::LinePointer { number, offset, length, reason } => {
                write!(f, "line pointer {number} (offset {offset}, length {length}): {reason}")
            }
            Self::TupleHeader { number, reason } => write!(f, "tuple {number}: {reason}"),
        }
    }
}

impl std::error::Error for PageFault {}

/// A used line pointer: where a tuple lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinePointer {
    /// Number, from 1.
    pub number: u16,
    /// `lp_off`: bytes from the start of the page.
    pub offset: u16,
    /// `lp_len`: bytes of the tuple with its header.
    pub length: u16,
}

/// What holds for all tuples of a page; found on the way by the validation. Lets decoders drop per-tuple tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSummary {
    /// Number of tuples (normal line pointers).
    pub tuples: u16,
    /// OR of all `t_infomask`.
    pub infomask_any: u16,
    /// AND of all `t_infomask`.
    pub infomask_all: u16,
    /// Fewest attributes in a tuple.
    pub natts_min: u16,
    /// Most attributes in a tuple.
    pub natts_max: u16,
    /// Fewest bytes of values (tuple length less `t_hoff`).
    pub data_min: u16,
    /// `t_hoff` if all tuples have the same; else 0.
    pub hoff: u8,
    /// Smallest `t_xmin` as a plain number.
    pub xmin_min: u32,
    /// Largest `t_xmin` as a plain number.
    pub xmin_max: u32,
    /// Where all tuples lie, if they are of one length and shape and side by side.
    pub uniform: Option<Uniform>,
}

impl PageSummary {
    /// Of a page without tuples.
    pub(super) const EMPTY: Self = Self {
        tuples: 0,
        infomask_any: 0,
        infomask_all: u16::MAX,
        natts_min: u16::MAX,
        natts_max: 0,
        data_min: u16::MAX,
        hoff: 0,
        xmin_min: u32::MAX,
        xmin_max: 0,
        uniform: None,
    };
    /// Promises nothing.
    const UNKNOWN: Self = Self {
        tuples: 0,
        infomask_any: u16::MAX,
        infomask_all: 0,
        natts_min: 0,
        natts_max: u16::MAX,
        data_min: 0,
        hoff: 0,
        xmin_min: 0,
        xmin_max: u32::MAX,
        uniform: None,
    };

    /// Whether a tuple has a NULL bitmap.
    pub fn has_nulls(&self) -> bool {
        self.infomask_any & infomask::HASNULL != 0
    }
}

/// A heap page whose header, line pointers and tuple headers have been validated.
#[derive(Clone, Copy, Debug)]
pub struct ValidPage<'a> {
    bytes: &'a [u8],
    pointers: &'a [[u8; 4]],
    block: u32,
    flags: u16,
    summary: PageSummary,
}

/// Where things end on a page.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) lower: u16,
    pub(super) upper: u16,
    pub(super) special: u16,
}

impl<'a> ValidPage<'a> {
    /// Validates the page `bytes`, which lies at `block` (counted over all segments).
    ///
    /// # Errors
    /// The first fault found, in the order: not new but says so, byte order, checksum, header, line pointers.
    pub fn check(bytes: &'a [u8], block: u32, verify: VerifyMode) -> Result<PageCheck<'a>, PageFault> {
        if !(1024..=32_768).contains(&bytes.len()) || !bytes.len().is_power_of_two() {
            return Err(PageFault::Size { bytes: bytes.len() });
        }
        let bounds = Bounds { lower: load::u16(bytes, 12), upper: load::u16(bytes, 14), special: load::u16(bytes, 16) };
        // A new page is all zero and has no checksum; a zero here alone proves nothing.
        if bounds.upper == 0 {
            return match bytes.iter().position(|&b| b != 0) {
                None => Ok(PageCheck::New),
                Some(at) => Err(PageFault::NewNotZero { at }),
            };
        }
        let word = load::u16(bytes, 18);
        let expected = bytes.len() as u16 | LAYOUT_VERSION;
        if word != expected && word.swap_bytes() == expected {
            return Err(PageFault::ByteOrder);
        }
        let computed = match verify {
            VerifyMode::Checksum => Some(page_checksum(bytes, block)),
            VerifyMode::Computed(checksum) => Some(checksum),
            VerifyMode::Structure => None,
        };
        let stored = load::u16(bytes, 8);
        if let Some(computed) = computed.filter(|&computed| computed != stored) {
            return Err(PageFault::Checksum { stored, computed });
        }
        let flags = check_header(bytes, word, expected, bounds)?;
        let pointers = line_pointers(bytes, bounds.lower);
        let found = scan_uniform(bytes, pointers, bounds).or_else(|| scan_pointers(bytes, pointers, bounds));
        let Some(summary) = found else {
            return Err(find_fault(bytes, pointers, bounds));
        };
        // A checksum vouches for the line pointers. Without one, a wrong offset can lead to another whole tuple.
        if let Some(fault) = computed.is_none().then(|| overlap(pointers)).flatten() {
            return Err(fault);
        }
        Ok(PageCheck::Valid(Self { bytes, pointers, block, flags, summary }))
    }

    /// A page that [`check`](Self::check) found valid before and whose bytes have not changed since, for instance a
    /// frame of the buffer pool that is hit again. Promises nothing in its [`summary`](Self::summary).
    ///
    /// `None` if not even the header can be; other lies end in a panic or in wrong rows, never in a read elsewhere.
    pub fn from_checked(bytes: &'a [u8], block: u32) -> Option<Self> {
        let lower = load::u16(bytes, 12);
        if usize::from(lower) < PAGE_HEADER || usize::from(lower) > bytes.len() {
            return None;
        }
        let pointers = line_pointers(bytes, lower);
        Some(Self { bytes, pointers, block, flags: load::u16(bytes, 10), summary: PageSummary::UNKNOWN })
    }

    /// With the summary that the [`check`](Self::check) of the same bytes found.
    #[must_use]
    pub(crate) fn with_summary(self, summary: PageSummary) -> Self {
        Self { summary, ..self }
    }

    /// Its block number.
    #[inline]
    pub fn block(&self) -> u32 {
        self.block
    }

    /// All its bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// `PD_ALL_VISIBLE`: every tuple is visible to everybody.
    #[inline]
    pub fn all_visible(&self) -> bool {
        self.flags & ALL_VISIBLE != 0
    }

    /// `pd_lsn`: end of the last WAL record that changed the page. Never an excuse for a fault.
    pub fn lsn(&self) -> u64 {
        u64::from(load::u32(self.bytes, 0)) << 32 | u64::from(load::u32(self.bytes, 4))
    }

    /// The value that a slot of [`DeformPlan::deform_page`](super::DeformPlan::deform_page) over this page leads to:
    /// empty for NULL and for a missing one.
    #[inline(always)]
    pub fn value(&self, slot: Slot) -> &'a [u8] {
        self.bytes.get(slot.range()).unwrap_or(&[])
    }

    /// Number of line pointers of all kinds.
    #[inline]
    pub fn line_pointer_count(&self) -> u16 {
        self.pointers.len() as u16
    }

    /// What holds for all tuples.
    #[inline]
    pub fn summary(&self) -> &PageSummary {
        &self.summary
    }

    /// The line pointers of tuples, in order. Unused, dead and redirecting ones are left out: what a redirect leads to
    /// has a line pointer of its own.
    #[inline]
    pub fn line_pointers(&self) -> impl Iterator<Item = LinePointer> + use<'a> {
        self.pointers.iter().zip(1u16..).filter_map(|(pointer, number)| {
            let word = u32::from_le_bytes(*pointer);
            (flag_of(word) == LP_NORMAL).then(|| LinePointer {
                number,
                offset: offset_of(word) as u16,
                length: length_of(word) as u16,
            })
        })
    }

    /// Appends the line pointers of all tuples to `out`.
    pub(crate) fn collect_line_pointers(&self, out: &mut Vec<LinePointer>) {
        let known = usize::from(self.summary.tuples) == self.pointers.len();
        if !known {
            out.reserve(self.pointers.len());
            out.extend(self.line_pointers());
            return;
        }
        // All are tuples: the length is known, so no push asks for room.
        out.extend(self.pointers.iter().enumerate().map(|(index, pointer)| {
            let word = u32::from_le_bytes(*pointer);
            LinePointer { number: index as u16 + 1, offset: offset_of(word) as u16, length: length_of(word) as u16 }
        }));
    }

    /// The tuples, in the order of their line pointers.
    #[inline]
    pub fn tuples(&self) -> impl Iterator<Item = TupleRef<'a>> + use<'a> {
        let page = *self;
        self.line_pointers().map(move |pointer| page.tuple(pointer))
    }

    /// The tuple at a line pointer of this page.
    ///
    /// # Panics
    /// If `pointer` comes from another page and leads out of this one.
    #[inline(always)]
    pub fn tuple(&self, pointer: LinePointer) -> TupleRef<'a> {
        let start = usize::from(pointer.offset);
        let bytes = &self.bytes[start..start + usize::from(pointer.length)];
        TupleRef::new(bytes, self.block, pointer.number).expect("a line pointer of this page leads to a whole tuple")
    }

    /// The tuple of line pointer `number` (from 1), if that is a normal one. For lookups by `ctid`.
    pub fn tuple_at(&self, number: u16) -> Option<TupleRef<'a>> {
        let word = u32::from_le_bytes(*self.pointers.get(usize::from(number).checked_sub(1)?)?);
        let (offset, length) = (offset_of(word) as u16, length_of(word) as u16);
        (flag_of(word) == LP_NORMAL).then(|| self.tuple(LinePointer { number, offset, length }))
    }
}

#[inline(always)]
pub(super) fn offset_of(pointer: u32) -> u32 {
    pointer & 0x7fff
}

#[inline(always)]
pub(super) fn flag_of(pointer: u32) -> u32 {
    pointer >> 15 & 3
}

#[inline(always)]
pub(super) fn length_of(pointer: u32) -> u32 {
    pointer >> 17
}

fn line_pointers(bytes: &[u8], lower: u16) -> &[[u8; 4]] {
    bytes.get(PAGE_HEADER..usize::from(lower)).unwrap_or(&[]).as_chunks().0
}

/// Checks the page header but for the checksum; gives `pd_flags`.
fn check_header(bytes: &[u8], word: u16, expected: u16, bounds: Bounds) -> Result<u16, PageFault> {
    let Bounds { lower, upper, special } = bounds;
    if word != expected {
        return Err(PageFault::Layout { word, expected });
    }
    let flags = load::u16(bytes, 10);
    if flags & !VALID_FLAGS != 0 {
        return Err(PageFault::Flags { flags });
    }
    let ordered = usize::from(lower) >= PAGE_HEADER
        && (usize::from(lower) - PAGE_HEADER).is_multiple_of(4)
        && lower <= upper
        && upper <= special
        && usize::from(special) <= bytes.len()
        && special.is_multiple_of(8);
    if !ordered {
        return Err(PageFault::Bounds { lower, upper, special });
    }
    let sequence = usize::from(special) + SEQUENCE_SPECIAL == bytes.len()
        && load::u32(bytes, usize::from(special)) == SEQUENCE_MAGIC;
    if usize::from(special) != bytes.len() && !sequence {
        return Err(PageFault::Special { special });
    }
    Ok(flags)
}

/// Bytes 16 to 23 of a tuple header as one word: `t_ctid`'s number, `t_infomask2`, `t_infomask`, `t_hoff`.
pub(super) const WORD_AT: usize = 16;
/// What decides whether such a header can be: number of attributes, whether there is a bitmap, `t_hoff`.
pub(super) const SHAPE: u64 = (infomask::NATTS_MASK as u64) << 16 | (infomask::HASNULL as u64) << 32 | 0xff << 48;

/// Tests every line pointer and tuple header in one pass, without asking which test failed: `None` is "a fault".
///
/// Faults of places gather in one word that is looked at once; a header is looked at once for every run of tuples with
/// the same shape, which mostly is the whole page. Everything that a tuple needs stays in registers that way.
pub(super) fn scan_pointers(bytes: &[u8], pointers: &[[u8; 4]], bounds: Bounds) -> Option<PageSummary> {
    let (upper, special) = (u32::from(bounds.upper), u32::from(bounds.special));
    let mut summary = PageSummary::EMPTY;
    let (mut mask_any, mut mask_all) = (0u64, u64::MAX);
    let (mut xmin_min, mut xmin_max) = (u32::MAX, 0);
    let (mut shape, mut shapes) = (u64::MAX, 0u32);
    let (mut length_min, mut faults, mut others) = (u32::MAX, 0u32, 0u32);
    for pointer in pointers {
        let word = u32::from_le_bytes(*pointer);
        let (offset, length) = (offset_of(word), length_of(word));
        if flag_of(word) != LP_NORMAL {
            // Only tuples have storage (`ItemIdSetUnused`, `ItemIdSetDead`, `ItemIdSetRedirect`).
            if length != 0 || flag_of(word) == LP_REDIRECT && (offset == 0 || offset as usize > pointers.len()) {
                return None;
            }
            others += 1;
            continue;
        }
        let header = bytes.get(offset as usize..)?.first_chunk::<TUPLE_HEADER_MIN>()?;
        let word = u64::from_le_bytes(*header[WORD_AT..].first_chunk()?);
        if word & SHAPE != shape {
            summary.end_run(shape, length_min)?;
            shape = word & SHAPE;
            shapes += 1;
            length_min = u32::MAX;
        }
        mask_any |= word;
        mask_all &= word;
        // All are far below 2^29, so the top bits tell of a negative difference or of a bit of misalignment.
        faults |= offset.wrapping_sub(upper) | special.wrapping_sub(offset + length) | offset << 29;
        length_min = length_min.min(length);
        let xmin = load::u32(header, 0);
        xmin_min = xmin_min.min(xmin);
        xmin_max = xmin_max.max(xmin);
    }
    summary.end_run(shape, length_min)?;
    summary.tuples = pointers.len() as u16 - others as u16;
    summary.hoff = if shapes == 1 { (shape >> 48) as u8 } else { 0 };
    summary.infomask_any = (mask_any >> 32) as u16;
    summary.infomask_all = (mask_all >> 32) as u16;
    (summary.xmin_min, summary.xmin_max) = (xmin_min, xmin_max);
    (faults >> 29 == 0).then_some(summary)
}

impl PageSummary {
    /// Takes in a run of tuples of one shape, the shortest of which has `length_min` bytes. `None` if such tuples
    /// cannot be.
    #[inline(never)]
    pub(super) fn end_run(&mut self, shape: u64, length_min: u32) -> Option<()> {
        if shape == u64::MAX {
            return Some(());
        }
        let natts = (shape >> 16) as u16 & infomask::NATTS_MASK;
        let hoff = (shape >> 48) as u32;
        let bitmap = if shape >> 32 & u64::from(infomask::HASNULL) != 0 { u32::from(natts).div_ceil(8) } else { 0 };
        let sane =
            hoff >= BITMAP_OFFSET as u32 + bitmap && hoff.is_multiple_of(8) && hoff <= length_min && natts <= MAX_NATTS;
        self.natts_min = self.natts_min.min(natts);
        self.natts_max = self.natts_max.max(natts);
        self.data_min = self.data_min.min(length_min.wrapping_sub(hoff) as u16);
        sane.then_some(())
    }
}

/// Looks for two tuples that share bytes, which no server writes: one of the two is not where its row was, so that a row
/// would come twice and another one not at all. The line pointers have passed [`scan_pointers`].
fn overlap(pointers: &[[u8; 4]]) -> Option<PageFault> {
    // A bit for each 8 bytes, in which tuples begin, of the largest page: 32 kB.
    let mut taken = [0u64; 64];
    for (pointer, number) in pointers.iter().zip(1u16..) {
        let word = u32::from_le_bytes(*pointer);
        let (offset, length) = (offset_of(word), length_of(word));
        if flag_of(word) != LP_NORMAL {
            continue;
        }
        let (mut unit, end) = (offset / 8, (offset + length).div_ceil(8));
        while unit < end {
            let count = (end - unit).min(64 - unit % 64);
            let mask = u64::MAX >> (64 - count) << (unit % 64);
            let seen = taken.get_mut((unit / 64) as usize)?;
            if *seen & mask != 0 {
                let reason = "shares bytes with the tuple of another line pointer";
                return Some(PageFault::LinePointer { number, offset: offset as u16, length: length as u16, reason });
            }
            *seen |= mask;
            unit += count;
        }
    }
    None
}

/// Finds out which test of [`scan_pointers`] failed.
#[cold]
fn find_fault(bytes: &[u8], pointers: &[[u8; 4]], bounds: Bounds) -> PageFault {
    let (upper, special) = (u32::from(bounds.upper), u32::from(bounds.special));
    for (pointer, number) in pointers.iter().zip(1u16..) {
        let word = u32::from_le_bytes(*pointer);
        let (offset, length) = (offset_of(word), length_of(word));
        let fault = |reason| PageFault::LinePointer { number, offset: offset as u16, length: length as u16, reason };
        match flag_of(word) {
            LP_NORMAL => {
                if offset < upper {
                    return fault("begins before the space for tuples");
                } else if !offset.is_multiple_of(8) {
                    return fault("the tuple is not aligned");
                } else if offset + length > special {
                    return fault("ends behind the space for tuples");
                } else if length < TUPLE_HEADER_MIN as u32 {
                    return fault("shorter than a tuple header");
                } else if let Some(reason) = header_fault(&bytes[offset as usize..(offset + length) as usize]) {
                    return PageFault::TupleHeader { number, reason };
                }
            }
            _ if length != 0 => return fault("unused, dead or redirecting, yet it has a length"),
            LP_REDIRECT if offset == 0 || offset as usize > pointers.len() => {
                return fault("redirects to a line pointer that does not exist");
            }
            _ => {}
        }
    }
    PageFault::Bounds { lower: bounds.lower, upper: bounds.upper, special: bounds.special }
}

fn header_fault(tuple: &[u8]) -> Option<&'static str> {
    let natts = load::u16(tuple, 18) & infomask::NATTS_MASK;
    let hoff = usize::from(tuple[22]);
    let bitmap = if load::u16(tuple, 20) & infomask::HASNULL != 0 { usize::from(natts).div_ceil(8) } else { 0 };
    if natts > MAX_NATTS {
        Some("has more attributes than a tuple can have")
    } else if !hoff.is_multiple_of(8) || hoff < BITMAP_OFFSET {
        Some("its header length is impossible")
    } else if hoff > tuple.len() {
        Some("its header is longer than the tuple")
    } else if hoff < BITMAP_OFFSET + bitmap {
        Some("its NULL bitmap is longer than its header")
    } else {
        None
    }
}
