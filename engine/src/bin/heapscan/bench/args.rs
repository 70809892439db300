//! The command line of `heapscan bench`.

use super::case::{Access, State, Workload};
use crate::args::size;
use clap::Args;
use heapscan::{MethodChoice, MethodName};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Cluster to read; without one, data is generated
    pub(crate) pgdata: Option<PathBuf>,
    /// Database of it
    #[arg(long, short = 'd', value_name = "NAME", requires = "pgdata")]
    pub(crate) database: Option<String>,
    /// The table to read
    #[arg(long, default_value = "pgbench_accounts", value_name = "TABLE")]
    pub(crate) table: String,
    /// The aggregates of the workload agg [default: sum(octet_length(filler)) where there is such a column, else count(*)]
    #[arg(long, value_name = "LIST")]
    pub(crate) agg: Option<String>,
    /// Where generated data lies; a folder that is named is kept, and used again when it fits [default: one in /var/tmp,
    /// removed at the end]
    #[arg(long, value_name = "DIR", conflicts_with = "pgdata")]
    pub(crate) data: Option<PathBuf>,
    /// Scale factor of generated data: 100,000 rows each (about 13.4 MB) [default: 160, quick: 20]
    #[arg(long, value_name = "N", conflicts_with = "pgdata", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) scale: Option<u32>,
    /// Small data, three runs, fewer rows: done within a minute
    #[arg(long)]
    pub(crate) quick: bool,
    /// Runs of each row; the median counts [default: 5, quick: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1001))]
    pub(crate) runs: Option<u32>,
    /// What is done with the blocks
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["agg", "method-only", "offset", "seqconcurrscans", "pgbenchS", "pgbenchS-100k"])]
    pub(crate) workloads: Vec<Workload>,
    /// Only read, do not decode: the same as --workloads method-only
    #[arg(long, conflicts_with = "workloads")]
    pub(crate) method_only: bool,
    /// Methods to compare [default: all that work here]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = method)]
    pub(crate) io_methods: Vec<MethodName>,
    /// Where the blocks are before a run: cold (on the device), warm (page cache), hot (pool)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["cold", "warm", "hot"])]
    pub(crate) states: Vec<State>,
    /// How cold blocks are read
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["direct", "buffered"])]
    pub(crate) reads: Vec<Access>,
    /// Largest combined reads to compare, cold and direct
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size, default_values = ["8kB", "32kB", "128kB", "512kB", "1MB"])]
    pub(crate) io_combine_limits: Vec<u64>,
    /// Reads in flight of a scan to compare, cold and direct
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["1", "4", "16", "32", "64"])]
    pub(crate) effective_io_concurrencies: Vec<u32>,
    /// Worker threads to compare, cold and direct
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["1", "2", "4", "8", "16"])]
    pub(crate) io_workers: Vec<u32>,
    /// Clients of seqconcurrscans to compare
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024), default_values = ["1", "2", "4", "8"])]
    pub(crate) clients: Vec<u32>,
    /// Size of the buffer pool; hot rows take as much as the table needs
    #[arg(long, default_value = "128MB", value_name = "SIZE", value_parser = size)]
    pub(crate) shared_buffers: u64,
    /// Huge pages for the buffer pool: off, try or on
    #[arg(long, default_value = "try", value_name = "MODE")]
    pub(crate) huge_pages: heapscan::HugePages,
    /// Run the same queries through the PostgreSQL server whose programs are in this folder, on the same cluster (a copy of
    /// it, if it was not generated); as root the server runs as another user (HEAPSCAN_PGUSER, postgres, nobody)
    #[arg(long, value_name = "PGBIN")]
    pub(crate) postgres: Option<PathBuf>,
    /// Also measure the device with fio, if it is installed
    #[arg(long)]
    pub(crate) fio: bool,
    /// Drop the page cache of the whole machine when that of the files alone cannot be dropped; needs root
    #[arg(long)]
    pub(crate) drop_caches: bool,
    /// Order of the runs
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) seed: u64,
    /// Folder for report.html, results.csv and results.json
    #[arg(long, default_value = "heapscan-bench", value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// End with an error when a bar of the project is missed
    #[arg(long)]
    pub(crate) strict: bool,
}

/// A method by name: a row for `auto` would be that of another method.
fn method(text: &str) -> Result<MethodName, String> {
    match text.parse()? {
        MethodChoice::Named(name) => Ok(name),
        MethodChoice::Auto => Err("name the methods to compare".to_owned()),
    }
}
