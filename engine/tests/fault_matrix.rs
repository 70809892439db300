//! Faults of delivery, and consumers and disks of any speed, for every IO method.
//!
//! What PostgreSQL tests of its asynchronous IO (src/test/modules/test_aio), and where the same is tested here:
//!
//! | PostgreSQL's case | here |
//! |---|---|
//! | handle: leaked, released twice | `pool_frames::forgotten_pages_cost_their_frame_and_nothing_else`, `pool_loom` |
//! | batchmode: a batch left open | `reads_queued_for_a_wait_are_not_left_behind` (io_uring's unit tests) |
//! | io_error: told by a read, a scan, a TID lookup | `a_hard_error_is_told_once_and_reading_works_again` |
//! | startwait_io: a second start on a busy buffer; failed end, good end | `pool_frames::two_streams_share_one_physical_read`, `pool_frames::a_joined_read_that_fails_is_tried_again` |
//! | complete_foreign: the issuer sleeps or is gone | `reads::a_thread_that_stopped_does_not_keep_its_reads`, `pool_frames::a_paused_stream_does_not_hold_up_others`, `rings::reads_survive_the_thread_that_submitted_them` |
//! | close_fd: closed while reads are staged or in flight | `files_are_closed_while_reads_are_in_flight` |
//! | inject: as expected, short, cut to 1 or 2 blocks, hard errno | `reads_cut_to_some_blocks_are_completed`, `a_hard_error_is_told_once_and_reading_works_again` |
//! | inject_worker: reopening fails, the next read recovers | `limits::direct_reads_need_no_second_descriptor` |
//! | invalidate: the table goes while it is read | `vanishing::an_unlinked_file_is_read_to_its_end`, `pool_frames::dropped_and_forgotten_streams_leave_their_frames_in_io` |
//! | zero, checksum, ignore_checksum: bad pages | the tests of damaged pages (`refusals`, the unit tests of `heap`) |
//! | checksum_createdb | nothing is created here |
//! | read_buffers: misses combine, hits split, own and foreign reads | `pool_stream::hits_cut_a_read_wherever_they_lie`, `pool_stream::a_block_repeated_while_its_read_is_in_flight_is_read_once` |
//! | read_buffers_inject: two sessions, completion held | `pool_frames::two_streams_share_one_physical_read` |
//! | io_workers: the number changes, one is killed | `workers::workers_are_added_under_a_backlog_and_end_with_the_method`; a thread cannot be killed alone |
//! | initdb under each method | `matrix` opens every cluster with each |
//! | read_stream: repeated blocks, blocks that others read, good and bad | `pool_stream::any_order_and_repetitions_work`, `pool_frames::a_joined_read_that_fails_is_tried_again` |
//!
//! Each failure prints its plan, seed included; `heapscan scan ... --io-fault PLAN` does it again.

mod method_support;

use heapscan::{
    ErrorKind, IoConfig, MethodChoice, MethodName, OpenFiles, RelationFork,
    pool::{BufferPool, PoolConfig, RelationId},
    stream::{ReadStream, StreamOptions},
};
use heapscan_io::OpenFileOptions;
use method_support::*;
use std::{
    fmt::Write,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const BLOCKS: u32 = 400;

/// A relation whose blocks hold their number, in segments of `segment` blocks.
fn relation(dir: &Path, segment: u32, direct: bool) -> RelationFork {
    let base = dir.join("16384");
    for (number, from) in (0..BLOCKS).step_by(segment as usize).enumerate() {
        let path = if number == 0 { base.clone() } else { dir.join(format!("16384.{number}")) };
        let blocks = from..BLOCKS.min(from + segment);
        std::fs::write(path, blocks.flat_map(|block| block.to_le_bytes().repeat(2048)).collect::<Vec<u8>>())
            .expect("a segment");
    }
    RelationFork::open(&base, 8192, segment, OpenFileOptions { direct, ..Default::default() }).expect("a relation")
}

struct Bench {
    pool: Arc<BufferPool>,
    relation: RelationId,
}

impl Bench {
    fn new(method: MethodName, fork: RelationFork, plan: &str, change: impl Fn(&mut PoolConfig)) -> Self {
        let mut config = PoolConfig::new(8192);
        config.shared_buffers = 64 * 8192;
        config.huge_pages = heapscan::HugePages::Off;
        change(&mut config);
        let io = IoConfig {
            method: MethodChoice::Named(method),
            lanes: Some(2),
            io_max_concurrency: 32,
            drain_timeout: Duration::from_millis(200),
            fault: (!plan.is_empty()).then(|| plan.parse().expect("a plan")),
            ..IoConfig::default()
        };
        let pool = BufferPool::new(config, |completer| Ok(heapscan_io::open(&io, completer)?.method)).expect("a pool");
        let relation = pool.register(Arc::new(fork)).expect("registered");
        Self { pool: Arc::new(pool), relation }
    }

    fn stream(&self) -> ReadStream {
        let options = StreamOptions::new(self.pool.config(), self.pool.strategy_for(BLOCKS));
        ReadStream::new(Arc::clone(&self.pool), self.relation, 0..BLOCKS, options).expect("a stream")
    }

    /// Reads everything; `pause` after each block.
    fn drain(&self, pause: impl Fn(u32), what: &str) {
        let mut stream = self.stream();
        for block in 0..BLOCKS {
            let page = stream.next_page().expect("not the end").unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(page.block(), block, "{what}");
            assert!(page.bytes().chunks(4).all(|word| word == block.to_le_bytes()), "{what}: block {block}");
            pause(block);
        }
        assert!(stream.next_page().is_none(), "{what}");
    }
}

fn everywhere(mut body: impl FnMut(MethodName, bool, &Path)) {
    for method in methods() {
        for direct in [false, true] {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
            body(method, direct, dir.path());
        }
    }
}

#[test]
fn completions_that_come_twice_change_nothing() {
    everywhere(|method, direct, dir| {
        let plan = "seed=31,duplicate=0.5,short=0.2,reorder";
        let bench = Bench::new(method, relation(dir, 1000, direct), plan, |_| {});
        let what = format!("{method} direct={direct} {plan}");
        bench.drain(|_| {}, &what);
        // The second one of the last reads may come a little later.
        let end = Instant::now() + Duration::from_secs(10);
        while bench.pool.metrics().stale_completions == 0 {
            assert!(Instant::now() < end, "{what}: {:?}", bench.pool.metrics());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((bench.pool.metrics().in_flight, bench.pool.pinned_frames()), (0, 0), "{what}");
    });
}

#[test]
fn a_completion_that_never_comes_is_an_error_in_time_and_the_rest_is_read() {
    everywhere(|method, direct, dir| {
        let plan = "seed=5,lose=0.03";
        let bench = Bench::new(method, relation(dir, 1000, direct), plan, |config| {
            config.stall_timeout = Duration::from_millis(60);
            // Single blocks, so that only those of lost completions are missing.
            config.io_combine_limit = 1;
            config.shared_buffers = 200 * 8192;
        });
        let what = format!("{method} direct={direct} {plan}");
        let mut stream = bench.stream();
        let (mut came, mut lost) = (0, 0);
        while let Some(page) = stream.next_page() {
            match page {
                Ok(page) => {
                    let block = page.block();
                    assert!(page.bytes().chunks(4).all(|word| word == block.to_le_bytes()), "{what}: block {block}");
                    came += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Method, "{what}: {error}");
                    assert!(error.to_string().contains("did not end within"), "{what}: {error}");
                    lost += 1;
                }
            }
        }
        assert_eq!(came + lost, BLOCKS, "{what}");
        assert!((1..60).contains(&lost), "{what}: {lost} lost");
        drop(stream);
        // The frames of those reads stay theirs.
        let metrics = bench.pool.metrics();
        assert_eq!((metrics.in_flight, bench.pool.pinned_frames()), (lost as usize, lost), "{what}: {metrics:?}");
        let began = Instant::now();
        drop(bench);
        assert!(began.elapsed() < Duration::from_secs(10), "{what}: the end of the pool took {:?}", began.elapsed());
    });
}

#[test]
fn disks_and_consumers_of_any_speed() {
    everywhere(|method, direct, dir| {
        let fork = |dir| relation(dir, 150, direct);
        let slow = |block: u32| {
            if block.is_multiple_of(8) {
                std::thread::sleep(Duration::from_micros(400));
            }
        };
        for plan in ["", "seed=3,delay=3ms,reorder", "seed=4,delay=1ms,short=0.3,eintr=0.2,eagain=0.2"] {
            let what = format!("{method} direct={direct} {plan:?}");
            // The disk is slower.
            Bench::new(method, fork(dir), plan, |_| {}).drain(|_| {}, &what);
            // The consumer is slower.
            Bench::new(method, fork(dir), plan, |_| {}).drain(slow, &what);
            // Both, with a pool of 16 frames.
            Bench::new(method, fork(dir), plan, |config| config.shared_buffers = 16 * 8192).drain(slow, &what);
        }
    });
}

#[test]
fn reads_cut_to_some_blocks_are_completed() {
    everywhere(|method, direct, dir| {
        for seed in 1..4 {
            let plan = format!("seed={seed},short=0.9");
            let bench = Bench::new(method, relation(dir, 1000, direct), &plan, |_| {});
            bench.drain(|_| {}, &format!("{method} direct={direct} {plan}"));
            assert!(bench.pool.io_stats().retries_short > 10, "{method} {plan}");
        }
    });
}

#[test]
fn a_hard_error_is_told_once_and_reading_works_again() {
    everywhere(|method, direct, dir| {
        let at = 123 * 8192 + 5;
        let bench = Bench::new(method, relation(dir, 1000, direct), &format!("eio_at={at}"), |_| {});
        let what = format!("{method} direct={direct}");
        let told = |error: heapscan::Error| {
            assert_eq!((error.kind(), error.block(), error.errno()), (ErrorKind::Io, Some(123), Some(libc::EIO)));
            assert_eq!(error.path(), Some(dir.join("16384").as_path()), "{what}");
        };
        let mut bad = 0;
        for page in bench.stream() {
            match page {
                Ok(page) => assert_ne!(page.block(), 123, "{what}"),
                Err(error) => {
                    told(error);
                    bad += 1;
                }
            }
        }
        assert_eq!(bad, 1, "{what}: told once");
        // A single block, as a TID lookup reads it: told again; its neighbours are there.
        told(bench.pool.read_block(bench.relation, 123).expect_err("bad"));
        assert_eq!(bench.pool.read_block(bench.relation, 124).expect("good").block(), 124);
        // The same file without the fault.
        Bench::new(method, relation(dir, 1000, direct), "", |_| {}).drain(|_| {}, &what);
    });
}

#[test]
fn files_are_closed_while_reads_are_in_flight() {
    everywhere(|method, direct, dir| {
        let files = Arc::new(OpenFiles::new(1));
        let plan = "seed=2,delay=500us,short=0.2,reorder";
        // 20 files, of which one may be open: each read of the next one closes the one before, once nobody reads it.
        let fork = relation(dir, 20, direct).with_open_files(Arc::clone(&files));
        let bench = Bench::new(method, fork, plan, |_| {});
        bench.drain(|_| {}, &format!("{method} direct={direct} {plan}"));
        let fork = bench.pool.fork(bench.relation).expect("registered");
        fork.locate(0).expect("block 0");
        // Files in flight stayed open; now none is.
        fork.locate(399).expect("block 399");
        assert_eq!(files.count(), 1, "{method}");
    });
}

/// What was logged, one line an event.
struct Log(Mutex<String>);

static LOG: Log = Log(Mutex::new(String::new()));

impl tracing::Subscriber for &'static Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                write!(self.0, " {}={value:?}", field.name()).expect("a string takes everything");
            }
        }
        let mut fields = Fields(event.metadata().level().to_string());
        event.record(&mut fields);
        let mut log = self.0.lock().expect("no panics");
        log.push_str(&fields.0);
        log.push('\n');
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn reads_that_take_long_are_told_of_with_file_and_block() {
    tracing::subscriber::set_global_default(&LOG).expect("the only one");
    everywhere(|method, direct, dir| {
        let bench = Bench::new(method, relation(dir, 1000, direct), "seed=8,delay=400ms", |config| {
            config.stall_after = Duration::from_millis(40);
        });
        let what = format!("{method} direct={direct}");
        for block in [7, 177, 277] {
            bench.pool.read_block(bench.relation, block).expect("late, but there");
        }
        let log = LOG.0.lock().expect("no panics").clone();
        let path = dir.join("16384").display().to_string();
        let ours: Vec<&str> = log.lines().filter(|line| line.contains(&path)).collect();
        assert!(!ours.is_empty() && ours.len() <= 3, "{what}: each at most once: {ours:?}");
        for line in &ours {
            assert!(line.starts_with("WARN") && line.contains("a read takes long"), "{what}: {line}");
            assert!([7, 177, 277].iter().any(|b| line.contains(&format!("block={b} "))), "{what}: {line}");
        }
        assert_eq!(bench.pool.metrics().stalls, ours.len() as u64, "{what}");
    });
}
