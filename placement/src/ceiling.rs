//! How fast one core reads memory from front to back: the ceiling of everything that looks at each byte once.

use crate::{
    memory::{HugePages, MapError, MapOptions, Mapping},
    sys,
};
use std::time::{Duration, Instant};

/// Memory that is read again and again.
#[derive(Debug)]
pub struct StreamingRead {
    memory: Mapping,
}

impl StreamingRead {
    /// Provides `bytes` of memory: several times the last-level cache, or it is the cache that is measured. On huge pages
    /// where they can be had.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(bytes: usize) -> Result<Self, MapError> {
        let options = MapOptions { huge_pages: HugePages::Try, ..MapOptions::default() };
        let mut memory = Mapping::new(bytes, options)?;
        memory.populate_all()?;
        Ok(Self { memory })
    }

    /// Bytes that one pass reads.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Reads all of it once, in the widest registers that the processor has, and says how long that took.
    pub fn pass(&self) -> Duration {
        let began = Instant::now();
        sys::stream(&self.memory);
        began.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read() {
        let read = StreamingRead::new(8 << 20).unwrap();
        assert!(read.len() >= 8 << 20 && !read.is_empty());
        let rate = read.len() as f64 / (0..3).map(|_| read.pass()).min().unwrap().as_secs_f64();
        // Between a bus of the last century and any cache.
        assert!((1e7..1e13).contains(&rate), "{rate} bytes a second");
    }
}
