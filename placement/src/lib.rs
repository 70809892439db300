//! Memory and threads where they should be: topology, planning, mapping, binding, huge pages, populating, pinning,
//! asking where pages are, measuring. See the README for its dangers.
//!
//! The way through: [`topology::Machine`] says what there is, [`plan::plan`] decides what to do (a pure function),
//! [`bind::place_all`] does it, [`pages`] asks the kernel what became of it.
#![deny(unsafe_code)]

pub mod bind;
pub mod cache;
pub mod ceiling;
pub mod list;
pub mod measure;
pub mod memory;
pub mod pages;
pub mod plan;
mod sys;
pub mod thread;
pub mod topology;
