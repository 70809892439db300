//! `pg_attribute.attmissingval`: the value of a column in rows that are older than the column.
//!
//! It is an array of one element. What the row decoder needs is the element as it would lie in a tuple. The array is
//! `ArrayType` of `src/include/utils/array.h`.

use super::bytes::{i32_at, u32_at};

/// Bytes of the header of an array with one dimension, padded to 8 (24), less the varlena header that the reader took off.
const HEADER: usize = 20;
/// Bytes of a varlena header, which counts itself.
const VARHDRSZ: usize = 4;

/// Takes the element out of the payload of `attmissingval`. `len` is the column's `attlen`.
pub(super) fn element(array: &[u8], len: i16) -> Result<Vec<u8>, &'static str> {
    let dimensions = i32_at(array, 0).ok_or("is shorter than the header of an array")?;
    let data_offset = i32_at(array, 4).ok_or("is shorter than the header of an array")?;
    let count = i32_at(array, 12).ok_or("is shorter than the header of an array")?;
    if dimensions != 1 || count != 1 || data_offset != 0 {
        return Err("is not an array of one element");
    }
    // Elements start aligned for any type, so the first one needs no padding.
    let data = array.get(HEADER..).ok_or("is shorter than the header of an array")?;
    match len {
        1.. => data.get(..len.unsigned_abs().into()).map(<[u8]>::to_vec),
        -1 => varlena(data),
        _ => None,
    }
    .ok_or("has an element that ends behind the array")
}

/// A varlena with a 4-byte header of its own bytes: plain or compressed, which both may lie in a tuple.
fn varlena(data: &[u8]) -> Option<Vec<u8>> {
    let first = *data.first()?;
    if first & 1 == 1 {
        // A short header is not written into arrays, but means the same in a tuple. 1 alone is a TOAST pointer.
        let total = usize::from(first >> 1);
        return if total > 0 { data.get(..total).map(<[u8]>::to_vec) } else { None };
    }
    let total = (u32_at(data, 0)? >> 2) as usize;
    if total < VARHDRSZ { None } else { data.get(..total).map(<[u8]>::to_vec) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(dimensions: i32, data_offset: i32, count: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [dimensions, data_offset, 25, count, 1] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(data);
        bytes
    }

    #[test]
    fn elements() {
        assert_eq!(element(&array(1, 0, 1, &[42, 0, 0, 0]), 4), Ok(vec![42, 0, 0, 0]));
        let text = [7 << 2, 0, 0, 0, b'a', b'b', b'c'];
        assert_eq!(element(&array(1, 0, 1, &[&text[..], &[0]].concat()), -1), Ok(text.to_vec()));
        let compressed = [(10 << 2) | 2, 0, 0, 0, 1, 2, 3, 4, 5, 6];
        assert_eq!(element(&array(1, 0, 1, &compressed), -1), Ok(compressed.to_vec()));
        assert_eq!(element(&array(1, 0, 1, &[(3 << 1) | 1, b'a', b'b']), -1), Ok(vec![7, b'a', b'b']));
    }

    #[test]
    fn damaged_arrays() {
        for bytes in [
            vec![],
            array(1, 0, 1, &[1, 2, 3])[..19].to_vec(),
            array(1, 0, 1, &[1, 2, 3]),
            array(2, 0, 1, &[1, 2, 3, 4]),
            array(1, 24, 1, &[1, 2, 3, 4]),
            array(1, 0, 2, &[1, 2, 3, 4]),
        ] {
            assert!(element(&bytes, 4).is_err(), "{bytes:?}");
        }
        for data in [&[][..], &[8, 0, 0, 0], &[0xFC, 0xFF, 0xFF, 0xFF, 1], &[1, 18, 0, 0], &[9, 1, 2]] {
            assert!(element(&array(1, 0, 1, data), -1).is_err(), "{data:?}");
        }
        assert!(element(&array(1, 0, 1, b"text"), -2).is_err());
        assert!(element(&array(1, 0, 1, b"text"), 0).is_err());
    }
}
