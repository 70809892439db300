//! A scripted IO method and stamped relation files, for the tests of the pool and the stream.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(unsafe_code, reason = "an IO method writes to the memory of its requests")]

use heapscan::{
    HugePages, RelationFork, Result,
    pool::{BufferPool, NumaOptions, PinnedPage, PoolConfig, RelationId, Strategy},
    stream::{ReadStream, StreamOptions},
};
use heapscan_io::{Completer, Completion, IoMethod, MethodName, OpenFileOptions, ReadError, Request, WaitOutcome};
use std::{
    collections::HashMap,
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

pub const BLOCK: usize = 8192;

/// When requests end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In `submit`; not asynchronous, like `sync`.
    Inline,
    /// In `submit`, but asynchronous: nobody ever has to wait.
    AtOnce,
    /// When somebody waits or reaps; the last submitted first.
    OnWait,
    /// When the test says so.
    Held,
    /// In other threads, in any order.
    Threads,
}

#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The file seems to end within this block.
    Short,
    /// This error, this many times.
    Errno(i32, u32),
    /// This error for every read that touches the block, without a byte of those in front of it.
    WholeErrno(i32),
    /// Never ends, and is dropped with the method.
    Never,
}

/// One request as it was submitted: first block in the file, blocks, segments.
pub type Asked = (u32, u32, usize);

pub struct Script {
    completer: Arc<dyn Completer>,
    when: Mutex<When>,
    held: Mutex<Vec<Request>>,
    woken: Condvar,
    faults: Mutex<HashMap<u32, Fault>>,
    pub asked: Mutex<Vec<Asked>>,
    pub submits: AtomicUsize,
    pub waits: AtomicUsize,
    work: Mutex<Option<crossbeam_channel::Sender<Request>>>,
}

impl Script {
    pub fn set(&self, when: When) {
        *self.when.lock().unwrap() = when;
    }

    pub fn fault(&self, block: u32, fault: Fault) {
        self.faults.lock().unwrap().insert(block, fault);
    }

    pub fn heal(&self) {
        self.faults.lock().unwrap().clear();
    }

    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    pub fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Ends one of the held requests.
    pub fn finish(&self, index: usize) {
        let request = self.held.lock().unwrap().remove(index);
        self.perform(request);
    }

    pub fn finish_all(&self) {
        while self.held() > 0 {
            self.finish(0);
        }
    }

    fn perform(&self, request: Request) {
        let started = Instant::now();
        let first = (request.offset() / BLOCK as u64) as u32;
        let blocks = (request.len() / BLOCK) as u32;
        let (mut want, mut error) = (request.len(), None);
        for block in first..first + blocks {
            let at = (block - first) as usize * BLOCK;
            match self.faults.lock().unwrap().get_mut(&block) {
                Some(Fault::Short) => want = at + BLOCK / 2,
                Some(Fault::Errno(errno, times)) if *times > 0 => {
                    *times -= 1;
                    let offset = request.offset() + at as u64;
                    error = Some(ReadError { path: request.file().path().to_owned(), offset, errno: *errno });
                    want = at;
                }
                Some(Fault::WholeErrno(errno)) => {
                    let (path, offset) = (request.file().path().to_owned(), request.offset());
                    error = Some(ReadError { path, offset, errno: *errno });
                    want = 0;
                }
                Some(Fault::Never) => {
                    self.held.lock().unwrap().push(request);
                    return;
                }
                _ => continue,
            }
            break;
        }
        let file = File::open(request.file().path()).unwrap();
        let mut done = 0;
        for segment in request.segments() {
            let len = segment.len.min(want - done);
            // SAFETY: the memory of a request is ours until its completion.
            let memory = unsafe { std::slice::from_raw_parts_mut(segment.ptr.as_ptr(), len) };
            let mut got = 0;
            while got < len {
                match file.read_at(&mut memory[got..], request.offset() + (done + got) as u64).unwrap() {
                    0 => break,
                    n => got += n,
                }
            }
            done += got;
            if got < segment.len {
                break;
            }
        }
        let tag = request.tag();
        drop(request);
        self.completer.complete(Completion { tag, bytes: done, error, retries: 1, latency: started.elapsed() });
        // Taking the lock orders this against a waiter between its check and its sleep.
        drop(self.held.lock().unwrap());
        self.woken.notify_all();
    }
}

pub struct Scripted(pub Arc<Script>);

impl IoMethod for Scripted {
    fn name(&self) -> MethodName {
        MethodName::Worker
    }

    fn lanes(&self) -> usize {
        2
    }

    fn is_asynchronous(&self) -> bool {
        *self.0.when.lock().unwrap() != When::Inline
    }

    fn submit(&self, _lane: usize, requests: &mut Vec<Request>) {
        let script = &self.0;
        script.submits.fetch_add(1, Ordering::Relaxed);
        for request in requests.drain(..) {
            let blocks = (request.len() / BLOCK) as u32;
            let asked = ((request.offset() / BLOCK as u64) as u32, blocks, request.segments().len());
            script.asked.lock().unwrap().push(asked);
            let when = *script.when.lock().unwrap();
            match when {
                When::Inline | When::AtOnce => script.perform(request),
                When::OnWait | When::Held => script.held.lock().unwrap().push(request),
                When::Threads => script.work.lock().unwrap().as_ref().unwrap().send(request).unwrap(),
            }
        }
    }

    fn reap(&self, _lane: usize) -> usize {
        0
    }

    fn wait(&self, _lane: usize, done: &dyn Fn() -> bool, timeout: Duration) -> WaitOutcome {
        let script = &self.0;
        script.waits.fetch_add(1, Ordering::Relaxed);
        let deadline = Instant::now() + timeout;
        loop {
            let mut held = script.held.lock().unwrap();
            if done() {
                return WaitOutcome::Done;
            }
            if *script.when.lock().unwrap() == When::OnWait
                && let Some(request) = held.pop()
            {
                drop(held);
                script.perform(request);
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return WaitOutcome::TimedOut;
            }
            drop(script.woken.wait_timeout(held, left.min(Duration::from_millis(20))).unwrap());
        }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        // Closes the channel; what is held will never be written by anybody.
        self.0.work.lock().unwrap().take();
    }
}

/// A pool over a scripted method.
pub struct Bench {
    pub pool: Arc<BufferPool>,
    pub script: Arc<Script>,
    dir: tempfile::TempDir,
}

pub fn config(frames: u32) -> PoolConfig {
    let mut config = PoolConfig::new(BLOCK as u32);
    config.shared_buffers = u64::from(frames) * BLOCK as u64;
    config.huge_pages = HugePages::Off;
    config.numa = NumaOptions::off();
    config.stall_timeout = Duration::from_secs(20);
    config.pin_timeout = Duration::from_secs(20);
    config
}

pub fn bench(frames: u32, when: When) -> Bench {
    bench_with(config(frames), when)
}

pub fn bench_with(config: PoolConfig, when: When) -> Bench {
    let mut made = None;
    let pool = BufferPool::new(config, |completer| {
        let (send, receive) = crossbeam_channel::unbounded::<Request>();
        let script = Arc::new(Script {
            completer,
            when: Mutex::new(when),
            held: Mutex::default(),
            woken: Condvar::new(),
            faults: Mutex::default(),
            asked: Mutex::default(),
            submits: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            work: Mutex::new(Some(send)),
        });
        if when == When::Threads {
            for seed in 0..3u64 {
                let (script, receive) = (Arc::clone(&script), receive.clone());
                std::thread::spawn(move || {
                    let mut random = Random(seed + 1);
                    while let Ok(request) = receive.recv() {
                        if random.below(4) == 0 {
                            std::thread::sleep(Duration::from_micros(random.below(300)));
                        }
                        script.perform(request);
                    }
                });
            }
        }
        made = Some(Arc::clone(&script));
        Ok(Box::new(Scripted(script)))
    })
    .unwrap();
    Bench { pool: Arc::new(pool), script: made.unwrap(), dir: tempfile::tempdir().unwrap() }
}

/// Bytes of a block: a stamp at both ends and in the middle.
fn stamp(path: &Path, relation: u32, from: u32, blocks: u32) {
    let mut bytes = vec![0u8; blocks as usize * BLOCK];
    for block in 0..blocks {
        let page = &mut bytes[block as usize * BLOCK..][..BLOCK];
        for at in [0, BLOCK / 2, BLOCK - 8] {
            page[at..at + 4].copy_from_slice(&relation.to_le_bytes());
            page[at + 4..at + 8].copy_from_slice(&(from + block).to_le_bytes());
        }
    }
    std::fs::write(path, bytes).unwrap();
}

impl Bench {
    /// A relation of `blocks` blocks in segments of `segment` blocks.
    pub fn relation_in(&self, number: u32, blocks: u32, segment: u32) -> RelationId {
        let base = self.dir.path().join(number.to_string());
        for (i, from) in (0..blocks.max(1)).step_by(segment as usize).enumerate() {
            let path = if i == 0 { base.clone() } else { self.dir.path().join(format!("{number}.{i}")) };
            stamp(&path, number, from, segment.min(blocks - from));
        }
        let fork = RelationFork::open(&base, BLOCK as u32, segment, OpenFileOptions::default()).unwrap();
        self.pool.register(Arc::new(fork)).unwrap()
    }

    pub fn relation(&self, number: u32, blocks: u32) -> RelationId {
        self.relation_in(number, blocks, 131_072)
    }

    pub fn path(&self, number: u32) -> std::path::PathBuf {
        self.dir.path().join(number.to_string())
    }

    pub fn options(&self) -> StreamOptions {
        StreamOptions::new(self.pool.config(), Strategy::Normal)
    }

    pub fn stream(&self, relation: RelationId, blocks: impl IntoIterator<Item = u32>) -> ReadStream {
        self.stream_with(relation, blocks, self.options())
    }

    pub fn stream_with(
        &self,
        relation: RelationId,
        blocks: impl IntoIterator<Item = u32>,
        options: StreamOptions,
    ) -> ReadStream {
        let blocks: Vec<u32> = blocks.into_iter().collect();
        ReadStream::new(Arc::clone(&self.pool), relation, blocks.into_iter(), options).unwrap()
    }
}

/// Whether the page holds what it claims to hold.
pub fn check(page: &PinnedPage, relation: u32) {
    for at in [0, BLOCK / 2, BLOCK - 8] {
        let word = |at: usize| u32::from_le_bytes(page.bytes()[at..at + 4].try_into().unwrap());
        assert_eq!((word(at), word(at + 4)), (relation, page.block()), "frame {} at {at}", page.frame());
    }
}

/// Consumes a stream, checks every page, returns the block numbers.
pub fn drain(stream: &mut ReadStream, relation: u32) -> Result<Vec<u32>> {
    let mut blocks = Vec::new();
    while let Some(page) = stream.next_page() {
        let page = page?;
        check(&page, relation);
        blocks.push(page.block());
    }
    Ok(blocks)
}

/// xorshift; seeded, so that a failure can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
