//! Databases: `pg_database`, and the catalogs of the one that is opened.

use super::{
    Cluster, FilenodeMap, Persistence, RelationKind, TableReader,
    bytes::read_small_file,
    layouts::{PG_ATTRIBUTE, PG_CLASS, PG_DATABASE, alignment, bootstrap_layout, check_layout},
    missing,
    reader::{CatalogTable, Row},
    relation::Class,
};
use crate::{
    Error, ErrorKind, Result,
    schema::{Attribute, RowLayout},
};
use heapscan_io::OpenFileOptions;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

/// `MaxHeapAttributeNumber`.
const MAX_ATTRIBUTES: i16 = 1600;
/// How deep partitions may lie below a parent; the visited set bounds the work, this bounds nonsense.
const MAX_PARTITIONS: usize = 1 << 20;

/// The catalogs whose layout is taken from `pg_attribute`, and those it is checked against.
const CATALOGS: [(u32, &str); 15] = [
    (1247, "pg_type"),
    (PG_ATTRIBUTE, "pg_attribute"),
    (1255, "pg_proc"),
    (PG_CLASS, "pg_class"),
    (1260, "pg_authid"),
    (PG_DATABASE, "pg_database"),
    (2601, "pg_am"),
    (2611, "pg_inherits"),
    (2615, "pg_namespace"),
    (2617, "pg_operator"),
    (3456, "pg_collation"),
    (3501, "pg_enum"),
    (3541, "pg_range"),
    (3600, "pg_ts_dict"),
    (3602, "pg_ts_config"),
];

/// A row of `pg_database`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseInfo {
    /// `oid`: also the name of its folder.
    pub oid: u32,
    /// `datname`.
    pub name: String,
    /// `encoding`: 6 is UTF-8 (`pg_enc` of `src/include/mb/pg_wchar.h`).
    pub encoding: i32,
    /// `dattablespace`.
    pub tablespace: u32,
    /// `datistemplate`.
    pub is_template: bool,
    /// `datallowconn`.
    pub allows_connections: bool,
    /// Whether its folder is there; copies of a cluster may leave databases out.
    pub has_folder: bool,
}

/// A relation as `heapscan ls` shows it.
#[derive(Clone, Debug)]
pub struct TableEntry {
    /// Name of the schema.
    pub schema: String,
    /// `relname`.
    pub name: String,
    /// `oid`.
    pub oid: u32,
    /// `relkind`.
    pub kind: RelationKind,
    /// `relpersistence`.
    pub persistence: Persistence,
    /// Oid of the access method; 0 if it has none.
    pub access_method: u32,
    /// `reltuples`: an estimate of its rows; `None` if never counted.
    pub tuples: Option<f32>,
    /// First segment of its files; `None` if it has none, or they cannot be found.
    pub path: Option<PathBuf>,
    /// Blocks of its main fork on disk.
    pub blocks: Option<u32>,
    /// Bytes of its main fork on disk.
    pub bytes: Option<u64>,
    /// Why there is no size, where there should be one.
    pub note: Option<String>,
}

/// An opened database: `pg_class` and `pg_namespace` in memory, the other catalogs read when they are needed.
pub struct Database {
    cluster: Cluster,
    info: DatabaseInfo,
    pub(super) reader: Arc<dyn TableReader>,
    /// Its folder in its own tablespace.
    pub(super) directory: PathBuf,
    pub(super) map: FilenodeMap,
    pub(super) classes: FxHashMap<u32, Class>,
    by_name: FxHashMap<u32, FxHashMap<String, u32>>,
    pub(super) namespaces: FxHashMap<u32, String>,
    catalogs: FxHashMap<u32, RowLayout>,
    tablespaces: Mutex<FxHashMap<u32, PathBuf>>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("info", &self.info).field("directory", &self.directory).finish_non_exhaustive()
    }
}

pub(super) fn read_databases(
    cluster: &Cluster,
    table: &CatalogTable,
    reader: &dyn TableReader,
) -> Result<Vec<DatabaseInfo>> {
    let columns = ["oid", "datname", "encoding", "dattablespace", "datistemplate", "datallowconn"];
    let mut databases = Vec::new();
    table.read(reader, &columns, |row| {
        let (oid, tablespace) = (row.u32(0)?, row.u32(3)?);
        databases.push(DatabaseInfo {
            oid,
            name: row.name(1)?,
            encoding: row.i32(2)?,
            tablespace,
            is_template: row.bool(4)?,
            allows_connections: row.bool(5)?,
            has_folder: cluster.tablespace_directory(tablespace, oid).is_ok_and(|folder| folder.is_dir()),
        });
        Ok(())
    })?;
    databases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(databases)
}

pub(super) fn choose<'a>(
    cluster: &Cluster,
    databases: &'a [DatabaseInfo],
    name: Option<&str>,
) -> Result<&'a DatabaseInfo> {
    let list = |of: &[&DatabaseInfo]| of.iter().map(|d| format!("{:?}", d.name)).collect::<Vec<_>>().join(", ");
    let error = |kind, what: String| Err(Error::new(kind, what).with_path(cluster.path()));
    let all: Vec<_> = databases.iter().collect();
    if let Some(name) = name {
        let mut named = all.iter().filter(|d| d.name == name);
        return match (named.next(), named.next()) {
            (Some(database), None) => Ok(database),
            (Some(_), Some(_)) => error(ErrorKind::Corrupt, format!("pg_database has {name:?} twice")),
            (None, _) => error(ErrorKind::NotFound, format!("has no database {name:?}; it has {}", list(&all))),
        };
    }
    let is_template = |d: &DatabaseInfo| d.is_template || d.name.starts_with("template");
    let user: Vec<_> =
        all.iter().copied().filter(|d| d.has_folder && d.name != "postgres" && !is_template(d)).collect();
    match user[..] {
        [only] => Ok(only),
        [] => match all.iter().find(|d| d.name == "postgres" && d.has_folder) {
            Some(postgres) => Ok(postgres),
            None => error(ErrorKind::Usage, format!("has no user database; choose one (--database) of {}", list(&all))),
        },
        _ => error(ErrorKind::Usage, format!("has several databases; choose one (--database) of {}", list(&user))),
    }
}

impl Database {
    pub(super) fn open(cluster: Cluster, info: DatabaseInfo, reader: Arc<dyn TableReader>) -> Result<Self> {
        let control = cluster.control();
        let directory = cluster.tablespace_directory(info.tablespace, info.oid)?;
        if !directory.is_dir() {
            return Err(Error::new(ErrorKind::NotFound, format!("database {:?} has no folder", info.name))
                .with_path(directory)
                .with_hint("the copy of the cluster leaves it out"));
        }
        if let Some(version) = read_small_file(&directory.join("PG_VERSION"), 64)? {
            let version = String::from_utf8_lossy(&version).trim().to_owned();
            if version != control.major_version.to_string() {
                let what = format!("the folder of the database is of PostgreSQL {version:?}");
                return Err(Error::new(ErrorKind::Unsupported, what).with_path(directory));
            }
        }
        let map = FilenodeMap::read(&directory, control.major_version)?;
        let mut database = Self {
            info,
            reader,
            map,
            directory,
            classes: FxHashMap::default(),
            by_name: FxHashMap::default(),
            namespaces: FxHashMap::default(),
            catalogs: FxHashMap::default(),
            tablespaces: Mutex::default(),
            cluster,
        };
        database.read_catalogs()?;
        Ok(database)
    }

    /// In the order in which each makes the next readable.
    fn read_catalogs(&mut self) -> Result<()> {
        for catalog in [PG_CLASS, PG_ATTRIBUTE, PG_DATABASE] {
            let control = self.cluster.control();
            let layout = bootstrap_layout(control.major_version, catalog, control.name_data_len)?;
            self.catalogs.insert(catalog, layout);
        }
        let mut classes: FxHashMap<u32, Class> = FxHashMap::default();
        self.mapped_catalog(PG_CLASS, "pg_class")?.read(&*self.reader, &Class::COLUMNS, |row| {
            let class = Class::parse(row)?;
            classes.entry(class.oid).and_modify(|first| first.ambiguous = true).or_insert(class);
            Ok(())
        })?;
        if !classes.contains_key(&PG_CLASS) {
            let path = self.directory.join(self.map.filenode(PG_CLASS)?.to_string());
            return Err(Error::new(
                ErrorKind::Corrupt,
                "pg_class has no row of itself: the file is truncated or damaged",
            )
            .with_path(path)
            .with_hint("restore it from the source of the copy; without it no table can be found by name"));
        }
        self.classes = classes;
        for (oid, class) in &self.classes {
            self.by_name.entry(class.namespace).or_default().insert(class.name.clone(), *oid);
        }
        self.read_layouts()?;
        let mut namespaces = FxHashMap::default();
        self.catalog("pg_namespace")?.read(&*self.reader, &["oid", "nspname"], |row| {
            namespaces.insert(row.u32(0)?, row.name(1)?);
            Ok(())
        })?;
        self.namespaces = namespaces;
        Ok(())
    }

    fn read_layouts(&mut self) -> Result<()> {
        let mut described = self.attributes_of(&|oid| CATALOGS.iter().any(|&(catalog, _)| catalog == oid))?;
        for (oid, name) in CATALOGS {
            let layout = assemble(oid, described.remove(&oid).unwrap_or_default())?;
            match self.catalogs.get(&oid) {
                Some(assumed) => check_layout(name, assumed, &layout)?,
                None => drop(self.catalogs.insert(oid, layout)),
            }
        }
        Ok(())
    }

    /// A catalog that the database's map locates, so that nothing else need be known.
    pub(super) fn mapped_catalog(&self, oid: u32, name: &'static str) -> Result<CatalogTable> {
        let base = self.directory.join(self.map.filenode(oid)?.to_string());
        let layout = self.catalogs.get(&oid).cloned().unwrap_or_default();
        Ok(CatalogTable { name, fork: self.cluster.fork(&base, OpenFileOptions::default())?, layout })
    }

    /// One of [`CATALOGS`].
    pub(super) fn catalog(&self, name: &'static str) -> Result<CatalogTable> {
        let missing = || Error::new(ErrorKind::Corrupt, format!("the database has no catalog {name}"));
        let oid = CATALOGS.iter().find(|&&(_, n)| n == name).map(|&(oid, _)| oid).ok_or_else(missing)?;
        let class = self.classes.get(&oid).ok_or_else(missing)?;
        let base = self.path_of(self.file_of(class)?)?;
        let layout = self.catalogs.get(&oid).cloned().ok_or_else(missing)?;
        Ok(CatalogTable { name, fork: self.cluster.fork(&base, OpenFileOptions::default())?, layout })
    }

    /// The rows of `pg_attribute` of the wanted relations.
    pub(super) fn attributes_of(&self, wanted: &dyn Fn(u32) -> bool) -> Result<FxHashMap<u32, Vec<Attribute>>> {
        let mut found: FxHashMap<u32, Vec<Attribute>> = FxHashMap::default();
        let table = self.mapped_catalog(PG_ATTRIBUTE, "pg_attribute")?;
        table.read(&*self.reader, &ATTRIBUTE_COLUMNS, |row| {
            let (relation, number) = (row.u32(0)?, row.i16(4)?);
            if number > 0 && wanted(relation) {
                found.entry(relation).or_default().push(parse_attribute(row)?);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The layout of a relation, by a scan of `pg_attribute`.
    pub(super) fn layout_of(&self, oid: u32) -> Result<RowLayout> {
        let mut found = self.attributes_of(&|relation| relation == oid)?;
        assemble(oid, found.remove(&oid).unwrap_or_default())
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Its row of `pg_database`.
    pub fn info(&self) -> &DatabaseInfo {
        &self.info
    }

    /// The relations of `pg_class`, in the order of schema and name: tables, materialized views, sequences, TOAST
    /// tables, partitioned and foreign tables and views; no indexes and composite types. What is wrong with the files
    /// of one is noted there, and is no error.
    pub fn tables(&self) -> Vec<TableEntry> {
        let is_listed =
            |kind| !matches!(kind, RelationKind::Index | RelationKind::PartitionedIndex | RelationKind::CompositeType);
        let mut entries: Vec<_> =
            self.classes.values().filter(|class| is_listed(class.kind)).map(|class| self.entry(class)).collect();
        entries.sort_by(|a, b| (&a.schema, &a.name, a.oid).cmp(&(&b.schema, &b.name, b.oid)));
        entries
    }

    fn entry(&self, class: &Class) -> TableEntry {
        let mut entry = TableEntry {
            schema: self.schema_name(class.namespace),
            name: class.name.clone(),
            oid: class.oid,
            kind: class.kind,
            persistence: class.persistence,
            access_method: class.access_method,
            tuples: (class.tuples >= 0.0 && (class.tuples > 0.0 || class.pages > 0)).then_some(class.tuples),
            path: None,
            blocks: None,
            bytes: None,
            note: None,
        };
        if !class.kind.has_rows() || class.persistence == Persistence::Temporary {
            return entry;
        }
        if self.is_reset(class) {
            entry.note = Some("unlogged: empty after the crash".to_owned());
        }
        match self.file_of(class).and_then(|file| self.path_of(file)) {
            Ok(path) => {
                match self.cluster.fork(&path, OpenFileOptions::default()) {
                    Ok(fork) => {
                        entry.blocks = Some(fork.blocks());
                        entry.bytes = Some(u64::from(fork.blocks()) * u64::from(fork.block_size()));
                    }
                    Err(error) => entry.note = Some(error.to_string()),
                }
                entry.path = Some(path);
            }
            Err(error) => entry.note = Some(error.to_string()),
        }
        entry
    }

    /// The partitions of a partitioned table that have rows (or are foreign), through all levels, by oid.
    ///
    /// # Errors
    /// Those of the scan of `pg_inherits`; `Corrupt` if it has more children than can be.
    pub fn leaf_partitions(&self, parent: u32) -> Result<Vec<u32>> {
        let mut children: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        self.catalog("pg_inherits")?.read(&*self.reader, &["inhrelid", "inhparent"], |row| {
            children.entry(row.u32(1)?).or_default().push(row.u32(0)?);
            Ok(())
        })?;
        let mut leaves = Vec::new();
        let (mut visited, mut pending) = (FxHashSet::default(), vec![parent]);
        while let Some(oid) = pending.pop() {
            if !visited.insert(oid) {
                continue;
            }
            if visited.len() > MAX_PARTITIONS {
                return Err(Error::new(ErrorKind::Corrupt, format!("relation {parent} has too many partitions")));
            }
            match self.classes.get(&oid).map(|class| class.kind) {
                Some(RelationKind::PartitionedTable) => {
                    pending.extend(children.get(&oid).into_iter().flatten());
                }
                Some(_) => leaves.push(oid),
                None => {}
            }
        }
        leaves.sort_unstable();
        Ok(leaves)
    }

    pub(super) fn class_by_name(&self, schema: &str, name: &str) -> Option<&Class> {
        self.namespaces
            .iter()
            .filter(|(_, n)| *n == schema)
            .find_map(|(oid, _)| self.by_name.get(oid)?.get(name))
            .and_then(|oid| self.classes.get(oid))
    }

    /// The name of a schema; its oid if `pg_namespace` does not have it.
    pub(super) fn schema_name(&self, oid: u32) -> String {
        self.namespaces.get(&oid).cloned().unwrap_or_else(|| oid.to_string())
    }

    pub(super) fn qualified_name(&self, oid: u32) -> Option<String> {
        let class = self.classes.get(&oid)?;
        Some(super::RelationName::exact(self.schema_name(class.namespace), &class.name).to_string())
    }

    pub(super) fn access_method_name(&self, oid: u32) -> Result<String> {
        let mut name = None;
        self.catalog("pg_am")?.read(&*self.reader, &["oid", "amname"], |row| {
            if row.u32(0)? == oid {
                name = Some(row.name(1)?);
            }
            Ok(())
        })?;
        Ok(name.unwrap_or_else(|| oid.to_string()))
    }

    /// The database's folder in a tablespace that is not its own; found once.
    pub(super) fn other_tablespace(&self, tablespace: u32) -> Result<PathBuf> {
        let mut known = self.tablespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(directory) = known.get(&tablespace) {
            return Ok(directory.clone());
        }
        let directory = self.cluster.tablespace_directory(tablespace, self.info.oid)?;
        known.insert(tablespace, directory.clone());
        Ok(directory)
    }
}

const ATTRIBUTE_COLUMNS: [&str; 15] = [
    "attrelid",
    "attname",
    "atttypid",
    "attlen",
    "attnum",
    "atttypmod",
    "attbyval",
    "attalign",
    "attstorage",
    "attnotnull",
    "atthasmissing",
    "attgenerated",
    "attisdropped",
    "attmissingval",
    "attndims",
];

fn parse_attribute(row: &Row<'_>) -> Result<Attribute> {
    let (len, number, by_val, dropped) = (row.i16(3)?, row.i16(4)?, row.bool(6)?, row.bool(12)?);
    let letter = row.char(7)?;
    let align = alignment(letter).ok_or_else(|| row.error(7, format_args!("is {:?}", char::from(letter))))?;
    if !(1..=MAX_ATTRIBUTES).contains(&number) {
        return Err(row.error(4, format_args!("is {number}")));
    }
    if len == 0 || len < -2 || (by_val && !matches!(len, 1 | 2 | 4 | 8)) {
        return Err(row.error(3, format_args!("is {len}")));
    }
    let storage = row.char(8)?;
    if !b"pemx".contains(&storage) {
        return Err(row.error(8, format_args!("is {:?}", char::from(storage))));
    }
    let missing = match row.bytes(13) {
        Some(array) if row.bool(10)? && !dropped => {
            Some(missing::element(array, len).map_err(|what| row.error(13, format_args!("{what}")))?)
        }
        _ => None,
    };
    Ok(Attribute {
        name: row.name(1)?,
        number,
        type_oid: row.u32(2)?,
        typmod: row.i32(5)?,
        len,
        by_val,
        align,
        storage,
        not_null: row.bool(9)?,
        dropped,
        // An int4 before PostgreSQL 16.
        dimensions: row.i16(14).or_else(|_| row.i32(14).map(|n| i16::try_from(n).unwrap_or(i16::MAX)))?,
        generated: row.char(11)?,
        missing,
    })
}

/// Puts the attributes of a relation in order; every number must be there once.
pub(super) fn assemble(relation: u32, mut attributes: Vec<Attribute>) -> Result<RowLayout> {
    attributes.sort_by_key(|attribute| attribute.number);
    for (attribute, expected) in attributes.iter().zip(1..) {
        if attribute.number != expected {
            let number = attribute.number.min(expected);
            let what = if attribute.number < expected { "several visible rows" } else { "no visible row" };
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("pg_attribute has {what} of column {number} of relation {relation}"),
            )
            .with_hint("the catalog is damaged: the rows of the table cannot be taken apart"));
        }
    }
    Ok(RowLayout { attributes })
}
