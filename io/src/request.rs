//! What is asked of a method, and what comes back.

use crate::{DataFile, ReadError};
use smallvec::SmallVec;
use std::{ptr::NonNull, sync::Arc, time::Duration};

/// A contiguous piece of memory that a read fills.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// First byte.
    pub ptr: NonNull<u8>,
    /// Length in bytes.
    pub len: usize,
}

/// A vectored read of one contiguous range of a file into memory that somebody else owns.
#[derive(Debug)]
pub struct Request {
    pub(crate) file: Arc<DataFile>,
    pub(crate) offset: u64,
    /// A combined read into neighbouring frames is one segment, two where a ring of frames begins anew.
    pub(crate) segments: SmallVec<[Segment; 4]>,
    pub(crate) tag: u64,
}

#[allow(unsafe_code, reason = "the memory of a request is shared with the kernel and with worker threads")]
mod fence {
    use super::*;

    // SAFETY: a request is a promise (see `Request::new`) that nobody else touches its memory until its completion
    // was delivered, from whatever thread; moving it to another thread does not weaken that promise.
    unsafe impl Send for Request {}

    impl Request {
        /// A read of `segments` from `offset` (bytes) on. `tag` comes back in the [`Completion`].
        ///
        /// # Safety
        /// From now until the [`Completer`] was called with this tag, every segment must be valid for writes and must
        /// not be read or written by anybody else, whatever happens to the thread that made the request.
        pub unsafe fn new(
            file: Arc<DataFile>,
            offset: u64,
            segments: impl IntoIterator<Item = Segment>,
            tag: u64,
        ) -> Self {
            Self { file, offset, segments: segments.into_iter().collect(), tag }
        }
    }
}

impl Request {
    /// Bytes asked for.
    pub fn len(&self) -> usize {
        self.segments.iter().map(|s| s.len).sum()
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file to read.
    pub fn file(&self) -> &Arc<DataFile> {
        &self.file
    }

    /// Byte offset in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the bytes go, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The tag that comes back with the completion.
    pub fn tag(&self) -> u64 {
        self.tag
    }
}

/// The end of one request.
#[derive(Debug)]
pub struct Completion {
    /// The tag of the request.
    pub tag: u64,
    /// Bytes that were read from the start of the request on. Fewer than asked for and no error: the file ends there.
    /// Memory behind them is unspecified: a direct read may zero the rest of the sector or page in which the file ends.
    pub bytes: usize,
    /// Why the rest was not read.
    pub error: Option<ReadError>,
    /// How often an operation was asked again (short results, EINTR, EAGAIN).
    pub retries: u32,
    /// From submission to completion.
    pub latency: Duration,
}

/// Who is told of completions. Called by whichever thread sees the completion first, exactly once for each request;
/// it must not submit requests or wait.
pub trait Completer: Send + Sync {
    /// A request ended; its memory belongs to its owner again.
    fn complete(&self, completion: Completion);
}
