//! A divided pool: what it costs a lone scan (nothing), whose frames are taken, and that rings stay rings.

mod pool_support;

use heapscan::{
    HugePages, NumaBalance, NumaOptions, RelationFork, Result,
    pool::{BufferPool, PartitionMetrics, PoolConfig, ReadMetrics, RelationId, Strategy},
    stream::{ReadStream, StreamOptions},
};
use heapscan_io::{Completer, Completion, IoMethod, MethodName, OpenFileOptions, Request, WaitOutcome};
use pool_support::Random;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Ends every read at once without reading: only which frames are used matters here.
struct Nothing(Arc<dyn Completer>);

impl IoMethod for Nothing {
    fn name(&self) -> MethodName {
        MethodName::Sync
    }

    fn lanes(&self) -> usize {
        1
    }

    fn is_asynchronous(&self) -> bool {
        false
    }

    fn submit(&self, _lane: usize, requests: &mut Vec<Request>) {
        for request in requests.drain(..) {
            let (tag, bytes) = (request.tag(), request.len());
            self.0.complete(Completion { tag, bytes, error: None, retries: 0, latency: Duration::ZERO });
        }
    }

    fn reap(&self, _lane: usize) -> usize {
        0
    }

    fn wait(&self, _lane: usize, done: &dyn Fn() -> bool, _timeout: Duration) -> WaitOutcome {
        if done() { WaitOutcome::Done } else { WaitOutcome::TimedOut }
    }
}

/// A pool that reads nothing, and its clients.
struct Divided {
    pool: Arc<BufferPool>,
    dir: tempfile::TempDir,
}

impl Divided {
    fn new(frames: u32, partitions: u32, balance: NumaBalance) -> Self {
        let mut config = PoolConfig::new(1024);
        config.shared_buffers = u64::from(frames) * 1024;
        config.io_combine_limit = 16;
        config.huge_pages = HugePages::Off;
        config.numa = NumaOptions { balance, ..NumaOptions::forced(partitions) };
        let pool = BufferPool::new(config, |completer| Ok(Box::new(Nothing(completer)))).unwrap();
        Self { pool: Arc::new(pool), dir: tempfile::tempdir().unwrap() }
    }

    fn relation(&self, number: u32, blocks: u32) -> RelationId {
        let path = self.dir.path().join(number.to_string());
        std::fs::File::create(&path).unwrap().set_len(u64::from(blocks) * 1024).unwrap();
        let fork = RelationFork::open(&path, 1024, 1 << 20, OpenFileOptions::default()).unwrap();
        self.pool.register(Arc::new(fork)).unwrap()
    }

    /// A stream of a thread at home in `home`.
    fn stream(
        &self,
        relation: RelationId,
        blocks: impl Iterator<Item = u32> + Send + 'static,
        strategy: Strategy,
        home: u32,
    ) -> ReadStream {
        let options = StreamOptions { home: Some(home), ..StreamOptions::new(self.pool.config(), strategy) };
        ReadStream::new(Arc::clone(&self.pool), relation, blocks, options).unwrap()
    }

    fn scan(&self, relation: RelationId, blocks: u32, strategy: Strategy, home: u32) -> ReadMetrics {
        let mut stream = self.stream(relation, 0..blocks, strategy, home);
        let pages = stream.by_ref().map(Result::unwrap).count();
        assert_eq!(pages, blocks as usize);
        stream.metrics()
    }
}

fn ratio(part: u64, rest: u64) -> f64 {
    part as f64 / (part + rest).max(1) as f64
}

fn hit_ratio(metrics: &[ReadMetrics]) -> f64 {
    ratio(metrics.iter().map(|m| m.hits).sum(), metrics.iter().map(|m| m.blocks_read).sum())
}

fn local_share(partitions: &[PartitionMetrics], before: &[PartitionMetrics]) -> f64 {
    let sum =
        |of: fn(&PartitionMetrics) -> u64| partitions.iter().map(of).sum::<u64>() - before.iter().map(of).sum::<u64>();
    ratio(sum(|p| p.local_victims), sum(|p| p.remote_victims))
}

/// The hit ratio of runs 2 to 5 of a scan by one client of `home` 0.
fn lone_scan(frames: u32, partitions: u32, balance: NumaBalance, blocks: u32) -> f64 {
    let d = Divided::new(frames, partitions, balance);
    let relation = d.relation(1, blocks);
    let runs: Vec<ReadMetrics> = (0..5).map(|_| d.scan(relation, blocks, Strategy::Normal, 0)).collect();
    hit_ratio(&runs[1..])
}

/// Scans of 20 % of the pool (below the size from which a ring is used) and, with rings off, of 80 %.
#[test]
fn a_lone_scan_has_the_whole_pool() {
    for frames in [4096, 16384] {
        for share in [20, 80] {
            let blocks = frames * share / 100;
            let undivided = lone_scan(frames, 1, NumaBalance::default(), blocks);
            assert_eq!(undivided, 1.0, "it fits");
            for partitions in [2, 4, 8, 16] {
                for balance in [NumaBalance::Age, NumaBalance::default()] {
                    let divided = lone_scan(frames, partitions, balance, blocks);
                    println!("{share} % of {frames} frames, {partitions} partitions, {balance}: {divided:.4}");
                    assert!(divided >= undivided - 0.01, "{share} %, {partitions} partitions, {balance}: {divided}");
                }
            }
        }
    }
    // What it would be without: this test can fail.
    assert!(lone_scan(4096, 8, NumaBalance::Off, 819) < 0.1);
}

#[test]
fn with_all_load_on_one_home_the_others_fill_too() {
    for (balance, expected) in [(NumaBalance::Age, 0.95), (NumaBalance::Budget, 0.95)] {
        let d = Divided::new(8192, 8, balance);
        d.scan(d.relation(1, 40_000), 40_000, Strategy::Normal, 3);
        for partition in d.pool.partition_metrics() {
            let filled = f64::from(partition.used_frames) / f64::from(partition.frames);
            assert!(filled >= expected, "{balance}: {partition:?}");
        }
    }
}

/// Clients with working sets of their own, each at home in a partition of its own, doing these shares of all accesses.
/// Returns the hit ratio and the part of the victims that were local, both after a warm-up.
fn clients(frames: u32, partitions: u32, balance: NumaBalance, shares: &[u32], set: u32) -> (f64, f64) {
    let d = Divided::new(frames, partitions, balance);
    let mut streams: Vec<ReadStream> = (0..shares.len() as u32)
        .map(|client| {
            let mut random = Random(u64::from(client) + 17);
            let blocks = std::iter::from_fn(move || Some(random.below(u64::from(set)) as u32));
            d.stream(d.relation(client, set), blocks, Strategy::Normal, client)
        })
        .collect();
    let total: u32 = shares.iter().sum();
    let mut random = Random(5);
    let mut access = |count: u32| {
        for _ in 0..count {
            let mut pick = random.below(u64::from(total)) as u32;
            let client = shares.iter().position(|&share| {
                let found = pick < share;
                pick = pick.wrapping_sub(share);
                found
            });
            streams[client.unwrap()].next_page().unwrap().unwrap();
        }
        streams.iter().map(ReadStream::metrics).collect::<Vec<_>>()
    };
    let before = access(frames * 12);
    let warm = d.pool.partition_metrics();
    let after = access(frames * 40);
    let sum = |of: fn(&ReadMetrics) -> u64| after.iter().map(of).sum::<u64>() - before.iter().map(of).sum::<u64>();
    (ratio(sum(|m| m.hits), sum(|m| m.blocks_read)), local_share(&d.pool.partition_metrics(), &warm))
}

#[test]
fn victims_are_local_under_even_load() {
    for balance in NumaBalance::ALL {
        for partitions in [4, 8] {
            let frames = partitions * 1024;
            let shares = vec![1; partitions as usize];
            let set = frames / partitions * 3;
            let (undivided, _) = clients(frames, 1, balance, &shares, set);
            let (hits, local) = clients(frames, partitions, balance, &shares, set);
            println!("even, {partitions} partitions, {balance}: hits {hits:.3} of {undivided:.3}, local {local:.3}");
            assert!(local >= 0.95, "{balance}: {local}");
            assert!(hits >= 0.97 * undivided, "{balance}: {hits} of {undivided}");
        }
    }
}

#[test]
fn skewed_clients_get_the_room_that_they_use() {
    // One client makes half, or nine tenths, of all accesses; each works on three quarters of the pool.
    for (busy, others) in [(50, [17, 17, 16]), (90, [4, 3, 3])] {
        let shares = [&[busy][..], &others].concat();
        let (undivided, _) = clients(4096, 1, NumaBalance::default(), &shares, 3072);
        for balance in NumaBalance::ALL {
            let (hits, local) = clients(4096, 4, balance, &shares, 3072);
            println!("{busy} %, {balance}: hits {hits:.3} of {undivided:.3}, local {local:.3}");
            if balance == NumaBalance::default() || balance == NumaBalance::Age {
                assert!(hits >= 0.97 * undivided, "{busy} %, {balance}: {hits} of {undivided}");
                assert!(local >= 0.85, "{busy} %, {balance}: {local}");
            }
        }
    }
}

#[test]
fn a_large_scan_leaves_the_hot_pages_alone() {
    for partitions in [1, 4] {
        for vacuum in [false, true] {
            let d = Divided::new(4096, partitions, NumaBalance::default());
            let (hot, cold, big) = (d.relation(1, 2048), d.relation(2, 2048), d.relation(3, 4 * 4096));
            d.scan(cold, 2048, Strategy::Normal, 0);
            for _ in 0..2 {
                d.scan(hot, 2048, Strategy::Normal, 0);
            }
            let strategy = if vacuum { d.pool.vacuum_strategy() } else { d.pool.strategy_for(4 * 4096) };
            assert!(strategy.ring_frames().is_some());
            let scan = d.scan(big, 4 * 4096, strategy, 1);
            let resident = d.pool.buffers(false).unwrap();
            let hot_path = d.pool.fork(hot).unwrap().path().to_owned();
            let left = resident.iter().filter(|b| b.path.as_deref() == Some(&*hot_path)).count();
            assert!(left * 100 >= 2048 * 99, "{partitions} partitions: {left} of 2048 hot pages are left; {scan:?}");
        }
    }
}

/// Two scans of the same relation, each now ahead, now behind, so that each holds what the other one has read.
#[test]
fn scans_in_lockstep_keep_to_their_rings() {
    for (ring_frames, step) in [(40, 1), (40, 7), (64, 30), (24, 24u32)] {
        let d = Divided::new(2048, 1, NumaBalance::default());
        let (filler, big) = (d.relation(1, 2048), d.relation(2, 40_000));
        d.scan(filler, 2048, Strategy::Normal, 0);
        let mut streams: Vec<_> =
            (0..2).map(|_| d.stream(big, 0..40_000, Strategy::BulkRead { ring_frames }, 0)).collect();
        let mut held: [Vec<_>; 2] = [Vec::new(), Vec::new()];
        for turn in 0..40_000 / step {
            for (stream, held) in streams.iter_mut().zip(&mut held) {
                // A page of the step before is still held when the other one comes to it.
                held.truncate(1);
                for _ in 0..step {
                    held.insert(0, stream.next_page().unwrap().unwrap());
                }
            }
            if turn % 5 == 0 {
                streams.swap(0, 1);
                held.swap(0, 1);
            }
        }
        let evicted: u64 = streams.iter().map(|s| s.metrics().evictions).sum();
        // The rings, what the consumers hold, a combined read; however long the scans are.
        let most = 2 * u64::from(ring_frames + step + 1 + 16);
        println!("rings of {ring_frames}, steps of {step}: {evicted} frames from the pool");
        assert!(evicted <= most, "rings of {ring_frames} took {evicted} frames from the pool");
    }
}

#[test]
fn local_rings_stay_at_home() {
    for ring_local in [false, true] {
        let d = Divided::new(4096, 4, NumaBalance::Age);
        let big = d.relation(1, 20_000);
        let strategy = Strategy::BulkRead { ring_frames: 512 };
        // Something to do for the balance: home 2 is loaded, so others would be taken.
        let mut load = d.stream(d.relation(2, 60_000), 0..60_000, Strategy::Normal, 2);
        let options = StreamOptions { home: Some(2), ring_local, ..StreamOptions::new(d.pool.config(), strategy) };
        let mut ring = ReadStream::new(Arc::clone(&d.pool), big, 0..20_000, options).unwrap();
        let mut partitions = [0; 4];
        let mut pages = Vec::new();
        for block in 0..20_000 {
            for _ in 0..3 {
                load.next_page().unwrap().unwrap();
            }
            // Held pages make the ring grow.
            let page = ring.next_page().unwrap().unwrap();
            partitions[page.partition()] += 1;
            pages.push(page);
            if block % 300 == 299 {
                pages.clear();
            }
        }
        if ring_local {
            assert_eq!(partitions[2], 20_000, "{partitions:?}");
        } else {
            assert!(partitions.iter().all(|&pages| pages > 0), "{partitions:?}");
        }
    }
}

/// Only when no partition has a frame left is there none to be had.
#[test]
fn every_partition_is_used_before_there_is_nothing() {
    for balance in NumaBalance::ALL {
        let mut config = PoolConfig::new(1024);
        config.shared_buffers = 64 * 1024;
        config.huge_pages = HugePages::Off;
        config.pin_timeout = Duration::from_millis(100);
        config.numa = NumaOptions { balance, ..NumaOptions::forced(4) };
        let pool = BufferPool::new(config, |completer| Ok(Box::new(Nothing(completer)))).unwrap();
        let d = Divided { pool: Arc::new(pool), dir: tempfile::tempdir().unwrap() };
        let relation = d.relation(1, 200);
        let mut stream = d.stream(relation, 0..200, Strategy::Normal, 1);
        let pages: Vec<_> = (0..64).map(|_| stream.next_page().unwrap().unwrap()).collect();
        let start = Instant::now();
        let error = stream.next_page().unwrap().unwrap_err();
        assert_eq!(error.kind(), heapscan::ErrorKind::NoUnpinnedBuffers, "{balance}");
        assert!(start.elapsed() < Duration::from_secs(5));
        drop(pages);
        assert_eq!(stream.map(Result::unwrap).count(), 200 - 64);
    }
}

#[test]
fn the_pool_says_what_is_where() {
    let d = Divided::new(1000, 3, NumaBalance::Age);
    let relation = d.relation(1, 500);
    d.scan(relation, 500, Strategy::Normal, 1);
    let page = d.pool.read_block(relation, 7).unwrap();
    let partitions = d.pool.partition_metrics();
    assert_eq!(partitions.iter().map(|p| p.frames).collect::<Vec<_>>(), [333, 333, 334]);
    assert_eq!(partitions.iter().map(|p| p.used_frames).sum::<u32>(), 500);
    assert_eq!((partitions[1].asked, partitions[1].blocks_read), (500, 500));
    assert_eq!(partitions.iter().map(|p| p.served).sum::<u64>(), 500);
    assert_eq!(partitions[1].local_victims + partitions[1].remote_victims, 500);
    let ask = d.pool.partition_pages().is_ok();
    let buffers = d.pool.buffers(ask).unwrap();
    assert_eq!(buffers.len(), 1000);
    let held = &buffers[page.frame() as usize];
    assert_eq!((held.block, held.pins, held.partition), (Some(7), 1, page.partition()));
    assert_eq!(held.usage_count, 2);
    assert!(held.path.as_ref().is_some_and(|path| path.ends_with("1")));
    assert_eq!(buffers.iter().filter(|b| b.block.is_some()).count(), 500);
    if ask {
        // Small pages that are there are on some node.
        assert!(buffers.iter().filter(|b| b.block.is_some()).all(|b| b.node.is_some()));
    }
}
