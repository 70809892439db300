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
    let (Uniform { start, stride, length }, end) = progression(pointers)?;
    if start < bounds.upper || end > usize::from(bounds.special) {
        return None;
    }
    let (mut any, mut all) = (0u64, u64::MAX);
    let (mut xmin_min, mut xmin_max) = (u32::MAX, 0);
    for row in bytes.get(usize::from(start)..end)?.chunks_exact(usize::from(stride)) {
        let header = row.first_chunk::<TUPLE_HEADER_MIN>()?;
        let word = u64::from_le_bytes(*header[WORD_AT..].first_chunk()?);
        any |= word;
        all &= word;
        let xmin = load::u32(header, 0);
        xmin_min = xmin_min.min(xmin);
        xmin_max = xmin_max.max(xmin);
    }
    if (any ^ all) & SHAPE != 0 {
        return None;
    }
    let mut summary = PageSummary::EMPTY;
    summary.end_run(any & SHAPE, u32::from(length))?;
    summary.tuples = pointers.len() as u16;
    summary.hoff = (any >> 48) as u8;
    summary.infomask_any = (any >> 32) as u16;
    summary.infomask_all = (all >> 32) as u16;
    (summary.xmin_min, summary.xmin_max) = (xmin_min, xmin_max);
    summary.uniform = Some(Uniform { start, stride, length });
    Some(summary)
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
            if let Some(summary) = scan_uniform(&bytes, pointers, bounds) {
                let general = scan_pointers(&bytes, pointers, bounds);
                prop_assert_eq!(general, Some(PageSummary { uniform: None, ..summary }));
            }
        }
    }
}
