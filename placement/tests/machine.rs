//! Places memory on the machine that the tests run on, and asks the kernel where it is. Most of this needs several
//! nodes: `make numa-vm` runs it in virtual machines that have them, and says which in `HEAPSCAN_NUMA_VM`.
#![allow(unsafe_code, reason = "tests set memory policies and seccomp filters as users do")]

use heapscan_placement::{
    bind::{BindError, Placement, Request, place, place_all},
    memory::{HugePages, MapOptions, PageKind},
    pages, plan,
    plan::{MemoryPolicy, Mode, Plan, Settings},
    thread::pin_current_thread,
    topology::{Machine, NodeKind, PolicyMode},
};

const SMALL: MapOptions = MapOptions { huge_pages: HugePages::Off, huge_page_size: None };

fn vm() -> Option<String> {
    std::env::var("HEAPSCAN_NUMA_VM").ok()
}

fn skip(what: &str) {
    eprintln!("SKIPPED: {what}");
}

/// Says that something is not possible here; in our virtual machines everything is.
fn missing(what: &str) {
    assert!(vm().is_none(), "{what}");
    skip(what);
}

/// Runs a test on a thread of its own: affinity, policies and filters end with it.
fn apart(test: impl FnOnce() + Send + 'static) {
    if let Err(panic) = std::thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

/// 16 MB a node, so that any guest has room.
fn settings(machine: &Machine, mode: Mode) -> Settings {
    let mut settings = Settings::new(16 * machine.nodes.len() as u64 * (1 << 20), 8192);
    (settings.mode, settings.min_frames) = (mode, 16);
    settings
}

fn planned(machine: &Machine, settings: &Settings) -> Plan {
    plan::plan(machine, settings).expect("a plan")
}

/// Places a plan and has the kernel say that every frame and descriptor is where it should be.
fn place_and_check(machine: &Machine, plan: &Plan, options: MapOptions) -> Vec<String> {
    let (placed, warnings) = place_all(machine, plan, 64, options).expect("memory");
    for (partition, plan) in placed.iter().zip(&plan.partitions) {
        assert_eq!(partition.frame_count, plan.frames, "{warnings:?}");
        let Some(node) = plan.node.filter(|_| partition.frames.populated) else { continue };
        for memory in [&partition.frames, &partition.descriptors] {
            match memory.where_are() {
                Ok(counts) => {
                    assert_eq!(counts.on(node), counts.total(), "{counts:?} instead of node {node}; {warnings:?}")
                }
                Err(error) => missing(&format!("move_pages: {error}")),
            }
        }
    }
    warnings
}

#[test]
fn the_machine_is_seen_as_it_is() {
    let machine = Machine::detect();
    println!("{machine:#?}");
    assert!(machine.this_system && machine.notes.is_empty(), "{:?}", machine.notes);
    let kinds: Vec<(u32, NodeKind, usize)> = machine.nodes.iter().map(|n| (n.id, n.kind(), n.cpus.len())).collect();
    use NodeKind::{CpuLess, MemoryLess, Ordinary};
    let (expected, far): (&[_], _) = match vm().as_deref() {
        None => return skip("no virtual machine whose nodes are known (make numa-vm)"),
        Some("two") => (&[(0, Ordinary, 2), (1, Ordinary, 2)], 20),
        Some("four") => (&[(0, Ordinary, 1), (1, Ordinary, 1), (2, Ordinary, 1), (3, Ordinary, 1)], 20),
        Some("cxl") => (&[(0, Ordinary, 2), (1, CpuLess, 0)], 30),
        Some("memless") => (&[(0, Ordinary, 2), (1, MemoryLess, 2)], 20),
        Some("gap") => (&[(0, Ordinary, 2), (2, Ordinary, 2)], 20),
        Some(other) => panic!("unknown machine {other}"),
    };
    assert_eq!(kinds, expected);
    let last = machine.nodes.last().expect("nodes").id;
    assert_eq!((machine.distance(0, 0), machine.distance(0, last)), (10, far));
    assert_eq!(machine.offline, if vm().as_deref() == Some("gap") { vec![1] } else { vec![] });
}

#[test]
fn partitions_are_on_their_nodes() {
    let machine = Machine::detect();
    for (asked, partitions_per_node) in [(Mode::Partition, 1), (Mode::Partition, 2), (Mode::Auto, 1)] {
        let plan = planned(&machine, &Settings { partitions_per_node, ..settings(&machine, asked) });
        println!("{plan}");
        for huge_pages in [HugePages::Off, HugePages::Try] {
            let warnings = place_and_check(&machine, &plan, MapOptions { huge_pages, huge_page_size: None });
            // Huge pages can be fewer than needed; that is said, and nothing else is to be said.
            assert!(warnings.iter().all(|w| w.contains("huge pages")), "{warnings:?}");
        }
    }
    let plan = planned(&machine, &settings(&machine, Mode::Auto));
    let expected = match vm().as_deref() {
        Some("two" | "gap") => (Mode::Partition, 2),
        Some("four") => (Mode::Partition, 4),
        Some("cxl" | "memless") => (Mode::Off, 1),
        _ => return,
    };
    assert_eq!((plan.used, plan.partitions.len()), expected);
}

#[test]
fn cpu_less_nodes_are_used_when_named() {
    let machine = Machine::detect();
    let Some(node) = machine.nodes.iter().find(|node| node.kind() == NodeKind::CpuLess).map(|node| node.id) else {
        return skip("no CPU-less node");
    };
    let named = |nodes: &[u32]| Settings { nodes: Some(nodes.to_vec()), ..settings(&machine, Mode::Partition) };
    let plan = planned(&machine, &named(&[0, node]));
    assert_eq!(plan.partitions.len(), 2);
    // No huge pages on that node: it warns, falls back and lives.
    let huge = MapOptions { huge_pages: HugePages::Try, huge_page_size: Some(2 << 20) };
    let reserved = |id| machine.node(id).map_or(0, |node| node.huge_pages.iter().map(|pool| pool.total).sum::<u64>());
    let (placed, warnings) = place_all(&machine, &plan, 64, huge).expect("memory");
    assert_eq!(placed[1].frames.where_are().expect("pages").unknown, 0);
    if reserved(0) >= 8 && reserved(node) == 0 {
        assert_eq!(placed[0].frames.mapping.report().used, PageKind::Huge(2 << 20), "{warnings:?}");
        assert!(!matches!(placed[1].frames.mapping.report().used, PageKind::Huge(_)));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("huge pages"), "{warnings:?}");
    }
    drop(placed);
    place_and_check(&machine, &plan, huge);
    // Whoever insists on huge pages gets an error, not a signal.
    let on = MapOptions { huge_pages: HugePages::On, ..huge };
    if reserved(0) >= 8 && reserved(node) == 0 {
        let error = place_all(&machine, &planned(&machine, &named(&[node])), 64, on).expect_err("no huge pages there");
        assert!(matches!(error, BindError::Map(_)), "{error}");
    }
    place_and_check(&machine, &planned(&machine, &named(&[node])), SMALL);
}

#[test]
fn interleaved_pools_are_on_all_nodes() {
    let machine = Machine::detect();
    let plan = planned(&machine, &settings(&machine, Mode::Interleave));
    let (placed, warnings) = place_all(&machine, &plan, 64, SMALL).expect("memory");
    assert_eq!(warnings, [""; 0]);
    let MemoryPolicy::Interleave(nodes) = &plan.partitions[0].memory else { return skip("one usable node") };
    let counts = placed[0].frames.where_are().expect("pages");
    for &node in nodes {
        assert!(counts.on(node).abs_diff(counts.total() / nodes.len() as u64) <= 1, "{counts:?}");
    }
}

#[test]
fn threads_without_a_binding_put_memory_on_their_node() {
    let machine = Machine::detect();
    for node in machine.nodes.iter().filter(|node| node.kind() == NodeKind::Ordinary) {
        let (memory, cpus) = (MemoryPolicy::FirstTouch(vec![node.id]), machine.usable_cpus(node));
        let request = Request { memory: &memory, cpus: &cpus, len: 4 << 20, unit: None, options: SMALL, strict: false };
        let placed = place(&machine, request).expect("memory");
        assert_eq!((placed.placement, placed.fallbacks.len()), (Placement::FirstTouch, 0));
        match placed.where_are() {
            Ok(counts) => assert_eq!(counts.on(node.id), counts.total(), "{counts:?}"),
            Err(error) => missing(&format!("move_pages: {error}")),
        }
    }
}

#[test]
fn nodes_that_are_not_there_are_refused_or_fallen_back_from() {
    let machine = Machine::detect();
    let memory = MemoryPolicy::Bind(machine.nodes.last().expect("nodes").id + 1);
    let request = Request { memory: &memory, cpus: &[], len: 1 << 20, unit: None, options: SMALL, strict: false };
    let placed = place(&machine, request).expect("unbound memory");
    assert_eq!((placed.placement, placed.len, placed.populated), (Placement::FirstTouch, 1 << 20, true));
    assert_eq!(placed.fallbacks.len(), 1, "{:?}", placed.fallbacks);
    assert!(matches!(place(&machine, Request { strict: true, ..request }), Err(BindError::Strict(_))));
}

#[test]
fn a_node_without_room_makes_a_smaller_partition() {
    let machine = Machine::detect();
    let Some(node) = machine.nodes.iter().filter(|node| node.memory > 0).max_by_key(|node| node.id) else { return };
    let Some(room) = machine.available_now(node.id) else { return missing("free memory is not known") };
    if room > 2 << 30 {
        return skip("a machine with this much memory: filling a node would hurt others");
    }
    let (memory, cpus) = (MemoryPolicy::Bind(node.id), machine.usable_cpus(node));
    // Twice what is there. Bound without looking, this would be the end of the process.
    let len = room as usize * 2 / 8192 * 8192;
    let request = Request { memory: &memory, cpus: &cpus, len, unit: Some(8192), options: SMALL, strict: false };
    let placed = place(&machine, request).expect("less memory");
    assert!(placed.len < len && placed.len > len / 8 && placed.len.is_multiple_of(8192), "{}", placed.len);
    assert!(placed.fallbacks[0].contains("has room for"), "{:?}", placed.fallbacks);
    let counts = placed.where_are().expect("pages");
    assert_eq!(counts.on(node.id), counts.total(), "{counts:?}");
}

#[test]
fn an_affinity_is_respected() {
    apart(|| {
        let machine = Machine::detect();
        let Some(node) = machine.nodes.iter().rfind(|node| node.kind() == NodeKind::Ordinary) else { return };
        let cpus: Vec<usize> = node.cpus.iter().map(|&cpu| cpu as usize).collect();
        pin_current_thread(&cpus).expect("pinning");
        let machine = Machine::detect();
        assert_eq!(machine.allowed_cpus.as_deref(), Some(node.cpus.as_slice()));
        let plan = planned(&machine, &settings(&machine, Mode::Partition));
        let nodes: Vec<u32> = plan.groups.iter().flat_map(|group| group.nodes.clone()).collect();
        assert_eq!(nodes, [node.id], "{plan}");
        place_and_check(&machine, &plan, SMALL);
    });
}

#[test]
fn an_inherited_policy_is_respected() {
    apart(|| {
        let machine = Machine::detect();
        let Some(node) = machine.nodes.iter().rfind(|node| node.memory > 0 && !node.cpus.is_empty()) else { return };
        let mask = [1u64 << node.id, 0];
        // SAFETY: the mask has more than 64 bits; the policy is this thread's and ends with it.
        if unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, mask.as_ptr(), 65) } != 0 {
            return missing(&format!("set_mempolicy: {}", std::io::Error::last_os_error()));
        }
        let machine = Machine::detect();
        assert_eq!((machine.policy.mode, machine.policy.nodes.as_slice()), (PolicyMode::Bind, &[node.id][..]));
        let plan = planned(&machine, &settings(&machine, Mode::Partition));
        assert!(plan.to_string().contains("inherited"), "{plan}");
        assert_eq!(plan.partitions[0].memory, MemoryPolicy::FirstTouch(vec![node.id]));
        place_and_check(&machine, &plan, SMALL);
    });
}

/// Has these system calls fail with EPERM in this thread and those that it starts, as a container's profile does.
fn refuse(calls: &[libc::c_long]) -> bool {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // struct seccomp_data begins with the number of the call.
    let mut program = vec![step(LOAD, 0, 0, 0)];
    for &call in calls {
        program.push(step(EQUAL, 0, 1, call as u32));
        program.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    program.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives until the kernel has copied it; the filter is this thread's and ends with it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    }
}

#[test]
fn a_container_that_refuses_costs_one_warning() {
    apart(|| {
        let mut machine = Machine::detect();
        let node = machine.nodes.iter().find(|node| node.memory > 0).expect("memory").id;
        if !refuse(&[libc::SYS_mbind]) {
            return missing("no seccomp");
        }
        let settings = Settings { nodes: Some(vec![node]), ..settings(&machine, Mode::Partition) };
        let plan = planned(&machine, &Settings { force_partitions: Some(3), ..settings.clone() });
        assert_eq!(plan.partitions[2].memory, MemoryPolicy::Bind(node));
        let (placed, warnings) = place_all(&machine, &plan, 64, SMALL).expect("memory all the same");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("partition 0-2: mbind") && warnings[0].contains("seccomp"), "{warnings:?}");
        assert!(placed.iter().all(|p| p.frames.populated && p.frames.placement == Placement::FirstTouch));
        let mut strict = plan;
        strict.strict = true;
        assert!(matches!(place_all(&machine, &strict, 64, SMALL), Err(BindError::Strict(_))));
        // All calls refused: seen when the machine is looked at, and nothing is tried.
        assert!(refuse(&[libc::SYS_get_mempolicy, libc::SYS_set_mempolicy, libc::SYS_move_pages]));
        machine = Machine::detect();
        assert!(machine.refused.as_ref().is_some_and(|why| why.contains("get_mempolicy")), "{:?}", machine.refused);
        let plan = planned(&machine, &settings);
        assert_eq!(plan.warnings.len(), 1, "{plan}");
        assert!(place_all(&machine, &plan, 64, SMALL).expect("memory").1.is_empty());
        assert_eq!(pages::where_is(std::ptr::null(), 1).unwrap_err().raw_os_error(), Some(libc::EPERM));
    });
}
