//! Types: from the bytes of a value to PostgreSQL's text form, exactly as `COPY table TO STDOUT` prints it with DateStyle
//! ISO, TimeZone UTC, IntervalStyle postgres, bytea_output hex, extra_float_digits 1, lc_monetary C and UTF8.
//!
//! A [`TypeOutput`] is resolved once for a column; it is found by the type's *output function* (`pg_type.typoutput`),
//! whose oids are fixed for built-in functions, so domains, arrays, enums and composite types need no lists of types.
//! Payloads are not trusted: a value that makes no sense is an error of [`ErrorKind::Value`].

pub mod copy;
mod datetime;
mod digits;
mod float;
mod nested;
mod numeric;

use crate::{
    error::{Error, ErrorKind, Result},
    schema::{TypeCatalog, TypeInfo},
};
use nested::{Bad, Text, bad, exactly};

/// Prints the values of one type.
#[derive(Clone, Debug)]
pub struct TypeOutput {
    name: Box<str>,
    form: Form,
}

/// How a value is shown in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonForm {
    Bool,
    Number,
    Json,
    String,
}

/// What there is to do for one value; one variant for each output function, so that writing is one `match`.
#[derive(Clone, Debug)]
enum Form {
    Bool,
    Char { octal: bool },
    Name,
    Int2,
    Int4,
    Int8,
    Oid,
    Float4,
    Float8,
    Numeric,
    Text,
    Bytea,
    Date,
    Timestamp { zone: bool },
    Uuid,
}

impl TypeOutput {
    /// Finds out how values of `type_oid` are printed. `typmod` is the column's; no text form depends on it, because
    /// values were brought to their typmod when they were stored.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for types whose output function is not one of PostgreSQL's own (extensions) or that
    /// cannot be in a table, and when `catalog` lacks the type.
    pub fn new(type_oid: u32, typmod: i32, catalog: &TypeCatalog) -> Result<Self> {
        let _ = typmod;
        let info = catalog.types.get(&type_oid).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("the type with oid {type_oid} is not in pg_type"))
        })?;
        Ok(Self { name: info.name.as_str().into(), form: form(info, catalog)? })
    }

    /// Appends the text of a value to `out`, unescaped. `payload`: fixed-length types their `typlen` bytes as they lie
    /// in the tuple, varlena types the bytes behind the header (detoasted), cstring the bytes before the NUL.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] if the payload is not a value of the type; `out` is then as it was.
    #[inline]
    pub fn write(&self, payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        self.form.write(payload, out).map_err(|bad| {
            out.truncate(start);
            self.error(bad)
        })
    }

    #[cold]
    fn error(&self, Bad { what, number }: Bad) -> Error {
        Error::new(
            ErrorKind::Value,
            match number {
                Some(number) => format!("value of type {}: {what} {number}", self.name),
                None => format!("value of type {}: {what}", self.name),
            },
        )
    }

    /// How JSON shows the values.
    pub(crate) fn json_form(&self) -> JsonForm {
        match self.form {
            Form::Bool => JsonForm::Bool,
            Form::Int2 | Form::Int4 | Form::Int8 | Form::Oid | Form::Float4 | Form::Float8 | Form::Numeric => {
                JsonForm::Number
            }
            _ => JsonForm::String,
        }
    }
}

fn unsupported(info: &TypeInfo, why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("type {}.{} cannot be printed: {why}", info.namespace, info.name))
        .with_hint("leave the column out, or read it as bytes")
}

fn form(info: &TypeInfo, catalog: &TypeCatalog) -> Result<Form> {
    Ok(match info.output {
        31 => Form::Bytea,
        33 => Form::Char { octal: catalog.major_version >= 16 },
        35 => Form::Name,
        39 => Form::Int2,
        43 => Form::Int4,
        // textout, bpcharout and varcharout.
        47 | 1045 | 1047 => Form::Text,
        201 => Form::Float4,
        215 => Form::Float8,
        461 => Form::Int8,
        1085 => Form::Date,
        1151 => Form::Timestamp { zone: true },
        1243 => Form::Bool,
        1313 => Form::Timestamp { zone: false },
        1702 => Form::Numeric,
        1799 => Form::Oid,
        2953 => Form::Uuid,
        _ => return Err(unsupported(info, "its output function is not one that heapscan knows")),
    })
}

impl Form {
    fn write(&self, payload: &[u8], out: &mut Vec<u8>) -> Text {
        match self {
            Self::Bool => out.push(if exactly::<1>(payload)? == [0] { b'f' } else { b't' }),
            Self::Char { octal } => write_char(exactly::<1>(payload)?[0], *octal, out),
            Self::Name => write_name(payload, out)?,
            Self::Int2 => digits::push_i64(i16::from_le_bytes(exactly(payload)?).into(), out),
            Self::Int4 => digits::push_i64(i32::from_le_bytes(exactly(payload)?).into(), out),
            Self::Int8 => digits::push_i64(i64::from_le_bytes(exactly(payload)?), out),
            Self::Oid => digits::push_u32(u32::from_le_bytes(exactly(payload)?), out),
            Self::Float4 => float::push_f32(f32::from_le_bytes(exactly(payload)?), out),
            Self::Float8 => float::push_f64(f64::from_le_bytes(exactly(payload)?), out),
            Self::Numeric => numeric::write(payload, out)?,
            Self::Text => out.extend_from_slice(payload),
            Self::Bytea => {
                out.extend_from_slice(b"\\x");
                digits::push_hex(payload, out);
            }
            Self::Date => datetime::date(i32::from_le_bytes(exactly(payload)?), out)?,
            Self::Timestamp { zone } => datetime::timestamp(i64::from_le_bytes(exactly(payload)?), *zone, out)?,
            Self::Uuid => write_uuid(exactly(payload)?, out),
        }
        Ok(())
    }
}

/// `"char"`: a byte. Zero is the empty string; from PostgreSQL 16 on, bytes that are not ASCII are `\ooo`.
fn write_char(byte: u8, octal: bool, out: &mut Vec<u8>) {
    match byte {
        0 => {}
        0x80.. if octal => {
            out.extend_from_slice(&[b'\\', b'0' + (byte >> 6), b'0' + (byte >> 3 & 7), b'0' + (byte & 7)]);
        }
        _ => out.push(byte),
    }
}

/// A name: up to 63 bytes, NULs behind.
fn write_name(payload: &[u8], out: &mut Vec<u8>) -> Text {
    if payload.len() > 64 {
        return Err(bad("a name has more than 64 bytes"));
    }
    let len = payload.iter().position(|&byte| byte == 0).unwrap_or(payload.len());
    out.extend_from_slice(&payload[..len]);
    Ok(())
}

fn write_uuid(uuid: [u8; 16], out: &mut Vec<u8>) {
    for (i, part) in [0..4, 4..6, 6..8, 8..10, 10..16].into_iter().enumerate() {
        if i > 0 {
            out.push(b'-');
        }
        digits::push_hex(&uuid[part], out);
    }
}
