//! Numbers as they are written, and how they compare with what is stored: exactly, without rounding.

use super::Comparison;
use crate::types::Numeric;
use std::cmp::Ordering;

/// `NUMERIC_WEIGHT_MAX` and `NUMERIC_DSCALE_MAX` allow no number beyond this power of ten, either way.
const EXPONENT_MAX: i64 = 132_000;

/// A number as it is written: `digits` times ten to the power of `exponent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    negative: bool,
    /// Decimal digits without leading zeros; none for zero.
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// Parses sign, digits with a point, and an exponent; blanks may surround them. `None`: it is no number, or one that
    /// `numeric` cannot hold.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (mantissa, exponent) = match text.find(['e', 'E']) {
            Some(at) => (&text[..at], text[at + 1..].parse::<i64>().ok().filter(|e| e.abs() <= EXPONENT_MAX)?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = whole.bytes().chain(fraction.bytes());
        if whole.len() + fraction.len() == 0 || !all.clone().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let mut digits: Vec<u8> = all.map(|b| b - b'0').skip_while(|&d| d == 0).collect();
        let mut exponent = exponent - fraction.len() as i64;
        while digits.last() == Some(&0) {
            digits.pop();
            exponent += 1;
        }
        if digits.is_empty() {
            return Some(Self { negative: false, digits, exponent: 0 });
        }
        let top = exponent + digits.len() as i64;
        (top <= EXPONENT_MAX && exponent >= -EXPONENT_MAX).then_some(Self { negative, digits, exponent })
    }

    /// The largest integer that is not above it, and whether that is the number itself. What is far beyond all 64-bit
    /// integers is a value beyond them.
    pub(super) fn floor(&self) -> (i128, bool) {
        const FAR: i128 = 1 << 100;
        let Some(&last) = self.digits.last() else { return (0, true) };
        debug_assert_ne!(last, 0, "no trailing zeros");
        if self.exponent + self.digits.len() as i64 > 25 {
            return (if self.negative { -FAR } else { FAR }, true);
        }
        let places = usize::try_from(self.exponent + self.digits.len() as i64).unwrap_or(0);
        let mut whole = 0i128;
        for place in 0..places {
            whole = whole * 10 + i128::from(self.digits.get(place).copied().unwrap_or(0));
        }
        let exact = self.exponent >= 0;
        match (self.negative, exact) {
            (false, _) => (whole, exact),
            (true, true) => (-whole, true),
            (true, false) => (-whole - 1, false),
        }
    }

    /// As `numeric` keeps it: the exponent of the first digit to the base of 10,000, and those digits.
    fn base_10000(&self) -> (i64, Vec<u16>) {
        let top = self.exponent + self.digits.len() as i64;
        let weight = (top - 1).div_euclid(4);
        // Decimal places before the first digit in its group of four.
        let skew = (weight + 1) * 4 - top;
        let mut groups = vec![0u16; (skew as usize + self.digits.len()).div_ceil(4)];
        for (at, &digit) in (skew as usize..).zip(&self.digits) {
            groups[at / 4] += u16::from(digit) * [1000, 100, 10, 1][at % 4];
        }
        (weight, groups)
    }
}

/// A constant of type `numeric`, in the order of all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NumericKey {
    NegativeInfinity,
    Finite { negative: bool, weight: i64, digits: Vec<u16> },
    Infinity,
    NaN,
}

impl From<&Decimal> for NumericKey {
    fn from(decimal: &Decimal) -> Self {
        let (weight, digits) = decimal.base_10000();
        Self::Finite { negative: decimal.negative, weight, digits }
    }
}

impl NumericKey {
    fn class(&self) -> u8 {
        match self {
            Self::NegativeInfinity => 0,
            Self::Finite { .. } => 1,
            Self::Infinity => 2,
            Self::NaN => 3,
        }
    }

    /// How the stored value `payload` (without varlena header) compares with this one; `None` if it is damaged.
    pub(super) fn order_of(&self, payload: &[u8]) -> Option<Ordering> {
        let (class, finite) = match Numeric::parse(payload).ok()? {
            Numeric::NegativeInfinity => (0, None),
            Numeric::Finite { negative, weight, digits, .. } => (1, Some((negative, i64::from(weight), digits))),
            Numeric::Infinity => (2, None),
            Numeric::NaN => (3, None),
        };
        match (finite, self) {
            (
                Some((negative, weight, digits)),
                Self::Finite { negative: other, weight: other_weight, digits: theirs },
            ) => {
                let digits = digits.as_chunks::<2>().0;
                let zeros = digits.iter().take_while(|d| **d == [0, 0]).count();
                let digits = &digits[zeros..];
                let sign = |empty: bool, negative: bool| {
                    if empty {
                        0
                    } else if negative {
                        -1
                    } else {
                        1
                    }
                };
                let (ours, others) = (sign(digits.is_empty(), negative), sign(theirs.is_empty(), *other));
                if ours != others || ours == 0 {
                    return Some(ours.cmp(&others));
                }
                let size = (weight - zeros as i64).cmp(other_weight).then_with(|| compare_digits(digits, theirs));
                Some(if negative { size.reverse() } else { size })
            }
            _ => Some(class.cmp(&self.class())),
        }
    }
}

fn compare_digits(ours: &[[u8; 2]], theirs: &[u16]) -> Ordering {
    for at in 0..ours.len().max(theirs.len()) {
        let our = ours.get(at).map_or(0, |d| u16::from_le_bytes(*d));
        let order = our.cmp(&theirs.get(at).copied().unwrap_or(0));
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

impl Comparison {
    /// Whether values that compare so with the constant fulfil it.
    #[inline]
    pub(super) fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Eq => order.is_eq(),
            Self::Ne => order.is_ne(),
            Self::Lt => order.is_lt(),
            Self::Le => order.is_le(),
            Self::Gt => order.is_gt(),
            Self::Ge => order.is_ge(),
        }
    }
}

/// A place in the order of floats (PostgreSQL's: both zeros are equal, NaN equals itself and is above all) as an integer.
#[inline(always)]
pub(super) fn float_key(value: f64) -> i64 {
    if value.is_nan() {
        return i64::MAX;
    }
    // Adding zero makes the negative zero a positive one.
    let bits = (value + 0.0).to_bits().cast_signed();
    bits ^ (bits >> 63 & i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_floored() {
        for (text, floor, exact) in [
            ("0", 0, true),
            ("-0.0", 0, true),
            ("12.50", 12, false),
            ("-12.5", -13, false),
            ("1e3", 1000, true),
            ("-1e-3", -1, false),
            ("123456789012345678901", 123_456_789_012_345_678_901, true),
            (" .5 ", 0, false),
            ("5.", 5, true),
            ("+7", 7, true),
        ] {
            assert_eq!(Decimal::parse(text).expect(text).floor(), (floor, exact), "{text}");
        }
        assert!(Decimal::parse("1e130000").expect("a number").floor().0 > i128::from(i64::MAX));
        for text in ["", ".", "-", "1e", "1e999999", "1x", "0x10", "1 2", "NaN", "--1"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    /// The short on-disk form.
    fn stored(negative: bool, weight: i32, digits: &[u16]) -> Vec<u8> {
        let weight_bits = (weight & 0x3F) as u16 | if weight < 0 { 0x40 } else { 0 };
        let header = 0x8000 | if negative { 0x2000 } else { 0 } | weight_bits;
        std::iter::once(header).chain(digits.iter().copied()).flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn numerics_compare() {
        let key = |text: &str| NumericKey::from(&Decimal::parse(text).expect(text));
        for (bytes, text, order) in [
            (stored(false, 0, &[12, 3400]), "12.34", Ordering::Equal),
            (stored(false, 0, &[12, 3400]), "12.3400000", Ordering::Equal),
            (stored(false, 0, &[12, 3401]), "12.34", Ordering::Greater),
            (stored(true, 0, &[12, 3401]), "-12.34", Ordering::Less),
            (stored(false, -1, &[5]), "0.0005", Ordering::Equal),
            (stored(false, 1, &[1]), "10000", Ordering::Equal),
            (stored(false, 1, &[1]), "9999", Ordering::Greater),
            (stored(false, 0, &[]), "0", Ordering::Equal),
            (stored(false, 0, &[]), "-1e-20", Ordering::Greater),
            (stored(false, 1, &[0, 7]), "7", Ordering::Equal),
            (0xC000u16.to_le_bytes().to_vec(), "1e100", Ordering::Greater),
            (0xF000u16.to_le_bytes().to_vec(), "-1e100", Ordering::Less),
        ] {
            assert_eq!(key(text).order_of(&bytes), Some(order), "{bytes:?} {text}");
        }
        assert_eq!(NumericKey::NaN.order_of(&0xC000u16.to_le_bytes()), Some(Ordering::Equal));
        assert_eq!(NumericKey::NaN.order_of(&[0]), None);
    }

    #[test]
    fn floats_are_in_order() {
        let order = [f64::NEG_INFINITY, -1.5, -f64::MIN_POSITIVE, 0.0, 5e-324, 1.0, f64::MAX, f64::INFINITY, f64::NAN];
        for pair in order.windows(2) {
            assert!(float_key(pair[0]) < float_key(pair[1]), "{pair:?}");
        }
        assert_eq!(float_key(-0.0), float_key(0.0));
        assert_eq!(float_key(-f64::NAN), float_key(f64::NAN));
    }
}
