//! Rows as text: what COPY prints, CSV, JSON lines.

use super::{Page, Row, Scan, ScanBuilder, ScanStats, locate};
use crate::{Error, ErrorKind, Result, types::copy};
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
const CHUNK: usize = 256 << 10;

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
        let mut scan = self.start()?;
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
            if result.is_err() {
                // What came before the bad row or page is right; a consumer of a pipe shall have it.
                write(&mut buffer, out)?;
            }
            result?;
            progress(scan.stats.pages);
        }
        write(&mut buffer, out)?;
        out.flush().map_err(|e| output_error(&e))?;
        Ok(scan.stats())
    }
}

fn write(buffer: &mut Vec<u8>, out: &mut dyn Write) -> Result<()> {
    out.write_all(buffer).map_err(|e| output_error(&e))?;
    buffer.clear();
    Ok(())
}

#[cold]
fn output_error(error: &std::io::Error) -> Error {
    let message = format!("cannot write the output: {error}");
    match error.raw_os_error() {
        Some(errno) => Error::new(ErrorKind::Io, message).with_errno(errno),
        None => Error::new(ErrorKind::Io, message),
    }
}

struct RowWriter {
    format: RowFormat,
    /// For JSON: `"name":` of each column, escaped.
    keys: Vec<Vec<u8>>,
    names: Vec<String>,
    /// Columns whose text never has a character that COPY escapes.
    verbatim: Vec<bool>,
    value: Vec<u8>,
}

impl RowWriter {
    fn new(scan: &Scan, format: RowFormat) -> Self {
        let names: Vec<String> = scan.columns().into_iter().map(|c| c.name).collect();
        let key = |name: &String| {
            let mut key = Vec::new();
            copy::json_string(name.as_bytes(), &mut key);
            key.push(b':');
            key
        };
        let keys = names.iter().map(key).collect();
        let verbatim = scan.outputs.iter().map(|o| o.as_ref().is_some_and(|o| o.is_verbatim())).collect();
        Self { format, keys, names, verbatim, value: Vec::new() }
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

    fn page(&mut self, page: &mut Page<'_>, buffer: &mut Vec<u8>, out: &mut dyn Write) -> Result<()> {
        let (context, block) = (page.context, page.block());
        while let Some(mut row) = page.next_row()? {
            let start = buffer.len();
            if self.format == RowFormat::Json {
                buffer.push(b'{');
            }
            for column in 0..row.len() {
                if let Err(error) = self.value(&mut row, column, buffer) {
                    buffer.truncate(start);
                    let place = format!("row ({block},{}), column {}", row.ctid().1, self.names[column]);
                    return Err(locate(error.in_context(place), context, block));
                }
            }
            buffer.extend_from_slice(if self.format == RowFormat::Json { b"}\n" } else { b"\n" });
            if buffer.len() >= CHUNK {
                write(buffer, out)?;
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
                if self.verbatim[column] {
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
