//! Exact sums of `numeric` values in their on-disk form: base-10000 digits (PostgreSQL's `utils/adt/numeric.c`).

use crate::{Error, ErrorKind, Result};

/// A running sum of numeric values: one signed counter for each base-10000 position, so that adding needs no carries.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumericSum {
    /// `digits[i]` counts units of 10000^(`lowest` + i).
    digits: Vec<i64>,
    lowest: i32,
    scale: u16,
    added: u32,
    nan: bool,
    positive_infinity: bool,
    negative_infinity: bool,
}

/// After so many additions a counter could overflow an i64; carries are propagated long before.
const CARRY_EVERY: u32 = 1 << 30;

impl NumericSum {
    /// Adds NaN, or an infinity.
    pub(super) fn add_special(&mut self, nan: bool, negative: bool) {
        self.nan |= nan;
        self.negative_infinity |= !nan && negative;
        self.positive_infinity |= !nan && !negative;
    }

    /// Adds base-10000 digits, the lowest first, which counts units of 10000^`lowest`. Each is below 10,000 and has the
    /// number's sign.
    pub(super) fn add_digits(&mut self, lowest: i32, digits: &[i64], scale: u16) {
        self.scale = self.scale.max(scale);
        if digits.is_empty() {
            return;
        }
        self.make_room(lowest, lowest + digits.len() as i32 - 1);
        let start = (lowest - self.lowest) as usize;
        for (sum, digit) in self.digits[start..].iter_mut().zip(digits) {
            *sum += digit;
        }
        self.added += 1;
        if self.added == CARRY_EVERY {
            self.carry();
        }
    }

    /// Adds one value given by its varlena payload.
    pub(crate) fn add(&mut self, payload: &[u8]) -> Result<()> {
        let bad = || Error::new(ErrorKind::Value, "numeric value is damaged");
        let word = |at: usize| payload.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]])).ok_or_else(bad);
        let header = word(0)?;
        let (negative, scale, weight, digits) = match header & 0xC000 {
            0xC000 => {
                match header & 0xF000 {
                    0xC000 => self.nan = true,
                    0xD000 => self.positive_infinity = true,
                    0xF000 => self.negative_infinity = true,
                    _ => return Err(bad()),
                }
                return Ok(());
            }
            0x8000 => {
                let magnitude = i32::from(header & 0x3F);
                let weight = if header & 0x40 != 0 { magnitude - 64 } else { magnitude };
                (header & 0x2000 != 0, (header & 0x1F80) >> 7, weight, &payload[2..])
            }
            sign => (sign == 0x4000, header & 0x3FFF, i32::from(word(2)? as i16), payload.get(4..).ok_or_else(bad)?),
        };
        if !digits.len().is_multiple_of(2) {
            return Err(bad());
        }
        self.scale = self.scale.max(scale);
        let count = (digits.len() / 2) as i32;
        if count == 0 {
            return Ok(());
        }
        self.make_room(weight - count + 1, weight);
        for (i, pair) in digits.chunks_exact(2).enumerate() {
            let digit = i64::from(u16::from_le_bytes([pair[0], pair[1]]));
            if digit > 9999 {
                return Err(bad());
            }
            let at = (weight - i as i32 - self.lowest) as usize;
            self.digits[at] += if negative { -digit } else { digit };
        }
        self.added += 1;
        if self.added == CARRY_EVERY {
            self.carry();
        }
        Ok(())
    }

    /// Adds another sum.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.scale = self.scale.max(other.scale);
        self.nan |= other.nan;
        self.positive_infinity |= other.positive_infinity;
        self.negative_infinity |= other.negative_infinity;
        if other.digits.is_empty() {
            return;
        }
        // Both with small digits, so that nothing overflows.
        let mut other = other.clone();
        other.carry();
        self.carry();
        self.make_room(other.lowest, other.lowest + other.digits.len() as i32 - 1);
        for (i, digit) in other.digits.iter().enumerate() {
            self.digits[(other.lowest - self.lowest) as usize + i] += digit;
        }
        self.added += 1;
    }

    fn make_room(&mut self, low: i32, high: i32) {
        if self.digits.is_empty() {
            self.lowest = low;
        }
        if low < self.lowest {
            let more = (self.lowest - low) as usize;
            self.digits.splice(0..0, std::iter::repeat_n(0, more));
            self.lowest = low;
        }
        let needed = (high - self.lowest + 1) as usize;
        if needed > self.digits.len() {
            self.digits.resize(needed, 0);
        }
    }

    /// Brings all digits but the highest into 0..10000; the highest keeps the sign.
    fn carry(&mut self) {
        self.added = 0;
        let mut i = 0;
        while i < self.digits.len() {
            let carry = self.digits[i].div_euclid(10_000);
            if i + 1 == self.digits.len() {
                if !(-10_000..10_000).contains(&self.digits[i]) {
                    self.digits.push(0);
                } else {
                    break;
                }
            }
            self.digits[i] -= carry * 10_000;
            self.digits[i + 1] += carry;
            i += 1;
        }
    }

    /// The sum as `numeric_out` prints it, with the largest scale of the values added.
    pub(crate) fn to_text(&self) -> String {
        if self.nan || (self.positive_infinity && self.negative_infinity) {
            return "NaN".into();
        }
        if self.positive_infinity {
            return "Infinity".into();
        }
        if self.negative_infinity {
            return "-Infinity".into();
        }
        let mut sum = self.clone();
        sum.carry();
        let negative = sum.digits.last().is_some_and(|&d| d < 0);
        if negative {
            sum.digits.iter_mut().for_each(|d| *d = -*d);
            sum.carry();
        }
        let digit = |weight: i32| {
            usize::try_from(weight - sum.lowest).ok().and_then(|i| sum.digits.get(i)).copied().unwrap_or(0)
        };
        let highest = (sum.lowest + sum.digits.len() as i32 - 1).max(0);
        let mut whole: String = (0..=highest).rev().map(|w| format!("{:04}", digit(w))).collect();
        whole = whole.trim_start_matches('0').to_owned();
        if whole.is_empty() {
            whole.push('0');
        }
        if self.scale > 0 {
            let groups = i32::from(self.scale).div_euclid(4) + 1;
            let fraction: String = (1..=groups).map(|w| format!("{:04}", digit(-w))).collect();
            whole.push('.');
            whole.push_str(&fraction[..usize::from(self.scale)]);
        }
        let zero = whole.bytes().all(|b| b == b'0' || b == b'.');
        if negative && !zero { format!("-{whole}") } else { whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The short on-disk form of `digits` (base 10000, most significant first).
    fn short(negative: bool, scale: u16, weight: i32, digits: &[u16]) -> Vec<u8> {
        let weight_bits = (weight & 0x3F) as u16 | if weight < 0 { 0x40 } else { 0 };
        let header = 0x8000 | if negative { 0x2000 } else { 0 } | scale << 7 | weight_bits;
        std::iter::once(header).chain(digits.iter().copied()).flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn sums_keep_scale_and_sign() {
        let mut sum = NumericSum::default();
        sum.add(&short(false, 2, 0, &[12, 3400])).unwrap(); // 12.34
        sum.add(&short(false, 4, -1, &[5])).unwrap(); // 0.0005
        assert_eq!(sum.to_text(), "12.3405");
        sum.add(&short(true, 0, 1, &[1, 0])).unwrap(); // -10000
        assert_eq!(sum.to_text(), "-9987.6595");
        sum.add(&short(false, 4, 0, &[9987, 6595])).unwrap();
        assert_eq!(sum.to_text(), "0.0000");
    }

    #[test]
    fn carries_go_up_and_borrow_down() {
        let mut sum = NumericSum::default();
        for _ in 0..3 {
            sum.add(&short(false, 0, 0, &[9999])).unwrap();
        }
        assert_eq!(sum.to_text(), "29997");
        sum.add(&short(true, 0, 2, &[1])).unwrap(); // -1e8
        assert_eq!(sum.to_text(), "-99970003");
    }

    #[test]
    fn sums_of_parts_are_the_sum() {
        let values = [
            short(false, 2, 0, &[12, 3400]),
            short(true, 0, 3, &[9999, 1, 2, 3]),
            short(false, 7, -2, &[5000]),
            short(false, 0, 0, &[9999]),
            short(true, 4, 0, &[9999, 9999]),
        ];
        let sum_of = |values: &[Vec<u8>]| {
            let mut sum = NumericSum::default();
            values.iter().for_each(|value| sum.add(value).unwrap());
            sum
        };
        for cut in 0..=values.len() {
            let (left, right) = values.split_at(cut);
            let mut sum = sum_of(left);
            sum.merge(&sum_of(right));
            assert_eq!(sum.to_text(), sum_of(&values).to_text(), "cut at {cut}");
        }
        let mut sum = NumericSum::default();
        sum.merge(&sum_of(&[0xC000u16.to_le_bytes().to_vec()]));
        assert_eq!(sum.to_text(), "NaN");
    }

    #[test]
    fn special_values_win() {
        let mut sum = NumericSum::default();
        sum.add(&0xD000u16.to_le_bytes()).unwrap();
        assert_eq!(sum.to_text(), "Infinity");
        sum.add(&0xF000u16.to_le_bytes()).unwrap();
        assert_eq!(sum.to_text(), "NaN");
    }

    #[test]
    fn damage_is_an_error() {
        let mut sum = NumericSum::default();
        assert!(sum.add(&[]).is_err());
        assert!(sum.add(&[0x00]).is_err());
        assert!(sum.add(&[0x00, 0x00]).is_err());
        assert!(sum.add(&short(false, 0, 0, &[10_000])).is_err());
        assert!(sum.add(&[0x00, 0x80, 0x01]).is_err());
    }
}
