//! Ranges and multiranges (`src/include/utils/rangetypes.h`, `multirangetypes.h`).

use super::{
    Form,
    nested::{Bad, Physical, Text, align_up, bad, check_size, is_space, quote_tail, u32_at},
};

const EMPTY: u8 = 0x01;
const LOWER_INCLUSIVE: u8 = 0x02;
const UPPER_INCLUSIVE: u8 = 0x04;
const LOWER_INFINITE: u8 = 0x08;
const UPPER_INFINITE: u8 = 0x10;
const LOWER_NULL: u8 = 0x20;
const UPPER_NULL: u8 = 0x40;

/// Alignment counts from the varlena header, which the payload lacks.
const HEADER: usize = 4;

/// How the ranges over one type are printed.
#[derive(Clone, Debug)]
pub(super) struct RangeForm {
    pub(super) bound: Form,
    pub(super) physical: Physical,
}

impl RangeForm {
    /// Appends a range: oid of the range type, bounds, and at the very end a byte of flags.
    pub(super) fn write(&self, payload: &[u8], out: &mut Vec<u8>) -> Text {
        match payload {
            [_, _, _, _, .., flags] => self.write_bounds(payload, 4, *flags, out).map(|_| ()),
            _ => Err(bad("a range is too short")),
        }
    }

    /// Appends a multirange: oid, number of ranges, lengths of all ranges but the last, flags of all, bounds.
    pub(super) fn write_multi(&self, payload: &[u8], out: &mut Vec<u8>) -> Text {
        let count = u32_at(payload, 4)? as usize;
        let flags_at = 8 + count.saturating_sub(1).saturating_mul(4);
        let flags = payload.get(flags_at..flags_at.saturating_add(count)).ok_or(bad("a multirange is too short"))?;
        let aligned = |at: usize| align_up(at + HEADER, self.physical.align) - HEADER;
        let (mut at, text) = (flags_at + count, out.len());
        out.push(b'{');
        for (i, &flags) in flags.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            // Ranges follow each other, each aligned: the lengths need not be read.
            at = self.write_bounds(payload, aligned(at), flags, out)?;
            check_size(out, text)?;
        }
        out.push(b'}');
        Ok(())
    }

    /// Appends the range whose bounds are at `at`; gives back where they end.
    fn write_bounds(&self, payload: &[u8], mut at: usize, flags: u8, out: &mut Vec<u8>) -> Result<usize, Bad> {
        if flags & EMPTY != 0 {
            out.extend_from_slice(b"empty");
            return Ok(at);
        }
        out.push(if flags & LOWER_INCLUSIVE != 0 { b'[' } else { b'(' });
        if flags & (LOWER_INFINITE | LOWER_NULL) == 0 {
            at = self.write_bound(payload, at, out)?;
        }
        out.push(b',');
        if flags & (UPPER_INFINITE | UPPER_NULL) == 0 {
            at = self.write_bound(payload, at, out)?;
        }
        out.push(if flags & UPPER_INCLUSIVE != 0 { b']' } else { b')' });
        Ok(at)
    }

    fn write_bound(&self, payload: &[u8], at: usize, out: &mut Vec<u8>) -> Result<usize, Bad> {
        let (value, end) = self.physical.value(payload, at, HEADER)?;
        let start = out.len();
        self.bound.write(value, out)?;
        if !self.bound.is_plain() && needs_quotes(&out[start..]) {
            quote_tail(out, start, |byte| matches!(byte, b'"' | b'\\').then_some(byte));
        }
        Ok(end)
    }
}

fn needs_quotes(text: &[u8]) -> bool {
    let special = |&byte: &u8| matches!(byte, b'"' | b'\\' | b'(' | b')' | b'[' | b']' | b',') || is_space(byte);
    text.is_empty() || text.iter().any(special)
}
