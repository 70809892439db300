//! numeric (base-10000 digits, see `types::numeric`) to the scaled integers of Arrow's decimals: exactly, or not at all.

use arrow_buffer::i256;

/// Why a number is no decimal of the wanted precision and scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// It has more digits behind the point than the scale.
    Rounds,
    /// It has more digits than the precision.
    Overflows,
    /// A base-10000 digit is above 9999.
    Damaged,
}

/// The integer types of decimals.
pub(super) trait Wide: Copy + Default + PartialOrd {
    fn of(n: u64) -> Self;
    /// `self * factor + plus`.
    fn step(self, factor: u64, plus: u64) -> Option<Self>;
    fn negative(self) -> Self;
}

impl Wide for i128 {
    fn of(n: u64) -> Self {
        n.into()
    }

    fn step(self, factor: u64, plus: u64) -> Option<Self> {
        self.checked_mul(factor.into())?.checked_add(plus.into())
    }

    fn negative(self) -> Self {
        -self
    }
}

impl Wide for i256 {
    fn of(n: u64) -> Self {
        Self::from_i128(n.into())
    }

    fn step(self, factor: u64, plus: u64) -> Option<Self> {
        self.checked_mul(Self::of(factor))?.checked_add(Self::of(plus))
    }

    fn negative(self) -> Self {
        self.wrapping_neg()
    }
}

/// 10 to the power of `precision`: the first number with too many digits.
pub(super) fn bound<T: Wide>(precision: u8) -> T {
    // 10^76 fits 256 bits and 10^38 fits 128; the schema asks for no more.
    (0..precision).fold(T::of(1), |power, _| power.step(10, 0).unwrap_or(power))
}

/// `digits` (pairs of bytes, the first of weight 10000^`weight`) times 10^`scale`, below `bound`.
pub(super) fn scaled<T: Wide>(negative: bool, weight: i16, digits: &[u8], scale: i8, bound: T) -> Result<T, Misfit> {
    let (mut groups, _) = digits.as_chunks::<2>();
    while let [front @ .., [0, 0]] = groups {
        groups = front;
    }
    let Some((last, front)) = groups.split_last() else { return Ok(T::default()) };
    // Four groups fit 64 bits.
    let (near, far) = front.split_at(front.len().min(4));
    let mut small = 0;
    for group in near {
        small = small * 10_000 + digit(*group)?;
    }
    let mut sum = T::of(small);
    for group in far {
        sum = sum.step(10_000, digit(*group)?).ok_or(Misfit::Overflows)?;
    }
    let last = digit(*last)?;
    // The decimal exponent of the last group once all is multiplied by 10^scale.
    let mut exponent = 4 * (i32::from(weight) - front.len() as i32) + i32::from(scale);
    if exponent < 0 {
        let Ok(cut @ 1..=3) = u32::try_from(-exponent) else { return Err(Misfit::Rounds) };
        let cut = 10u64.pow(cut);
        if !last.is_multiple_of(cut) {
            return Err(Misfit::Rounds);
        }
        sum = sum.step(10_000 / cut, last / cut).ok_or(Misfit::Overflows)?;
    } else {
        sum = sum.step(10_000, last).ok_or(Misfit::Overflows)?;
        // It is not zero, so a huge exponent overflows soon.
        while exponent > 0 {
            let step = exponent.min(18);
            sum = sum.step(10u64.pow(step as u32), 0).ok_or(Misfit::Overflows)?;
            exponent -= step;
        }
    }
    if sum >= bound {
        return Err(Misfit::Overflows);
    }
    Ok(if negative { sum.negative() } else { sum })
}

fn digit(group: [u8; 2]) -> Result<u64, Misfit> {
    match u16::from_le_bytes(group) {
        digit @ 0..=9999 => Ok(digit.into()),
        _ => Err(Misfit::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(groups: &[u16]) -> Vec<u8> {
        groups.iter().flat_map(|g| g.to_le_bytes()).collect()
    }

    fn small(weight: i16, groups: &[u16], scale: i8, precision: u8) -> Result<i128, Misfit> {
        let narrow = scaled(false, weight, &bytes(groups), scale, bound::<i128>(precision));
        let wide = scaled(true, weight, &bytes(groups), scale, bound::<i256>(precision));
        assert_eq!(narrow.map(|n| i256::from_i128(-n)), wide);
        narrow
    }

    #[test]
    fn by_hand() {
        assert_eq!(small(0, &[], 4, 10), Ok(0));
        assert_eq!(small(-1, &[5000], 2, 10), Ok(50));
        assert_eq!(small(-1, &[5000], 0, 10), Err(Misfit::Rounds));
        assert_eq!(small(-1, &[5000, 0, 0], 1, 10), Ok(5));
        // 0.000067
        assert_eq!(small(-2, &[6700], 6, 10), Ok(67));
        assert_eq!(small(-2, &[6700], 5, 10), Err(Misfit::Rounds));
        // 5000000000.000001
        assert_eq!(small(2, &[50, 0, 0, 0, 100], 6, 20), Ok(5_000_000_000_000_001));
        // 12300 as numeric(5,-2)
        assert_eq!(small(1, &[1, 2300], -2, 3), Ok(123));
        assert_eq!(small(1, &[1, 2300], -2, 2), Err(Misfit::Overflows));
        assert_eq!(small(1, &[1, 2300], -3, 5), Err(Misfit::Rounds));
        assert_eq!(small(0, &[10_000], 0, 9), Err(Misfit::Damaged));
        assert_eq!(small(i16::MAX, &[1], 0, 38), Err(Misfit::Overflows));
        assert_eq!(small(i16::MIN, &[1], 38, 38), Err(Misfit::Rounds));
        // The largest of 38 digits, whose last group would overflow 128 bits if it were not cut first.
        let nines = [99, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999];
        assert_eq!(small(9, &nines, 0, 38), Ok(10i128.pow(38) - 1));
        let shifted = [9, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9000];
        assert_eq!(small(9, &shifted, 1, 38), Ok(10i128.pow(38) - 1));
        assert_eq!(scaled(false, 9, &bytes(&shifted), 1, bound::<i256>(76)), Ok(i256::from_i128(10i128.pow(38) - 1)));
    }

    proptest! {
        #[test]
        fn as_the_decimal_text_says(n in 0i128..10i128.pow(30), scale in 0i8..30, zeros in 0usize..3) {
            // n / 10^scale, as base-10000 groups around the point.
            let text = format!("{n:0>64}");
            let (whole, fraction) = text.split_at(64 - scale as usize);
            let whole = format!("{whole:0>64}");
            let fraction = format!("{fraction:0<32}");
            let all = whole + &fraction;
            let mut groups: Vec<u16> = all.as_bytes().chunks(4)
                .map(|g| std::str::from_utf8(g).unwrap().parse().unwrap()).collect();
            groups.extend(std::iter::repeat_n(0, zeros));
            prop_assert_eq!(small(15, &groups, scale, 38), Ok(n));
            let leading = groups.iter().take_while(|&&g| g == 0).count().min(15);
            prop_assert_eq!(small(15 - leading as i16, &groups[leading..], scale, 38), Ok(n));
        }
    }
}
