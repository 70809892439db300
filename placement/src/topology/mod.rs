//! What a machine has: nodes, CPUs, memory, huge pages, distances, and what this process may use of them.
//!
//! The same description comes from the running kernel, from a copied or made-up `/sys` and `/proc` tree, and (feature
//! `hwloc`) from hwloc's XML files and synthetic descriptions. The planner does not know the difference.

#[cfg(feature = "hwloc")]
mod hwloc;
mod sysfs;

use crate::{list, sys};
use serde::Serialize;
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Where a description comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Source {
    /// The running kernel.
    Kernel,
    /// A folder that holds `sys` and `proc` of some machine.
    Tree(PathBuf),
    /// An XML file of hwloc (`lstopo x.xml`).
    Xml,
    /// A synthetic description of hwloc (`NUMANode:4 core:16 pu:1`).
    Synthetic(String),
    /// Made by hand.
    Made,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("the running kernel"),
            Self::Tree(root) => write!(f, "the tree {}", root.display()),
            Self::Xml => f.write_str("an hwloc XML file"),
            Self::Synthetic(text) => write!(f, "the synthetic description {text:?}"),
            Self::Made => f.write_str("a description"),
        }
    }
}

/// Huge pages of one size on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HugePagePool {
    /// Bytes a page.
    pub page_size: u64,
    /// Pages reserved on this node (`nr_hugepages`).
    pub total: u64,
    /// Of these free now; `None` when it is not known.
    pub free: Option<u64>,
}

/// What a node consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// Memory and CPUs.
    Ordinary,
    /// Memory without CPUs: CXL, HBM, memory of a GPU, persistent memory.
    CpuLess,
    /// CPUs without memory.
    MemoryLess,
    /// Neither.
    Empty,
}

impl fmt::Display for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ordinary => "ordinary",
            Self::CpuLess => "CPU-less",
            Self::MemoryLess => "memory-less",
            Self::Empty => "empty",
        })
    }
}

/// An online node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The kernel's number. Numbers have gaps; indexes into [`Machine::nodes`] do not.
    pub id: u32,
    /// Bytes of memory; a hint, memory comes and goes.
    pub memory: u64,
    /// Bytes that are free.
    pub free: Option<u64>,
    /// Bytes that can be had: free ones and what the page cache would give back.
    pub available: Option<u64>,
    /// Online CPUs, ascending.
    pub cpus: Vec<u32>,
    /// Reserved huge pages, a size each.
    pub huge_pages: Vec<HugePagePool>,
    /// The socket, if the node lies in just one.
    pub package: Option<u32>,
    /// What hwloc calls the memory (`HBM`, `DRAM`, `CXL-DRAM`, ...), when it knows.
    pub subtype: Option<String>,
}

impl Node {
    /// What it consists of.
    pub fn kind(&self) -> NodeKind {
        match (self.memory > 0, !self.cpus.is_empty()) {
            (true, true) => NodeKind::Ordinary,
            (true, false) => NodeKind::CpuLess,
            (false, true) => NodeKind::MemoryLess,
            (false, false) => NodeKind::Empty,
        }
    }
}

/// A memory policy, as set_mempolicy(2) names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyMode {
    /// None: memory comes from the node of the CPU that touches it first.
    #[default]
    Default,
    /// From one node while it has some.
    Preferred,
    /// From these nodes only.
    Bind,
    /// Page by page in turn.
    Interleave,
    /// Explicitly the node of the CPU.
    Local,
    /// From these nodes while they have some.
    PreferredMany,
    /// In turn, by weights.
    WeightedInterleave,
    /// One that this program does not know.
    Unknown,
}

impl fmt::Display for PolicyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Default => "default",
            Self::Preferred => "preferred",
            Self::Bind => "bind",
            Self::Interleave => "interleave",
            Self::Local => "local",
            Self::PreferredMany => "preferred-many",
            Self::WeightedInterleave => "weighted-interleave",
            Self::Unknown => "unknown",
        })
    }
}

/// The memory policy that this thread inherited (from numactl, systemd's NUMAPolicy, or whoever set it).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Which.
    pub mode: PolicyMode,
    /// Its nodes, ascending.
    pub nodes: Vec<u32>,
}

impl Policy {
    /// Whether somebody decided where memory goes.
    pub fn is_set(&self) -> bool {
        !matches!(self.mode, PolicyMode::Default | PolicyMode::Local)
    }
}

/// A machine, and what this process may use of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Where this comes from.
    pub source: Source,
    /// Whether it is the machine that this program runs on, so that binding makes sense.
    pub this_system: bool,
    /// Online nodes, by ascending id; never empty.
    pub nodes: Vec<Node>,
    /// Nodes that could come online.
    pub offline: Vec<u32>,
    /// The kernel's distances (10 is local), a row and a column for each of `nodes`; `None` when not known.
    pub distances: Option<Vec<Vec<u32>>>,
    /// Nodes that the cpuset allows (`Mems_allowed_list`); `None`: all.
    pub allowed_nodes: Option<Vec<u32>>,
    /// CPUs that cpuset and affinity allow; `None`: all.
    pub allowed_cpus: Option<Vec<u32>>,
    /// The inherited memory policy.
    pub policy: Policy,
    /// `kernel.numa_balancing`: 0 is off; `None` when the kernel has no such setting.
    pub balancing: Option<u32>,
    /// Why the policy calls do not work (EPERM of a container, ENOSYS), when they do not.
    pub refused: Option<String>,
    /// What was odd about the sources.
    pub notes: Vec<String>,
}

/// A machine could not be described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file of the tree cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What hwloc was given is none of its.
    #[error("hwloc does not take {what}: {message}")]
    Hwloc {
        /// What it was given.
        what: String,
        /// Why.
        message: String,
    },
    /// Nodes without any memory.
    #[error("{0} has no node with memory")]
    NoMemory(Source),
}

impl Machine {
    /// The running machine. Never fails: without a readable `/sys` it is one node.
    ///
    /// With `HWLOC_FSROOT` in the environment it is the tree there (so that hwloc and we speak of the same machine).
    pub fn detect() -> Self {
        if let Some(root) = std::env::var_os("HWLOC_FSROOT").filter(|root| !root.is_empty() && root != "/") {
            let root = PathBuf::from(root);
            match Self::from_tree(&root) {
                Ok(machine) => return machine,
                Err(error) => {
                    let mut machine = Self::kernel();
                    machine.notes.push(format!("HWLOC_FSROOT: {error}; reading the running kernel instead"));
                    return machine;
                }
            }
        }
        Self::kernel()
    }

    fn kernel() -> Self {
        let mut machine = sysfs::read(Path::new("/"), Source::Kernel).unwrap_or_else(|error| Self {
            notes: vec![format!("{error}; taken for a machine of one node")],
            ..Self::single(Source::Kernel)
        });
        machine.this_system = true;
        machine.allowed_cpus = Some(crate::thread::allowed_cpus().into_iter().map(|cpu| cpu as u32).collect());
        match sys::inherited_policy() {
            Ok(policy) => machine.policy = policy,
            Err(error) => machine.refused = Some(format!("get_mempolicy: {error}")),
        }
        // Up to 70 ms of hwloc tell nothing that matters on one node.
        #[cfg(feature = "hwloc")]
        if machine.nodes.len() > 1 {
            hwloc::enrich(&mut machine);
        }
        machine
    }

    /// The machine whose `/sys/devices/system` and `/proc` lie below `root`. What the process may use is read from
    /// `proc/self/status` there.
    ///
    /// # Errors
    /// When the list of nodes cannot be read or no node has memory.
    pub fn from_tree(root: &Path) -> Result<Self, TopologyError> {
        sysfs::read(root, Source::Tree(root.to_owned()))
    }

    /// The machine of an XML document that hwloc wrote (`lstopo machine.xml`).
    ///
    /// # Errors
    /// When hwloc does not take it or no node has memory.
    #[cfg(feature = "hwloc")]
    pub fn from_xml(xml: &str) -> Result<Self, TopologyError> {
        hwloc::from_xml(xml)
    }

    /// The machine of one of hwloc's synthetic descriptions, such as `NUMANode:4 core:16 pu:1`.
    ///
    /// # Errors
    /// When hwloc does not take it.
    #[cfg(feature = "hwloc")]
    pub fn from_synthetic(description: &str) -> Result<Self, TopologyError> {
        hwloc::from_synthetic(description)
    }

    /// One node with all memory and the CPUs that may be used.
    fn single(source: Source) -> Self {
        let cpus = crate::thread::allowed_cpus().into_iter().map(|cpu| cpu as u32).collect();
        // The size is a guess: nothing but "there is some" follows from it.
        let node = Node { memory: 1 << 30, cpus, ..Node::default() };
        Self { this_system: true, ..Self::made(source, vec![node], None) }
    }

    /// A machine of these nodes, everything allowed; the base for descriptions made by hand.
    pub fn made(source: Source, nodes: Vec<Node>, distances: Option<Vec<Vec<u32>>>) -> Self {
        Self {
            source,
            this_system: false,
            nodes,
            offline: Vec::new(),
            distances,
            allowed_nodes: None,
            allowed_cpus: None,
            policy: Policy::default(),
            balancing: None,
            refused: None,
            notes: Vec::new(),
        }
    }

    /// The index of a node in [`nodes`](Self::nodes).
    pub fn index_of(&self, id: u32) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// The node with this id.
    pub fn node(&self, id: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The node that a CPU lies on.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.cpus.contains(&cpu))
    }

    /// The distance between two nodes (ids); unknown ones count as 10 on the node and 20 off it, the kernel's defaults.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let known = || {
            let (from, to) = (self.index_of(from)?, self.index_of(to)?);
            self.distances.as_ref()?.get(from)?.get(to).copied()
        };
        known().unwrap_or(if from == to { 10 } else { 20 })
    }

    /// Whether the cpuset lets this process use the memory of a node.
    pub fn is_node_allowed(&self, id: u32) -> bool {
        self.allowed_nodes.as_ref().is_none_or(|nodes| nodes.contains(&id))
    }

    /// Whether this process may run on a CPU.
    pub fn is_cpu_allowed(&self, cpu: u32) -> bool {
        self.allowed_cpus.as_ref().is_none_or(|cpus| cpus.contains(&cpu))
    }

    /// The CPUs of a node that may be used.
    pub fn usable_cpus(&self, node: &Node) -> Vec<u32> {
        node.cpus.iter().copied().filter(|&cpu| self.is_cpu_allowed(cpu)).collect()
    }

    /// The ids of all online nodes in the kernel's syntax.
    pub fn online(&self) -> String {
        list::format(&self.nodes.iter().map(|node| node.id).collect::<Vec<_>>())
    }

    /// Bytes that can be had on a node at this moment; `None` when this is not the running machine or it is not known.
    pub fn available_now(&self, id: u32) -> Option<u64> {
        if self.this_system { sysfs::available(Path::new("/"), id) } else { None }
    }

    /// Huge pages of `page_size` bytes that are free on a node at this moment; `None` as above.
    pub fn free_huge_pages_now(&self, id: u32, page_size: u64) -> Option<u64> {
        if self.this_system { sysfs::free_huge_pages(Path::new("/"), id, page_size) } else { None }
    }
}
