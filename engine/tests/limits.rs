//! Processes with little: descriptors, locked memory, address space.

mod method_support;

use heapscan::{ErrorKind, MethodName, OpenFiles, RelationFork, pool::BufferPool, pool::PoolConfig};
use heapscan_fixtures::sandbox;
use heapscan_io::{IoConfig, MethodChoice, OpenFileOptions};
use method_support::*;
use nix::sys::resource::Resource;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
};

const SEGMENTS: u32 = 200;

/// A relation of one block a segment; each block is filled with its number.
fn many_segments(dir: &Path) -> PathBuf {
    let base = dir.join("16384");
    for segment in 0..SEGMENTS {
        let path = if segment == 0 { base.clone() } else { dir.join(format!("16384.{segment}")) };
        fs::write(path, (segment.to_le_bytes()).repeat(2048)).expect("a segment");
    }
    base
}

fn relation(base: &Path) -> RelationFork {
    RelationFork::open(base, 8192, 1, OpenFileOptions::default()).expect("a relation")
}

#[test]
fn the_least_recently_used_file_is_closed_and_those_in_use_are_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = Arc::new(OpenFiles::new(4));
    let fork = relation(&many_segments(dir.path())).with_open_files(Arc::clone(&files));
    assert_eq!((files.count(), files.limit()), (0, 4), "opened when they are needed");
    let held = fork.locate(0).expect("block 0");
    for block in 1..SEGMENTS {
        let location = fork.locate(block).expect("a block");
        assert_eq!((location.offset, location.blocks), (0, 1));
        assert!(files.count() <= 4, "{block}");
    }
    assert!(Arc::ptr_eq(&fork.locate(0).expect("block 0").file, &held.file), "in use: still the same file");
    // 0 is held; 197 to 199 are the youngest; with 197 used again, 198 has to go.
    let weak = |block| Arc::downgrade(&fork.locate(block).expect("a block").file);
    let (b198, b199, b197) = (weak(198), weak(199), weak(197));
    fork.locate(5).expect("block 5");
    assert_eq!((b197.strong_count(), b198.strong_count(), b199.strong_count()), (1, 0, 1));
    // All in use: more than the limit rather than an error.
    let all: Vec<_> = (10..20).map(|block| fork.locate(block).expect("a block")).collect();
    assert_eq!(files.count(), 11);
    drop((all, held));
    fork.locate(30).expect("block 30");
    assert_eq!(files.count(), 4);
    drop(fork);
    assert_eq!(files.count(), 0);
}

#[test]
fn many_threads_share_few_descriptors() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = Arc::new(OpenFiles::new(3));
    let fork = relation(&many_segments(dir.path())).with_open_files(Arc::clone(&files));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fork = &fork;
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                for _ in 0..3000 {
                    let block = random.below(u64::from(SEGMENTS)) as u32;
                    assert_eq!(fork.locate(block).expect("a block").file.path(), fork.path_of(block));
                }
            });
        }
    });
    assert!(files.count() <= 3 + 4);
}

const FOLDER: &str = "HEAPSCAN_TEST_FOLDER";

/// Runs one of the ignored tests of this file in a process that may have `descriptors` open.
fn in_child(test: &str, folder: &Path, descriptors: u64) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"]).env(FOLDER, folder);
    sandbox::limit(&mut command, Resource::RLIMIT_NOFILE, descriptors);
    let output = command.output().expect("run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn child_relation_with(direct: bool) -> RelationFork {
    let base = PathBuf::from(std::env::var_os(FOLDER).expect("run by another test")).join("16384");
    RelationFork::open(&base, 8192, 1, OpenFileOptions { direct, ..Default::default() }).expect("a relation")
}

fn child_relation() -> RelationFork {
    child_relation_with(false)
}

#[test]
#[ignore = "a process of its own, run by few_descriptors_are_enough_for_many_segments"]
fn scans_with_few_descriptors() {
    for (method, direct) in methods().into_iter().flat_map(|method| [(method, false), (method, true)]) {
        let fork = Arc::new(child_relation_with(direct));
        let mut config = PoolConfig::new(8192);
        config.shared_buffers = 64 * 8192;
        config.huge_pages = heapscan::HugePages::Off;
        let io = IoConfig {
            method: MethodChoice::Named(method),
            lanes: Some(1),
            io_max_concurrency: 8,
            ..IoConfig::default()
        };
        let pool = BufferPool::new(config, |completer| Ok(heapscan_io::open(&io, completer)?.method)).expect("a pool");
        let relation = pool.register(Arc::clone(&fork)).expect("registered");
        for round in 0..3 {
            for block in (0..SEGMENTS).map(|i| i * 37 % SEGMENTS) {
                let page = pool.read_block(relation, block).unwrap_or_else(|e| panic!("{method} {round}: {e}"));
                assert!(page.bytes().chunks(4).all(|word| word == block.to_le_bytes()), "{method}: block {block}");
            }
        }
        assert!(OpenFiles::of_process().count() <= OpenFiles::of_process().limit());
    }
}

#[test]
#[ignore = "a process of its own, run by few_descriptors_are_enough_for_many_segments"]
fn others_hold_the_descriptors() {
    let fork = child_relation();
    for block in 0..10 {
        fork.locate(block).expect("a block");
    }
    // Somebody else of the process takes what is left: our own files must make room.
    let others: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
    for block in 10..SEGMENTS {
        fork.locate(block).expect("a block");
    }
    assert_eq!(OpenFiles::of_process().count(), 10);
    // All of ours are being read: now it is an error, which says what to do.
    let held: Vec<_> = (0..10).map(|block| fork.locate(block).expect("a block")).collect();
    let error = fork.locate(50).expect_err("no descriptor is left");
    assert_eq!((error.kind(), error.errno(), error.block()), (ErrorKind::Limit, Some(libc::EMFILE), Some(50)));
    let text = error.to_string();
    assert!(text.contains("RLIMIT_NOFILE is 32") && text.contains("16384.50"), "{text}");
    drop(held);
    fork.locate(50).expect("room again");
    drop(others);
}

/// Direct reads that are refused go on through the page cache, which wants a second descriptor; there is none.
#[test]
#[ignore = "a process of its own, run by few_descriptors_are_enough_for_many_segments"]
fn direct_reads_need_no_second_descriptor() {
    for method in methods() {
        let base = PathBuf::from(std::env::var_os(FOLDER).expect("run by another test")).join("16384");
        let how = OpenFileOptions { direct: true, ..Default::default() };
        let fork = Arc::new(RelationFork::open(&base, 8192, 1, how).expect("a relation"));
        let io = IoConfig {
            method: MethodChoice::Named(method),
            lanes: Some(1),
            io_max_concurrency: 8,
            fault: Some("no_direct,seed=1".parse().expect("a plan")),
            ..IoConfig::default()
        };
        let mut config = PoolConfig::new(8192);
        config.shared_buffers = 64 * 8192;
        config.huge_pages = heapscan::HugePages::Off;
        let pool = BufferPool::new(config, |completer| Ok(heapscan_io::open(&io, completer)?.method)).expect("a pool");
        let relation = pool.register(Arc::clone(&fork)).expect("registered");
        let held: Vec<_> = (0..3).map(|block| fork.locate(block).expect("a block")).collect();
        if !held[0].file.is_direct() {
            return skip("direct", held[0].file.note().as_deref().unwrap_or("no note"));
        }
        let others: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
        for block in 0..3 {
            let page = pool.read_block(relation, block).unwrap_or_else(|e| panic!("{method}: {e}"));
            assert!(page.bytes().chunks(4).all(|word| word == block.to_le_bytes()), "{method}: block {block}");
        }
        let note = held[0].file.note().expect("said");
        assert!(note.contains("no descriptor was left"), "{method}: {note}");
        drop(others);
        // Other files are reopened as ever.
        pool.read_block(relation, 50).unwrap_or_else(|e| panic!("{method}: {e}"));
        let note = fork.locate(50).expect("block 50").file.note().expect("said");
        assert!(note.contains("reopened, read buffered"), "{method}: {note}");
    }
}

#[test]
fn few_descriptors_are_enough_for_many_segments() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    many_segments(dir.path());
    in_child("scans_with_few_descriptors", dir.path(), 32);
    in_child("others_hold_the_descriptors", dir.path(), 32);
    in_child("direct_reads_need_no_second_descriptor", dir.path(), 40);
}

#[test]
fn the_limit_of_open_files_is_a_setting() {
    let data_dir = heapscan_fixtures::pgbench().and_then(|f| f.snapshot("clean")).expect("fixture").data_dir();
    let open = |max_files_per_process| {
        heapscan::Engine::open(&data_dir, heapscan::EngineOptions { max_files_per_process, ..Default::default() })
    };
    let usual = OpenFiles::of_process().limit();
    drop(open(Some(3)).expect("open"));
    assert_eq!(OpenFiles::of_process().limit(), 3);
    drop(open(None).expect("open"));
    assert_eq!(OpenFiles::of_process().limit(), 3, "no wish, no change");
    assert_eq!(open(Some(0)).expect_err("none at all").kind(), ErrorKind::Usage);
    OpenFiles::of_process().set_limit(None);
    assert_eq!(OpenFiles::of_process().limit(), usual);
    // One file open at a time is enough.
    for method in methods() {
        let program = Path::new(env!("CARGO_BIN_EXE_heapscan"));
        let run = |limit: &str| {
            let mut command = count(program, &data_dir, method.as_str());
            command.args(["--max-files-per-process", limit]).output().expect("run")
        };
        let output = run("1");
        assert_eq!(output.stdout, b"100000\n", "{method}: {}", stderr(&output));
        assert_eq!(run("0").status.code(), Some(2));
    }
}

/// A cluster and the program where user 65534 can read them.
struct Nobody {
    dir: tempfile::TempDir,
    program: PathBuf,
    data_dir: PathBuf,
}

fn nobody() -> Option<Nobody> {
    if !nix::unistd::geteuid().is_root() {
        skip("root", "only root can become another user");
        return None;
    }
    let (dir, made) = own_cluster(1);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    let program = dir.path().join("heapscan");
    fs::copy(env!("CARGO_BIN_EXE_heapscan"), &program).expect("copy");
    give(&made.data_dir);
    Some(Nobody { program, data_dir: made.data_dir, dir })
}

fn give(path: &Path) {
    std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("chown");
    if path.is_dir() {
        fs::read_dir(path).expect("list").flatten().for_each(|entry| give(&entry.path()));
    }
}

fn count(program: &Path, data_dir: &Path, method: &str) -> Command {
    let mut command = Command::new(program);
    command.arg("scan").arg(data_dir).args(["pgbench_accounts", "--agg", "count(*)", "--io-method", method]);
    command.args(["--huge-pages", "off"]).stdin(Stdio::null()).current_dir("/");
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn little_locked_memory_is_enough_or_the_refusal_is_one_clear_line() {
    let Some(nobody) = nobody() else { return };
    for (bytes, method) in [65536, 0].into_iter().flat_map(|b| ["auto", "io_uring", "tokio_uring"].map(|m| (b, m))) {
        let mut command = count(&nobody.program, &nobody.data_dir, method);
        command.uid(65534).gid(65534);
        sandbox::limit(&mut command, Resource::RLIMIT_MEMLOCK, bytes);
        let output = command.output().expect("run");
        let text = stderr(&output);
        if output.status.success() {
            assert_eq!(output.stdout, b"100000\n", "{method}: {text}");
            continue;
        }
        assert_ne!(method, "auto", "auto finds a way: {text}");
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        assert!(output.stdout.is_empty() && text.contains(method), "{text}");
        let probed = heapscan::probe_methods();
        if probed.iter().any(|status| status.name == method && status.usable) {
            assert!(text.contains("RLIMIT_MEMLOCK"), "{text}");
        }
    }
    drop(nobody.dir);
}

#[test]
fn address_space_too_small_for_the_pool_is_a_clear_error() {
    let data_dir = heapscan_fixtures::pgbench().and_then(|f| f.snapshot("clean")).expect("fixture").data_dir();
    let program = Path::new(env!("CARGO_BIN_EXE_heapscan"));
    for method in [MethodName::Sync, MethodName::Worker] {
        let run = |buffers: &str| {
            let mut command = count(program, &data_dir, method.as_str());
            command.args(["--shared-buffers", buffers, "--io-workers", "2"]);
            sandbox::limit(&mut command, Resource::RLIMIT_AS, 400 << 20);
            command.output().expect("run")
        };
        let output = run("1GB");
        let text = stderr(&output);
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{method}: {text}");
        assert!(text.contains("memory"), "{method}: {text}");
        let output = run("16MB");
        assert_eq!(output.stdout, b"100000\n", "{method}: {}", stderr(&output));
    }
}
