//! Reads PostgreSQL heap files at device and memory speed, without a server.
#![deny(unsafe_code)]

pub mod cluster;
mod error;
pub mod heap;
pub mod pool;
pub mod schema;
mod storage;
pub mod stream;
pub mod types;
pub mod visibility;

pub use error::{Error, ErrorKind, Result};
pub use storage::{Location, RelationFork, TrailingFragment};
