//! The values of one column in some rows of a page, and the loops over them.

use crate::{
    Error, ErrorKind, Result,
    heap::{LinePointer, Slot},
};
use arrow_buffer::NullBufferBuilder;
use arrow_schema::Field;

/// Where the values lie.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// So many bytes behind the start of every tuple, none of them NULL.
    Direct(usize),
    /// One slot a row.
    Slots(&'a [Slot]),
    /// The values themselves, one a row: those of an array.
    Values(&'a [Option<&'a [u8]>]),
}

/// One column of consecutive visible rows of a page.
#[derive(Clone, Copy)]
pub(super) struct Cells<'a> {
    /// The page.
    pub(super) bytes: &'a [u8],
    pub(super) block: u32,
    pub(super) rows: &'a [LinePointer],
    pub(super) place: Place<'a>,
    /// The value of rows that are older than the column.
    pub(super) missing: Option<&'a [u8]>,
    pub(super) field: &'a Field,
}

impl<'a> Cells<'a> {
    /// The value of a slot as it lies on the page: varlenas with their header. `None` is NULL.
    #[inline(always)]
    pub(super) fn value(&self, slot: Slot) -> Option<&'a [u8]> {
        if slot.is_null() {
            None
        } else if slot.is_missing() {
            self.missing
        } else {
            self.bytes.get(slot.range())
        }
    }

    /// Says where an error happened.
    #[cold]
    pub(super) fn at(&self, row: usize, error: Error) -> Error {
        let number = self.rows.get(row).map_or(0, |pointer| pointer.number);
        error.in_context(format_args!("row ({},{number}), column {}", self.block, self.field.name()))
    }

    /// A NULL: an error where the schema says that there is none.
    #[inline(always)]
    pub(super) fn null(&self, row: usize) -> Result<()> {
        if self.field.is_nullable() { Ok(()) } else { Err(self.unexpected_null(row)) }
    }

    #[cold]
    fn unexpected_null(&self, row: usize) -> Error {
        let error = Error::new(ErrorKind::Value, "NULL in a column that is declared NOT NULL");
        self.at(row, error).with_hint("set BatchOptions::all_nullable").into_refusal()
    }

    /// Appends values of `N` bytes, each made by `load`.
    #[inline(always)]
    pub(super) fn load<const N: usize, T: Copy + Default>(
        &self,
        out: &mut Vec<T>,
        nulls: &mut NullBufferBuilder,
        load: impl Fn([u8; N]) -> T,
    ) -> Result<()> {
        match self.place {
            Place::Direct(at) => {
                // The page's summary has told that the value lies within each tuple: the default never comes.
                let value = |row: &LinePointer| match self.direct(row, at) {
                    Some(bytes) => load(bytes),
                    None => T::default(),
                };
                out.extend(self.rows.iter().map(value));
                nulls.append_n_non_nulls(self.rows.len());
            }
            Place::Values(values) => {
                for (row, value) in values.iter().enumerate() {
                    match value {
                        Some(bytes) => {
                            out.push(load(self.exactly(row, bytes)?));
                            nulls.append_non_null();
                        }
                        None => {
                            self.null(row)?;
                            out.push(T::default());
                            nulls.append_null();
                        }
                    }
                }
            }
            Place::Slots(slots) => {
                out.reserve(slots.len());
                for (row, slot) in slots.iter().enumerate() {
                    match self.value(*slot) {
                        Some(bytes) => {
                            out.push(load(self.exactly(row, bytes)?));
                            nulls.append_non_null();
                        }
                        None => {
                            self.null(row)?;
                            out.push(T::default());
                            nulls.append_null();
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends values of `N` bytes, each converted; `None` becomes NULL.
    #[inline(always)]
    pub(super) fn convert<const N: usize, T: Copy + Default>(
        &self,
        out: &mut Vec<T>,
        nulls: &mut NullBufferBuilder,
        mut convert: impl FnMut([u8; N]) -> Result<Option<T>>,
    ) -> Result<()> {
        self.each(
            |row, bytes| {
                let value = match bytes {
                    Some(bytes) => convert(self.exactly(row, bytes)?).map_err(|e| self.at(row, e))?,
                    None => {
                        self.null(row)?;
                        None
                    }
                };
                out.push(value.unwrap_or_default());
                nulls.append(value.is_some());
                Ok(())
            },
            N,
        )
    }

    /// Calls `each` with every row and its value; `length` is that of direct values.
    #[inline(always)]
    pub(super) fn each(
        &self,
        mut each: impl FnMut(usize, Option<&'a [u8]>) -> Result<()>,
        length: usize,
    ) -> Result<()> {
        match self.place {
            Place::Direct(at) => {
                for (row, pointer) in self.rows.iter().enumerate() {
                    let start = usize::from(pointer.offset) + at;
                    each(row, Some(self.bytes.get(start..start + length).unwrap_or(&[])))?;
                }
            }
            Place::Slots(slots) => {
                for (row, slot) in slots.iter().enumerate() {
                    each(row, self.value(*slot))?;
                }
            }
            Place::Values(values) => {
                for (row, value) in values.iter().enumerate() {
                    each(row, *value)?;
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn direct<const N: usize>(&self, row: &LinePointer, at: usize) -> Option<[u8; N]> {
        self.bytes.get(usize::from(row.offset) + at..)?.first_chunk().copied()
    }

    /// Slots of fixed-length columns have that length; only a missing value of the catalog could lie.
    #[inline(always)]
    pub(super) fn exactly<const N: usize>(&self, row: usize, bytes: &[u8]) -> Result<[u8; N]> {
        bytes.try_into().map_err(|_| self.wrong_length(row, N, bytes.len()))
    }

    #[cold]
    fn wrong_length(&self, row: usize, wanted: usize, have: usize) -> Error {
        self.at(row, Error::new(ErrorKind::Value, format!("the value has {have} bytes, not {wanted}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::DataType;

    fn load(slots: &[Slot], missing: Option<&[u8]>, nullable: bool) -> Result<(Vec<i32>, Option<usize>)> {
        let field = Field::new("n", DataType::Int32, nullable);
        let rows = vec![LinePointer { number: 7, offset: 0, length: 0 }; slots.len()];
        let cells = Cells { bytes: &[], block: 3, rows: &rows, place: Place::Slots(slots), missing, field: &field };
        let (mut out, mut nulls) = (Vec::new(), NullBufferBuilder::new(0));
        cells.load(&mut out, &mut nulls, i32::from_le_bytes)?;
        Ok((out, nulls.finish().map(|nulls| nulls.null_count())))
    }

    #[test]
    fn nulls_and_missing_values() {
        let slots = [Slot::NULL, Slot::MISSING];
        assert_eq!(load(&slots, Some(&[5, 0, 0, 0]), true).expect("values"), (vec![0, 5], Some(1)));
        assert_eq!(load(&slots, None, true).expect("values"), (vec![0, 0], Some(2)));
    }

    #[test]
    fn a_null_where_none_can_be_names_row_and_column() {
        let error = load(&[Slot::NULL], None, false).expect_err("a NULL");
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.to_string().starts_with("row (3,7), column n: NULL in a column"), "{error}");
    }

    #[test]
    fn a_missing_value_of_the_wrong_length_is_an_error() {
        let error = load(&[Slot::MISSING], Some(&[1, 2]), true).expect_err("two bytes");
        assert!(error.to_string().contains("has 2 bytes, not 4"), "{error}");
    }
}
