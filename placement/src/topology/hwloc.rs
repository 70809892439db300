//! What hwloc knows. Descriptions from it never bind anything: a topology that is not this system "binds" with success
//! and does nothing, so the kernel is always asked directly and hwloc only ever describes.

use super::{HugePagePool, Machine, Node, Source, TopologyError};
use hwlocality::{
    Topology,
    object::{TopologyObject, attributes::ObjectAttributes, distance::DistancesKind, types::ObjectType},
    topology::builder::BuildFlags,
};

fn failed(what: &str, error: impl std::fmt::Display) -> TopologyError {
    TopologyError::Hwloc { what: what.to_owned(), message: error.to_string() }
}

pub(super) fn from_xml(xml: &str) -> Result<Machine, TopologyError> {
    let what = "this XML";
    let topology = Topology::builder()
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .map_err(|error| failed(what, error))?
        .from_xml(xml)
        .map_err(|error| failed(what, error))?
        .build()
        .map_err(|error| failed(what, error))?;
    convert(&topology, Source::Xml)
}

pub(super) fn from_synthetic(description: &str) -> Result<Machine, TopologyError> {
    let what = format!("the description {description:?}");
    let topology = Topology::builder()
        .from_synthetic(description)
        .map_err(|error| failed(&what, error))?
        .build()
        .map_err(|error| failed(&what, error))?;
    convert(&topology, Source::Synthetic(description.to_owned()))
}

fn id(object: &TopologyObject) -> Option<u32> {
    object.os_index().and_then(|index| u32::try_from(index).ok())
}

fn convert(topology: &Topology, source: Source) -> Result<Machine, TopologyError> {
    let mut objects: Vec<&TopologyObject> = topology.objects_with_type(ObjectType::NUMANode).collect();
    // Logical order is another one than the kernel's.
    objects.sort_unstable_by_key(|object| id(object));
    let mut nodes: Vec<Node> = objects.iter().filter_map(|object| node(object)).collect();
    share_out_cpus(topology, &mut nodes);
    let distances = distances(topology, &nodes);
    let mut machine = Machine::made(source, nodes, distances);
    // Sets may be infinite: only members that the machine has are asked about.
    let (nodeset, cpuset) = (topology.allowed_nodeset(), topology.allowed_cpuset());
    let nodes = machine.nodes.iter().map(|node| node.id);
    machine.allowed_nodes = Some(nodes.filter(|&id| nodeset.is_set(id as usize)).collect());
    let cpus = machine.nodes.iter().flat_map(|node| &node.cpus).copied();
    let mut cpus: Vec<u32> = cpus.filter(|&cpu| cpuset.is_set(cpu as usize)).collect();
    cpus.sort_unstable();
    machine.allowed_cpus = Some(cpus);
    if machine.nodes.iter().all(|node| node.memory == 0) {
        return Err(TopologyError::NoMemory(machine.source));
    }
    Ok(machine)
}

fn node(object: &TopologyObject) -> Option<Node> {
    let (mut memory, mut huge_pages) = (0, Vec::new());
    if let Some(ObjectAttributes::NUMANode(attributes)) = object.attributes() {
        memory = attributes.local_memory().map_or(0, u64::from);
        // The first entry is the small pages.
        huge_pages = attributes
            .page_types()
            .iter()
            .map(|page| (u64::from(page.size()), page.count()))
            .filter(|&(page_size, _)| page_size > 65536)
            .map(|(page_size, total)| HugePagePool { page_size, total, free: None })
            .collect();
    }
    let package = object.ancestors().find(|above| above.object_type() == ObjectType::Package).and_then(id);
    let subtype = object.subtype().map(|text| text.to_string_lossy().into_owned());
    Some(Node { id: id(object)?, memory, huge_pages, package, subtype, ..Node::default() })
}

/// Gives each CPU to one node. hwloc lets a CPU-less node have the CPUs of its nearest node (unless told otherwise when
/// the topology was made), so several nodes can claim a CPU; the kernel's answer is the ordinary memory among them, and
/// that has the smaller set, no special subtype, and the lower number.
fn share_out_cpus(topology: &Topology, nodes: &mut [Node]) {
    let objects: Vec<&TopologyObject> = topology.objects_with_type(ObjectType::NUMANode).collect();
    let sets: Vec<(u32, Vec<u32>)> = objects
        .iter()
        .filter_map(|object| {
            let set = object.cpuset()?;
            let cpus = set.iter_set().map(usize::from).take(1 << 16);
            Some((id(object)?, cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect()))
        })
        .collect();
    let mut order: Vec<usize> = (0..sets.len()).collect();
    let special = |id: u32| {
        let subtype = nodes.iter().find(|node| node.id == id).and_then(|node| node.subtype.as_deref());
        subtype.is_some_and(|subtype| subtype != "DRAM")
    };
    order.sort_by_key(|&index| (special(sets[index].0), sets[index].1.len(), sets[index].0));
    let mut taken = std::collections::BTreeSet::new();
    for index in order {
        let (id, cpus) = &sets[index];
        let own: Vec<u32> = cpus.iter().copied().filter(|&cpu| taken.insert(cpu)).collect();
        if let Some(node) = nodes.iter_mut().find(|node| node.id == *id) {
            node.cpus = own;
        }
    }
}

fn distances(topology: &Topology, nodes: &[Node]) -> Option<Vec<Vec<u32>>> {
    let all = topology.distances(Some(DistancesKind::FROM_OS | DistancesKind::MEANS_LATENCY)).ok()?;
    for matrix in &all {
        let ids: Option<Vec<u32>> = matrix
            .objects()
            .map(|object| object.filter(|object| object.object_type() == ObjectType::NUMANode).and_then(id))
            .collect();
        let Some(ids) = ids.filter(|ids| nodes.iter().all(|node| ids.contains(&node.id))) else { continue };
        let values = matrix.distances();
        let at = |id: u32| ids.iter().position(|&other| other == id);
        let row = |from: &Node| {
            nodes
                .iter()
                .map(|to| {
                    let value = values.get(at(from.id)? * ids.len() + at(to.id)?)?;
                    u32::try_from(*value).ok()
                })
                .collect::<Option<Vec<u32>>>()
        };
        return nodes.iter().map(row).collect();
    }
    None
}

/// Adds to a description of the running machine what only hwloc knows: the kind of memory. Where they disagree on the
/// nodes, the kernel is right and it is noted.
pub(super) fn enrich(machine: &mut Machine) {
    let topology = match Topology::builder().with_flags(BuildFlags::INCLUDE_DISALLOWED) {
        Ok(builder) => builder.build(),
        Err(error) => return machine.notes.push(format!("hwloc: {error}")),
    };
    let topology = match topology {
        Ok(topology) => topology,
        Err(error) => return machine.notes.push(format!("hwloc: {error}")),
    };
    if !topology.is_this_system() {
        // HWLOC_XMLFILE or HWLOC_SYNTHETIC in the environment.
        machine.notes.push("hwloc was told to describe another machine; not used".to_owned());
        return;
    }
    let mut theirs: Vec<u32> = Vec::new();
    for object in topology.objects_with_type(ObjectType::NUMANode) {
        let Some(found) = node(object) else { continue };
        theirs.push(found.id);
        if let Some(ours) = machine.nodes.iter_mut().find(|node| node.id == found.id) {
            ours.subtype = found.subtype;
            ours.package = ours.package.or(found.package);
        }
    }
    theirs.sort_unstable();
    if let Some(missing) = machine.nodes.iter().find(|node| node.memory > 0 && !theirs.contains(&node.id)) {
        machine.notes.push(format!("hwloc does not see node {}", missing.id));
    }
}
