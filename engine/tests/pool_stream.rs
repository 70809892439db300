//! What a stream reads, how it combines and looks ahead.

mod pool_support;

use heapscan::{ErrorKind, pool::Strategy};
use pool_support::*;
use std::sync::atomic::Ordering;

fn sizes(asked: &[Asked]) -> Vec<u32> {
    asked.iter().map(|a| a.1).collect()
}

#[test]
fn reads_grow_to_the_combine_limit_and_blocks_come_in_order() {
    for when in [When::Inline, When::AtOnce, When::OnWait, When::Threads] {
        let b = bench(512, when);
        let rel = b.relation(1, 200);
        let mut stream = b.stream(rel, 0..200);
        assert_eq!(drain(&mut stream, 1).unwrap(), (0..200).collect::<Vec<_>>(), "{when:?}");
        let asked = b.script.asked();
        assert_eq!(&sizes(&asked)[..5], [1, 2, 4, 8, 16], "{when:?}");
        assert!(asked.iter().all(|&(_, blocks, segments)| blocks <= 16 && segments == 1), "{when:?}: {asked:?}");
        let m = stream.metrics();
        assert_eq!((m.hits, m.blocks_read, m.bytes_read, m.wasted), (0, 200, 200 * 8192, 0), "{when:?}");
        assert_eq!((m.reads, m.retries), (asked.len() as u64, asked.len() as u64));
        assert!(m.mean_read_bytes(8192) > 8.0 * 8192.0);
        drop(stream);
        assert_eq!(b.pool.metrics().totals, { m }, "{when:?}");
        assert_eq!(b.pool.metrics().open_streams, 0);
    }
}

#[test]
fn a_full_stream_begins_with_full_reads() {
    let b = bench(512, When::OnWait);
    let rel = b.relation(1, 64);
    let mut options = b.options();
    options.full = true;
    drain(&mut b.stream_with(rel, 0..64, options), 1).unwrap();
    assert_eq!(sizes(&b.script.asked()), [16; 4]);
}

#[test]
fn an_all_hit_scan_makes_no_call() {
    let b = bench(512, When::OnWait);
    let rel = b.relation(1, 100);
    drain(&mut b.stream(rel, 0..100), 1).unwrap();
    let (submits, waits) = (b.script.submits.load(Ordering::Relaxed), b.script.waits.load(Ordering::Relaxed));
    let mut stream = b.stream(rel, 0..100);
    drain(&mut stream, 1).unwrap();
    let m = stream.metrics();
    assert_eq!((m.hits, m.reads, m.submits, m.waits), (100, 0, 0, 0));
    assert_eq!(b.script.submits.load(Ordering::Relaxed), submits);
    assert_eq!(b.script.waits.load(Ordering::Relaxed), waits);
}

#[test]
fn look_ahead_deepens_only_when_waits_block() {
    for (when, deep) in [(When::OnWait, true), (When::AtOnce, false), (When::Inline, false)] {
        let b = bench(1024, when);
        let rel = b.relation(1, 800);
        let mut stream = b.stream(rel, 0..800);
        drain(&mut stream, 1).unwrap();
        let m = stream.metrics();
        assert_eq!(m.max_in_flight > 4, deep, "{when:?}: {m:?}");
        assert!(m.max_in_flight <= u64::from(heapscan::pool::DEFAULT_IO_CONCURRENCY), "{when:?}: {m:?}");
        assert_eq!(m.waits > 0, deep, "{when:?}: {m:?}");
        if deep {
            assert!(m.submits <= m.reads, "{m:?}");
        }
    }
}

#[test]
fn several_reads_go_in_one_submit() {
    let b = bench(1024, When::OnWait);
    let rel = b.relation(1, 800);
    let mut options = b.options();
    options.io_combine_limit = 1;
    let mut stream = b.stream_with(rel, (0..400).map(|i| i * 2), options);
    drain(&mut stream, 1).unwrap();
    let m = stream.metrics();
    assert_eq!(m.reads, 400);
    assert!(m.submits * 3 < m.reads, "{m:?}");
    assert_eq!(m.max_in_flight, u64::from(heapscan::pool::DEFAULT_IO_CONCURRENCY));
}

#[test]
fn without_concurrency_reads_are_combined_but_not_made_ahead() {
    let b = bench(512, When::OnWait);
    let rel = b.relation(1, 100);
    let mut options = b.options();
    options.effective_io_concurrency = 0;
    let mut stream = b.stream_with(rel, 0..100, options);
    drain(&mut stream, 1).unwrap();
    assert_eq!(stream.metrics().max_in_flight, 1);
    assert_eq!(&sizes(&b.script.asked())[..5], [1, 2, 4, 8, 16]);
    // Random blocks, one read at a time, although they could be many.
    let mut stream = b.stream_with(rel, (0..100).rev(), options);
    drain(&mut stream, 1).unwrap();
    assert_eq!(stream.metrics().hits, 100);
}

#[test]
fn hits_cut_a_read_wherever_they_lie() {
    for (cached, expected) in [
        (vec![], vec![(0, 8, 1)]),
        (vec![0], vec![(1, 7, 1)]),
        (vec![7], vec![(0, 7, 1)]),
        (vec![3], vec![(0, 3, 1), (4, 4, 1)]),
        (vec![2, 3, 6], vec![(0, 2, 1), (4, 2, 1), (7, 1, 1)]),
    ] {
        let b = bench(64, When::OnWait);
        let rel = b.relation(1, 8);
        for &block in &cached {
            check(&b.pool.read_block(rel, block).unwrap(), 1);
        }
        b.script.asked();
        let mut options = b.options();
        options.full = true;
        let mut stream = b.stream_with(rel, 0..8, options);
        assert_eq!(drain(&mut stream, 1).unwrap(), (0..8).collect::<Vec<_>>());
        let mut asked = b.script.asked();
        asked.sort_unstable();
        assert_eq!(asked, expected, "cached {cached:?}");
        assert_eq!(stream.metrics().hits, cached.len() as u64);
    }
}

#[test]
fn reads_do_not_cross_segments_or_the_combine_limit() {
    let b = bench(256, When::OnWait);
    let rel = b.relation_in(1, 50, 20);
    let mut options = b.options();
    options.full = true;
    let mut stream = b.stream_with(rel, 0..50, options);
    assert_eq!(drain(&mut stream, 1).unwrap().len(), 50);
    // Offsets are those within the segments.
    let asked: Vec<_> = b.script.asked().into_iter().map(|a| (a.0, a.1)).collect();
    assert_eq!(asked, [(0, 16), (16, 4), (0, 16), (16, 4), (0, 10)]);
}

#[test]
fn any_order_and_repetitions_work() {
    for when in [When::Inline, When::AtOnce, When::OnWait, When::Threads] {
        let b = bench(64, when);
        let rel = b.relation(1, 40);
        for list in
            [vec![5, 5, 5], vec![9, 8, 7, 7, 9, 9, 30, 31, 32, 0], vec![], (0..40).rev().collect(), vec![39; 70]]
        {
            let mut stream = b.stream(rel, list.clone());
            assert_eq!(drain(&mut stream, 1).unwrap(), list, "{when:?}");
            assert!(stream.next_page().is_none());
        }
    }
}

#[test]
fn a_block_repeated_while_its_read_is_in_flight_is_read_once() {
    let b = bench(64, When::OnWait);
    let rel = b.relation(1, 4);
    let mut options = b.options();
    options.full = true;
    let mut stream = b.stream_with(rel, [2, 2, 2, 1, 2], options);
    assert_eq!(drain(&mut stream, 1).unwrap(), [2, 2, 2, 1, 2]);
    let m = stream.metrics();
    assert_eq!((m.blocks_read, m.hits + m.joins), (2, 3));
}

#[test]
fn an_early_stop_wastes_little_and_counts_it() {
    let b = bench(512, When::OnWait);
    let rel = b.relation(1, 400);
    let mut stream = b.stream(rel, 0..400);
    stream.next_page().unwrap().unwrap();
    assert_eq!(stream.metrics().blocks_read, 1);
    drop(stream);
    let mut stream = b.stream(rel, 100..400);
    for _ in 0..40 {
        stream.next_page().unwrap().unwrap();
    }
    let read = stream.metrics().blocks_read;
    drop(stream);
    let totals = b.pool.metrics().totals;
    assert_eq!(totals.wasted, read - 40);
    // One row wanted of a scan that reads inline: never more than one read.
    let b = bench(512, When::Inline);
    let rel = b.relation(1, 400);
    for _ in 0..2 {
        b.stream(rel, 0..400).next_page().unwrap().unwrap();
    }
    assert!(b.pool.metrics().totals.blocks_read <= 2 * 16);
}

#[test]
fn blocks_that_do_not_exist_give_an_error_in_their_turn() {
    let b = bench(64, When::OnWait);
    let rel = b.relation(1, 10);
    let mut options = b.options();
    options.full = true;
    let mut stream = b.stream_with(rel, [8, 9, 10, 3], options);
    assert_eq!(stream.next_page().unwrap().unwrap().block(), 8);
    assert_eq!(stream.next_page().unwrap().unwrap().block(), 9);
    let error = stream.next_page().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.block()), (ErrorKind::Usage, Some(10)));
    assert_eq!(stream.next_page().unwrap().unwrap().block(), 3);
    assert!(stream.next_page().is_none());
}

#[test]
fn all_pool_sizes() {
    for frames in [1, 2, 3, 5, 8, 16, 17] {
        for when in [When::Inline, When::AtOnce, When::OnWait, When::Threads] {
            let b = bench(frames, when);
            let rel = b.relation(1, 60);
            for strategy in [Strategy::Normal, b.pool.strategy_for(60), Strategy::BulkRead { ring_frames: 1 }] {
                let mut options = b.options();
                options.strategy = strategy;
                let blocks = drain(&mut b.stream_with(rel, 0..60, options), 1).unwrap();
                assert_eq!(blocks.len(), 60, "{frames} frames, {when:?}, {strategy:?}");
            }
        }
    }
}

#[test]
fn verified_is_remembered_until_the_page_leaves() {
    let b = bench(2, When::Inline);
    let rel = b.relation(1, 10);
    let page = b.pool.read_block(rel, 3).unwrap();
    assert!(!page.is_verified());
    page.mark_verified();
    drop(page);
    assert!(b.pool.read_block(rel, 3).unwrap().is_verified());
    drain(&mut b.stream(rel, 4..10), 1).unwrap();
    assert!(!b.pool.read_block(rel, 3).unwrap().is_verified());
}
