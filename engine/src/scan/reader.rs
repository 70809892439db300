//! Small tables read whole: the catalogs.

use super::context::{check_page, second_look};
use crate::{
    RelationFork, Result,
    cluster::{RowVisitor, TableReader},
    engine::EngineInner,
    heap::{Datum, DeformPlan, Detoaster, NoToast},
    pool::RelationId,
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
        relation: RelationId,
        stream: &mut ReadStream,
        plan: &DeformPlan,
        row: &mut RowVisitor<'_>,
    ) -> Result<()> {
        let visibility = Visibility::new(&self.engine.log, Rows::Committed);
        let mut visible = VisibleSet::default();
        // One buffer a column, because all values of a row are shown at once.
        let mut detoasters: Vec<_> = (0..plan.outputs()).map(|_| Detoaster::new(NoToast)).collect();
        let damage = self.engine.cluster.damage();
        while let Some(page) = stream.next_page() {
            let mut page = match page {
                Ok(page) => page,
                Err(error) => {
                    damage.pass_block(error)?;
                    continue;
                }
            };
            let checked = match check_page(fork, self.engine.verify, page.bytes(), page.block()) {
                Ok(checked) => checked,
                Err(error) => match second_look(&self.engine, fork, relation, &page, error)? {
                    Some(again) => {
                        page = again;
                        check_page(fork, self.engine.verify, page.bytes(), page.block())?
                    }
                    None => continue,
                },
            };
            let Some(valid) = checked else { continue };
            let pass = |error, number| damage.pass_chunk(error, || fork.path_of(page.block()), page.block(), number);
            let located = |error: crate::Error| match error.path() {
                None => error.with_path(fork.path_of(page.block())).with_block(page.block()),
                Some(_) => error,
            };
            if let Err(error) = visibility.visible(&valid, &mut visible) {
                if !damage.skips_rows() {
                    return Err(located(error));
                }
                visibility.select_known(&valid, &mut visible, |error, number| pass(error, number).map_err(located))?;
            }
            let mut values = Vec::with_capacity(plan.outputs());
            for pointer in visible.tuples() {
                let payloads =
                    plan.deform(&valid.tuple(*pointer), &mut values).and_then(|()| payloads(&values, &mut detoasters));
                match payloads {
                    Ok(payloads) => row(&payloads)?,
                    Err(error) => pass(error, pointer.number).map_err(located)?,
                }
            }
        }
        Ok(())
    }
}

/// The plain values of a row; each keeps what it had to unpack in a detoaster of its own.
fn payloads<'v>(values: &[Datum<'v>], detoasters: &'v mut [Detoaster<NoToast>]) -> Result<Vec<Option<&'v [u8]>>> {
    let payload = |(datum, detoaster): (&Datum<'v>, &'v mut Detoaster<NoToast>)| match *datum {
        Datum::Null => Ok(None),
        Datum::Fixed(bytes) | Datum::CString(bytes) => Ok(Some(bytes)),
        Datum::Varlena(raw) => detoaster.payload(raw).map(Some),
    };
    values.iter().zip(detoasters).map(payload).collect()
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
            .and_then(|mut stream| self.scan(fork, relation, &mut stream, &plan, row));
        pool.unregister(relation);
        result
    }
}
