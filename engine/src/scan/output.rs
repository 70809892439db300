//! Rows as text: what COPY prints, CSV, JSON lines.

use super::{Page, Row, Scan, ScanBuilder, ScanStats, parallel, row::payload};
use crate::{
    Error, ErrorKind, Result,
    heap::{Datum, PageColumns},
    types::{TypeOutput, copy},
};
use std::io::Write;

/// How rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowFormat {
    /// As `COPY ... TO STDOUT` prints: tabs, `\N` for NULL, backslash escapes.
    #[default]
    Text,
    /// As `COPY ... TO STDOUT (FORMAT csv, HEADER)` prints.
    Csv,
    /// One JSON object a line.
    Json,
}

/// Rows are collected up to this many bytes before they are written.
pub(super) const CHUNK: usize = 256 << 10;

impl ScanBuilder {
    /// Writes all rows, in block order.
    ///
    /// # Errors
    /// Those of the scan; `Unsupported` if a column's type has no known text form; `Io` if `out` refuses.
    pub fn write_rows(self, format: RowFormat, out: &mut dyn Write) -> Result<ScanStats> {
        self.write_rows_with(format, out, &mut |_| {})
    }

    /// As [`write_rows`](Self::write_rows); `progress` is called now and then with the number of pages that are done.
    ///
    /// # Errors
    /// As there.
    pub fn write_rows_with(
        self,
        format: RowFormat,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ScanStats> {
        if self.takes_threads() {
            return parallel::write_rows(self, format, out, progress);
        }
        let stats = write_scan(self.start()?, format, out, progress)?;
        out.flush().map_err(|e| output_error(&e))?;
        Ok(stats)
    }
}

/// Writes the rows of `scan`, with what comes before them.
pub(super) fn write_scan(
    mut scan: Scan,
    format: RowFormat,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<ScanStats> {
    scan.all_outputs()?;
    let mut writer = RowWriter::new(&scan, format);
    let mut buffer = Vec::with_capacity(CHUNK + (CHUNK >> 2));
    writer.header(&mut buffer);
    loop {
        let result = match scan.next_page() {
            Ok(Some(mut page)) => writer.page(&mut page, &mut buffer, out),
            Ok(None) => break,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            // What came before the bad row or page is right; a consumer of a pipe shall have it. If it does not want it, the
            // error is still the first one.
            let _ = write(&mut buffer, out);
            return Err(error);
        }
        progress(scan.stats.pages);
    }
    write(&mut buffer, out)?;
    Ok(scan.stats())
}

fn write(buffer: &mut Vec<u8>, out: &mut dyn Write) -> Result<()> {
    out.write_all(buffer).map_err(|e| output_error(&e))?;
    buffer.clear();
    Ok(())
}

#[cold]
pub(super) fn output_error(error: &std::io::Error) -> Error {
    let message = format!("cannot write the output: {error}");
    match error.raw_os_error() {
        Some(errno) => Error::new(ErrorKind::Io, message).with_errno(errno),
        None => Error::new(ErrorKind::Io, message),
    }
}

pub(super) struct RowWriter {
    format: RowFormat,
    /// For JSON: `"name":` of each column, escaped.
    keys: Vec<Vec<u8>>,
    names: Vec<String>,
    columns: Vec<TextColumn>,
    /// Where the values of a page lie.
    places: PageColumns,
    value: Vec<u8>,
}

/// What COPY's text format needs to know of a column.
#[derive(Clone, Copy)]
struct TextColumn {
    /// Values have a varlena header.
    varlena: bool,
    /// It is not an attribute of the tuples.
    system: bool,
    escape: Escape,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Escape {
    /// The text never has a character that COPY escapes.
    Never,
    /// The text is the value's payload, with escapes.
    Payload,
    /// The text has to be made before it can be escaped.
    Made,
}

impl RowWriter {
    pub(super) fn new(scan: &Scan, format: RowFormat) -> Self {
        let names: Vec<String> = scan.columns().into_iter().map(|c| c.name).collect();
        let key = |name: &String| {
            let mut key = Vec::new();
            copy::json_string(name.as_bytes(), &mut key);
            key.push(b':');
            key
        };
        let keys = names.iter().map(key).collect();
        let column = |(output, &index): (&Option<TypeOutput>, &usize)| TextColumn {
            varlena: scan.context.attribute_at(index).len == -1,
            system: scan.context.attribute_at(index).number < 0,
            escape: match output {
                Some(output) if output.is_verbatim() => Escape::Never,
                Some(output) if output.is_payload() => Escape::Payload,
                _ => Escape::Made,
            },
        };
        let columns = scan.outputs.iter().zip(&scan.columns).map(column).collect();
        Self { format, keys, names, columns, places: PageColumns::default(), value: Vec::new() }
    }

    fn header(&self, out: &mut Vec<u8>) {
        if self.format != RowFormat::Csv {
            return;
        }
        for (i, name) in self.names.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            copy::csv_field(Some(name.as_bytes()), self.names.len() == 1, out);
        }
        out.push(b'\n');
    }

    pub(super) fn page(&mut self, page: &mut Page<'_>, buffer: &mut Vec<u8>, out: &mut dyn Write) -> Result<()> {
        let block = page.block();
        if self.format == RowFormat::Text && self.text_page(page, buffer, out)? {
            return Ok(());
        }
        while let Some(mut row) = page.next_row()? {
            let start = buffer.len();
            if self.format == RowFormat::Json {
                buffer.push(b'{');
            }
            let mut failed = None;
            for column in 0..row.len() {
                if let Err(error) = self.value(&mut row, column, buffer) {
                    let place = format!("row ({block},{}), column {}", row.ctid().1, self.names[column]);
                    failed = Some(error.in_context(place));
                    break;
                }
            }
            if let Some(error) = failed {
                buffer.truncate(start);
                page.leave_out(error)?;
                continue;
            }
            buffer.extend_from_slice(if self.format == RowFormat::Json { b"}\n" } else { b"\n" });
            if buffer.len() >= CHUNK {
                write(buffer, out)?;
            }
        }
        Ok(())
    }

    /// The rows of a page in COPY's text format, without making rows: the page is taken apart at once. `false`: that did
    /// not work, nothing was written; row by row it will be seen which one is at fault.
    fn text_page(&mut self, page: &mut Page<'_>, buffer: &mut Vec<u8>, out: &mut dyn Write) -> Result<bool> {
        let count = page.visible.len().min(usize::try_from(*page.left).unwrap_or(usize::MAX));
        let visible = &page.visible[..count];
        if page.next != 0 || page.plan.deform_page(&page.page, visible, &mut self.places).is_err() {
            return Ok(false);
        }
        for (row, pointer) in visible.iter().enumerate() {
            page.next += 1;
            *page.left -= 1;
            *page.rows += 1;
            let start = buffer.len();
            let mut failed = None;
            for column in 0..self.columns.len() {
                if column > 0 {
                    buffer.push(b'\t');
                }
                if let Err(error) = self.text_value(page, row, column, buffer) {
                    let place = format!("row ({},{}), column {}", page.block(), pointer.number, self.names[column]);
                    failed = Some(error.in_context(place));
                    break;
                }
            }
            if let Some(error) = failed {
                buffer.truncate(start);
                page.leave_out(error)?;
                continue;
            }
            buffer.push(b'\n');
            if buffer.len() >= CHUNK {
                write(buffer, out)?;
            }
        }
        Ok(true)
    }

    /// Appends one value of a page that was taken apart.
    #[inline]
    fn text_value(&mut self, page: &mut Page<'_>, row: usize, column: usize, out: &mut Vec<u8>) -> Result<()> {
        let slot = self.places.column(column)[row];
        let TextColumn { varlena, system, escape } = self.columns[column];
        let datum = if system {
            page.system.value(column, row).map_or(Datum::Null, Datum::Fixed)
        } else if slot.is_null() {
            Datum::Null
        } else if slot.is_missing() {
            page.plan.missing(column)
        } else if varlena {
            Datum::Varlena(page.page.value(slot))
        } else {
            Datum::Fixed(page.page.value(slot))
        };
        let Some(bytes) = payload(datum, page.detoaster)? else {
            out.extend_from_slice(b"\\N");
            return Ok(());
        };
        let output = page.outputs[column]
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "a type without a text form that is known"))?;
        match escape {
            Escape::Never => output.write(bytes, out)?,
            Escape::Payload => copy::escape_text(bytes, out),
            Escape::Made => {
                self.value.clear();
                output.write(bytes, &mut self.value)?;
                copy::escape_text(&self.value, out);
            }
        }
        Ok(())
    }

    /// Appends one value with what separates it from the one before.
    #[inline]
    fn value(&mut self, row: &mut Row<'_>, column: usize, out: &mut Vec<u8>) -> Result<()> {
        match self.format {
            RowFormat::Text => {
                if column > 0 {
                    out.push(b'\t');
                }
                if self.columns[column].escape == Escape::Never {
                    if !row.write_text(column, out)? {
                        out.extend_from_slice(b"\\N");
                    }
                    return Ok(());
                }
                self.value.clear();
                match row.write_text(column, &mut self.value)? {
                    true => copy::escape_text(&self.value, out),
                    false => out.extend_from_slice(b"\\N"),
                }
            }
            RowFormat::Csv => {
                if column > 0 {
                    out.push(b',');
                }
                self.value.clear();
                let there = row.write_text(column, &mut self.value)?;
                copy::csv_field(there.then_some(&self.value[..]), row.len() == 1, out);
            }
            RowFormat::Json => {
                if column > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(&self.keys[column]);
                row.write_json(column, out)?;
            }
        }
        Ok(())
    }
}
