//! Out-of-line values, found without the TOAST index.
//!
//! The first out-of-line value that a scan meets makes one scan of the TOAST table, which leaves a sorted map of 16
//! bytes a chunk (about 0.8 % of the TOAST table's size); after that each value costs the blocks that hold its chunks,
//! read through the pool.

use super::context::{check_page, second_look};
use crate::{
    Error, RelationFork, Result, cluster,
    engine::EngineInner,
    heap::{Chunk, ChunkLocation, ChunkMap, ChunkMapBuilder, ChunkSource},
    pool::{PinnedPage, RelationId},
    stream::{ReadStream, StreamOptions},
    visibility::{Rows, Visibility, VisibleSet},
};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Chunks that a map holds at most: 1 GB of map for 128 GB of TOAST table.
const CHUNKS_MAX: usize = 1 << 26;

/// The TOAST tables of a database that were needed so far.
pub(crate) struct ToastTables {
    engine: Arc<EngineInner>,
    database: Arc<cluster::Database>,
    tables: Mutex<FxHashMap<u32, Arc<ToastTable>>>,
}

struct ToastTable {
    fork: Arc<RelationFork>,
    relation: RelationId,
    map: OnceLock<ChunkMap>,
    building: Mutex<()>,
}

impl ToastTables {
    pub(crate) fn new(engine: Arc<EngineInner>, database: Arc<cluster::Database>) -> Self {
        Self { engine, database, tables: Mutex::default() }
    }

    /// The database.
    pub(crate) fn database(&self) -> &cluster::Database {
        &self.database
    }

    /// `pg_enc` of the database; 6 is UTF-8.
    pub(crate) fn encoding(&self) -> i32 {
        self.database.info().encoding
    }

    fn table(&self, oid: u32) -> Result<Arc<ToastTable>> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get(&oid) {
            return Ok(Arc::clone(table));
        }
        let info = self.database.toast_relation(oid)?;
        let fork = self.database.open_fork(&info, self.engine.open)?;
        let relation = self.engine.pool.register(Arc::clone(&fork))?;
        let table = Arc::new(ToastTable { fork, relation, map: OnceLock::new(), building: Mutex::new(()) });
        tables.insert(oid, Arc::clone(&table));
        Ok(table)
    }

    fn map<'t>(&self, table: &'t ToastTable) -> Result<&'t ChunkMap> {
        if let Some(map) = table.map.get() {
            return Ok(map);
        }
        // One thread scans, others wait for it; a failure is not kept, the next one tries again.
        let _building = table.building.lock().unwrap_or_else(PoisonError::into_inner);
        if table.map.get().is_none() {
            let map = self.build(table)?;
            let _ = table.map.set(map);
        }
        table.map.get().ok_or_else(|| Error::new(crate::ErrorKind::Value, "the map of TOAST chunks is missing"))
    }

    fn build(&self, table: &ToastTable) -> Result<ChunkMap> {
        let pool = &self.engine.pool;
        let blocks = table.fork.blocks();
        let options = StreamOptions::new(pool.config(), pool.strategy_for(blocks));
        let mut stream = ReadStream::new(Arc::clone(pool), table.relation, 0..blocks, options)?;
        let visibility = Visibility::new(&self.engine.log, Rows::Committed);
        let mut visible = VisibleSet::default();
        let mut builder = ChunkMapBuilder::new(CHUNKS_MAX);
        let damage = self.engine.cluster.damage();
        while let Some(page) = stream.next_page() {
            let mut page = match page {
                Ok(page) => page,
                Err(error) => {
                    damage.pass_block(error)?;
                    continue;
                }
            };
            let checked = match check_page(&table.fork, self.engine.verify, page.bytes(), page.block()) {
                Ok(checked) => checked,
                Err(error) => match second_look(&self.engine, &table.fork, table.relation, &page, error)? {
                    Some(again) => {
                        page = again;
                        check_page(&table.fork, self.engine.verify, page.bytes(), page.block())?
                    }
                    None => continue,
                },
            };
            let Some(valid) = checked else { continue };
            let path = || table.fork.path_of(page.block());
            let located = |error: Error| match error.path() {
                None => error.with_path(path()),
                Some(_) => error,
            };
            // A chunk that is left out is missed by the row that needs it.
            let pass = |error, number| damage.pass_chunk(error, path, page.block(), number).map_err(located);
            if let Err(error) = visibility.visible(&valid, &mut visible) {
                if !damage.skips_rows() {
                    return Err(located(error));
                }
                visibility.select_known(&valid, &mut visible, pass)?;
            }
            for pointer in visible.tuples() {
                if let Err(error) = builder.add(&valid.tuple(*pointer)) {
                    pass(error, pointer.number)?;
                }
            }
        }
        Ok(builder.finish())
    }

    fn visit(
        &self,
        table: &ToastTable,
        page: &PinnedPage,
        locations: &[ChunkLocation],
        value_id: u32,
        visit: &mut dyn FnMut(i32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let path = || table.fork.path_of(page.block());
        let vanished = || {
            Error::new(crate::ErrorKind::Corrupt, format!("a chunk of value {value_id} is not where it was"))
                .with_path(path())
                .with_block(page.block())
        };
        let valid = check_page(&table.fork, self.engine.verify, page.bytes(), page.block())?.ok_or_else(vanished)?;
        for location in locations {
            let tuple = valid.tuple_at(location.number).ok_or_else(vanished)?;
            let chunk = Chunk::parse(&tuple).map_err(|e| e.with_path(path()))?;
            if chunk.value_id != value_id || chunk.seq != location.seq {
                return Err(vanished());
            }
            visit(chunk.seq, chunk.data)?;
        }
        Ok(())
    }
}

/// The chunks of a database's TOAST tables, for a [`Detoaster`](crate::heap::Detoaster).
pub(crate) struct PoolChunks(pub(crate) Arc<ToastTables>);

impl ChunkSource for PoolChunks {
    fn chunks(
        &self,
        toast_relation: u32,
        value_id: u32,
        visit: &mut dyn FnMut(i32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let tables = &*self.0;
        let table = tables.table(toast_relation)?;
        let locations: Vec<ChunkLocation> = tables.map(&table)?.chunks(value_id).collect();
        let runs: Vec<&[ChunkLocation]> = locations.chunk_by(|a, b| a.block == b.block).collect();
        match runs[..] {
            [] => Ok(()),
            [only] => {
                let page = tables.engine.pool.read_block(table.relation, only[0].block)?;
                tables.visit(&table, &page, only, value_id, visit)
            }
            _ => {
                let pool = &tables.engine.pool;
                let blocks: Vec<u32> = runs.iter().map(|run| run[0].block).collect();
                let options = StreamOptions {
                    full: true,
                    ..StreamOptions::new(pool.config(), pool.strategy_for(table.fork.blocks()))
                };
                let mut stream = ReadStream::new(Arc::clone(pool), table.relation, blocks.into_iter(), options)?;
                for run in runs {
                    let Some(page) = stream.next_page() else { break };
                    tables.visit(&table, &page?, run, value_id, visit)?;
                }
                Ok(())
            }
        }
    }
}
