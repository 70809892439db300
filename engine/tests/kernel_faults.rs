//! Faults that come from the kernel: reads of a file system whose server (in this process, by FUSE) answers short, late,
//! out of order or with an errno, and a disk that ends while it is read. The same for each IO method.

mod fuse_support;
mod method_support;

use fuse_support::{Answer, Mounted, Plan, mount_over};
use heapscan::{ErrorKind, IoStats, MethodName, aggregate};
use heapscan_fixtures::generate::{self, Generated, PgbenchOptions};
use method_support::*;
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

const BLOCKS: u64 = 1640;

/// A cluster whose accounts are read through FUSE. Fields are dropped in their order: unmounted, then removed.
struct Served {
    mounted: Mounted,
    made: Generated,
    file: PathBuf,
    _dir: tempfile::TempDir,
}

fn served() -> Option<Served> {
    let (dir, made) = own_cluster(1);
    let file = accounts_file(&made);
    let name = file.file_name().and_then(|n| n.to_str()).expect("a name");
    match mount_over(file.parent().expect("a folder"), name) {
        Ok(mounted) => Some(Served { mounted, made, file, _dir: dir }),
        Err(error) => {
            skip("fuse", &format!("a FUSE file system cannot be mounted: {error}"));
            None
        }
    }
}

fn accounts_file(made: &Generated) -> PathBuf {
    let table = made.tables.iter().find(|t| t.name == "pgbench_accounts").expect("accounts");
    made.data_dir.join(&table.path)
}

/// Scans the accounts of a cluster; what they say was computed by PostgreSQL's own definition of them.
fn scan(data_dir: &Path, method: MethodName, direct: bool) -> (heapscan::Result<String>, IoStats) {
    let mut options = options(method, 256);
    options.io_direct = direct;
    let (engine, table) = accounts(data_dir, options);
    let calls = aggregate::parse("count(*),sum(aid),min(aid),max(aid),sum(octet_length(filler))").expect("aggregates");
    let before = engine.io_stats();
    let result = table
        .scan()
        .aggregate(&calls)
        .map(|found| found.values.iter().map(|value| value.as_deref().unwrap_or("null")).collect::<Vec<_>>().join(" "));
    let after = engine.io_stats();
    let by_ring = matches!(method, MethodName::IoUring | MethodName::TokioUring);
    assert_eq!(
        table.io_note().is_some_and(|note| note.contains("on FUSE")),
        by_ring,
        "{method}: {:?}",
        table.io_note()
    );
    let stats = IoStats {
        retries_short: after.retries_short - before.retries_short,
        retries_eintr: after.retries_eintr - before.retries_eintr,
        retries_eagain: after.retries_eagain - before.retries_eagain,
        blocking_reads: after.blocking_reads - before.blocking_reads,
        errors: after.errors - before.errors,
        ..after
    };
    assert_eq!(engine.pool().pinned_frames(), 0, "{method}: no pin is left");
    (result, stats)
}

const RIGHT: &str = "100000 5000050000 1 100000 8400000";

/// All of it came, whatever happened on the way.
fn assert_right(served: &Served, method: MethodName, direct: bool, what: &str) -> IoStats {
    let (result, stats) = scan(&served.made.data_dir, method, direct);
    assert_eq!(result.unwrap_or_else(|e| panic!("{method} direct={direct} {what}: {e}")), RIGHT, "{method} {what}");
    assert_eq!(stats.errors, 0, "{method} {what}");
    stats
}

/// All of them over one mount: clusters are cheap to read and dear to make.
#[test]
fn a_file_system_that_misbehaves() {
    let Some(served) = served() else { return };
    let cases: [fn(&Served, MethodName, bool); 7] = [
        short_reads_of_every_kind,
        interrupted_and_refused_for_a_moment,
        refused_for_ever_is_an_error_not_a_loop,
        a_bad_sector_once_and_for_good,
        a_slow_disk_that_answers_out_of_order,
        the_end_comes_early,
        dropped_while_the_disk_hangs,
    ];
    for method in methods() {
        for direct in [false, true] {
            cases.iter().for_each(|case| case(&served, method, direct));
        }
    }
}

fn short_reads_of_every_kind(served: &Served, method: MethodName, direct: bool) {
    // A byte at a time would be retried for ever; here only one read in seven is cut.
    type Cut = fn(usize) -> usize;
    let cuts: [(&str, Cut); 6] = [
        ("one byte", |_| 1),
        ("511", |_| 511),
        ("512", |_| 512),
        ("half", |size| size / 2),
        ("all but one", |size| size - 1),
        ("a block less", |size| size - 8192),
    ];
    for (what, cut) in cuts {
        let plan: Plan = Box::new(move |number, _, size| match number % 7 {
            3 if size > 8192 => Answer::Bytes(cut(size)),
            _ => Answer::Bytes(size),
        });
        served.mounted.set(plan);
        let stats = assert_right(served, method, direct, what);
        assert!(stats.retries_short > 0, "{method} {what}: {stats:?}");
    }
}

fn interrupted_and_refused_for_a_moment(served: &Served, method: MethodName, direct: bool) {
    for errno in [libc::EINTR, libc::EAGAIN] {
        served.mounted.set(Box::new(move |number, _, size| match number % 5 {
            2 => Answer::Errno(errno),
            _ => Answer::Bytes(size),
        }));
        let stats = assert_right(served, method, direct, "now and then");
        assert!(stats.retries_eintr + stats.retries_eagain + stats.blocking_reads > 0, "{method}: {stats:?}");
    }
}

fn refused_for_ever_is_an_error_not_a_loop(served: &Served, method: MethodName, direct: bool) {
    for errno in [libc::EINTR, libc::EAGAIN] {
        served.mounted.set(Box::new(move |_, offset, size| match offset >= 800 * 8192 {
            true => Answer::Errno(errno),
            false => Answer::Bytes(size),
        }));
        let (result, _) = scan(&served.made.data_dir, method, direct);
        let error = result.expect_err("it never works");
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Io, Some(errno)), "{method}: {error}");
        assert_eq!(error.path(), Some(served.file.as_path()), "{method}: {error}");
    }
    // A bound on what was asked for: many retries of each of the reads in flight, but no storm.
    assert!(served.mounted.reads() < 20_000, "{method}: {}", served.mounted.reads());
}

fn a_bad_sector_once_and_for_good(served: &Served, method: MethodName, direct: bool) {
    let at = 1000 * 8192;
    served.mounted.set(Box::new(move |_, offset, size| match (offset..offset + size as u64).contains(&at) {
        true => Answer::Errno(libc::EIO),
        false => Answer::Bytes(size),
    }));
    let (result, stats) = scan(&served.made.data_dir, method, direct);
    let error = result.expect_err("a bad sector");
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Io, Some(libc::EIO)), "{method}: {error}");
    assert_eq!(error.path(), Some(served.file.as_path()), "{method}: {error}");
    // The first block of the read that failed: one errno for all of them.
    let block = error.block().unwrap_or_else(|| panic!("{method}: names no block: {error}"));
    assert!((1000 - 128..=1000).contains(&block), "{method}: {error}");
    assert!(stats.errors > 0, "{method}: {stats:?}");
    // It failed once: the next scan has all.
    served.mounted.set(Box::new(|_, _, size| Answer::Bytes(size)));
    assert_right(served, method, direct, "after the fault");
}

fn a_slow_disk_that_answers_out_of_order(served: &Served, method: MethodName, direct: bool) {
    served
        .mounted
        .set(Box::new(|number, _, _| Answer::After(Duration::from_millis([7, 1, 4, 0][number as usize % 4]))));
    assert_right(served, method, direct, "delays");
    assert!(served.mounted.reads() >= BLOCKS / 16, "{method}: {} reads", served.mounted.reads());
    // Rings read such files by blocking calls (DataFile::is_unfit_for_rings).
    let most = served.mounted.most_at_once();
    assert_eq!(most > 1, method == MethodName::Worker, "{method}: {most} reads at once");
}

fn the_end_comes_early(served: &Served, method: MethodName, direct: bool) {
    // The kernel was told of 1640 blocks; reads find less (as over a network file system where somebody truncated).
    served.mounted.set(Box::new(|_, offset, size| {
        Answer::Bytes(
            usize::try_from((1200 * 8192 + 100u64).saturating_sub(offset)).map_or(size, |left| left.min(size)),
        )
    }));
    let (result, _) = scan(&served.made.data_dir, method, direct);
    let error = result.expect_err("blocks are gone");
    assert_eq!((error.kind(), error.block()), (ErrorKind::Io, Some(1200)), "{method}: {error}");
    assert!(error.to_string().contains("vanished"), "{method}: {error}");
}

fn dropped_while_the_disk_hangs(served: &Served, method: MethodName, direct: bool) {
    let mut options = options(method, 256);
    options.io_direct = direct;
    served.mounted.set(Box::new(|_, _, size| Answer::Bytes(size)));
    let (engine, table) = accounts(&served.made.data_dir, options);
    let mut scan = table.scan().start().expect("a scan");
    for _ in 0..200 {
        assert!(scan.next_page().expect("a page").is_some());
    }
    // Reads ahead are under way, and take their time; the frames are theirs until they end.
    served.mounted.set(Box::new(|_, _, _| Answer::After(Duration::from_millis(100))));
    for _ in 0..40 {
        assert!(scan.next_page().expect("a page").is_some());
    }
    drop(scan);
    served.mounted.set(Box::new(|_, _, size| Answer::Bytes(size)));
    let calls = aggregate::parse("count(*),sum(aid)").expect("aggregates");
    let found = table.scan().aggregate(&calls).expect("another scan");
    assert_eq!(found.values, [Some("100000".to_owned()), Some("5000050000".to_owned())], "{method}");
    let deadline = Instant::now() + Duration::from_secs(5);
    while engine.pool_metrics().in_flight > 0 {
        assert!(Instant::now() < deadline, "{method}: reads that never end");
        std::thread::yield_now();
    }
    assert_eq!(engine.pool().pinned_frames(), 0, "{method}");
}

/// Runs a program; `None` where it is missing or fails, with the reason said.
fn run(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        Ok(output) => {
            skip("loop", &format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()));
            None
        }
        Err(error) => {
            skip("loop", &format!("{program}: {error}"));
            None
        }
    }
}

/// A file system on a loop device, unmounted and detached when dropped.
struct LoopDisk {
    device: String,
    mount: PathBuf,
    image: PathBuf,
    mounted: AtomicBool,
}

impl LoopDisk {
    fn new(dir: &Path, megabytes: u64) -> Option<Self> {
        let (image, mount) = (dir.join("image"), dir.join("mount"));
        std::fs::File::create(&image).and_then(|f| f.set_len(megabytes << 20)).expect("an image");
        std::fs::create_dir(&mount).expect("a folder");
        let path = image.to_str().expect("UTF-8");
        run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", path])?;
        let device = run("losetup", &["--find", "--show", path])?;
        let disk = Self { device, mount, image, mounted: AtomicBool::new(false) };
        run("mount", &[&disk.device, disk.mount.to_str().expect("UTF-8")])?;
        disk.mounted.store(true, Ordering::SeqCst);
        Some(disk)
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        // What cannot be undone here is told by the programs themselves.
        if self.mounted.load(Ordering::SeqCst) {
            let _ = Command::new("umount").arg("--lazy").arg(&self.mount).status();
        }
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

/// The block device really fails: the file under its loop device is cut in the middle of the table.
#[test]
fn a_disk_that_ends_is_eio_with_file_and_block() {
    for method in methods() {
        for direct in [false, true] {
            let dir = tempfile::tempdir().expect("a folder");
            let Some(disk) = LoopDisk::new(dir.path(), 96) else { return };
            let data_dir = disk.mount.join("data");
            let made = generate::pgbench(&data_dir, PgbenchOptions { scale: 3, ..PgbenchOptions::default() });
            let file = accounts_file(&made.expect("a cluster"));
            let mut options = options(method, 256);
            options.io_direct = direct;
            let (engine, table) = accounts(&data_dir, options);
            nix::unistd::sync();
            std::fs::OpenOptions::new().write(true).open(&disk.image).and_then(|f| f.set_len(24 << 20)).expect("cut");
            std::fs::write("/proc/sys/vm/drop_caches", "1").expect("root");
            let mut scan = table.scan().start().expect("a scan");
            let error = loop {
                match scan.next_page() {
                    Ok(page) => assert!(page.is_some(), "{method} direct={direct}: the end without an error"),
                    Err(error) => break error,
                }
            };
            let what = format!("{method} direct={direct}: {error}");
            assert_eq!((error.kind(), error.errno()), (ErrorKind::Io, Some(libc::EIO)), "{what}");
            assert_eq!(error.path(), Some(file.as_path()), "{what}");
            assert!(error.block().is_some_and(|block| block < table.blocks()), "{what}");
            assert!(engine.io_stats().errors > 0, "{what}");
            drop((scan, table, engine));
        }
    }
}
