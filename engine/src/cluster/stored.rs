//! All relations of a database that have files, for those who go by files.

use super::{Database, Persistence, RelationFile, RelationKind, RelationName, database::assemble};
use crate::{Error, Result, schema::RowLayout};
use std::path::PathBuf;

/// A relation that has files.
#[derive(Debug)]
pub struct StoredRelation {
    /// `oid`.
    pub oid: u32,
    /// Name as SQL writes it.
    pub name: String,
    /// `relkind`.
    pub kind: RelationKind,
    /// `relpersistence`.
    pub persistence: Persistence,
    /// Oid of the access method: 2 (heap) for tables; 0 for sequences, which are heap files of one row.
    pub access_method: u32,
    /// Which files it has.
    pub file: RelationFile,
    /// First segment of the main fork.
    pub path: PathBuf,
    /// Its columns; of tables only. An error if the catalog does not have them all.
    pub layout: Option<Result<RowLayout>>,
    /// `reltoastrelid`; 0 if there is none.
    pub toast: u32,
    /// `relpages`.
    pub pages: i32,
    /// The server would empty it when it starts: see [`RelationInfo`](super::RelationInfo::reset_by_crash).
    pub reset_by_crash: bool,
    /// `relfrozenxid`; 0 if it has none.
    pub frozen_xid: u32,
    /// `relminmxid`; 0 if it has none.
    pub min_multi: u32,
}

impl StoredRelation {
    /// Whether its main fork has heap pages.
    pub fn is_heap(&self) -> bool {
        self.kind.has_rows() && matches!(self.access_method, 0 | 2)
    }
}

impl Database {
    /// The relations that have files, temporary ones left out; with the reasons why some cannot be placed.
    ///
    /// # Errors
    /// Those of the scan of `pg_attribute`.
    pub fn stored_relations(&self) -> Result<(Vec<StoredRelation>, Vec<Error>)> {
        let is_stored = |kind: RelationKind| kind.has_rows() || kind == RelationKind::Index;
        let mut attributes = self.attributes_of(&|oid| self.classes.get(&oid).is_some_and(|c| c.kind.has_rows()))?;
        let (mut relations, mut failed) = (Vec::new(), Vec::new());
        for class in self.classes.values() {
            if !is_stored(class.kind) || class.persistence == Persistence::Temporary {
                continue;
            }
            let name = RelationName::exact(self.schema_name(class.namespace), &class.name).to_string();
            let placed = self.file_of(class).and_then(|file| Ok((file, self.path_of(file)?)));
            let (file, path) = match placed {
                Ok(placed) => placed,
                Err(error) => {
                    failed.push(error.in_context(&name));
                    continue;
                }
            };
            let layout = class.kind.has_rows().then(|| {
                let found = attributes.remove(&class.oid).unwrap_or_default();
                let layout = assemble(class.oid, found)?;
                if layout.attributes.len() != usize::try_from(class.natts).unwrap_or(usize::MAX) {
                    let what = format!(
                        "pg_class counts {} columns, pg_attribute has {}",
                        class.natts,
                        layout.attributes.len()
                    );
                    return Err(Error::new(crate::ErrorKind::Corrupt, what));
                }
                Ok(layout)
            });
            relations.push(StoredRelation {
                oid: class.oid,
                name,
                kind: class.kind,
                persistence: class.persistence,
                access_method: class.access_method,
                file,
                path,
                layout,
                toast: class.toast,
                pages: class.pages,
                reset_by_crash: self.is_reset(class),
                frozen_xid: class.frozen_xid,
                min_multi: class.min_multi,
            });
        }
        relations.sort_by_key(|relation| relation.oid);
        Ok((relations, failed))
    }
}
