//! Reads PostgreSQL heap files at device and memory speed, without a server.
//!
//! The way of one block is also the way to read the code: [`cluster`] (control file, catalogs) → [`RelationFork`]
//! (segments) → [`stream`] (look-ahead) → [`pool`] (frames; the IO methods are the crate `heapscan-io`) → [`heap`]
//! (checked pages, tuples, columns) → [`visibility`] → [`types`] (text) or Arrow.
//!
//! # Dangers
//! - The files must not change while they are read. [`Engine::open`] refuses clusters that are not at rest.
//! - WAL is never replayed: with [`EngineOptions::allow_unclean`] recent changes can be missing.
//! - A row is only what the files say: values of virtual generated columns are not there, and of the types of most
//!   extensions only bytes.
//!
//! ```no_run
//! use heapscan::{Engine, EngineOptions};
//!
//! fn main() -> heapscan::Result<()> {
//!     let engine = Engine::open("/var/lib/postgresql/18/main", EngineOptions::default())?;
//!     let accounts = engine.database(Some("bank"))?.table("public.accounts")?;
//!     let mut scan = accounts.scan().columns(&["id", "owner"]).start()?;
//!     while let Some(mut page) = scan.next_page()? {
//!         while let Some(mut row) = page.next_row()? {
//!             println!("{:?} {:?}", row.i64(0)?, row.str(1)?);
//!         }
//!     }
//!     Ok(())
//! }
//! ```
#![deny(unsafe_code)]

pub mod cluster;
pub mod damage;
mod engine;
mod error;
pub mod heap;
mod options;
pub mod pool;
pub mod scan;
pub mod schema;
mod storage;
pub mod stream;
pub mod types;
pub mod verify;
pub mod visibility;

pub use damage::{Damage, DamageKind, DamageLog, DamageReport, DamageTotals, OnCorruption};
pub use engine::{Database, Engine, Table};
pub use error::{Error, ErrorKind, Result};
pub use options::{EngineOptions, VerifyChecksums};
#[cfg(feature = "arrow")]
pub use scan::arrow;
pub use scan::filter::{Predicate, col};
pub use scan::stream::ScanStream;
pub use scan::{
    Column, Page, Row, RowFormat, RowId, Scan, ScanBuilder, ScanStats, ThreadReport, ThreadReports, aggregate,
};
pub use storage::{Location, OpenFiles, RelationFork, TrailingFragment};
pub use types::copy;

pub use heapscan_io::{
    AsyncRule, FaultPlan, IoConfig, IoStats, LatencySummary, MethodChoice, MethodName, MethodReport, MethodStatus,
    RegisteredBuffers, probe_all as probe_methods,
};
pub use heapscan_placement::{
    memory::HugePages,
    plan::{Grouping as NumaGrouping, Mode as NumaMode},
};
pub use pool::{NumaOptions, balance::NumaBalance};
