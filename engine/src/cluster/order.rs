//! How values of a column are compared: collations and the order of enum labels. Read only when a filter asks.

use super::Database;
use crate::{Error, ErrorKind, Result};
use rustc_hash::FxHashMap;

/// `DEFAULT_COLLATION_OID`: the database's.
const DEFAULT: u32 = 100;
/// `C_COLLATION_OID` and the one of POSIX.
const C: u32 = 950;
const POSIX: u32 = 951;

/// What of a collation matters for comparing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collation {
    /// Its name, for messages.
    pub(crate) name: String,
    /// Different bytes are never equal.
    pub(crate) deterministic: bool,
    /// The order is that of the bytes.
    pub(crate) bytewise: bool,
}

impl Database {
    /// The collation of a column.
    ///
    /// # Errors
    /// Those of scanning the catalogs; `Corrupt` if they do not have it.
    pub(crate) fn collation_of(&self, relation: u32, attribute: i16) -> Result<Collation> {
        let mut oid = None;
        self.catalog("pg_attribute")?.read(&*self.reader, &["attrelid", "attnum", "attcollation"], |row| {
            if row.u32(0)? == relation && row.i16(1)? == attribute {
                oid = Some(row.u32(2)?);
            }
            Ok(())
        })?;
        let plain = |name: &str| Collation { name: name.to_owned(), deterministic: true, bytewise: true };
        match oid {
            Some(DEFAULT) => self.database_collation(),
            Some(C) => Ok(plain("C")),
            Some(POSIX) => Ok(plain("POSIX")),
            Some(oid) => self.collation(oid),
            None => Err(Error::new(
                ErrorKind::Corrupt,
                format!("pg_attribute has no row of column {attribute} of relation {relation}"),
            )),
        }
    }

    /// The default collation of the database: deterministic in all versions up to 18.
    fn database_collation(&self) -> Result<Collation> {
        let major = self.cluster().control().major_version;
        let oid = self.info().oid;
        // The provider came with 15, the builtin one with 17.
        let columns: &[&str] = match major {
            ..=14 => &["oid", "datcollate"],
            15 | 16 => &["oid", "datcollate", "datlocprovider", "daticulocale"],
            _ => &["oid", "datcollate", "datlocprovider", "datlocale"],
        };
        let mut found = None;
        self.catalog("pg_database")?.read(&*self.reader, columns, |row| {
            if row.u32(0)? == oid {
                let provider = if columns.len() > 2 { row.char(2)? } else { b'c' };
                let locale = if provider == b'c' { 1 } else { 3 };
                let name = row.bytes(locale).map(text).unwrap_or_default();
                found = Some(Collation {
                    deterministic: true,
                    bytewise: is_bytewise(provider, &name),
                    name: format!("default ({name})"),
                });
            }
            Ok(())
        })?;
        found.ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("pg_database has no row of database {oid}")))
    }

    fn collation(&self, oid: u32) -> Result<Collation> {
        let major = self.cluster().control().major_version;
        let columns: &[&str] = match major {
            ..=14 => &["oid", "collname", "collprovider", "collisdeterministic", "collcollate"],
            15 | 16 => &["oid", "collname", "collprovider", "collisdeterministic", "collcollate", "colliculocale"],
            _ => &["oid", "collname", "collprovider", "collisdeterministic", "collcollate", "colllocale"],
        };
        let mut found = None;
        self.catalog("pg_collation")?.read(&*self.reader, columns, |row| {
            if row.u32(0)? == oid {
                let provider = row.char(2)?;
                let locale = if provider == b'c' || columns.len() == 5 { 4 } else { 5 };
                let name = row.name(1)?;
                let bytewise =
                    name == "ucs_basic" || is_bytewise(provider, &row.bytes(locale).map(text).unwrap_or_default());
                found = Some(Collation { name, deterministic: row.bool(3)?, bytewise });
            }
            Ok(())
        })?;
        found.ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("pg_collation has no collation {oid}")))
    }

    /// The labels of an enum in their order: oid and label.
    ///
    /// # Errors
    /// Those of scanning `pg_enum`.
    pub(crate) fn enum_order(&self, enum_type: u32) -> Result<Vec<(u32, String)>> {
        let mut labels: FxHashMap<u32, (f32, String)> = FxHashMap::default();
        let columns = ["oid", "enumtypid", "enumsortorder", "enumlabel"];
        self.catalog("pg_enum")?.read(&*self.reader, &columns, |row| {
            if row.u32(1)? == enum_type {
                labels.insert(row.u32(0)?, (row.f32(2)?, row.name(3)?));
            }
            Ok(())
        })?;
        let mut labels: Vec<_> = labels.into_iter().collect();
        labels.sort_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b));
        Ok(labels.into_iter().map(|(oid, (_, label))| (oid, label)).collect())
    }
}

/// A locale's name: of type name up to 14, text from 15 on.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Whether a provider compares the bytes for this locale. The builtin one does for all of its locales, whose order is
/// that of code points; libc's `C.UTF-8` is compared by libc.
fn is_bytewise(provider: u8, locale: &str) -> bool {
    match provider {
        b'b' => true,
        b'c' => matches!(locale, "C" | "POSIX"),
        _ => false,
    }
}
