//! How the catalogs are read: by the same decoder as every other table, behind one trait.

use super::bytes::array_at;
use crate::{
    Error, ErrorKind, RelationFork, Result,
    schema::{Attribute, RowLayout},
};
use std::sync::Arc;

/// What is called with each row: one value a column, `None` is NULL.
pub type RowVisitor<'v> = dyn FnMut(&[Option<&[u8]>]) -> Result<()> + 'v;

/// Reads the visible rows of a small table. Implemented by the scan; the catalogs need nothing else of it.
pub trait TableReader: Send + Sync {
    /// Calls `row` for every visible row of the relation, in the order of their ctids, with the attributes whose
    /// indexes in `layout` are `columns`, in that order. `None` is NULL; a value of fixed length is its bytes; a
    /// varlena is its payload, decompressed, without header. Catalog columns that the catalogs ask for are never
    /// stored out of line, so an implementation may refuse external values.
    ///
    /// # Errors
    /// Those of the scan, and the first one of `row`, after which it is not called again.
    fn read_rows(
        &self,
        fork: &Arc<RelationFork>,
        layout: &RowLayout,
        columns: &[usize],
        row: &mut RowVisitor<'_>,
    ) -> Result<()>;
}

/// A catalog that can be read.
#[derive(Debug)]
pub(super) struct CatalogTable {
    pub(super) name: &'static str,
    pub(super) fork: Arc<RelationFork>,
    pub(super) layout: RowLayout,
}

impl CatalogTable {
    /// Calls `row` for every row with the columns `names`.
    pub(super) fn read(
        &self,
        reader: &dyn TableReader,
        names: &[&'static str],
        mut row: impl FnMut(&Row<'_>) -> Result<()>,
    ) -> Result<()> {
        let columns: Vec<usize> = names.iter().map(|name| self.column(name)).collect::<Result<_>>()?;
        reader.read_rows(&self.fork, &self.layout, &columns, &mut |values| {
            row(&Row { catalog: self.name, names, values })
        })
    }

    fn column(&self, name: &str) -> Result<usize> {
        let is_it = |a: &Attribute| a.name == name && !a.dropped;
        self.layout.attributes.iter().position(is_it).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("{} has no column {name}", self.name)).with_path(self.fork.path())
        })
    }
}

/// The asked columns of one row of a catalog.
pub(super) struct Row<'a> {
    catalog: &'static str,
    names: &'a [&'static str],
    values: &'a [Option<&'a [u8]>],
}

impl<'a> Row<'a> {
    /// The value of the column at `index` of the names, `None` if NULL.
    pub(super) fn bytes(&self, index: usize) -> Option<&'a [u8]> {
        self.values.get(index).copied().flatten()
    }

    fn fixed<const N: usize>(&self, index: usize) -> Result<[u8; N]> {
        match self.bytes(index) {
            Some(bytes) if bytes.len() == N => array_at(bytes, 0),
            _ => None,
        }
        .ok_or_else(|| self.error(index, format_args!("is not a value of {N} bytes")))
    }

    pub(super) fn u32(&self, index: usize) -> Result<u32> {
        self.fixed(index).map(u32::from_le_bytes)
    }

    pub(super) fn i32(&self, index: usize) -> Result<i32> {
        self.fixed(index).map(i32::from_le_bytes)
    }

    pub(super) fn i16(&self, index: usize) -> Result<i16> {
        self.fixed(index).map(i16::from_le_bytes)
    }

    pub(super) fn f32(&self, index: usize) -> Result<f32> {
        self.fixed(index).map(f32::from_le_bytes)
    }

    /// A `"char"`.
    pub(super) fn char(&self, index: usize) -> Result<u8> {
        self.fixed::<1>(index).map(|[byte]| byte)
    }

    pub(super) fn bool(&self, index: usize) -> Result<bool> {
        self.fixed::<1>(index).map(|[byte]| byte != 0)
    }

    /// A `name`. Bytes that are not UTF-8 (a database in another encoding) are replaced.
    pub(super) fn name(&self, index: usize) -> Result<String> {
        let bytes = self.bytes(index).ok_or_else(|| self.error(index, format_args!("is NULL")))?;
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// An error about the column at `index`.
    pub(super) fn error(&self, index: usize, what: std::fmt::Arguments<'_>) -> Error {
        let name = self.names.get(index).unwrap_or(&"?");
        Error::new(ErrorKind::Corrupt, format!("a row of {}: {name} {what}", self.catalog))
            .with_hint("the catalog is damaged; amcheck or a restore of the backup can tell")
    }
}
