//! What only rings have: registered memory and files, kernel threads, submitting threads that end, forks.

mod common;

use common::{Board, LONG, config, pattern_file, skip, wait_for};
use heapscan_io::{
    AsyncRule, IoConfig, IoMethod, MemoryRegistration, MethodName, OpenFileOptions, Opened, Request, Segment,
    WaitOutcome, open,
};
use std::sync::Arc;

fn rings(name: &str, change: impl Fn(&mut IoConfig)) -> Option<(Opened, Arc<Board>)> {
    let board = Board::new();
    let mut config = config(MethodName::IoUring, "");
    change(&mut config);
    match open(&config, Arc::clone(&board) as _) {
        Ok(opened) => Some((opened, board)),
        Err(error) => {
            skip(name, "io_uring", &error.to_string());
            None
        }
    }
}

fn detail<'a>(opened: &'a Opened, key: &str) -> &'a str {
    opened.report.details.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value)
}

fn scan(method: &dyn IoMethod, board: &Board, direct: bool) {
    let file = pattern_file(1 << 20);
    let data = file.open_with(OpenFileOptions { direct, ..Default::default() });
    let before = board.completed();
    let requests: Vec<_> = (0..128).map(|n| board.request(&data, n * 8192, 8192, 8192)).collect();
    let first = requests[0].tag();
    method.submit(0, &mut { requests });
    wait_for(method, 0, board, before + 128);
    (0..128).for_each(|n| board.check(first + n, n * 8192, 8192, file.size));
}

#[test]
fn every_setting_reads_the_same() {
    type Change = fn(&mut IoConfig);
    let settings: [(&str, Change); 7] = [
        ("sqpoll", |c| c.sqpoll = true),
        ("iopoll", |c| c.iopoll = true),
        ("registered files", |c| c.registered_files = true),
        ("async never", |c| c.async_rule = AsyncRule::Never),
        ("async", |c| c.async_rule = AsyncRule::Always),
        ("async threshold", |c| c.async_rule = AsyncRule::Threshold { in_flight: 4, bytes: 32_768 }),
        ("depth 1", |c| c.io_max_concurrency = 1),
    ];
    for (name, change) in settings {
        for direct in [false, true] {
            let Some((opened, board)) = rings(name, change) else { return };
            scan(&*opened.method, &board, direct);
            assert_eq!((opened.method.stats().errors, opened.method.stats().stale_completions), (0, 0), "{name}");
            assert!(
                opened.method.stats().in_flight_max <= detail(&opened, "io_max_concurrency").parse().expect("a number")
            );
        }
    }
}

#[test]
fn a_batch_is_one_system_call() {
    let Some((opened, board)) = rings("batch", |c| c.io_max_concurrency = 64) else { return };
    let file = pattern_file(1 << 20);
    let data = file.open();
    let mut batch: Vec<_> = (0..48).map(|n| board.request(&data, n * 8192, 8192, 8192)).collect();
    opened.method.submit(0, &mut batch);
    assert_eq!(opened.method.stats().submits, 1);
    while board.completed() < 48 {
        opened.method.reap(0);
    }
    assert_eq!((opened.method.stats().submits, opened.method.stats().waits), (1, 0));
}

#[test]
fn registered_files_are_more_than_places_in_the_table() {
    let Some((opened, board)) = rings("registered files", |c| c.registered_files = true) else { return };
    assert!(detail(&opened, "files").starts_with("registered"), "{:?}", opened.report);
    let files: Vec<_> = (0..300).map(|n| pattern_file(100 + n)).collect();
    for kept in [true, false] {
        let mut open_files = Vec::new();
        for file in &files {
            let data = file.open();
            common::read_and_check(&*opened.method, &board, &data, 0, 8192, 8192, file.size);
            if kept {
                open_files.push(data);
            }
        }
    }
}

#[test]
fn registered_memory_is_read_into() {
    let Some((opened, board)) = rings("registered memory", |_| {}) else { return };
    let size = 4 << 20;
    // Leaked: it must outlive the method, and the requests.
    let memory =
        Box::leak(Box::new(heapscan_placement::memory::Mapping::new(size, Default::default()).expect("memory")));
    memory.populate(0..size).expect("populate");
    // SAFETY: leaked, so it stays mapped.
    let registered = unsafe { opened.method.register_memory(&[Segment { ptr: memory.as_ptr(), len: size }]) };
    if let MemoryRegistration::Plain(why) = &registered {
        skip("registered memory", "registered_buffers", why);
    }
    let file = pattern_file(1 << 20);
    for direct in [false, true] {
        let data = file.open_with(OpenFileOptions { direct, ..Default::default() });
        let before = board.completed();
        let mut batch: Vec<_> = (0..16usize)
            .map(|n| {
                // SAFETY: within the memory; segments do not overlap, and nobody else uses them.
                let segment = Segment { ptr: unsafe { memory.as_ptr().add(n * 65_536) }, len: 65_536 };
                // SAFETY: as above; leaked.
                unsafe {
                    Request::new(
                        Arc::clone(&data),
                        n as u64 * 65_536,
                        vec![segment],
                        1000 * u64::from(direct) + n as u64,
                    )
                }
            })
            .collect();
        opened.method.submit(0, &mut batch);
        wait_for(&*opened.method, 0, &board, before + 16);
        // SAFETY: all reads ended, and there are 1 MiB of initialised bytes.
        let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr().as_ptr(), 1 << 20) };
        assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == common::pattern(at as u64)));
        assert_eq!(opened.method.stats().errors, 0);
    }
}

#[test]
fn reads_survive_the_thread_that_submitted_them() {
    // The kernel cancels what a thread handed to its workers when the thread ends.
    let Some((opened, board)) = rings("thread end", |c| c.async_rule = AsyncRule::Always) else { return };
    let file = pattern_file(1 << 20);
    for round in 0..20u64 {
        let data = file.open_with(OpenFileOptions { direct: round % 2 == 0, ..Default::default() });
        let requests: Vec<_> = (0..16).map(|n| board.request(&data, n * 65_536, 65_536, 8192)).collect();
        let method = &opened.method;
        std::thread::scope(|scope| {
            scope.spawn(move || method.submit(0, &mut { requests }));
        });
        wait_for(&**method, 0, &board, 16 * (round as usize + 1));
        (0..16).for_each(|n| board.check(round * 16 + n, n * 65_536, 65_536, file.size));
    }
}

#[test]
fn idle_rings_are_not_entered() {
    let Some((opened, _board)) = rings("idle", |_| {}) else { return };
    assert_eq!(opened.method.reap(0), 0);
    let method = &opened.method;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| method.wait(0, &|| false, std::time::Duration::from_millis(300)));
        std::thread::sleep(std::time::Duration::from_millis(100));
        for task in std::fs::read_dir("/proc/self/task").expect("tasks").flatten() {
            let call = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
            let number = call.split(' ').next().unwrap_or_default().to_owned();
            let ours = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default().starts_with("idle_rings");
            assert!(
                !ours || number != libc::SYS_io_uring_enter.to_string(),
                "a waiter with nothing in flight entered the ring"
            );
        }
        assert_eq!(waiter.join().expect("the waiter"), WaitOutcome::TimedOut);
    });
}

#[test]
fn a_forked_child_leaves_the_rings_alone() {
    for method in [MethodName::IoUring, MethodName::Worker] {
        let board = Board::new();
        let opened = match open(&config(method, ""), Arc::clone(&board) as _) {
            Ok(opened) => opened,
            Err(error) => return skip("fork", method.as_str(), &error.to_string()),
        };
        let file = pattern_file(65_536);
        let data = file.open();
        let request = board.request(&data, 0, 65_536, 8192);
        let mine = board.request(&data, 8192, 8192, 8192);
        // SAFETY: the child only reads a file into memory that exists, and leaves by _exit. Other tests' threads do not
        // exist in it; locks that they may hold are not those of this method.
        match unsafe { libc::fork() } {
            0 => {
                opened.method.submit(0, &mut vec![request]);
                let outcome = opened.method.wait(0, &|| board.completed() == 1, LONG);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(outcome != WaitOutcome::Done)) };
            }
            child => {
                assert!(child > 0);
                let mut status = 0;
                // SAFETY: our child, our integer.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "{method}: the child read");
                assert_eq!(board.completed(), 0);
                let tag = mine.tag();
                opened.method.submit(0, &mut vec![mine]);
                wait_for(&*opened.method, 0, &board, 1);
                board.check(tag, 8192, 8192, 65_536);
                assert_eq!(opened.method.stats().stale_completions, 0);
            }
        }
    }
}
