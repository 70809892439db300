//! Tests of values that are bytes: texts, `bytea`, names.

use super::{Comparison, like::Pattern};

/// Where characters end, which only `_` of LIKE has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// One byte each.
    Single,
    Utf8,
    /// Others.
    Multibyte,
}

impl Encoding {
    /// By `pg_enc`.
    pub(super) fn of(encoding: i32) -> Self {
        match encoding {
            6 => Self::Utf8,
            // SQL_ASCII, and from LATIN1 to KOI8U; those between and behind have characters of several bytes.
            0 | 8..=34 => Self::Single,
            _ => Self::Multibyte,
        }
    }

    /// What follows the first character; `None` if there is none. A character that is cut off ends with the text.
    pub(super) fn skip_character(self, text: &[u8]) -> Option<&[u8]> {
        let &first = text.first()?;
        let length = match (self, first) {
            (Self::Utf8, 0xc0..0xe0) => 2,
            (Self::Utf8, 0xe0..0xf0) => 3,
            (Self::Utf8, 0xf0..0xf8) => 4,
            _ => 1,
        };
        Some(text.get(length..).unwrap_or(&[]))
    }
}

/// What of the stored bytes counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trim {
    /// All.
    No,
    /// `char(n)`: not the blanks at the end.
    Blanks,
    /// `name`: what is before the first zero.
    Zeros,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BytesTest {
    Compare(Comparison, Vec<u8>),
    /// One of these, sorted; or none of them.
    In(Vec<Vec<u8>>, bool),
    /// Fits; or does not.
    Like(Pattern, bool),
}

impl BytesTest {
    #[inline]
    pub(super) fn holds(&self, trim: Trim, value: &[u8]) -> bool {
        let value = match trim {
            Trim::No => value,
            Trim::Zeros => &value[..value.iter().position(|&b| b == 0).unwrap_or(value.len())],
            Trim::Blanks => match self {
                // LIKE sees the blanks.
                Self::Like(..) => value,
                _ => trimmed(value),
            },
        };
        match self {
            Self::Compare(Comparison::Eq, constant) => value == constant,
            Self::Compare(Comparison::Ne, constant) => value != constant,
            Self::Compare(op, constant) => op.holds(value.cmp(constant)),
            Self::In(constants, negated) => constants.binary_search_by(|c| c.as_slice().cmp(value)).is_ok() != *negated,
            Self::Like(pattern, negated) => pattern.matches(value) != *negated,
        }
    }

    /// What the test says of any value of so many bytes, if that can be said.
    #[inline]
    pub(super) fn by_length(&self, trim: Trim, length: usize) -> Option<bool> {
        match self {
            _ if trim != Trim::No => None,
            Self::Compare(Comparison::Eq, constant) => (constant.len() != length).then_some(false),
            Self::Compare(Comparison::Ne, constant) => (constant.len() != length).then_some(true),
            Self::In(constants, negated) => (!constants.iter().any(|c| c.len() == length)).then_some(*negated),
            _ => None,
        }
    }
}

/// Without the blanks at the end.
pub(super) fn trimmed(value: &[u8]) -> &[u8] {
    &value[..value.iter().rposition(|&b| b != b' ').map_or(0, |last| last + 1)]
}
