//! Values inside values: bounds-checked loads, alignment, and the varlena headers of fields, elements and bounds.

/// Why a value cannot be printed. Small, so that the writers' results stay small; [`super::TypeOutput::write`] makes the
/// real error of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    pub(super) what: &'static str,
    /// An oid or number that belongs to the message.
    pub(super) number: Option<u32>,
}

/// A [`Bad`] without a number.
pub(super) const fn bad(what: &'static str) -> Bad {
    Bad { what, number: None }
}

pub(super) type Text = Result<(), Bad>;

/// The `N` bytes at `at`.
pub(super) fn bytes<const N: usize>(payload: &[u8], at: usize) -> Result<[u8; N], Bad> {
    match payload.get(at..).and_then(|rest| rest.first_chunk::<N>()) {
        Some(bytes) => Ok(*bytes),
        None => Err(bad("the value is too short")),
    }
}

/// All of a value that has to be `N` bytes.
pub(super) fn exactly<const N: usize>(payload: &[u8]) -> Result<[u8; N], Bad> {
    payload.try_into().map_err(|_| bad("the value has the wrong length"))
}

pub(super) fn u16_at(payload: &[u8], at: usize) -> Result<u16, Bad> {
    bytes(payload, at).map(u16::from_le_bytes)
}

pub(super) fn u32_at(payload: &[u8], at: usize) -> Result<u32, Bad> {
    bytes(payload, at).map(u32::from_le_bytes)
}

pub(super) fn i32_at(payload: &[u8], at: usize) -> Result<i32, Bad> {
    bytes(payload, at).map(i32::from_le_bytes)
}

pub(super) fn u64_at(payload: &[u8], at: usize) -> Result<u64, Bad> {
    bytes(payload, at).map(u64::from_le_bytes)
}

pub(super) fn f64_at(payload: &[u8], at: usize) -> Result<f64, Bad> {
    bytes(payload, at).map(f64::from_le_bytes)
}

/// `at` rounded up to a multiple of `align` (1, 2, 4 or 8; anything else counts as 1). Saturates: a position that large
/// lies outside every value and the load that follows fails.
pub(super) fn align_up(at: usize, align: u8) -> usize {
    match align {
        2 | 4 | 8 => {
            let mask = usize::from(align) - 1;
            at.saturating_add(mask) & !mask
        }
        _ => at,
    }
}

/// The physical form of a nested value: `typlen` and `typalign`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Physical {
    pub(super) len: i16,
    pub(super) align: u8,
}

impl Physical {
    /// The value at or after `at` in `data`, and where it ends. `bias` is how far `data[0]` is from the place that
    /// alignment counts from (the stripped header). Padding is skipped as in tuples: a byte that is not zero where
    /// padding could be is a short varlena header.
    pub(super) fn stored(self, data: &[u8], at: usize, bias: usize) -> Result<(Stored<'_>, usize), Bad> {
        let aligned = align_up(at.saturating_add(bias), self.align).saturating_sub(bias);
        match self.len {
            -1 => {
                let packed = data.get(at).is_some_and(|&byte| byte != 0);
                stored_varlena(data, if packed { at } else { aligned })
            }
            -2 => {
                let rest = data.get(aligned..).ok_or(bad("a nested value lies outside the value"))?;
                let len = rest.iter().position(|&byte| byte == 0).ok_or(bad("a nested C string has no end"))?;
                Ok((Stored::Plain(&rest[..len]), aligned + len + 1))
            }
            len if len > 0 => {
                let end = aligned.saturating_add(usize::from(len.unsigned_abs()));
                let value = data.get(aligned..end).ok_or(bad("a nested value lies outside the value"))?;
                Ok((Stored::Plain(value), end))
            }
            _ => Err(bad("a nested value has an impossible length")),
        }
    }

    /// The same for array elements and range bounds, which are never compressed.
    pub(super) fn value(self, data: &[u8], at: usize, bias: usize) -> Result<(&[u8], usize), Bad> {
        let (stored, end) = self.stored(data, at, bias)?;
        Ok((stored.plain()?, end))
    }
}

/// A nested value as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored<'a> {
    /// Its payload.
    Plain(&'a [u8]),
    /// Raw size with the method in the two highest bits, and the compressed bytes. Fields of composite values can be
    /// so: a row that becomes a value keeps what is compressed inline.
    Compressed(u32, &'a [u8]),
}

impl<'a> Stored<'a> {
    fn plain(self) -> Result<&'a [u8], Bad> {
        match self {
            Self::Plain(payload) => Ok(payload),
            Self::Compressed(..) => Err(bad("a nested value is compressed")),
        }
    }

    /// The payload, which is kept in `buffer` if it has to be decompressed.
    pub(super) fn payload(self, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], Bad> {
        let (info, data) = match self {
            Self::Plain(payload) => return Ok(payload),
            Self::Compressed(info, data) => (info, data),
        };
        let raw_size = (info & 0x3fff_ffff) as usize;
        // Neither method can make more than about 255 bytes of one: believe no larger size.
        if raw_size > data.len().saturating_mul(256) {
            return Err(bad("a compressed value has an impossible size"));
        }
        buffer.resize(raw_size, 0);
        let size = match info >> 30 {
            0 => pglz::decompress_into(data, buffer, true),
            1 => lz4_flex::block::decompress_into(data, buffer).ok(),
            _ => return Err(bad("a nested value is compressed by an unknown method")),
        };
        if size != Some(raw_size) {
            return Err(bad("a compressed value is damaged"));
        }
        Ok(buffer)
    }
}

/// The payload of the varlena at `at`, and where it ends, if it is not compressed.
pub(super) fn varlena(data: &[u8], at: usize) -> Result<(&[u8], usize), Bad> {
    let (stored, end) = stored_varlena(data, at)?;
    Ok((stored.plain()?, end))
}

/// The varlena at `at`, and where it ends. What is out of line was fetched when the value was made: a TOAST pointer is
/// damage.
fn stored_varlena(data: &[u8], at: usize) -> Result<(Stored<'_>, usize), Bad> {
    let first = *data.get(at).ok_or(bad("a nested value lies outside the value"))?;
    let (header, len) = match first & 3 {
        _ if first == 1 => return Err(bad("a nested value is a TOAST pointer")),
        1 | 3 => (1, usize::from(first >> 1)),
        0 => (4, u32_at(data, at)? as usize >> 2),
        _ => (8, u32_at(data, at)? as usize >> 2),
    };
    if len < header {
        return Err(bad("a nested value has an impossible length"));
    }
    let value = data.get(at + header..at.saturating_add(len)).ok_or(bad("a nested value lies outside the value"))?;
    let stored = if header == 8 { Stored::Compressed(u32_at(data, at + 4)?, value) } else { Stored::Plain(value) };
    Ok((stored, at + len))
}

/// A stack that needs no allocation until it is deeper than `N`.
pub(super) struct SmallStack<T: Copy, const N: usize> {
    inline: [Option<T>; N],
    inline_len: usize,
    more: Vec<T>,
}

impl<T: Copy, const N: usize> SmallStack<T, N> {
    pub(super) fn new() -> Self {
        Self { inline: [None; N], inline_len: 0, more: Vec::new() }
    }

    pub(super) fn push(&mut self, item: T) {
        match self.inline.get_mut(self.inline_len) {
            Some(slot) => {
                *slot = Some(item);
                self.inline_len += 1;
            }
            None => self.more.push(item),
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        if let Some(item) = self.more.pop() {
            return Some(item);
        }
        self.inline_len = self.inline_len.checked_sub(1)?;
        self.inline[self.inline_len].take()
    }
}

/// No text is longer: the server refuses it too (`MaxAllocSize`).
const MAX_TEXT: usize = 0x3fff_ffff;

/// Refuses a text that began at `start` and became too long. A numeric of six bytes can have 131,072 digits, so what
/// holds many of them has to be watched.
pub(super) fn check_size(out: &[u8], start: usize) -> Text {
    if out.len() - start > MAX_TEXT { Err(bad("its text would exceed 1 GB")) } else { Ok(()) }
}

/// Whether C's `isspace` says yes (C locale).
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Puts `"` around `out[start..]` and `escape(byte)` before each byte for which it is `Some`, in place.
pub(super) fn quote_tail(out: &mut Vec<u8>, start: usize, escape: impl Fn(u8) -> Option<u8>) {
    let escapes = out[start..].iter().filter(|&&byte| escape(byte).is_some()).count();
    let mut from = out.len();
    out.resize(from + escapes + 2, b'"');
    let mut to = out.len() - 1;
    // From the back, so that nothing is overwritten before it was moved.
    while from > start {
        from -= 1;
        to -= 1;
        let byte = out[from];
        out[to] = byte;
        if let Some(escape) = escape(byte) {
            to -= 1;
            out[to] = escape;
        }
    }
    out[start] = b'"';
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varlena_headers() {
        assert_eq!(varlena(&[0x07, b'a', b'b', 9], 0), Ok((&b"ab"[..], 3)));
        assert_eq!(varlena(&[0x18, 0, 0, 0, b'a', b'b'], 0), Ok((&b"ab"[..], 6)));
        assert_eq!(varlena(&[0x03], 0), Ok((&b""[..], 1)));
        assert!(varlena(&[0x01, 18], 0).is_err());
        assert!(varlena(&[0x1a, 0, 0, 0, 1, 2], 0).is_err());
        assert!(varlena(&[0x0c, 0, 0, 0], 0).is_err());
        assert!(varlena(&[0xff, 1], 0).is_err());
        assert!(varlena(&[], 0).is_err());
        assert!(varlena(&[0xfc, 0xff, 0xff, 0xff], 0).is_err());
    }

    #[test]
    fn a_byte_that_is_not_zero_is_not_padding() {
        let text = Physical { len: -1, align: 4 };
        assert_eq!(text.value(&[9, 0x05, b'x'], 1, 0), Ok((&b"x"[..], 3)));
        assert_eq!(text.value(&[9, 0, 0, 0, 0x14, 0, 0, 0, b'x'], 1, 0), Ok((&b"x"[..], 9)));
        // With a stripped header of 4 bytes, 8-byte alignment falls on odd multiples of 4.
        let int8 = Physical { len: 8, align: 8 };
        let data: Vec<u8> = (0..32).collect();
        assert_eq!(int8.value(&data, 5, 4).map(|(value, end)| (value[0], end)), Ok((12, 20)));
        assert!(int8.value(&data, 25, 0).is_err());
        assert!(int8.value(&data, usize::MAX, 4).is_err());
        assert!(Physical { len: -7, align: 1 }.value(&data, 0, 0).is_err());
        assert!(Physical { len: -2, align: 1 }.value(b"abc", 0, 0).is_err());
        assert_eq!(Physical { len: -2, align: 1 }.value(b"abc\0", 1, 0), Ok((&b"bc"[..], 4)));
    }

    #[test]
    fn texts_above_a_gigabyte_are_refused() {
        // Zeroed memory that is never touched.
        let out = vec![0; MAX_TEXT + 8];
        assert!(check_size(&out, 8).is_ok());
        assert!(check_size(&out, 7).is_err());
    }

    #[test]
    fn quoting_in_place() {
        let mut out = b"x,a\"b\\".to_vec();
        quote_tail(&mut out, 2, |byte| matches!(byte, b'"' | b'\\').then_some(b'\\'));
        assert_eq!(out, b"x,\"a\\\"b\\\\\"");
        let mut out = b"x".to_vec();
        quote_tail(&mut out, 1, |_| None);
        assert_eq!(out, b"x\"\"");
    }

    #[test]
    fn stack_beyond_its_inline_part() {
        let mut stack = SmallStack::<u32, 2>::new();
        (0..5).for_each(|n| stack.push(n));
        assert_eq!(std::iter::from_fn(|| stack.pop()).collect::<Vec<_>>(), [4, 3, 2, 1, 0]);
    }
}
