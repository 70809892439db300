//! Frames under stress: joined and failing reads, streams that stop or are forgotten, pools that are too small.

mod pool_support;

use heapscan::{ErrorKind, pool::Strategy};
use pool_support::*;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

#[test]
fn two_streams_share_one_physical_read() {
    let b = bench(64, When::Held);
    let rel = b.relation(1, 16);
    let mut options = b.options();
    options.full = true;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| drain(&mut b.stream_with(rel, 0..16, options), 1).unwrap());
        until(|| b.script.held() == 1);
        let second = scope.spawn(|| {
            let mut stream = b.stream_with(rel, 4..6, options);
            let blocks = drain(&mut stream, 1).unwrap();
            (blocks, stream.metrics())
        });
        until(|| b.pool.metrics().totals.joins >= 1 || b.script.waits.load(Ordering::Relaxed) >= 2);
        b.script.finish(0);
        assert_eq!(first.join().unwrap(), (0..16).collect::<Vec<_>>());
        let (blocks, m) = second.join().unwrap();
        assert_eq!(blocks, [4, 5]);
        assert_eq!((m.joins, m.reads, m.bytes_read), (2, 0, 0), "two blocks under one read of another stream");
    });
    assert_eq!(b.script.asked(), [(0, 16, 1)]);
}

/// Rule 4: the stream that asked for the blocks never comes back to them.
#[test]
fn a_paused_stream_does_not_hold_up_others() {
    let b = bench(64, When::OnWait);
    let rel = b.relation(1, 32);
    let mut options = b.options();
    options.full = true;
    let mut paused = b.stream_with(rel, 0..32, options);
    paused.next_page().unwrap().unwrap();
    assert_eq!(drain(&mut b.stream(rel, 0..32), 1).unwrap().len(), 32);
    assert_eq!(drain(&mut paused, 1).unwrap(), (1..32).collect::<Vec<_>>());
    let blocks: u32 = b.script.asked().iter().map(|a| a.1).sum();
    assert_eq!(blocks, 32, "each block was read once");
}

#[test]
fn a_joined_read_that_fails_is_tried_again() {
    let b = bench(64, When::Held);
    let (rel, other) = (b.relation(1, 16), b.relation(2, 300));
    let mut options = b.options();
    options.full = true;
    // One block: the issuer is told. Two blocks: which of them is bad is not known, so both are tried again.
    for (blocks, told) in [(2..3, true), (2..4, false)] {
        b.script.set(When::Held);
        b.script.fault(2, Fault::Errno(5, 1));
        let waits = b.script.waits.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let issuer = scope.spawn(|| b.stream_with(rel, blocks.clone(), options).collect::<Vec<_>>());
            until(|| b.script.held() == 1);
            let joiner = scope.spawn(|| drain(&mut b.stream_with(rel, blocks.clone(), options), 1).unwrap());
            until(|| b.script.waits.load(Ordering::Relaxed) >= waits + 2);
            b.script.set(When::AtOnce);
            b.script.finish(0);
            assert_eq!(joiner.join().unwrap(), blocks.clone().collect::<Vec<_>>(), "the joiner sees nothing of it");
            let mut pages = issuer.join().unwrap();
            if told {
                let error = pages.remove(0).unwrap_err();
                assert_eq!((error.kind(), error.block(), error.errno()), (ErrorKind::Io, Some(2), Some(5)));
                assert_eq!(error.path(), Some(&*b.path(1)));
            }
            pages.iter().for_each(|page| check(page.as_ref().unwrap(), 1));
        });
        // Another relation pushes the blocks out.
        drain(&mut b.stream(other, 0..300), 2).unwrap();
    }
}

#[test]
fn a_lasting_error_names_its_block_only() {
    for (when, fault) in [
        (When::Inline, Fault::Errno(5, u32::MAX)),
        (When::AtOnce, Fault::WholeErrno(5)),
        (When::OnWait, Fault::WholeErrno(5)),
        (When::Threads, Fault::Errno(5, u32::MAX)),
    ] {
        let b = bench(64, when);
        let rel = b.relation(1, 16);
        b.script.fault(6, fault);
        let mut options = b.options();
        options.full = true;
        let mut stream = b.stream_with(rel, 0..16, options);
        for block in 0..16 {
            match stream.next_page().unwrap() {
                Ok(page) => {
                    check(&page, 1);
                    assert_eq!(page.block(), block);
                    assert_ne!(block, 6, "{when:?}");
                }
                Err(error) => {
                    assert_eq!((error.block(), error.errno(), block), (Some(6), Some(5), 6), "{when:?}: {error}")
                }
            }
        }
        assert!(stream.next_page().is_none());
        drop(stream);
        b.script.heal();
        check(&b.pool.read_block(rel, 6).unwrap(), 1);
    }
}

#[test]
fn blocks_behind_the_end_of_a_shortened_file_have_vanished() {
    for when in [When::Inline, When::OnWait, When::Threads] {
        let b = bench(64, when);
        let rel = b.relation(1, 8);
        std::fs::File::options().write(true).open(b.path(1)).unwrap().set_len(5 * 8192 + 100).unwrap();
        let mut options = b.options();
        options.full = true;
        let mut stream = b.stream_with(rel, 0..8, options);
        for block in 0..8 {
            let page = stream.next_page().unwrap();
            match block {
                0..5 => check(&page.unwrap(), 1),
                _ => {
                    let error = page.unwrap_err();
                    assert_eq!((error.kind(), error.block(), error.errno()), (ErrorKind::Io, Some(block), None));
                    assert!(error.to_string().contains("vanished"), "{error}");
                }
            }
        }
        assert_eq!(stream.metrics().bytes_read, 5 * 8192 + 100, "{when:?}");
    }
}

/// Reads of a dropped stream end while others use the pool: they write to their own frames and no others.
#[test]
fn dropped_and_forgotten_streams_leave_their_frames_in_io() {
    let b = bench(48, When::Held);
    let (rel, other) = (b.relation(1, 64), b.relation(2, 200));
    let mut options = b.options();
    options.full = true;
    // One page of a stream, whose other reads stay in flight.
    let one_page = |stream: &mut heapscan::stream::ReadStream| {
        std::thread::scope(|scope| {
            let consumer = scope.spawn(|| check(&stream.next_page().unwrap().unwrap(), 1));
            while !consumer.is_finished() {
                std::thread::sleep(Duration::from_micros(100));
                if !consumer.is_finished() && b.script.held() > 0 {
                    b.script.finish(0);
                }
            }
            consumer.join().unwrap();
        });
    };
    let mut left = 0;
    for round in 0..200u32 {
        b.script.set(When::Held);
        let from = round % 16;
        let mut stream = b.stream_with(rel, (0..24).map(|i| from + i / 4 * 8 + i % 4), options);
        one_page(&mut stream);
        let mut gone = b.stream_with(rel, [from + 4, from + 5, from + 13], options);
        one_page(&mut gone);
        left += b.script.held();
        if round >= 150 && round % 3 == 0 {
            std::mem::forget(stream)
        } else {
            drop(stream)
        }
        drop(gone);
        b.script.set(When::AtOnce);
        let mut canaries = Vec::new();
        let mut stream = b.stream(other, (round % 100)..(round % 100) + 60);
        while let Some(page) = stream.next_page() {
            let page = page.unwrap();
            check(&page, 2);
            if canaries.len() < 8 {
                canaries.push(page);
            }
        }
        b.script.finish_all();
        canaries.iter().for_each(|page| check(page, 2));
        if round < 150 {
            drain(&mut b.stream(rel, 0..64), 1).unwrap();
        }
    }
    assert!(left > 100, "hardly a read was in flight when its stream went away: {left}");
    let m = b.pool.metrics();
    assert_eq!((m.in_flight, m.stale_completions), (0, 0));
    assert!(m.totals.wasted > 0);
}

#[test]
fn forgotten_pages_cost_their_frame_and_nothing_else() {
    let b = bench(16, When::OnWait);
    let rel = b.relation(1, 100);
    for block in 0..15 {
        std::mem::forget(b.pool.read_block(rel, block).unwrap());
    }
    assert_eq!(drain(&mut b.stream(rel, 0..100), 1).unwrap().len(), 100);
    check(&b.pool.read_block(rel, 3).unwrap(), 1);
}

#[test]
fn pages_outlive_stream_and_pool() {
    let b = bench(16, When::Threads);
    let rel = b.relation(1, 10);
    let mut stream = b.stream(rel, 0..10);
    let pages: Vec<_> = stream.by_ref().map(Result::unwrap).collect();
    drop(stream);
    drop(b);
    std::thread::spawn(move || pages.iter().for_each(|page| check(page, 1))).join().unwrap();
}

#[test]
fn all_frames_pinned_is_an_error_in_time() {
    let mut config = config(16);
    config.pin_timeout = Duration::from_millis(200);
    let b = bench_with(config, When::OnWait);
    let rel = b.relation(1, 40);
    let mut stream = b.stream(rel, 0..40);
    let mut pages: Vec<_> = (0..16).map(|_| stream.next_page().unwrap().unwrap()).collect();
    let start = Instant::now();
    let error = stream.next_page().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.block()), (ErrorKind::NoUnpinnedBuffers, Some(16)));
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(b.pool.read_block(rel, 30).unwrap_err().kind(), ErrorKind::NoUnpinnedBuffers);
    check(&b.pool.read_block(rel, 5).unwrap(), 1);
    pages.pop();
    // The same block again, then the rest.
    assert_eq!(drain(&mut stream, 1).unwrap(), (16..40).collect::<Vec<_>>());
    pages.iter().for_each(|page| check(page, 1));
}

/// Rule 5: what a paused stream has pinned ahead is taken from it by one that has nothing.
#[test]
fn pins_ahead_of_a_paused_stream_are_given_up_for_a_starving_one() {
    let b = bench(16, When::OnWait);
    let rel = b.relation(1, 64);
    let mut options = b.options();
    options.full = true;
    let mut paused = b.stream_with(rel, 0..32, options);
    let first = paused.next_page().unwrap().unwrap();
    let held: Vec<_> = [40].into_iter().map(|block| b.pool.read_block(rel, block).unwrap()).collect();
    let start = Instant::now();
    assert_eq!(drain(&mut b.stream(rel, 41..64), 1).unwrap(), (41..64).collect::<Vec<_>>());
    assert!(start.elapsed() < Duration::from_secs(5));
    check(&first, 1);
    drop(first);
    assert_eq!(drain(&mut paused, 1).unwrap(), (1..32).collect::<Vec<_>>());
    let m = paused.metrics();
    assert!(m.revoked > 0 && m.wasted > 0, "{m:?}");
    drop(held);
}

#[test]
fn as_many_streams_as_frames_all_finish() {
    for (frames, streams) in [(1, 2), (2, 2), (8, 8), (16, 4), (16, 16)] {
        for when in [When::Inline, When::Threads] {
            let b = bench(frames, when);
            let relations: Vec<_> = (0..streams).map(|i| b.relation(i, 60)).collect();
            std::thread::scope(|scope| {
                for (number, &relation) in relations.iter().enumerate() {
                    let b = &b;
                    scope.spawn(move || {
                        let blocks = drain(&mut b.stream(relation, 0..60), number as u32).unwrap();
                        assert_eq!(blocks.len(), 60, "{frames} frames, {streams} streams, {when:?}");
                    });
                }
            });
        }
    }
}

/// Eight open streams on eight frames, consumed in turn by one thread, each holding a page meanwhile.
#[test]
fn streams_in_turn_with_a_page_each() {
    let b = bench(9, When::OnWait);
    let rel = b.relation(1, 400);
    let mut options = b.options();
    options.full = true;
    let mut streams: Vec<_> = (0..8).map(|i| b.stream_with(rel, i * 50..(i + 1) * 50, options)).collect();
    let mut held: Vec<_> = (0..8).map(|_| None).collect();
    for round in 0..50 {
        for (i, stream) in streams.iter_mut().enumerate() {
            held[i] = Some(stream.next_page().unwrap().unwrap());
            let page = held[i].as_ref().unwrap();
            check(page, 1);
            assert_eq!(page.block(), i as u32 * 50 + round);
        }
    }
}

#[test]
fn a_lost_completion_is_reported() {
    let mut config = config(16);
    config.stall_timeout = Duration::from_millis(150);
    let b = bench_with(config, When::AtOnce);
    let rel = b.relation(1, 10);
    b.script.fault(1, Fault::Never);
    let mut stream = b.stream(rel, 0..10);
    stream.next_page().unwrap().unwrap();
    let error = stream.next_page().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.block()), (ErrorKind::Method, Some(1)));
    let text = error.to_string();
    assert!(text.contains("oldest of 1 in flight is for block 1 of"), "{text}");
    assert_eq!(b.pool.outstanding()[0].block, 1);
    drop(stream);
    // The frame is still the read's: everything else can be read, by the frames that are left.
    assert_eq!(drain(&mut b.stream(rel, 3..10), 1).unwrap().len(), 7);
    b.script.heal();
    b.script.finish_all();
    check(&b.pool.read_block(rel, 1).unwrap(), 1);
}

#[test]
fn a_hot_relation_survives_a_scan_ten_times_the_pool() {
    for when in [When::Inline, When::OnWait, When::Threads] {
        let b = bench(400, when);
        let (hot, big) = (b.relation(1, 100), b.relation(2, 4000));
        for _ in 0..3 {
            drain(&mut b.stream(hot, 0..100), 1).unwrap();
        }
        let strategy = b.pool.strategy_for(4000);
        assert_eq!(strategy, Strategy::BulkRead { ring_frames: 50 });
        let mut options = b.options();
        options.strategy = strategy;
        let mut scan = b.stream_with(big, 0..4000, options);
        drain(&mut scan, 2).unwrap();
        let m = scan.metrics();
        assert!(m.ring_reuses > 3900, "{when:?}: {m:?}");
        let mut again = b.stream(hot, 0..100);
        drain(&mut again, 1).unwrap();
        assert!(again.metrics().hits >= 95, "{when:?}: {:?}", again.metrics());
        if when == When::Inline {
            assert!(m.ring_reuses >= 4000 - 20, "a scan without look-ahead needs a small ring: {m:?}");
        }
    }
}

#[test]
fn pages_of_others_are_not_stolen_by_the_ring() {
    let b = bench(64, When::Inline);
    let (big, small) = (b.relation(1, 300), b.relation(2, 4));
    let mut options = b.options();
    options.strategy = Strategy::BulkRead { ring_frames: 20 };
    let mut scan = b.stream_with(big, 0..300, options);
    for _ in 0..40 {
        scan.next_page().unwrap().unwrap();
    }
    // Block 35 is in the ring; others use it, so it stays.
    for _ in 0..3 {
        check(&b.pool.read_block(big, 35).unwrap(), 1);
    }
    drain(&mut b.stream(small, 0..4), 2).unwrap();
    drain(&mut scan, 1).unwrap();
    b.script.asked();
    check(&b.pool.read_block(big, 35).unwrap(), 1);
    drain(&mut b.stream(small, 0..4), 2).unwrap();
    assert_eq!(b.script.asked(), []);
}

#[test]
fn relations_are_told_apart() {
    let b = bench(64, When::Inline);
    let (one, two) = (b.relation(1, 4), b.relation(2, 4));
    check(&b.pool.read_block(one, 3).unwrap(), 1);
    check(&b.pool.read_block(two, 3).unwrap(), 2);
    let fork = b.pool.fork(two).unwrap();
    assert_eq!(b.pool.register(Arc::clone(&fork)).unwrap(), two);
    b.pool.unregister(two);
    assert_eq!(b.pool.read_block(two, 3).unwrap_err().kind(), ErrorKind::Usage);
    let again = b.pool.register(fork).unwrap();
    assert_ne!(again, two, "frames may hold blocks under the old id");
    check(&b.pool.read_block(again, 3).unwrap(), 2);
}

/// Frames of failed reads leave the mapping, so that their next use does not cut off the chain they were in.
#[test]
fn pinned_blocks_stay_found_whatever_fails_around_them() {
    let b = bench(64, When::Inline);
    let rel = b.relation(1, 1000);
    let mut random = Random(11);
    for _ in 0..300 {
        let held: Vec<_> = (0..30).map(|_| b.pool.read_block(rel, random.below(1000) as u32).unwrap()).collect();
        for _ in 0..10 {
            let block = random.below(1000) as u32;
            b.script.fault(block, Fault::Errno(5, 1));
            b.script.asked();
            let failed = b.pool.read_block(rel, block).is_err();
            assert_eq!(failed, !b.script.asked().is_empty(), "it fails if it is not in the pool");
        }
        b.script.heal();
        for _ in 0..60 {
            check(&b.pool.read_block(rel, random.below(1000) as u32).unwrap(), 1);
        }
        for page in &held {
            let again = b.pool.read_block(rel, page.block()).unwrap();
            assert_eq!(again.frame(), page.frame(), "block {} was read twice", page.block());
        }
    }
}

/// Random lookups and scans from several threads, with faults and dropped streams; every page says who it is.
#[test]
fn stress() {
    for (frames, partitions) in [(24, 1), (64, 3), (300, 1)] {
        let mut config = config(frames);
        config.numa = heapscan::pool::NumaOptions::forced(partitions);
        let b = bench_with(config, When::Threads);
        let relations: Vec<_> = (0..4).map(|i| b.relation_in(i, 200, 64)).collect();
        let end = Instant::now() + Duration::from_millis(700);
        std::thread::scope(|scope| {
            for seed in 0..6u64 {
                let (b, relations) = (&b, &relations);
                scope.spawn(move || {
                    let mut random = Random(seed * 7919 + 1);
                    while Instant::now() < end {
                        let number = random.below(4) as u32;
                        let relation = relations[number as usize];
                        let mut options = b.options();
                        options.lane = random.below(4) as usize;
                        options.full = random.below(2) == 0;
                        if random.below(2) == 0 {
                            options.strategy = Strategy::BulkRead { ring_frames: 1 + random.below(24) as u32 };
                        }
                        let from = random.below(200) as u32;
                        let blocks: Vec<u32> = match random.below(3) {
                            0 => (from..200).collect(),
                            1 => (0..30).map(|_| random.below(200) as u32).collect(),
                            _ => (from.saturating_sub(20)..from).rev().collect(),
                        };
                        let stop = random.below(60) as usize;
                        let mut stream = b.stream_with(relation, blocks.clone(), options);
                        for expected in blocks.into_iter().take(stop) {
                            match stream.next_page().unwrap() {
                                Ok(page) => {
                                    assert_eq!(page.block(), expected);
                                    check(&page, number);
                                }
                                Err(error) => assert_eq!((error.block(), error.errno()), (Some(expected), Some(5))),
                            }
                        }
                        if random.below(4) == 0 {
                            b.script.fault(random.below(64) as u32, Fault::Errno(5, 1));
                        }
                    }
                });
            }
        });
        until(|| b.pool.metrics().in_flight == 0);
        let m = b.pool.metrics();
        assert_eq!((m.stale_completions, m.open_streams), (0, 0));
        assert!(m.totals.failed_blocks > 0);
        b.script.heal();
        // No pin was lost: every frame can be had at once.
        let pages: Vec<_> = (0..frames.min(200)).map(|i| b.pool.read_block(relations[0], i).unwrap()).collect();
        pages.iter().for_each(|page| check(page, 0));
    }
}

#[test]
fn threads_may_have_them() {
    fn send<T: Send>() {}
    fn share<T: Send + Sync>() {}
    share::<heapscan::pool::BufferPool>();
    share::<heapscan::pool::PinnedPage>();
    send::<heapscan::stream::ReadStream>();
}

fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never happened");
        std::thread::sleep(Duration::from_micros(50));
    }
}
