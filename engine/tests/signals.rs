//! Signals, scans that stop consuming, scans that want little, and engines that do nothing.

mod method_support;

use heapscan::{MethodName, RowFormat};
use heapscan_fixtures::pgbench;
use method_support::*;
use nix::{
    sys::{
        resource::{UsageWho, getrusage},
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use std::{
    io::Read,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(5);

fn start(data_dir: &Path, method: MethodName, plan: Option<&str>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heapscan"));
    command.arg("scan").arg(data_dir).args(["pgbench_accounts", "--io-method", method.as_str()]);
    command.args(["--shared-buffers", "4MB", "--huge-pages", "off"]);
    if let Some(plan) = plan {
        command.args(["--io-fault", plan]);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program can be run")
}

/// Waits for the end; kills it and fails when that takes too long.
fn end(mut child: Child, what: &str) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        if began.elapsed() > LIMIT {
            child.kill().expect("kill");
            panic!("{what}: did not end within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
}

#[test]
fn a_hundred_signals_in_mid_scan_end_it() {
    let data_dir = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture").data_dir();
    let methods = methods();
    let plans = [None, Some("seed=1,delay=5ms,reorder"), Some("seed=2,short=0.3,eintr=0.2,eagain=0.2,delay=500us")];
    let mut random = Random(88_172_645_463_325_252);
    for i in 0..100 {
        let method = methods[i % methods.len()];
        let plan = plans[i / methods.len() % plans.len()];
        let what = format!("signal {i}, {method}, {plan:?}");
        let mut child = start(&data_dir, method, plan);
        let mut out = child.stdout.take().expect("piped");
        // It is in mid-scan once rows come. Nobody reads the rest, so it cannot be through: some reads are in flight
        // while it waits for the pipe.
        let mut some = vec![0; 1 + random.below(400_000) as usize];
        out.read_exact(&mut some).unwrap_or_else(|e| panic!("{what}: {e}"));
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        let signal = if i % 10 == 9 { Signal::SIGINT } else { Signal::SIGTERM };
        kill(pid(&child), signal).expect("kill");
        assert_eq!(end(child, &what).signal(), Some(signal as i32), "{what}");
    }
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let data_dir = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture").data_dir();
    for method in methods() {
        for plan in [None, Some("seed=1,delay=5ms,reorder")] {
            let mut child = start(&data_dir, method, plan);
            let mut out = child.stdout.take().expect("piped");
            out.read_exact(&mut [0; 1000]).expect("rows");
            drop(out);
            let what = format!("{method} {plan:?}");
            assert_eq!(end(child, &what).code(), Some(0), "{what}");
        }
    }
}

#[test]
fn a_scan_paused_for_good_does_not_stop_another_one() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    for method in methods() {
        // With room for all, the other one wants the very blocks that are in flight; with little, the frames too.
        for frames in [4096, 64] {
            let what = format!("{method}, {frames} frames");
            let mut options = options(method, frames);
            fault(&mut options, "seed=4,delay=3ms,reorder");
            let (engine, table) = accounts(snapshot.data_dir(), options);
            let mut paused = table.scan().columns(&["aid"]).start().expect("a scan");
            for _ in 0..40 {
                paused.next_page().expect("a page").expect("not the end");
            }
            let in_flight = engine.pool_metrics().in_flight;
            if method != MethodName::Sync && frames > 64 {
                assert!(in_flight > 0, "{what}: nothing in flight, nothing tested");
            }
            let (done, finished) = std::sync::mpsc::channel();
            let other = table.clone();
            let thread = std::thread::spawn(move || {
                let mut rows = 0;
                let mut scan = other.scan().columns(&["aid"]).start()?;
                while let Some(page) = scan.next_page()? {
                    rows += page.len();
                }
                let _ = done.send(());
                Ok::<_, heapscan::Error>(rows)
            });
            assert!(finished.recv_timeout(Duration::from_secs(20)).is_ok() || thread.is_finished(), "{what}: waits");
            assert_eq!(thread.join().expect("no panic").expect("the other scan"), 100_000, "{what}");
            drop(paused);
        }
    }
}

#[test]
fn one_row_of_many_blocks_reads_little_and_what_is_in_the_pool_is_not_read() {
    let (_dir, made) = own_cluster(7);
    for method in methods() {
        let options = options(method, 4096);
        let combine = options.io_combine_limit;
        let (engine, table) = accounts(&made.data_dir, options);
        assert!(table.blocks() > 10_000);
        let before = engine.io_stats();
        let mut row = Vec::new();
        let stats = table.scan().limit(1).write_rows(RowFormat::Text, &mut row).expect("a row");
        assert_eq!((stats.rows, row.iter().filter(|&&c| c == b'\n').count()), (1, 1));
        let asked = stats.io.blocks_read * 8192;
        assert!(asked <= 2 * combine, "{method}: {asked} bytes for one row");
        while engine.pool_metrics().in_flight > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(engine.io_stats().bytes - before.bytes <= 2 * combine, "{method}");

        let part = || {
            let mut scan = table.scan().columns(&["aid"]).blocks(0..1000).start().expect("a scan");
            let mut rows = 0;
            while let Some(page) = scan.next_page().expect("a page") {
                rows += page.len();
            }
            rows
        };
        let rows = part();
        let before = engine.io_stats();
        assert_eq!(part(), rows);
        let after = engine.io_stats();
        assert_eq!((after.submits, after.waits, after.requests), (before.submits, before.waits, before.requests));
    }
}

/// Set for the child of the test below: which method.
const IDLE: &str = "HEAPSCAN_TEST_IDLE";

#[test]
#[ignore = "a process of its own, run by an_idle_engine_uses_no_cpu_and_sits_in_no_ring"]
fn idle_child() {
    let wanted = std::env::var(IDLE).expect("run by the test below");
    let method = MethodName::ALL.into_iter().find(|m| m.as_str() == wanted).expect("a method");
    let data_dir = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture").data_dir();
    let (engine, table) = accounts(data_dir, options(method, 4096));
    let rows = table.scan().write_rows(RowFormat::Text, &mut std::io::sink()).expect("rows").rows;
    assert_eq!(rows, 100_000);
    // A scan that is paused is idle too, once its reads have ended.
    let mut paused = table.scan().blocks(500..1500).start().expect("a scan");
    paused.next_page().expect("a page");
    std::thread::sleep(Duration::from_millis(300));
    let usage = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).expect("usage");
        let micros = |t: nix::sys::time::TimeVal| t.tv_sec() * 1_000_000 + t.tv_usec();
        micros(usage.user_time()) + micros(usage.system_time())
    };
    let before = usage();
    std::thread::sleep(Duration::from_secs(3));
    let used = usage() - before;
    for task in std::fs::read_dir("/proc/self/task").expect("threads").flatten() {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (name, call) = (read("comm"), read("syscall"));
        // The kernel's own workers show the call of the thread that they were made by; they are in none.
        let in_ring = call.starts_with("426 ") && !name.starts_with("iou-");
        assert!(!in_ring, "{method}: {name} sits in io_uring_enter: {call}");
    }
    assert!(used < 10_000, "{method}: {used} us of CPU in 3 idle seconds");
    drop(paused);
    drop(engine);
}

#[test]
fn an_idle_engine_uses_no_cpu_and_sits_in_no_ring() {
    let children: Vec<_> = methods()
        .into_iter()
        .map(|method| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "idle_child", "--ignored", "--nocapture"]).env(IDLE, method.as_str());
            (method, command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run"))
        })
        .collect();
    for (method, child) in children {
        let output = child.wait_with_output().expect("wait");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{method}: {text}");
    }
}
