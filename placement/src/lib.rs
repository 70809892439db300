//! Memory and threads where they should be: mapping, huge pages, populating, pinning. See the README for its dangers.
#![deny(unsafe_code)]

pub mod memory;
pub mod thread;
