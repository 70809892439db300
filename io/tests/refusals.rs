//! io_uring refused in all the ways in which it is refused in real life. Each case runs in a child process (this
//! program again, with one test and an environment variable), because a seccomp filter cannot be taken off.

mod common;

use common::{Board, config, pattern_file, read_and_check, skip};
use heapscan_io::{IoConfig, IoError, MethodChoice, MethodName, Opened, open, probe_all_with};
use std::{process::Command, sync::Arc};

const CASE: &str = "HEAPSCAN_TEST_CASE";

/// Runs the test `name` of this program again, as `case`, and returns what it printed.
fn again(name: &str, case: &str) -> String {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .output()
        .expect("run again");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "case {case}: {text}");
    text
}

/// Has the kernel answer `errno` to `io_uring_setup` and, if `all`, to the two other calls.
fn refuse_io_uring(errno: u16, all: bool) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump =
        |k: u32, jt: u8| libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt, jf: 0, k };
    let numbers = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let numbers = if all { &numbers[..] } else { &numbers[..1] };
    let count = numbers.len();
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    program.extend(numbers.iter().enumerate().map(|(n, &number)| jump(number as u32, (count - n) as u8)));
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | u32::from(errno)));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: plain integers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program lives until the call returns; the kernel copies it. TSYNC is not needed: threads that are
    // started from here on inherit the filter.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter, 0, 0) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn named(method: MethodName) -> Result<Opened, IoError> {
    open(&config(method, ""), Board::new())
}

#[test]
fn a_filter_makes_io_uring_unavailable_and_auto_go_on() {
    let errnos = [libc::EPERM, libc::ENOSYS, libc::EOPNOTSUPP, libc::EINVAL, libc::EACCES, 133];
    let Ok(case) = std::env::var(CASE) else {
        for errno in errnos {
            let text = again("a_filter_makes_io_uring_unavailable_and_auto_go_on", &errno.to_string());
            eprintln!("{text}");
        }
        return;
    };
    refuse_io_uring(case.parse().expect("an errno"), true);
    match named(MethodName::IoUring) {
        Err(error @ IoError::Unavailable { .. }) => {
            let text = error.to_string();
            assert!(!text.contains('\n') && text.contains(&format!("os error {case}")), "{text}");
            assert!(text.contains("io_uring") && text.contains("use io_method worker"), "{text}");
            if case == libc::EPERM.to_string() {
                assert!(
                    text.contains("seccomp") && text.contains("io_uring_setup, io_uring_enter and io_uring_register")
                );
            }
            eprintln!("{text}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("opened under a filter"),
    }
    let board = Board::new();
    let auto = IoConfig { method: MethodChoice::Auto, ..config(MethodName::Sync, "") };
    let opened = open(&auto, Arc::clone(&board) as _).expect("auto goes on");
    assert_eq!((opened.report.requested.as_str(), opened.report.used.as_str()), ("auto", "worker"));
    assert!(opened.report.why.as_deref().is_some_and(|why| why.contains("io_uring")), "{:?}", opened.report);
    let file = pattern_file(100_000);
    read_and_check(&*opened.method, &board, &file.open(), 0, 100_000, 8192, 100_000);
    let status = probe_all_with(&auto);
    assert_eq!(status.iter().map(|s| s.usable).collect::<Vec<_>>()[..3], [true, true, false], "{status:?}");
}

#[test]
fn rings_that_are_open_survive_a_filter() {
    // Set-up only: open rings are not touched. All three calls: reads go on in the calling thread.
    let Ok(case) = std::env::var(CASE) else {
        for case in ["setup", "all", "all-direct"] {
            eprintln!("{}", again("rings_that_are_open_survive_a_filter", case));
        }
        return;
    };
    let board = Board::new();
    let opened = match open(&config(MethodName::IoUring, ""), Arc::clone(&board) as _) {
        Ok(opened) => opened,
        Err(error) => return skip("rings_that_are_open", "io_uring", &error.to_string()),
    };
    let file = pattern_file(1 << 20);
    let data = file.open_with(heapscan_io::OpenFileOptions { direct: case.ends_with("direct"), ..Default::default() });
    read_and_check(&*opened.method, &board, &data, 0, 8192, 8192, file.size);
    refuse_io_uring(libc::EPERM as u16, case != "setup");
    let mut batch: Vec<_> = (0..60).map(|n| board.request(&data, n * 8192, 8192, 8192)).collect();
    opened.method.submit(0, &mut batch);
    common::wait_for(&*opened.method, 0, &board, 61);
    (1..61).for_each(|tag| board.check(tag, (tag - 1) * 8192, 8192, file.size));
    assert_eq!(opened.method.stats().broken_lanes, u64::from(case != "setup"));
    assert_eq!(opened.method.stats().blocking_reads > 0, case != "setup");
    drop(opened);
    assert_eq!(Arc::strong_count(&board), 1);
}

#[test]
fn the_sysctl_is_named_when_it_is_the_cause() {
    let Ok(case) = std::env::var(CASE) else {
        for case in ["0", "1", "2", "absent"] {
            eprintln!("{}", again("the_sysctl_is_named_when_it_is_the_cause", case));
        }
        return;
    };
    let root = tempfile::tempdir().expect("a directory");
    if case != "absent" {
        std::fs::create_dir_all(root.path().join("sys/kernel")).expect("create");
        std::fs::write(root.path().join("sys/kernel/io_uring_disabled"), format!("{case}\n")).expect("write");
    }
    refuse_io_uring(libc::EPERM as u16, true);
    let config = IoConfig { proc_root: root.path().to_owned(), ..config(MethodName::IoUring, "") };
    let text = open(&config, Board::new()).err().expect("unavailable").to_string();
    match case.as_str() {
        "1" => assert!(text.contains("kernel.io_uring_disabled is 1") && text.contains("io_uring_group"), "{text}"),
        "2" => assert!(text.contains("kernel.io_uring_disabled is 2"), "{text}"),
        _ => assert!(text.contains("seccomp") && !text.contains("io_uring_disabled"), "{text}"),
    }
}

#[test]
fn a_small_limit_on_locked_memory_gives_small_rings_or_says_so() {
    let name = "a_small_limit_on_locked_memory_gives_small_rings_or_says_so";
    let Ok(case) = std::env::var(CASE) else {
        if !nix::unistd::geteuid().is_root() {
            return skip(name, "root", "only root can become another user");
        }
        for case in ["65536", "0"] {
            eprintln!("{}", again(name, case));
        }
        return;
    };
    use nix::sys::resource::{Resource, setrlimit};
    let file = pattern_file(1 << 20);
    let data = file.open();
    let limit = case.parse().expect("a limit");
    setrlimit(Resource::RLIMIT_MEMLOCK, limit, limit).expect("setrlimit");
    if let Err(error) = nix::unistd::setuid(nix::unistd::Uid::from_raw(65534)) {
        return skip(name, "root", &error.to_string());
    }
    let big = IoConfig { io_max_concurrency: 1024, lanes: Some(4), ..config(MethodName::IoUring, "") };
    let board = Board::new();
    match open(&big, Arc::clone(&board) as _) {
        Ok(opened) => {
            eprintln!("{:?}", opened.report);
            let mut batch: Vec<_> = (0..128).map(|n| board.request(&data, n * 8192, 8192, 8192)).collect();
            opened.method.submit(0, &mut batch);
            common::wait_for(&*opened.method, 0, &board, 128);
            let shrunk = opened
                .report
                .details
                .iter()
                .any(|(key, _)| key == "io_max_concurrency_clamped" || key == "lanes_refused");
            let accounted = limit != 0 || shrunk;
            assert!(accounted || opened.method.lanes() == 4, "{:?}", opened.report);
        }
        Err(error @ IoError::Unavailable { .. }) => {
            let text = error.to_string();
            assert!(text.contains("RLIMIT_MEMLOCK") && text.contains(&case), "{text}");
        }
        Err(error) => panic!("{error}"),
    }
    // `auto` comes to some method under every limit.
    let auto = IoConfig { method: MethodChoice::Auto, lanes: Some(1), ..config(MethodName::Sync, "") };
    let opened = open(&auto, Board::new()).expect("auto always opens");
    eprintln!("auto: {:?}", opened.report);
}

#[test]
fn a_polling_kernel_thread_that_may_not_be_woken_is_named() {
    let name = "a_polling_kernel_thread_that_may_not_be_woken_is_named";
    if std::env::var(CASE).is_err() {
        eprintln!("{}", again(name, "sqpoll"));
        return;
    }
    let board = Board::new();
    let settings = IoConfig {
        sqpoll: true,
        lanes: Some(1),
        drain_timeout: std::time::Duration::from_millis(200),
        ..config(MethodName::IoUring, "")
    };
    let opened = match open(&settings, Arc::clone(&board) as _) {
        Ok(opened) => opened,
        Err(error) => return skip(name, "io_uring", &error.to_string()),
    };
    if !opened.report.details.iter().any(|(key, value)| key == "sqpoll" && value == "used") {
        return skip(name, "sqpoll", &format!("{:?}", opened.report));
    }
    let file = pattern_file(65_536);
    let data = file.open();
    read_and_check(&*opened.method, &board, &data, 0, 8192, 8192, file.size);
    assert_eq!(opened.method.lost(0), None);
    // It falls asleep after 100 ms without work.
    std::thread::sleep(std::time::Duration::from_millis(400));
    refuse_io_uring(libc::EPERM as u16, true);
    let began = std::time::Instant::now();
    opened.method.submit(0, &mut vec![board.request(&data, 8192, 8192, 8192)]);
    assert!(opened.method.lost(0).is_some_and(|why| why.contains("sleeps")), "{:?}", opened.method.stats());
    // What comes later is read by the thread that asks.
    read_and_check(&*opened.method, &board, &data, 16_384, 8192, 8192, file.size);
    drop(opened);
    assert!(began.elapsed() < std::time::Duration::from_secs(8), "{:?}", began.elapsed());
    assert_eq!(board.completed(), 2);
    assert!(Arc::strong_count(&board) > 1, "what the kernel may still write to is leaked");
}
