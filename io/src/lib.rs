//! Getting bytes from files into memory that somebody else owns.
//!
//! One trait, [`IoMethod`], with PostgreSQL's names for its implementations (`sync`, `worker`, `io_uring`) and one of
//! our own (`tokio_uring`). This crate knows nothing of pages, pools or PostgreSQL: see the README for its dangers.
#![deny(unsafe_code)]

mod config;
mod curve;
mod error;
mod facts;
mod fault;
mod file;
mod fork;
mod latency;
mod method;
mod name;
mod open;
#[cfg(feature = "io_uring")]
mod raw;
mod request;
mod stats;
mod transfer;

pub use config::{AsyncRule, DEFAULT_MAX_CONCURRENCY, IoConfig, RegisteredBuffers};
pub use curve::{CurvePoint, DepthCurve, Recommendation, depth_curve};
pub use error::{IoError, ReadError};
pub use facts::{KernelFacts, Limit, kernel_facts, ring_facts};
pub use fault::FaultPlan;
pub use file::{DataFile, DirectAlignment, OpenFileOptions};
pub use latency::LatencySummary;
pub use method::{IoMethod, MemoryRegistration, OutstandingRead, WaitOutcome};
pub use name::{MethodChoice, MethodName};
pub use open::{MethodReport, MethodStatus, Opened, open, probe_all, probe_all_with};
#[cfg(feature = "io_uring")]
pub use raw::{RawPoint, RawResult, raw_read};
pub use request::{Completer, Completion, Request, Segment};
pub use stats::IoStats;
