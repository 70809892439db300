//! The formats that rows are written in: COPY's text and CSV, and lines of JSON.

use super::{JsonForm, TypeOutput};
use crate::error::Result;

/// For each byte what follows the backslash in COPY's text format, or 0.
const ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    table[0x08] = b'b';
    table[0x09] = b't';
    table[0x0a] = b'n';
    table[0x0b] = b'v';
    table[0x0c] = b'f';
    table[0x0d] = b'r';
    table[b'\\' as usize] = b'\\';
    table
};

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Whether one of eight bytes could need an escape: has a byte below 0x20 or a backslash.
/// May say yes for bytes that follow such a byte, never no.
fn suspicious(word: u64, also: u8) -> bool {
    let low = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
    let other = word ^ (ONES * u64::from(also));
    let equal = other.wrapping_sub(ONES) & !other & HIGHS;
    low | equal != 0
}

/// The length of the prefix of `text` that surely needs no escape, in steps of eight bytes.
fn clean_prefix(text: &[u8], also: u8, also2: u8) -> usize {
    let (words, _) = text.as_chunks::<8>();
    let clean = words.iter().take_while(|word| {
        let word = u64::from_le_bytes(**word);
        !suspicious(word, also) && (also == also2 || !suspicious(word, also2))
    });
    clean.count() * 8
}

/// Whether `text` surely needs no escape in COPY's text format.
fn is_clean(text: &[u8]) -> bool {
    let Some(last) = text.last_chunk::<8>() else {
        return text.iter().all(|&byte| ESCAPES[usize::from(byte)] == 0);
    };
    // The last eight bytes overlap the words before them.
    let (words, _) = text.as_chunks::<8>();
    !words.iter().chain([last]).any(|word| suspicious(u64::from_le_bytes(*word), b'\\'))
}

/// Appends `text` as a field of COPY's text format: backslash, tab, newline and the like escaped. (A NULL is `\N`,
/// which the caller writes; fields are separated by tabs.)
pub fn escape_text(text: &[u8], out: &mut Vec<u8>) {
    if is_clean(text) {
        return out.extend_from_slice(text);
    }
    let mut rest = text;
    while !rest.is_empty() {
        let clean = clean_prefix(rest, b'\\', b'\\');
        out.extend_from_slice(&rest[..clean]);
        rest = &rest[clean..];
        let (near, far) = rest.split_at(rest.len().min(8));
        for &byte in near {
            match ESCAPES[usize::from(byte)] {
                0 => out.push(byte),
                escape => out.extend_from_slice(&[b'\\', escape]),
            }
        }
        rest = far;
    }
}

/// Appends `text` as a field of COPY's CSV format with its defaults: delimiter `,`, quote and escape `"`, NULL (`None`)
/// empty and the empty string `""`. `single` says that the row has one column only: `\.` alone on a line is the
/// end-of-data mark and is quoted.
pub fn csv_field(text: Option<&[u8]>, single: bool, out: &mut Vec<u8>) {
    let Some(text) = text else { return };
    let special = |byte: &u8| matches!(byte, b',' | b'"' | b'\n' | b'\r');
    let quote = text.is_empty() || text.iter().any(special) || single && text == b"\\.";
    if !quote {
        return out.extend_from_slice(text);
    }
    out.push(b'"');
    for part in text.split_inclusive(|&byte| byte == b'"') {
        out.extend_from_slice(part);
        if part.last() == Some(&b'"') {
            out.push(b'"');
        }
    }
    out.push(b'"');
}

/// Appends `text` as a JSON string. Bytes that are not UTF-8 (a database can be SQL_ASCII, `"char"` can hold any byte)
/// become U+FFFD, because JSON has no other way.
pub fn json_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for chunk in text.utf8_chunks() {
        escape_json(chunk.valid().as_bytes(), out);
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out.push(b'"');
}

/// Appends `text` with JSON's escapes, as the server's `escape_json` chooses them.
pub(super) fn escape_json(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while !rest.is_empty() {
        let clean = clean_prefix(rest, b'\\', b'"');
        out.extend_from_slice(&rest[..clean]);
        rest = &rest[clean..];
        let (near, far) = rest.split_at(rest.len().min(8));
        for &byte in near {
            match byte {
                0x08 => out.extend_from_slice(b"\\b"),
                0x0c => out.extend_from_slice(b"\\f"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                0..0x20 => {
                    out.extend_from_slice(b"\\u00");
                    super::digits::push_hex(&[byte], out);
                }
                _ => out.push(byte),
            }
        }
        rest = far;
    }
}

/// Appends a value as JSON: `null`, `true`/`false`, integers, floats and numerics as numbers, json and jsonb embedded,
/// everything else (NaN and infinities too, which JSON lacks) as the string of its text form. One line: line breaks
/// between the tokens of a json value become spaces.
///
/// # Errors
/// Those of [`TypeOutput::write`]; `out` is then as it was.
pub fn json_value(output: &TypeOutput, payload: Option<&[u8]>, out: &mut Vec<u8>) -> Result<()> {
    let Some(payload) = payload else {
        out.extend_from_slice(b"null");
        return Ok(());
    };
    let start = out.len();
    output.write(payload, out)?;
    match output.json_form() {
        JsonForm::Bool => {
            let text = if out[start..] == *b"t" { &b"true"[..] } else { b"false" };
            out.truncate(start);
            out.extend_from_slice(text);
        }
        JsonForm::Number if out[start..].iter().any(u8::is_ascii_digit) => {}
        JsonForm::Json => {
            for byte in &mut out[start..] {
                if matches!(byte, b'\n' | b'\r') {
                    *byte = b' ';
                }
            }
        }
        JsonForm::Number | JsonForm::String => {
            let clean = |byte: &u8| matches!(byte, 0x20..=0x7e) && !matches!(byte, b'"' | b'\\');
            if out[start..].iter().all(clean) {
                out.insert(start, b'"');
                out.push(b'"');
            } else {
                let text = out.split_off(start);
                json_string(&text, out);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        escape_text(text, &mut out);
        out
    }

    #[test]
    fn copy_escapes_at_every_position() {
        for byte in 0..=255_u8 {
            for at in 0..20 {
                let mut text = vec![b'x'; 20];
                text[at] = byte;
                let mut expected = Vec::new();
                for &byte in &text {
                    match byte {
                        8 => expected.extend(b"\\b"),
                        9 => expected.extend(b"\\t"),
                        10 => expected.extend(b"\\n"),
                        11 => expected.extend(b"\\v"),
                        12 => expected.extend(b"\\f"),
                        13 => expected.extend(b"\\r"),
                        b'\\' => expected.extend(b"\\\\"),
                        byte => expected.push(byte),
                    }
                }
                assert_eq!(escaped(&text), expected);
                let mut json = Vec::new();
                json_string(&text, &mut json);
                let back: String = serde_json::from_slice(&json).expect("JSON");
                assert_eq!(back, String::from_utf8_lossy(&text));
            }
        }
        assert_eq!(escaped(b""), b"");
        assert_eq!(escaped(b"\\N"), b"\\\\N");
    }

    #[test]
    fn csv() {
        for (text, expected) in [
            (None, ""),
            (Some(""), "\"\""),
            (Some("a b"), "a b"),
            (Some("a,b"), "\"a,b\""),
            (Some("say \"hi\""), "\"say \"\"hi\"\"\""),
            (Some("\""), "\"\"\"\""),
            (Some("a\nb"), "\"a\nb\""),
            (Some("\r"), "\"\r\""),
            (Some("\\."), "\\."),
        ] {
            let mut out = Vec::new();
            csv_field(text.map(str::as_bytes), false, &mut out);
            assert_eq!(String::from_utf8(out).expect("ASCII"), expected);
        }
        let mut out = Vec::new();
        csv_field(Some(b"\\."), true, &mut out);
        assert_eq!(out, b"\"\\.\"");
    }
}
