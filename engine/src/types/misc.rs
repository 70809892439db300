//! Small types: tid, money, snapshots, xml, extended statistics.

use super::{
    digits::{push_i64, push_padded, push_u32, push_u64},
    nested::{Text, bad, bytes, f64_at, i32_at, u16_at, u32_at, u64_at},
};

/// Appends `(block,offset)`: block number as two halves, the high one first, then the line pointer.
pub(super) fn tid([b0, b1, b2, b3, o0, o1]: [u8; 6], out: &mut Vec<u8>) {
    out.push(b'(');
    push_u32(u32::from_le_bytes([b2, b3, b0, b1]), out);
    out.push(b',');
    push_u32(u16::from_le_bytes([o0, o1]).into(), out);
    out.push(b')');
}

/// Appends an amount in cents as lc_monetary C shows it: `-$1,234.56`.
pub(super) fn money(cents: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(if cents < 0 { b"-$" } else { b"$" });
    let cents = cents.unsigned_abs();
    let whole = cents / 100;
    let mut group = 1;
    while whole / group >= 1000 {
        group *= 1000;
    }
    push_u64(whole / group, out);
    while group > 1 {
        group /= 1000;
        out.push(b',');
        push_padded(whole / group % 1000, 3, out);
    }
    out.push(b'.');
    push_padded(cents % 100, 2, out);
}

/// Appends a pg_snapshot or txid_snapshot, `xmin:xmax:xip,...`: number of xids in progress, xmin, xmax, the xids.
pub(super) fn snapshot(payload: &[u8], out: &mut Vec<u8>) -> Text {
    push_u64(u64_at(payload, 4)?, out);
    out.push(b':');
    push_u64(u64_at(payload, 12)?, out);
    out.push(b':');
    for i in 0..u32_at(payload, 0)? as usize {
        if i > 0 {
            out.push(b',');
        }
        push_u64(u64_at(payload, 20 + i * 8)?, out);
    }
    Ok(())
}

/// Checks magic and type of serialised statistics; their number of items.
fn statistics(payload: &[u8], magic: u32) -> Result<u32, super::nested::Bad> {
    if u32_at(payload, 0)? != magic || u32_at(payload, 4)? != 1 {
        return Err(bad("not the statistics that the type says"));
    }
    u32_at(payload, 8)
}

/// Appends `{"1, 2": 3, ...}`: for each set of columns (double, count, numbers) its distinct values.
pub(super) fn ndistinct(payload: &[u8], out: &mut Vec<u8>) -> Text {
    let mut at = 12;
    out.push(b'{');
    for i in 0..statistics(payload, 0xa352_bfa4)? {
        out.extend_from_slice(if i > 0 { b", \"" } else { b"\"" });
        let (distinct, columns) = (f64_at(payload, at)?, i32_at(payload, at + 8)?);
        at += 12;
        for column in 0..columns {
            if column > 0 {
                out.extend_from_slice(b", ");
            }
            push_i64(i16::from_le_bytes(bytes(payload, at)?).into(), out);
            at += 2;
        }
        out.extend_from_slice(b"\": ");
        push_i64((distinct as i32).into(), out);
    }
    out.push(b'}');
    Ok(())
}

/// Appends `{"1 => 2": 1.000000, ...}`: degree (double), count, numbers of the columns, the implied one last.
pub(super) fn dependencies(payload: &[u8], out: &mut Vec<u8>) -> Text {
    let mut at = 12;
    out.push(b'{');
    for i in 0..statistics(payload, 0xb454_9a2c)? {
        out.extend_from_slice(if i > 0 { b", \"" } else { b"\"" });
        let (degree, columns) = (f64_at(payload, at)?, u16_at(payload, at + 8)?);
        at += 10;
        for column in 0..columns {
            if column + 1 == columns {
                out.extend_from_slice(b" => ");
            } else if column > 0 {
                out.extend_from_slice(b", ");
            }
            push_i64(i16::from_le_bytes(bytes(payload, at)?).into(), out);
            at += 2;
        }
        // Degrees are fractions; a damaged one could have 300 digits, but not more.
        out.extend_from_slice(format!("\": {degree:.6}").as_bytes());
    }
    out.push(b'}');
    Ok(())
}

/// What an XML declaration says.
struct XmlDeclaration<'a> {
    version: Option<&'a [u8]>,
    standalone: Option<bool>,
    /// What follows it.
    rest: &'a [u8],
}

/// Appends an xml value: its declaration is written anew, without the encoding, and left out if it says nothing that
/// is not the default. What is not a well-formed declaration stays.
pub(super) fn xml(text: &[u8], out: &mut Vec<u8>) {
    let Some(XmlDeclaration { version, standalone, rest }) = xml_declaration(text) else {
        return out.extend_from_slice(text);
    };
    if standalone.is_none() && version.is_none_or(|version| version == b"1.0") {
        // One line end goes with the declaration, or there would be an empty first line.
        return out.extend_from_slice(rest.strip_prefix(b"\n").unwrap_or(rest));
    }
    out.extend_from_slice(b"<?xml version=\"");
    out.extend_from_slice(version.unwrap_or(b"1.0"));
    out.push(b'"');
    match standalone {
        Some(true) => out.extend_from_slice(b" standalone=\"yes\""),
        Some(false) => out.extend_from_slice(b" standalone=\"no\""),
        None => {}
    }
    out.extend_from_slice(b"?>");
    out.extend_from_slice(rest);
}

fn skip_space(text: &[u8]) -> &[u8] {
    let len = text.iter().take_while(|&&byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    &text[len..]
}

/// The value of `name = "value"` and what follows.
fn xml_attribute<'a>(text: &'a [u8], name: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let text = skip_space(skip_space(text.strip_prefix(name)?).strip_prefix(b"=")?);
    let (&quote, text) = text.split_first().filter(|(quote, _)| matches!(quote, b'"' | b'\''))?;
    let end = text.iter().position(|&byte| byte == quote)?;
    Some((&text[..end], &text[end + 1..]))
}

fn xml_declaration(text: &[u8]) -> Option<XmlDeclaration<'_>> {
    let none = XmlDeclaration { version: None, standalone: None, rest: text };
    let Some(inside) = text.strip_prefix(b"<?xml") else { return Some(none) };
    // <?xml-stylesheet ...?> is something else.
    if inside.first().is_some_and(|&c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_' | b':' | 0x80..)) {
        return Some(none);
    }
    let spaced = |text: &[u8]| text.first().is_some_and(|c| matches!(c, b' ' | b'\t' | b'\n' | b'\r'));
    if !spaced(inside) {
        return None;
    }
    let (version, mut at) = xml_attribute(skip_space(inside), b"version")?;
    if skip_space(at).starts_with(b"encoding") {
        if !spaced(at) {
            return None;
        }
        at = xml_attribute(skip_space(at), b"encoding")?.1;
    }
    let mut standalone = None;
    if skip_space(at).starts_with(b"standalone") {
        if !spaced(at) {
            return None;
        }
        let (value, rest) = xml_attribute(skip_space(at), b"standalone")?;
        standalone = match value {
            b"yes" => Some(true),
            b"no" => Some(false),
            _ => return None,
        };
        at = rest;
    }
    let rest = skip_space(at).strip_prefix(b"?>")?;
    let declaration = &text[..text.len() - rest.len()];
    declaration.is_ascii().then_some(XmlDeclaration { version: Some(version), standalone, rest })
}
