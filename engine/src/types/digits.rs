//! Writing integers: every type's text is made of them, so this must be quick and must not allocate.

/// `00` to `99`.
const PAIRS: &[u8; 200] =
    b"0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849\
5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

/// The digits of a number below 100.
pub(super) fn pair(n: usize) -> [u8; 2] {
    let at = (n % 100) * 2;
    [PAIRS[at], PAIRS[at + 1]]
}

/// The four digits of a number below 10,000.
pub(super) fn quad(n: u32) -> [u8; 4] {
    let (high, low) = (pair(n as usize / 100), pair(n as usize % 100));
    [high[0], high[1], low[0], low[1]]
}

/// Appends `n` in decimal.
#[inline]
pub(super) fn push_u64(n: u64, out: &mut Vec<u8>) {
    if n < EIGHT { push_short(n, out) } else { push_long(n, out) }
}

/// Appends `n` in decimal.
#[inline]
pub(super) fn push_u32(n: u32, out: &mut Vec<u8>) {
    push_u64(n.into(), out);
}

/// Appends `n` in decimal with `-` when negative.
#[inline]
pub(super) fn push_i64(n: i64, out: &mut Vec<u8>) {
    // Signs come in no order that a processor could foresee: no branch.
    let start = out.len();
    out.push(b'-');
    out.truncate(start + usize::from(n < 0));
    push_u64(n.unsigned_abs(), out);
}

/// Numbers below it have eight digits.
const EIGHT: u64 = 100_000_000;

/// The eight digits of a number below [`EIGHT`] as numbers, the first one in the lowest byte: all are divided at once, in
/// halves of halves.
#[inline(always)]
fn eight(n: u64) -> u64 {
    let quads = (n / 10_000) | ((n % 10_000) << 32);
    // Multiplying by 10486 / 2^20 divides a number below 10,000 by 100, by 103 / 2^10 one below 100 by 10.
    let high = (quads * 10_486) >> 20 & 0x0000_007f_0000_007f;
    let pairs = high | (quads - high * 100) << 16;
    let high = (pairs * 103) >> 10 & 0x000f_000f_000f_000f;
    high | (pairs - high * 10) << 8
}

const ZEROS: u64 = 0x3030_3030_3030_3030;

/// A number below [`EIGHT`]: always stores eight bytes, which is one instruction, then takes back those too many.
#[inline(always)]
fn push_short(n: u64, out: &mut Vec<u8>) {
    let digits = eight(n);
    // The last digit is written, whatever it is.
    let skip = (digits | 1 << 63).trailing_zeros() / 8;
    let end = out.len() + 8 - skip as usize;
    out.extend_from_slice(&((digits | ZEROS) >> (skip * 8)).to_le_bytes());
    out.truncate(end);
}

#[inline(never)]
fn push_long(n: u64, out: &mut Vec<u8>) {
    let (high, low) = (n / EIGHT, n % EIGHT);
    if high < EIGHT {
        push_short(high, out);
    } else {
        push_short(high / EIGHT, out);
        out.extend_from_slice(&(eight(high % EIGHT) | ZEROS).to_le_bytes());
    }
    out.extend_from_slice(&(eight(low) | ZEROS).to_le_bytes());
}

/// Appends `n` in decimal, with leading zeros up to `width` (at most 20) digits.
pub(super) fn push_padded(mut n: u64, width: usize, out: &mut Vec<u8>) {
    let mut buffer = [b'0'; 20];
    let mut at = buffer.len();
    while n >= 100 {
        at -= 2;
        buffer[at..at + 2].copy_from_slice(&pair((n % 100) as usize));
        n /= 100;
    }
    if n >= 10 {
        at -= 2;
        buffer[at..at + 2].copy_from_slice(&pair(n as usize));
    } else {
        at -= 1;
        buffer[at] = b'0' + n as u8;
    }
    out.extend_from_slice(&buffer[at.min(buffer.len() - width.min(buffer.len()))..]);
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends each byte as two lower-case hexadecimal digits.
pub(super) fn push_hex(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() * 2);
    for &byte in bytes {
        out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

/// Appends `n` in hexadecimal without leading zeros.
pub(super) fn push_hex_number(n: u32, upper: bool, out: &mut Vec<u8>) {
    let digits = (32 - n.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        let c = HEX[(n >> (digit * 4) & 15) as usize];
        out.push(if upper { c.to_ascii_uppercase() } else { c });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(f: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        f(&mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn integers_are_written_as_rust_writes_them() {
        let mut n = 1_u64;
        for shift in 0..64 {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            for n in [n >> shift, (1 << shift) - 1, 1 << shift] {
                assert_eq!(text(|out| push_u64(n, out)), n.to_string());
                assert_eq!(text(|out| push_i64(n as i64, out)), (n as i64).to_string());
                assert_eq!(text(|out| push_padded(n, 6, out)), format!("{n:06}"));
                assert_eq!(text(|out| push_hex_number(n as u32, true, out)), format!("{:X}", n as u32));
            }
        }
        assert_eq!(text(|out| push_i64(i64::MIN, out)), i64::MIN.to_string());
        assert_eq!(text(|out| push_u64(u64::MAX, out)), u64::MAX.to_string());
        assert_eq!(text(|out| push_u32(u32::MAX, out)), u32::MAX.to_string());
    }

    #[test]
    fn hexadecimal() {
        assert_eq!(text(|out| push_hex(&[0, 1, 0xab, 0xff], out)), "0001abff");
        assert_eq!(text(|out| push_hex_number(0, false, out)), "0");
        assert_eq!(quad(9876), *b"9876");
        assert_eq!(quad(42), *b"0042");
    }
}
