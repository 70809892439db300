//! What all scans of one table share.

use super::{system, toast::ToastTables};
use crate::{
    Error, ErrorKind, RelationFork, Result,
    cluster::RelationInfo,
    engine::EngineInner,
    heap::{PageCheck, ValidPage, VerifyMode},
    pool::{PinnedPage, RelationId},
    schema::{Attribute, TypeCatalog, TypeKind},
};
use std::{ops::Range, sync::Arc};

/// A column as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Name of its type, as in `pg_type`.
    pub type_name: String,
    /// Oid of its type.
    pub type_oid: u32,
    /// Its type modifier; -1 when there is none.
    pub typmod: i32,
    /// Whether it is declared NOT NULL.
    pub not_null: bool,
}

pub(crate) struct TableContext {
    pub(crate) engine: Arc<EngineInner>,
    pub(crate) types: Arc<TypeCatalog>,
    pub(crate) toast: Arc<ToastTables>,
    pub(crate) info: RelationInfo,
    pub(crate) fork: Arc<RelationFork>,
    pub(crate) relation: RelationId,
    /// Type of each attribute with domains replaced by what they are over; 0 for dropped ones.
    pub(crate) base_types: Vec<u32>,
    /// The relations that have rows of this one: partitions, or children; each with the index of the attribute there for
    /// each one here (of dropped ones that of nothing).
    pub(crate) parts: Vec<(Arc<Self>, Vec<usize>)>,
}

/// Longer chains of domains are damage, or a cycle.
const DOMAIN_DEPTH: usize = 64;

impl TableContext {
    pub(crate) fn new(
        engine: Arc<EngineInner>,
        types: Arc<TypeCatalog>,
        toast: Arc<ToastTables>,
        info: RelationInfo,
        fork: Arc<RelationFork>,
        relation: RelationId,
    ) -> Result<Self> {
        let base_types = info.layout.attributes.iter().map(|a| base_type(&types, a.type_oid)).collect();
        Ok(Self { engine, types, toast, info, fork, relation, base_types, parts: Vec::new() })
    }

    /// The blocks of `blocks` that there are.
    pub(crate) fn existing(&self, blocks: Range<u32>) -> Range<u32> {
        let end = blocks.end.min(self.fork.blocks());
        blocks.start.min(end)..end
    }

    pub(crate) fn columns(&self) -> Vec<Column> {
        self.live().map(|index| self.column(index)).collect()
    }

    pub(crate) fn column(&self, index: usize) -> Column {
        let attribute = self.attribute_at(index);
        let type_name = self.types.types.get(&attribute.type_oid).map_or_else(String::new, |t| t.name.clone());
        Column {
            name: attribute.name.clone(),
            type_name,
            type_oid: attribute.type_oid,
            typmod: attribute.typmod,
            not_null: attribute.not_null,
        }
    }

    /// The attribute, or system column, with this index.
    pub(crate) fn attribute_at(&self, index: usize) -> &Attribute {
        system::attribute(index).unwrap_or_else(|| &self.info.layout.attributes[index])
    }

    /// Its type, with domains replaced by what they are over.
    pub(crate) fn base_type_at(&self, index: usize) -> u32 {
        system::attribute(index).map_or_else(|| self.base_types[index], |attribute| attribute.type_oid)
    }

    /// As [`attribute`](Self::attribute), and system columns too; a column of the table with such a name goes before.
    pub(crate) fn attribute_or_system(&self, name: &str) -> Result<usize> {
        let system = if self.live().any(|i| self.info.layout.attributes[i].name == name) {
            None
        } else {
            system::index_of(name)
        };
        system.map_or_else(|| self.attribute(name), Ok)
    }

    /// Indices of the attributes that are not dropped.
    pub(crate) fn live(&self) -> impl Iterator<Item = usize> {
        self.info.layout.attributes.iter().enumerate().filter(|(_, a)| !a.dropped).map(|(i, _)| i)
    }

    /// The index of the attribute `name`, which must match exactly.
    ///
    /// # Errors
    /// `NotFound`, naming the columns that there are; `Unsupported` for virtual generated columns, which no file holds.
    pub(crate) fn attribute(&self, name: &str) -> Result<usize> {
        let found = self.live().find(|&i| self.info.layout.attributes[i].name == name).ok_or_else(|| {
            let names: Vec<_> = self.live().map(|i| self.info.layout.attributes[i].name.as_str()).collect();
            Error::new(ErrorKind::NotFound, format!("table {} has no column {name:?}", self.info.name))
                .with_hint(format!("its columns are {}", names.join(", ")))
        })?;
        self.check_stored(found)?;
        Ok(found)
    }

    /// Whether the file holds the values of the attribute: not those of virtual generated columns.
    pub(crate) fn is_stored(&self, index: usize) -> bool {
        self.info.layout.attributes[index].generated != b'v'
    }

    fn check_stored(&self, index: usize) -> Result<()> {
        let attribute = &self.info.layout.attributes[index];
        if !self.is_stored(index) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("column {} is a virtual generated column: the file does not hold its values", attribute.name),
            )
            .with_hint("leave it out: it is computed from other columns"));
        }
        Ok(())
    }

    /// Passes over a row, if the policy says so; the error that is left says where it is.
    #[cold]
    pub(crate) fn pass_row(&self, error: Error, block: u32, number: u16) -> Result<()> {
        let damage = self.engine.cluster.damage();
        damage
            .pass_row(error, || self.fork.path_of(block), block, number)
            .map_err(|error| super::locate(error, self, block))
    }

    /// Checks a page; `None` is one that was never written.
    #[inline]
    pub(crate) fn check<'a>(&self, bytes: &'a [u8], block: u32) -> Result<Option<ValidPage<'a>>> {
        check_page(&self.fork, self.engine.verify, bytes, block)
    }
}

/// Checks a page of `fork`; `None` is one that was never written. The checksum pass also brings the page into the
/// cache front to back, which the processor's prefetcher follows; the decoder's order it would not.
#[inline]
pub(crate) fn check_page<'a>(
    fork: &RelationFork,
    verify: VerifyMode,
    bytes: &'a [u8],
    block: u32,
) -> Result<Option<ValidPage<'a>>> {
    match ValidPage::check(bytes, block, verify) {
        Ok(PageCheck::Valid(page)) => Ok(Some(page)),
        Ok(PageCheck::New) => Ok(None),
        Err(fault) => Err(fault.into_error(&fork.path_of(block), block)),
    }
}

/// What becomes of a page that failed its check: it is read once more, because a writer may have been at work on it. Gives
/// the page if it is right now; `None` if the policy passes over it.
///
/// # Errors
/// `error`, if the page stays as it is and the policy says so.
#[cold]
pub(crate) fn second_look(
    engine: &EngineInner,
    fork: &RelationFork,
    relation: RelationId,
    page: &PinnedPage,
    error: Error,
) -> Result<Option<PinnedPage>> {
    let damage = engine.cluster.damage();
    // A second read that fails proves nothing; the verdict stands. A block that is gone now was not damaged but cut off.
    let error = match engine.pool.reread(relation, page) {
        Ok(again) => match check_page(fork, engine.verify, again.bytes(), again.block()) {
            Ok(_) => {
                damage.count_reread();
                return Ok(Some(again));
            }
            Err(second) if again.bytes() != page.bytes() => second
                .in_context("the block changes while it is read")
                .with_hint("something writes to the files: scan a copy or a snapshot"),
            Err(_) => error,
        },
        Err(gone) if gone.kind() == ErrorKind::Io && gone.errno().is_none() => gone,
        Err(_) => error,
    };
    damage.pass_block(error).map(|()| None)
}

fn base_type(types: &TypeCatalog, mut oid: u32) -> u32 {
    for _ in 0..DOMAIN_DEPTH {
        match types.types.get(&oid) {
            Some(info) if info.kind == TypeKind::Domain => oid = info.base,
            _ => break,
        }
    }
    oid
}
