//! Every method reads the same bytes, whatever kernel and device do meanwhile.

mod common;

use common::{Board, LONG, Random, config, every_method, matrix, pattern_file, read_and_check, skip, wait_for};
use heapscan_io::{IoConfig, MethodName, OpenFileOptions, WaitOutcome, open};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

#[test]
fn random_reads_bring_the_bytes_of_the_file() {
    let file = pattern_file(300_000);
    for direct in [false, true] {
        let data = file.open_with(OpenFileOptions { direct, ..Default::default() });
        matrix("random reads", |method, board| {
            let mut random = Random(42);
            let mut reads = Vec::new();
            for _ in 0..20 {
                let mut batch = Vec::new();
                for _ in 0..8 {
                    let block = random.below(40) * 8192;
                    let (offset, len) = match random.below(3) {
                        0 => (random.below(310_000), 1 + random.below(20_000) as usize),
                        _ => (block, 8192 * (1 + random.below(8) as usize)),
                    };
                    let request = board.request(&data, offset, len, [8192, 4096, 1 << 20][random.below(3) as usize]);
                    reads.push((request.tag(), offset, len));
                    batch.push(request);
                }
                method.submit(random.below(2) as usize, &mut batch);
                assert!(batch.is_empty(), "submit takes all requests");
            }
            // Waiting on a lane delivers that lane; together they must bring everything.
            let end = Instant::now() + LONG;
            while board.completed() < reads.len() && Instant::now() < end {
                for lane in 0..method.lanes() {
                    method.wait(lane, &|| board.completed() == reads.len(), Duration::from_millis(5));
                }
            }
            assert_eq!(board.completed(), reads.len());
            for (tag, offset, len) in &reads {
                board.check(*tag, *offset, *len, file.size);
            }
            assert_eq!(method.stats().requests, reads.len() as u64);
        });
    }
}

#[test]
fn the_end_of_the_file_is_where_it_is() {
    // Two and a half pages; a whole file of one byte; nothing at all.
    for size in [20_480, 1, 0, 8192] {
        let file = pattern_file(size);
        for direct in [false, true] {
            let data = file.open_with(OpenFileOptions { direct, ..Default::default() });
            matrix("end of file", |method, board| {
                for (offset, len) in
                    [(0, 8192), (8192, 8192), (16_384, 8192), (24_576, 8192), (0, 65_536), (1 << 40, 8192)]
                {
                    read_and_check(method, board, &data, offset, len, 8192, size);
                }
            });
        }
    }
}

#[test]
fn every_length_of_a_file_ends_right() {
    // Sector tails and their neighbours, all lengths up to a sector and a bit.
    let lengths: Vec<u64> = (0..=520).chain([4095, 4096, 4097, 8191, 8193, 12_288 + 511]).collect();
    for size in lengths {
        let file = pattern_file(size);
        let data = file.open_with(OpenFileOptions { direct: size % 2 == 1, ..Default::default() });
        every_method("every length", if size % 3 == 0 { "seed=3,short=0.4" } else { "" }, |method, board| {
            read_and_check(method, board, &data, 0, 16_384, 8192, size);
        });
    }
}

#[test]
fn eagain_for_ever_ends_in_one_blocking_read() {
    let file = pattern_file(65_536);
    let data = file.open();
    every_method("EAGAIN for ever", "seed=1,eagain=1", |method, board| {
        read_and_check(method, board, &data, 0, 65_536, 8192, file.size);
        let stats = method.stats();
        assert_eq!((stats.blocking_reads, stats.errors), (1, 0));
        assert!(stats.retries_eagain >= 16, "{stats:?}");
    });
}

#[test]
fn an_interrupt_storm_is_survived() {
    let file = pattern_file(1 << 20);
    let data = file.open();
    every_method("EINTR storm", "seed=4,eintr=0.9", |method, board| {
        let mut batch: Vec<_> = (0..128).map(|n| board.request(&data, n * 8192, 8192, 8192)).collect();
        method.submit(0, &mut batch);
        wait_for(method, 0, board, 128);
        for tag in 0..128 {
            board.check(tag, tag * 8192, 8192, file.size);
        }
        assert!(method.stats().retries_eintr > 500, "{:?}", method.stats());
    });
}

#[test]
fn a_bad_sector_is_an_error_with_path_and_offset() {
    let file = pattern_file(1 << 20);
    let data = file.open();
    every_method("EIO", "seed=1,eio_at=50000", |method, board| {
        let mut batch: Vec<_> = (0..16).map(|n| board.request(&data, n * 8192, 8192, 8192)).collect();
        method.submit(1, &mut batch);
        wait_for(method, 1, board, 16);
        for tag in (0..16).filter(|&tag| tag != 6) {
            board.check(tag, tag * 8192, 8192, file.size);
        }
        let error = board.take(6).0.error.expect("an error");
        assert_eq!((error.path.as_path(), error.offset, error.errno), (file.path.as_path(), 6 * 8192, libc_eio()));
        assert!(error.to_string().contains("16384: read at offset 49152 failed"), "{error}");
        assert_eq!((method.stats().errors, method.stats().requests), (1, 16));
    });
}

fn libc_eio() -> i32 {
    5
}

#[test]
fn logical_counters_are_those_of_sync() {
    let file = pattern_file(500_000);
    let data = file.open();
    for plan in ["", "seed=7,short=0.3,eintr=0.1,eagain=0.1,eio=0.02"] {
        let counted = std::cell::RefCell::new(Vec::new());
        every_method("logical counters", plan, |method, board| {
            let mut batch: Vec<_> = (0..62).map(|n| board.request(&data, n * 8192, 16_384, 8192)).collect();
            method.submit(0, &mut batch);
            wait_for(method, 0, board, 62);
            let s = method.stats();
            let logical =
                (s.requests, s.bytes, s.errors, s.operations, s.retries_short, s.retries_eintr, s.retries_eagain);
            counted.borrow_mut().push((method.name(), logical));
        });
        let counted = counted.into_inner();
        for (name, logical) in &counted {
            assert_eq!(*logical, counted[0].1, "{name} {plan}");
        }
    }
}

#[test]
fn completions_out_of_order_keep_their_memory() {
    let file = pattern_file(1 << 20);
    let data = file.open();
    every_method("out of order", "seed=5,reorder,delay=2ms", |method, board| {
        let mut batch: Vec<_> = (0..100).map(|n| board.request(&data, n * 8192, 8192, 8192)).collect();
        method.submit(0, &mut batch);
        wait_for(method, 0, board, 100);
        assert!(!board.order.lock().unwrap().is_sorted(), "the plan must bring them out of order");
        for tag in 0..100 {
            board.check(tag, tag * 8192, 8192, file.size);
        }
    });
}

#[test]
fn a_thread_that_stopped_does_not_keep_its_reads() {
    let file = pattern_file(1 << 20);
    for (direct, plan) in [(false, ""), (true, ""), (true, "seed=3,short=0.5,eagain=0.2")] {
        let data = file.open_with(OpenFileOptions { direct, ..Default::default() });
        every_method("cross-thread reap", plan, |method, board| {
            std::thread::scope(|scope| {
                let (submitted, is_submitted) = std::sync::mpsc::channel();
                let (release, released) = std::sync::mpsc::channel::<()>();
                let batch: Vec<_> = (0..100).map(|n| board.request(&data, n * 8192, 8192, 8192)).collect();
                scope.spawn(move || {
                    method.submit(0, &mut { batch });
                    submitted.send(()).expect("the other side waits");
                    // Sleeps until the test is over; never reaps, never waits.
                    let _ = released.recv();
                });
                is_submitted.recv().expect("submitted");
                wait_for(method, 0, board, 100);
                drop(release);
            });
            (0..100).for_each(|tag| board.check(tag, tag * 8192, 8192, file.size));
        });
    }
}

#[test]
fn a_waiter_is_woken_by_what_others_submit_later() {
    let file = pattern_file(8192);
    let data = file.open();
    every_method("late submit", "", |method, board| {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let began = Instant::now();
                wait_for(method, 0, board, 1);
                began.elapsed()
            });
            std::thread::sleep(Duration::from_millis(30));
            method.submit(0, &mut vec![board.request(&data, 0, 8192, 8192)]);
            waiter.join().expect("the waiter");
        });
        board.check(0, 0, 8192, 8192);
    });
}

#[test]
fn many_threads_on_one_lane_each_get_their_own() {
    let file = pattern_file(1 << 20);
    let data = file.open_with(OpenFileOptions { direct: true, ..Default::default() });
    for plan in ["", "seed=8,short=0.2,eagain=0.1,one_by_one,enter_eagain=0.2"] {
        every_method("many threads", plan, |method, board| {
            std::thread::scope(|scope| {
                for thread in 0..6u64 {
                    let data = &data;
                    scope.spawn(move || {
                        let mut random = Random(thread + 1);
                        for _ in 0..100 {
                            let offset = random.below(128) * 8192;
                            let request = board.request(data, offset, 8192, 8192);
                            let tag = request.tag();
                            method.submit(0, &mut vec![request]);
                            assert_eq!(method.wait(0, &|| board.is_done(tag), LONG), WaitOutcome::Done);
                            board.check(tag, offset, 8192, 1 << 20);
                        }
                    });
                }
            });
            assert_eq!(method.stats().stale_completions, 0);
        });
    }
}

#[test]
fn a_wait_ends_in_time() {
    every_method("timeout", "", |method, _| {
        let began = Instant::now();
        assert_eq!(method.wait(0, &|| false, Duration::from_millis(50)), WaitOutcome::TimedOut);
        assert!((40..5000).contains(&began.elapsed().as_millis()));
        assert_eq!(method.reap(0), 0);
    });
}

#[test]
fn dropping_the_method_ends_what_is_in_flight() {
    let file = pattern_file(1 << 20);
    let data = file.open_with(OpenFileOptions { direct: true, ..Default::default() });
    for plan in ["", "seed=6,delay=20ms,reorder"] {
        for method in MethodName::ALL {
            let board = Board::new();
            let Ok(opened) = open(&config(method, plan), Arc::clone(&board) as _) else {
                skip("drop", method.as_str(), "cannot be opened");
                continue;
            };
            let mut batch: Vec<_> = (0..64).map(|n| board.request(&data, n * 8192, 8192, 8192)).collect();
            opened.method.submit(0, &mut batch);
            drop(opened);
            assert_eq!(board.completed(), 64, "{method}: every request is completed before the method is gone");
            (0..64).for_each(|tag| board.check(tag, tag * 8192, 8192, file.size));
            assert_eq!(Arc::strong_count(&board), 1, "{method}: nothing is leaked");
        }
    }
}

#[test]
fn ten_thousand_small_requests() {
    let file = pattern_file(1 << 20);
    let data = file.open();
    every_method("10k requests", "", |method, board| {
        let mut random = Random(99);
        let mut reads = Vec::new();
        let mut batch: Vec<_> = (0..10_000)
            .map(|_| {
                let offset = random.below(1 << 20);
                let request = board.request(&data, offset, 64, 64);
                reads.push((request.tag(), offset));
                request
            })
            .collect();
        method.submit(0, &mut batch);
        wait_for(method, 0, board, 10_000);
        for (tag, offset) in reads {
            board.check(tag, offset, 64, 1 << 20);
        }
        assert!(method.stats().in_flight_max <= 16 * 2 + 3 + 1, "{:?}", method.stats());
    });
}

#[test]
fn more_segments_than_the_kernel_takes_at_once() {
    let file = pattern_file(2000 * 512);
    for direct in [false, true] {
        let data = file.open_with(OpenFileOptions { direct, ..Default::default() });
        every_method("IOV_MAX", "", |method, board| {
            read_and_check(method, board, &data, 0, 2000 * 512, 512, file.size);
            assert_eq!(method.stats().retries_short, 0, "a second operation for the rest is not a retry");
        });
    }
}

#[test]
fn direct_reads_are_direct_where_they_can_be() {
    let file = pattern_file(1 << 20);
    let data = file.open_with(OpenFileOptions { direct: true, ..Default::default() });
    if !data.is_direct() {
        return skip("direct", "direct", &data.note().expect("a note says why"));
    }
    let alignment = data.alignment();
    assert!(alignment.memory.is_power_of_two() && alignment.offset.is_power_of_two());
    every_method("direct", "", |method, board| {
        read_and_check(method, board, &data, 8192, 65_536, 8192, file.size);
        assert_eq!(method.stats().unaligned_reads, 0);
        read_and_check(method, board, &data, 100, 1000, 1000, file.size);
        assert_eq!(method.stats().unaligned_reads, 1);
    });
    assert!(data.is_direct(), "one odd read does not spoil the file");
    assert!(!file.open().is_direct());
}

#[test]
fn uncached_reads_or_a_note_why_not() {
    let file = pattern_file(100_000);
    let data = file.open_with(OpenFileOptions { uncached: true, ..Default::default() });
    assert_ne!(data.is_uncached(), data.note().is_some());
    every_method("uncached", "seed=2,short=0.2", |method, board| {
        read_and_check(method, board, &data, 0, 100_000, 8192, file.size);
    });
}

#[test]
fn a_file_that_shrinks_ends_early_and_harms_nobody() {
    let data_of = |file: &common::PatternFile| file.open();
    every_method("truncate", "", |method, board| {
        let file = pattern_file(1 << 20);
        let data = data_of(&file);
        let handle = std::fs::OpenOptions::new().write(true).open(&file.path).expect("open for writing");
        handle.set_len(100_000).expect("truncate");
        assert_eq!(data.size(), 1 << 20, "the size is that of opening");
        read_and_check(method, board, &data, 65_536, 65_536, 8192, 100_000);
        read_and_check(method, board, &data, 524_288, 8192, 8192, 100_000);
    });
}

#[test]
fn an_unlinked_file_is_read_to_its_end() {
    for (direct, plan) in [(false, ""), (true, "seed=7,short=0.5")] {
        every_method("unlink", plan, |method, board| {
            let file = pattern_file(200_000);
            let data = file.open_with(OpenFileOptions { direct, ..Default::default() });
            std::fs::remove_file(&file.path).expect("unlink");
            read_and_check(method, board, &data, 0, 200_000, 8192, 200_000);
        });
    }
}

#[test]
fn only_regular_files_are_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    for path in [pipe.as_path(), dir.path(), &dir.path().join("absent")] {
        let error = heapscan_io::DataFile::open(path, OpenFileOptions::default()).expect_err("not a regular file");
        assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let refuse = |change: fn(&mut IoConfig)| {
        let mut config = IoConfig::default();
        change(&mut config);
        match open(&config, Board::new()) {
            Err(heapscan_io::IoError::Setting(text)) => text,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("accepted"),
        }
    };
    assert!(refuse(|c| c.io_max_concurrency = 0).contains("io_max_concurrency = 0"));
    assert!(refuse(|c| c.io_max_concurrency = 1025).contains("1025"));
    assert!(refuse(|c| c.lanes = Some(0)).contains("lanes = 0"));
    assert!(refuse(|c| c.io_workers = Some(0)).contains("io_workers"));
    assert!(refuse(|c| c.worker_cpus = Some(Vec::new())).contains("worker_cpus"));
}

#[test]
fn a_file_system_that_refuses_o_direct_is_read_buffered() {
    // sysfs has regular files with a size and no direct IO.
    let path = std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    if !path.exists() {
        return skip("refused direct", "sysfs", "no such file in sysfs");
    }
    let data = std::sync::Arc::new(
        heapscan_io::DataFile::open(path, OpenFileOptions { direct: true, ..Default::default() }).expect("open"),
    );
    assert!(!data.is_direct());
    let note = data.note().expect("a note");
    assert!(note.contains("read buffered"), "{note}");
    let content = std::fs::read(path).expect("read");
    every_method("refused direct", "", |method, board| {
        let request = board.request(&data, 0, 4096, 4096);
        let tag = request.tag();
        method.submit(0, &mut vec![request]);
        wait_for(method, 0, board, 1);
        let (completion, bytes) = board.take(tag);
        assert!(completion.error.is_none(), "{completion:?}");
        assert_eq!(&bytes[..completion.bytes], &content[..]);
    });
}
