//! Uniform pages: tuples of one length and one shape, laid side by side, as a page has them that was filled in one go.
//!
//! On such a page the line pointers are an arithmetic progression, which vector instructions compare several at a
//! time, and headers and columns lie a fixed stride apart, so that nothing is looked up for each tuple any more.

use super::{
    LinePointer, ValidPage, load,
    page::{Bounds, LP_NORMAL, PageSummary, SHAPE, WORD_AT, flag_of, length_of, offset_of},
    tuple::TUPLE_HEADER_MIN,
};

/// Where the tuples of a uniform page lie. The last tuple comes first on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uniform {
    /// Offset of the last tuple.
    start: u16,
    /// Bytes from one tuple to the next.
    stride: u16,
    /// `lp_len` of all of them.
    length: u16,
}

/// The tuples of a uniform page, in the order of their line pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UniformRows<'a> {
    bytes: &'a [u8],
    /// Offset of `bytes` on the page.
    start: usize,
    stride: usize,
    length: usize,
    hoff: usize,
}

impl<'a> UniformRows<'a> {
    /// Number of tuples.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.stride
    }

    /// `lp_len` less `t_hoff`.
    pub(crate) fn data_length(&self) -> usize {
        self.length - self.hoff
    }

    /// The `N` bytes that lie `offset` behind `t_hoff` in each tuple. `None` if tuples are too short for that.
    #[inline(always)]
    pub(crate) fn fields<const N: usize>(&self, offset: usize) -> Option<impl Iterator<Item = [u8; N]> + use<'a, N>> {
        self.fields_of(offset, 0, self.len())
    }

    /// As [`fields`](Self::fields), of `count` tuples from the one with index `first` on. `None` also if there are not so
    /// many.
    #[inline(always)]
    pub(crate) fn fields_of<const N: usize>(
        &self,
        offset: usize,
        first: usize,
        count: usize,
    ) -> Option<impl Iterator<Item = [u8; N]> + use<'a, N>> {
        let end = self.len().checked_sub(first)?;
        let rows = self.bytes.get(end.checked_sub(count)? * self.stride..end * self.stride)?;
        let at = self.hoff + offset;
        if at + N > self.length {
            return None;
        }
        // The same test for every tuple, which the processor foresees; it never fails, as a stride is not below a length.
        let field = move |row: &[u8]| row.get(at..).and_then(|b| b.first_chunk()).copied().unwrap_or([0; N]);
        Some(rows.chunks_exact(self.stride).rev().map(field))
    }

    /// The values of the tuple with index `row`, from `t_hoff` on; empty if there is no such tuple.
    #[inline(always)]
    pub(crate) fn data(&self, row: usize) -> &'a [u8] {
        let tuple = self.len().checked_sub(row + 1).map(|place| place * self.stride);
        tuple.and_then(|at| self.bytes.get(at + self.hoff..at + self.length)).unwrap_or(&[])
    }

    /// The line pointer of the tuple with index `row`, which there must be.
    #[inline(always)]
    pub(crate) fn line_pointer(&self, row: usize) -> LinePointer {
        let offset = self.start + self.len().saturating_sub(row + 1) * self.stride;
        LinePointer { number: row as u16 + 1, offset: offset as u16, length: self.length as u16 }
    }
}

impl<'a> ValidPage<'a> {
    /// The tuples, if the page is known to be uniform.
    pub(crate) fn uniform_rows(&self) -> Option<UniformRows<'a>> {
        let Uniform { start, stride, length } = self.summary().uniform?;
        let (start, stride) = (usize::from(start), usize::from(stride));
        let end = start + usize::from(self.summary().tuples) * stride;
        let (length, hoff) = (usize::from(length), usize::from(self.summary().hoff));
        let bytes = self.bytes().get(start..end)?;
        (stride >= length && length >= hoff && stride > 0).then_some(UniformRows { bytes, start, stride, length, hoff })
    }
}

/// Validates a uniform page and sums it up. `None`: it is not uniform, or has a fault; the general way tells which.
pub(super) fn scan_uniform(bytes: &[u8], pointers: &[[u8; 4]], bounds: Bounds) -> Option<PageSummary> {
    let Places { uniform, first, differences } = dispatch::find_places(bytes, pointers, bounds)?;
    let (any, all) = (word_of(&or(&first, &differences)), word_of(&and_not(&first, &differences)));
    if (any ^ all) & SHAPE != 0 {
        return None;
    }
    let mut summary = PageSummary::EMPTY;
    summary.end_run(any & SHAPE, u32::from(uniform.length))?;
    summary.tuples = pointers.len() as u16;
    summary.hoff = (any >> 48) as u8;
    summary.infomask_any = (any >> 32) as u16;
    summary.infomask_all = (all >> 32) as u16;
    (summary.xmin_min, summary.xmin_max) = (first[XMIN], first[XMIN]);
    if differences[XMIN] != 0 {
        // Several transactions filled the page.
        let rows = bytes.get(usize::from(uniform.start)..)?.chunks(usize::from(uniform.stride));
        for xmin in rows.take(pointers.len()).map(|row| load::u32(row, 0)) {
            summary.xmin_min = summary.xmin_min.min(xmin);
            summary.xmin_max = summary.xmin_max.max(xmin);
        }
    }
    summary.uniform = Some(uniform);
    Some(summary)
}

/// A tuple header with the 8 bytes before it as words: as many as one vector register of AVX2 holds.
type Header = [u32; 8];
/// Bytes before the header.
const BEFORE: usize = 8;
/// The word of a [`Header`] that is `t_xmin`.
const XMIN: usize = BEFORE / 4;

/// Where the tuples of a page lie that could be uniform, and how their headers differ.
struct Places {
    uniform: Uniform,
    /// The header that comes first on the page.
    first: Header,
    /// The bits in which some header differs from the first.
    differences: Header,
}

/// The loops of [`scan_uniform`]; always inlined, so that each caller compiles them for its own instruction set. One
/// operation of 32 bytes for each tuple: to look at its header's fields one by one takes three times as long.
#[inline(always)]
fn find_places(bytes: &[u8], pointers: &[[u8; 4]], bounds: Bounds) -> Option<Places> {
    const SIZE: usize = size_of::<Header>();
    let (uniform, end) = progression(pointers)?;
    let (start, stride) = (usize::from(uniform.start), usize::from(uniform.stride));
    if start < usize::from(bounds.upper) || end > usize::from(bounds.special) || stride < SIZE {
        return None;
    }
    let words = |row: &[u8; SIZE]| -> Header {
        let (words, _) = row.as_chunks::<4>();
        std::array::from_fn(|i| u32::from_le_bytes(words[i]))
    };
    let rows = bytes.get(start.checked_sub(BEFORE)?..end - BEFORE)?;
    let first = words(rows.first_chunk()?);
    let mut differences = Header::default();
    for row in rows.chunks_exact(stride) {
        let row = words(row.first_chunk()?);
        for i in 0..row.len() {
            differences[i] |= row[i] ^ first[i];
        }
    }
    Some(Places { uniform, first, differences })
}

fn or(a: &Header, b: &Header) -> Header {
    std::array::from_fn(|i| a[i] | b[i])
}

fn and_not(a: &Header, b: &Header) -> Header {
    std::array::from_fn(|i| a[i] & !b[i])
}

/// The word of the header that has its shape.
fn word_of(header: &Header) -> u64 {
    const AT: usize = (BEFORE + WORD_AT) / 4;
    u64::from(header[AT]) | u64::from(header[AT + 1]) << 32
}

#[cfg(target_arch = "x86_64")]
mod dispatch {
    //! Which compilation of the loops runs.
    #![allow(unsafe_code, reason = "calling a function compiled for CPU features needs the proof that they exist")]

    use super::{Bounds, Places};
    use std::sync::OnceLock;

    type Variant = fn(&[u8], &[[u8; 4]], Bounds) -> Option<Places>;

    #[inline]
    pub(super) fn find_places(bytes: &[u8], pointers: &[[u8; 4]], bounds: Bounds) -> Option<Places> {
        static BEST: OnceLock<Variant> = OnceLock::new();
        BEST.get_or_init(|| variants().pop().unwrap_or(super::find_places))(bytes, pointers, bounds)
    }

    /// The variants that this CPU runs, best last.
    pub(super) fn variants() -> Vec<Variant> {
        let mut usable: Vec<Variant> = vec![super::find_places];
        if is_x86_feature_detected!("avx2") {
            // SAFETY: `avx2` needs AVX2 only, which was detected before this closure was handed out.
            usable.push(|bytes, pointers, bounds| unsafe { avx2(bytes, pointers, bounds) });
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: `avx512` needs AVX-512F and VL, which were detected before this closure was handed out.
            usable.push(|bytes, pointers, bounds| unsafe { avx512(bytes, pointers, bounds) });
        }
        usable
    }

    #[target_feature(enable = "avx2")]
    fn avx2(bytes: &[u8], pointers: &[[u8; 4]], bounds: Bounds) -> Option<Places> {
        super::find_places(bytes, pointers, bounds)
    }

    #[target_feature(enable = "avx2,avx512f,avx512vl")]
    fn avx512(bytes: &[u8], pointers: &[[u8; 4]], bounds: Bounds) -> Option<Places> {
        super::find_places(bytes, pointers, bounds)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod dispatch {
    pub(super) use super::find_places;
}

/// Whether each line pointer leads to a tuple right in front of the one before, all of one length; then also where the
/// first one's stride ends. `None` for fewer than two.
fn progression(pointers: &[[u8; 4]]) -> Option<(Uniform, usize)> {
    let [first, second, ..] = *pointers else { return None };
    let (first, stride) =
        (u32::from_le_bytes(first), u32::from_le_bytes(first).wrapping_sub(u32::from_le_bytes(second)));
    let (offset, length) = (offset_of(first), length_of(first));
    let sane = flag_of(first) == LP_NORMAL
        && (TUPLE_HEADER_MIN as u32..1 << 15).contains(&length)
        && (length..1 << 15).contains(&stride)
        && stride.is_multiple_of(8)
        && offset.is_multiple_of(8);
    if !sane {
        return None;
    }
    // No borrow out of the offsets, so equal differences mean equal lengths and flags. At most 8192 times 2^15.
    let start = offset.checked_sub((pointers.len() as u32 - 1) * stride)?;
    let (mut expected, mut wrong) = (first, 0);
    for pointer in pointers {
        wrong |= u32::from_le_bytes(*pointer) ^ expected;
        expected = expected.wrapping_sub(stride);
    }
    let uniform = Uniform { start: start as u16, stride: stride as u16, length: length as u16 };
    (wrong == 0).then_some((uniform, (offset + stride) as usize))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{page::scan_pointers, testing::*},
        *,
    };
    use proptest::prelude::*;

    fn parts(bytes: &[u8]) -> (&[[u8; 4]], Bounds) {
        let lower = load::u16(bytes, 12);
        let bounds = Bounds { lower, upper: load::u16(bytes, 14), special: load::u16(bytes, 16) };
        (bytes.get(24..usize::from(lower)).unwrap_or(&[]).as_chunks().0, bounds)
    }

    fn uniform_page(tuples: usize, data: usize) -> Vec<u8> {
        let spec =
            |i: usize| TupleSpec { xmin: 3 + i as u32 % 5, natts: 1, data: vec![i as u8; data], ..Default::default() };
        page(&(0..tuples).map(|i| spec(i).bytes()).collect::<Vec<_>>(), 0)
    }

    #[test]
    fn fields_come_in_the_order_of_the_line_pointers() {
        for data in 1..20 {
            let bytes = uniform_page(9, data);
            let valid = match ValidPage::check(&bytes, 0, super::super::VerifyMode::Structure).unwrap() {
                super::super::PageCheck::Valid(page) => page,
                super::super::PageCheck::New => panic!(),
            };
            let rows = valid.uniform_rows().expect("uniform");
            assert_eq!((rows.len(), rows.data_length()), (9, data));
            let fields: Vec<[u8; 1]> = rows.fields(data - 1).unwrap().collect();
            assert_eq!(fields, (0..9).map(|i| [i]).collect::<Vec<_>>());
            assert!(rows.fields::<1>(data).is_none());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// Whatever is damaged: a page that passes here passes the general test with the same summary.
        #[test]
        fn never_accepts_what_the_general_way_refuses(
            tuples in 0usize..40, data in 1usize..60, edits in prop::collection::vec((0usize..8192, any::<u8>()), 0..3),
            near in prop::collection::vec((0usize..200, 0u8..8), 0..3),
        ) {
            let mut bytes = uniform_page(tuples, data);
            for (at, value) in edits {
                bytes[at] = value;
            }
            for (at, bit) in near {
                // Page header and line pointers, and the last tuples' headers, where damage matters most.
                let upper = usize::from(load::u16(&bytes, 14));
                let at = if at < 100 { at } else { (upper + at - 100).min(8191) };
                bytes[at] ^= 1 << bit;
            }
            let (pointers, bounds) = parts(&bytes);
            #[cfg(target_arch = "x86_64")]
            for variant in dispatch::variants() {
                let found = variant(&bytes, pointers, bounds).map(|p| (p.uniform, p.first, p.differences));
                let portable = find_places(&bytes, pointers, bounds).map(|p| (p.uniform, p.first, p.differences));
                prop_assert_eq!(found, portable);
            }
            if let Some(summary) = scan_uniform(&bytes, pointers, bounds) {
                let general = scan_pointers(&bytes, pointers, bounds);
                prop_assert_eq!(general, Some(PageSummary { uniform: None, ..summary }));
            }
        }
    }
}
