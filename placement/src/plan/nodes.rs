//! Which nodes, in which groups, and whose home they are.

use super::{Group, Grouping, Log, PlanError, Settings};
use crate::{
    list,
    measure::Matrix,
    topology::{Machine, Node},
};

/// Latencies or distances that differ by no more than this are the same: 10 %.
const SAME: f64 = 1.10;

/// Why the memory of a node cannot be used, if it cannot.
fn obstacle(machine: &Machine, node: &Node) -> Option<String> {
    let id = node.id;
    if node.memory == 0 {
        return Some(format!("node {id} has no memory"));
    }
    if !machine.is_node_allowed(id) {
        let allowed = list::format(machine.allowed_nodes.as_deref().unwrap_or_default());
        return Some(format!("the cpuset allows memory of nodes {allowed} only, not of node {id}"));
    }
    let policy = &machine.policy;
    if policy.is_set() && !policy.nodes.is_empty() && !policy.nodes.contains(&id) {
        return Some(format!("the inherited memory policy ({}) leaves node {id} out", policy.mode));
    }
    None
}

/// The nodes whose memory the pool may use, ascending; never empty.
pub(super) fn usable(machine: &Machine, settings: &Settings, log: &mut Log) -> Result<Vec<u32>, PlanError> {
    let mut open = Vec::new();
    for node in &machine.nodes {
        let named = settings.nodes.as_ref().map(|nodes| nodes.contains(&node.id));
        if named == Some(false) {
            continue;
        }
        if let Some(why) = obstacle(machine, node) {
            if named == Some(true) {
                log.problem(why)?;
            } else {
                log.because(why);
            }
        } else if named.is_none() && machine.usable_cpus(node).is_empty() {
            let kind = node.subtype.as_deref().map_or(String::new(), |subtype| format!(" ({subtype})"));
            let cpus = if node.cpus.is_empty() { "has no CPUs" } else { "has no CPUs that may be used" };
            log.because(format!("node {}{kind} {cpus}: it is used only when named", node.id));
        } else {
            open.push(node.id);
        }
    }
    for id in settings.nodes.iter().flatten().filter(|&&id| machine.node(id).is_none()) {
        log.problem(format!("node {id} is not there: online are {}", machine.online()))?;
    }
    open.sort_unstable();
    open.dedup();
    if !open.is_empty() {
        return Ok(open);
    }
    if settings.nodes.is_some() {
        log.problem("none of the named nodes can be used; taking those that can")?;
        return usable(machine, &Settings { nodes: None, ..settings.clone() }, log);
    }
    // CPUs on memory-less nodes only, or a cpuset with CPUs here and memory there: whatever has memory has to do.
    let rest = machine.nodes.iter().filter(|node| obstacle(machine, node).is_none()).map(|node| node.id);
    let mut open: Vec<u32> = rest.collect();
    if open.is_empty() {
        log.problem("no node with memory is allowed to this process as far as can be seen; leaving it to the kernel")?;
        open = machine.nodes.iter().filter(|node| node.memory > 0).map(|node| node.id).collect();
        if open.is_empty() {
            return Err(PlanError::Setting("a machine without memory".to_owned()));
        }
    }
    log.because(format!(
        "no node has both memory and CPUs for this process: using the memory of {}",
        list::format(&open)
    ));
    Ok(open)
}

/// Whether access from one of the nodes to another is slower than to itself, and the figures.
pub(super) fn differ(machine: &Machine, usable: &[u32], latencies: Option<&Matrix>) -> (bool, String) {
    let mut worst: Option<(f64, u32, u32, f64, f64)> = None;
    let mut consider = |from, to, local: f64, remote: f64| {
        if local > 0.0 && from != to && worst.is_none_or(|(ratio, ..)| remote / local > ratio) {
            worst = Some((remote / local, from, to, local, remote));
        }
    };
    let pairs = || usable.iter().flat_map(|&from| usable.iter().map(move |&to| (from, to)));
    let unit = if let Some(latencies) = latencies {
        for (from, to) in pairs() {
            if let (Some(local), Some(remote)) = (latencies.get(from, from), latencies.get(from, to)) {
                consider(from, to, local, remote);
            }
        }
        "measured latency, ns"
    } else if machine.distances.is_some() {
        for (from, to) in pairs() {
            consider(from, to, f64::from(machine.distance(from, from)), f64::from(machine.distance(from, to)));
        }
        "distance"
    } else {
        return (true, "distances are not known, nodes are taken to differ".to_owned());
    };
    match worst {
        None => (false, format!("no {unit} between nodes is known")),
        Some((ratio, from, to, local, remote)) => {
            let figures = format!("from node {from} {local:.0} at home and {remote:.0} to node {to} ({unit})");
            let differ = ratio > SAME;
            let what = if differ { "nodes differ" } else { "nodes do not differ by more than 10 %" };
            (differ, format!("{what}: {figures}"))
        }
    }
}

/// Sorts nodes into groups.
pub(super) fn group(machine: &Machine, usable: &[u32], grouping: Grouping, log: &mut Log) -> Vec<Vec<u32>> {
    match grouping {
        Grouping::Node => usable.iter().map(|&id| vec![id]).collect(),
        Grouping::Off => vec![usable.to_vec()],
        Grouping::Socket => {
            let mut groups: Vec<(Option<u32>, Vec<u32>)> = Vec::new();
            for &id in usable {
                let package = machine.node(id).and_then(|node| node.package);
                match groups.iter_mut().find(|(other, _)| package.is_some() && *other == package) {
                    Some((_, nodes)) => nodes.push(id),
                    None => groups.push((package, vec![id])),
                }
            }
            if groups.iter().any(|(package, _)| package.is_none()) {
                log.because("nodes whose socket is not known stand for themselves");
            }
            groups.into_iter().map(|(_, nodes)| nodes).collect()
        }
    }
}

/// The distance between the nearest nodes of two groups.
pub(super) fn group_distance(machine: &Machine, from: &[u32], to: &[u32]) -> u32 {
    let pairs = from.iter().flat_map(|&from| to.iter().map(move |&to| machine.distance(from, to)));
    pairs.min().unwrap_or(10)
}

/// Finds the home of every CPU that may be used.
pub(super) fn homes_of_groups(machine: &Machine, groups: &[Vec<u32>]) -> Vec<Group> {
    let mut result: Vec<Group> = groups
        .iter()
        .map(|nodes| Group {
            nodes: nodes.clone(),
            partitions: Vec::new(),
            own_cpus: Vec::new(),
            home_cpus: Vec::new(),
        })
        .collect();
    for node in &machine.nodes {
        let cpus = machine.usable_cpus(node);
        let Some(nearest) = (0..groups.len()).min_by_key(|&index| group_distance(machine, &[node.id], &groups[index]))
        else {
            continue;
        };
        // A node's own group may not be its nearest one if firmware wrote nonsense.
        let own = groups.iter().position(|nodes| nodes.contains(&node.id));
        let group = &mut result[own.unwrap_or(nearest)];
        if own.is_some() {
            group.own_cpus.extend(&cpus);
        }
        group.home_cpus.extend(&cpus);
    }
    for group in &mut result {
        group.own_cpus.sort_unstable();
        group.home_cpus.sort_unstable();
    }
    result
}

/// The CPUs to populate a group's memory from: its own, else those of the nearest node that has some.
pub(super) fn populate_cpus(machine: &Machine, group: &Group) -> Vec<u32> {
    if !group.own_cpus.is_empty() {
        return group.own_cpus.clone();
    }
    let with_cpus = machine.nodes.iter().filter(|node| !machine.usable_cpus(node).is_empty());
    let nearest = with_cpus.min_by_key(|node| group_distance(machine, &group.nodes, &[node.id]));
    nearest.map(|node| machine.usable_cpus(node)).unwrap_or_default()
}
