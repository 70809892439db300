//! The front door: a cluster, its databases and tables, behind one buffer pool and one IO method.

use crate::{
    DamageLog, Error, ErrorKind, RelationFork, Result, VerifyChecksums,
    cluster::{self, ChecksumState, Cluster, DatabaseInfo, OpenOptions, RelationName, TableEntry},
    heap::VerifyMode,
    options::EngineOptions,
    pool::{BufferPool, DEFAULT_IO_CONCURRENCY, PoolConfig, PoolMetrics, SMALL_READ_IO_CONCURRENCY},
    scan::{Column, ScanBuilder, TableContext, reader::PoolReader, toast::ToastTables},
    visibility::{TransactionCounters, TransactionLog},
};
use heapscan_io::{
    IoConfig, IoStats, LatencySummary, MemoryRegistration, MethodReport, OpenFileOptions, RegisteredBuffers,
};
use std::{fmt, path::Path, sync::Arc};

/// A cluster that is open for scanning. Cheap to clone; all clones share pool and IO method.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<EngineInner>,
}

pub(crate) struct EngineInner {
    pub(crate) pool: Arc<BufferPool>,
    pub(crate) log: TransactionLog,
    pub(crate) verify: VerifyMode,
    pub(crate) open: OpenFileOptions,
    pub(crate) cluster: Cluster,
    report: MethodReport,
    options: EngineOptions,
}

impl Engine {
    /// Opens the cluster in the data directory `pgdata`, makes the buffer pool and opens the IO method.
    ///
    /// # Errors
    /// Those of [`Cluster::open`] (no cluster, running server, not shut down cleanly, damaged control file, unknown
    /// version), `Method` if the IO method cannot be used here, `Usage` for settings out of range, `Limit` if the
    /// pool's memory cannot be had.
    pub fn open(pgdata: impl AsRef<Path>, options: EngineOptions) -> Result<Self> {
        let how = OpenOptions {
            allow_unclean: options.allow_unclean,
            follow_tablespace_links: options.follow_tablespace_links,
            tablespace_map: options.tablespace_map.clone(),
            on_corruption: options.on_corruption,
            ..OpenOptions::default()
        };
        if let Some(limit) = options.max_files_per_process {
            if limit == 0 {
                return Err(Error::new(ErrorKind::Usage, "max_files_per_process 0: at least one file must be open"));
            }
            crate::OpenFiles::of_process().set_limit(Some(limit));
        }
        let cluster = Cluster::open(pgdata, how)?;
        let control = cluster.control();
        let verify = verify_mode(&cluster, options.verify)?;
        let counters = TransactionCounters {
            next_xid: control.next_xid,
            oldest_xid: control.oldest_xid,
            next_multi: control.next_multi,
            next_multi_offset: control.next_multi_offset,
            oldest_multi: control.oldest_multi,
        };
        let log = TransactionLog::open(cluster.path(), counters, control.block_size, control.major_version)?;
        let config = pool_config(&options, control.block_size)?;
        let mut report = None;
        let pool = BufferPool::new(config, |completer| {
            // A file of the cluster: its device is the one to be polled.
            let probe_file = options.io.probe_file.clone().or_else(|| Some(cluster.path().join("global/pg_control")));
            let opened = heapscan_io::open(&IoConfig { probe_file, ..options.io.clone() }, completer)?;
            report = Some(opened.report);
            Ok(opened.method)
        })?;
        let mut report = report.ok_or_else(|| Error::new(ErrorKind::Method, "the IO method gave no report"))?;
        if let Some(registration) = pool.memory_registration() {
            let text = match registration {
                MemoryRegistration::Fixed(how) => how.clone(),
                MemoryRegistration::Plain(why) => format!("plain: {why}"),
            };
            report.details.push(("buffers".to_owned(), text));
        }
        let open = OpenFileOptions { direct: options.io_direct, uncached: options.io_uncached };
        let inner = EngineInner { pool: Arc::new(pool), log, verify, open, cluster, report, options };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The cluster: control file, path, warnings.
    pub fn cluster(&self) -> &Cluster {
        &self.inner.cluster
    }

    /// The policy for damage, and what all scans of this engine found so far.
    pub fn damage(&self) -> &DamageLog {
        self.inner.cluster.damage()
    }

    /// Which IO method was asked for, which one is used, and why they differ.
    pub fn method(&self) -> &MethodReport {
        &self.inner.report
    }

    pub(crate) fn inner(&self) -> &EngineInner {
        &self.inner
    }

    /// The settings it was opened with.
    pub fn options(&self) -> &EngineOptions {
        &self.inner.options
    }

    /// Counters of the buffer pool.
    pub fn pool_metrics(&self) -> PoolMetrics {
        self.inner.pool.metrics()
    }

    /// Counters of the IO method.
    pub fn io_stats(&self) -> IoStats {
        self.inner.pool.io_stats()
    }

    /// How long read requests took, from submission to completion.
    pub fn io_latency(&self) -> LatencySummary {
        self.inner.pool.io_latency()
    }

    /// The buffer pool, for those who want blocks instead of rows.
    pub fn pool(&self) -> &Arc<BufferPool> {
        &self.inner.pool
    }

    /// The databases, by name.
    ///
    /// # Errors
    /// Those of scanning `pg_database`.
    pub fn databases(&self) -> Result<Vec<DatabaseInfo>> {
        self.inner.cluster.databases(&PoolReader::new(Arc::clone(&self.inner)))
    }

    /// A database by name; without one, the only user database.
    ///
    /// # Errors
    /// `NotFound`, `Usage` if a name is needed, and those of scanning the catalogs.
    pub fn database(&self, name: Option<&str>) -> Result<Database> {
        let reader = Arc::new(PoolReader::new(Arc::clone(&self.inner)));
        let database = self.inner.cluster.database(reader, name)?;
        let database = Arc::new(database);
        let toast = Arc::new(ToastTables::new(Arc::clone(&self.inner), Arc::clone(&database)));
        Ok(Database { engine: Arc::clone(&self.inner), database, toast })
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("cluster", &self.inner.cluster.path()).finish_non_exhaustive()
    }
}

fn verify_mode(cluster: &Cluster, wish: VerifyChecksums) -> Result<VerifyMode> {
    match (wish, cluster.control().checksums) {
        (VerifyChecksums::Never, _) => Ok(VerifyMode::Structure),
        (_, ChecksumState::On) => Ok(VerifyMode::Checksum),
        (VerifyChecksums::Auto, _) => Ok(VerifyMode::Structure),
        (VerifyChecksums::Always, state) => {
            Err(Error::new(ErrorKind::Usage, format!("the cluster's data checksums are {state:?}: nothing to verify"))
                .with_path(cluster.path())
                .with_hint("use auto"))
        }
    }
}

fn pool_config(options: &EngineOptions, block_size: u32) -> Result<PoolConfig> {
    let out_of_range = || {
        Error::new(
            ErrorKind::Usage,
            format!("io_combine_limit of {} bytes: use 1 block to 1 MB", options.io_combine_limit),
        )
    };
    let combine = u32::try_from(options.io_combine_limit / u64::from(block_size)).map_err(|_| out_of_range())?;
    if combine == 0 {
        return Err(out_of_range());
    }
    let concurrency = match options.effective_io_concurrency {
        DEFAULT_IO_CONCURRENCY if options.io_combine_limit < 32 << 10 => SMALL_READ_IO_CONCURRENCY,
        chosen => chosen,
    };
    Ok(PoolConfig {
        shared_buffers: options.shared_buffers,
        io_combine_limit: combine,
        effective_io_concurrency: concurrency,
        huge_pages: options.huge_pages,
        stall_after: options.io.stall_after,
        register_memory: options.io_direct && options.io.registered_buffers == RegisteredBuffers::Auto,
        ..PoolConfig::new(block_size)
    })
}

/// A database of the cluster, with its catalogs read.
#[derive(Clone)]
pub struct Database {
    engine: Arc<EngineInner>,
    database: Arc<cluster::Database>,
    toast: Arc<ToastTables>,
}

impl Database {
    /// Name, encoding and so on.
    pub fn info(&self) -> &DatabaseInfo {
        self.database.info()
    }

    /// All relations that `heapscan ls` knows of.
    pub fn tables(&self) -> Vec<TableEntry> {
        self.database.tables()
    }

    pub(crate) fn stored_relations(&self) -> Result<(Vec<cluster::StoredRelation>, Vec<Error>)> {
        self.database.stored_relations()
    }

    pub(crate) fn toast_tables(&self) -> Arc<ToastTables> {
        Arc::clone(&self.toast)
    }

    /// Oids of the relations that hold the rows of a table: itself, or its leaf partitions.
    pub(crate) fn scannable_oids(&self, name: &str) -> Result<Vec<u32>> {
        self.database.row_relations(&name.parse()?)
    }

    /// A table by name, written as SQL would (`schema.table`, default schema `public`, double quotes around odd
    /// names), or as `oid:16384`.
    ///
    /// # Errors
    /// `Usage` if the name is malformed, `NotFound`, `Unsupported` (a view, an index, another access method),
    /// `Corrupt` if its files are not whole, `Io`.
    pub fn table(&self, name: &str) -> Result<Table> {
        let name: RelationName = name.parse()?;
        if let Some((parent, leaves)) = self.database.partitioned(&name)? {
            let control = self.engine.cluster.control();
            let fork = RelationFork::empty(&parent.path, control.block_size, control.blocks_per_segment);
            return self.with_parts(parent, Arc::new(fork), leaves, Vec::new());
        }
        let info = self.database.relation(&name)?;
        let fork = self.database.open_fork(&info, self.engine.open)?;
        let mut warnings = self.completeness(&info, &fork)?;
        let children = if info.has_children { self.database.inheritors(info.oid)?.len() } else { 0 };
        if children > 0 {
            warnings.push(format!(
                "{children} other tables inherit from {}: only its own rows are read, as COPY does (SELECT * FROM ONLY)",
                info.name
            ));
        }
        self.with_parts(info, fork, Vec::new(), warnings)
    }

    /// As [`table`](Self::table), but of a table from which others inherit, the rows of these too, as `SELECT * FROM`
    /// has them: its own first, then those of the others in the order of their oids, level by level.
    ///
    /// # Errors
    /// As [`table`](Self::table).
    pub fn table_with_children(&self, name: &str) -> Result<Table> {
        let parsed: RelationName = name.parse()?;
        if self.database.partitioned(&parsed)?.is_some() {
            return self.table(name);
        }
        let info = self.database.relation(&parsed)?;
        let fork = self.database.open_fork(&info, self.engine.open)?;
        let warnings = self.completeness(&info, &fork)?;
        let children = self.database.relations(&self.database.inheritors(info.oid)?)?;
        self.with_parts(info, fork, children, warnings)
    }

    fn with_parts(
        &self,
        info: cluster::RelationInfo,
        fork: Arc<RelationFork>,
        parts: Vec<cluster::RelationInfo>,
        mut warnings: Vec<String>,
    ) -> Result<Table> {
        let relation = self.engine.pool.register(Arc::clone(&fork))?;
        // An anyarray (of pg_statistic and pg_attribute) can hold values of any type.
        const ANYARRAY: u32 = 2277;
        let types = match info.layout.attributes.iter().any(|a| a.type_oid == ANYARRAY) {
            true => self.database.type_catalog()?,
            false => self.database.type_catalog_for(&[&info.layout])?,
        };
        let types = Arc::new(types);
        let context = |info, fork, relation| {
            let (engine, types, toast) = (Arc::clone(&self.engine), Arc::clone(&types), Arc::clone(&self.toast));
            TableContext::new(engine, types, toast, info, fork, relation)
        };
        let mut table = context(info, fork, relation)?;
        for part in parts {
            let fork = match self.database.open_fork(&part, self.engine.open) {
                Ok(fork) => fork,
                Err(error) => {
                    let error = error.in_context(format_args!("partition {}", part.name));
                    self.engine.cluster.damage().pass_file(error, 0)?;
                    continue;
                }
            };
            warnings.extend(self.completeness(&part, &fork)?);
            let map = cluster::Database::column_map(&table.info, &part)?;
            let relation = self.engine.pool.register(Arc::clone(&fork))?;
            table.parts.push((Arc::new(context(part, fork, relation)?), map));
        }
        Ok(Table { context: Arc::new(table), warnings })
    }

    /// Looks for signs that blocks are missing at the end of the relation's files, and for files elsewhere.
    fn completeness(&self, info: &cluster::RelationInfo, fork: &RelationFork) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        if info.reset_by_crash {
            return Ok(warnings);
        }
        let at_rest = self.engine.cluster.control().state.is_clean();
        if let Some(block) = cluster::mapped_behind_end(fork)? {
            let message = format!(
                "the relation ends before block {}, but its visibility map knows of block {block}: blocks are missing",
                fork.blocks()
            );
            if at_rest {
                let error = Error::new(ErrorKind::Corrupt, message)
                    .with_path(fork.path())
                    .with_hint("a segment was cut off or is missing: compare with the source of the copy");
                self.engine.cluster.damage().pass_file(error, fork.blocks())?;
                return Ok(warnings);
            }
            warnings.push(format!("{}: {message}", fork.path().display()));
        } else if i64::from(info.pages) > i64::from(fork.blocks()) {
            warnings.push(format!(
                "{}: has {} blocks, pg_class counted {} when it was last vacuumed or analysed: rows can be missing",
                fork.path().display(),
                fork.blocks(),
                info.pages
            ));
        }
        let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let file = canonical(fork.path());
        if !file.starts_with(canonical(self.engine.cluster.path())) {
            warnings.push(format!("the rows come from {}, outside the data directory", file.display()));
        }
        Ok(warnings)
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("info", self.info()).finish_non_exhaustive()
    }
}

/// A table whose files are open.
#[derive(Clone)]
pub struct Table {
    context: Arc<TableContext>,
    warnings: Vec<String>,
}

impl Table {
    /// What the catalog says of it.
    pub fn info(&self) -> &cluster::RelationInfo {
        &self.context.info
    }

    /// What should be known of its rows: signs that blocks are missing at its end, files outside the data directory.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Its columns, without the dropped ones.
    pub fn columns(&self) -> Vec<Column> {
        self.context.columns()
    }

    /// Its size in blocks, without those of partitions.
    pub fn blocks(&self) -> u32 {
        self.context.fork.blocks()
    }

    /// The relations that have rows of it besides itself: the leaves of a partitioned table, or children.
    pub fn parts(&self) -> impl Iterator<Item = &cluster::RelationInfo> {
        self.context.parts.iter().map(|(part, _)| &part.info)
    }

    /// All blocks that a scan reads.
    pub fn total_blocks(&self) -> u64 {
        let parts = self.context.parts.iter().map(|(part, _)| u64::from(part.fork.blocks()));
        u64::from(self.blocks()) + parts.sum::<u64>()
    }

    /// Whether its reads go past the page cache: asked for, and the file system can.
    pub fn is_direct(&self) -> bool {
        self.blocks() > 0 && self.context.fork.locate(0).is_ok_and(|location| location.file.is_direct())
    }

    /// Whether its reads leave nothing in the page cache: asked for, and kernel and file system can.
    pub fn is_uncached(&self) -> bool {
        self.blocks() > 0 && self.context.fork.locate(0).is_ok_and(|location| location.file.is_uncached())
    }

    /// Why it is not read in the way that was asked for; of its first file.
    pub fn io_note(&self) -> Option<String> {
        if self.blocks() == 0 {
            return None;
        }
        self.context.fork.locate(0).ok()?.file.note()
    }

    /// Its files.
    pub fn fork(&self) -> &Arc<RelationFork> {
        &self.context.fork
    }

    /// A scan, to be told which columns and blocks.
    pub fn scan(&self) -> ScanBuilder {
        ScanBuilder::new(Arc::clone(&self.context))
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("info", self.info()).finish_non_exhaustive()
    }
}
