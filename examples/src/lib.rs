//! Short programs over the `heapscan` crate, one a user story; see `src/bin` and the README.
#![deny(unsafe_code)]
