//! Columns of arrays as lists: offsets, and the values in a column of their own.

use super::{
    arrow_error,
    bytes::offset,
    cells::{Cells, Place},
    column::{Appending, ColumnBuilder},
};
use crate::{
    Error, ErrorKind, Result,
    heap::LinePointer,
    types::{ListValues, list_values},
};
use arrow_array::{ArrayRef, ListArray};
use arrow_buffer::{NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field};
use std::sync::Arc;

/// Element types whose arrays differ in name only: `text`, `char(n)`, `varchar`. A cast from one to the other leaves
/// the array's header as it was.
const TEXTS: [u32; 3] = [25, 1042, 1043];

const AS_TEXT: &str = "take arrays as text: ArrayPolicy::Text, --arrays text";

/// The element type, as far as arrays depend on it.
#[derive(Clone, Copy)]
pub(super) struct Element {
    pub(super) oid: u32,
    pub(super) len: i16,
    pub(super) align: u8,
}

pub(super) struct ListBuilder {
    element: Element,
    child: ColumnBuilder,
    /// The column's name, for errors; its values can be NULL, whatever the column's can.
    label: Field,
    /// One more than there are rows.
    offsets: Vec<i32>,
    /// What policies replaced up to each row, to be taken back with it.
    replaced: Vec<u64>,
    payload: Vec<u8>,
}

impl ListBuilder {
    pub(super) fn new(name: &str, element: Element, child: ColumnBuilder) -> Self {
        let label = Field::new(name, DataType::Null, true);
        Self { element, child, label, offsets: vec![0], replaced: vec![0], payload: Vec::new() }
    }

    /// Bytes of the values so far.
    pub(super) fn len(&self) -> usize {
        let values = self.offsets.last().map_or(0, |&end| end as usize);
        values * self.child.width() + self.child.variable().unwrap_or(0)
    }

    /// Appends arrays up to `how.budget` bytes (but at least `how.least` rows). Tells how many.
    pub(super) fn append(
        &mut self,
        cells: &Cells<'_>,
        nulls: &mut NullBufferBuilder,
        how: &mut Appending<'_>,
    ) -> Result<usize> {
        let limit = self.len().saturating_add(how.budget);
        let mut taken = 0;
        let mut full = false;
        cells.each(
            |row, raw| {
                if full {
                    return Ok(());
                }
                match raw {
                    Some(raw) => {
                        let before = self.offsets.last().map_or(0, |&end| end as usize);
                        let replaced = self.array(cells, row, raw, how)?;
                        if self.len() > limit && row >= how.least {
                            self.child.truncate(before);
                            full = true;
                            return Ok(());
                        }
                        *how.replaced += replaced;
                        self.replaced.push(self.replaced.last().copied().unwrap_or(0) + replaced);
                        let values = before + self.added(before);
                        self.offsets.push(offset(values).map_err(|e| cells.at(row, e))?);
                        nulls.append_non_null();
                    }
                    None => {
                        cells.null(row)?;
                        self.replaced.push(self.replaced.last().copied().unwrap_or(0));
                        self.offsets.push(self.offsets.last().copied().unwrap_or(0));
                        nulls.append_null();
                    }
                }
                taken += 1;
                Ok(())
            },
            0,
        )?;
        Ok(taken)
    }

    /// Values of the child behind the first `before`.
    fn added(&self, before: usize) -> usize {
        self.child.rows() - before
    }

    /// Appends the values of one array, and tells how many of them a policy replaced.
    fn array(&mut self, cells: &Cells<'_>, row: usize, raw: &[u8], how: &mut Appending<'_>) -> Result<u64> {
        let content = how.detoaster.payload(raw).map_err(|e| cells.at(row, e))?;
        // The elements are read while the detoaster may be wanted for one of them.
        self.payload.clear();
        self.payload.extend_from_slice(content);
        let list = list_values(&self.payload, self.element.len, self.element.align).map_err(|what| {
            cells.at(row, Error::new(ErrorKind::Value, format!("the array makes no sense: {}", what)))
        })?;
        let Some(ListValues { element_oid, values }) = list else {
            let error =
                Error::new(ErrorKind::Value, "an array of several dimensions, or not counted from 1, is no list");
            return Err(cells.at(row, error).with_hint(AS_TEXT).into_refusal());
        };
        let same = element_oid == self.element.oid || TEXTS.contains(&element_oid) && TEXTS.contains(&self.element.oid);
        if !same && !values.is_empty() {
            let error = Error::new(
                ErrorKind::Value,
                format!("the array has elements of type {element_oid}, not {}: a cast left it so", self.element.oid),
            );
            return Err(cells.at(row, error).with_hint(AS_TEXT).into_refusal());
        }
        let Some(pointer) = cells.rows.get(row) else { return Ok(0) };
        // Errors about an element name the array's row.
        let rows: Vec<LinePointer> = vec![*pointer; values.len()];
        let values: Vec<Option<&[u8]>> =
            values.into_iter().map(|range| range.and_then(|range| self.payload.get(range))).collect();
        let elements = Cells {
            bytes: &self.payload,
            block: cells.block,
            rows: &rows,
            place: Place::Values(&values),
            missing: None,
            field: &self.label,
        };
        let mut replaced = 0;
        let mut appending =
            Appending { detoaster: how.detoaster, budget: usize::MAX, least: usize::MAX, replaced: &mut replaced };
        self.child.append(&elements, &mut appending)?;
        Ok(replaced)
    }

    /// Forgets the rows from `rows` on, and tells what policies had replaced in them.
    pub(super) fn truncate(&mut self, rows: usize) -> u64 {
        self.offsets.truncate(rows + 1);
        let all = self.replaced.last().copied().unwrap_or(0);
        self.replaced.truncate(rows + 1);
        self.child.truncate(self.offsets.last().map_or(0, |&end| end as usize));
        all - self.replaced.last().copied().unwrap_or(0)
    }

    pub(super) fn finish(&mut self, nulls: Option<NullBuffer>, data_type: &DataType) -> Result<ArrayRef> {
        let DataType::List(item) = data_type else {
            return Err(Error::new(ErrorKind::Value, format!("the batch cannot be: a list is no {data_type}")));
        };
        let values = self.child.finish(item.data_type())?;
        self.replaced.truncate(1);
        let offsets = std::mem::replace(&mut self.offsets, vec![0]);
        // They begin with 0 and only grow, so this does not panic.
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        let array = ListArray::try_new(Arc::clone(item), offsets, values, nulls).map_err(arrow_error)?;
        Ok(Arc::new(array))
    }
}
