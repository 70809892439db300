//! Getting bytes from files into memory that somebody else owns.
//!
//! One trait, [`IoMethod`], with PostgreSQL's names for its implementations (`sync`, `worker`, `io_uring`) and one of
//! our own (`tokio_uring`). This crate knows nothing of pages, pools or PostgreSQL: see the README for its dangers.
#![deny(unsafe_code)]

mod error;
mod file;
mod method;
mod name;
mod request;

pub use error::{IoError, ReadError};
pub use file::{DataFile, OpenFileOptions};
pub use method::{IoMethod, WaitOutcome};
pub use name::{MethodChoice, MethodName};
pub use request::{Completer, Completion, Request, Segment};
