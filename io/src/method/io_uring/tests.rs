//! Reads that never complete: a pipe that nobody writes to, which only a ring accepts to read at an offset.

use super::IoUringMethod;
use crate::{Completer, Completion, DataFile, IoConfig, IoMethod, Request, Segment, WaitOutcome, transfer::Core};
use std::{
    fs::File,
    os::fd::OwnedFd,
    path::Path,
    ptr::NonNull,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

#[derive(Default)]
struct Ended(Mutex<Vec<Completion>>);

impl Completer for Ended {
    fn complete(&self, completion: Completion) {
        self.0.lock().expect("no panics").push(completion);
    }
}

fn method(ended: &Arc<Ended>) -> Option<IoUringMethod> {
    let config = IoConfig {
        lanes: Some(1),
        io_max_concurrency: 8,
        stall_after: Duration::from_millis(50),
        drain_timeout: Duration::from_millis(100),
        ..IoConfig::default()
    };
    let core = Core {
        completer: Arc::clone(ended) as _,
        counters: Default::default(),
        latencies: Default::default(),
        faults: None,
    };
    match IoUringMethod::new(&config, Arc::new(core)) {
        Ok((method, _)) => Some(method),
        Err(error) => {
            let required = std::env::var("HEAPSCAN_REQUIRE").unwrap_or_default();
            assert!(!required.contains("io_uring"), "io_uring is required: {error}");
            eprintln!("SKIP reads that never complete: {error}");
            None
        }
    }
}

#[allow(unsafe_code, reason = "requests")]
fn endless(read_end: OwnedFd) -> Request {
    let file = Arc::new(DataFile::from_file(File::from(read_end), Path::new("endless"), 1 << 30));
    let memory = Box::leak(vec![0u8; 4096].into_boxed_slice());
    let segment = Segment { ptr: NonNull::from(&mut memory[0]), len: memory.len() };
    // SAFETY: leaked memory that nobody else has.
    unsafe { Request::new(file, 8192, vec![segment], 5) }
}

#[test]
fn a_read_that_never_completes_is_named() {
    let ended = Arc::new(Ended::default());
    let Some(method) = method(&ended) else { return };
    let (read_end, write_end) = nix::unistd::pipe().expect("a pipe");
    method.submit(0, &mut vec![endless(read_end)]);
    assert_eq!(method.wait(0, &|| false, Duration::from_millis(400)), WaitOutcome::TimedOut);
    let outstanding = method.outstanding();
    assert_eq!(outstanding.len(), 1);
    assert_eq!((outstanding[0].path.as_path(), outstanding[0].offset), (Path::new("endless"), 8192));
    assert!(outstanding[0].age >= Duration::from_millis(300));
    assert_eq!(method.stats().stalls, 1, "said once, not at every tick");
    // The other end goes away: end of file, after all.
    drop(write_end);
    assert_eq!(
        method.wait(0, &|| !ended.0.lock().expect("no panics").is_empty(), Duration::from_secs(10)),
        WaitOutcome::Done
    );
    assert!(method.outstanding().is_empty());
}

#[test]
fn the_end_of_the_method_does_not_wait_for_ever() {
    let ended = Arc::new(Ended::default());
    let Some(method) = method(&ended) else { return };
    let (read_end, _write_end) = nix::unistd::pipe().expect("a pipe");
    method.submit(0, &mut vec![endless(read_end)]);
    let began = Instant::now();
    drop(method);
    assert!(began.elapsed() < Duration::from_secs(5));
    let ended_all = std::mem::take(&mut *ended.0.lock().expect("no panics"));
    match ended_all.as_slice() {
        [completion] => {
            let error = completion.error.as_ref().expect("cancelled");
            assert_eq!((completion.tag, error.errno), (5, libc::ECANCELED));
            assert_eq!(Arc::strong_count(&ended), 1);
        }
        // A kernel that cannot cancel: then everything that it may write to is leaked.
        [] => assert!(Arc::strong_count(&ended) > 1),
        more => panic!("{more:?}"),
    }
}

#[allow(unsafe_code, reason = "requests")]
fn block_of(path: &Path) -> Request {
    let file = Arc::new(DataFile::open(path, Default::default()).expect("open"));
    let memory = Box::leak(vec![0u8; 4096].into_boxed_slice());
    let segment = Segment { ptr: NonNull::from(&mut memory[0]), len: memory.len() };
    // SAFETY: leaked memory that nobody else has.
    unsafe { Request::new(file, 0, [segment], 9) }
}

/// A second completion of the same operation, in the ring itself: a no-op with its name.
#[test]
fn a_completion_that_the_ring_delivers_twice_finds_nothing() {
    let ended = Arc::new(Ended::default());
    let Some(method) = method(&ended) else { return };
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), [7; 4096]).expect("write");
    let count = || ended.0.lock().expect("no panics").len();
    method.submit(0, &mut vec![block_of(file.path())]);
    assert_eq!(method.wait(0, &|| count() == 1, Duration::from_secs(10)), WaitOutcome::Done);
    // The first slot, in its first generation, and one that was never given out.
    method.lanes[0].forge(1 << 32);
    method.lanes[0].forge(u64::MAX - 1);
    // Somebody looks only while something is in flight.
    method.submit(0, &mut vec![block_of(file.path())]);
    assert_eq!(method.wait(0, &|| count() == 2, Duration::from_secs(10)), WaitOutcome::Done);
    assert_eq!((method.stats().stale_completions, method.stats().requests), (2, 2));
    assert!(ended.0.lock().expect("no panics").iter().all(|completion| completion.error.is_none()));
}

#[test]
fn reads_queued_for_a_wait_are_not_left_behind() {
    let ended = Arc::new(Ended::default());
    let Some(method) = method(&ended) else { return };
    let exe = Path::new("/proc/self/exe");
    let count = || ended.0.lock().expect("no panics").len();
    // Queued and waited for: one call.
    method.submit_for_wait(0, &mut vec![block_of(exe), block_of(exe)]);
    assert_eq!((method.stats().enters, count()), (0, 0));
    assert_eq!(method.wait(0, &|| count() == 2, Duration::from_secs(10)), WaitOutcome::Done);
    assert_eq!((method.stats().enters, method.stats().submits), (1, 1));
    // Queued and not waited for after all.
    method.submit_for_wait(0, &mut vec![block_of(exe)]);
    method.submit(0, &mut Vec::new());
    assert_eq!(method.stats().enters, 2);
    // Queued by somebody who stops there: whoever waits next hands it over, also if it is not his own.
    method.submit_for_wait(0, &mut vec![block_of(exe)]);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| method.wait(0, &|| count() == 4, Duration::from_secs(10)));
        assert_eq!(other.join().expect("the waiter"), WaitOutcome::Done);
    });
    // And the end of the method, too.
    method.submit_for_wait(0, &mut vec![block_of(exe)]);
    drop(method);
    assert_eq!(count(), 5);
}
