//! Running aggregates over values, with the result types and the overflow rules of PostgreSQL's own.

use super::{
    numeric_sum::NumericSum,
    parse::{AggregateCall, Argument, Function},
};
use crate::{Error, ErrorKind, Result, types::TypeOutput};

/// Oids of `pg_type` that aggregates know.
mod oid {
    pub(super) const INT8: u32 = 20;
    pub(super) const INT2: u32 = 21;
    pub(super) const INT4: u32 = 23;
    pub(super) const OID: u32 = 26;
    pub(super) const FLOAT4: u32 = 700;
    pub(super) const FLOAT8: u32 = 701;
    pub(super) const DATE: u32 = 1082;
    pub(super) const TIME: u32 = 1083;
    pub(super) const TIMESTAMP: u32 = 1114;
    pub(super) const TIMESTAMPTZ: u32 = 1184;
    pub(super) const NUMERIC: u32 = 1700;
}

/// How the bytes of a value become a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Int2,
    Int4,
    Int8,
    Oid,
    Float4,
    Float8,
}

/// The state of one aggregate.
#[derive(Clone, Debug)]
pub(crate) enum Accumulator {
    /// `count(*)` and `count(x)`
    Count(u64),
    /// `sum` of integers, and of lengths. The server's result type is bigint (`big`: numeric, for int8).
    Int {
        load: Load,
        sum: i128,
        any: bool,
        big: bool,
    },
    /// `sum(octet_length(x))`: takes lengths.
    Lengths {
        sum: i128,
        any: bool,
    },
    /// `min`, `max` of `octet_length(x)`.
    ExtremeLength {
        want_max: bool,
        best: Option<i64>,
    },
    Float4 {
        sum: f32,
        any: bool,
    },
    Float8 {
        sum: f64,
        any: bool,
    },
    /// The values of a float sum, for who adds them in an order of his own.
    Floats {
        load: Load,
        values: Vec<f64>,
    },
    Numeric {
        sum: NumericSum,
        any: bool,
    },
    ExtremeInt {
        load: Load,
        want_max: bool,
        best: Option<i64>,
    },
    ExtremeFloat {
        load: Load,
        want_max: bool,
        best: Option<f64>,
    },
}

impl Accumulator {
    /// The accumulator of `call` over a column of type `type_oid` (ignored for `*`).
    ///
    /// # Errors
    /// `Unsupported` if the aggregate is not offered for the type.
    pub(crate) fn new(call: &AggregateCall, type_oid: u32, type_name: &str) -> Result<Self> {
        let of_length = matches!(call.argument, Argument::OctetLength(_));
        let extreme = |want_max| match load_of(type_oid) {
            Some(load @ (Load::Float4 | Load::Float8)) => Some(Self::ExtremeFloat { load, want_max, best: None }),
            Some(load) => Some(Self::ExtremeInt { load, want_max, best: None }),
            None => None,
        };
        let found = match call.function {
            Function::Count => Some(Self::Count(0)),
            Function::Sum if of_length => Some(Self::Lengths { sum: 0, any: false }),
            Function::Min if of_length => Some(Self::ExtremeLength { want_max: false, best: None }),
            Function::Max if of_length => Some(Self::ExtremeLength { want_max: true, best: None }),
            Function::Sum => match type_oid {
                oid::INT2 => Some(Self::Int { load: Load::Int2, sum: 0, any: false, big: false }),
                oid::INT4 => Some(Self::Int { load: Load::Int4, sum: 0, any: false, big: false }),
                oid::INT8 => Some(Self::Int { load: Load::Int8, sum: 0, any: false, big: true }),
                oid::FLOAT4 => Some(Self::Float4 { sum: 0.0, any: false }),
                oid::FLOAT8 => Some(Self::Float8 { sum: 0.0, any: false }),
                oid::NUMERIC => Some(Self::Numeric { sum: NumericSum::default(), any: false }),
                _ => None,
            },
            Function::Min => extreme(false),
            Function::Max => extreme(true),
        };
        found.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("{} is not offered for type {type_name}", call.text))
        })
    }

    /// Whether the aggregate needs lengths only, never the bytes of the value.
    pub(crate) fn wants_length(&self) -> bool {
        matches!(self, Self::Lengths { .. } | Self::ExtremeLength { .. })
    }

    /// Whether only NULL or not NULL matters.
    pub(crate) fn wants_presence(&self) -> bool {
        matches!(self, Self::Count(_))
    }

    /// One row (of `count(*)`) or one value that is not NULL (of `count(x)`).
    pub(crate) fn add_presence(&mut self, rows: u64) {
        if let Self::Count(count) = self {
            *count += rows;
        }
    }

    /// The length in bytes of one value that is not NULL.
    pub(crate) fn add_length(&mut self, length: i64) {
        match self {
            Self::Lengths { sum, any } => {
                *sum += i128::from(length);
                *any = true;
            }
            Self::ExtremeLength { want_max, best } => {
                *best = Some(best.map_or(length, |b| if *want_max { b.max(length) } else { b.min(length) }));
            }
            _ => {}
        }
    }

    /// One value that is not NULL: a fixed-length value's bytes, or a varlena's payload.
    pub(crate) fn add_value(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Count(count) => *count += 1,
            Self::Lengths { .. } | Self::ExtremeLength { .. } => self.add_length(bytes.len() as i64),
            Self::Int { load, sum, any, .. } => {
                *sum += i128::from(int(*load, bytes)?);
                *any = true;
            }
            Self::Float4 { sum, any } => {
                *sum += float(Load::Float4, bytes)? as f32;
                *any = true;
            }
            Self::Float8 { sum, any } => {
                *sum += float(Load::Float8, bytes)?;
                *any = true;
            }
            Self::Floats { load, values } => values.push(float(*load, bytes)?),
            Self::Numeric { sum, any } => {
                sum.add(bytes)?;
                *any = true;
            }
            Self::ExtremeInt { load, want_max, best } => {
                let value = int(*load, bytes)?;
                *best = Some(best.map_or(value, |b| if *want_max { b.max(value) } else { b.min(value) }));
            }
            Self::ExtremeFloat { load, want_max, best } => {
                let value = float(*load, bytes)?;
                *best = Some(match *best {
                    Some(b) if is_less(b, value) != *want_max => b,
                    _ => value,
                });
            }
        }
        Ok(())
    }

    /// The result as the server prints it; `None` is NULL. `output` prints values of the column's type.
    ///
    /// # Errors
    /// `Value` where the server says `bigint out of range` or `value out of range: overflow`.
    pub(crate) fn finish(&self, output: Option<&TypeOutput>) -> Result<Option<String>> {
        let out_of_range = |what: &str| Error::new(ErrorKind::Value, format!("{what} out of range"));
        let print = |bytes: &[u8]| -> Result<Option<String>> {
            let output = output.ok_or_else(|| Error::new(ErrorKind::Usage, "the aggregate has no type to print by"))?;
            let mut text = Vec::new();
            output.write(bytes, &mut text)?;
            Ok(Some(String::from_utf8_lossy(&text).into_owned()))
        };
        Ok(match self {
            Self::Count(count) => Some(count.to_string()),
            Self::Int { any: false, .. }
            | Self::Lengths { any: false, .. }
            | Self::Float4 { any: false, .. }
            | Self::Float8 { any: false, .. }
            | Self::Numeric { any: false, .. }
            | Self::Floats { .. } => None,
            Self::Int { sum, big: true, .. } => Some(sum.to_string()),
            Self::Int { sum, .. } | Self::Lengths { sum, .. } => {
                Some(i64::try_from(*sum).map_err(|_| out_of_range("bigint"))?.to_string())
            }
            Self::Float4 { sum, .. } => print(&sum.to_le_bytes())?,
            Self::Float8 { sum, .. } => print(&sum.to_le_bytes())?,
            Self::Numeric { sum, .. } => Some(sum.to_text()),
            Self::ExtremeLength { best, .. } => best.map(|b| b.to_string()),
            Self::ExtremeInt { load, best, .. } => match best {
                Some(best) => print(&store_int(*load, *best))?,
                None => None,
            },
            Self::ExtremeFloat { load, best, .. } => match best {
                Some(best) if *load == Load::Float4 => print(&(*best as f32).to_le_bytes())?,
                Some(best) => print(&best.to_le_bytes())?,
                None => None,
            },
        })
    }
}

fn load_of(type_oid: u32) -> Option<Load> {
    Some(match type_oid {
        oid::INT2 => Load::Int2,
        oid::INT4 | oid::DATE => Load::Int4,
        oid::INT8 | oid::TIME | oid::TIMESTAMP | oid::TIMESTAMPTZ => Load::Int8,
        oid::OID => Load::Oid,
        oid::FLOAT4 => Load::Float4,
        oid::FLOAT8 => Load::Float8,
        _ => return None,
    })
}

/// PostgreSQL's order of floats: NaN equals itself and is greater than all others.
pub(super) fn is_less(a: f64, b: f64) -> bool {
    if b.is_nan() { !a.is_nan() } else { a < b }
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| Error::new(ErrorKind::Value, format!("{} bytes where {N} belong", bytes.len())))
}

fn int(load: Load, bytes: &[u8]) -> Result<i64> {
    Ok(match load {
        Load::Int2 => i16::from_le_bytes(array(bytes)?).into(),
        Load::Int4 => i32::from_le_bytes(array(bytes)?).into(),
        Load::Oid => u32::from_le_bytes(array(bytes)?).into(),
        _ => i64::from_le_bytes(array(bytes)?),
    })
}

fn float(load: Load, bytes: &[u8]) -> Result<f64> {
    Ok(if load == Load::Float4 { f32::from_le_bytes(array(bytes)?).into() } else { f64::from_le_bytes(array(bytes)?) })
}

fn store_int(load: Load, value: i64) -> Vec<u8> {
    match load {
        Load::Int2 => (value as i16).to_le_bytes().to_vec(),
        Load::Int4 => (value as i32).to_le_bytes().to_vec(),
        Load::Oid => (value as u32).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::parse::parse, *};

    fn accumulator(text: &str, type_oid: u32) -> Accumulator {
        Accumulator::new(&parse(text).unwrap()[0], type_oid, "x").unwrap()
    }

    #[test]
    fn sums_of_nothing_are_null_and_counts_are_zero() {
        assert_eq!(accumulator("sum(x)", oid::INT4).finish(None).unwrap(), None);
        assert_eq!(accumulator("min(x)", oid::INT4).finish(None).unwrap(), None);
        assert_eq!(accumulator("count(x)", oid::INT4).finish(None).unwrap().as_deref(), Some("0"));
    }

    #[test]
    fn sum_of_bigints_does_not_overflow_but_of_ints_does() {
        let mut sum = accumulator("sum(x)", oid::INT8);
        for _ in 0..3 {
            sum.add_value(&i64::MAX.to_le_bytes()).unwrap();
        }
        assert_eq!(sum.finish(None).unwrap().unwrap(), "27670116110564327421");
        let sum = Accumulator::Int { load: Load::Int4, sum: i128::from(i64::MAX) + 1, any: true, big: false };
        assert_eq!(sum.finish(None).unwrap_err().kind(), ErrorKind::Value);
    }

    #[test]
    fn nan_is_the_greatest_float() {
        for (text, expected) in [("max(x)", f64::NAN), ("min(x)", -1.0)] {
            let mut extreme = accumulator(text, oid::FLOAT8);
            for value in [2.0, f64::NAN, -1.0, f64::INFINITY] {
                extreme.add_value(&value.to_le_bytes()).unwrap();
            }
            let Accumulator::ExtremeFloat { best: Some(best), .. } = extreme else { panic!() };
            assert_eq!(best.total_cmp(&expected), std::cmp::Ordering::Equal, "{text}");
        }
    }

    #[test]
    fn wrong_types_and_lengths_are_errors() {
        assert!(Accumulator::new(&parse("sum(x)").unwrap()[0], oid::DATE, "date").is_err());
        assert!(Accumulator::new(&parse("min(x)").unwrap()[0], 18, "\"char\"").is_err());
        assert!(accumulator("sum(x)", oid::INT4).add_value(&[0; 3]).is_err());
    }
}
