//! Text of databases whose encoding is not UTF-8, converted as the server converts it for a client that asks for UTF-8.

use encoding_rs::Encoding;

/// How text of one server encoding becomes UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoder {
    /// Bytes 0x80 to 0x9f are the control characters of the same number, as ISO 8859 has them; the others are
    /// converted, or are code points too (LATIN1).
    Iso(Option<&'static Encoding>),
    /// Converted as the encoding standard says.
    Standard(&'static Encoding),
    /// The same, but for some codes that PostgreSQL converts otherwise. Codes above ASCII have the number of bytes.
    Except(&'static Encoding, usize, &'static [(&'static [u8], char)]),
}

/// What PostgreSQL's conversion tables (`src/backend/utils/mb/Unicode`) have otherwise than the encoding standard.
const EUC_CN: &[(&[u8], char)] = &[(b"\xa1\xa4", '\u{30fb}'), (b"\xa1\xaa", '\u{2015}')];
const EUC_KR: &[(&[u8], char)] = &[(b"\xa2\xe8", '\u{327e}')];
const KOI8U: &[(&[u8], char)] = &[(b"\xae", '\u{255d}'), (b"\xbe", '\u{256c}')];

/// The names of `pg_enc` (`src/include/mb/pg_wchar.h`), by number.
const NAMES: [&str; 35] = [
    "SQL_ASCII",
    "EUC_JP",
    "EUC_CN",
    "EUC_KR",
    "EUC_TW",
    "EUC_JIS_2004",
    "UTF8",
    "MULE_INTERNAL",
    "LATIN1",
    "LATIN2",
    "LATIN3",
    "LATIN4",
    "LATIN5",
    "LATIN6",
    "LATIN7",
    "LATIN8",
    "LATIN9",
    "LATIN10",
    "WIN1256",
    "WIN1258",
    "WIN866",
    "WIN874",
    "KOI8R",
    "WIN1251",
    "WIN1252",
    "ISO_8859_5",
    "ISO_8859_6",
    "ISO_8859_7",
    "ISO_8859_8",
    "WIN1250",
    "WIN1253",
    "WIN1254",
    "WIN1255",
    "WIN1257",
    "KOI8U",
];

/// The name of a server encoding.
pub(super) fn name(encoding: i32) -> &'static str {
    usize::try_from(encoding).ok().and_then(|number| NAMES.get(number).copied()).unwrap_or("unknown")
}

impl Decoder {
    /// The decoder for a server encoding; `None` for those that cannot be converted: `SQL_ASCII`, which says nothing
    /// about its bytes, and some rare ones.
    pub(super) fn new(encoding: i32) -> Option<Self> {
        use encoding_rs as e;
        Some(match encoding {
            1 => Self::Standard(e::EUC_JP),
            2 => Self::Except(e::GBK, 2, EUC_CN),
            3 => Self::Except(e::EUC_KR, 2, EUC_KR),
            8 => Self::Iso(None),
            9 => Self::Iso(Some(e::ISO_8859_2)),
            10 => Self::Iso(Some(e::ISO_8859_3)),
            11 => Self::Iso(Some(e::ISO_8859_4)),
            12 => Self::Iso(Some(e::WINDOWS_1254)),
            13 => Self::Iso(Some(e::ISO_8859_10)),
            14 => Self::Iso(Some(e::ISO_8859_13)),
            15 => Self::Iso(Some(e::ISO_8859_14)),
            16 => Self::Iso(Some(e::ISO_8859_15)),
            17 => Self::Iso(Some(e::ISO_8859_16)),
            18 => Self::Standard(e::WINDOWS_1256),
            19 => Self::Standard(e::WINDOWS_1258),
            20 => Self::Standard(e::IBM866),
            21 => Self::Standard(e::WINDOWS_874),
            22 => Self::Standard(e::KOI8_R),
            23 => Self::Standard(e::WINDOWS_1251),
            24 => Self::Standard(e::WINDOWS_1252),
            25 => Self::Iso(Some(e::ISO_8859_5)),
            26 => Self::Iso(Some(e::ISO_8859_6)),
            27 => Self::Iso(Some(e::ISO_8859_7)),
            28 => Self::Iso(Some(e::ISO_8859_8)),
            29 => Self::Standard(e::WINDOWS_1250),
            30 => Self::Standard(e::WINDOWS_1253),
            31 => Self::Standard(e::WINDOWS_1254),
            32 => Self::Standard(e::WINDOWS_1255),
            33 => Self::Standard(e::WINDOWS_1257),
            34 => Self::Except(e::KOI8_U, 1, KOI8U),
            _ => return None,
        })
    }

    /// Appends `text` as UTF-8. `false`: it has bytes that the encoding does not have.
    pub(super) fn decode(self, text: &[u8], out: &mut Vec<u8>) -> bool {
        let mut utf8 = [0; 4];
        match self {
            Self::Standard(encoding) => return standard(encoding, text, out),
            Self::Except(encoding, width, exceptions) => {
                let (mut from, mut at) = (0, 0);
                while let Some(byte) = text.get(at) {
                    let code = text.get(at..at + if byte.is_ascii() { 1 } else { width }).unwrap_or_default();
                    if let Some((_, exception)) = exceptions.iter().find(|(bytes, _)| *bytes == code) {
                        if !standard(encoding, &text[from..at], out) {
                            return false;
                        }
                        out.extend_from_slice(exception.encode_utf8(&mut utf8).as_bytes());
                        from = at + code.len();
                    }
                    at += code.len().max(1);
                }
                return standard(encoding, &text[from..], out);
            }
            Self::Iso(encoding) => {
                for &byte in text {
                    let part = match (byte, encoding) {
                        (0xa0.., Some(encoding)) => {
                            match encoding.decode_without_bom_handling_and_without_replacement(&[byte]) {
                                Some(text) => {
                                    out.extend_from_slice(text.as_bytes());
                                    continue;
                                }
                                None => return false,
                            }
                        }
                        _ => char::from(byte).encode_utf8(&mut utf8),
                    };
                    out.extend_from_slice(part.as_bytes());
                }
            }
        }
        true
    }
}

fn standard(encoding: &'static Encoding, text: &[u8], out: &mut Vec<u8>) -> bool {
    match encoding.decode_without_bom_handling_and_without_replacement(text) {
        Some(text) => {
            out.extend_from_slice(text.as_bytes());
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_postgresql_converts_otherwise() {
        let text = |encoding, bytes: &[u8]| {
            let mut out = Vec::new();
            let decoder = Decoder::new(encoding).expect("a decoder");
            decoder.decode(bytes, &mut out).then(|| String::from_utf8(out).expect("UTF-8"))
        };
        assert_eq!(text(34, b"a\xaeb\xbe\xc1").as_deref(), Some("a\u{255d}b\u{256c}\u{430}"));
        assert_eq!(text(3, b"\xa2\xe8x\xb0\xa1").as_deref(), Some("\u{327e}x\u{ac00}"));
        assert_eq!(text(2, b"\xb0\xa1\xa1\xa4\xa1\xaa").as_deref(), Some("\u{554a}\u{30fb}\u{2015}"));
        // The second byte of one character and the first of the next are no code.
        assert_eq!(text(2, b"\xb0\xa1\xa4\xa1").as_deref(), Some("\u{554a}\u{3041}"));
        assert_eq!(text(3, b"\xa2"), None);
        assert_eq!(text(8, b"\x80\xe9").as_deref(), Some("\u{80}\u{e9}"));
        assert_eq!(text(12, b"\x80\xfd").as_deref(), Some("\u{80}\u{131}"));
        assert!(Decoder::new(0).is_none() && name(0) == "SQL_ASCII" && name(99) == "unknown");
    }
}
