//! `sum(a * (1 - b))`: arithmetic with the types, the rounding and the errors of the server.
//!
//! Where all columns lie at the same place in every tuple of a page, each operator is a loop over the page; else rows are
//! taken apart and computed one by one.

use super::{accumulator::Accumulator, page::PageRows, parse::Expression, wide::Decimal};
use crate::{
    Error, ErrorKind, Result,
    heap::{Datum, DeformPlan, Detoaster, ValidPage},
    scan::{TableContext, row::payload, toast::PoolChunks},
};

/// Types of numbers, each of which holds the values of those before, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NumberType {
    Int2,
    Int4,
    Int8,
    Numeric,
    Float4,
    Float8,
}

impl NumberType {
    fn of(type_oid: u32) -> Option<Self> {
        Some(match type_oid {
            20 => Self::Int8,
            21 => Self::Int2,
            23 => Self::Int4,
            700 => Self::Float4,
            701 => Self::Float8,
            1700 => Self::Numeric,
            _ => return None,
        })
    }

    /// Its oid.
    pub(super) fn oid(self) -> u32 {
        match self {
            Self::Int2 => 21,
            Self::Int4 => 23,
            Self::Int8 => 20,
            Self::Numeric => 1700,
            Self::Float4 => 700,
            Self::Float8 => 701,
        }
    }

    fn is_float(self) -> bool {
        self >= Self::Float4
    }

    /// The type in which two are added or multiplied: `real` with anything else makes `double precision`.
    fn with(self, other: Self) -> Self {
        match self.max(other) {
            Self::Float4 if self != other => Self::Float8,
            wider => wider,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Add,
    Subtract,
    Multiply,
}

#[derive(Clone, Debug)]
enum Node {
    /// Index into the scan's columns.
    Column(usize),
    Constant(Value),
    Negate(Box<Typed>),
    Binary(Operator, Box<Typed>, Box<Typed>),
}

#[derive(Clone, Debug)]
struct Typed {
    node: Node,
    of: NumberType,
}

#[derive(Clone, Debug)]
enum Value {
    Int(i64),
    Float(f64),
    Numeric(Decimal),
}

/// An expression over the columns of a scan.
#[derive(Clone, Debug)]
pub(super) struct Program {
    root: Typed,
    /// The values of one node for all rows of a page, kept to be reused.
    ints: Vec<Vec<i64>>,
    floats: Vec<Vec<f64>>,
}

impl Program {
    /// Finds the columns, adding those to `columns` that are not there yet, and the types.
    ///
    /// # Errors
    /// `NotFound` if there is no such column, `Unsupported` if it is none of numbers.
    pub(super) fn new(expression: &Expression, context: &TableContext, columns: &mut Vec<usize>) -> Result<Self> {
        Ok(Self { root: resolve(expression, context, columns)?, ints: Vec::new(), floats: Vec::new() })
    }

    pub(super) fn result(&self) -> NumberType {
        self.root.of
    }

    /// Adds the values of all rows of a page. `false`: that is not possible at once, nothing was added.
    ///
    /// # Errors
    /// `Value` where the server says that a result is out of range.
    pub(super) fn take_page(
        &mut self,
        page: &ValidPage<'_>,
        rows: &PageRows<'_>,
        plan: &DeformPlan,
        accumulator: &mut Accumulator,
    ) -> Result<bool> {
        let direct = |place| plan.fixed_on_page(place, page.summary()).is_some();
        if !self.root.columns_are(&direct) || !self.root.is_plain() {
            return Ok(false);
        }
        let mut pass = Pass { page, rows, plan, ints: &mut self.ints, floats: &mut self.floats };
        if self.root.of.is_float() {
            let values = pass.floats(&self.root)?;
            match accumulator {
                Accumulator::Float4 { sum, any } => {
                    values.iter().for_each(|v| *sum += *v as f32);
                    *any |= !values.is_empty();
                }
                Accumulator::Float8 { sum, any } => {
                    values.iter().for_each(|v| *sum += v);
                    *any |= !values.is_empty();
                }
                Accumulator::Floats { values: gathered, .. } => gathered.extend_from_slice(&values),
                _ => return Ok(false),
            }
            self.floats.push(values);
        } else {
            let values = pass.ints(&self.root)?;
            let Accumulator::Int { sum, any, .. } = accumulator else { return Ok(false) };
            *sum += values.iter().map(|v| i128::from(*v)).sum::<i128>();
            *any |= !values.is_empty();
            self.ints.push(values);
        }
        Ok(true)
    }

    /// Adds the value of one row, unless it is NULL.
    ///
    /// # Errors
    /// As [`take_page`](Self::take_page); `Value` if a stored value is damaged.
    pub(super) fn take_row(
        &self,
        values: &[Datum<'_>],
        detoaster: &mut Detoaster<PoolChunks>,
        accumulator: &mut Accumulator,
    ) -> Result<()> {
        match (self.root.value(values, detoaster)?, accumulator) {
            (None, _) => {}
            (Some(Value::Int(value)), Accumulator::Int { sum, any, .. }) => {
                *sum += i128::from(value);
                *any = true;
            }
            (Some(Value::Float(value)), Accumulator::Float4 { sum, any }) => {
                *sum += value as f32;
                *any = true;
            }
            (Some(Value::Float(value)), Accumulator::Float8 { sum, any }) => {
                *sum += value;
                *any = true;
            }
            (Some(Value::Float(value)), Accumulator::Floats { values, .. }) => values.push(value),
            (Some(Value::Numeric(value)), Accumulator::Numeric { sum, any }) => {
                sum.add_decimal(&value);
                *any = true;
            }
            _ => return Err(Error::new(ErrorKind::Value, "the sum is of another type than its values")),
        }
        Ok(())
    }
}

fn resolve(expression: &Expression, context: &TableContext, columns: &mut Vec<usize>) -> Result<Typed> {
    let mut binary = |operator, a: &Expression, b: &Expression| -> Result<Typed> {
        let (a, b) = (resolve(a, context, columns)?, resolve(b, context, columns)?);
        let of = a.of.with(b.of);
        Ok(Typed { node: Node::Binary(operator, Box::new(a), Box::new(b)), of })
    };
    match expression {
        Expression::Add(a, b) => binary(Operator::Add, a, b),
        Expression::Subtract(a, b) => binary(Operator::Subtract, a, b),
        Expression::Multiply(a, b) => binary(Operator::Multiply, a, b),
        Expression::Negate(inner) => {
            let inner = resolve(inner, context, columns)?;
            Ok(Typed { of: inner.of, node: Node::Negate(Box::new(inner)) })
        }
        Expression::Number(text) => {
            let (value, of) = match text.parse::<i64>() {
                Ok(value) if i32::try_from(value).is_ok() => (Value::Int(value), NumberType::Int4),
                Ok(value) => (Value::Int(value), NumberType::Int8),
                Err(_) => {
                    let value = Decimal::parse(text)
                        .ok_or_else(|| Error::new(ErrorKind::Usage, format!("{text} is no number that is offered")))?;
                    (Value::Numeric(value), NumberType::Numeric)
                }
            };
            Ok(Typed { node: Node::Constant(value), of })
        }
        Expression::Column(name) => {
            let index = context.attribute(name)?;
            let of = NumberType::of(context.base_types[index]).ok_or_else(|| {
                let type_name = context.column(index).type_name;
                Error::new(ErrorKind::Unsupported, format!("column {name:?} ({type_name}) is not of a type of numbers"))
            })?;
            let place = columns.iter().position(|&c| c == index).unwrap_or(columns.len());
            if place == columns.len() {
                columns.push(index);
            }
            Ok(Typed { node: Node::Column(place), of })
        }
    }
}

impl Typed {
    fn columns_are(&self, direct: &impl Fn(usize) -> bool) -> bool {
        match &self.node {
            Node::Column(place) => direct(*place),
            Node::Constant(_) => true,
            Node::Negate(inner) => inner.columns_are(direct),
            Node::Binary(_, a, b) => a.columns_are(direct) && b.columns_are(direct),
        }
    }

    /// Whether no numeric has to be computed with: constants that become floats do not count.
    fn is_plain(&self) -> bool {
        match &self.node {
            Node::Column(_) => self.of != NumberType::Numeric,
            Node::Constant(_) => true,
            Node::Negate(inner) => self.of != NumberType::Numeric && inner.is_plain(),
            Node::Binary(_, a, b) => self.of != NumberType::Numeric && a.is_plain() && b.is_plain(),
        }
    }

    /// The value in one row; `None` is NULL.
    fn value(&self, values: &[Datum<'_>], detoaster: &mut Detoaster<PoolChunks>) -> Result<Option<Value>> {
        Ok(match &self.node {
            Node::Constant(value) => Some(value.clone()),
            Node::Column(place) => {
                let datum = values.get(*place).copied().unwrap_or(Datum::Null);
                payload(datum, detoaster)?.map(|bytes| load(self.of, bytes)).transpose()?
            }
            Node::Negate(inner) => match inner.value(values, detoaster)? {
                None => None,
                Some(Value::Int(value)) => Some(Value::Int(int_in(self.of, value.checked_neg())?)),
                Some(Value::Float(value)) => Some(Value::Float(-value)),
                Some(Value::Numeric(value)) => Some(Value::Numeric(-value)),
            },
            Node::Binary(operator, a, b) => {
                let (Some(a), Some(b)) = (a.value(values, detoaster)?, b.value(values, detoaster)?) else {
                    return Ok(None);
                };
                Some(match self.of {
                    NumberType::Float4 | NumberType::Float8 => {
                        Value::Float(float_operation(*operator, self.of, a.to_f64(), b.to_f64())?)
                    }
                    NumberType::Numeric => {
                        let (a, b) = (a.to_decimal(), b.to_decimal());
                        Value::Numeric(match operator {
                            Operator::Add => a.plus(&b),
                            Operator::Subtract => a.plus(&-b),
                            Operator::Multiply => a.times(&b),
                        })
                    }
                    of => match (a, b) {
                        (Value::Int(a), Value::Int(b)) => Value::Int(int_operation(*operator, of, a, b)?),
                        _ => return Err(Error::new(ErrorKind::Value, "an integer of a type that is none")),
                    },
                })
            }
        })
    }
}

impl Value {
    fn to_f64(&self) -> f64 {
        match self {
            Self::Int(value) => *value as f64,
            Self::Float(value) => *value,
            Self::Numeric(value) => value.to_f64(),
        }
    }

    fn to_decimal(&self) -> Decimal {
        match self {
            Self::Int(value) => Decimal::integer(*value),
            Self::Float(_) => Decimal::NaN,
            Self::Numeric(value) => value.clone(),
        }
    }
}

fn load(of: NumberType, bytes: &[u8]) -> Result<Value> {
    fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
        bytes.try_into().map_err(|_| Error::new(ErrorKind::Value, format!("{} bytes where {N} belong", bytes.len())))
    }
    Ok(match of {
        NumberType::Int2 => Value::Int(i16::from_le_bytes(array(bytes)?).into()),
        NumberType::Int4 => Value::Int(i32::from_le_bytes(array(bytes)?).into()),
        NumberType::Int8 => Value::Int(i64::from_le_bytes(array(bytes)?)),
        NumberType::Float4 => Value::Float(f32::from_le_bytes(array(bytes)?).into()),
        NumberType::Float8 => Value::Float(f64::from_le_bytes(array(bytes)?)),
        NumberType::Numeric => Value::Numeric(Decimal::stored(bytes)?),
    })
}

/// One node after the other over the rows of a page.
struct Pass<'p, 's> {
    page: &'p ValidPage<'p>,
    rows: &'p PageRows<'p>,
    plan: &'p DeformPlan,
    ints: &'s mut Vec<Vec<i64>>,
    floats: &'s mut Vec<Vec<f64>>,
}

impl Pass<'_, '_> {
    fn offset(&self, place: usize) -> usize {
        // `take_page` has asked for all columns.
        self.plan.fixed_on_page(place, self.page.summary()).map_or(0, |fixed| fixed.offset)
    }

    fn ints(&mut self, typed: &Typed) -> Result<Vec<i64>> {
        let mut out = self.ints.pop().unwrap_or_default();
        out.clear();
        match &typed.node {
            Node::Column(place) => {
                let at = self.offset(*place);
                out.reserve(self.rows.len());
                match typed.of {
                    NumberType::Int2 => self.rows.each(at, |b| out.push(i16::from_le_bytes(b).into())),
                    NumberType::Int4 => self.rows.each(at, |b| out.push(i32::from_le_bytes(b).into())),
                    _ => self.rows.each(at, |b| out.push(i64::from_le_bytes(b))),
                }
            }
            Node::Constant(Value::Int(value)) => out.resize(self.rows.len(), *value),
            Node::Constant(_) => {}
            Node::Negate(inner) => {
                let values = self.ints(inner)?;
                for value in &values {
                    out.push(int_in(typed.of, value.checked_neg())?);
                }
                self.ints.push(values);
            }
            Node::Binary(operator, a, b) => {
                let (a, b) = (self.ints(a)?, self.ints(b)?);
                for (a, b) in a.iter().zip(&b) {
                    out.push(int_operation(*operator, typed.of, *a, *b)?);
                }
                self.ints.extend([a, b]);
            }
        }
        Ok(out)
    }

    fn floats(&mut self, typed: &Typed) -> Result<Vec<f64>> {
        let mut out = self.floats.pop().unwrap_or_default();
        out.clear();
        if !typed.of.is_float() {
            // An integer, or a constant, among floats.
            if let Node::Constant(value) = &typed.node {
                out.resize(self.rows.len(), value.to_f64());
                return Ok(out);
            }
            let values = self.ints(typed)?;
            out.extend(values.iter().map(|v| *v as f64));
            self.ints.push(values);
            return Ok(out);
        }
        match &typed.node {
            Node::Column(place) => {
                let at = self.offset(*place);
                out.reserve(self.rows.len());
                match typed.of {
                    NumberType::Float4 => self.rows.each(at, |b| out.push(f32::from_le_bytes(b).into())),
                    _ => self.rows.each(at, |b| out.push(f64::from_le_bytes(b))),
                }
            }
            Node::Constant(value) => out.resize(self.rows.len(), value.to_f64()),
            Node::Negate(inner) => {
                let values = self.floats(inner)?;
                out.extend(values.iter().map(|v| -v));
                self.floats.push(values);
            }
            Node::Binary(operator, a, b) => {
                let (a, b) = (self.floats(a)?, self.floats(b)?);
                for (a, b) in a.iter().zip(&b) {
                    out.push(float_operation(*operator, typed.of, *a, *b)?);
                }
                self.floats.extend([a, b]);
            }
        }
        Ok(out)
    }
}

#[inline(always)]
fn int_operation(operator: Operator, of: NumberType, a: i64, b: i64) -> Result<i64> {
    int_in(
        of,
        match operator {
            Operator::Add => a.checked_add(b),
            Operator::Subtract => a.checked_sub(b),
            Operator::Multiply => a.checked_mul(b),
        },
    )
}

/// A result that its type can hold.
#[inline(always)]
fn int_in(of: NumberType, value: Option<i64>) -> Result<i64> {
    let fits = |value: &i64| match of {
        NumberType::Int2 => i16::try_from(*value).is_ok(),
        NumberType::Int4 => i32::try_from(*value).is_ok(),
        _ => true,
    };
    value.filter(fits).ok_or_else(|| out_of_range(of))
}

#[cold]
fn out_of_range(of: NumberType) -> Error {
    let name = match of {
        NumberType::Int2 => "smallint",
        NumberType::Int4 => "integer",
        _ => "bigint",
    };
    Error::new(ErrorKind::Value, format!("{name} out of range"))
}

#[inline(always)]
fn float_operation(operator: Operator, of: NumberType, a: f64, b: f64) -> Result<f64> {
    let single = of == NumberType::Float4;
    let result = match operator {
        Operator::Add if single => f64::from(a as f32 + b as f32),
        Operator::Subtract if single => f64::from(a as f32 - b as f32),
        Operator::Multiply if single => f64::from(a as f32 * b as f32),
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
    };
    let overflow = result.is_infinite() && !a.is_infinite() && !b.is_infinite();
    let underflow = operator == Operator::Multiply && result == 0.0 && a != 0.0 && b != 0.0;
    if overflow || underflow { Err(float_range(overflow)) } else { Ok(result) }
}

#[cold]
fn float_range(overflow: bool) -> Error {
    let how = if overflow { "overflow" } else { "underflow" };
    Error::new(ErrorKind::Value, format!("value out of range: {how}"))
}
