//! Small tables read whole: the catalogs.

use super::context::check_page;
use crate::{
    RelationFork, Result,
    cluster::{RowVisitor, TableReader},
    engine::EngineInner,
    heap::{Datum, DeformPlan, Detoaster, NoToast},
    schema::RowLayout,
    stream::{ReadStream, StreamOptions},
    visibility::{Rows, Visibility, VisibleSet},
};
use std::sync::Arc;

/// Reads catalogs through the engine's pool, as every other table.
pub(crate) struct PoolReader {
    engine: Arc<EngineInner>,
}

impl PoolReader {
    pub(crate) fn new(engine: Arc<EngineInner>) -> Self {
        Self { engine }
    }

    fn scan(
        &self,
        fork: &Arc<RelationFork>,
        stream: &mut ReadStream,
        plan: &DeformPlan,
        row: &mut RowVisitor<'_>,
    ) -> Result<()> {
        let visibility = Visibility::new(&self.engine.log, Rows::Committed);
        let mut visible = VisibleSet::default();
        // One buffer a column, because all values of a row are shown at once.
        let mut detoasters: Vec<_> = (0..plan.outputs()).map(|_| Detoaster::new(NoToast)).collect();
        while let Some(page) = stream.next_page() {
            let page = page?;
            let Some(valid) = check_page(fork, self.engine.verify, page.bytes(), page.block())? else { continue };
            let located = |error: crate::Error| match error.path() {
                None => error.with_path(fork.path_of(page.block())).with_block(page.block()),
                Some(_) => error,
            };
            visibility.visible(&valid, &mut visible).map_err(located)?;
            let mut values = Vec::with_capacity(plan.outputs());
            for pointer in visible.tuples() {
                plan.deform(&valid.tuple(*pointer), &mut values).map_err(located)?;
                let mut payloads = Vec::with_capacity(values.len());
                for (datum, detoaster) in values.iter().zip(&mut detoasters) {
                    payloads.push(match *datum {
                        Datum::Null => None,
                        Datum::Fixed(bytes) | Datum::CString(bytes) => Some(bytes),
                        Datum::Varlena(raw) => Some(detoaster.payload(raw).map_err(located)?),
                    });
                }
                row(&payloads)?;
            }
        }
        Ok(())
    }
}

impl TableReader for PoolReader {
    fn read_rows(
        &self,
        fork: &Arc<RelationFork>,
        layout: &RowLayout,
        columns: &[usize],
        row: &mut RowVisitor<'_>,
    ) -> Result<()> {
        let pool = &self.engine.pool;
        let plan = DeformPlan::new(layout, columns)?;
        let relation = pool.register(Arc::clone(fork))?;
        let options = StreamOptions::new(pool.config(), pool.strategy_for(fork.blocks()));
        let result = ReadStream::new(Arc::clone(pool), relation, 0..fork.blocks(), options)
            .and_then(|mut stream| self.scan(fork, &mut stream, &plan, row));
        pool.unregister(relation);
        result
    }
}
