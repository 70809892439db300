//! One column of the batch that is being filled.

use super::{
    arrow_error,
    bytes::Bytes,
    cells::Cells,
    decimal::{self, Misfit, Wide},
    labels::Labels,
    list::ListBuilder,
    options::{InfinityPolicy, SpecialNumericPolicy, TimestampUnit},
};
use crate::{Error, ErrorKind, Result, heap::Detoaster, scan::toast::PoolChunks, types::Numeric};
use arrow_array::{
    ArrayRef, ArrowPrimitiveType, BooleanArray, DictionaryArray, FixedSizeBinaryArray, PrimitiveArray,
    types::{
        Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
        IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType, TimestampNanosecondType, UInt32Type,
    },
};
use arrow_buffer::{BooleanBufferBuilder, Buffer, IntervalMonthDayNano, NullBuffer, NullBufferBuilder, i256};
use arrow_schema::DataType;
use std::sync::Arc;

/// 2000-01-01, where PostgreSQL's time begins, in days since 1970-01-01.
const EPOCH_DAYS: i32 = 10_957;
/// The same in microseconds.
const EPOCH_MICROS: i64 = EPOCH_DAYS as i64 * DAY_MICROS;
const DAY_MICROS: i64 = 86_400_000_000;

/// The values, and what their conversion needs. One `match` for each column of each page.
pub(super) enum Values {
    Boolean(BooleanBufferBuilder),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    UInt32(Vec<u32>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Date(Vec<i32>, InfinityPolicy),
    Time(Vec<i64>),
    Timestamp(Vec<i64>, TimestampUnit, InfinityPolicy),
    Interval { values: Vec<IntervalMonthDayNano>, infinity: InfinityPolicy, can_be_infinite: bool },
    Uuid(Vec<[u8; 16]>),
    Decimal128 { values: Vec<i128>, scale: i8, bound: i128, special: SpecialNumericPolicy },
    Decimal256 { values: Vec<i256>, scale: i8, bound: i256, special: SpecialNumericPolicy },
    LossyFloat64(Vec<f64>),
    Enum(Vec<i32>, Labels),
    Bytes(Bytes),
    List(Box<ListBuilder>),
}

impl Values {
    pub(super) fn boolean() -> Self {
        Self::Boolean(BooleanBufferBuilder::new(0))
    }
}

pub(super) struct ColumnBuilder {
    /// `attlen`.
    length: i16,
    values: Values,
    nulls: NullBufferBuilder,
    /// For text on its way to a float.
    text: Vec<u8>,
}

/// What appending to a column needs beside the values.
pub(super) struct Appending<'a> {
    pub(super) detoaster: &'a mut Detoaster<PoolChunks>,
    /// Bytes that a printed column may take.
    pub(super) budget: usize,
    /// Rows that it takes all the same.
    pub(super) least: usize,
    /// Counts what policies replaced.
    pub(super) replaced: &'a mut u64,
}

impl ColumnBuilder {
    pub(super) fn new(length: i16, values: Values) -> Self {
        Self { length, values, nulls: NullBufferBuilder::new(0), text: Vec::new() }
    }

    /// Bytes that each row takes, whatever its value.
    pub(super) fn width(&self) -> usize {
        match &self.values {
            Values::Boolean(_) => 1,
            Values::Int16(_) => 2,
            Values::Int32(_)
            | Values::UInt32(_)
            | Values::Float32(_)
            | Values::Date(..)
            | Values::Enum(..)
            | Values::Bytes(_)
            | Values::List(_) => 4,
            Values::Int64(_)
            | Values::Float64(_)
            | Values::LossyFloat64(_)
            | Values::Time(_)
            | Values::Timestamp(..) => 8,
            Values::Interval { .. } | Values::Uuid(_) | Values::Decimal128 { .. } => 16,
            Values::Decimal256 { .. } => 32,
        }
    }

    /// Its bytes, if it is a column of variable length.
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match &self.values {
            Values::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Bytes of its values beyond the width of each row, if it is a column of variable length.
    pub(super) fn variable(&self) -> Option<usize> {
        match &self.values {
            Values::Bytes(bytes) => Some(bytes.len()),
            Values::List(list) => Some(list.len()),
            _ => None,
        }
    }

    /// Rows so far.
    pub(super) fn rows(&self) -> usize {
        self.nulls.len()
    }

    /// Whether only printing, or taking it apart, tells how long a value is.
    pub(super) fn is_printed(&self) -> bool {
        matches!(self.values, Values::List(_)) || self.bytes().is_some_and(Bytes::is_printed)
    }

    /// Appends the values of `cells` and tells how many: all of them, but for printed columns and lists that are over
    /// budget.
    pub(super) fn append(&mut self, cells: &Cells<'_>, how: &mut Appending<'_>) -> Result<usize> {
        let Self { nulls, text, length, .. } = self;
        let replaced = &mut *how.replaced;
        match &mut self.values {
            Values::Boolean(out) => append_booleans(cells, out, nulls)?,
            Values::Int16(out) => cells.load(out, nulls, i16::from_le_bytes)?,
            Values::Int32(out) => cells.load(out, nulls, i32::from_le_bytes)?,
            Values::Int64(out) => cells.load(out, nulls, i64::from_le_bytes)?,
            Values::UInt32(out) => cells.load(out, nulls, u32::from_le_bytes)?,
            Values::Float32(out) => cells.load(out, nulls, f32::from_le_bytes)?,
            Values::Float64(out) => cells.load(out, nulls, f64::from_le_bytes)?,
            Values::Uuid(out) => cells.load(out, nulls, |bytes: [u8; 16]| bytes)?,
            Values::Date(out, infinity) => {
                cells.convert(out, nulls, |b| match i32::from_le_bytes(b) {
                    i32::MAX => infinite(*infinity, false, i32::MAX, replaced),
                    i32::MIN => infinite(*infinity, true, i32::MIN, replaced),
                    days => match days.checked_add(EPOCH_DAYS) {
                        Some(days) => Ok(Some(days)),
                        None => out_of_range(*infinity, "date", i32::MAX, replaced),
                    },
                })?;
            }
            Values::Time(out) => cells.convert(out, nulls, |b| match i64::from_le_bytes(b) {
                time @ 0..=DAY_MICROS => Ok(Some(time)),
                time => Err(Error::new(ErrorKind::Value, format!("{time} microseconds are no time of day"))),
            })?,
            Values::Timestamp(out, unit, infinity) => {
                let factor = if *unit == TimestampUnit::Nanosecond { 1000 } else { 1 };
                cells.convert(out, nulls, |b| match i64::from_le_bytes(b) {
                    i64::MAX => infinite(*infinity, false, i64::MAX, replaced),
                    i64::MIN => infinite(*infinity, true, i64::MIN, replaced),
                    micros => match micros.checked_add(EPOCH_MICROS).and_then(|micros| micros.checked_mul(factor)) {
                        Some(value) => Ok(Some(value)),
                        None => {
                            let end = if micros < 0 { i64::MIN } else { i64::MAX };
                            out_of_range(*infinity, "timestamp", end, replaced)
                        }
                    },
                })?;
            }
            Values::Interval { values, infinity, can_be_infinite } => {
                cells.convert(values, nulls, |b| interval(&b, *infinity, *can_be_infinite, replaced))?;
            }
            Values::Decimal128 { values, scale, bound, special } => {
                append_decimals(cells, how, values, nulls, (*scale, *bound), *special)?;
            }
            Values::Decimal256 { values, scale, bound, special } => {
                append_decimals(cells, how, values, nulls, (*scale, *bound), *special)?;
            }
            Values::LossyFloat64(out) => append_numerics(cells, how, out, nulls, |numeric, _| float(numeric, text))?,
            Values::Enum(out, labels) => {
                cells.convert(out, nulls, |b| labels.key(u32::from_le_bytes(b)).map(Some))?;
            }
            Values::Bytes(bytes) => {
                return bytes.append(cells, nulls, how.detoaster, *length, how.budget, how.least);
            }
            Values::List(list) => return list.append(cells, nulls, how),
        }
        Ok(cells.rows.len())
    }

    /// Forgets the rows from `rows` on, and tells how many values a policy had replaced in them: only known of lists,
    /// the other columns that are given more rows than they keep replace nothing.
    pub(super) fn truncate(&mut self, rows: usize) -> u64 {
        self.nulls.truncate(rows);
        match &mut self.values {
            Values::Boolean(out) => out.truncate(rows),
            Values::Int16(out) => out.truncate(rows),
            Values::Int32(out) | Values::Date(out, _) | Values::Enum(out, _) => out.truncate(rows),
            Values::Int64(out) | Values::Time(out) | Values::Timestamp(out, ..) => out.truncate(rows),
            Values::UInt32(out) => out.truncate(rows),
            Values::Float32(out) => out.truncate(rows),
            Values::Float64(out) | Values::LossyFloat64(out) => out.truncate(rows),
            Values::Interval { values, .. } => values.truncate(rows),
            Values::Uuid(out) => out.truncate(rows),
            Values::Decimal128 { values, .. } => values.truncate(rows),
            Values::Decimal256 { values, .. } => values.truncate(rows),
            Values::Bytes(bytes) => bytes.truncate(rows),
            Values::List(list) => return list.truncate(rows),
        }
        0
    }

    /// The array, of the schema's data type, of the values so far, which are then forgotten.
    pub(super) fn finish(&mut self, data_type: &DataType) -> Result<ArrayRef> {
        let nulls = self.nulls.finish();
        match &mut self.values {
            Values::Boolean(out) => Ok(Arc::new(BooleanArray::new(out.finish(), nulls))),
            Values::Int16(out) => primitive::<Int16Type>(out, nulls, data_type),
            Values::Int32(out) => primitive::<Int32Type>(out, nulls, data_type),
            Values::Int64(out) => primitive::<Int64Type>(out, nulls, data_type),
            Values::UInt32(out) => primitive::<UInt32Type>(out, nulls, data_type),
            Values::Float32(out) => primitive::<Float32Type>(out, nulls, data_type),
            Values::Float64(out) | Values::LossyFloat64(out) => primitive::<Float64Type>(out, nulls, data_type),
            Values::Date(out, _) => primitive::<Date32Type>(out, nulls, data_type),
            Values::Time(out) => primitive::<Time64MicrosecondType>(out, nulls, data_type),
            Values::Timestamp(out, TimestampUnit::Microsecond, _) => {
                primitive::<TimestampMicrosecondType>(out, nulls, data_type)
            }
            Values::Timestamp(out, TimestampUnit::Nanosecond, _) => {
                primitive::<TimestampNanosecondType>(out, nulls, data_type)
            }
            Values::Interval { values, .. } => primitive::<IntervalMonthDayNanoType>(values, nulls, data_type),
            Values::Decimal128 { values, .. } => primitive::<Decimal128Type>(values, nulls, data_type),
            Values::Decimal256 { values, .. } => primitive::<Decimal256Type>(values, nulls, data_type),
            Values::Uuid(out) => {
                let values = Buffer::from_vec(take(out).into_flattened());
                let array = FixedSizeBinaryArray::try_new(16, values, nulls).map_err(arrow_error)?;
                Ok(Arc::new(array))
            }
            Values::Enum(out, labels) => {
                let keys = PrimitiveArray::<Int32Type>::try_new(take(out).into(), nulls).map_err(arrow_error)?;
                let array = DictionaryArray::try_new(keys, labels.array()).map_err(arrow_error)?;
                Ok(Arc::new(array))
            }
            Values::Bytes(bytes) => bytes.finish(nulls),
            Values::List(list) => list.finish(nulls, data_type),
        }
    }
}

/// The values, leaving a vector that has room for as many.
fn take<T>(values: &mut Vec<T>) -> Vec<T> {
    let capacity = values.len();
    std::mem::replace(values, Vec::with_capacity(capacity))
}

fn primitive<T: ArrowPrimitiveType>(
    values: &mut Vec<T::Native>,
    nulls: Option<NullBuffer>,
    data_type: &DataType,
) -> Result<ArrayRef> {
    let array = PrimitiveArray::<T>::try_new(take(values).into(), nulls).map_err(arrow_error)?;
    // The schema has made the builder, so this is a data type of the same kind; only zone and precision are set.
    Ok(Arc::new(array.with_data_type(data_type.clone())))
}

fn append_booleans(cells: &Cells<'_>, out: &mut BooleanBufferBuilder, nulls: &mut NullBufferBuilder) -> Result<()> {
    cells.each(
        |row, bytes| {
            let value = match bytes {
                Some(bytes) => cells.exactly::<1>(row, bytes)? != [0],
                None => {
                    cells.null(row)?;
                    false
                }
            };
            out.append(value);
            nulls.append(bytes.is_some());
            Ok(())
        },
        1,
    )
}

fn infinite<T>(policy: InfinityPolicy, negative: bool, end: T, replaced: &mut u64) -> Result<Option<T>> {
    replace(policy, end, replaced, || format!("{}infinity has no place in Arrow", if negative { "-" } else { "" }))
}

fn out_of_range<T>(policy: InfinityPolicy, what: &str, end: T, replaced: &mut u64) -> Result<Option<T>> {
    replace(policy, end, replaced, || format!("the {what} is outside of the range that Arrow has for its unit"))
}

#[cold]
fn replace<T>(
    policy: InfinityPolicy,
    end: T,
    replaced: &mut u64,
    message: impl FnOnce() -> String,
) -> Result<Option<T>> {
    match policy {
        InfinityPolicy::Error => Err(Error::new(ErrorKind::Value, message())
            .with_hint("choose another BatchOptions::infinity")
            .into_refusal()),
        InfinityPolicy::Null => {
            *replaced += 1;
            Ok(None)
        }
        InfinityPolicy::Saturate => {
            *replaced += 1;
            Ok(Some(end))
        }
    }
}

/// `Interval` of `src/include/datatype/timestamp.h`: microseconds, days, months.
fn interval(
    bytes: &[u8; 16],
    infinity: InfinityPolicy,
    can_be_infinite: bool,
    replaced: &mut u64,
) -> Result<Option<IntervalMonthDayNano>> {
    let [t0, t1, t2, t3, t4, t5, t6, t7, d0, d1, d2, d3, m0, m1, m2, m3] = *bytes;
    let micros = i64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
    let days = i32::from_le_bytes([d0, d1, d2, d3]);
    let months = i32::from_le_bytes([m0, m1, m2, m3]);
    match (months, days, micros) {
        (i32::MAX, i32::MAX, i64::MAX) if can_be_infinite => {
            infinite(infinity, false, IntervalMonthDayNano::MAX, replaced)
        }
        (i32::MIN, i32::MIN, i64::MIN) if can_be_infinite => {
            infinite(infinity, true, IntervalMonthDayNano::MIN, replaced)
        }
        _ => match micros.checked_mul(1000) {
            Some(nanos) => Ok(Some(IntervalMonthDayNano::new(months, days, nanos))),
            None => Err(Error::new(ErrorKind::Value, "the interval's time part is beyond 2^63 nanoseconds")
                .with_hint("set BatchOptions::interval to IntervalPolicy::Text")
                .into_refusal()),
        },
    }
}

/// Appends numerics, each converted; `None` becomes NULL.
fn append_numerics<T: Copy + Default>(
    cells: &Cells<'_>,
    how: &mut Appending<'_>,
    out: &mut Vec<T>,
    nulls: &mut NullBufferBuilder,
    mut convert: impl FnMut(Numeric<'_>, &mut u64) -> Result<Option<T>>,
) -> Result<()> {
    let Appending { detoaster, replaced, .. } = how;
    cells.each(
        |row, raw| {
            let value = match raw {
                Some(raw) => detoaster
                    .payload(raw)
                    .and_then(|content| {
                        Numeric::parse(content)
                            .map_err(|_| Error::new(ErrorKind::Value, "the numeric's bytes make no sense"))
                    })
                    .and_then(|numeric| convert(numeric, replaced))
                    .map_err(|e| cells.at(row, e))?,
                None => {
                    cells.null(row)?;
                    None
                }
            };
            out.push(value.unwrap_or_default());
            nulls.append(value.is_some());
            Ok(())
        },
        0,
    )
}

fn append_decimals<T: Wide>(
    cells: &Cells<'_>,
    how: &mut Appending<'_>,
    out: &mut Vec<T>,
    nulls: &mut NullBufferBuilder,
    (scale, bound): (i8, T),
    special: SpecialNumericPolicy,
) -> Result<()> {
    append_numerics(cells, how, out, nulls, |numeric, replaced| match numeric {
        Numeric::Finite { negative, weight, digits, .. } => decimal::scaled(negative, weight, digits, scale, bound)
            .map(Some)
            .map_err(|misfit| misfit_error(misfit, numeric)),
        special_value => match special {
            SpecialNumericPolicy::Error => {
                Err(Error::new(ErrorKind::Value, format!("{} is no decimal", text_of(special_value)))
                    .with_hint("choose another BatchOptions::numeric_special, or text for the column")
                    .into_refusal())
            }
            SpecialNumericPolicy::Null => {
                *replaced += 1;
                Ok(None)
            }
        },
    })
}

/// The first digits of a number, for a message.
#[cold]
fn text_of(numeric: Numeric<'_>) -> String {
    const SHOWN: usize = 60;
    let mut text = Vec::new();
    if numeric.write(&mut text).is_err() {
        return "a damaged numeric".to_owned();
    }
    let shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]).into_owned();
    if text.len() > SHOWN { shown + "..." } else { shown }
}

#[cold]
fn misfit_error(misfit: Misfit, numeric: Numeric<'_>) -> Error {
    let why = match misfit {
        Misfit::Rounds => "has more digits behind the point than the decimal's scale",
        Misfit::Overflows => "has more digits than the decimal",
        Misfit::Damaged => "has a base-10000 digit above 9999",
    };
    let error = Error::new(ErrorKind::Value, format!("{} {why}", text_of(numeric)))
        .with_hint("take a larger decimal, or text, for this column: BatchOptions::numeric_columns");
    if misfit == Misfit::Damaged { error } else { error.into_refusal() }
}

/// The nearest float, by way of the decimal text, which rounds once.
fn float(numeric: Numeric<'_>, text: &mut Vec<u8>) -> Result<Option<f64>> {
    match numeric {
        Numeric::NaN => return Ok(Some(f64::NAN)),
        Numeric::Infinity => return Ok(Some(f64::INFINITY)),
        Numeric::NegativeInfinity => return Ok(Some(f64::NEG_INFINITY)),
        Numeric::Finite { .. } => {}
    }
    text.clear();
    let written = numeric.write(text).is_ok();
    let value = std::str::from_utf8(text).ok().filter(|_| written).and_then(|text| text.parse::<f64>().ok());
    match value {
        Some(value) if value.is_finite() => Ok(Some(value)),
        Some(_) => Err(Error::new(ErrorKind::Value, format!("{} is beyond the range of a float64", text_of(numeric)))
            .into_refusal()),
        None => Err(Error::new(ErrorKind::Value, "the numeric's digits make no sense")),
    }
}
