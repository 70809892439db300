//! What the tests of the methods share: a completer that owns the memory, patterned files, the matrix of methods and
//! faults, and skips that can be seen.
#![allow(dead_code, unreachable_pub, reason = "every test program uses a part")]

use heapscan_io::{
    Completer, Completion, DataFile, FaultPlan, IoConfig, IoMethod, MethodChoice, MethodName, OpenFileOptions, Opened,
    Request, Segment, WaitOutcome, open,
};
use std::{
    collections::HashMap,
    io::Write,
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

pub const LONG: Duration = Duration::from_secs(60);
/// What memory holds before a read.
pub const CANARY: u8 = 0xA5;
const ALIGN: usize = 4096;

/// Says that a test did not run; a failure when the environment variable HEAPSCAN_REQUIRE (a comma-separated list)
/// names what is missing.
pub fn skip(name: &str, capability: &str, reason: &str) {
    let required = std::env::var("HEAPSCAN_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|word| word.trim() == capability),
        "{name}: {capability} is required (HEAPSCAN_REQUIRE) and missing: {reason}"
    );
    eprintln!("SKIP {name}: {reason}");
}

/// The byte at `offset` of every patterned file: no two blocks and no two sectors are the same.
pub fn pattern(offset: u64) -> u8 {
    let word = (offset / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> ((offset % 8) * 8)) as u8
}

pub struct PatternFile {
    pub dir: tempfile::TempDir,
    pub path: PathBuf,
    pub size: u64,
}

pub fn pattern_file(size: u64) -> PatternFile {
    // Not in /tmp, which is often a tmpfs: direct IO is wanted.
    let dir = tempfile::Builder::new().prefix("heapscan-io-").tempdir_in("/var/tmp").expect("a directory");
    let path = dir.path().join("16384");
    let bytes: Vec<u8> = (0..size).map(pattern).collect();
    std::fs::File::create(&path).expect("create").write_all(&bytes).expect("write");
    PatternFile { dir, path, size }
}

impl PatternFile {
    pub fn open(&self) -> Arc<DataFile> {
        self.open_with(OpenFileOptions::default())
    }

    pub fn open_with(&self, options: OpenFileOptions) -> Arc<DataFile> {
        Arc::new(DataFile::open(&self.path, options).expect("open"))
    }
}

/// One buffer, aligned for direct reads.
struct Buffer {
    base: NonNull<u8>,
    len: usize,
}

/// Owns the memory of all requests and keeps their completions.
pub struct Board {
    buffers: Mutex<HashMap<u64, Buffer>>,
    completions: Mutex<HashMap<u64, Completion>>,
    pub order: Mutex<Vec<u64>>,
    pub completed: AtomicUsize,
    next_tag: AtomicUsize,
}

// SAFETY: a buffer is written by a method until its completion and read by the test only afterwards; the maps are
// behind locks.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Completer for Board {
    fn complete(&self, completion: Completion) {
        let tag = completion.tag;
        self.order.lock().unwrap().push(tag);
        let twice = self.completions.lock().unwrap().insert(tag, completion);
        assert!(twice.is_none(), "request {tag} completed twice");
        self.completed.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        for buffer in self.buffers.lock().unwrap().values() {
            let layout = std::alloc::Layout::from_size_align(buffer.len.max(1), ALIGN).unwrap();
            // SAFETY: allocated by `Board::request` with this layout. No method has it any more: methods hold the
            // completer until they have no reads in flight.
            unsafe { std::alloc::dealloc(buffer.base.as_ptr(), layout) };
        }
    }
}

impl Board {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            buffers: Mutex::default(),
            completions: Mutex::default(),
            order: Mutex::default(),
            completed: AtomicUsize::new(0),
            next_tag: AtomicUsize::new(0),
        })
    }

    /// A read of `len` bytes at `offset` in pieces of `piece` bytes.
    pub fn request(&self, file: &Arc<DataFile>, offset: u64, len: usize, piece: usize) -> Request {
        let layout = std::alloc::Layout::from_size_align(len.max(1), ALIGN).unwrap();
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { std::alloc::alloc(layout) }).expect("memory");
        // SAFETY: just allocated with that size.
        unsafe { base.as_ptr().write_bytes(CANARY, len) };
        let segments: Vec<Segment> = (0..len)
            .step_by(piece)
            // SAFETY: within the allocation.
            .map(|at| Segment { ptr: unsafe { base.add(at) }, len: piece.min(len - at) })
            .collect();
        let tag = self.next_tag.fetch_add(1, Ordering::SeqCst) as u64;
        self.buffers.lock().unwrap().insert(tag, Buffer { base, len });
        // SAFETY: the board owns the memory until it is dropped, and reads it after the completion only.
        unsafe { Request::new(Arc::clone(file), offset, segments, tag) }
    }

    pub fn completed(&self) -> usize {
        self.completed.load(Ordering::SeqCst)
    }

    pub fn is_done(&self, tag: u64) -> bool {
        self.completions.lock().unwrap().contains_key(&tag)
    }

    /// Completion and memory of a request that ended.
    pub fn take(&self, tag: u64) -> (Completion, Vec<u8>) {
        let completion = self.completions.lock().unwrap().remove(&tag).expect("completed");
        let buffers = self.buffers.lock().unwrap();
        let buffer = &buffers[&tag];
        // SAFETY: the request ended, so nobody writes; the memory was initialised when it was allocated.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.base.as_ptr(), buffer.len) }.to_vec();
        (completion, bytes)
    }

    /// Checks the bytes of a read of `len` at `offset` of a patterned file of `size`.
    pub fn check(&self, tag: u64, offset: u64, len: usize, size: u64) {
        let (completion, bytes) = self.take(tag);
        assert!(completion.error.is_none(), "{completion:?}");
        let expected = size.saturating_sub(offset).min(len as u64) as usize;
        assert_eq!(completion.bytes, expected, "read of {len} at {offset} of {size}");
        for (at, &byte) in bytes[..expected].iter().enumerate() {
            assert_eq!(byte, pattern(offset + at as u64), "byte {at} of a read of {len} at {offset}");
        }
        // A direct read zeroes the rest of the sector or page in which the file ends.
        assert!(bytes[expected..].iter().all(|&byte| byte == CANARY || byte == 0), "data behind the end of the file");
    }
}

pub const PLANS: [&str; 7] = [
    "",
    "seed=7,short=0.5",
    "seed=11,short=0.2,eintr=0.2,eagain=0.2",
    "seed=1,eagain=1",
    "seed=2,eintr=0.95",
    "seed=5,delay=500us,reorder,short=0.2",
    "seed=9,enter_eagain=0.5,one_by_one,short=0.3",
];

/// Small rings, few threads: limits on locked memory are per user, and tests run side by side.
pub fn config(method: MethodName, plan: &str) -> IoConfig {
    IoConfig {
        method: MethodChoice::Named(method),
        io_workers: Some(3),
        io_max_concurrency: 16,
        lanes: Some(2),
        fault: (!plan.is_empty()).then(|| plan.parse::<FaultPlan>().expect("a plan")),
        ..IoConfig::default()
    }
}

/// Runs `body` for every method that works here.
pub fn every_method(name: &str, plan: &str, body: impl Fn(&dyn IoMethod, &Arc<Board>)) {
    for method in MethodName::ALL {
        let board = Board::new();
        match open(&config(method, plan), Arc::clone(&board) as _) {
            Ok(Opened { method: opened, report }) => {
                assert_eq!(report.used, method.as_str());
                eprintln!("{name}: {method} {plan:?}");
                body(&*opened, &board);
            }
            Err(error) => skip(name, method.as_str(), &error.to_string()),
        }
    }
}

/// [`every_method`] under every fault plan.
pub fn matrix(name: &str, body: impl Fn(&dyn IoMethod, &Arc<Board>)) {
    for plan in PLANS {
        every_method(name, plan, &body);
    }
}

pub fn wait_for(method: &dyn IoMethod, lane: usize, board: &Board, count: usize) {
    let outcome = method.wait(lane, &|| board.completed() >= count, LONG);
    assert_eq!(outcome, WaitOutcome::Done, "{} of {count}; outstanding: {:?}", board.completed(), method.outstanding());
}

/// Submits one read and checks what it brought.
pub fn read_and_check(
    method: &dyn IoMethod,
    board: &Board,
    file: &Arc<DataFile>,
    offset: u64,
    len: usize,
    piece: usize,
    size: u64,
) {
    let request = board.request(file, offset, len, piece);
    let tag = request.tag();
    method.submit(0, &mut vec![request]);
    assert_eq!(method.wait(0, &|| board.is_done(tag), LONG), WaitOutcome::Done, "{:?}", method.outstanding());
    board.check(tag, offset, len, size);
}

/// xorshift, so that a failure can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }
}

pub fn path_of(file: &DataFile) -> &Path {
    file.path()
}
