//! What is done with an engine and its tables.

use super::{
    case::{Case, State, Workload},
    data::Data,
};
use heapscan::{
    Engine, Error, ErrorKind, Result, RowId, Table,
    aggregate::AggregateCall,
    pool::{ReadMetrics, Strategy},
    stream::{ReadStream, StreamOptions},
};
use std::sync::Arc;

/// Rows of the smaller variant of the lookups, as in pgbench at scale 1.
const FEW_ROWS: u64 = 100_000;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) io: ReadMetrics,
    /// Bytes of the blocks that were asked for.
    pub(super) bytes: u64,
    /// Scans, or lookups.
    pub(super) operations: u64,
    pub(super) answer: Option<String>,
}

/// How much is done in one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Lookups of one client.
    pub(super) lookups: u64,
    /// Scans of one client of the concurrent scans.
    pub(super) rounds: usize,
    /// Rows of a page.
    pub(super) rows_a_page: u16,
}

pub(super) fn run(case: &Case, engine: &Engine, tables: &[Table], data: &Data, effort: Effort) -> Result<Outcome> {
    let table = &tables[0];
    let block_bytes = u64::from(data.block_size);
    let scanned = u64::from(table.blocks()) * block_bytes;
    Ok(match case.workload {
        Workload::MethodOnly => Outcome { io: read_only(engine, table)?, bytes: scanned, operations: 1, answer: None },
        Workload::Offset => {
            let (io, rows) = every_row(table)?;
            Outcome { io, bytes: scanned, operations: 1, answer: Some(rows.to_string()) }
        }
        Workload::SeqConcurrScans => {
            let clients = case.clients as usize;
            concurrently(case.clients, |client| {
                let mut sum = Outcome::default();
                for round in 0..effort.rounds {
                    // From the pool: the same tables again. Else each scan has a handle of its own, whose blocks no other
                    // one's are taken for.
                    let table = match case.state {
                        State::Hot => &tables[client % tables.len()],
                        _ => &tables[round * clients + client],
                    };
                    let (io, answer) = aggregate(table, &data.calls)?;
                    sum.add(&Outcome {
                        io,
                        bytes: u64::from(table.blocks()) * block_bytes,
                        operations: 1,
                        answer: Some(answer),
                    });
                }
                Ok(sum)
            })?
        }
        Workload::Lookups | Workload::LookupsFew => concurrently(case.clients, |client| {
            let few = FEW_ROWS.div_ceil(u64::from(effort.rows_a_page.max(1)));
            let blocks = match case.workload {
                Workload::LookupsFew => u64::from(table.blocks()).min(few),
                _ => u64::from(table.blocks()),
            };
            lookups(table, client as u64 + 1, blocks, effort)
        })?,
        _ => {
            let (io, answer) = aggregate(table, &data.calls)?;
            Outcome { io, bytes: scanned, operations: 1, answer: Some(answer) }
        }
    })
}

impl Outcome {
    fn add(&mut self, other: &Outcome) {
        self.io.add(&other.io);
        self.bytes += other.bytes;
        self.operations += other.operations;
        // Clients can have different tables; each was the same in all its rounds, or it is not one answer.
        match (&self.answer, &other.answer) {
            (None, Some(answer)) => self.answer = Some(answer.clone()),
            (Some(mine), Some(answer)) if mine != answer => self.answer = Some(format!("{mine}|{answer}")),
            _ => {}
        }
    }
}

/// Runs `work` in so many threads, each with its number from 0.
fn concurrently(clients: u32, work: impl Fn(usize) -> Result<Outcome> + Sync) -> Result<Outcome> {
    if clients <= 1 {
        return work(0);
    }
    let results: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients as usize)
            .map(|client| {
                scope.spawn({
                    let work = &work;
                    move || work(client)
                })
            })
            .collect();
        let died = || Err(Error::new(ErrorKind::Method, "a client's thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| died())).collect()
    });
    let mut sum = Outcome::default();
    for result in results {
        sum.add(&result?);
    }
    Ok(sum)
}

fn aggregate(table: &Table, calls: &[AggregateCall]) -> Result<(ReadMetrics, String)> {
    let result = table.scan().aggregate(calls)?;
    let values: Vec<String> = result.values.into_iter().map(|v| v.unwrap_or_else(|| "\\N".to_owned())).collect();
    Ok((result.stats.io, values.join("\t")))
}

/// Reads the table into the pool, block by block, and looks at none.
fn read_only(engine: &Engine, table: &Table) -> Result<ReadMetrics> {
    let pool = engine.pool();
    let strategy = pool.strategy_for(table.blocks());
    stream(engine, table, strategy)
}

/// Brings all blocks into the pool, as pg_prewarm does: a scan of a table larger than a quarter of the pool would use a
/// ring.
pub(super) fn prewarm(engine: &Engine, table: &Table) -> Result<()> {
    stream(engine, table, Strategy::Normal).map(drop)
}

fn stream(engine: &Engine, table: &Table, strategy: Strategy) -> Result<ReadMetrics> {
    let pool = engine.pool();
    let relation = pool.register(Arc::clone(table.fork()))?;
    let options = StreamOptions::new(pool.config(), strategy);
    let mut stream = ReadStream::new(Arc::clone(pool), relation, 0..table.blocks(), options)?;
    while let Some(page) = stream.next_page() {
        page?;
    }
    Ok(stream.metrics())
}

/// Takes every row apart and gives none to anybody: `select * ... offset` all rows.
fn every_row(table: &Table) -> Result<(ReadMetrics, u64)> {
    let mut scan = table.scan().start()?;
    let mut rows = 0u64;
    while let Some(mut page) = scan.next_page()? {
        while let Some(row) = page.next_row()? {
            rows += u64::from(std::hint::black_box(row.len()) > 0);
        }
    }
    Ok((scan.stats().io, rows))
}

/// Places of rows by chance.
#[derive(Clone)]
struct Places {
    left: u64,
    state: u64,
    blocks: u64,
    rows: u64,
}

impl Iterator for Places {
    type Item = RowId;

    fn next(&mut self) -> Option<RowId> {
        self.left = self.left.checked_sub(1)?;
        // xorshift64; the high bits of a product are as even as those of a remainder.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let below = |r: u64, limit: u64| ((u128::from(r) * u128::from(limit)) >> 64) as u64;
        let block = below(self.state, self.blocks);
        let row = below(self.state.wrapping_mul(0x9e37_79b9_7f4a_7c15), self.rows);
        Some((block as u32, row as u16 + 1))
    }
}

fn lookups(table: &Table, client: u64, blocks: u64, effort: Effort) -> Result<Outcome> {
    let state = client.wrapping_mul(0xd1b5_4a32_d192_ed03) | 1;
    let places = Places { left: effort.lookups, state, blocks, rows: u64::from(effort.rows_a_page.max(1)) };
    let mut found = 0u64;
    let stats = table.scan().lookup(places, &mut |_, row| {
        found += u64::from(row.is_some_and(|row| !row.is_empty()));
        Ok(())
    })?;
    if found * 2 < effort.lookups {
        let text = format!("{found} of {} rows were found: the table's pages are too uneven", effort.lookups);
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let bytes = effort.lookups * u64::from(table.fork().block_size());
    Ok(Outcome { io: stats.io, bytes, operations: effort.lookups, answer: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_within_the_table_and_everywhere() {
        let places = Places { left: 10_000, state: 7, blocks: 10, rows: 61 };
        let mut seen = vec![false; 610];
        for (block, row) in places.clone() {
            assert!(block < 10 && (1..=61).contains(&row));
            seen[block as usize * 61 + row as usize - 1] = true;
        }
        assert_eq!(places.count(), 10_000);
        assert!(seen.iter().filter(|&&s| s).count() > 590);
    }

    #[test]
    fn an_error_of_one_client_is_that_of_all() {
        let one = |client| match client {
            3 => Err(Error::new(ErrorKind::Usage, "three")),
            _ => Ok(Outcome { operations: 1, ..Outcome::default() }),
        };
        assert!(concurrently(4, one).is_err());
        assert_eq!(concurrently(3, one).unwrap().operations, 3);
    }
}
