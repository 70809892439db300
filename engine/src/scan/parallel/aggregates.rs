//! Aggregates by several threads.
//!
//! Counts, and sums and extremes of integers and numerics, do not depend on the order: each thread has its own, which are
//! merged at the end. Extremes of floats do, between zeros of different sign and between NaNs: they are kept by chunk and
//! merged in block order. So do sums of floats: no two ways to add them up give the same. There the threads gather the
//! values, and the calling thread adds them in block order, as a serial scan does.

use super::{
    ORDERED_CHUNK,
    crew::{Body, Crew, Job, Kept, Worker},
    merge::{CancelOnDrop, Cancelled, Merge, Next},
};
use crate::{
    Result,
    pool::PinnedPage,
    scan::{
        Scan, ScanBuilder,
        aggregate::{self, AggregateCall, Aggregates, Running},
    },
};
use std::{sync::Arc, time::Duration};

/// The values of one chunk, by aggregate, whose sums are taken in block order.
type Gathered = Vec<Vec<f64>>;

/// What a thread brings home: its aggregates, and by first block of each chunk those for which the order matters.
type Share = (Vec<Running>, Vec<(u32, Vec<Running>)>);

pub(in crate::scan) fn aggregate(
    builder: ScanBuilder,
    columns: Vec<usize>,
    mut running: Vec<Running>,
    calls: &[AggregateCall],
    progress: &mut dyn FnMut(u64),
) -> Result<Aggregates> {
    // What is wrong with the filter is told before any thread starts.
    builder.bound_filter()?;
    let ScanBuilder { context, blocks, team, filter, rows, cancel, .. } = builder;
    let blocks = context.existing(blocks);
    // For the types of the results; it reads nothing.
    let template = Scan::new(Arc::clone(&context), columns.clone(), 0..0, None, rows)?;
    let gathers = running.iter().any(|r| r.accumulator.is_float_sum());
    let job = Job {
        context,
        columns,
        filter,
        rows,
        blocks,
        threads: team.threads,
        cancel,
        ordered: gathers.then_some(ORDERED_CHUNK),
    };
    let fresh: Vec<Running> = running.iter().map(Running::for_thread).collect();
    let mut crew = if gathers {
        let merge = Arc::new(Merge::<Gathered>::new(job.useful_threads(), true));
        let at_work = Arc::clone(&merge);
        let make = move |scan| Ok(Part { scan, running: fresh.clone(), merge: Some(Arc::clone(&at_work)) });
        let crew = Crew::start(job, make, Arc::clone(&merge))?;
        let merge = CancelOnDrop(merge);
        loop {
            match merge.0.next(Duration::from_millis(100)) {
                Next::Piece(values) => {
                    running.iter_mut().zip(values).for_each(|(r, values)| r.accumulator.add_floats(&values));
                }
                Next::Nothing => {}
                Next::Failed | Next::End => break,
            }
            progress(crew.shared.pages());
        }
        crew
    } else {
        Crew::start(job, move |scan| Ok(Part { scan, running: fresh.clone(), merge: None }), Kept)?
    };
    crew.wait(progress);
    let mut by_chunk = Vec::new();
    for (share, chunks) in crew.join()? {
        running.iter_mut().zip(&share).for_each(|(r, other)| r.accumulator.merge(&other.accumulator));
        by_chunk.extend(chunks);
    }
    by_chunk.sort_by_key(|(block, _)| *block);
    for (_, chunk) in by_chunk {
        running.iter_mut().zip(&chunk).for_each(|(r, other)| r.accumulator.merge(&other.accumulator));
    }
    let (stats, reports) = crew.stats();
    team.report(reports);
    Ok(Aggregates { values: aggregate::finish(&template, calls, &running)?, stats })
}

/// One thread's part.
struct Part {
    scan: Scan,
    running: Vec<Running>,
    /// Where gathered values go.
    merge: Option<Arc<Merge<Gathered>>>,
}

impl Part {
    /// Hands over what was gathered of the chunk that the scan was in.
    fn hand_over(&mut self, worker: &Worker) -> Result<(), Cancelled> {
        let Some(merge) = &self.merge else { return Ok(()) };
        let values: Gathered = self.running.iter_mut().map(|r| r.accumulator.take_floats()).collect();
        let bytes = values.iter().map(|v| size_of_val(&v[..])).sum();
        merge.push(worker.index, worker.seq(), values, bytes)
    }
}

impl Body for Part {
    type Share = Share;

    fn scan(&self) -> &Scan {
        &self.scan
    }

    fn work(&mut self, worker: &mut Worker) -> Result<Share> {
        let extremes = self.running.iter().any(|r| r.accumulator.is_float_extreme());
        let mut by_chunk = Vec::new();
        let merge = self.merge.clone();
        let ended = |seq| merge.iter().for_each(|merge| merge.end_chunk(seq));
        while self.scan.advance_unlisted()? {
            let Some(block) = self.scan.current.as_ref().map(PinnedPage::block) else { break };
            if !worker.is_wanted(block) {
                continue;
            }
            let moves = !worker.is_inside(block);
            if moves {
                if let Some(start) = worker.chunk_start() {
                    if extremes {
                        by_chunk.push((start, self.running.iter_mut().map(Running::take_extreme).collect()));
                    }
                    if self.hand_over(worker).is_err() {
                        return Ok((std::mem::take(&mut self.running), by_chunk));
                    }
                }
                worker.move_to(block, ended);
            }
            aggregate::take_current(&mut self.scan, &mut self.running)?;
            worker.tell(self.scan.stats.pages);
            if let Some(merge) = merge.as_ref().filter(|_| moves) {
                // Nobody waits with a page in hand.
                self.scan.current = None;
                if merge.wait_for_room(worker.index, worker.seq()).is_err() {
                    break;
                }
            }
        }
        if let Some(start) = worker.chunk_start() {
            if extremes {
                by_chunk.push((start, self.running.iter_mut().map(Running::take_extreme).collect()));
            }
            // Whoever wants no more needs no answer.
            let _ = self.hand_over(worker);
        }
        worker.end(ended);
        Ok((std::mem::take(&mut self.running), by_chunk))
    }
}
