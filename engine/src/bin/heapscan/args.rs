//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Parser)]
#[command(name = "heapscan", version, about = "Reads PostgreSQL heap files without a server", max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the tables of a cluster's database (or its databases, when it has several and none is named)
    Ls(LsArgs),
    /// Print the rows of a table, or aggregates over them
    Scan(Box<ScanArgs>),
    /// Check checksums and structure of all files of a cluster, of a database, or of some tables
    Verify(VerifyArgs),
    /// Show each IO method: compiled in, usable here, why not
    Methods(MethodsArgs),
    /// Show the NUMA nodes, what may be used of them, and the plan for the buffer pool; or a file's page cache by node
    Numa(NumaCommandArgs),
    /// Compare IO methods, settings and cache states on this machine, beside what the machine can do at best
    Bench(Box<crate::bench::BenchArgs>),
    /// Write a valid cluster of any size without a server
    #[command(subcommand)]
    Generate(GenerateCommand),
    /// Unpack a bundled test cluster and print its folder
    Fixture {
        /// Name, as in the fixtures' manifest (`pgbench-18`, `small-18`, ...)
        name: String,
        /// Snapshot of it
        #[arg(long, default_value = "clean")]
        snapshot: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    Table,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RowFormat {
    /// As `COPY ... TO STDOUT` prints
    Text,
    /// As `COPY ... TO STDOUT (FORMAT csv, HEADER)` prints
    Csv,
    /// One JSON object a line
    Json,
    /// An Arrow IPC stream
    Arrow,
    /// A Parquet file
    Parquet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compression {
    None,
    Snappy,
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArrayForm {
    /// Lists; an array that is none (several dimensions, another lower bound) is an error
    List,
    /// Text, as the server prints it
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SpecialForm {
    Error,
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InfinityForm {
    Error,
    Null,
    Saturate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextForm {
    /// UTF-8, converted from the database's encoding
    Utf8,
    /// The bytes, unchecked
    Binary,
}

/// For `--format arrow` and `--format parquet`.
#[derive(Args)]
#[command(next_help_heading = "Arrow and Parquet options")]
pub(crate) struct ColumnarArgs {
    /// Compression [default: none for arrow, zstd for parquet]
    #[arg(long, value_enum, value_name = "CODEC")]
    pub(crate) compression: Option<Compression>,
    /// Rows of a batch at most
    #[arg(long, default_value_t = 8192, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) batch_rows: u32,
    /// Arrays
    #[arg(long, value_enum, default_value = "text", value_name = "FORM")]
    pub(crate) arrays: ArrayForm,
    /// numeric without precision, or of more than 76 digits: text, decimal(P,S) (what does not fit is an error), or float
    /// (digits are lost) [default: text]
    #[arg(long, value_name = "FORM", value_parser = crate::columnar::numeric)]
    pub(crate) numeric: Option<heapscan::arrow::NumericPolicy>,
    /// NaN and infinity in numeric columns that become decimals
    #[arg(long, value_enum, default_value = "error", value_name = "POLICY")]
    pub(crate) numeric_special: SpecialForm,
    /// Infinite (and for the Arrow type too large) dates and timestamps
    #[arg(long, value_enum, default_value = "error", value_name = "POLICY")]
    pub(crate) infinity: InfinityForm,
    /// Timestamps in nanoseconds instead of microseconds
    #[arg(long)]
    pub(crate) nanoseconds: bool,
    /// Text columns
    #[arg(long, value_enum, default_value = "utf8", value_name = "FORM")]
    pub(crate) text: TextForm,
    /// Refuse columns whose type has no known text form, instead of giving their bytes
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatsFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RowVisibility {
    Committed,
    All,
    Dead,
}

impl From<RowVisibility> for heapscan::visibility::Rows {
    fn from(rows: RowVisibility) -> Self {
        match rows {
            RowVisibility::Committed => Self::Committed,
            RowVisibility::All => Self::All,
            RowVisibility::Dead => Self::Dead,
        }
    }
}

/// `OLD=NEW`; an equals sign within OLD has a backslash before it, as for pg_basebackup.
fn mapping(text: &str) -> Result<(PathBuf, PathBuf), String> {
    let mut old = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' if rest.as_str().starts_with('=') => old.extend(rest.next()),
            '=' if !old.is_empty() && !rest.as_str().is_empty() => return Ok((old.into(), rest.as_str().into())),
            '=' => break,
            _ => old.push(c),
        }
    }
    Err(format!("{text:?} is not OLD=NEW"))
}

/// Which cluster and database.
#[derive(Args)]
pub(crate) struct ClusterArgs {
    /// The cluster's data directory: a stopped cluster, a snapshot, a restored base backup
    pub(crate) pgdata: PathBuf,
    /// Database; may be left out when there is just one user database
    #[arg(long, short = 'd', value_name = "NAME")]
    pub(crate) database: Option<String>,
    /// Read a cluster that was not shut down cleanly: WAL is not replayed, so recent changes can be missing or torn
    #[arg(long)]
    pub(crate) allow_unclean: bool,
    /// What to do about damage: fail; skip: leave damaged pages and rows out; zero: take damaged pages as empty. With losses
    /// the exit code is 1
    #[arg(long, default_value = "fail", value_name = "POLICY")]
    pub(crate) on_corruption: heapscan::OnCorruption,
    /// Follow tablespace links that lead out of the data directory (they may point at a live server's files)
    #[arg(long, visible_alias = "allow-links-outside")]
    pub(crate) follow_tablespace_links: bool,
    /// Read NEW where the cluster's links, or the tablespace_map of a backup, name the folder OLD; OLD may be an oid. May be
    /// given several times
    #[arg(long, value_name = "OLD=NEW", value_parser = mapping)]
    pub(crate) tablespace_map: Vec<(PathBuf, PathBuf)>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Engine options, with PostgreSQL's names.
#[derive(Args)]
#[command(next_help_heading = "Engine options")]
pub(crate) struct EngineArgs {
    /// IO method: auto, sync, worker, io_uring or tokio_uring
    #[arg(long, default_value = "auto", value_name = "METHOD")]
    pub(crate) io_method: heapscan_io::MethodChoice,
    /// Threads of the worker method [default: from the CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) io_workers: Option<u32>,
    /// Largest combined read, up to 1MB
    #[arg(long, default_value = "128kB", value_name = "SIZE", value_parser = size)]
    pub(crate) io_combine_limit: u64,
    /// Reads that one scan keeps in flight; 0 reads one at a time; the default is 128 for reads under 32kB
    #[arg(long, default_value_t = heapscan::pool::DEFAULT_IO_CONCURRENCY, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) effective_io_concurrency: u32,
    /// Reads in flight that a ring or queue holds at most
    #[arg(long, default_value_t = heapscan_io::DEFAULT_MAX_CONCURRENCY, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) io_max_concurrency: u32,
    /// Read past the page cache (O_DIRECT)
    #[arg(long)]
    pub(crate) io_direct: bool,
    /// Read through the page cache but leave nothing there (RWF_DONTCACHE, Linux 6.14)
    #[arg(long, conflicts_with = "io_direct")]
    pub(crate) io_uncached: bool,
    /// io_uring: a kernel thread polls for submissions; it takes a CPU while there is work
    #[arg(long)]
    pub(crate) io_sqpoll: bool,
    /// io_uring: poll the device for completions; needs --io-direct and a device with poll queues
    #[arg(long, requires = "io_direct")]
    pub(crate) io_iopoll: bool,
    /// io_uring, direct reads: pin the whole pool once instead of each read's memory: off or auto
    #[arg(long, default_value = "off", value_name = "MODE")]
    pub(crate) io_registered_buffers: heapscan::RegisteredBuffers,
    /// io_uring, buffered reads: hand them to kernel threads: auto (while a CPU is left), never, always, or N/SIZE for more
    /// than N in flight or reads of SIZE and more
    #[arg(long, default_value = "auto", value_name = "RULE", value_parser = async_rule)]
    pub(crate) io_async: heapscan::AsyncRule,
    /// worker: also hand over what the page cache has
    #[arg(long)]
    pub(crate) io_worker_always: bool,
    /// Data files that are kept open at most [default: three quarters of the limit on open files]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_files_per_process: Option<u32>,
    /// Size of the buffer pool
    #[arg(long, default_value = "128MB", value_name = "SIZE", value_parser = size)]
    pub(crate) shared_buffers: u64,
    /// Huge pages for the buffer pool: off, try or on
    #[arg(long, default_value = "try", value_name = "MODE")]
    pub(crate) huge_pages: heapscan::HugePages,
    /// Size of explicit huge pages [default: the kernel's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) huge_page_size: Option<u64>,
    /// Verify page checksums: auto (when the cluster has them), always or never
    #[arg(long, default_value = "auto", value_name = "MODE")]
    pub(crate) verify: heapscan::VerifyChecksums,
    /// Inject seeded faults into the reads, for tests (see the io crate's README)
    #[arg(long, hide = true, value_name = "PLAN")]
    pub(crate) io_fault: Option<heapscan_io::FaultPlan>,
    #[command(flatten)]
    pub(crate) numa: NumaArgs,
    /// Scans that use a ring of frames take them from the partition at home only
    #[arg(long, help_heading = "NUMA options")]
    pub(crate) ring_local: bool,
}

#[derive(Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Also list system catalogs, TOAST tables and what has no heap
    #[arg(long, short = 'a')]
    pub(crate) all: bool,
    /// Output format
    #[arg(long, default_value = "table", value_enum)]
    pub(crate) format: ListFormat,
}

#[derive(Args)]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// The table, as SQL writes it (`schema.table`, double quotes around odd names), or `oid:16384`
    pub(crate) table: String,
    /// Only these columns, in this order; double quotes around odd names. Also ctid, xmin, xmax, cmin, cmax, tableoid, t_ctid,
    /// t_infomask, t_infomask2, t_field3
    #[arg(long, value_name = "A,B", conflicts_with = "agg")]
    pub(crate) columns: Option<String>,
    /// Only the blocks from A to B (B excluded); `A..` and `..B` work too
    #[arg(long, value_name = "A..B", value_parser = block_range)]
    pub(crate) blocks: Option<(u32, u32)>,
    /// Only rows for which this is true: "a > 5 and b = 'x' and c is null"; also or, not, in, between, like
    #[arg(long = "where", value_name = "CONDITION")]
    pub(crate) filter: Option<String>,
    /// Stop after N rows
    #[arg(long, value_name = "N", conflicts_with = "agg")]
    pub(crate) limit: Option<u64>,
    /// Aggregates instead of rows: count(*); count, sum, min, max of a column or of octet_length(column); sum(a * (1 - b))
    #[arg(long, value_name = "LIST")]
    pub(crate) agg: Option<String>,
    /// Scan with N threads; the rows are the same, in the same order
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// With --threads of more than 1: print the rows as they come, in any order
    #[arg(long, requires = "threads", conflicts_with = "agg")]
    pub(crate) unordered: bool,
    /// Row versions: committed (what a server would show), all, or dead (what it would not show)
    #[arg(long, default_value = "committed", value_enum)]
    pub(crate) visibility: RowVisibility,
    /// Of a table from which others inherit, the rows of these too (SELECT * FROM; without it: FROM ONLY, as COPY)
    #[arg(long)]
    pub(crate) include_children: bool,
    /// Output format
    #[arg(long, default_value = "text", value_enum)]
    pub(crate) format: RowFormat,
    #[command(flatten)]
    pub(crate) columnar: ColumnarArgs,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write what was damaged (file, block, row, reason) to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) damage_report: Option<PathBuf>,
    /// Print the metrics of the scan to standard error
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) stats: Option<StatsFormat>,
}

#[derive(Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Only these tables with their maps and TOAST tables, written as in SQL [default: every file, those of indexes too]
    pub(crate) tables: Vec<String>,
    /// Also unpack every compressed and out-of-line value
    #[arg(long)]
    pub(crate) toast: bool,
    /// Threads that check [default: one a CPU, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: Option<u16>,
    /// Output format
    #[arg(long, default_value = "table", value_enum)]
    pub(crate) format: ListFormat,
}

#[derive(Args)]
pub(crate) struct MethodsArgs {
    /// Read this file directly for a second or two, at several sizes and depths, and recommend settings
    #[arg(long, value_name = "FILE")]
    pub(crate) probe: Option<PathBuf>,
    /// The method that reads it: auto, sync, worker, io_uring or tokio_uring
    #[arg(long, default_value = "auto", value_name = "METHOD")]
    pub(crate) io_method: heapscan_io::MethodChoice,
    /// Output format
    #[arg(long, default_value = "table", value_enum)]
    pub(crate) format: ListFormat,
}

/// Where the buffer pool goes.
#[derive(Args)]
#[command(next_help_heading = "NUMA options")]
pub(crate) struct NumaArgs {
    /// Placement of the buffer pool: off, interleave, partition, or auto (partition where nodes differ)
    #[arg(long, default_value = "auto", value_name = "MODE")]
    pub(crate) numa: heapscan_placement::plan::Mode,
    /// Only these nodes, such as 0,2-3; the only way to use nodes without CPUs
    #[arg(long, value_name = "LIST")]
    pub(crate) numa_nodes: Option<NodeList>,
    /// Confine threads to the CPUs of the nodes used
    #[arg(long)]
    pub(crate) numa_bind: bool,
    /// Partitions for each node
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) partitions_per_node: u32,
    /// Exactly N partitions on any machine, for tests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) force_partitions: Option<u32>,
    /// When frames of other partitions are taken: off, budget, or age (when pages at home live markedly shorter)
    #[arg(long, default_value = "age", value_name = "POLICY")]
    pub(crate) numa_balance: heapscan::NumaBalance,
    /// Which nodes go together: node (each for itself), socket, or off (all)
    #[arg(long, default_value = "node", value_name = "WHAT")]
    pub(crate) numa_grouping: heapscan_placement::plan::Grouping,
    /// Placement that cannot be had is an error
    #[arg(long)]
    pub(crate) numa_strict: bool,
}

/// A list of node ids.
#[derive(Clone, Debug)]
pub(crate) struct NodeList(pub(crate) Vec<u32>);

impl std::str::FromStr for NodeList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match heapscan_placement::list::parse(text) {
            Ok(nodes) if nodes.is_empty() => Err("no node at all".to_owned()),
            Ok(nodes) => Ok(Self(nodes)),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[derive(Args)]
pub(crate) struct NumaCommandArgs {
    /// Output format
    #[arg(long, default_value = "table", value_enum)]
    pub(crate) format: ListFormat,
    /// Also measure latency and bandwidth between nodes (256 MB of memory, under a second for each pair)
    #[arg(long, conflicts_with_all = ["pages", "machine"])]
    pub(crate) measure: bool,
    /// Instead show on which nodes the page cache of this file is
    #[arg(long, value_name = "FILE")]
    pub(crate) pages: Option<PathBuf>,
    /// Plan for another machine: tree:FOLDER (with its /sys and /proc), xml:FILE or synthetic:DESCRIPTION (of hwloc)
    #[arg(long, value_name = "WHICH", conflicts_with = "pages")]
    pub(crate) machine: Option<String>,
    /// Size of the buffer pool to plan for
    #[arg(long, default_value = "128MB", value_name = "SIZE", value_parser = size)]
    pub(crate) shared_buffers: u64,
    #[command(flatten)]
    pub(crate) numa: NumaArgs,
}

#[derive(Subcommand)]
pub(crate) enum GenerateCommand {
    /// The tables of pgbench, with the rows that `pgbench -i` makes
    Pgbench {
        /// Scale factor: 100,000 accounts each (about 12.8 MB)
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20_000))]
        scale: u32,
        /// How many further copies of pgbench_accounts to write (pgbench_accounts_1 and so on, 8 at most)
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=8))]
        copies: u8,
        /// PostgreSQL major version of the cluster: 15 or 18
        #[arg(long, default_value_t = 18, value_name = "MAJOR")]
        version: u32,
        /// Folder to make; it must not exist or be empty
        dir: PathBuf,
    },
}

/// `128MB`, `8kB`, `1GB`; a bare number is bytes. The units are PostgreSQL's: powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is not a size such as 128MB"))?;
    let factor = match unit.trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        "TB" => 1 << 40,
        other => return Err(format!("unknown unit {other:?}: use B, kB, MB, GB or TB")),
    };
    number.checked_mul(factor).ok_or_else(|| format!("{text} is too large"))
}

fn async_rule(text: &str) -> Result<heapscan::AsyncRule, String> {
    match text {
        "auto" => Ok(heapscan::AsyncRule::Auto),
        "never" => Ok(heapscan::AsyncRule::Never),
        "always" => Ok(heapscan::AsyncRule::Always),
        _ => {
            let parts = text.split_once('/').and_then(|(n, bytes)| Some((n.parse().ok()?, size(bytes).ok()?)));
            let (in_flight, bytes) =
                parts.ok_or_else(|| format!("{text:?} is none of auto, never, always, or N/SIZE such as 4/32kB"))?;
            Ok(heapscan::AsyncRule::Threshold { in_flight, bytes: usize::try_from(bytes).unwrap_or(usize::MAX) })
        }
    }
}

fn block_range(text: &str) -> Result<(u32, u32), String> {
    let (from, to) = text.split_once("..").ok_or_else(|| format!("{text:?} is not a block range such as 100..200"))?;
    let number = |part: &str, default| {
        if part.is_empty() { Ok(default) } else { part.parse().map_err(|_| format!("{part:?} is not a block number")) }
    };
    let (from, to) = (number(from, 0)?, number(to, u32::MAX)?);
    if from > to {
        return Err(format!("the range {text} ends before it begins"));
    }
    Ok((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_the_units_of_postgresql() {
        assert_eq!(size("128MB"), Ok(128 << 20));
        assert_eq!(size("8kB"), Ok(8192));
        assert_eq!(size("131072"), Ok(131_072));
        assert!(size("MB").is_err());
        assert!(size("12 parsecs").is_err());
        assert!(size("99999999999TB").is_err());
    }

    #[test]
    fn rules_for_handing_over_are_understood() {
        use heapscan::AsyncRule;
        assert_eq!(async_rule("4/32kB"), Ok(AsyncRule::Threshold { in_flight: 4, bytes: 32 << 10 }));
        assert_eq!((async_rule("never"), async_rule("always")), (Ok(AsyncRule::Never), Ok(AsyncRule::Always)));
        assert_eq!(async_rule("auto"), Ok(AsyncRule::default()));
        assert!(async_rule("4").is_err() && async_rule("x/8kB").is_err() && async_rule("4/x").is_err());
    }

    #[test]
    fn block_ranges_are_half_open() {
        assert_eq!(block_range("3..7"), Ok((3, 7)));
        assert_eq!(block_range("..7"), Ok((0, 7)));
        assert_eq!(block_range("3.."), Ok((3, u32::MAX)));
        assert!(block_range("7..3").is_err());
        assert!(block_range("7").is_err());
        assert!(block_range("a..b").is_err());
    }
}
