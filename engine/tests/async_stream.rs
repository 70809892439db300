//! Scans as futures streams: in several executors, and dropped at any moment.

mod method_support;

use futures_core::Stream;
use heapscan::{Engine, Error, ErrorKind, MethodName, Result, RowFormat, ScanStream, Table};
use heapscan_fixtures::pgbench;
use method_support::*;
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
    time::{Duration, Instant},
};

/// The smallest executor.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park_timeout(Duration::from_secs(10));
    }
}

async fn next<T: Send + 'static>(stream: &mut ScanStream<T>) -> Option<Result<T>> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

async fn collect(mut stream: ScanStream<Vec<u8>>) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(chunk) = next(&mut stream).await {
        all.extend_from_slice(&chunk?);
    }
    Ok(all)
}

fn expected(table: &Table) -> Vec<u8> {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    snapshot.oracle_without_ctid(table.info().oid).expect("oracle")
}

fn open(method: MethodName, frames: u64, plan: &str) -> (Engine, Table) {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    let mut options = options(method, frames);
    if !plan.is_empty() {
        fault(&mut options, plan);
    }
    accounts(snapshot.data_dir(), options)
}

/// Threads of dropped streams end on their own; then nothing is pinned.
fn wait_for_no_pins(engine: &Engine, what: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let (pinned, metrics) = (engine.pool().pinned_frames(), engine.pool_metrics());
        if pinned == 0 && metrics.open_streams == 0 && metrics.in_flight == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {pinned} frames stay pinned: {metrics:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_executor_gets_what_the_server_prints() {
    for method in methods() {
        let (engine, table) = open(method, 256, "");
        let expected = expected(&table);
        let stream = || table.scan().stream_rows(RowFormat::Text);
        assert!(block_on(collect(stream())).expect("block_on") == expected, "{method}");
        let tokio = tokio::runtime::Builder::new_current_thread().build().expect("tokio");
        let [one, two] = [tokio.spawn(collect(stream())), tokio.spawn(collect(stream()))];
        for task in [one, two] {
            assert!(tokio.block_on(task).expect("no panic").expect("tokio") == expected, "{method}");
        }
        wait_for_no_pins(&engine, method.as_str());
    }
}

#[test]
fn a_tokio_uring_runtime_consumes_scans_while_it_reads_itself() {
    if !methods().contains(&MethodName::TokioUring) {
        return;
    }
    for method in methods() {
        let (_engine, table) = open(method, 256, "");
        let expected = expected(&table);
        let path = table.fork().path().to_owned();
        let first = std::fs::read(&path).expect("the file")[..8192].to_vec();
        tokio_uring::start(async {
            let reads = tokio_uring::spawn(async move {
                let file = tokio_uring::fs::File::open(&path).await.expect("open");
                for _ in 0..50 {
                    let (result, buffer) = file.read_at(Vec::with_capacity(8192), 0).await;
                    assert_eq!(result.expect("read"), 8192);
                    assert!(buffer == first);
                }
                file.close().await.expect("close");
            });
            let rows = tokio_uring::spawn(collect(table.scan().stream_rows(RowFormat::Text)));
            assert!(rows.await.expect("no panic").expect("rows") == expected, "{method}");
            reads.await.expect("no panic");
        });
    }
}

#[test]
fn ten_thousand_drops_leave_no_frame_and_harm_no_page() {
    let began = Instant::now();
    let methods = methods();
    let drops = 10_000 / methods.len() + 1;
    for (number, &method) in methods.iter().enumerate() {
        // Few frames, so that those of dropped scans are used again at once, by the scan that is looked at.
        let (engine, table) = open(method, 96, "seed=5,short=0.1,delay=300us,reorder");
        let file = std::fs::read(table.fork().path()).expect("the file");
        let relation = engine.pool().register(Arc::clone(table.fork())).expect("registered");
        let mut random = Random(0x9e37_79b9_7f4a_7c15 + number as u64);
        let mut canary = None;
        for i in 0..drops {
            let from = random.below(u64::from(table.blocks()) - 100) as u32;
            let scan = table.scan().columns(&["aid"]).blocks(from..from + 1 + random.below(90) as u32);
            let mut stream = scan.stream_rows(RowFormat::Text);
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..random.below(4) {
                match Pin::new(&mut stream).poll_next(&mut context) {
                    Poll::Ready(Some(chunk)) => drop(chunk.expect("rows")),
                    Poll::Ready(None) => break,
                    Poll::Pending if random.below(2) == 0 => std::thread::yield_now(),
                    Poll::Pending => std::thread::sleep(Duration::from_micros(random.below(200))),
                }
            }
            match random.below(8) {
                0 => stream.close(),
                _ => drop(stream),
            }
            // A page that is held is not written to by a read of those who are gone; a new one is right.
            let block = random.below(u64::from(table.blocks())) as u32;
            let page = engine.pool().read_block(relation, block).expect("a page");
            for page in canary.iter().chain([&page]) {
                let page: &heapscan::pool::PinnedPage = page;
                let at = page.block() as usize * 8192;
                assert!(page.bytes() == &file[at..at + 8192], "{method} drop {i}: block {} is wrong", page.block());
            }
            canary = Some(page);
            if i % 250 == 249 {
                canary = None;
                wait_for_no_pins(&engine, &format!("{method} drop {i}"));
            }
        }
        drop(canary);
        wait_for_no_pins(&engine, method.as_str());
        assert_eq!(engine.pool_metrics().stale_completions, 0);
    }
    assert!(began.elapsed() < Duration::from_secs(60), "took {:?}", began.elapsed());
}

/// Nothing is handed over, so nobody notices at a batch that the consumer has gone.
#[test]
fn a_stream_over_pages_without_rows_ends_when_it_is_dropped() {
    let (_dir, made) = own_cluster(1);
    let accounts_file = made.tables.iter().find(|t| t.name == "pgbench_accounts").expect("accounts");
    let path = made.data_dir.join(&accounts_file.path);
    // Pages that were never written: there is no row on them.
    let size = std::fs::metadata(&path).expect("the file").len();
    std::fs::write(&path, vec![0; size as usize]).expect("zeros");
    for method in methods() {
        let mut options = options(method, 64);
        // Some 3 ms a block: the whole scan takes seconds.
        options.effective_io_concurrency = 0;
        options.io_combine_limit = 8192;
        fault(&mut options, "seed=1,delay=6ms");
        // The catalogs are read as slowly.
        let (engine, table) = accounts(&made.data_dir, options);
        let mut stream = table.scan().stream_rows(RowFormat::Text);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut stream).poll_next(&mut context).is_pending());
        std::thread::sleep(Duration::from_millis(50));
        assert!(Pin::new(&mut stream).poll_next(&mut context).is_pending(), "{method}: no rows");
        let began = Instant::now();
        drop(stream);
        wait_for_no_pins(&engine, method.as_str());
        assert!(began.elapsed() < Duration::from_secs(2), "{method}: ended after {:?}", began.elapsed());
        let flag = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let error = table.scan().cancelled_by(flag).start().expect("a scan").next_page().map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }
}

/// Counts what was made, so that running ahead can be seen.
fn numbers(made: &Arc<AtomicUsize>, count: usize) -> ScanStream<usize> {
    let made = Arc::clone(made);
    ScanStream::from_iter_in_thread(move || {
        Ok((0..count).map(move |i| {
            made.fetch_add(1, Ordering::SeqCst);
            Ok(i)
        }))
    })
}

#[test]
fn a_slow_consumer_slows_the_scan_and_a_gone_one_ends_it() {
    let made = Arc::new(AtomicUsize::new(0));
    let mut stream = numbers(&made, 1000);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(made.load(Ordering::SeqCst), 0, "not polled, not begun");
    assert_eq!(block_on(next(&mut stream)).unwrap().unwrap(), 0);
    std::thread::sleep(Duration::from_millis(50));
    let ahead = made.load(Ordering::SeqCst);
    assert!((2..=4).contains(&ahead), "one taken, two in the queue, one in the making: {ahead}");
    stream.close();
    assert_eq!(made.load(Ordering::SeqCst), ahead, "ended where it was");

    let made = Arc::new(AtomicUsize::new(0));
    let mut stream = numbers(&made, 1000);
    let all: Vec<usize> = std::iter::from_fn(|| block_on(next(&mut stream))).map(Result::unwrap).collect();
    assert_eq!(all, (0..1000).collect::<Vec<_>>());
    assert!(block_on(next(&mut stream)).is_none(), "and stays at its end");
}

#[test]
fn errors_come_in_their_turn() {
    let error = || Error::new(ErrorKind::Corrupt, "bad");
    let mut stream = ScanStream::<u32>::from_iter_in_thread(move || Err::<std::iter::Empty<_>, _>(error()));
    assert_eq!(block_on(next(&mut stream)).unwrap().unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(block_on(next(&mut stream)).is_none());
    let mut stream = ScanStream::from_iter_in_thread(move || Ok([Ok(1), Err(error()), Ok(2)].into_iter()));
    assert_eq!(block_on(next(&mut stream)).unwrap().unwrap(), 1);
    assert!(block_on(next(&mut stream)).unwrap().is_err());
    assert_eq!(block_on(next(&mut stream)).unwrap().unwrap(), 2);
    assert!(block_on(next(&mut stream)).is_none());

    let (_engine, table) = open(MethodName::Sync, 64, "");
    let mut stream = table.scan().columns(&["nonsense"]).stream_rows(RowFormat::Csv);
    assert_eq!(block_on(next(&mut stream)).unwrap().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(block_on(next(&mut stream)).is_none());
    let mut counted = table.scan().columns(&["aid"]).stream_of(|scan| {
        let mut scan = scan.start()?;
        Ok(std::iter::from_fn(move || match scan.next_page() {
            Ok(page) => page.map(|page| Ok(page.len())),
            Err(error) => Some(Err(error)),
        }))
    });
    let rows: usize = std::iter::from_fn(|| block_on(next(&mut counted))).map(Result::unwrap).sum();
    assert_eq!(rows, 100_000);
}

#[test]
fn a_panic_of_the_producer_reaches_the_consumer() {
    let mut stream = ScanStream::<u32>::from_fn(|sink| {
        assert_eq!(sink.send(Ok(1)), Ok(()));
        panic!("a bug in the decoder");
    });
    assert_eq!(block_on(next(&mut stream)).unwrap().unwrap(), 1);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block_on(next(&mut stream))));
    assert_eq!(caught.expect_err("panics").downcast_ref::<&str>(), Some(&"a bug in the decoder"));
}

#[test]
#[cfg(feature = "arrow")]
fn record_batches_come_as_a_stream() {
    use heapscan::arrow::BatchOptions;
    for method in methods() {
        let (engine, table) = open(method, 64, "");
        let options = || BatchOptions { max_rows: 1000, ..BatchOptions::default() };
        let rows = block_on(async {
            let mut stream = table.scan().columns(&["aid"]).stream(options());
            let mut rows = 0;
            while let Some(batch) = next(&mut stream).await {
                rows += batch.expect("batch").num_rows();
            }
            rows
        });
        assert_eq!(rows, 100_000, "{method}");
        // One that is dropped in the middle.
        let mut stream = table.scan().stream(options());
        assert!(block_on(next(&mut stream)).expect("a batch").is_ok());
        drop(stream);
        wait_for_no_pins(&engine, "a dropped stream of batches");
    }
}
