//! Reading allocates nothing once it runs: what a request needs is reused, or small enough to lie within it.
#![allow(unsafe_code, reason = "an allocator that counts")]

mod method_support;

use heapscan::{
    MethodName, RelationFork,
    pool::{BufferPool, PoolConfig},
    stream::{ReadStream, StreamOptions},
};
use heapscan_io::OpenFileOptions;
use method_support::*;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: everything is done by the system's allocator; only a number is counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: passed on from the caller; all memory is the system allocator's.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// One test: others would allocate meanwhile, in all threads.
#[test]
fn requests_allocate_nothing_in_the_steady_state() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = dir.path().join("16384");
    let blocks = 8192;
    std::fs::write(&path, vec![0x5a; blocks as usize * 8192]).expect("write");
    for method in methods() {
        // The runtime of tokio_uring allocates for each operation; that is part of what it costs.
        let runtime = method == MethodName::TokioUring;
        for direct in [false, true] {
            for combine in [16, 1] {
                let how = OpenFileOptions { direct, ..Default::default() };
                let fork = Arc::new(RelationFork::open(&path, 8192, 131_072, how).expect("a relation"));
                let config = PoolConfig {
                    shared_buffers: 16 << 20,
                    io_combine_limit: combine,
                    huge_pages: heapscan::HugePages::Off,
                    ..PoolConfig::new(8192)
                };
                let io = options(method, 1).io;
                let pool = BufferPool::new(config, |completer| Ok(heapscan_io::open(&io, completer)?.method));
                let pool = Arc::new(pool.expect("a pool"));
                let relation = pool.register(fork).expect("registered");
                let settings = StreamOptions::new(pool.config(), pool.strategy_for(blocks));
                let mut stream = ReadStream::new(Arc::clone(&pool), relation, 0..blocks, settings).expect("a stream");
                for _ in 0..blocks / 2 {
                    stream.next_page().expect("not the end").expect("a page");
                }
                let (before, reads) = (allocations(), stream.metrics().reads);
                for _ in 0..blocks / 4 {
                    stream.next_page().expect("not the end").expect("a page");
                }
                let (made, reads) = (allocations() - before, stream.metrics().reads - reads);
                assert!(reads > 100, "{reads}");
                let what = format!("{method}, direct {direct}, {combine} blocks a read: {made} for {reads} reads");
                // A worker that leaves or starts, or a table that grows, may allocate once in a while.
                assert!(runtime || made <= reads / 50 + 2, "{what}");
                drop(stream);

                // Single blocks, each waited for: what a lookup by TID does.
                let mut random = Random(7);
                let mut single = |count: u32| {
                    for _ in 0..count {
                        let block = random.below(u64::from(blocks)) as u32;
                        pool.read_block(relation, block).expect("a page");
                    }
                };
                single(500);
                let before = allocations();
                single(1000);
                let made = allocations() - before;
                assert!(runtime || made <= 20, "{what}; {made} for 1000 single blocks");
            }
        }
    }
}
