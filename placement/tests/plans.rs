//! Plans for machines of many shapes. Nothing is bound here: the planner is a pure function.

mod common;

use common::{GB, machine, node, regular};
use heapscan_placement::{
    measure::Matrix,
    plan::{Grouping, MemoryPolicy, Mode, Plan, PlanError, Settings, plan},
    topology::{Machine, NodeKind, Policy, PolicyMode},
};

/// 8 GB of 8 kB frames.
fn settings() -> Settings {
    Settings::new(8 * GB, 8192)
}

fn mode(mode: Mode) -> Settings {
    Settings { mode, ..settings() }
}

fn named(nodes: &[u32]) -> Settings {
    Settings { nodes: Some(nodes.to_vec()), ..mode(Mode::Partition) }
}

/// What holds for every plan.
fn check(machine: &Machine, settings: &Settings) -> Plan {
    let plan = plan(machine, settings).expect("a plan");
    let frames = u32::try_from(settings.pool_bytes / u64::from(settings.block_size)).expect("few enough");
    let count = plan.partitions.len() as u32;
    let mut next = 0;
    for (index, partition) in (0..).zip(&plan.partitions) {
        assert_eq!((partition.index, partition.first_frame), (index, next), "{plan}");
        assert!(partition.frames > 0, "{plan}");
        next += partition.frames;
        for frame in [partition.first_frame, next - 1] {
            assert_eq!(plan.partition_of(frame).map(|p| p.index), Some(index), "{plan}");
        }
        let mut nearest = partition.nearest.clone();
        assert_eq!(nearest[0], index);
        nearest.sort_unstable();
        assert_eq!(nearest, (0..count).collect::<Vec<_>>());
        assert!(plan.groups[partition.group as usize].partitions.contains(&index));
        if let Some(node) = partition.node {
            assert!(machine.node(node).is_some_and(|node| node.memory > 0) && machine.is_node_allowed(node), "{plan}");
        }
    }
    assert_eq!(plan.frames(), next);
    assert!(plan.warnings.iter().any(|w| w.contains("smaller")) || next == frames, "{plan}");
    assert!(plan.partition_of(next).is_none());
    assert_ne!(plan.used, Mode::Auto);
    // Every CPU that may be used has a home.
    for cpu in machine.nodes.iter().flat_map(|node| machine.usable_cpus(node)) {
        let homes = plan.homes(cpu);
        assert!(!homes.is_empty() && homes.iter().all(|&home| home < count));
        assert!(plan.groups.iter().filter(|group| group.home_cpus.contains(&cpu)).count() == 1, "CPU {cpu}: {plan}");
        assert_eq!(plan.home(cpu, homes.len()), homes[0]);
    }
    assert!(!plan.reasons.is_empty() && plan.to_string().contains("because"));
    plan
}

fn nodes(plan: &Plan) -> Vec<Option<u32>> {
    plan.partitions.iter().map(|partition| partition.node).collect()
}

fn bound(plan: &Plan) -> Vec<u32> {
    let node = |memory: &MemoryPolicy| match memory {
        MemoryPolicy::Bind(node) => *node,
        other => panic!("{other:?} in {plan}"),
    };
    plan.partitions.iter().map(|partition| node(&partition.memory)).collect()
}

#[test]
fn one_node() {
    let machine = regular(1, 2, 1, 10, 10);
    for asked in [Mode::Auto, Mode::Off, Mode::Partition, Mode::Interleave] {
        let plan = check(&machine, &mode(asked));
        assert_eq!(plan.partitions.len(), 1);
        // Nothing to bind, nothing to say.
        assert_eq!((&plan.partitions[0].memory, plan.warnings.len()), (&MemoryPolicy::Default, 0), "{plan}");
    }
    assert_eq!(check(&machine, &settings()).used, Mode::Off);
}

#[test]
fn forced_partitions_on_one_node() {
    let machine = regular(1, 4, 1, 10, 10);
    let mut settings = Settings { force_partitions: Some(8), ..Settings::new(64 * 8192, 8192) };
    for asked in [Mode::Auto, Mode::Off, Mode::Partition] {
        settings.mode = asked;
        let plan = check(&machine, &settings);
        assert!(plan.partitions.iter().all(|p| p.frames == 8 && p.memory == MemoryPolicy::Default), "{plan}");
        // Four CPUs start at different partitions, and threads on one CPU can use all.
        let first: Vec<u32> = (0..4).map(|cpu| plan.home(cpu, 0)).collect();
        assert_eq!(first, [0, 2, 4, 6]);
        assert_eq!(plan.home(0, 3), 3);
    }
    settings.force_partitions = Some(65);
    assert!(matches!(plan(&machine, &settings), Err(PlanError::Setting(_))));
    settings.force_partitions = Some(0);
    assert!(matches!(plan(&machine, &settings), Err(PlanError::Setting(_))));
}

#[test]
fn two_sockets_of_two_nodes() {
    let machine = regular(4, 16, 2, 12, 21);
    let by_node = check(&machine, &settings());
    assert_eq!((by_node.used, bound(&by_node)), (Mode::Partition, vec![0, 1, 2, 3]));
    assert_eq!(by_node.partitions[2].nearest, [2, 3, 0, 1]);
    assert_eq!(by_node.partitions[1].nearest, [1, 0, 2, 3]);
    let by_socket = check(&machine, &Settings { grouping: Grouping::Socket, ..settings() });
    let memory: Vec<_> = by_socket.partitions.iter().map(|p| p.memory.clone()).collect();
    assert_eq!(memory, [MemoryPolicy::Interleave(vec![0, 1]), MemoryPolicy::Interleave(vec![2, 3])]);
    assert_eq!(by_socket.homes(20), [0]);
    let together = check(&machine, &Settings { grouping: Grouping::Off, ..mode(Mode::Partition) });
    assert_eq!(together.partitions[0].memory, MemoryPolicy::Interleave(vec![0, 1, 2, 3]));
}

#[test]
fn four_sockets() {
    let machine = regular(4, 8, 1, 0, 20);
    let plan = check(&machine, &Settings { partitions_per_node: 4, bind_threads: true, ..settings() });
    assert_eq!(plan.partitions.len(), 16);
    assert_eq!(nodes(&plan)[4..8], [Some(1); 4]);
    // CPUs of a node are shared out between its partitions.
    assert_eq!((plan.home(8, 0), plan.home(10, 0), plan.home(15, 0)), (4, 5, 7));
    assert_eq!(plan.homes(10), [5, 6, 7, 4]);
    assert_eq!(plan.thread_cpus.as_ref().map(Vec::len), Some(32));
    let interleaved = check(&machine, &mode(Mode::Interleave));
    assert_eq!(interleaved.partitions.len(), 1);
    assert_eq!(interleaved.partitions[0].memory, MemoryPolicy::Interleave(vec![0, 1, 2, 3]));
    let two = check(&machine, &Settings { force_partitions: Some(2), ..mode(Mode::Partition) });
    assert_eq!(two.groups[1].nodes, [2, 3]);
    assert!(nodes(&check(&machine, &mode(Mode::Off))).iter().all(Option::is_none));
}

#[test]
fn six_nodes_on_two_sockets_and_a_small_pool() {
    let machine = regular(6, 8, 3, 12, 21);
    let plan = check(&machine, &settings());
    assert_eq!(bound(&plan), [0, 1, 2, 3, 4, 5]);
    // 2^20 frames by 6: shares differ by one frame at most.
    let sizes: Vec<u32> = plan.partitions.iter().map(|p| p.frames).collect();
    assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
    // 64 frames are no pool for six partitions.
    let small = check(&machine, &Settings { pool_bytes: 64 * 8192, ..settings() });
    assert_eq!((small.used, small.partitions.len()), (Mode::Off, 1));
    assert!(small.reasons.iter().any(|reason| reason.contains("too small")), "{small}");
    // 4 partitions a node of 1024 frames would need 24,576 frames; there are 16,384.
    let fewer = check(&machine, &Settings { pool_bytes: 128 << 20, partitions_per_node: 4, ..settings() });
    assert_eq!(fewer.partitions.len(), 12);
    let sockets = check(&machine, &Settings { grouping: Grouping::Socket, ..settings() });
    assert_eq!(sockets.groups[1].nodes, [3, 4, 5]);
}

#[test]
fn eight_nodes_without_any_difference() {
    let equal = regular(8, 8, 8, 10, 10);
    let plan = check(&equal, &settings());
    assert_eq!((plan.used, plan.partitions.len()), (Mode::Off, 1), "{plan}");
    assert!(plan.reasons.iter().any(|reason| reason.contains("do not differ")), "{plan}");
    // Whoever insists gets them.
    assert_eq!(check(&equal, &mode(Mode::Partition)).partitions.len(), 8);
    // Firmware says 12, a measurement says 130 and 131 ns: the measurement is right, and the other way round.
    let machine = regular(8, 8, 8, 12, 12);
    assert_eq!(check(&machine, &settings()).used, Mode::Partition);
    let measured = |remote: f64| {
        let ids: Vec<u32> = (0..8).collect();
        let row = |from: u32| (0..8).map(|to| Some(if from == to { 130.0 } else { remote })).collect();
        Some(Matrix { from: ids.clone(), to: ids, values: (0..8).map(row).collect() })
    };
    assert_eq!(check(&machine, &Settings { latencies: measured(131.0), ..settings() }).used, Mode::Off);
    assert_eq!(check(&equal, &Settings { latencies: measured(170.0), ..settings() }).used, Mode::Partition);
}

#[test]
fn cxl_and_hbm_are_off_unless_named() {
    let cxl =
        machine(vec![node(0, 0..2, 64 * GB, 0), node(1, 0..0, 256 * GB, 0)], |a, b| if a.id == b.id { 10 } else { 30 });
    assert_eq!(cxl.nodes[1].kind(), NodeKind::CpuLess);
    let plan = check(&cxl, &settings());
    assert_eq!((plan.used, plan.partitions.len()), (Mode::Off, 1));
    assert_eq!(plan.groups[0].nodes, [0]);
    let only_dram = check(&cxl, &mode(Mode::Partition));
    assert_eq!(bound(&only_dram), [0]);
    assert!(only_dram.reasons.iter().any(|reason| reason.contains("only when named")), "{only_dram}");
    let both = check(&cxl, &named(&[0, 1]));
    assert_eq!(bound(&both), [0, 1]);
    // Its threads stay on the DRAM's partition, its memory is populated from there.
    assert_eq!((both.homes(0), both.homes(1)), (&[0][..], &[0][..]));
    assert_eq!(both.partitions[1].populate_cpus, [0, 1]);
    let only_cxl = check(&cxl, &named(&[1]));
    assert_eq!((bound(&only_cxl), only_cxl.homes(0)), (vec![1], &[0][..]));
    let confined = plan_error(&cxl, &Settings { bind_threads: true, strict: true, ..named(&[1]) });
    assert!(confined.contains("no CPUs"), "{confined}");

    // Two sockets with HBM each: nodes 2 and 3.
    let mut nodes = vec![node(0, 0..8, 64 * GB, 0), node(1, 8..16, 64 * GB, 1)];
    nodes.extend([node(2, 0..0, 16 * GB, 0), node(3, 0..0, 16 * GB, 1)]);
    nodes[2].subtype = Some("HBM".to_owned());
    let rows: [[u32; 4]; 4] = [[10, 21, 13, 23], [21, 10, 23, 13], [13, 23, 10, 23], [23, 13, 23, 10]];
    let hbm = machine(nodes, |a, b| rows[a.id as usize][b.id as usize]);
    assert_eq!(bound(&check(&hbm, &settings())), [0, 1]);
    let on_hbm = check(&hbm, &named(&[2, 3]));
    assert_eq!(bound(&on_hbm), [2, 3]);
    // The threads of a socket are at home on its HBM.
    assert_eq!((on_hbm.homes(3), on_hbm.homes(9)), (&[0][..], &[1][..]));
    assert_eq!(on_hbm.partitions[1].populate_cpus, (8..16).collect::<Vec<_>>());
}

fn plan_error(machine: &Machine, settings: &Settings) -> String {
    plan(machine, settings).expect_err("no plan").to_string()
}

#[test]
fn memory_less_nodes_turn_to_the_nearest() {
    // Two of four dies have no memory (Threadripper).
    let nodes =
        vec![node(0, 0..8, 32 * GB, 0), node(1, 8..16, 0, 0), node(2, 16..24, 32 * GB, 0), node(3, 24..32, 0, 0)];
    let rows: [[u32; 4]; 4] = [[10, 16, 18, 18], [18, 10, 18, 16], [18, 18, 10, 16], [16, 18, 18, 10]];
    let memless = machine(nodes, |a, b| rows[a.id as usize][b.id as usize]);
    let plan = check(&memless, &settings());
    assert_eq!(bound(&plan), [0, 2]);
    assert_eq!(
        (plan.homes(0), plan.homes(12), plan.homes(20), plan.homes(30)),
        (&[0][..], &[0][..], &[1][..], &[0][..])
    );
    // CPUs on the memory-less node only (POWER): the node with memory is used all the same.
    let power =
        machine(vec![node(0, 0..0, 64 * GB, 0), node(8, 0..16, 0, 1)], |a, b| if a.id == b.id { 10 } else { 40 });
    let plan = check(&power, &settings());
    assert_eq!((plan.used, plan.homes(3)), (Mode::Off, &[0][..]));
    assert_eq!(check(&power, &mode(Mode::Partition)).partitions[0].populate_cpus.len(), 16);
    assert!(plan_error(&memless, &Settings { strict: true, ..named(&[1]) }).contains("node 1 has no memory"));
}

#[test]
fn numbers_with_gaps() {
    // POWER with GPUs: 0 and 8 are sockets, 252 to 255 are the memory of GPUs.
    let mut nodes = vec![node(0, 0..16, 128 * GB, 0), node(8, 16..32, 128 * GB, 1)];
    nodes.extend((252..256).map(|id| node(id, 0..0, 16 * GB, id)));
    let power = machine(nodes, |a, b| match (a.id == b.id, a.id < 252 && b.id < 252) {
        (true, _) => 10,
        (_, true) => 40,
        _ => 80,
    });
    let plan = check(&power, &settings());
    assert_eq!((bound(&plan), plan.homes(17)), (vec![0, 8], &[1][..]));
    let gpu = check(&power, &named(&[8, 254]));
    assert_eq!(bound(&gpu), [8, 254]);
    let warned = check(&power, &named(&[0, 1, 300]));
    assert_eq!(bound(&warned), [0]);
    assert_eq!(warned.warnings.len(), 2, "{warned}");
    assert!(warned.warnings[0].contains("node 1 is not there: online are 0,8,252-255"), "{warned}");
    assert!(matches!(plan_of(&power, &Settings { strict: true, ..named(&[0, 1]) }), Err(PlanError::Strict(_))));
    // Only nonsense named: what can be used is used.
    assert_eq!(bound(&check(&power, &named(&[7]))), [0, 8]);
}

fn plan_of(machine: &Machine, settings: &Settings) -> Result<Plan, PlanError> {
    plan(machine, settings)
}

#[test]
fn a_cpuset_of_one_node() {
    let mut machine = regular(4, 8, 2, 12, 21);
    machine.allowed_nodes = Some(vec![2]);
    machine.allowed_cpus = Some((16..24).collect());
    let plan = check(&machine, &settings());
    assert_eq!((plan.used, plan.groups[0].nodes.as_slice()), (Mode::Off, &[2][..]), "{plan}");
    assert!(plan.reasons.iter().any(|reason| reason.contains("cpuset")), "{plan}");
    let partitioned = check(&machine, &mode(Mode::Partition));
    assert_eq!(bound(&partitioned), [2]);
    assert_eq!(partitioned.homes(16), [0]);
    // Memory of one node, CPUs of another.
    machine.allowed_cpus = Some((0..8).collect());
    let crossed = check(&machine, &mode(Mode::Partition));
    assert_eq!((bound(&crossed), crossed.homes(5)), (vec![2], &[0][..]));
    assert!(plan_error(&machine, &Settings { strict: true, ..named(&[0]) }).contains("cpuset"));
}

#[test]
fn an_affinity_of_one_node() {
    // numactl --cpunodebind=1: memory of node 0 is allowed, but nobody is near it.
    let mut machine = regular(2, 8, 1, 0, 21);
    machine.allowed_cpus = Some((8..16).collect());
    let plan = check(&machine, &settings());
    assert_eq!((plan.used, plan.groups[0].nodes.as_slice()), (Mode::Off, &[1][..]), "{plan}");
    assert_eq!(bound(&check(&machine, &named(&[0, 1]))), [0, 1]);
}

#[test]
fn an_inherited_policy_is_not_bound_again() {
    let mut machine = regular(4, 8, 1, 0, 21);
    machine.policy = Policy { mode: PolicyMode::Bind, nodes: vec![1, 3] };
    let plan = check(&machine, &settings());
    assert_eq!(nodes(&plan), [Some(1), Some(3)]);
    assert_eq!(plan.partitions[0].memory, MemoryPolicy::FirstTouch(vec![1]));
    assert!(plan.to_string().contains("inherited"), "{plan}");
    machine.policy = Policy { mode: PolicyMode::Interleave, nodes: vec![0, 1, 2, 3] };
    let plan = check(&machine, &mode(Mode::Partition));
    assert_eq!((plan.used, nodes(&plan)), (Mode::Off, vec![None]), "{plan}");
    assert_eq!(plan.partitions[0].memory, MemoryPolicy::Default);
    machine.policy = Policy { mode: PolicyMode::Local, nodes: vec![] };
    assert_eq!(bound(&check(&machine, &settings())), [0, 1, 2, 3]);
}

#[test]
fn refused_calls_give_one_warning_or_an_error() {
    let mut machine = regular(2, 8, 1, 0, 21);
    machine.refused = Some("get_mempolicy: Operation not permitted".to_owned());
    let plan = check(&machine, &settings());
    assert_eq!(nodes(&plan), [Some(0), Some(1)]);
    assert_eq!(plan.warnings.len(), 1, "{plan}");
    assert!(plan.partitions.iter().all(|p| matches!(p.memory, MemoryPolicy::FirstTouch(_))));
    assert!(matches!(plan_of(&machine, &Settings { strict: true, ..settings() }), Err(PlanError::Strict(_))));
    // Where nothing would be bound, nothing is refused.
    let mut one = regular(1, 8, 1, 0, 0);
    one.refused = machine.refused;
    assert!(check(&one, &settings()).warnings.is_empty());
}

#[test]
fn a_node_that_is_full_gets_less() {
    let mut machine = regular(4, 8, 1, 0, 21);
    for node in &mut machine.nodes {
        node.available = Some(60 * GB);
    }
    machine.nodes[1].available = Some(GB + (64 << 20));
    let plan = check(&machine, &settings());
    let sizes: Vec<u64> = plan.partitions.iter().map(|p| u64::from(p.frames) * 8192).collect();
    assert!(sizes[1] <= GB && sizes[1] > GB - (64 << 20), "{sizes:?}");
    assert!(sizes[0].abs_diff(sizes[3]) <= 2 * 8192 && sizes.iter().sum::<u64>() == 8 * GB, "{sizes:?}");
    assert_eq!(plan.warnings.len(), 1, "{plan}");
    // Not worth a partition at all.
    machine.nodes[1].available = Some(65 << 20);
    let plan = check(&machine, &settings());
    assert_eq!((bound(&plan), plan.homes(8).len()), (vec![0, 2, 3], 1), "{plan}");
    // No room anywhere: a smaller pool, and it says so.
    for node in &mut machine.nodes {
        node.available = Some(GB);
    }
    let plan = check(&machine, &settings());
    assert!(u64::from(plan.frames()) * 8192 < 4 * GB && plan.warnings.iter().any(|w| w.contains("smaller")), "{plan}");
}

#[test]
fn unknown_distances_and_automatic_balancing() {
    let mut machine = regular(2, 8, 1, 0, 21);
    machine.distances = None;
    machine.balancing = Some(1);
    let plan = check(&machine, &settings());
    assert_eq!(plan.used, Mode::Partition);
    assert!(plan.to_string().contains("not known") && plan.to_string().contains("numa_balancing = 1"), "{plan}");
    machine.balancing = Some(0);
    assert!(!check(&machine, &settings()).to_string().contains("numa_balancing"));
}

#[test]
fn settings_that_mean_nothing_are_refused() {
    let machine = regular(2, 8, 1, 0, 21);
    let wrong = |change: fn(&mut Settings)| {
        let mut settings = settings();
        change(&mut settings);
        assert!(matches!(plan_of(&machine, &settings), Err(PlanError::Setting(_))), "{settings:?}");
    };
    wrong(|s| s.block_size = 0);
    wrong(|s| s.pool_bytes = 8191);
    wrong(|s| s.pool_bytes = u64::MAX);
    wrong(|s| s.partitions_per_node = 0);
    assert_eq!("partition".parse(), Ok(Mode::Partition));
    assert!("all".parse::<Mode>().is_err());
    assert_eq!("socket".parse(), Ok(Grouping::Socket));
    assert!("die".parse::<Grouping>().is_err());
}
