//! Which files there are, and what the catalogs say that they hold.

use super::Findings;
use crate::{
    Database, Engine, Error, ErrorKind, RelationFork, Result,
    cluster::{FileName, Fork, StoredRelation},
    damage::{Damage, DamageKind},
    pool::RelationId,
};
use heapscan_io::OpenFileOptions;
use rustc_hash::FxHashMap;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

/// A fork of a relation that is to be checked.
pub(super) struct Target {
    pub(super) fork: Arc<RelationFork>,
    pub(super) id: RelationId,
    /// Which fork it is.
    pub(super) kind: Fork,
    /// What the catalog says of it; `None` of orphans.
    pub(super) relation: Option<Arc<StoredRelation>>,
    pub(super) database: Option<Database>,
}

impl Target {
    /// Whether its pages are heap pages.
    pub(super) fn is_heap(&self) -> bool {
        self.kind == Fork::Main && self.relation.as_ref().is_some_and(|relation| relation.is_heap())
    }
}

/// A relation of the catalogs, with its database.
type Known = (Arc<StoredRelation>, Database);

/// What is to be checked.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) targets: Vec<Target>,
    pub(super) files: u64,
    pub(super) databases: u64,
    pub(super) orphans: Vec<PathBuf>,
}

/// The main forks by their first segment.
#[derive(Default)]
struct Catalogs {
    by_path: BTreeMap<PathBuf, Known>,
    /// Databases whose catalogs could not be read: their files have no names.
    unread: bool,
}

pub(super) fn plan(
    engine: &Engine,
    database: Option<&str>,
    tables: &[String],
    findings: &Findings<'_>,
) -> Result<Plan> {
    let mut plan = Plan::default();
    let databases = match engine.databases() {
        Ok(databases) => databases,
        // A name cannot be looked up then; all files can be checked.
        Err(error) if database.is_none() && tables.is_empty() => {
            findings.error(&error);
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let mut names: Vec<String> = databases.iter().filter(|d| d.has_folder).map(|d| d.name.clone()).collect();
    if !tables.is_empty() {
        names = vec![engine.database(database)?.info().name.clone()];
    } else if let Some(name) = database {
        // Not opened yet: its catalogs may be what is damaged.
        names.retain(|other| other == name);
        if names.is_empty() {
            engine.database(database)?;
        }
    }
    let mut catalogs = Catalogs { unread: databases.is_empty(), ..Catalogs::default() };
    for name in &names {
        plan.databases += 1;
        let read = engine.database(Some(name)).and_then(|database| add_relations(&database, &mut catalogs, findings));
        if let Err(error) = read {
            if !tables.is_empty() {
                return Err(error);
            }
            findings.error(&error);
            catalogs.unread = true;
        }
    }
    if !tables.is_empty() {
        return only_tables(engine, &names[0], tables, &catalogs, plan, findings);
    }
    let only = database.and_then(|name| databases.iter().find(|d| d.name == name)).map(|d| d.oid);
    let mut there = BTreeSet::new();
    for folder in folders(engine, only, findings)? {
        add_folder(engine, &folder, &catalogs, &mut plan, &mut there, findings)?;
    }
    for (path, (relation, _)) in &catalogs.by_path {
        let in_scope = only.is_none_or(|only| relation.file.database == only);
        if in_scope && !there.contains(path) && path.parent().is_some_and(Path::is_dir) {
            findings.error(&missing(relation, path));
        }
    }
    if only.is_none() {
        // Databases of the cluster that the copy leaves out are none of ours, but should be known.
        for left_out in databases.iter().filter(|d| !d.has_folder) {
            findings.note(format!("database {:?} has no folder and was not checked", left_out.name));
        }
    }
    Ok(plan)
}

fn add_relations(database: &Database, catalogs: &mut Catalogs, findings: &Findings<'_>) -> Result<()> {
    let (relations, failed) = database.stored_relations()?;
    for error in failed {
        findings.error(&error);
    }
    for relation in relations {
        let known = (Arc::new(relation), database.clone());
        // The shared ones are in every database.
        catalogs.by_path.entry(known.0.path.clone()).or_insert(known);
    }
    Ok(())
}

fn missing(relation: &StoredRelation, path: &Path) -> Error {
    let error = Error::new(ErrorKind::Corrupt, format!("the file of {} {} is missing", relation.kind, relation.name));
    error.with_path(path).with_block(0)
}

/// The folders with files of relations, each once.
fn folders(engine: &Engine, only: Option<u32>, findings: &Findings<'_>) -> Result<Vec<PathBuf>> {
    let cluster = engine.cluster();
    let base = cluster.path().join("base");
    let mut folders = Vec::new();
    if only.is_none() {
        folders.push(cluster.path().join("global"));
    }
    folders.extend(numbered(&base, only)?);
    let mut tablespaces: BTreeSet<u32> = cluster.options().tablespaces.keys().copied().collect();
    for link in numbered(&cluster.path().join("pg_tblspc"), None)? {
        tablespaces.extend(link.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()));
    }
    for tablespace in tablespaces {
        // The folder of a database that need not exist; its parent does.
        match cluster.tablespace_directory(tablespace, 0) {
            Ok(folder) => folders.extend(numbered(folder.parent().unwrap_or(&folder), only)?),
            Err(error) => findings.error(&error.in_context("not checked")),
        }
    }
    Ok(folders)
}

/// Entries whose names are numbers, in their order.
fn numbered(folder: &Path, only: Option<u32>) -> Result<Vec<PathBuf>> {
    let entries = match folder.read_dir() {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::os(folder, "read directory", &e)),
    };
    let mut numbers = BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::os(folder, "read directory", &e))?;
        if let Some(FileName::Relation { filenode, fork: Fork::Main, segment: 0 }) =
            entry.file_name().to_str().map(FileName::parse)
            && only.is_none_or(|only| only == filenode)
        {
            numbers.insert(filenode);
        }
    }
    Ok(numbers.into_iter().map(|number| folder.join(number.to_string())).collect())
}

/// Adds all forks of a folder, by the strict grammar of their names.
fn add_folder(
    engine: &Engine,
    folder: &Path,
    catalogs: &Catalogs,
    plan: &mut Plan,
    there: &mut BTreeSet<PathBuf>,
    findings: &Findings<'_>,
) -> Result<()> {
    let mut forks: BTreeMap<(u32, u8), (Fork, u64)> = BTreeMap::new();
    let entries = folder.read_dir().map_err(|e| Error::os(folder, "read directory", &e))?;
    for entry in entries {
        let entry = entry.map_err(|e| Error::os(folder, "read directory", &e))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if let FileName::Relation { filenode, fork, .. } = FileName::parse(&name) {
            forks.entry((filenode, fork as u8)).or_insert((fork, 0)).1 += 1;
        } else if name.starts_with("INCREMENTAL.") {
            return Err(crate::cluster::incremental(&entry.path()));
        }
    }
    for ((filenode, _), (kind, files)) in forks {
        plan.files += files;
        let main = folder.join(filenode.to_string());
        let known = catalogs.by_path.get(&main);
        if known.is_none() && kind == Fork::Main && !catalogs.unread {
            plan.orphans.push(main.clone());
        }
        if kind == Fork::Main {
            there.insert(main.clone());
        }
        add_fork(engine, &main, kind, known, plan, findings)?;
    }
    Ok(())
}

/// Path of the first segment of a fork.
fn fork_path(main: &Path, kind: Fork) -> PathBuf {
    let mut path = main.as_os_str().to_owned();
    path.push(match kind {
        Fork::Main => "",
        Fork::FreeSpaceMap => "_fsm",
        Fork::VisibilityMap => "_vm",
        Fork::Init => "_init",
    });
    PathBuf::from(path)
}

fn add_fork(
    engine: &Engine,
    main: &Path,
    kind: Fork,
    known: Option<&Known>,
    plan: &mut Plan,
    findings: &Findings<'_>,
) -> Result<()> {
    let control = engine.cluster().control();
    let open = OpenFileOptions { direct: engine.options().io_direct, uncached: engine.options().io_uncached };
    let path = fork_path(main, kind);
    let opened = RelationFork::open_salvage(&path, control.block_size, control.blocks_per_segment, open);
    let (fork, defects) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            match known {
                Some((relation, _)) if error.errno() == Some(libc::ENOENT) => findings.error(&missing(relation, &path)),
                _ => findings.error(&error),
            }
            return Ok(());
        }
    };
    for defect in defects {
        findings.error(&defect.with_block(fork.blocks()));
    }
    let relation = known.map(|(relation, _)| Arc::clone(relation));
    if kind == Fork::Main
        && let Some(relation) = &relation
        && engine.cluster().control().state.is_clean()
    {
        ends_early(relation, &fork, findings)?;
    }
    let fork = Arc::new(fork);
    let id = engine.pool().register(Arc::clone(&fork))?;
    plan.targets.push(Target { fork, id, kind, relation, database: known.map(|(_, database)| database.clone()) });
    Ok(())
}

/// Whether others know of more blocks than the files have.
fn ends_early(relation: &StoredRelation, fork: &RelationFork, findings: &Findings<'_>) -> Result<()> {
    let blocks = fork.blocks();
    if relation.is_heap()
        && let Some(block) = crate::cluster::mapped_behind_end(fork)?
    {
        let what =
            format!("ends after {blocks} blocks, but its visibility map knows of block {block}: blocks are missing");
        findings.error(&Error::new(ErrorKind::Corrupt, what).with_path(fork.path_of(blocks)).with_block(blocks));
    } else if i64::from(relation.pages) > i64::from(blocks) {
        let what = format!("ends after {blocks} blocks, pg_class counted {}: blocks are missing", relation.pages);
        findings.error(&Error::new(ErrorKind::Corrupt, what).with_path(fork.path_of(blocks)).with_block(blocks));
    }
    Ok(())
}

/// The forks of some tables and of their TOAST tables.
fn only_tables(
    engine: &Engine,
    database: &str,
    tables: &[String],
    catalogs: &Catalogs,
    mut plan: Plan,
    findings: &Findings<'_>,
) -> Result<Plan> {
    let database = engine.database(Some(database))?;
    let by_oid: FxHashMap<u32, &Known> = catalogs.by_path.values().map(|known| (known.0.oid, known)).collect();
    let mut wanted = BTreeSet::new();
    for table in tables {
        for oid in database.scannable_oids(table)? {
            let Some((relation, _)) = by_oid.get(&oid) else { continue };
            wanted.extend([oid, relation.toast]);
        }
    }
    for known in wanted.iter().filter_map(|oid| by_oid.get(oid).copied()) {
        let relation = &known.0;
        for kind in [Fork::Main, Fork::FreeSpaceMap, Fork::VisibilityMap, Fork::Init] {
            if kind == Fork::Main || fork_path(&relation.path, kind).exists() {
                add_fork(engine, &relation.path, kind, Some(known), &mut plan, findings)?;
            }
        }
    }
    plan.files = plan.targets.iter().map(|target| target.fork.segments_there()).sum();
    Ok(plan)
}

/// A finding from an error.
pub(super) fn damage_of(error: &Error) -> Option<Damage> {
    let kind = match error.kind() {
        ErrorKind::Checksum => DamageKind::Page,
        ErrorKind::Corrupt if error.is_missing_block() => DamageKind::Missing,
        ErrorKind::Io if error.block().is_some() => DamageKind::Unreadable,
        ErrorKind::Corrupt if error.block().is_some() => DamageKind::Missing,
        ErrorKind::Visibility => DamageKind::Status,
        _ => DamageKind::File,
    };
    Some(Damage {
        file: error.path()?.to_owned(),
        block: error.block(),
        blocks: u32::from(error.block().is_some()),
        tuple: None,
        kind,
        reason: error.message().to_owned(),
        rows_lost: None,
    })
}
