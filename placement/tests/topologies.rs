//! Descriptions from trees, XML and synthetic text agree with the machines that they describe.

mod common;

use common::{GB, machine, node, write_tree};
use heapscan_placement::topology::{HugePagePool, Machine, NodeKind, Source, TopologyError};
use std::fs;

/// Two sockets, and a CPU-less node on each; numbers with a gap.
fn sample() -> Machine {
    let mut nodes = vec![node(0, 0..4, 16 * GB, 0), node(1, 4..8, 16 * GB, 1)];
    nodes.extend([node(4, 0..0, 64 * GB, 0), node(5, 0..0, 64 * GB, 1)]);
    nodes[0].huge_pages = vec![
        HugePagePool { page_size: 2 << 20, total: 64, free: Some(60) },
        HugePagePool { page_size: 1 << 30, total: 0, free: Some(0) },
    ];
    let rows: [[u32; 4]; 4] = [[10, 21, 14, 24], [21, 10, 24, 14], [14, 24, 10, 26], [24, 14, 26, 10]];
    let index = |id: u32| if id < 2 { id as usize } else { id as usize - 2 };
    machine(nodes, |a, b| rows[index(a.id)][index(b.id)])
}

#[test]
fn a_tree_is_read_as_it_was_written() {
    let (root, sample) = (tempfile::tempdir().unwrap(), sample());
    write_tree(root.path(), &sample);
    let read = Machine::from_tree(root.path()).unwrap();
    assert!(!read.this_system && read.notes.is_empty(), "{:?}", read.notes);
    assert_eq!(read.distances, sample.distances);
    for (read, written) in read.nodes.iter().zip(&sample.nodes) {
        assert_eq!((read.id, read.memory, &read.cpus), (written.id, written.memory, &written.cpus));
        assert_eq!(read.huge_pages, written.huge_pages);
        assert_eq!(read.free, Some(written.memory / 2));
        assert_eq!(read.available, Some(written.memory / 2 + (200 << 10)));
    }
    assert_eq!((read.nodes[1].package, read.nodes[2].package), (Some(1), None));
    assert_eq!(read.nodes[3].kind(), NodeKind::CpuLess);
    assert_eq!(
        (read.online().as_str(), read.distance(0, 5), read.node_of_cpu(6).map(|n| n.id)),
        ("0-1,4-5", 24, Some(1))
    );
    assert_eq!((read.allowed_nodes, read.balancing), (None, None));
    assert_eq!(read.nodes.len(), 4);
}

#[test]
fn what_the_process_may_use_is_read_from_its_status() {
    let root = tempfile::tempdir().unwrap();
    write_tree(root.path(), &sample());
    let status = "Name:\tx\nCpus_allowed:\tf0\nCpus_allowed_list:\t4-7\nMems_allowed_list:\t1,5\n";
    fs::write(root.path().join("proc/self/status"), status)
        .or_else(|_| {
            fs::create_dir_all(root.path().join("proc/self"))?;
            fs::write(root.path().join("proc/self/status"), status)
        })
        .unwrap();
    fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
    fs::write(root.path().join("proc/sys/kernel/numa_balancing"), "1\n").unwrap();
    fs::write(root.path().join("sys/devices/system/node/possible"), "0-7\n").unwrap();
    // CPU 5 went offline.
    fs::write(root.path().join("sys/devices/system/cpu/online"), "0-4,6-7\n").unwrap();
    let read = Machine::from_tree(root.path()).unwrap();
    assert_eq!(read.allowed_nodes, Some(vec![1, 5]));
    assert_eq!(read.usable_cpus(&read.nodes[1]), [4, 6, 7]);
    assert_eq!(read.offline, [2, 3, 6, 7]);
    assert_eq!(read.balancing, Some(1));
}

#[test]
fn damaged_trees_cost_the_detail_or_give_an_error() {
    let root = tempfile::tempdir().unwrap();
    assert!(matches!(Machine::from_tree(root.path()), Err(TopologyError::Read { .. })));
    write_tree(root.path(), &sample());
    let node = root.path().join("sys/devices/system/node");
    // As many columns as ids are possible: not what the kernel writes.
    fs::write(node.join("node4/distance"), "10 20 20 20 20 20\n").unwrap();
    fs::write(node.join("node1/cpulist"), "4-x\n").unwrap();
    let read = Machine::from_tree(root.path()).unwrap();
    assert_eq!((read.distances.as_ref(), read.notes.len()), (None, 2), "{:?}", read.notes);
    assert_eq!((read.distance(0, 0), read.distance(0, 1)), (10, 20));
    for id in [0, 1, 4, 5] {
        fs::write(node.join(format!("node{id}/meminfo")), "\0\u{fffd} nonsense\nNode 0 MemTotal: -5 kB\n").unwrap();
    }
    assert!(matches!(Machine::from_tree(root.path()), Err(TopologyError::NoMemory(_))));
    fs::write(node.join("online"), "4294967295-9\n").unwrap();
    assert!(matches!(Machine::from_tree(root.path()), Err(TopologyError::Read { .. })));
}

#[test]
fn the_running_machine() {
    let machine = Machine::detect();
    // Inside of `hwloc_reads_the_same_tree` it is a tree.
    assert_eq!(machine.this_system, machine.source == Source::Kernel);
    assert!(machine.nodes.iter().any(|node| node.memory > 0));
    assert!(!machine.allowed_cpus.expect("an affinity").is_empty());
}

#[cfg(feature = "hwloc")]
mod hwloc {
    use super::*;
    use hwlocality::{Topology, topology::export::xml::XMLExportFlags};

    #[test]
    fn synthetic_machines() {
        let machine = Machine::from_synthetic("Package:2 NUMANode:2(memory=4GiB) Core:4 PU:2").unwrap();
        let nodes: Vec<_> = machine.nodes.iter().map(|n| (n.id, n.cpus.len(), n.package)).collect();
        assert_eq!(nodes, [(0, 8, Some(0)), (1, 8, Some(0)), (2, 8, Some(1)), (3, 8, Some(1))]);
        assert!(machine.nodes.iter().all(|n| n.memory == 4 * GB && n.kind() == NodeKind::Ordinary));
        assert!(!machine.this_system, "nothing may be bound for it");
        assert_eq!(machine.distances, None);
        assert!(matches!(Machine::from_synthetic("Nonsense:3"), Err(TopologyError::Hwloc { .. })));
        assert!(Machine::from_synthetic("").is_err());
        assert!(Machine::from_synthetic("a\0b").is_err());
    }

    #[test]
    fn nodes_that_share_their_cpus_have_one_owner() {
        // As hwloc shows a socket with a CPU-less node beside the DRAM: both with the CPUs of the socket.
        let text = "Package:2 [NUMANode(memory=16GiB)] [NUMANode(memory=64GiB)] Core:4 PU:1";
        let machine = Machine::from_synthetic(text).unwrap();
        let kinds: Vec<_> = machine.nodes.iter().map(|node| (node.memory / GB, node.kind())).collect();
        assert_eq!(kinds.iter().filter(|(_, kind)| *kind == NodeKind::Ordinary).count(), 2, "{kinds:?}");
        assert_eq!(kinds.iter().filter(|kind| **kind == (64, NodeKind::CpuLess)).count(), 2, "{kinds:?}");
    }

    #[test]
    fn xml_of_hwloc() {
        let builder = Topology::builder().from_synthetic("NUMANode:4(memory=1GiB) Core:2 PU:1").unwrap();
        let text = builder.build().unwrap().export_xml(XMLExportFlags::empty()).unwrap().to_string();
        let machine = Machine::from_xml(&text).unwrap();
        assert_eq!((machine.nodes.len(), machine.source), (4, Source::Xml));
        assert_eq!(machine.nodes[3].cpus, [6, 7]);
        assert!(Machine::from_xml("<topology").is_err());
        assert!(Machine::from_xml("").is_err());
    }

    /// Runs this program's own `in_a_tree` with hwloc's variables: they are read when a topology is made, and setting
    /// variables in a program with threads is unsound.
    #[test]
    fn hwloc_reads_the_same_tree() {
        let root = tempfile::tempdir().unwrap();
        write_tree(root.path(), &sample());
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hwloc::in_a_tree", "--nocapture"])
            .env("HWLOC_FSROOT", root.path())
            .env("HWLOC_COMPONENTS", "linux,stop")
            // The default gives CPU-less nodes the CPUs of their nearest node.
            .env("HWLOC_USE_NUMA_DISTANCES", "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("compared 4 nodes"), "{text}");
    }

    #[test]
    fn in_a_tree() {
        if std::env::var_os("HWLOC_FSROOT").is_none() {
            return; // Only as a part of the test above.
        }
        let ours = Machine::detect();
        assert!(matches!(ours.source, Source::Tree(_)) && !ours.this_system);
        let topology = Topology::new().unwrap();
        assert!(!topology.is_this_system());
        let text = topology.export_xml(XMLExportFlags::empty()).unwrap().to_string();
        let theirs = Machine::from_xml(&text).unwrap();
        assert_eq!(theirs.distances, ours.distances);
        for (theirs, ours) in theirs.nodes.iter().zip(&ours.nodes) {
            assert_eq!((theirs.id, theirs.memory, &theirs.cpus), (ours.id, ours.memory, &ours.cpus));
            assert_eq!(theirs.package.filter(|_| !ours.cpus.is_empty()), ours.package);
        }
        println!("compared {} nodes", theirs.nodes.len().min(ours.nodes.len()));
    }
}

#[cfg(not(feature = "hwloc"))]
#[test]
fn hwloc_is_not_compiled_in() {
    eprintln!("SKIPPED: XML, synthetic descriptions and hwloc's view of a tree: built without the feature hwloc");
}
