//! float4 and float8: the shortest decimal that reads back as the same number, chosen as PostgreSQL 12 and later choose
//! it. That is Ulf Adams' Ryu algorithm ("Ryu: fast float-to-string conversion", PLDI 2018) with one peculiarity:
//! a decimal that lies exactly on the border of the rounding interval is not taken, although reading it would give the
//! same number (ties go to even), so some values have a digit more than Rust's or C++'s shortest form.

use super::digits::{pair, push_padded, push_u64};

/// Bits of the entries of [`POW5`] and, less one, how many [`INV5`] keeps beyond the bits of the power.
const BITS: i32 = 125;

const LIMBS: usize = 27;

/// The leading [`BITS`] bits of 5^i.
static POW5: [u128; 326] = pow5();

/// floor(2^(BITS - 1 + bits(5^i)) / 5^i) + 1.
static INV5: [u128; 292] = inv5();

/// The 128 bits of `limbs` that begin at bit `shift`.
const fn window(limbs: &[u32; LIMBS], shift: i32) -> u128 {
    let mut value = 0_u128;
    let mut bit = 0;
    while bit < 128 {
        let at = shift + bit;
        if at >= 0 && at < 32 * LIMBS as i32 {
            // Whole limbs where possible would be quicker, but this runs in the compiler, once.
            let take = 32 - at % 32;
            value |= ((limbs[(at / 32) as usize] >> (at % 32)) as u128) << bit;
            bit += take;
        } else {
            bit += 1;
        }
    }
    value
}

const fn pow5() -> [u128; 326] {
    let mut table = [0; 326];
    let mut power = [0_u32; LIMBS];
    power[0] = 1;
    let mut i = 0;
    while i < table.len() {
        let shift = pow5_bits(i as i32) - BITS;
        let value = window(&power, if shift > 0 { shift } else { 0 });
        table[i] = if shift >= 0 { value & ((1 << BITS) - 1) } else { value << -shift };
        let mut carry = 0_u64;
        let mut limb = 0;
        while limb < LIMBS {
            let product = power[limb] as u64 * 5 + carry;
            power[limb] = product as u32;
            carry = product >> 32;
            limb += 1;
        }
        i += 1;
    }
    table
}

const fn inv5() -> [u128; 292] {
    /// 2^TOP is divided by 5 again and again; floors of floors are the floor of the whole.
    const TOP: i32 = 32 * LIMBS as i32 - 1;
    let mut table = [0; 292];
    let mut rest = [0_u32; LIMBS];
    rest[LIMBS - 1] = 1 << 31;
    let mut i = 0;
    while i < table.len() {
        let shift = TOP - (BITS - 1 + pow5_bits(i as i32));
        table[i] = window(&rest, shift) + 1;
        let mut remainder = 0_u64;
        let mut limb = LIMBS;
        while limb > 0 {
            limb -= 1;
            let part = (remainder << 32) | rest[limb] as u64;
            rest[limb] = (part / 5) as u32;
            remainder = part % 5;
        }
        i += 1;
    }
    table
}

/// How many bits 5^e has (1 for e = 0).
const fn pow5_bits(e: i32) -> i32 {
    ((e * 1_217_359) >> 19) + 1
}

/// floor(log10(2^e)).
fn log10_pow2(e: i32) -> i32 {
    (e * 78_913) >> 18
}

/// floor(log10(5^e)).
fn log10_pow5(e: i32) -> i32 {
    (e * 732_923) >> 20
}

/// floor(`m` * `factor` / 2^`shift`), 64 <= `shift`.
fn mul_shift(m: u64, factor: u128, shift: i32) -> u64 {
    let low = u128::from(m) * u128::from(factor as u64);
    let high = u128::from(m) * u128::from((factor >> 64) as u64);
    (((low >> 64) + high) >> (shift - 64)) as u64
}

fn multiple_of_pow5(mut value: u64, power: i32) -> bool {
    for _ in 0..power {
        if !value.is_multiple_of(5) {
            return false;
        }
        value /= 5;
    }
    true
}

/// The shortest digits `d` and exponent `e` with d * 10^e inside the rounding interval of m * 2^e2.
/// `narrow_below`: `m` is the smallest of its binade, the next number below is only half as far away.
fn shortest(m: u64, e2: i32, narrow_below: bool) -> (u64, i32) {
    // The number and the borders of its interval, times four, so that they are integers.
    let (mv, mp, mm) = (4 * m, 4 * m + 2, 4 * m - if narrow_below { 1 } else { 2 });
    let e2 = e2 - 2;
    let (mut vr, mut vp, mut vm, e10);
    // All digits of vr that were cut off so far are zeros.
    let mut exact = false;
    if e2 >= 0 {
        let q = log10_pow2(e2) - i32::from(e2 > 3);
        e10 = q;
        let (factor, shift) = (INV5[q as usize], -e2 + q + BITS + pow5_bits(q) - 1);
        (vr, vp, vm) = (mul_shift(mv, factor, shift), mul_shift(mp, factor, shift), mul_shift(mm, factor, shift));
        if q <= 21 {
            if mv.is_multiple_of(5) {
                exact = multiple_of_pow5(mv, q);
            } else if multiple_of_pow5(mp, q) {
                // The upper border itself is not part of the interval.
                vp -= 1;
            }
        }
    } else {
        let q = log10_pow5(-e2) - i32::from(-e2 > 1);
        e10 = q + e2;
        let i = -e2 - q;
        let (factor, shift) = (POW5[i as usize], q - (pow5_bits(i) - BITS));
        (vr, vp, vm) = (mul_shift(mv, factor, shift), mul_shift(mp, factor, shift), mul_shift(mm, factor, shift));
        if q <= 1 {
            exact = true;
            vp -= 1;
        } else if q < 63 {
            exact = mv & ((1 << (q - 1)) - 1) == 0;
        }
    }
    let (mut removed, mut last) = (0, 0);
    while vp / 10 > vm / 10 {
        exact &= last == 0;
        last = vr % 10;
        (vr, vp, vm) = (vr / 10, vp / 10, vm / 10);
        removed += 1;
    }
    if exact && last == 5 && vr.is_multiple_of(2) {
        // Exactly half way: to even.
        last = 4;
    }
    (vr + u64::from(vr == vm || last >= 5), e10 + removed)
}

/// Appends d * 10^e as printf's `%g` would lay it out, in exponent form from 10^`limit` on.
fn push_decimal(digits: u64, exponent: i32, limit: i32, out: &mut Vec<u8>) {
    let count = digits.checked_ilog10().unwrap_or(0) as i32 + 1;
    // The exponent of the first digit.
    let first = exponent + count - 1;
    let start = out.len();
    if first < -4 || first >= limit {
        push_u64(digits, out);
        trim_zeros(out, start + 1);
        if out.len() > start + 1 {
            out.insert(start + 1, b'.');
        }
        out.extend_from_slice(if first < 0 { b"e-" } else { b"e+" });
        match first.unsigned_abs() {
            n if n < 100 => out.extend_from_slice(&pair(n as usize)),
            n => push_u64(n.into(), out),
        }
    } else if exponent >= 0 {
        push_u64(digits, out);
        out.resize(out.len() + exponent as usize, b'0');
    } else if first >= 0 {
        push_u64(digits, out);
        let point = start + first as usize + 1;
        trim_zeros(out, point);
        if out.len() > point {
            out.insert(point, b'.');
        }
    } else {
        out.extend_from_slice(b"0.");
        push_padded(digits, (-exponent) as usize, out);
        trim_zeros(out, start);
    }
}

fn trim_zeros(out: &mut Vec<u8>, keep: usize) {
    while out.len() > keep && out.last() == Some(&b'0') {
        out.pop();
    }
}

/// What both types do alike: NaN, infinities, zero, sign.
fn push_special(negative: bool, fraction: u64, infinite: bool, out: &mut Vec<u8>) -> bool {
    match (infinite, fraction) {
        (true, 0) => out.extend_from_slice(if negative { b"-Infinity" } else { b"Infinity" }),
        (true, _) => out.extend_from_slice(b"NaN"),
        (false, _) => {
            if negative {
                out.push(b'-');
            }
            return false;
        }
    }
    true
}

/// Appends a float8.
pub(super) fn push_f64(value: f64, out: &mut Vec<u8>) {
    let bits = value.to_bits();
    let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7ff) as i32);
    if push_special(bits >> 63 == 1, fraction, exponent == 0x7ff, out) {
        return;
    }
    match (exponent, fraction) {
        (0, 0) => out.push(b'0'),
        _ => {
            if let Some(whole) = whole(value.abs(), 9_007_199_254_740_992.0) {
                return push_decimal(whole, 0, 15, out);
            }
            let m = if exponent == 0 { fraction } else { fraction | 1 << 52 };
            let (digits, e) = shortest(m, exponent.max(1) - 1075, fraction == 0 && exponent > 1);
            push_decimal(digits, e, 15, out);
        }
    }
}

/// Appends a float4.
pub(super) fn push_f32(value: f32, out: &mut Vec<u8>) {
    let bits = value.to_bits();
    let (fraction, exponent) = (bits & ((1 << 23) - 1), (bits >> 23 & 0xff) as i32);
    if push_special(bits >> 31 == 1, fraction.into(), exponent == 0xff, out) {
        return;
    }
    match (exponent, fraction) {
        (0, 0) => out.push(b'0'),
        _ => {
            if let Some(whole) = whole(f64::from(value.abs()), 16_777_216.0) {
                return push_decimal(whole, 0, 6, out);
            }
            let m = if exponent == 0 { fraction } else { fraction | 1 << 23 };
            let (digits, e) = shortest(m.into(), exponent.max(1) - 150, fraction == 0 && exponent > 1);
            push_decimal(digits, e, 6, out);
        }
    }
}

/// `value` as an integer if it is one below `limit`, from where on not all integers have a float of their own.
fn whole(value: f64, limit: f64) -> Option<u64> {
    (value < limit && value.trunc() == value).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f8(value: f64) -> String {
        let mut out = Vec::new();
        push_f64(value, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    fn f4(value: f32) -> String {
        let mut out = Vec::new();
        push_f32(value, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn layout() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (100.0, "100"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (0.000012345, "1.2345e-05"),
            (123456789012345.0, "123456789012345"),
            (123456789012345.6, "123456789012345.6"),
            (1e14, "100000000000000"),
            (1e15, "1e+15"),
            (1234567890123456.0, "1.234567890123456e+15"),
            (1e100, "1e+100"),
            (-1e-100, "-1e-100"),
            (f64::NAN, "NaN"),
            (-f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(f8(value), text);
        }
        for (value, text) in [
            (0.0_f32, "0"),
            (-0.0, "-0"),
            (1.1, "1.1"),
            (99999.0, "99999"),
            (100000.0, "100000"),
            (1e6, "1e+06"),
            (1234567.0, "1.234567e+06"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (f32::MAX, "3.4028235e+38"),
            (1e-45, "1e-45"),
            (16_777_216.0, "1.6777216e+07"),
        ] {
            assert_eq!(f4(value), text);
        }
    }

    /// Powers of two, ties, borders of intervals and of the types; the texts are PostgreSQL 15's.
    #[test]
    fn as_the_server_prints() {
        for (bits, text) in [
            (0x0000000000000001, "5e-324"),
            (0x0000000000000002, "1e-323"),
            (0x0010000000000000, "2.2250738585072014e-308"),
            (0x000fffffffffffff, "2.225073858507201e-308"),
            (0x7fefffffffffffff, "1.7976931348623157e+308"),
            (0x433fffffffffffff, "9.007199254740991e+15"),
            (0x4340000000000000, "9.007199254740992e+15"),
            (0x4340000000000001, "9.007199254740994e+15"),
            (0x4350000000000000, "1.8014398509481984e+16"),
            (0x4350000000000001, "1.8014398509481988e+16"),
            (0x43e0000000000000, "9.223372036854776e+18"),
            (0x431ad693fcb06901, "1.8885701206083202e+15"),
            (0x436b3e552525f5dc, "6.1346878300597984e+16"),
            (0x42e7244c9633df94, "203557369388796.62"),
            (0x42e1654a5acf5274, "153013894675091.62"),
            (0x439686b8248419fe, "4.0579679567206797e+17"),
            (0x43b0000000000000, "1.152921504606847e+18"),
            (0x4450000000000000, "1.1805916207174113e+21"),
            (0x4580000000000000, "6.189700196426902e+26"),
            (0x7fe0000000000000, "8.98846567431158e+307"),
            (0x4480f0cf064dd592, "1e+22"),
            (0x44b52d02c7e14af6, "9.999999999999999e+22"),
            (0x3eb0000000000000, "9.5367431640625e-07"),
            (0x3fd3333333333333, "0.3"),
            (0x3fe5555555555555, "0.6666666666666666"),
            (0x430c6bf526340000, "1e+15"),
            (0x430c6bf52633ffff, "999999999999999.9"),
            (0x42d6bcc41e8fffff, "99999999999999.98"),
            (0x3f1a36e2eb1c432d, "0.0001"),
            (0x3f1a36371ea531a8, "9.999e-05"),
            (0x419d6f3454000000, "123456789"),
            (0x4320000000000000, "2.251799813685248e+15"),
            (0x4320000000000002, "2.251799813685249e+15"),
            (0x444b1ae4d6e2ef50, "1e+21"),
        ] {
            assert_eq!(f8(f64::from_bits(bits)), text);
        }
        for (bits, text) in [
            (0x00000001, "1e-45"),
            (0x00800000, "1.1754944e-38"),
            (0x00400000, "5.877472e-39"),
            (0x3a800000, "0.0009765625"),
            (0x49800000, "1.048576e+06"),
            (0x4b800000, "1.6777216e+07"),
            (0x4c000000, "3.3554432e+07"),
            (0x4d000000, "1.3421773e+08"),
            (0x4e800000, "1.0737418e+09"),
            (0x4f000000, "2.1474836e+09"),
            (0x4f800000, "4.2949673e+09"),
            (0x50000000, "8.589935e+09"),
            (0x50800000, "1.717987e+10"),
            (0x53800000, "1.0995116e+12"),
            (0x5d800000, "1.1529215e+18"),
            (0x71800000, "1.2676506e+30"),
            (0x7f000000, "1.7014118e+38"),
            (0x50000026, "8.589974e+09"),
            (0x4c000001, "3.3554436e+07"),
            (0x49742400, "1e+06"),
            (0x497423f0, "999999"),
            (0x47c34ff3, "99999.9"),
            (0x38d1b717, "0.0001"),
            (0x38d18167, "9.99e-05"),
            (0x7f7fffff, "3.4028235e+38"),
            (0x15ae43fd, "7.038531e-26"),
            (0x15ae43fe, "7.0385313e-26"),
            (0x3dcccccd, "0.1"),
            (0x3f8ccccd, "1.1"),
            (0x47f1205a, "123456.7"),
            (0x4b000000, "8.388608e+06"),
            (0x4affffff, "8.3886075e+06"),
            (0x4a800000, "4.194304e+06"),
            (0x48000002, "131072.03"),
            (0x487ffffe, "262143.97"),
            (0x501502f9, "1e+10"),
            (0x4c800000, "6.7108864e+07"),
            (0x4c7fffff, "6.710886e+07"),
            (0x4f9502f9, "5e+09"),
            (0x4b3baee0, "1.23e+07"),
        ] {
            assert_eq!(f4(f32::from_bits(bits)), text);
        }
    }

    /// Away from borders and ties the shortest form is the same everywhere, so Rust's must agree on nearly all numbers.
    #[test]
    fn reads_back_and_is_as_short_as_rusts() {
        let mut state = 1_u64;
        let mut differ = 0;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (wide, narrow) = (f64::from_bits(state), f32::from_bits((state >> 32) as u32));
            if wide.is_finite() {
                assert_eq!(f8(wide).parse::<f64>().ok().map(f64::to_bits), Some(wide.to_bits()));
                let mut plain = Vec::new();
                let rust = format!("{:e}", wide.abs());
                let (digits, exponent) = rust.split_once('e').expect("exponent");
                let digits: u64 = digits.replace('.', "").parse().expect("digits");
                let count = digits.to_string().len() as i32;
                push_decimal(digits, exponent.parse::<i32>().expect("number") - count + 1, 15, &mut plain);
                differ += i32::from(f8(wide.abs()).as_bytes() != plain);
            }
            if narrow.is_finite() {
                assert_eq!(f4(narrow).parse::<f32>().ok().map(f32::to_bits), Some(narrow.to_bits()));
            }
        }
        assert!(differ < 200_000 / 500, "{differ} differ");
    }
}
