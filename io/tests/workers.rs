//! The pool of threads of `worker`: it grows under a backlog, and a full queue is not waited for.

mod common;

use common::{Board, config, pattern_file, wait_for};
use heapscan_io::{IoConfig, MethodName, open};
use std::sync::{Arc, Mutex};

/// Tests here count threads of this process.
static ALONE: Mutex<()> = Mutex::new(());

fn workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.starts_with("heapscan-io-")).count()
}

/// Waits until the number of workers is in `range`: a thread takes its name only when it first runs.
fn assert_workers(range: std::ops::RangeInclusive<usize>) {
    let end = std::time::Instant::now() + common::LONG;
    while !range.contains(&workers()) {
        assert!(std::time::Instant::now() < end, "{} workers, not {range:?}", workers());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn workers_are_added_under_a_backlog_and_end_with_the_method() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let board = Board::new();
    let settings = IoConfig {
        io_workers: None,
        io_min_workers: Some(1),
        io_max_workers: Some(4),
        io_max_concurrency: 64,
        worker_inline: false,
        ..config(MethodName::Worker, "")
    };
    let opened = open(&settings, Arc::clone(&board) as _).expect("threads");
    let file = pattern_file(1 << 20);
    let data = file.open();
    let mut batch: Vec<_> = (0..100).map(|_| board.request(&data, 0, 1 << 20, 8192)).collect();
    opened.method.submit(0, &mut batch);
    assert_workers(2..=4);
    wait_for(&*opened.method, 0, &board, 100);
    assert!(workers() <= 4, "never more than io_max_workers");
    drop(opened);
    assert_workers(0..=0);
    (0..100).for_each(|tag| board.check(tag, 0, 1 << 20, file.size));
}

#[test]
fn a_full_queue_runs_in_the_submitting_thread() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let board = Board::new();
    let settings = IoConfig {
        io_workers: Some(1),
        io_max_concurrency: 1,
        lanes: Some(1),
        worker_inline: false,
        ..config(MethodName::Worker, "")
    };
    let opened = open(&settings, Arc::clone(&board) as _).expect("threads");
    assert_workers(1..=1);
    let file = pattern_file(1 << 20);
    let data = file.open();
    let mut batch: Vec<_> = (0..50).map(|_| board.request(&data, 0, 1 << 20, 8192)).collect();
    opened.method.submit(0, &mut batch);
    wait_for(&*opened.method, 0, &board, 50);
    let stats = opened.method.stats();
    assert!(stats.inline_full > 0 && stats.requests == 50, "{stats:?}");
    (0..50).for_each(|tag| board.check(tag, 0, 1 << 20, file.size));
}

#[test]
fn what_the_page_cache_has_is_read_by_the_submitting_thread() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let file = pattern_file(1 << 20);
    for (inline, direct, expected) in [(true, false, 127), (false, false, 0), (true, true, 0)] {
        let board = Board::new();
        let settings = IoConfig { worker_inline: inline, ..config(MethodName::Worker, "") };
        let opened = open(&settings, Arc::clone(&board) as _).expect("threads");
        let data = file.open_with(heapscan_io::OpenFileOptions { direct, ..Default::default() });
        // Brings it into the page cache.
        std::fs::read(&file.path).expect("read");
        // The last one reaches over the end of the file: that is found out by a thread that may block.
        let mut batch: Vec<_> = (1..=128).map(|n| board.request(&data, n * 8192 - 4096, 8192, 8192)).collect();
        opened.method.submit(0, &mut batch);
        wait_for(&*opened.method, 0, &board, 128);
        let stats = opened.method.stats();
        if direct && !data.is_direct() {
            return common::skip("inline", "direct", &format!("{:?}", data.note()));
        }
        assert_eq!(stats.inline_cached, expected, "inline {inline}, direct {direct}: {stats:?}");
        assert_eq!((stats.requests, stats.operations), (128, 129), "{stats:?}");
        (0..128).for_each(|tag| board.check(tag, (tag + 1) * 8192 - 4096, 8192, file.size));
    }
}

/// The CPUs of the threads whose names begin with `name`, sorted.
fn cpus_of(name: &str) -> Vec<String> {
    let line = |task: std::io::Result<std::fs::DirEntry>| {
        let folder = task.ok()?.path();
        let comm = std::fs::read_to_string(folder.join("comm")).ok()?;
        let status = std::fs::read_to_string(folder.join("status")).ok()?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned();
        comm.starts_with(name).then_some(cpus)
    };
    let mut cpus: Vec<_> = std::fs::read_dir("/proc/self/task").expect("tasks").filter_map(line).collect();
    cpus.sort();
    cpus
}

#[test]
fn lanes_work_on_the_cpus_of_their_partition() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let allowed = heapscan_placement::thread::allowed_cpus();
    let (first, last) = (allowed[0], *allowed.last().expect("at least one CPU"));
    let file = pattern_file(1 << 20);
    let data = file.open_with(heapscan_io::OpenFileOptions { direct: true, ..Default::default() });
    for method in MethodName::ALL {
        let board = Board::new();
        let settings = IoConfig {
            lanes: None,
            lane_cpus: vec![vec![first], vec![last]],
            io_workers: Some(4),
            ..config(method, "")
        };
        let opened = match open(&settings, Arc::clone(&board) as _) {
            Ok(opened) => opened,
            Err(error) => {
                common::skip("lanes and CPUs", method.as_str(), &error.to_string());
                continue;
            }
        };
        assert_eq!(opened.method.lanes(), 2, "{method}");
        for lane in 0..2 {
            let mut batch: Vec<_> = (0..64).map(|n| board.request(&data, n * 8192, 8192, 8192)).collect();
            opened.method.submit(lane, &mut batch);
            wait_for(&*opened.method, lane, &board, 64 * (lane + 1));
        }
        (0..128).for_each(|tag| board.check(tag, tag % 64 * 8192, 8192, file.size));
        let detail =
            |key: &str| opened.report.details.iter().find(|(name, _)| name == key).map(|(_, text)| text.as_str());
        let mut expected = vec![first.to_string(), last.to_string()];
        match method {
            MethodName::Worker => {
                let text = format!("2..2 on CPUs [[{first}], [{last}]]");
                assert_eq!(detail("io_workers_a_lane"), Some(text.as_str()));
                expected = vec![first.to_string(), first.to_string(), last.to_string(), last.to_string()];
                expected.sort();
                assert_eq!(cpus_of("heapscan-io-"), expected);
            }
            MethodName::IoUring => {
                for (key, cpu) in [("io_wq_workers", first), ("io_wq_workers_1", last)] {
                    assert!(detail(key).is_some_and(|text| text.contains(&format!("on CPUs [{cpu}]"))), "{key}");
                }
            }
            MethodName::TokioUring => {
                expected.sort();
                assert_eq!(cpus_of("heapscan-tokio-"), expected);
            }
            MethodName::Sync => {}
        }
    }
    // CPUs that do not exist: a warning, and reads all the same.
    let board = Board::new();
    let settings = IoConfig { lanes: None, lane_cpus: vec![vec![1 << 20]], ..config(MethodName::Worker, "") };
    let opened = open(&settings, Arc::clone(&board) as _).expect("opened");
    opened.method.submit(0, &mut vec![board.request(&data, 0, 8192, 8192)]);
    wait_for(&*opened.method, 0, &board, 1);
    let refused =
        open(&IoConfig { lane_cpus: vec![vec![0], vec![]], ..settings }, Board::new()).err().expect("refused");
    assert!(refused.to_string().contains("no CPU for lane 1"), "{refused}");
}
