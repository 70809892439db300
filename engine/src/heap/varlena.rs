//! Values of variable length (`src/include/varatt.h`): plain, compressed in place, or a pointer to TOAST.

use super::load;
use crate::{Error, ErrorKind, Result};

/// Bytes of a full header.
pub(crate) const HEADER: usize = 4;
/// Bytes of an out-of-line value's pointer with its header: 2 + `sizeof(varatt_external)`.
pub(crate) const EXTERNAL_LENGTH: usize = 18;
/// `VARTAG_ONDISK`.
const TAG_ON_DISK: u8 = 18;
/// Low 30 bits of `va_tcinfo` and `va_extinfo` are a size, the two above a compression method.
const SIZE_MASK: u32 = 0x3fff_ffff;

/// `ToastCompressionId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionMethod {
    /// PostgreSQL's own LZ.
    Pglz,
    /// LZ4 block format (PostgreSQL 14 and later).
    Lz4,
}

impl CompressionMethod {
    fn from_info(info: u32) -> Result<Self> {
        match info >> 30 {
            0 => Ok(Self::Pglz),
            1 => Ok(Self::Lz4),
            id => Err(Error::new(ErrorKind::Value, format!("compression method {id} does not exist"))),
        }
    }
}

/// `varatt_external`: where an out-of-line value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToastPointer {
    /// `va_rawsize`: bytes of the plain value *with* a 4-byte header.
    pub raw_size: u32,
    /// Bytes stored out of line, without a header.
    pub external_size: u32,
    /// The method, if the stored bytes are compressed. Up to PostgreSQL 13 always [`CompressionMethod::Pglz`].
    pub method: CompressionMethod,
    /// `va_valueid`: `chunk_id` in the TOAST relation.
    pub value_id: u32,
    /// `va_toastrelid`: oid (not file number) of the TOAST relation.
    pub toast_relation: u32,
}

impl ToastPointer {
    /// Whether the stored bytes are compressed: only sizes tell, the method bits are 0 for pglz and for plain alike.
    pub fn is_compressed(&self) -> bool {
        self.external_size < self.raw_size.saturating_sub(HEADER as u32)
    }

    fn parse(bytes: &[u8; EXTERNAL_LENGTH]) -> Result<Self> {
        let (raw_size, info) = (load::u32(bytes, 2), load::u32(bytes, 6));
        let pointer = Self {
            raw_size,
            external_size: info & SIZE_MASK,
            method: CompressionMethod::from_info(info)?,
            value_id: load::u32(bytes, 10),
            toast_relation: load::u32(bytes, 14),
        };
        if raw_size < HEADER as u32
            || raw_size - HEADER as u32 > SIZE_MASK
            || pointer.external_size > raw_size - HEADER as u32
        {
            return Err(damaged(format!(
                "TOAST pointer (value {}): {} bytes stored cannot be {raw_size} bytes",
                pointer.value_id, pointer.external_size
            )));
        }
        Ok(pointer)
    }
}

/// A value of variable length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varlena<'a> {
    /// The bytes themselves, without header.
    Plain(&'a [u8]),
    /// Compressed in place.
    Compressed {
        /// Bytes when decompressed, without header.
        raw_size: u32,
        /// How.
        method: CompressionMethod,
        /// The compressed bytes.
        data: &'a [u8],
    },
    /// Stored in the TOAST relation.
    External(ToastPointer),
}

impl<'a> Varlena<'a> {
    /// The value at the start of `bytes`, and how many bytes it takes with its header.
    ///
    /// # Errors
    /// `Value` if it is longer than `bytes`, or its header cannot be.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, usize)> {
        let total = total_length(bytes).map_err(|reason| damaged(reason.to_owned()))?;
        let value = &bytes[..total];
        Ok((Self::of(value)?, total))
    }

    /// The value that `value` is, exactly.
    fn of(value: &'a [u8]) -> Result<Self> {
        if let Some(short) = short_payload(value) {
            return Ok(Self::Plain(short));
        }
        if value[0] == 1 {
            let Some(pointer) = value.first_chunk() else {
                return Err(damaged("TOAST pointer is cut off".to_owned()));
            };
            return Ok(Self::External(ToastPointer::parse(pointer)?));
        }
        if value[0] & 3 == 0 {
            return Ok(Self::Plain(&value[HEADER..]));
        }
        if value.len() < 2 * HEADER {
            return Err(damaged("compressed value is shorter than its header".to_owned()));
        }
        let info = load::u32(value, HEADER);
        Ok(Self::Compressed {
            raw_size: info & SIZE_MASK,
            method: CompressionMethod::from_info(info)?,
            data: &value[2 * HEADER..],
        })
    }
}

/// The payload when `value` has a 1-byte header and is in place.
#[inline]
fn short_payload(value: &[u8]) -> Option<&[u8]> {
    let first = *value.first()?;
    (first & 1 == 1 && first != 1).then(|| &value[1..])
}

/// How many bytes the value at the start of `bytes` takes with its header: at least 1, at most `bytes.len()`.
#[inline(always)]
pub(crate) fn total_length(bytes: &[u8]) -> std::result::Result<usize, &'static str> {
    let Some(&first) = bytes.first() else {
        return Err("value begins behind the end");
    };
    let total = if first & 1 == 1 {
        if first == 1 {
            match bytes.get(1) {
                Some(&TAG_ON_DISK) => EXTERNAL_LENGTH,
                _ => return Err("value is a pointer into a server's memory, which is never stored"),
            }
        } else {
            usize::from(first >> 1)
        }
    } else {
        match bytes.first_chunk::<HEADER>() {
            Some(header) => (u32::from_le_bytes(*header) >> 2) as usize,
            None => return Err("value header is cut off"),
        }
    };
    let least = if first & 1 == 1 { 1 } else { HEADER };
    if total < least || total > bytes.len() {
        return Err("value is longer than what holds it, or shorter than its header");
    }
    Ok(total)
}

/// Decompresses `data` into `out` (replacing what is in it), which then has exactly `raw_size` bytes.
///
/// # Errors
/// `Value` if the stream is damaged or does not give `raw_size` bytes. No more is allocated than the stream could
/// give at best.
pub fn decompress(method: CompressionMethod, data: &[u8], raw_size: u32, out: &mut Vec<u8>) -> Result<()> {
    let raw = raw_size as usize;
    // The best that the formats can do: pglz turns 25 bytes (8 tags of 3, and their control byte) into 8 x 273;
    // lz4 adds at most 255 bytes a byte.
    let most = match method {
        CompressionMethod::Pglz => data.len().saturating_mul(91).saturating_add(273),
        CompressionMethod::Lz4 => data.len().saturating_mul(255).saturating_add(64),
    };
    if raw > most {
        return Err(damaged(format!("{} compressed bytes cannot give {raw} bytes", data.len())));
    }
    out.clear();
    out.resize(raw, 0);
    let given = match method {
        CompressionMethod::Pglz => pglz::decompress_into(data, out, true),
        CompressionMethod::Lz4 => lz4_flex::block::decompress_into(data, out).ok(),
    };
    if given != Some(raw) {
        out.clear();
        return Err(damaged(format!("compressed value ({method:?}) is damaged: it does not give its {raw} bytes")));
    }
    Ok(())
}

fn damaged(message: String) -> Error {
    Error::new(ErrorKind::Value, message)
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};
    use proptest::prelude::*;

    #[test]
    fn headers_of_all_kinds() {
        assert_eq!(Varlena::parse(&short(b"abc")).unwrap(), (Varlena::Plain(b"abc"), 4));
        assert_eq!(Varlena::parse(&short(b"")).unwrap(), (Varlena::Plain(b""), 1));
        assert_eq!(Varlena::parse(&long(b"abc")).unwrap(), (Varlena::Plain(b"abc"), 7));
        let mut followed = long(b"");
        followed.extend(b"next");
        assert_eq!(Varlena::parse(&followed).unwrap(), (Varlena::Plain(b""), 4));
        let packed = compressed(1, 500, b"xyz");
        let want = Varlena::Compressed { raw_size: 500, method: CompressionMethod::Lz4, data: b"xyz" };
        assert_eq!(Varlena::parse(&packed).unwrap(), (want, 11));
        let pointer = ToastPointer {
            raw_size: 1004,
            external_size: 1000,
            method: CompressionMethod::Pglz,
            value_id: 77,
            toast_relation: 16_400,
        };
        assert_eq!(Varlena::parse(&external(&pointer)).unwrap(), (Varlena::External(pointer), 18));
        assert!(!pointer.is_compressed());
        assert!(ToastPointer { external_size: 999, ..pointer }.is_compressed());
    }

    #[test]
    fn impossible_headers_are_errors() {
        let pointer = ToastPointer {
            raw_size: 1004,
            external_size: 1001,
            method: CompressionMethod::Pglz,
            value_id: 1,
            toast_relation: 1,
        };
        let external_too_long = external(&pointer);
        let mut expanded = external(&ToastPointer { external_size: 5, ..pointer });
        expanded[1] = 3;
        let mut cut = long(b"abcdef");
        cut.pop();
        let cases: &[&[u8]] = &[
            &[],
            &[0, 0],
            &[0, 0, 0, 0],
            &[0x07, 1],
            &[0x01],
            &[0x01, 18, 0],
            &[0x12, 0, 0, 0],
            &cut,
            &compressed(2, 10, b"x"),
            &external_too_long,
            &expanded,
        ];
        for case in cases {
            assert_eq!(Varlena::parse(case).unwrap_err().kind(), ErrorKind::Value, "{case:?}");
        }
    }

    #[test]
    fn both_methods_decompress_and_refuse_damage() {
        let plain: Vec<u8> = (0..5000u32).flat_map(|i| (i / 9 % 251).to_le_bytes()).collect();
        let streams = [
            (CompressionMethod::Pglz, pglz::compress(&plain, &pglz::Strategy::ALWAYS).unwrap()),
            (CompressionMethod::Lz4, lz4_flex::block::compress(&plain)),
        ];
        let mut out = vec![1; 3];
        for (method, stream) in streams {
            decompress(method, &stream, plain.len() as u32, &mut out).unwrap();
            assert_eq!(out, plain);
            // One byte less is not tried: pglz, as the server does, cuts the last match to what is asked for.
            for size in [0, plain.len() as u32 / 2, plain.len() as u32 + 1, SIZE_MASK] {
                assert!(decompress(method, &stream, size, &mut out).is_err(), "{method:?} {size}");
            }
            for cut in 0..stream.len() {
                assert!(decompress(method, &stream[..cut], plain.len() as u32, &mut out).is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), raw in 0u32..100_000) {
            if let Ok((_, total)) = Varlena::parse(&bytes) {
                prop_assert!((1..=bytes.len()).contains(&total));
            }
            let mut out = Vec::new();
            for method in [CompressionMethod::Pglz, CompressionMethod::Lz4] {
                if decompress(method, &bytes, raw, &mut out).is_ok() {
                    prop_assert_eq!(out.len(), raw as usize);
                }
            }
        }
    }
}
