//! Made-up machines.
#![allow(dead_code, reason = "each test program uses some of it")]

use heapscan_placement::topology::{Machine, Node, Source};
use std::{fs, path::Path};

/// Bytes of a gigabyte.
pub(crate) const GB: u64 = 1 << 30;

/// A node of 64 GB (or none) with these CPUs, on a socket.
pub(crate) fn node(id: u32, cpus: std::ops::Range<u32>, memory: u64, package: u32) -> Node {
    Node { id, memory, cpus: cpus.collect(), package: Some(package), ..Node::default() }
}

pub(crate) fn machine(nodes: Vec<Node>, distance: impl Fn(&Node, &Node) -> u32) -> Machine {
    let row = |from: &Node| nodes.iter().map(|to| distance(from, to)).collect();
    let distances = nodes.iter().map(row).collect();
    Machine::made(Source::Made, nodes, Some(distances))
}

/// `count` nodes of `cpus` CPUs and 64 GB each, `per_socket` of them on a socket; distances 10, `near` and `far`.
pub(crate) fn regular(count: u32, cpus: u32, per_socket: u32, near: u32, far: u32) -> Machine {
    let nodes = (0..count).map(|id| node(id, id * cpus..(id + 1) * cpus, 64 * GB, id / per_socket)).collect();
    machine(nodes, |a, b| match (a.id == b.id, a.package == b.package) {
        (true, _) => 10,
        (_, true) => near,
        _ => far,
    })
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
    fs::write(path, format!("{text}\n")).expect("a file");
}

fn mask(cpus: &[u32]) -> String {
    format!("{:08x}", cpus.iter().fold(0u64, |mask, cpu| mask | 1 << cpu))
}

/// Writes the `/sys` and `/proc` of a machine (CPUs below 32), for our reader and for hwloc's (`HWLOC_FSROOT`).
pub(crate) fn write_tree(root: &Path, machine: &Machine) {
    let cpus: Vec<(u32, u32)> =
        machine.nodes.iter().flat_map(|node| node.cpus.iter().map(|&cpu| (cpu, node.package.unwrap_or(0)))).collect();
    let all = heapscan_placement::list::format(&cpus.iter().map(|&(cpu, _)| cpu).collect::<Vec<_>>());
    for file in ["online", "possible", "present"] {
        write(root, &format!("sys/devices/system/cpu/{file}"), &all);
    }
    for &(cpu, package) in &cpus {
        let base = format!("sys/devices/system/cpu/cpu{cpu}");
        let siblings: Vec<u32> = cpus.iter().filter(|(_, p)| *p == package).map(|&(cpu, _)| cpu).collect();
        for file in ["thread_siblings", "core_cpus"] {
            write(root, &format!("{base}/topology/{file}"), &mask(&[cpu]));
        }
        for file in ["core_siblings", "package_cpus"] {
            write(root, &format!("{base}/topology/{file}"), &mask(&siblings));
        }
        write(root, &format!("{base}/topology/physical_package_id"), &package.to_string());
        write(root, &format!("{base}/topology/core_id"), &cpu.to_string());
        write(root, &format!("{base}/online"), "1");
    }
    let online = machine.online();
    for file in ["online", "possible", "has_memory", "has_normal_memory"] {
        write(root, &format!("sys/devices/system/node/{file}"), &online);
    }
    for (index, node) in machine.nodes.iter().enumerate() {
        let (id, base) = (node.id, format!("sys/devices/system/node/node{}", node.id));
        let list = heapscan_placement::list::format(&node.cpus);
        write(root, &format!("{base}/cpumap"), &mask(&node.cpus));
        write(root, &format!("{base}/cpulist"), if node.cpus.is_empty() { "" } else { &list });
        let (total, free) = (node.memory >> 10, node.memory >> 11);
        let cache = "Node 0 Active(file): 200 kB\nNode 0 Inactive(file): 100 kB\nNode 0 SReclaimable: 100 kB";
        let text = format!("Node {id} MemTotal: {total} kB\nNode {id} MemFree: {free} kB\n{cache}");
        write(root, &format!("{base}/meminfo"), &text);
        let row = &machine.distances.as_ref().expect("distances")[index];
        let row: Vec<String> = row.iter().map(u32::to_string).collect();
        write(root, &format!("{base}/distance"), &row.join(" "));
        for pool in &node.huge_pages {
            let folder = format!("{base}/hugepages/hugepages-{}kB", pool.page_size / 1024);
            write(root, &format!("{folder}/nr_hugepages"), &pool.total.to_string());
            write(root, &format!("{folder}/free_hugepages"), &pool.free.unwrap_or(pool.total).to_string());
        }
    }
    let info = |&(cpu, package): &(u32, u32)| {
        format!("processor\t: {cpu}\nvendor_id\t: GenuineIntel\nphysical id\t: {package}\ncore id\t: {cpu}\n")
    };
    write(root, "proc/cpuinfo", &cpus.iter().map(info).collect::<Vec<_>>().join("\n"));
    write(root, "proc/meminfo", "MemTotal: 167772160 kB");
    write(root, "proc/mounts", "");
    write(root, "proc/self/cgroup", "0::/");
}
