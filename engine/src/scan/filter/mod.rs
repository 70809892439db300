//! Filters: which rows a scan yields, decided before anything else of a row is decoded.
//!
//! A [`Predicate`] is made from text (`"a > 5 and b = 'x'".parse()`) or by the functions of this module
//! (`col("a").gt(5).and(col("b").eq("x"))`). It is checked against the table when the scan begins, and evaluated page
//! by page, 64 rows at a time: columns that lie at the same place in every tuple are compared where they lie; only what
//! these leave is taken apart for the others.
//!
//! The truth values are SQL's: a comparison with NULL is unknown, and rows are kept only where the predicate is true.

mod bind;
mod bytes;
mod eval;
mod like;
mod literal;
mod number;
mod parse;
#[cfg(test)]
mod tests;

pub(crate) use eval::PageFilter;

use super::{ScanBuilder, TableContext};
use crate::{Error, Result};
use std::{str::FromStr, sync::Arc};

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Eq,
    /// `<>`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

impl Comparison {
    /// The operator of `b op a` that says the same as this one of `a op b`.
    fn flipped(self) -> Self {
        match self {
            Self::Lt => Self::Gt,
            Self::Le => Self::Ge,
            Self::Gt => Self::Lt,
            Self::Ge => Self::Le,
            same => same,
        }
    }

    /// The operator that is true where this one is false.
    fn negated(self) -> Self {
        match self {
            Self::Eq => Self::Ne,
            Self::Ne => Self::Eq,
            Self::Lt => Self::Ge,
            Self::Le => Self::Gt,
            Self::Gt => Self::Le,
            Self::Ge => Self::Lt,
        }
    }

    /// As SQL writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Eq => "=",
            Self::Ne => "<>",
            Self::Lt => "<",
            Self::Le => "<=",
            Self::Gt => ">",
            Self::Ge => ">=",
        }
    }
}

/// A constant that a column is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Literal {
    value: LiteralValue,
    /// The type that a cast or a typed literal names, in lower case.
    cast: Option<String>,
    /// Character of the text where it begins, from 1; 0 if there is no text.
    at: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum LiteralValue {
    Null,
    Bool(bool),
    /// Digits with sign, point and exponent.
    Number(String),
    /// Quoted: takes the column's type.
    Text(String),
    Bytes(Vec<u8>),
}

impl Literal {
    fn new(value: LiteralValue) -> Self {
        Self { value, cast: None, at: 0 }
    }

    /// NULL: no comparison with it is true.
    pub fn null() -> Self {
        Self::new(LiteralValue::Null)
    }

    /// A number of any size and precision, as SQL writes it: `123`, `-0.5`, `1e-3`.
    pub fn number(text: impl Into<String>) -> Self {
        Self::new(LiteralValue::Number(text.into()))
    }

    /// A `bytea`.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(LiteralValue::Bytes(bytes.into()))
    }
}

/// Text, or a quoted value of whatever type the column has: `'2026-01-31'`.
impl From<&str> for Literal {
    fn from(text: &str) -> Self {
        Self::new(LiteralValue::Text(text.to_owned()))
    }
}

impl From<String> for Literal {
    fn from(text: String) -> Self {
        Self::new(LiteralValue::Text(text))
    }
}

impl From<bool> for Literal {
    fn from(value: bool) -> Self {
        Self::new(LiteralValue::Bool(value))
    }
}

macro_rules! numbers {
    ($($type:ty),*) => { $(
        impl From<$type> for Literal {
            fn from(value: $type) -> Self {
                Self::new(LiteralValue::Number(value.to_string()))
            }
        }
    )* };
}
numbers!(i16, i32, i64, i128, u16, u32, u64);

/// Compared exactly with integers and numerics. NaN and infinities are values of float and numeric columns only.
impl From<f64> for Literal {
    fn from(value: f64) -> Self {
        if value.is_finite() {
            Self::new(LiteralValue::Number(format!("{value:?}")))
        } else {
            let text = if value.is_nan() {
                "NaN"
            } else if value > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            };
            text.into()
        }
    }
}

/// A column that is named in a predicate; see [`col`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnName {
    name: String,
    at: usize,
}

/// The column `name`, taken as it is, to be compared with something.
pub fn col(name: impl Into<String>) -> ColumnName {
    ColumnName { name: name.into(), at: 0 }
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident $op:ident),*) => { $(
        $(#[$doc])*
        #[must_use]
        pub fn $name(self, value: impl Into<Literal>) -> Predicate {
            Predicate::Compare { column: self, op: Comparison::$op, value: value.into() }
        }
    )* };
}

impl ColumnName {
    comparisons!(
        /// `column = value`
        eq Eq,
        /// `column <> value`
        ne Ne,
        /// `column < value`
        lt Lt,
        /// `column <= value`
        le Le,
        /// `column > value`
        gt Gt,
        /// `column >= value`
        ge Ge
    );

    /// `column BETWEEN low AND high`: both belong to it.
    #[must_use]
    pub fn between(self, low: impl Into<Literal>, high: impl Into<Literal>) -> Predicate {
        self.clone().ge(low).and(self.le(high))
    }

    /// `column IN (values)`
    #[must_use]
    pub fn is_in<L: Into<Literal>>(self, values: impl IntoIterator<Item = L>) -> Predicate {
        Predicate::In { column: self, values: values.into_iter().map(Into::into).collect() }
    }

    /// `column LIKE pattern`: `%` stands for any characters, `_` for one, `\` before one of them for itself.
    #[must_use]
    pub fn like(self, pattern: impl Into<String>) -> Predicate {
        Predicate::Like { column: self, pattern: pattern.into().into(), escape: Some('\\') }
    }

    /// `column IS NULL`
    #[must_use]
    pub fn is_null(self) -> Predicate {
        Predicate::IsNull(self)
    }

    /// `column IS NOT NULL`
    #[must_use]
    pub fn is_not_null(self) -> Predicate {
        Predicate::Not(Box::new(Predicate::IsNull(self)))
    }

    /// The value of a boolean column.
    #[must_use]
    pub fn is_set(self) -> Predicate {
        self.eq(true)
    }
}

/// A condition on rows.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Predicate {
    /// `column op value`
    Compare {
        /// The column.
        column: ColumnName,
        /// The operator.
        op: Comparison,
        /// The constant.
        value: Literal,
    },
    /// `column IN (values)`
    In {
        /// The column.
        column: ColumnName,
        /// The constants.
        values: Vec<Literal>,
    },
    /// `column LIKE pattern`
    Like {
        /// The column, of a text type.
        column: ColumnName,
        /// The pattern.
        pattern: Literal,
        /// The character that takes the meaning from the next one.
        escape: Option<char>,
    },
    /// `column IS NULL`
    IsNull(ColumnName),
    /// Whether the condition is true, false or unknown (NULL): itself never unknown.
    Is(Box<Predicate>, Option<bool>),
    /// All are true; true if there are none.
    And(Vec<Predicate>),
    /// One is true; false if there are none.
    Or(Vec<Predicate>),
    /// It is false.
    Not(Box<Predicate>),
    /// The same for every row; `None` is NULL.
    Constant(Option<bool>),
}

impl Predicate {
    /// Parses a condition as SQL has it behind WHERE: comparisons of columns with constants, `and`, `or`, `not`, `in`,
    /// `between`, `like`, `is [not] null`, `is [not] true`, parentheses. Whether columns and types fit is found out when
    /// a scan begins.
    ///
    /// # Errors
    /// `Usage`, naming the position (in characters, from 1).
    pub fn parse(text: &str) -> Result<Self> {
        parse::parse(text)
    }

    /// This one and `other`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match self {
            Self::And(mut all) => {
                all.push(other);
                Self::And(all)
            }
            first => Self::And(vec![first, other]),
        }
    }

    /// This one or `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match self {
            Self::Or(mut any) => {
                any.push(other);
                Self::Or(any)
            }
            first => Self::Or(vec![first, other]),
        }
    }

    /// Where this one is false; unknown stays unknown.
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "and, or, not belong together; `!` works too")]
    pub fn not(self) -> Self {
        Self::Not(Box::new(self))
    }
}

impl std::ops::Not for Predicate {
    type Output = Self;

    fn not(self) -> Self {
        Self::Not(Box::new(self))
    }
}

impl FromStr for Predicate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl ScanBuilder {
    /// Only the rows for which `predicate` is true; of several filters all must be. Its columns need not be among those
    /// that the scan yields.
    ///
    /// The scan's start then says what does not fit: `NotFound` for columns that are not there, `Usage` for constants that
    /// are no values of the column's type (naming column, type and position), `Unsupported` for types that are not compared.
    #[must_use]
    pub fn filter(mut self, predicate: Predicate) -> Self {
        self.filter = Some(match self.filter.take() {
            Some(before) => before.and(predicate),
            None => predicate,
        });
        self
    }

    /// The filter, checked against the table.
    pub(super) fn bound_filter(&self) -> Result<Option<PageFilter>> {
        bound(self.filter.as_ref(), &self.context)
    }
}

/// A filter of one scan of the table; each has its own.
pub(super) fn bound(filter: Option<&Predicate>, context: &Arc<TableContext>) -> Result<Option<PageFilter>> {
    filter.map(|predicate| bind::bind(predicate, context)).transpose()
}
