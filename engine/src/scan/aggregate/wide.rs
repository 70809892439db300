//! `numeric` values in expressions: exact, 128 bits while that is enough, any number of digits beyond.

use super::numeric_sum::NumericSum;
use crate::{Error, ErrorKind, Result, types::Numeric};
use std::ops::Neg;

const BASE: i64 = 10_000;

/// A value of type numeric.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decimal {
    NaN,
    Infinity { negative: bool },
    Finite { number: Number, scale: u16 },
}

/// A number as units of 10000 to the power of `-groups`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Number {
    Small {
        units: i128,
        groups: u32,
    },
    /// Signed digits to the base of 10,000, the lowest first.
    Wide {
        digits: Vec<i64>,
        groups: u32,
    },
}

impl Number {
    fn groups(&self) -> u32 {
        match self {
            Self::Small { groups, .. } | Self::Wide { groups, .. } => *groups,
        }
    }

    /// Its digits, the lowest first; all have its sign.
    pub(super) fn digits(&self) -> Vec<i64> {
        match self {
            Self::Wide { digits, .. } => digits.clone(),
            Self::Small { units, .. } => {
                let (mut rest, mut digits) = (*units, Vec::with_capacity(10));
                while rest != 0 {
                    digits.push((rest % i128::from(BASE)) as i64);
                    rest /= i128::from(BASE);
                }
                digits
            }
        }
    }

    /// The same number in more groups.
    fn shifted(&self, groups: u32) -> Self {
        let more = groups.saturating_sub(self.groups());
        if more == 0 {
            return self.clone();
        }
        if let Self::Small { units, .. } = self
            && let Some(units) = 10_000i128.checked_pow(more).and_then(|factor| units.checked_mul(factor))
        {
            return Self::Small { units, groups };
        }
        let mut digits = vec![0; more as usize];
        digits.extend(self.digits());
        Self::Wide { digits, groups }
    }

    fn plus(&self, other: &Self) -> Self {
        let groups = self.groups().max(other.groups());
        let (a, b) = (self.shifted(groups), other.shifted(groups));
        if let (Self::Small { units: a, .. }, Self::Small { units: b, .. }) = (&a, &b)
            && let Some(units) = a.checked_add(*b)
        {
            return Self::Small { units, groups };
        }
        let (mut sum, other) = (a.digits(), b.digits());
        sum.resize(sum.len().max(other.len()), 0);
        sum.iter_mut().zip(&other).for_each(|(a, b)| *a += b);
        Self::Wide { digits: carried(sum), groups }
    }

    fn times(&self, other: &Self) -> Self {
        let groups = self.groups() + other.groups();
        if let (Self::Small { units: a, .. }, Self::Small { units: b, .. }) = (self, other)
            && let Some(units) = a.checked_mul(*b)
        {
            return Self::Small { units, groups };
        }
        let (a, b) = (self.digits(), other.digits());
        // A numeric has fewer than 2^16 digits and each product is below 10^8: no sum overflows.
        let mut product = vec![0; a.len() + b.len()];
        for (i, a) in a.iter().enumerate() {
            for (j, b) in b.iter().enumerate() {
                product[i + j] += a * b;
            }
        }
        Self::Wide { digits: carried(product), groups }
    }

    fn is_zero(&self) -> bool {
        match self {
            Self::Small { units, .. } => *units == 0,
            Self::Wide { digits, .. } => digits.iter().all(|&d| d == 0),
        }
    }

    fn is_negative(&self) -> bool {
        match self {
            Self::Small { units, .. } => *units < 0,
            Self::Wide { digits, .. } => digits.iter().rev().find(|&&d| d != 0).is_some_and(|&d| d < 0),
        }
    }
}

/// Digits below 10,000, all of the number's sign.
fn carried(mut digits: Vec<i64>) -> Vec<i64> {
    let negative = {
        let mut carry = 0;
        for digit in &mut digits {
            let whole = *digit + carry;
            carry = whole.div_euclid(BASE);
            *digit = whole.rem_euclid(BASE);
        }
        let negative = carry < 0;
        while carry != 0 && carry != -1 {
            digits.push(carry.rem_euclid(BASE));
            carry = carry.div_euclid(BASE);
        }
        negative
    };
    if negative {
        // What is left is the complement: as much below the next power of the base.
        let mut carry = 1;
        for digit in &mut digits {
            let whole = BASE - 1 - *digit + carry;
            carry = whole / BASE;
            *digit = -(whole % BASE);
        }
        if carry != 0 {
            digits.push(-carry);
        }
    }
    digits
}

impl Decimal {
    pub(super) fn integer(value: i64) -> Self {
        Self::Finite { number: Number::Small { units: value.into(), groups: 0 }, scale: 0 }
    }

    /// A stored value, without varlena header.
    pub(super) fn stored(payload: &[u8]) -> Result<Self> {
        let damaged = || Error::new(ErrorKind::Value, "numeric value is damaged");
        let (negative, weight, dscale, digits) = match Numeric::parse(payload).map_err(|_| damaged())? {
            Numeric::NaN => return Ok(Self::NaN),
            Numeric::Infinity => return Ok(Self::Infinity { negative: false }),
            Numeric::NegativeInfinity => return Ok(Self::Infinity { negative: true }),
            Numeric::Finite { negative, weight, dscale, digits } => (negative, i32::from(weight), dscale, digits),
        };
        let stored = digits.as_chunks::<2>().0.iter().map(|d| i64::from(u16::from_le_bytes(*d)));
        if stored.clone().any(|digit| digit >= BASE) {
            return Err(damaged());
        }
        let count = stored.len() as i32;
        // Groups behind the point, and zeros that are not stored before it.
        let groups = (count - 1 - weight).max(0);
        let zeros = (weight + 1 - count).max(0);
        let sign = if negative { -1 } else { 1 };
        let number = if count + zeros <= 9 {
            let units = stored.fold(0i128, |units, digit| units * i128::from(BASE) + i128::from(digit));
            let units = sign * units * i128::from(BASE).pow(zeros.unsigned_abs());
            Number::Small { units, groups: groups.unsigned_abs() }
        } else {
            let mut all = vec![0; zeros.unsigned_abs() as usize];
            all.extend(stored.rev().map(|digit| digit * sign as i64));
            Number::Wide { digits: all, groups: groups.unsigned_abs() }
        };
        Ok(Self::Finite { number, scale: dscale })
    }

    /// A constant: digits with an optional point.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let plain = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.len() + fraction.len() == 0 || whole.len() + fraction.len() > 1000 || !plain(whole) || !plain(fraction)
        {
            return None;
        }
        let groups = fraction.len().div_ceil(4);
        let all = format!("{whole}{fraction}{}", "0".repeat(groups * 4 - fraction.len()));
        let digits = all.as_bytes().rchunks(4);
        let digits = digits.map(|d| d.iter().fold(0, |n, b| n * 10 + i64::from(b - b'0'))).collect::<Vec<_>>();
        let wide = Number::Wide { digits, groups: groups as u32 };
        // As small as it can be: a sum with zero.
        let scale = fraction.len() as u16;
        let small = all.parse::<i128>().ok().map(|units| Number::Small { units, groups: groups as u32 });
        Some(Self::Finite { number: small.unwrap_or(wide), scale })
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Finite { number: a, scale: s }, Self::Finite { number: b, scale: t }) => {
                Self::Finite { number: a.plus(b), scale: *s.max(t) }
            }
            (Self::NaN, _) | (_, Self::NaN) => Self::NaN,
            (Self::Infinity { negative: a }, Self::Infinity { negative: b }) if a != b => Self::NaN,
            (infinity @ Self::Infinity { .. }, _) | (_, infinity) => infinity.clone(),
        }
    }

    pub(super) fn times(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Finite { number: a, scale: s }, Self::Finite { number: b, scale: t }) => {
                Self::Finite { number: a.times(b), scale: s.saturating_add(*t) }
            }
            (Self::NaN, _) | (_, Self::NaN) => Self::NaN,
            (a, b) => match (a.sign(), b.sign()) {
                (0, _) | (_, 0) => Self::NaN,
                (a, b) => Self::Infinity { negative: a != b },
            },
        }
    }

    fn sign(&self) -> i32 {
        match self {
            Self::NaN => 0,
            Self::Infinity { negative } => {
                if *negative {
                    -1
                } else {
                    1
                }
            }
            Self::Finite { number, .. } if number.is_zero() => 0,
            Self::Finite { number, .. } => {
                if number.is_negative() {
                    -1
                } else {
                    1
                }
            }
        }
    }

    /// As double precision: by its digits, so that it is rounded once.
    pub(super) fn to_f64(&self) -> f64 {
        match self {
            Self::NaN => f64::NAN,
            Self::Infinity { negative: true } => f64::NEG_INFINITY,
            Self::Infinity { negative: false } => f64::INFINITY,
            Self::Finite { .. } => {
                let mut sum = NumericSum::default();
                sum.add_decimal(self);
                sum.to_text().parse().unwrap_or(f64::NAN)
            }
        }
    }
}

impl Neg for Decimal {
    type Output = Self;

    fn neg(self) -> Self {
        match self {
            Self::NaN => Self::NaN,
            Self::Infinity { negative } => Self::Infinity { negative: !negative },
            Self::Finite { number: Number::Small { units, groups }, scale } if units != i128::MIN => {
                Self::Finite { number: Number::Small { units: -units, groups }, scale }
            }
            Self::Finite { number, scale } => {
                let digits = number.digits().into_iter().map(|d| -d).collect();
                Self::Finite { number: Number::Wide { digits, groups: number.groups() }, scale }
            }
        }
    }
}

impl NumericSum {
    /// Adds one value.
    pub(super) fn add_decimal(&mut self, value: &Decimal) {
        match value {
            Decimal::NaN => self.add_special(true, false),
            Decimal::Infinity { negative } => self.add_special(false, *negative),
            Decimal::Finite { number, scale } => {
                let lowest = -(number.groups().cast_signed());
                match number {
                    Number::Small { .. } => self.add_digits(lowest, &number.digits(), *scale),
                    Number::Wide { digits, .. } => self.add_digits(lowest, digits, *scale),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(value: &Decimal) -> String {
        let mut sum = NumericSum::default();
        sum.add_decimal(value);
        sum.to_text()
    }

    #[test]
    fn arithmetic_is_exact_and_keeps_the_scale() {
        let number = |s: &str| match s.strip_prefix('-') {
            Some(s) => -Decimal::parse(s).expect(s),
            None => Decimal::parse(s).expect(s),
        };
        for (a, b, sum, product) in [
            ("12.50", "0.5", "13.00", "6.250"),
            ("-12.50", "0.5", "-12.00", "-6.250"),
            ("1", "-1", "0", "-1"),
            ("0.0001", "-0.00011", "-0.00001", "-0.000000011"),
            (
                "99999999999999999999999999999999999999",
                "1",
                "100000000000000000000000000000000000000",
                "99999999999999999999999999999999999999",
            ),
            (
                "-99999999999999999999.5",
                "99999999999999999999.5",
                "0.0",
                "-9999999999999999999900000000000000000000.25",
            ),
        ] {
            let (a, b) = (number(a), number(b));
            assert_eq!(text(&a.plus(&b)), sum);
            assert_eq!(text(&a.times(&b)), product);
            assert_eq!((-a.plus(&b).plus(&-b.clone())).to_f64(), -a.to_f64());
        }
        assert_eq!(number("12.5").to_f64(), 12.5);
        let infinity = Decimal::Infinity { negative: false };
        assert_eq!(infinity.times(&Decimal::integer(0)), Decimal::NaN);
        assert_eq!(infinity.times(&Decimal::integer(-2)), Decimal::Infinity { negative: true });
        assert_eq!(infinity.plus(&-infinity.clone()), Decimal::NaN);
    }

    proptest! {
        #[test]
        fn wide_numbers_are_as_small_ones(a in -1_000_000_000_000i64..1_000_000_000_000, b in -1_000_000_000i64..1_000_000_000) {
            let wide = |n: i64| Number::Wide { digits: Number::Small { units: n.into(), groups: 1 }.digits(), groups: 1 };
            let small = |n: i64| Number::Small { units: n.into(), groups: 1 };
            let shown = |number: Number| text(&Decimal::Finite { number, scale: 8 });
            prop_assert_eq!(shown(wide(a).plus(&wide(b))), shown(small(a).plus(&small(b))));
            prop_assert_eq!(shown(wide(a).times(&wide(b))), shown(small(a).times(&small(b))));
        }
    }
}
