//! Arrays (`src/include/utils/array.h`), and the two vectors that are arrays inside but print otherwise.

use super::{
    Form,
    digits::{push_i64, push_u32},
    nested::{Bad, Physical, Text, align_up, bad, bytes, check_size, i32_at, is_space, quote_tail, u32_at},
};

/// MAXDIM.
const MAX_DIMENSIONS: usize = 6;
/// Alignment inside an array counts from its varlena header, which the payload lacks.
const HEADER: usize = 4;

/// How the arrays of one element type are printed.
#[derive(Clone, Debug)]
pub(super) struct ArrayForm {
    pub(super) element: Form,
    pub(super) element_oid: u32,
    pub(super) physical: Physical,
    /// `typdelim` of the element type.
    pub(super) delimiter: u8,
}

/// Dimensions and element type of an array.
struct Header {
    dimensions: usize,
    element_oid: u32,
    lengths: [usize; MAX_DIMENSIONS],
    lower: [i32; MAX_DIMENSIONS],
    items: usize,
    /// Where the bitmap of NULLs is, if there is one.
    bitmap: Option<usize>,
    data: usize,
}

impl Header {
    fn parse(payload: &[u8]) -> Result<Self, Bad> {
        let dimensions = u32_at(payload, 0)? as usize;
        let data_offset = u32_at(payload, 4)? as usize;
        let element_oid = u32_at(payload, 8)?;
        if dimensions > MAX_DIMENSIONS {
            return Err(bad("an array has more than 6 dimensions"));
        }
        let (mut lengths, mut lower) = ([0; MAX_DIMENSIONS], [1; MAX_DIMENSIONS]);
        let mut items = usize::from(dimensions > 0);
        for i in 0..dimensions {
            lengths[i] =
                usize::try_from(i32_at(payload, 12 + i * 4)?).map_err(|_| bad("a negative array dimension"))?;
            lower[i] = i32_at(payload, 12 + dimensions * 4 + i * 4)?;
            items = items.checked_mul(lengths[i]).ok_or(bad("array dimensions are too large"))?;
        }
        let after = 12 + dimensions * 8;
        let (bitmap, data) = match data_offset.checked_sub(HEADER) {
            None if data_offset == 0 => (None, align_up(after + HEADER, 8) - HEADER),
            Some(data) if data >= after.saturating_add(items.div_ceil(8)) => (Some(after), data),
            _ => return Err(bad("an array's data begins inside its header")),
        };
        // An element takes a byte or, when NULL, a bit: this bounds the work below.
        if items > payload.len().saturating_mul(8) || data > payload.len() && items > 0 {
            return Err(bad("an array has fewer elements than its dimensions say"));
        }
        Ok(Self { dimensions, element_oid, lengths, lower, items, bitmap, data })
    }

    fn is_null(&self, payload: &[u8], item: usize) -> bool {
        self.bitmap.is_some_and(|at| payload.get(at + item / 8).is_none_or(|byte| byte >> (item % 8) & 1 == 0))
    }
}

/// The oid of the element type that is written in an array's header.
pub(super) fn element_oid(payload: &[u8]) -> Result<u32, Bad> {
    u32_at(payload, 8)
}

impl ArrayForm {
    /// Appends `{...}`, with `[l:u]=` before it if a lower bound is not 1.
    pub(super) fn write(&self, payload: &[u8], out: &mut Vec<u8>) -> Text {
        let text = out.len();
        let header = Header::parse(payload)?;
        if header.items == 0 {
            out.extend_from_slice(b"{}");
            return Ok(());
        }
        // A cast that changes nothing but the name of the type (int4[] to oid[]) leaves the header as it was, and the
        // server prints by the header.
        let renamed = (header.element_oid != self.element_oid)
            .then(|| Form::of_renamed_element(header.element_oid, self.physical.len))
            .flatten();
        let element = renamed.as_ref().unwrap_or(&self.element);
        let (lengths, lower) = (&header.lengths[..header.dimensions], &header.lower[..header.dimensions]);
        if lower.iter().any(|&bound| bound != 1) {
            push_bounds(lengths, lower, out);
        }
        out.resize(out.len() + header.dimensions, b'{');
        let plain = element.is_plain() && matches!(self.delimiter, b',' | b';');
        let mut at = header.data;
        for item in 0..header.items {
            if item > 0 {
                let ends = ended(lengths, item);
                out.resize(out.len() + ends, b'}');
                out.push(self.delimiter);
                out.resize(out.len() + ends, b'{');
            }
            if header.is_null(payload, item) {
                out.extend_from_slice(b"NULL");
                continue;
            }
            let start = out.len();
            let (value, end) = self.element_at(payload, at)?;
            at = end;
            element.write(value, out)?;
            check_size(out, text)?;
            if !plain && needs_quotes(&out[start..], self.delimiter) {
                quote_tail(out, start, |byte| matches!(byte, b'"' | b'\\').then_some(b'\\'));
            }
        }
        out.resize(out.len() + header.dimensions, b'}');
        Ok(())
    }

    fn element_at<'a>(&self, payload: &'a [u8], at: usize) -> Result<(&'a [u8], usize), Bad> {
        // Elements are always aligned: there are no short headers that could begin in the padding.
        let aligned = align_up(at.saturating_add(HEADER), self.physical.align) - HEADER;
        self.physical.value(payload, aligned, HEADER)
    }
}

/// The values of an array that is a list: at most one dimension, and that counted from 1.
#[cfg(feature = "arrow")]
pub(crate) struct ListValues {
    /// Oid of the element type, as the array's header has it; 0 for empty arrays without one.
    pub(crate) element_oid: u32,
    /// Where in the payload each value lies, varlenas with their headers; `None` is NULL.
    pub(crate) values: Vec<Option<std::ops::Range<usize>>>,
}

/// Takes an array apart; `None`: it is no list. `len` and `align` are those of the element type.
#[cfg(feature = "arrow")]
pub(crate) fn list_values(payload: &[u8], len: i16, align: u8) -> Result<Option<ListValues>, &'static str> {
    split(payload, len, align).map_err(|bad| bad.what)
}

#[cfg(feature = "arrow")]
fn split(payload: &[u8], len: i16, align: u8) -> Result<Option<ListValues>, Bad> {
    let header = Header::parse(payload)?;
    if header.dimensions > 1 || header.dimensions == 1 && header.lower[0] != 1 {
        return Ok(None);
    }
    let physical = Physical { len, align };
    let mut values = Vec::with_capacity(header.items.min(payload.len()));
    let mut at = header.data;
    for item in 0..header.items {
        if header.is_null(payload, item) {
            values.push(None);
            continue;
        }
        let start = align_up(at.saturating_add(HEADER), align) - HEADER;
        let (value, end) = physical.value(payload, start, HEADER)?;
        // A C string's zero byte belongs to no value.
        values.push(Some(if len == -2 { start..start + value.len() } else { start..end }));
        at = end;
    }
    Ok(Some(ListValues { element_oid: header.element_oid, values }))
}

/// How many innermost dimensions end before element `item`.
fn ended(lengths: &[usize], item: usize) -> usize {
    let mut size = 1;
    let full = |length: &&usize| {
        size *= **length;
        item.is_multiple_of(size)
    };
    lengths.iter().rev().take_while(full).count()
}

fn push_bounds(lengths: &[usize], lower: &[i32], out: &mut Vec<u8>) {
    for (&length, &lower) in lengths.iter().zip(lower) {
        out.push(b'[');
        push_i64(lower.into(), out);
        out.push(b':');
        push_i64(i64::from(lower).saturating_add_unsigned(length as u64) - 1, out);
        out.push(b']');
    }
    out.push(b'=');
}

fn needs_quotes(text: &[u8], delimiter: u8) -> bool {
    let special = |&byte: &u8| matches!(byte, b'"' | b'\\' | b'{' | b'}') || byte == delimiter || is_space(byte);
    text.is_empty() || text.eq_ignore_ascii_case(b"NULL") || text.iter().any(special)
}

/// Appends an int2vector (2-byte elements) or oidvector (4): the numbers with spaces between.
pub(super) fn vector(payload: &[u8], wide: bool, out: &mut Vec<u8>) -> Text {
    let header = Header::parse(payload)?;
    if header.dimensions > 1 || header.bitmap.is_some() {
        return Err(bad("a vector has more than one dimension or NULLs"));
    }
    for item in 0..header.items {
        if item > 0 {
            out.push(b' ');
        }
        if wide {
            push_u32(u32_at(payload, header.data + item * 4)?, out);
        } else {
            push_i64(i16::from_le_bytes(bytes(payload, header.data + item * 2)?).into(), out);
        }
    }
    Ok(())
}
