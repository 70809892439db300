//! Types: from the bytes of a value to PostgreSQL's text form, exactly as `COPY table TO STDOUT` prints it with DateStyle
//! ISO, TimeZone UTC, IntervalStyle postgres, bytea_output hex, extra_float_digits 1, lc_monetary C and UTF8.
//!
//! A [`TypeOutput`] is resolved once for a column; it is found by the type's *output function* (`pg_type.typoutput`),
//! whose oids are fixed for built-in functions, so domains, arrays, enums and composite types need no lists of types.
//! Payloads are not trusted: a value that makes no sense is an error of [`ErrorKind::Value`].

mod array;
mod bits;
mod composite;
pub mod copy;
mod datetime;
mod digits;
mod extension;
mod float;
mod geometric;
mod interval;
mod jsonb;
mod jsonpath;
mod misc;
mod nested;
mod network;
mod numeric;
mod range;
mod reg;
mod resolve;
#[cfg(test)]
mod tests;
mod textsearch;

#[cfg(feature = "arrow")]
pub(crate) use array::{ListValues, list_values};
pub(crate) use numeric::Numeric;

use crate::{
    error::{Error, ErrorKind, Result},
    schema::TypeCatalog,
};
use nested::{Bad, Text, bad, exactly};
use rustc_hash::FxHashMap;
use std::sync::Arc;

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
    Char {
        octal: bool,
    },
    Name,
    Int2,
    Int4,
    Int8,
    Oid,
    /// xid and cid.
    Xid,
    Xid8,
    Tid,
    Lsn,
    Float4,
    Float8,
    Numeric,
    Money,
    /// Everything whose bytes are its text.
    Text,
    Bytea,
    Date,
    Time,
    Timetz,
    Timestamp {
        zone: bool,
    },
    Interval {
        infinite: bool,
    },
    Uuid,
    Json,
    Jsonb,
    Hstore,
    Ltree,
    Cube,
    /// An extension's type of which only the bytes are known: printed as `bytea` is.
    Raw,
    Jsonpath {
        major: u32,
    },
    Xml,
    Inet {
        cidr: bool,
    },
    Macaddr,
    Macaddr8,
    Shape(geometric::Shape),
    Bits,
    Tsvector,
    Tsquery,
    Snapshot,
    Ndistinct,
    Dependencies,
    Vector {
        wide: bool,
    },
    Reg {
        names: reg::Names,
        none: u8,
    },
    Enum(reg::Names),
    Acl {
        roles: reg::Names,
        wide: bool,
    },
    Array(Box<array::ArrayForm>),
    AnyArray(Arc<FxHashMap<u32, array::ArrayForm>>),
    Record(Box<composite::RecordForm>),
    Range(Box<range::RangeForm>),
    Multirange(Box<range::RangeForm>),
}

impl TypeOutput {
    /// Finds out how values of `type_oid` are printed. `typmod` is the column's; no text form depends on it, because
    /// values were brought to their typmod when they were stored.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for types that cannot be in a table, and when `catalog` lacks the type. Of extensions'
    /// types that heapscan does not know, the bytes are printed: see [`is_raw`](Self::is_raw).
    pub fn new(type_oid: u32, typmod: i32, catalog: &TypeCatalog) -> Result<Self> {
        let _ = typmod;
        let mut resolver = resolve::Resolver::new(catalog);
        let info = resolver.info(type_oid)?;
        Ok(Self { name: info.name.as_str().into(), form: resolver.form(info)? })
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

    /// Whether only the value's bytes are known, which are then printed as `bytea` is: the type is an extension's.
    pub fn is_raw(&self) -> bool {
        matches!(self.form, Form::Raw)
    }

    /// Whether the text is the payload as it is.
    pub(crate) fn is_payload(&self) -> bool {
        matches!(self.form, Form::Text | Form::Json)
    }

    /// Whether the text never has a character that COPY's text format escapes: digits, letters and plain punctuation.
    pub(crate) fn is_verbatim(&self) -> bool {
        matches!(
            self.form,
            Form::Bool
                | Form::Int2
                | Form::Int4
                | Form::Int8
                | Form::Oid
                | Form::Xid
                | Form::Xid8
                | Form::Tid
                | Form::Lsn
                | Form::Float4
                | Form::Float8
                | Form::Numeric
                | Form::Date
                | Form::Time
                | Form::Timetz
                | Form::Timestamp { .. }
                | Form::Uuid
                | Form::Macaddr
                | Form::Macaddr8
                | Form::Bits
        )
    }

    /// How JSON shows the values.
    pub(crate) fn json_form(&self) -> JsonForm {
        match self.form {
            Form::Bool => JsonForm::Bool,
            Form::Int2 | Form::Int4 | Form::Int8 | Form::Oid | Form::Float4 | Form::Float8 | Form::Numeric => {
                JsonForm::Number
            }
            Form::Json | Form::Jsonb => JsonForm::Json,
            _ => JsonForm::String,
        }
    }
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
            Self::Oid | Self::Xid => digits::push_u32(u32::from_le_bytes(exactly(payload)?), out),
            Self::Xid8 => digits::push_u64(u64::from_le_bytes(exactly(payload)?), out),
            Self::Float4 => float::push_f32(f32::from_le_bytes(exactly(payload)?), out),
            Self::Float8 => float::push_f64(f64::from_le_bytes(exactly(payload)?), out),
            Self::Numeric => numeric::write(payload, out)?,
            Self::Text | Self::Json => out.extend_from_slice(payload),
            Self::Bytea => {
                out.extend_from_slice(b"\\x");
                digits::push_hex(payload, out);
            }
            Self::Date => datetime::date(i32::from_le_bytes(exactly(payload)?), out)?,
            Self::Time => datetime::time(i64::from_le_bytes(exactly(payload)?), out)?,
            Self::Timestamp { zone } => datetime::timestamp(i64::from_le_bytes(exactly(payload)?), *zone, out)?,
            Self::Uuid => write_uuid(exactly(payload)?, out),
            _ => return self.write_rarer(payload, out),
        }
        Ok(())
    }

    /// The types that are rarer or take longer anyway: kept out of [`Self::write`], so that it stays small.
    fn write_rarer(&self, payload: &[u8], out: &mut Vec<u8>) -> Text {
        match self {
            Self::Timetz => {
                let [t @ .., z0, z1, z2, z3] = exactly::<12>(payload)?;
                datetime::timetz(i64::from_le_bytes(t), i32::from_le_bytes([z0, z1, z2, z3]), out)
            }
            Self::Interval { infinite } => interval::write(payload, *infinite, out),
            Self::Jsonb => jsonb::write(payload, out),
            Self::Jsonpath { major } => jsonpath::write(payload, *major, out),
            Self::Inet { cidr } => network::write(payload, *cidr, out),
            Self::Macaddr => network::write_mac(exactly::<6>(payload), out),
            Self::Macaddr8 => network::write_mac(exactly::<8>(payload), out),
            Self::Shape(shape) => geometric::write(*shape, payload, out),
            Self::Bits => bits::write(payload, out),
            Self::Tsvector => textsearch::vector(payload, out),
            Self::Tsquery => textsearch::query(payload, out),
            Self::Snapshot => misc::snapshot(payload, out),
            Self::Ndistinct => misc::ndistinct(payload, out),
            Self::Dependencies => misc::dependencies(payload, out),
            Self::Vector { wide } => array::vector(payload, *wide, out),
            Self::Reg { names, none } => reg::write(payload, names, *none, out),
            Self::Enum(labels) => reg::write_enum(payload, labels, out),
            Self::Acl { roles, wide } => reg::write_acl(payload, roles, *wide, out),
            Self::Array(array) => array.write(payload, out),
            Self::AnyArray(arrays) => {
                let oid = array::element_oid(payload)?;
                let unknown = Bad { what: "an array of elements that cannot be printed, type oid", number: Some(oid) };
                arrays.get(&oid).ok_or(unknown)?.write(payload, out)
            }
            Self::Record(record) => record.write(payload, out),
            Self::Range(range) => range.write(payload, out),
            Self::Multirange(range) => range.write_multi(payload, out),
            Self::Hstore => extension::hstore(payload, out),
            Self::Ltree => extension::ltree(payload, out),
            Self::Cube => extension::cube(payload, out),
            Self::Raw => {
                extension::raw(payload, out);
                Ok(())
            }
            Self::Tid => {
                misc::tid(exactly(payload)?, out);
                Ok(())
            }
            Self::Money => {
                misc::money(i64::from_le_bytes(exactly(payload)?), out);
                Ok(())
            }
            Self::Lsn => {
                let lsn = u64::from_le_bytes(exactly(payload)?);
                digits::push_hex_number((lsn >> 32) as u32, true, out);
                out.push(b'/');
                digits::push_hex_number(lsn as u32, true, out);
                Ok(())
            }
            Self::Xml => {
                misc::xml(payload, out);
                Ok(())
            }
            // All others are written by `write`.
            _ => Err(bad("no output for this form")),
        }
    }

    /// Whether the text never has a character that arrays, records or ranges would have to quote.
    fn is_plain(&self) -> bool {
        matches!(
            self,
            Self::Bool
                | Self::Int2
                | Self::Int4
                | Self::Int8
                | Self::Oid
                | Self::Xid
                | Self::Xid8
                | Self::Float4
                | Self::Float8
                | Self::Numeric
                | Self::Uuid
                | Self::Lsn
                | Self::Macaddr
                | Self::Macaddr8
        )
    }
}

/// `"char"`: a byte. Zero is the empty string; from PostgreSQL 15 on, bytes that are not ASCII are `\ooo`.
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
