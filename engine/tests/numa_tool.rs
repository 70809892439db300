//! `heapscan numa`.
#![cfg(feature = "tool")]

use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

fn heapscan(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_heapscan")).args(arguments).output().expect("the program")
}

fn shown(arguments: &[&str]) -> String {
    let output = heapscan(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&shown(arguments)).expect("JSON")
}

/// Two sockets and a CPU-less node; automatic balancing is on.
fn tree(root: &Path) {
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
    };
    write("sys/devices/system/node/online", "0-1,8\n");
    write("proc/sys/kernel/numa_balancing", "1\n");
    for (id, cpus, distances) in [(0, "0-3", "10 21 30"), (1, "4-7", "21 10 30"), (8, "", "30 30 10")] {
        let base = format!("sys/devices/system/node/node{id}");
        write(&format!("{base}/cpulist"), &format!("{cpus}\n"));
        write(&format!("{base}/distance"), &format!("{distances}\n"));
        write(
            &format!("{base}/meminfo"),
            &format!("Node {id} MemTotal: 67108864 kB\nNode {id} MemFree: 60000000 kB\n"),
        );
    }
}

#[test]
fn this_machine_is_shown() {
    let text = shown(&["numa"]);
    for word in ["usable CPUs", "huge pages", "distances", "plan", "numa = ", "because"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json = json(&["numa", "--format", "json", "--shared-buffers", "64MB"]);
    assert_eq!(json["machine"]["this_system"], true);
    let frames = json["plan"]["partitions"].as_array().expect("partitions").iter().map(|p| p["frames"].as_u64());
    assert_eq!(frames.sum::<Option<u64>>(), Some(8192));
    assert!(json["measured"].is_null());
}

#[test]
fn other_machines_can_be_planned_for() {
    let root = tempfile::tempdir().expect("a folder");
    tree(root.path());
    let machine = format!("tree:{}", root.path().display());
    let text = shown(&["numa", "--machine", &machine]);
    assert!(text.contains("bound to node 1, home of CPUs 4-7"), "{text}");
    assert!(text.contains("node 8 has no CPUs: it is used only when named"), "{text}");
    assert!(text.contains("warning: automatic NUMA balancing is on (kernel.numa_balancing = 1)"), "{text}");
    let named = json(&["numa", "--machine", &machine, "--numa-nodes", "0,8", "--format", "json"]);
    assert_eq!(named["plan"]["partitions"][1]["memory"]["nodes"], 8, "{named}");
    let refused = heapscan(&["numa", "--machine", &machine, "--numa-nodes", "5", "--numa-strict"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("online are 0-1,8"));
    for wrong in [
        &["numa", "--machine", "guess"][..],
        &["numa", "--machine", "tree:/nonexistent"],
        &["numa", "--numa", "maybe"],
        &["numa", "--numa-nodes", "a"],
        &["numa", "--machine", &machine, "--measure"],
    ] {
        assert_eq!(heapscan(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[cfg(feature = "hwloc")]
#[test]
fn synthetic_machines_of_hwloc() {
    let description = "synthetic:NUMANode:4(memory=64GiB) Core:4 PU:1";
    let plan = json(&["numa", "--machine", description, "--format", "json"]);
    assert_eq!(plan["plan"]["partitions"].as_array().map(Vec::len), Some(4));
}

#[test]
fn the_page_cache_of_a_file() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), vec![1; 100_000]).expect("contents");
    let path = file.path().to_str().expect("a path");
    let output = heapscan(&["numa", "--pages", path, "--format", "json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("Operation not permitted") {
        eprintln!("SKIP: move_pages is refused here");
        return;
    }
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = json["cached"]["nodes"].as_object().expect("nodes").values().map(|pages| pages.as_u64());
    let cached = nodes.sum::<Option<u64>>().expect("numbers") + json["cached"]["unknown"].as_u64().expect("a number");
    let page_size = json["cached"]["page_size"].as_u64().expect("a number");
    assert_eq!(cached + json["uncached"].as_u64().expect("a number"), 100_000_u64.div_ceil(page_size));
    assert!(shown(&["numa", "--pages", path]).contains("not cached"));
    let missing = heapscan(&["numa", "--pages", "/nonexistent"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nonexistent"));
}
