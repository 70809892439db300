//! Columns of variable length: text and bytes, copied or printed into one buffer with offsets.

use super::{
    cells::Cells,
    encoding::{self, Decoder},
};
use crate::{
    Error, ErrorKind, Result,
    heap::{Detoaster, Varlena},
    scan::toast::PoolChunks,
    types::TypeOutput,
};
use arrow_array::{ArrayRef, BinaryArray, StringArray};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use std::sync::Arc;

/// How a value becomes bytes.
pub(super) enum Source {
    /// The content of a varlena.
    Varlena,
    /// The bytes of a value of fixed length, or of a C string.
    Plain,
    /// A `name`: up to its first zero byte.
    Name,
    /// A `"char"`: zero is the empty string; bytes above 127 are `\ooo`, as PostgreSQL 15 and later print them.
    Char,
    /// What the type's output function prints.
    Printed(Box<TypeOutput>),
}

/// What text is checked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// Binary: nothing.
    Nothing,
    /// The database's encoding is UTF-8.
    Utf8,
    /// The database has another encoding, with this number, from which the text is converted.
    Convert(i32, Decoder),
    /// The database has an encoding, with this number, that cannot be converted, but ASCII is a part of it.
    Ascii(i32),
}

pub(super) struct Bytes {
    source: Source,
    check: Check,
    /// One more than there are rows.
    offsets: Vec<i32>,
    values: Vec<u8>,
}

impl Bytes {
    pub(super) fn new(source: Source, check: Check) -> Self {
        Self { source, check, offsets: vec![0], values: Vec::new() }
    }

    /// Bytes of the values so far.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether only printing tells how long a value is.
    pub(super) fn is_printed(&self) -> bool {
        matches!(self.source, Source::Printed(_))
    }

    /// How much longer text can become when it is converted.
    fn growth(&self) -> usize {
        if matches!(self.check, Check::Convert(..)) { 3 } else { 1 }
    }

    /// Adds the length of each value to `sizes`, as far as it is known before.
    pub(super) fn add_sizes(&self, cells: &Cells<'_>, sizes: &mut [usize]) -> Result<()> {
        let growth = self.growth();
        match self.source {
            Source::Varlena => cells.each(
                |row, raw| {
                    sizes[row] += match raw {
                        Some(raw) => content_length(raw).map_err(|e| cells.at(row, e))?.saturating_mul(growth),
                        None => 0,
                    };
                    Ok(())
                },
                0,
            ),
            Source::Plain | Source::Name => cells.each(
                |row, raw| {
                    sizes[row] += raw.map_or(0, <[u8]>::len) * growth;
                    Ok(())
                },
                64,
            ),
            Source::Char => {
                sizes.iter_mut().for_each(|size| *size += 4);
                Ok(())
            }
            Source::Printed(_) => Ok(()),
        }
    }

    /// Appends values, printed ones only up to `budget` bytes (but at least `least` rows). Tells how many.
    pub(super) fn append(
        &mut self,
        cells: &Cells<'_>,
        nulls: &mut NullBufferBuilder,
        detoaster: &mut Detoaster<PoolChunks>,
        length: i16,
        budget: usize,
        least: usize,
    ) -> Result<usize> {
        let (start, first) = (self.values.len(), self.offsets.len() - 1);
        let varlena = length == -1;
        let direct = usize::try_from(length).unwrap_or(0);
        let limit = start.saturating_add(budget / self.growth());
        let Self { source, offsets, values, .. } = self;
        let mut taken = 0;
        let mut full = false;
        offsets.reserve(cells.rows.len());
        cells.each(
            |row, raw| {
                if full {
                    return Ok(());
                }
                let Some(raw) = raw else {
                    cells.null(row)?;
                    nulls.append_null();
                    offsets.push(offset(values.len())?);
                    taken += 1;
                    return Ok(());
                };
                let before = values.len();
                match source {
                    Source::Varlena => match short(raw) {
                        Some(content) => values.extend_from_slice(content),
                        None => values.extend_from_slice(detoaster.payload(raw).map_err(|e| cells.at(row, e))?),
                    },
                    Source::Plain => values.extend_from_slice(raw),
                    Source::Name => values.extend_from_slice(raw.split(|&b| b == 0).next().unwrap_or(raw)),
                    Source::Char => push_char(cells.exactly(row, raw)?, values),
                    Source::Printed(output) => {
                        let content = if varlena { detoaster.payload(raw) } else { Ok(raw) };
                        content.and_then(|content| output.write(content, values)).map_err(|e| cells.at(row, e))?;
                        if values.len() > limit && row >= least {
                            values.truncate(before);
                            full = true;
                            return Ok(());
                        }
                    }
                }
                nulls.append_non_null();
                offsets.push(offset(values.len()).map_err(|e| cells.at(row, e))?);
                taken += 1;
                Ok(())
            },
            direct,
        )?;
        match self.check {
            Check::Convert(number, decoder) => self.convert(cells, start, first, number, decoder)?,
            _ => self.check(cells, start, first)?,
        }
        Ok(taken)
    }

    /// Converts the text from byte `start` and row `first` on.
    fn convert(&mut self, cells: &Cells<'_>, start: usize, first: usize, number: i32, decoder: Decoder) -> Result<()> {
        if self.values[start..].is_ascii() {
            return Ok(());
        }
        let stored = self.values.split_off(start);
        let mut from = 0;
        for (row, end) in self.offsets[first + 1..].iter_mut().enumerate() {
            let to = *end as usize - start;
            if !decoder.decode(&stored[from..to], &mut self.values) {
                let message = format!("the text has bytes that {} does not have", encoding::name(number));
                let error = cells.at(row, Error::new(ErrorKind::Value, message));
                let hint = "set BatchOptions::text to TextPolicy::Binary, or leave the column out";
                return Err(error.with_hint(hint).into_refusal());
            }
            from = to;
            *end = offset(self.values.len()).map_err(|e| cells.at(row, e))?;
        }
        Ok(())
    }

    /// Checks the text from byte `start` and row `first` on. Nearly all text is ASCII, which is quickly told of all
    /// values at once.
    fn check(&self, cells: &Cells<'_>, start: usize, first: usize) -> Result<()> {
        if self.check == Check::Nothing || self.values[start..].is_ascii() {
            return Ok(());
        }
        for (row, ends) in self.offsets[first..].windows(2).enumerate() {
            let value = &self.values[ends[0] as usize..ends[1] as usize];
            let error = match self.check {
                Check::Utf8 => std::str::from_utf8(value).err().map(|e| format!("the text is not UTF-8: {e}")),
                Check::Ascii(number) if !value.is_ascii() => Some(format!(
                    "the text is not ASCII, and the database's encoding {} cannot be converted to UTF-8",
                    encoding::name(number)
                )),
                _ => None,
            };
            if let Some(message) = error {
                let error = cells.at(row, Error::new(ErrorKind::Value, message));
                let hint = "set BatchOptions::text to TextPolicy::Binary, or leave the column out";
                return Err(error.with_hint(hint).into_refusal());
            }
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        self.values.truncate(self.offsets.last().map_or(0, |&end| end as usize));
    }

    pub(super) fn finish(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let mut next = Vec::with_capacity(self.offsets.len());
        next.push(0);
        let offsets = std::mem::replace(&mut self.offsets, next);
        // The next batch is likely to be as large as this one; a few large values are no reason to expect more.
        let capacity = self.values.len().min(1 << 20);
        let values = Buffer::from_vec(std::mem::replace(&mut self.values, Vec::with_capacity(capacity)));
        // They begin with 0 and only grow, so this does not panic.
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        let array: Result<ArrayRef, _> = match self.check {
            Check::Nothing => BinaryArray::try_new(offsets, values, nulls).map(|a| Arc::new(a) as ArrayRef),
            _ => StringArray::try_new(offsets, values, nulls).map(|a| Arc::new(a) as ArrayRef),
        };
        array.map_err(super::arrow_error)
    }
}

/// The content of a value with a one-byte header; `None` for all others.
#[inline(always)]
fn short(raw: &[u8]) -> Option<&[u8]> {
    match raw.split_first() {
        Some((header, content)) if header & 1 == 1 && *header != 1 && usize::from(header >> 1) == raw.len() => {
            Some(content)
        }
        _ => None,
    }
}

/// Bytes of the content, which the header tells of compressed and out-of-line values too.
#[inline(always)]
fn content_length(raw: &[u8]) -> Result<usize> {
    if let Some(content) = short(raw) {
        return Ok(content.len());
    }
    Ok(match Varlena::parse(raw)?.0 {
        Varlena::Plain(content) => content.len(),
        Varlena::Compressed { raw_size, .. } => raw_size as usize,
        Varlena::External(pointer) => pointer.raw_size as usize,
    })
}

fn push_char([byte]: [u8; 1], out: &mut Vec<u8>) {
    match byte {
        0 => {}
        1..0x80 => out.push(byte),
        _ => out.extend_from_slice(&[b'\\', b'0' + (byte >> 6), b'0' + (byte >> 3 & 7), b'0' + (byte & 7)]),
    }
}

/// An offset of Arrow's: below 2 GiB.
#[inline(always)]
pub(super) fn offset(at: usize) -> Result<i32> {
    i32::try_from(at).map_err(|_| too_large(at))
}

#[cold]
fn too_large(bytes: usize) -> Error {
    Error::new(ErrorKind::Limit, format!("{bytes} bytes of values, 2 GiB is the most that an Arrow array can have"))
        .with_hint("leave the column out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_end_at_2_gib() {
        assert_eq!(offset(0).expect("small"), 0);
        assert_eq!(offset(i32::MAX as usize).expect("the last"), i32::MAX);
        assert_eq!(offset(1 << 31).expect_err("too large").kind(), ErrorKind::Limit);
    }

    #[test]
    fn encodings() {
        use crate::{heap::LinePointer, scan::arrow::cells::Place};
        use arrow_schema::{DataType, Field};

        let field = Field::new("t", DataType::Utf8, true);
        let rows = [1, 2].map(|number| LinePointer { number, offset: 0, length: 0 });
        let cells = Cells { bytes: &[], block: 4, rows: &rows, place: Place::Direct(0), missing: None, field: &field };
        let check = |check, second: &[u8]| {
            let values = [b"abc", second].concat();
            let offsets = vec![0, 3, values.len() as i32];
            Bytes { source: Source::Plain, check, offsets, values }.check(&cells, 0, 0).map_err(|e| e.to_string())
        };
        for good in [Check::Utf8, Check::Ascii(4), Check::Nothing] {
            assert_eq!(check(good, b"def"), Ok(()));
        }
        assert_eq!(check(Check::Utf8, "é".as_bytes()), Ok(()));
        assert_eq!(check(Check::Nothing, b"\xff"), Ok(()));
        let error = check(Check::Ascii(4), "é".as_bytes()).expect_err("not ASCII");
        assert!(error.starts_with("row (4,2), column t: the text is not ASCII") && error.contains("EUC_TW"), "{error}");
        let error = check(Check::Utf8, b"\xe9").expect_err("not UTF-8");
        assert!(error.starts_with("row (4,2), column t: the text is not UTF-8"), "{error}");
    }

    #[test]
    fn latin1_is_converted() {
        use crate::{heap::LinePointer, scan::arrow::cells::Place};
        use arrow_schema::{DataType, Field};

        let field = Field::new("t", DataType::Utf8, true);
        let rows = [1, 2].map(|number| LinePointer { number, offset: 0, length: 0 });
        let cells = Cells { bytes: &[], block: 4, rows: &rows, place: Place::Direct(0), missing: None, field: &field };
        let decoder = Decoder::new(8).expect("LATIN1");
        let check = Check::Convert(8, decoder);
        let values = b"before\xe9t\xe9 \x80abc".to_vec();
        let mut bytes = Bytes { source: Source::Plain, check, offsets: vec![0, 6, 11, 14], values };
        bytes.convert(&cells, 6, 1, 8, decoder).expect("text");
        assert_eq!(std::str::from_utf8(&bytes.values), Ok("beforeété \u{80}abc"));
        assert_eq!(bytes.offsets, [0, 6, 14, 17]);
    }

    #[test]
    fn chars() {
        for (byte, text) in [(0, ""), (b'a', "a"), (0x7f, "\x7f"), (0x80, "\\200"), (0xff, "\\377")] {
            let mut out = Vec::new();
            push_char([byte], &mut out);
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn lengths_of_headers() {
        assert_eq!(content_length(&[0x07, 1, 2]).expect("short"), 2);
        assert_eq!(content_length(&[0x18, 0, 0, 0, 1, 2]).expect("long"), 2);
        assert!(content_length(&[0x09, 1]).is_err());
    }
}
