//! Types of extensions. Those of contrib whose form on disk is simple print as their output functions do; of all others
//! only the bytes are known.

use super::{
    digits,
    float::push_f64,
    nested::{Text, align_up, bad, bytes, f64_at, u32_at},
};
use crate::schema::OutputFunction;

/// What is known of an extension's output function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// `citext`: the text.
    Text,
    Hstore,
    Ltree,
    Cube,
}

/// Finds an output function by its name, language and library: extensions have no fixed oids, and a type's name may be
/// anybody's.
pub(super) fn known(function: &OutputFunction) -> Option<Known> {
    /// `INTERNALlanguageId` and `ClanguageId`.
    const INTERNAL: u32 = 12;
    const C: u32 = 13;
    let library = function.library.strip_prefix("$libdir/").unwrap_or(&function.library);
    match (function.language, library, function.name.as_str()) {
        (INTERNAL, "", "citextout") => Some(Known::Text),
        (C, "hstore", "hstore_out") => Some(Known::Hstore),
        (C, "ltree", "ltree_out") => Some(Known::Ltree),
        (C, "cube", "cube_out") => Some(Known::Cube),
        _ => None,
    }
}

/// Appends the bytes as `bytea` prints them.
pub(super) fn raw(payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"\\x");
    digits::push_hex(payload, out);
}

/// `contrib/hstore/hstore.h`: a count with a version flag, two entries a pair (where key and value end), the strings.
pub(super) fn hstore(payload: &[u8], out: &mut Vec<u8>) -> Text {
    const NEW_VERSION: u32 = 0x8000_0000;
    const COUNT: u32 = 0x0fff_ffff;
    const IS_FIRST: u32 = 0x8000_0000;
    const IS_NULL: u32 = 0x4000_0000;
    const POSITION: u32 = 0x3fff_ffff;
    if payload.is_empty() {
        return Err(bad("an hstore without header"));
    }
    let header = u32_at(payload, 0)?;
    if header & NEW_VERSION == 0 {
        return Err(bad("an hstore of a version before PostgreSQL 9.0"));
    }
    let pairs = (header & COUNT) as usize;
    let strings = pairs.saturating_mul(8).saturating_add(4);
    let strings = payload.get(strings..).ok_or(bad("an hstore is shorter than its entries"))?;
    let entry = |index: usize| u32_at(payload, 4 + index * 4);
    let string = |index: usize| {
        let this = entry(index)?;
        let start = if this & IS_FIRST != 0 || index == 0 { 0 } else { (entry(index - 1)? & POSITION) as usize };
        let text = strings.get(start..(this & POSITION) as usize).ok_or(bad("an hstore's string lies outside"))?;
        Ok((this & IS_NULL == 0).then_some(text))
    };
    for pair in 0..pairs {
        if pair > 0 {
            out.extend_from_slice(b", ");
        }
        push_quoted(string(pair * 2)?.unwrap_or_default(), out);
        out.extend_from_slice(b"=>");
        match string(pair * 2 + 1)? {
            Some(value) => push_quoted(value, out),
            None => out.extend_from_slice(b"NULL"),
        }
    }
    Ok(())
}

fn push_quoted(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// `contrib/ltree/ltree.h`: the number of labels; from byte 8 (the header counted) on each with its length, at multiples
/// of 8.
pub(super) fn ltree(payload: &[u8], out: &mut Vec<u8>) -> Text {
    let levels = u16::from_le_bytes(bytes(payload, 0)?);
    let mut at = 4;
    for level in 0..levels {
        let length = usize::from(u16::from_le_bytes(bytes(payload, at)?));
        let label = payload.get(at + 2..at + 2 + length).ok_or(bad("a label of an ltree lies outside"))?;
        if level > 0 {
            out.push(b'.');
        }
        out.extend_from_slice(label);
        at += align_up(length + 2, 8);
    }
    Ok(())
}

/// `contrib/cube/cubedata.h`: dimensions, with a flag for points; the lower left corner, and unless it is a point the
/// upper right one.
pub(super) fn cube(payload: &[u8], out: &mut Vec<u8>) -> Text {
    const IS_POINT: u32 = 0x8000_0000;
    let header = u32_at(payload, 0)?;
    let dimensions = (header & !IS_POINT) as usize;
    let corner = |from: usize, out: &mut Vec<u8>| {
        out.push(b'(');
        for i in 0..dimensions {
            if i > 0 {
                out.extend_from_slice(b", ");
            }
            push_f64(f64_at(payload, (from + i).saturating_mul(8).saturating_add(4))?, out);
        }
        out.push(b')');
        Ok(())
    };
    corner(0, out)?;
    let mut point = header & IS_POINT != 0;
    if !point {
        // A cube whose corners are equal is printed as a point too.
        point = true;
        for i in 0..dimensions {
            let upper = f64_at(payload, (dimensions + i).saturating_mul(8).saturating_add(4))?;
            point &= f64_at(payload, i * 8 + 4)? == upper;
        }
    }
    if !point {
        out.push(b',');
        corner(dimensions, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: fn(&[u8], &mut Vec<u8>) -> Text, payload: &[u8]) -> Result<String, &'static str> {
        let mut out = Vec::new();
        write(payload, &mut out).map_err(|bad| bad.what)?;
        Ok(String::from_utf8(out).expect("ASCII"))
    }

    #[test]
    fn functions_are_known_by_name_language_and_library() {
        let function = |name: &str, language, library: &str| OutputFunction {
            name: name.to_owned(),
            language,
            library: library.to_owned(),
        };
        assert_eq!(known(&function("citextout", 12, "")), Some(Known::Text));
        assert_eq!(known(&function("hstore_out", 13, "$libdir/hstore")), Some(Known::Hstore));
        assert_eq!(known(&function("hstore_out", 13, "/home/me/mine")), None);
        assert_eq!(known(&function("hstore_out", 14, "")), None);
    }

    #[test]
    fn hstores() {
        let words = [0x8000_0002u32, 0x8000_0001, 2, 4, 0x4000_0004];
        let mut payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        payload.extend(b"a\"\\b");
        assert_eq!(text(hstore, &payload).as_deref(), Ok(r#""a"=>"\"", "\\b"=>NULL"#));
        assert_eq!(text(hstore, &0x8000_0000u32.to_le_bytes()).as_deref(), Ok(""));
        assert!(text(hstore, &0x8fff_ffffu32.to_le_bytes()).is_err());
        assert!(text(hstore, &[]).is_err() && text(hstore, &[1, 0, 0, 0]).is_err());
        assert!(text(hstore, &payload[..payload.len() - 1]).is_err());
    }

    #[test]
    fn ltrees_and_cubes() {
        assert_eq!(text(ltree, &[2, 0, 0, 0, 1, 0, b'a', 0, 0, 0, 0, 0, 1, 0, b'b']).as_deref(), Ok("a.b"));
        assert_eq!(text(ltree, &[0, 0]).as_deref(), Ok(""));
        assert!(text(ltree, &[9, 0, 0, 0]).is_err());
        let cubes = |header: u32, numbers: &[f64]| {
            let numbers = numbers.iter().flat_map(|n| n.to_le_bytes());
            text(cube, &header.to_le_bytes().into_iter().chain(numbers).collect::<Vec<_>>())
        };
        assert_eq!(cubes(0x8000_0002, &[1.0, 2.5]).as_deref(), Ok("(1, 2.5)"));
        assert_eq!(cubes(1, &[1.0, 2.0]).as_deref(), Ok("(1),(2)"));
        assert_eq!(cubes(1, &[3.0, 3.0]).as_deref(), Ok("(3)"));
        assert!(cubes(0x7fff_ffff, &[3.0, 3.0]).is_err() && cubes(2, &[1.0]).is_err());
    }
}
