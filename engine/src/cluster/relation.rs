//! Relations: from a row of `pg_class` to files, layout, and what may be scanned.

use super::{
    Database, RelationName,
    reader::Row,
    tablespace::{DEFAULT_TABLESPACE, GLOBAL_TABLESPACE},
};
use crate::{Error, ErrorKind, RelationFork, Result, schema::RowLayout};
use heapscan_io::OpenFileOptions;
use std::{fmt, path::PathBuf, sync::Arc};

/// `HEAP_TABLE_AM_OID`.
const HEAP: u32 = 2;

/// `pg_class.relkind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RelationKind {
    /// `r`
    Table,
    /// `m`
    MaterializedView,
    /// `S`
    Sequence,
    /// `t`
    Toast,
    /// `p`
    PartitionedTable,
    /// `i`
    Index,
    /// `I`
    PartitionedIndex,
    /// `v`
    View,
    /// `f`
    ForeignTable,
    /// `c`
    CompositeType,
}

impl RelationKind {
    pub(super) fn from_letter(letter: u8) -> Option<Self> {
        Some(match letter {
            b'r' => Self::Table,
            b'm' => Self::MaterializedView,
            b'S' => Self::Sequence,
            b't' => Self::Toast,
            b'p' => Self::PartitionedTable,
            b'i' => Self::Index,
            b'I' => Self::PartitionedIndex,
            b'v' => Self::View,
            b'f' => Self::ForeignTable,
            b'c' => Self::CompositeType,
            _ => return None,
        })
    }

    /// Whether its files are heap pages.
    pub const fn has_rows(self) -> bool {
        matches!(self, Self::Table | Self::MaterializedView | Self::Sequence | Self::Toast)
    }

    /// As PostgreSQL's messages call it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::MaterializedView => "materialized view",
            Self::Sequence => "sequence",
            Self::Toast => "TOAST table",
            Self::PartitionedTable => "partitioned table",
            Self::Index => "index",
            Self::PartitionedIndex => "partitioned index",
            Self::View => "view",
            Self::ForeignTable => "foreign table",
            Self::CompositeType => "composite type",
        }
    }
}

impl fmt::Display for RelationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// `pg_class.relpersistence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Persistence {
    /// `p`
    Permanent,
    /// `u`: not in the WAL; emptied by recovery.
    Unlogged,
    /// `t`: of one session.
    Temporary,
}

/// A relation's files: a file number is unique only together with the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelationFile {
    /// Oid of the tablespace; never 0.
    pub tablespace: u32,
    /// Oid of the database; 0 for shared relations.
    pub database: u32,
    /// The file number.
    pub filenode: u32,
}

/// What must be known of a relation to scan it.
#[derive(Clone, Debug)]
pub struct RelationInfo {
    /// `oid`.
    pub oid: u32,
    /// Name of the schema.
    pub schema: String,
    /// `relname`.
    pub name: String,
    /// `relkind`; one that [has rows](RelationKind::has_rows), or a partitioned table.
    pub kind: RelationKind,
    /// `relpersistence`.
    pub persistence: Persistence,
    /// Oid of the access method: 2 (heap); 0 for sequences, which are heap files of one row.
    pub access_method: u32,
    /// `reltype`: oid of the row type; 0 for TOAST tables.
    pub row_type: u32,
    /// `reltoastrelid`: the TOAST table.
    pub toast: Option<u32>,
    /// Its columns, dropped ones included.
    pub layout: RowLayout,
    /// Which files it has.
    pub file: RelationFile,
    /// First segment of the main fork.
    pub path: PathBuf,
    /// The relation is unlogged and the cluster was not shut down cleanly: the server would empty it when it starts.
    /// [`Database::open_fork`] opens what the server would put in place of the rows, the init fork.
    pub reset_by_crash: bool,
    /// `relpages`: an estimate of its blocks.
    pub pages: i32,
    /// `reltuples`: an estimate of its rows; 0 or -1 if never counted.
    pub tuples: f32,
    /// `relfrozenxid`: no row has an older xid that is not frozen.
    pub frozen_xid: u32,
    /// `relminmxid`: no row has an older multixact.
    pub min_multi: u32,
    /// `relhassubclass`: others inherit from it, or did once.
    pub has_children: bool,
}

/// A row of `pg_class`.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) oid: u32,
    pub(super) name: String,
    pub(super) namespace: u32,
    pub(super) row_type: u32,
    pub(super) access_method: u32,
    pub(super) filenode: u32,
    pub(super) tablespace: u32,
    pub(super) pages: i32,
    pub(super) tuples: f32,
    pub(super) toast: u32,
    pub(super) shared: bool,
    pub(super) persistence: Persistence,
    pub(super) kind: RelationKind,
    pub(super) natts: i16,
    pub(super) frozen_xid: u32,
    pub(super) min_multi: u32,
    /// `relhassubclass`
    pub(super) has_children: bool,
    /// Another visible row has the same oid.
    pub(super) ambiguous: bool,
}

impl Class {
    pub(super) const COLUMNS: [&'static str; 17] = [
        "oid",
        "relname",
        "relnamespace",
        "reltype",
        "relam",
        "relfilenode",
        "reltablespace",
        "relpages",
        "reltuples",
        "reltoastrelid",
        "relisshared",
        "relpersistence",
        "relkind",
        "relnatts",
        "relfrozenxid",
        "relminmxid",
        "relhassubclass",
    ];

    pub(super) fn parse(row: &Row<'_>) -> Result<Self> {
        let persistence = match row.char(11)? {
            b'p' => Persistence::Permanent,
            b'u' => Persistence::Unlogged,
            b't' => Persistence::Temporary,
            other => return Err(row.error(11, format_args!("is {:?}", char::from(other)))),
        };
        let letter = row.char(12)?;
        let kind = RelationKind::from_letter(letter)
            .ok_or_else(|| row.error(12, format_args!("is {:?}", char::from(letter))))?;
        Ok(Self {
            oid: row.u32(0)?,
            name: row.name(1)?,
            namespace: row.u32(2)?,
            row_type: row.u32(3)?,
            access_method: row.u32(4)?,
            filenode: row.u32(5)?,
            tablespace: row.u32(6)?,
            pages: row.i32(7)?,
            tuples: row.f32(8)?,
            toast: row.u32(9)?,
            shared: row.bool(10)?,
            persistence,
            kind,
            natts: row.i16(13)?,
            frozen_xid: row.u32(14)?,
            min_multi: row.u32(15)?,
            has_children: row.bool(16)?,
            ambiguous: false,
        })
    }
}

impl Database {
    /// Finds a relation that can be scanned: a table, materialized view, sequence or TOAST table.
    ///
    /// # Errors
    /// `NotFound`, `Unsupported` if it is of a kind or access method that has no heap pages, `Corrupt` if the
    /// catalogs contradict each other, and those of the scan of `pg_attribute` and of finding its tablespace.
    pub fn relation(&self, name: &RelationName) -> Result<RelationInfo> {
        let class = self.find_class(name)?;
        self.check_scannable(class)?;
        self.relation_info(class)
    }

    /// A partitioned table without rows of its own, and its leaf partitions in the server's order; `None` if `name` is
    /// something else. The parent has no files: its path names none.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` if a partition is a foreign table or of another access method; `Corrupt`, `Io` of the
    /// catalogs.
    pub fn partitioned(&self, name: &RelationName) -> Result<Option<(RelationInfo, Vec<RelationInfo>)>> {
        let class = self.find_class(name)?;
        if class.kind != RelationKind::PartitionedTable {
            return Ok(None);
        }
        let full = RelationName::exact(self.schema_name(class.namespace), &class.name);
        if class.ambiguous {
            self.check_scannable(class)?;
        }
        let leaves = self.leaves_in_order(class.oid)?;
        let leaves = self.relations(&leaves).map_err(|e| e.in_context(format_args!("a partition of {full}")))?;
        let layout = self.layout_of(class.oid)?;
        let file = RelationFile { tablespace: 0, database: self.info().oid, filenode: 0 };
        let path = self.directory.join("partitioned");
        Ok(Some((self.info_of(class, layout, file, path)?, leaves)))
    }

    /// Relations that can be scanned, by their oids.
    ///
    /// # Errors
    /// As [`Database::relation`].
    pub(crate) fn relations(&self, oids: &[u32]) -> Result<Vec<RelationInfo>> {
        let mut attributes = self.attributes_of(&|oid| oids.contains(&oid))?;
        let info = |oid: &u32| {
            let class = self.find_class(&RelationName::Oid(*oid))?;
            self.check_scannable(class)?;
            let layout = super::database::assemble(*oid, attributes.remove(oid).unwrap_or_default())?;
            let file = self.file_of(class)?;
            self.info_of(class, layout, file, self.path_of(file)?)
        };
        oids.iter().map(info).collect()
    }

    /// Oids of the relations with the rows of `name`: itself, or its leaf partitions.
    ///
    /// # Errors
    /// As [`Database::relation`].
    pub(crate) fn row_relations(&self, name: &RelationName) -> Result<Vec<u32>> {
        let class = self.find_class(name)?;
        if class.kind == RelationKind::PartitionedTable {
            return self.leaf_partitions(class.oid);
        }
        self.check_scannable(class)?;
        Ok(vec![class.oid])
    }

    /// The TOAST table `oid`, as a relation.
    ///
    /// # Errors
    /// `Corrupt` if there is no such TOAST table; else as [`Database::relation`].
    pub fn toast_relation(&self, oid: u32) -> Result<RelationInfo> {
        match self.classes.get(&oid) {
            Some(class) if class.kind == RelationKind::Toast => {
                self.check_scannable(class)?;
                self.relation_info(class)
            }
            Some(class) => {
                let what = format!("relation {oid} is a {}, not a TOAST table", class.kind);
                Err(Error::new(ErrorKind::Corrupt, what))
            }
            None => Err(Error::new(ErrorKind::Corrupt, format!("there is no TOAST table {oid}"))),
        }
    }

    /// Opens the files with the rows of a relation; for one that is [reset by a crash](RelationInfo::reset_by_crash)
    /// the init fork, from which the server would make it anew.
    ///
    /// # Errors
    /// Those of [`RelationFork::open`].
    pub fn open_fork(&self, relation: &RelationInfo, open: OpenFileOptions) -> Result<Arc<RelationFork>> {
        if relation.reset_by_crash {
            let mut init = relation.path.clone().into_os_string();
            init.push("_init");
            return self.cluster().fork(&PathBuf::from(init), open);
        }
        self.cluster().fork(&relation.path, open)
    }

    fn find_class(&self, name: &RelationName) -> Result<&Class> {
        let found = match name {
            RelationName::Oid(oid) => self.classes.get(oid),
            RelationName::Named { schema: Some(schema), name } => self.class_by_name(schema, name),
            RelationName::Named { schema: None, name } => {
                ["public", "pg_catalog"].iter().find_map(|schema| self.class_by_name(schema, name))
            }
        };
        found.ok_or_else(|| {
            let error =
                Error::new(ErrorKind::NotFound, format!("database {:?} has no relation {name}", self.info().name));
            match self.namesakes(name) {
                Some(others) => error.with_hint(format!("there is {others}")),
                None => error,
            }
        })
    }

    /// Relations of the same name in other schemas, for an error message.
    fn namesakes(&self, name: &RelationName) -> Option<String> {
        let RelationName::Named { name, .. } = name else { return None };
        let mut others: Vec<_> = self
            .classes
            .values()
            .filter(|class| class.name.eq_ignore_ascii_case(name))
            .map(|class| RelationName::exact(self.schema_name(class.namespace), &class.name).to_string())
            .take(5)
            .collect();
        others.sort();
        if others.is_empty() { None } else { Some(others.join(", ")) }
    }

    fn check_scannable(&self, class: &Class) -> Result<()> {
        let schema = self.schema_name(class.namespace);
        let full = RelationName::exact(schema, &class.name);
        let refuse = |what: String| Err(Error::new(ErrorKind::Unsupported, format!("{full} {what}")));
        if class.ambiguous {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("pg_class has several visible rows of relation {} ({full})", class.oid),
            )
            .with_hint("the catalog is damaged: which of its files is the right one cannot be known"));
        }
        match class.kind {
            RelationKind::Table | RelationKind::MaterializedView | RelationKind::Toast => {}
            RelationKind::Sequence => return self.check_not_temporary(class, &full),
            RelationKind::PartitionedTable => {
                let leaves = self.leaf_partitions(class.oid)?;
                let names: Vec<_> = leaves.iter().take(20).filter_map(|oid| self.qualified_name(*oid)).collect();
                let what = match (names.len(), leaves.len()) {
                    (0, 0) => "has no partitions".to_owned(),
                    (shown, all) if shown < all => format!("has {all} partitions: {}, ...", names.join(", ")),
                    _ => format!("has the partitions {}", names.join(", ")),
                };
                return refuse(format!("is a partitioned table, which has no rows of its own; it {what}"));
            }
            RelationKind::View => return refuse("is a view: scan the tables it selects from".to_owned()),
            RelationKind::ForeignTable => return refuse("is a foreign table: its rows are elsewhere".to_owned()),
            RelationKind::Index | RelationKind::PartitionedIndex => return refuse(format!("is an {}", index(class))),
            RelationKind::CompositeType => return refuse("is a composite type: it has no rows".to_owned()),
        }
        if class.access_method != HEAP {
            let name = self.access_method_name(class.access_method)?;
            let hint = if name.contains("tde") { "looks encrypted" } else { "only the access method heap is read" };
            return Err(
                Error::new(ErrorKind::Unsupported, format!("{full} has the access method {name}")).with_hint(hint)
            );
        }
        self.check_not_temporary(class, &full)
    }

    fn check_not_temporary(&self, class: &Class, full: &RelationName) -> Result<()> {
        if class.persistence == Persistence::Temporary {
            let what = format!("{full} is a temporary table of a session: its rows lived in that session's memory");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(())
    }

    fn relation_info(&self, class: &Class) -> Result<RelationInfo> {
        let layout = self.layout_of(class.oid)?;
        let file = self.file_of(class)?;
        self.info_of(class, layout, file, self.path_of(file)?)
    }

    fn info_of(&self, class: &Class, layout: RowLayout, file: RelationFile, path: PathBuf) -> Result<RelationInfo> {
        if layout.attributes.len() != usize::try_from(class.natts).unwrap_or(usize::MAX) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "pg_class says that relation {} has {} columns, pg_attribute has {} of them",
                    class.oid,
                    class.natts,
                    layout.attributes.len()
                ),
            ));
        }
        Ok(RelationInfo {
            oid: class.oid,
            schema: self.schema_name(class.namespace),
            name: class.name.clone(),
            kind: class.kind,
            persistence: class.persistence,
            access_method: class.access_method,
            row_type: class.row_type,
            toast: (class.toast != 0).then_some(class.toast),
            layout,
            path,
            file,
            reset_by_crash: self.is_reset(class),
            pages: class.pages,
            tuples: class.tuples,
            frozen_xid: class.frozen_xid,
            min_multi: class.min_multi,
            has_children: class.has_children,
        })
    }

    /// A server that finds any state but "shut down" recovers, and recovery empties what is not in the WAL.
    pub(super) fn is_reset(&self, class: &Class) -> bool {
        class.persistence == Persistence::Unlogged && self.cluster().control().state != super::ClusterState::ShutDown
    }

    /// The file of a relation: by `pg_class`, or by the map for those that have no number there. Never by oid.
    pub(super) fn file_of(&self, class: &Class) -> Result<RelationFile> {
        let filenode = match class.filenode {
            0 if class.shared => self.cluster().global_map().filenode(class.oid)?,
            0 => self.map.filenode(class.oid)?,
            filenode => filenode,
        };
        let tablespace = match class.tablespace {
            _ if class.shared => GLOBAL_TABLESPACE,
            0 => self.info().tablespace,
            tablespace => tablespace,
        };
        let database = if tablespace == GLOBAL_TABLESPACE { 0 } else { self.info().oid };
        Ok(RelationFile { tablespace, database, filenode })
    }

    /// First segment of the main fork.
    pub(super) fn path_of(&self, file: RelationFile) -> Result<PathBuf> {
        let directory = match file.tablespace {
            // The database's own folder was found when it was opened.
            tablespace if tablespace == self.info().tablespace => self.directory.clone(),
            DEFAULT_TABLESPACE | GLOBAL_TABLESPACE => {
                self.cluster().tablespace_directory(file.tablespace, file.database)?
            }
            tablespace => self.other_tablespace(tablespace)?,
        };
        Ok(directory.join(file.filenode.to_string()))
    }
}

fn index(class: &Class) -> &'static str {
    if class.kind == RelationKind::Index { "index" } else { "index of a partitioned table" }
}
