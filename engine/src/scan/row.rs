//! A row as the API shows it: values by position, without copying them where they lie plain on the page.

use super::context::TableContext;
use crate::{
    Error, ErrorKind, Result,
    heap::{Datum, Detoaster, TupleRef},
    types::{TypeOutput, copy},
};
use std::fmt;

/// One visible row of the current page.
///
/// Columns are counted from 0 in the order in which the scan was asked for them. The typed accessors check the
/// column's type: asking an `int8` column for an [`i32`](Self::i32) is an error, never a truncated value.
pub struct Row<'a> {
    pub(super) tuple: TupleRef<'a>,
    pub(super) values: &'a [Datum<'a>],
    pub(super) context: &'a TableContext,
    pub(super) columns: &'a [usize],
    pub(super) outputs: &'a [Option<TypeOutput>],
    pub(super) detoaster: &'a mut Detoaster<super::toast::PoolChunks>,
}

/// The oids of `pg_type` that the typed accessors look for.
mod oid {
    pub(super) const BOOL: u32 = 16;
    pub(super) const BYTEA: u32 = 17;
    pub(super) const NAME: u32 = 19;
    pub(super) const INT8: u32 = 20;
    pub(super) const INT2: u32 = 21;
    pub(super) const INT4: u32 = 23;
    pub(super) const TEXT: u32 = 25;
    pub(super) const OID: u32 = 26;
    pub(super) const FLOAT4: u32 = 700;
    pub(super) const FLOAT8: u32 = 701;
    pub(super) const BPCHAR: u32 = 1042;
    pub(super) const VARCHAR: u32 = 1043;
}

impl<'a> Row<'a> {
    /// Number of columns.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The row's `ctid`: block, and line pointer number from 1.
    pub fn ctid(&self) -> (u32, u16) {
        (self.tuple.block(), self.tuple.number())
    }

    /// The inserting transaction, as stored.
    pub fn xmin(&self) -> u32 {
        self.tuple.xmin()
    }

    /// The deleting or locking transaction (or multixact), as stored; 0 when there is none.
    pub fn xmax(&self) -> u32 {
        self.tuple.xmax()
    }

    /// The value as it lies in the tuple, header and compression included.
    ///
    /// # Errors
    /// `Usage` if there is no such column; so for all accessors.
    pub fn datum(&self, column: usize) -> Result<Datum<'a>> {
        self.values.get(column).copied().ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("the scan has {} columns, there is no column {column}", self.len()))
        })
    }

    /// Whether the value is NULL.
    pub fn is_null(&self, column: usize) -> Result<bool> {
        Ok(self.datum(column)? == Datum::Null)
    }

    /// A `boolean`.
    pub fn bool(&self, column: usize) -> Result<Option<bool>> {
        Ok(self.fixed(column, oid::BOOL, "boolean")?.map(|[b]| b != 0))
    }

    /// A `smallint`.
    pub fn i16(&self, column: usize) -> Result<Option<i16>> {
        Ok(self.fixed(column, oid::INT2, "smallint")?.map(i16::from_le_bytes))
    }

    /// An `integer`.
    pub fn i32(&self, column: usize) -> Result<Option<i32>> {
        Ok(self.fixed(column, oid::INT4, "integer")?.map(i32::from_le_bytes))
    }

    /// Any integer type: `smallint`, `integer`, `bigint`, `oid`.
    pub fn i64(&self, column: usize) -> Result<Option<i64>> {
        Ok(match self.type_of(column)? {
            oid::INT2 => self.i16(column)?.map(i64::from),
            oid::INT4 => self.i32(column)?.map(i64::from),
            oid::OID => self.fixed(column, oid::OID, "oid")?.map(|b| u32::from_le_bytes(b).into()),
            _ => self.fixed(column, oid::INT8, "bigint")?.map(i64::from_le_bytes),
        })
    }

    /// A `real`.
    pub fn f32(&self, column: usize) -> Result<Option<f32>> {
        Ok(self.fixed(column, oid::FLOAT4, "real")?.map(f32::from_le_bytes))
    }

    /// A `double precision`, or a `real`.
    pub fn f64(&self, column: usize) -> Result<Option<f64>> {
        if self.type_of(column)? == oid::FLOAT4 {
            return Ok(self.f32(column)?.map(f64::from));
        }
        Ok(self.fixed(column, oid::FLOAT8, "double precision")?.map(f64::from_le_bytes))
    }

    /// A `text`, `varchar`, `char(n)` (padded, as stored) or `name`. Borrowed from the page where it lies there plain.
    ///
    /// # Errors
    /// `Value` also if the bytes are not UTF-8: the database has another encoding. See [`bytes`](Self::bytes).
    pub fn str(&mut self, column: usize) -> Result<Option<&str>> {
        let type_oid = self.type_of(column)?;
        if !matches!(type_oid, oid::TEXT | oid::VARCHAR | oid::BPCHAR | oid::NAME) {
            return Err(self.wrong_type(column, "a text type"));
        }
        let name = self.column_name(column);
        let Some(mut bytes) = self.bytes(column)? else { return Ok(None) };
        if type_oid == oid::NAME {
            bytes = &bytes[..bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len())];
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Error::new(ErrorKind::Value, format!("column {name} is not UTF-8: take its bytes"))),
        }
    }

    /// The value's bytes: of fixed-length types as stored (little-endian), of others the content without header,
    /// decompressed and put together. A `bytea`'s bytes, a text's text in the database's encoding.
    ///
    /// # Errors
    /// `Value` if an out-of-line or compressed value is damaged.
    pub fn bytes(&mut self, column: usize) -> Result<Option<&[u8]>> {
        payload(self.datum(column)?, self.detoaster)
    }

    /// A `bytea`.
    pub fn bytea(&mut self, column: usize) -> Result<Option<&[u8]>> {
        if self.type_of(column)? != oid::BYTEA {
            return Err(self.wrong_type(column, "bytea"));
        }
        self.bytes(column)
    }

    /// Appends the value's text as the server's output function prints it. `false`: it is NULL and nothing was written.
    pub fn write_text(&mut self, column: usize, out: &mut Vec<u8>) -> Result<bool> {
        let datum = self.datum(column)?;
        let Some(bytes) = payload(datum, self.detoaster)? else { return Ok(false) };
        match &self.outputs[column] {
            Some(output) => output.write(bytes, out)?,
            None => return Err(self.no_text(column)),
        }
        Ok(true)
    }

    /// Appends the value as JSON.
    pub(super) fn write_json(&mut self, column: usize, out: &mut Vec<u8>) -> Result<()> {
        let datum = self.datum(column)?;
        let bytes = payload(datum, self.detoaster)?;
        match &self.outputs[column] {
            Some(output) => copy::json_value(output, bytes, out),
            None => Err(self.no_text(column)),
        }
    }

    #[cold]
    fn no_text(&self, column: usize) -> Error {
        let attribute = self.context.attribute_at(self.columns[column]);
        match TypeOutput::new(attribute.type_oid, attribute.typmod, &self.context.types) {
            Err(error) => error,
            Ok(_) => self.wrong_type(column, "of a type with a text form"),
        }
    }

    fn type_of(&self, column: usize) -> Result<u32> {
        self.datum(column)?;
        Ok(self.context.base_type_at(self.columns[column]))
    }

    fn column_name(&self, column: usize) -> String {
        self.columns.get(column).map_or_else(String::new, |&i| self.context.attribute_at(i).name.clone())
    }

    fn fixed<const N: usize>(&self, column: usize, type_oid: u32, type_name: &str) -> Result<Option<[u8; N]>> {
        let datum = self.datum(column)?;
        if self.type_of(column)? != type_oid {
            return Err(self.wrong_type(column, type_name));
        }
        match datum {
            Datum::Null => Ok(None),
            Datum::Fixed(bytes) => Ok(Some(bytes.try_into().map_err(|_| self.wrong_type(column, type_name))?)),
            Datum::Varlena(_) | Datum::CString(_) => Err(self.wrong_type(column, type_name)),
        }
    }

    fn wrong_type(&self, column: usize, wanted: &str) -> Error {
        let index = self.columns.get(column).copied();
        let type_oid = index.map_or(0, |i| self.context.attribute_at(i).type_oid);
        let have = self.context.types.types.get(&type_oid).map_or("an unknown type", |t| t.name.as_str());
        Error::new(ErrorKind::Usage, format!("column {} is {have}, not {wanted}", self.column_name(column)))
    }
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row").field("ctid", &self.ctid()).field("values", &self.values).finish()
    }
}

/// The content of a value, wherever it lies; `None` is NULL.
pub(crate) fn payload<'b>(
    datum: Datum<'b>,
    detoaster: &'b mut Detoaster<super::toast::PoolChunks>,
) -> Result<Option<&'b [u8]>> {
    Ok(match datum {
        Datum::Null => None,
        Datum::Fixed(bytes) | Datum::CString(bytes) => Some(bytes),
        Datum::Varlena(raw) => Some(detoaster.payload(raw)?),
    })
}
