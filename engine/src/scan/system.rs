//! System columns: what the server has for every row without storing it as an attribute, and what a tuple's header says.

use crate::{
    heap::{LinePointer, Slot, TupleRef, UNSTORED, ValidPage},
    schema::Attribute,
};
use std::sync::LazyLock;

/// Name, type, bytes of each; their numbers are those of `sysattr.h` where they have one. The types that the server
/// prints them with, or that `heap_page_items` of `pageinspect` has.
const COLUMNS: [(&str, u32, i16); 10] = [
    ("ctid", 27, 6),
    ("xmin", 28, 4),
    ("cmin", 29, 4),
    ("xmax", 28, 4),
    ("cmax", 29, 4),
    ("tableoid", 26, 4),
    ("t_ctid", 27, 6),
    ("t_infomask2", 23, 4),
    ("t_infomask", 23, 4),
    ("t_field3", 23, 4),
];

static ATTRIBUTES: LazyLock<Vec<Attribute>> = LazyLock::new(|| {
    let attribute = |((name, type_oid, len), number): (&(&str, u32, i16), i16)| Attribute {
        name: (*name).to_owned(),
        number: -number,
        type_oid: *type_oid,
        typmod: -1,
        len: *len,
        by_val: *len == 4,
        align: if *len == 4 { 4 } else { 2 },
        storage: b'p',
        not_null: true,
        dropped: false,
        dimensions: 0,
        generated: 0,
        missing: None,
    };
    COLUMNS.iter().zip(1..).map(attribute).collect()
});

/// The index by which a scan knows the system column `name`.
pub(super) fn index_of(name: &str) -> Option<usize> {
    COLUMNS.iter().position(|column| column.0 == name).map(|at| UNSTORED + at)
}

/// What there is to know of a system column by its index; `None` if `index` is none.
pub(super) fn attribute(index: usize) -> Option<&'static Attribute> {
    ATTRIBUTES.get(index.checked_sub(UNSTORED)?)
}

/// The values of one system column.
#[derive(Debug)]
struct Values {
    /// Index into the scan's columns.
    output: usize,
    column: usize,
    bytes: Vec<u8>,
    slots: Vec<Slot>,
}

/// The values of the system columns of a scan, of the rows of the current page.
#[derive(Debug, Default)]
pub(super) struct SystemValues {
    columns: Vec<Values>,
}

impl SystemValues {
    pub(super) fn new(columns: &[usize]) -> Self {
        let values = |(output, index): (usize, &usize)| {
            let column = index.checked_sub(UNSTORED)?;
            Some(Values { output, column, bytes: Vec::new(), slots: Vec::new() })
        };
        Self { columns: columns.iter().enumerate().filter_map(values).collect() }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Makes the values of `rows` of a page of the relation `tableoid`.
    pub(super) fn fill(&mut self, page: &ValidPage<'_>, rows: &[LinePointer], tableoid: u32) {
        for values in &mut self.columns {
            let length = COLUMNS[values.column].2 as usize; // 4 or 6
            values.bytes.clear();
            values.slots.clear();
            for row in rows {
                values.slots.push(Slot::new(values.bytes.len(), length));
                push(&page.tuple(*row), values.column, tableoid, &mut values.bytes);
            }
        }
    }

    /// Puts the values of the row with this index into a row's values.
    #[inline]
    pub(super) fn put<'v>(&'v self, row: usize, out: &mut [crate::heap::Datum<'v>]) {
        for values in &self.columns {
            out[values.output] = crate::heap::Datum::Fixed(&values.bytes[values.slots[row].range()]);
        }
    }

    /// The value of output `column` in the row with this index, if it is a system column.
    pub(super) fn value(&self, column: usize, row: usize) -> Option<&[u8]> {
        let values = self.columns.iter().find(|values| values.output == column)?;
        values.bytes.get(values.slots.get(row)?.range())
    }

    /// All values of output `column`, if it is a system column: where they lie in which bytes.
    #[cfg(feature = "arrow")]
    pub(super) fn column(&self, column: usize) -> Option<(&[u8], &[Slot])> {
        let values = self.columns.iter().find(|values| values.output == column)?;
        Some((&values.bytes, &values.slots))
    }
}

fn push(tuple: &TupleRef<'_>, column: usize, tableoid: u32, out: &mut Vec<u8>) {
    let mut item_pointer = |(block, number): (u32, u16)| {
        // `ItemPointerData`: the block as two halves, the upper one first.
        out.extend_from_slice(&((block >> 16) as u16).to_le_bytes());
        out.extend_from_slice(&(block as u16).to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
    };
    let word = match COLUMNS[column].0 {
        "ctid" => return item_pointer((tuple.block(), tuple.number())),
        "t_ctid" => return item_pointer(tuple.ctid()),
        "xmin" => tuple.xmin(),
        "xmax" => tuple.xmax(),
        "tableoid" => tableoid,
        "t_infomask2" => tuple.infomask2().into(),
        "t_infomask" => tuple.infomask().into(),
        // cmin and cmax share a field, and the server prints it for both.
        _ => tuple.field3(),
    };
    out.extend_from_slice(&word.to_le_bytes());
}
