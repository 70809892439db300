//! Rows as text by several threads.

use super::{
    ORDERED_CHUNK,
    crew::{Body, Crew, Job, Worker},
    merge::{CancelOnDrop, Cancelled, Merge, Next},
};
use crate::{
    Result,
    pool::PinnedPage,
    scan::{
        RowFormat, Scan, ScanBuilder, ScanStats,
        output::{self, RowWriter},
    },
};
use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

/// A thread hands its text on when there is so much: below the size at which the writer of rows would do so in the middle
/// of a page.
const PIECE: usize = output::CHUNK / 4 * 3;

/// Blocks that a scan with a limit looks at before it takes threads: most limits are reached there, and threads would read
/// blocks that nobody wants.
const LEAD: u32 = 64;

pub(in crate::scan) fn write_rows(
    builder: ScanBuilder,
    format: RowFormat,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<ScanStats> {
    let columns = builder.attributes()?;
    let bound = builder.bound_filter()?;
    let ScanBuilder { context, blocks, limit, team, filter, rows, cancel, .. } = builder;
    let mut blocks = context.existing(blocks);
    let mut left = limit.unwrap_or(u64::MAX);
    let mut stats = ScanStats::default();
    let lead = if limit.is_some() { blocks.start..blocks.end.min(blocks.start.saturating_add(LEAD)) } else { 0..0 };
    blocks.start = blocks.start.max(lead.end);
    // Without a limit it reads nothing, and is there for the header and for what cannot be printed.
    let scan = Scan::new(Arc::clone(&context), columns.clone(), lead, limit, rows)?;
    let scan = Scan { filter: bound, cancel: cancel.clone(), ..scan };
    let began = output::write_scan(scan, format, out, progress)?;
    stats.add(&began);
    left -= began.rows.min(left);
    let mut reports = Vec::new();
    if left > 0 && !blocks.is_empty() {
        let ordered = (!team.unordered).then_some(ORDERED_CHUNK);
        let job = Job { context, columns, filter, rows, blocks, threads: team.threads, cancel, ordered };
        let (rest, threads) = by_threads(job, format, limit.map(|_| left), out, &mut |pages| {
            progress(began.pages + pages);
        })?;
        stats.add(&rest);
        stats.elapsed_nanos = rest.elapsed_nanos;
        reports = threads;
    }
    stats.elapsed_nanos += began.elapsed_nanos;
    team.report(reports);
    out.flush().map_err(|e| output::output_error(&e))?;
    Ok(stats)
}

/// Scans with a crew, and writes what it makes.
fn by_threads(
    job: Job,
    format: RowFormat,
    limit: Option<u64>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<(ScanStats, Vec<super::ThreadReport>)> {
    let merge = Arc::new(Merge::<Vec<u8>>::new(job.useful_threads(), job.ordered.is_some()));
    let at_work = Arc::clone(&merge);
    let make = move |scan: Scan| {
        let writer = RowWriter::new(&scan, format);
        Ok(Part { scan, writer, buffer: Vec::new(), merge: Arc::clone(&at_work) })
    };
    let mut crew = Crew::start(job, make, Arc::clone(&merge))?;
    let guard = CancelOnDrop(Arc::clone(&merge));
    let mut left = limit;
    let mut written = Ok(());
    loop {
        match merge.next(Duration::from_millis(100)) {
            Next::Piece(mut piece) => {
                if let Some(left) = &mut left {
                    let (end, rows) = first_rows(format, &piece, *left);
                    piece.truncate(end);
                    *left -= rows;
                }
                written = out.write_all(&piece);
                if written.is_err() || left == Some(0) {
                    break;
                }
                piece.clear();
                merge.recycle(piece);
            }
            Next::Nothing => {}
            Next::Failed | Next::End => break,
        }
        progress(crew.shared.pages());
    }
    crew.shared.allocator.stop();
    drop(guard);
    let joined = crew.join();
    written.map_err(|e| output::output_error(&e))?;
    let (mut stats, reports) = crew.stats();
    match (limit, left) {
        // What threads found behind the last row that was wanted is nobody's business, not even if it is damaged.
        (Some(limit), Some(left)) => {
            stats.rows = limit - left;
            if left > 0 {
                joined?;
            }
        }
        _ => {
            joined?;
        }
    }
    Ok((stats, reports))
}

/// One thread's part.
struct Part {
    scan: Scan,
    writer: RowWriter,
    buffer: Vec<u8>,
    merge: Arc<Merge<Vec<u8>>>,
}

impl Part {
    /// Hands over the text that there is.
    fn hand_over(&mut self, worker: &Worker) -> Result<(), Cancelled> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let fresh = self.merge.spare().unwrap_or_default();
        let piece = std::mem::replace(&mut self.buffer, fresh);
        let bytes = piece.capacity();
        self.merge.push(worker.index, worker.seq(), piece, bytes)
    }

    /// Writes the rows of the page that the scan has come to.
    fn page(&mut self, worker: &Worker) -> Result<()> {
        let pool = self.scan.stream.pool();
        let may_wait = pool.frames() as usize >= 2 * pool.open_streams();
        let mut overflow = Overflow { merge: &self.merge, index: worker.index, seq: worker.seq(), may_wait };
        let written = match self.scan.page() {
            Ok(Some(mut page)) => self.writer.page(&mut page, &mut self.buffer, &mut overflow),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        // Nobody waits with a page in hand.
        self.scan.current = None;
        written
    }

    /// Scans until nobody wants more, or to the end.
    fn pages(&mut self, worker: &mut Worker) -> Result<Result<(), Cancelled>> {
        while self.scan.advance()? {
            let Some(block) = self.scan.current.as_ref().map(PinnedPage::block) else { break };
            if !worker.is_wanted(block) {
                continue;
            }
            if !worker.is_inside(block) {
                if self.hand_over(worker).is_err() {
                    return Ok(Err(Cancelled));
                }
                let merge = &self.merge;
                worker.move_to(block, |seq| merge.end_chunk(seq));
            }
            self.page(worker)?;
            worker.tell(self.scan.stats.pages);
            if self.buffer.len() >= PIECE && self.hand_over(worker).is_err() {
                return Ok(Err(Cancelled));
            }
            if self.merge.wait_for_room(worker.index, worker.seq()).is_err() {
                return Ok(Err(Cancelled));
            }
        }
        Ok(Ok(()))
    }
}

impl Body for Part {
    type Share = ();

    fn scan(&self) -> &Scan {
        &self.scan
    }

    fn work(&mut self, worker: &mut Worker) -> Result<()> {
        let end = self.pages(worker);
        // Also before an error: what came before the bad row or page is right.
        let _ = self.hand_over(worker);
        if let Ok(()) = end? {
            worker.end(|seq| self.merge.end_chunk(seq));
        }
        Ok(())
    }
}

/// Takes what the writer of rows cannot keep, in the middle of a page with large values.
struct Overflow<'a> {
    merge: &'a Merge<Vec<u8>>,
    index: usize,
    seq: u32,
    /// Whether the pool has frames enough for all streams to hold a page meanwhile.
    may_wait: bool,
}

impl Write for Overflow<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let cancelled = |Cancelled| io::Error::from_raw_os_error(libc::EPIPE);
        self.merge.push(self.index, self.seq, bytes.to_vec(), bytes.len()).map_err(cancelled)?;
        if self.may_wait {
            self.merge.wait_for_room(self.index, self.seq).map_err(cancelled)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end of the first `limit` rows of `text`, which consists of whole rows, and how many rows these are.
fn first_rows(format: RowFormat, text: &[u8], limit: u64) -> (usize, u64) {
    let mut rows = 0;
    // Text and JSON escape the newlines in values; CSV puts such values in quotes, and doubles quotes within.
    let mut quoted = false;
    for (at, &byte) in text.iter().enumerate() {
        if rows == limit {
            return (at, rows);
        }
        match byte {
            b'"' if format == RowFormat::Csv => quoted = !quoted,
            b'\n' => rows += u64::from(!quoted),
            _ => {}
        }
    }
    (text.len(), rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_end_at_newlines_outside_of_quotes() {
        let text = b"1\ta\\nb\n2\t\"\n3\n";
        assert_eq!(first_rows(RowFormat::Text, text, 2), (11, 2));
        assert_eq!(first_rows(RowFormat::Text, text, 9), (text.len(), 3));
        assert_eq!(first_rows(RowFormat::Text, text, 0), (0, 0));
        let csv = b"1,\"a\nb\"\n2,\"say \"\"x\n\"\"\"\n3,\n";
        assert_eq!(first_rows(RowFormat::Csv, csv, 1), (8, 1));
        assert_eq!(first_rows(RowFormat::Csv, csv, 2), (23, 2));
        assert_eq!(first_rows(RowFormat::Csv, csv, 3), (csv.len(), 3));
        assert_eq!(first_rows(RowFormat::Json, b"", 3), (0, 0));
    }
}
