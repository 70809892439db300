//! Clusters and their catalogs: from a folder and a name to the files and the row layout of a relation.
//!
//! Nothing is believed unread: the control file first, by its CRC; everything else is sized from it. The catalogs are
//! read by the same scan as user tables, behind [`TableReader`].

mod bytes;
mod completeness;
mod control;
mod database;
mod file_names;
mod filenode_map;
mod layouts;
mod missing;
mod names;
mod order;
mod partition;
mod quote;
mod reader;
mod reg_names;
mod relation;
mod state;
mod stored;
mod tablespace;
#[cfg(test)]
mod tests;
mod types;

pub(crate) use completeness::{VisibilityMap, mapped_behind_end};
pub use control::{ChecksumState, ClusterState, ControlFile};
pub use database::{Database, DatabaseInfo, TableEntry};
pub use file_names::{FileName, Fork};
pub use filenode_map::FilenodeMap;
pub use layouts::bootstrap_layout;
pub use names::RelationName;
pub(crate) use order::Collation;
pub use reader::{RowVisitor, TableReader};
pub use relation::{Persistence, RelationFile, RelationInfo, RelationKind};
pub(crate) use state::incremental;
pub use stored::StoredRelation;

use crate::{DamageLog, Error, ErrorKind, OnCorruption, RelationFork, Result, TrailingFragment};
use heapscan_io::OpenFileOptions;
use reader::CatalogTable;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// How to open a cluster. The default refuses whatever is not a cluster at rest.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Opens a cluster that was not shut down cleanly, a base backup that was not recovered, and one whose
    /// `postmaster.pid` names a process that does not run. What the WAL would bring is missing then.
    pub allow_unclean: bool,
    /// Follows links of `pg_tblspc` that lead out of the cluster.
    pub follow_tablespace_links: bool,
    /// Folders of tablespaces by oid, instead of the links: as a backup's `tablespace_map` would have them. The folder
    /// is the one that holds `PG_<version>_<catalog version>`.
    pub tablespaces: BTreeMap<u32, PathBuf>,
    /// Other folders of tablespaces, as `pg_basebackup --tablespace-mapping` has them: where the cluster (its link, or the
    /// file `tablespace_map` of a backup) names the first folder, or the tablespace has the first as its oid, the second
    /// is read.
    pub tablespace_map: Vec<(PathBuf, PathBuf)>,
    /// What to do with a piece of a block at the end of a relation.
    pub trailing_fragment: TrailingFragment,
    /// What to do about damage, in catalogs as everywhere. With any policy but `Fail`, pieces of blocks at the end of a
    /// relation are not read, and segments behind a missing one are.
    pub on_corruption: OnCorruption,
}

/// A cluster at rest. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    control: ControlFile,
    options: OpenOptions,
    global_map: FilenodeMap,
    warnings: Vec<String>,
    damage: DamageLog,
}

impl Cluster {
    /// Opens the cluster in the data directory `path`.
    ///
    /// # Errors
    /// `NotACluster`, `ControlFile`, `Unsupported` (version, machine, encrypted), `ServerRunning`, `Unclean`,
    /// `Corrupt` (`global/pg_filenode.map`), `Io`.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        let folder_version = state::check_folder(path)?;
        // Before the control file: a running server may be writing it.
        let lock = state::check_lock(path)?;
        let control = ControlFile::read(path)?;
        if control.major_version != folder_version {
            return Err(Error::new(
                ErrorKind::NotACluster,
                format!(
                    "PG_VERSION says {folder_version}, global/pg_control is of PostgreSQL {}",
                    control.major_version
                ),
            )
            .with_path(path)
            .with_hint("the folder is a mixture of two clusters, or an upgrade that did not end"));
        }
        let warnings = state::check_at_rest(path, &control, lock, &options)?;
        let global_map = FilenodeMap::read(&path.join("global"), control.major_version)?;
        let damage = DamageLog::new(options.on_corruption);
        let path = path.to_owned();
        Ok(Self { inner: Arc::new(Inner { path, control, options, global_map, warnings, damage }) })
    }

    /// The data directory.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The control file, from which everything is sized.
    pub fn control(&self) -> &ControlFile {
        &self.inner.control
    }

    /// How it was opened.
    pub fn options(&self) -> &OpenOptions {
        &self.inner.options
    }

    /// What was overridden or should be known of the results; empty for a cluster at rest.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }

    /// The policy for damage, and what was found.
    pub fn damage(&self) -> &DamageLog {
        &self.inner.damage
    }

    /// `global/pg_filenode.map`.
    pub fn global_map(&self) -> &FilenodeMap {
        &self.inner.global_map
    }

    /// The folder in which `tablespace` keeps the files of `database` (`global` for the shared one, 1664).
    ///
    /// # Errors
    /// See [`OpenOptions::follow_tablespace_links`] and [`OpenOptions::tablespaces`]: `NotFound`, `Usage`,
    /// `Unsupported`, `Io`.
    pub fn tablespace_directory(&self, tablespace: u32, database: u32) -> Result<PathBuf> {
        tablespace::database_directory(self, tablespace, database)
    }

    /// The fork whose first segment is `base`, by the cluster's block and segment size.
    ///
    /// # Errors
    /// Those of [`RelationFork::open`].
    pub fn fork(&self, base: &Path, open: OpenFileOptions) -> Result<Arc<RelationFork>> {
        let control = self.control();
        if let (Some(folder), Some(name)) = (base.parent(), base.file_name()) {
            let mut incremental = std::ffi::OsString::from("INCREMENTAL.");
            incremental.push(name);
            let incremental = folder.join(incremental);
            if !base.exists() && incremental.exists() {
                return Err(state::incremental(&incremental));
            }
        }
        if self.damage().policy() != OnCorruption::Fail {
            let (block_size, per_segment) = (control.block_size, control.blocks_per_segment);
            let (fork, defects) = RelationFork::open_salvage(base, block_size, per_segment, open)?;
            for defect in defects {
                self.damage().pass_file(defect, fork.blocks())?;
            }
            return Ok(Arc::new(fork));
        }
        let trailing = self.options().trailing_fragment;
        RelationFork::open_with(base, control.block_size, control.blocks_per_segment, open, trailing).map(Arc::new)
    }

    /// The databases, by `pg_database`, in the order of their names.
    ///
    /// # Errors
    /// Those of the scan; `Corrupt` if a row makes no sense.
    pub fn databases(&self, reader: &dyn TableReader) -> Result<Vec<DatabaseInfo>> {
        let control = self.control();
        let filenode = self.global_map().filenode(layouts::PG_DATABASE)?;
        let base = self.path().join("global").join(filenode.to_string());
        let table = CatalogTable {
            name: "pg_database",
            fork: self.fork(&base, OpenFileOptions::default())?,
            layout: bootstrap_layout(control.major_version, layouts::PG_DATABASE, control.name_data_len)?,
        };
        let databases = database::read_databases(self, &table, reader)?;
        if databases.is_empty() {
            // Even a cluster without user databases has its templates.
            return Err(Error::new(ErrorKind::Corrupt, "pg_database has no rows: the file is truncated or damaged")
                .with_path(base)
                .with_hint("restore it from the source of the copy; without it no database can be found by name"));
        }
        Ok(databases)
    }

    /// Opens a database by name or, without one, the only one that is not a template and not `postgres`; `postgres`
    /// if there is no other.
    ///
    /// # Errors
    /// `NotFound` if there is no such database, `Usage` if there are several to choose from, and those of reading
    /// its catalogs.
    pub fn database(&self, reader: Arc<dyn TableReader>, name: Option<&str>) -> Result<Database> {
        let databases = self.databases(&*reader)?;
        let info = database::choose(self, &databases, name)?.clone();
        Database::open(self.clone(), info, reader)
    }
}
