//! Where the pool goes: the machine, the plan for it, and the memory that was had.

use super::{
    PoolConfig,
    balance::{Balance, Layout, NumaBalance},
    partition::Descriptor,
    slab::Slab,
};
use crate::{Error, ErrorKind, Result};
use heapscan_placement::{
    bind::{self, BindError, PlacedPartition},
    memory::{HugePages, MapOptions},
    plan::{self, Grouping, MemoryPolicy, Mode, Plan, PlanError, Settings},
    thread,
    topology::{Machine, Node, Source},
};
use serde::Serialize;

/// What to do about NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaOptions {
    /// Placement of the pool.
    pub mode: Mode,
    /// Only these nodes (the kernel's ids); naming them is the only way to use nodes without CPUs.
    pub nodes: Option<Vec<u32>>,
    /// Confine threads to the CPUs of the nodes used: the one that opens the engine, those that it starts from then on,
    /// and those of the IO method.
    pub bind_threads: bool,
    /// Partitions for each node.
    pub partitions_per_node: u32,
    /// Exactly this many partitions, also on one node.
    pub force_partitions: Option<u32>,
    /// Which nodes go together.
    pub grouping: Grouping,
    /// Placement that cannot be had is an error instead of a warning.
    pub strict: bool,
    /// When a thread takes frames of partitions other than the one at home.
    pub balance: NumaBalance,
    /// Scans that use a ring take its frames from their home partition only.
    pub ring_local: bool,
}

impl Default for NumaOptions {
    /// `auto`, one partition a node, nothing bound but memory.
    fn default() -> Self {
        Self {
            mode: Mode::Auto,
            nodes: None,
            bind_threads: false,
            partitions_per_node: 1,
            force_partitions: None,
            grouping: Grouping::Node,
            strict: false,
            balance: NumaBalance::default(),
            ring_local: false,
        }
    }
}

impl NumaOptions {
    /// Nodes are left alone.
    pub fn off() -> Self {
        Self { mode: Mode::Off, ..Self::default() }
    }

    /// `partitions` partitions on whatever machine, wherever the kernel puts them.
    pub fn forced(partitions: u32) -> Self {
        Self { force_partitions: Some(partitions), ..Self::off() }
    }

    /// The planner's settings for a pool of `pool_bytes` in frames of `block_size` bytes.
    pub fn settings(&self, pool_bytes: u64, block_size: u32) -> Settings {
        Settings {
            mode: self.mode,
            nodes: self.nodes.clone(),
            bind_threads: self.bind_threads,
            partitions_per_node: self.partitions_per_node,
            force_partitions: self.force_partitions,
            grouping: self.grouping,
            strict: self.strict,
            ..Settings::new(pool_bytes, block_size)
        }
    }
}

/// A plan for the memory of a pool, and then the memory.
#[derive(Debug)]
pub struct Placement {
    machine: Machine,
    plan: Plan,
    options: MapOptions,
    balance: NumaBalance,
    memory: Vec<PlacedPartition>,
    warnings: Vec<String>,
}

impl Placement {
    /// The plan for this machine. With `numa = off` the machine is not even looked at.
    ///
    /// # Errors
    /// As [`on`](Self::on).
    pub fn here(config: &PoolConfig) -> Result<Self> {
        let nothing = config.numa.mode == Mode::Off && config.numa.nodes.is_none() && !config.numa.bind_threads;
        let machine = if nothing { unknown() } else { Machine::detect() };
        Self::on(machine, config)
    }

    /// The plan for a machine.
    ///
    /// # Errors
    /// `Usage` for settings that mean nothing, `Limit` for placement that is wanted strictly and cannot be had.
    pub fn on(machine: Machine, config: &PoolConfig) -> Result<Self> {
        config.frames()?;
        let plan =
            plan::plan(&machine, &config.numa.settings(config.shared_buffers, config.block_size)).map_err(|error| {
                let kind = if matches!(error, PlanError::Setting(_)) { ErrorKind::Usage } else { ErrorKind::Limit };
                Error::new(kind, error.to_string())
            })?;
        let options = MapOptions { huge_pages: config.huge_pages, huge_page_size: config.huge_page_size };
        let warnings = plan.warnings.clone();
        Ok(Self { machine, plan, options, balance: config.numa.balance, memory: Vec::new(), warnings })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What is to be said to the user, once.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The CPUs at home in each partition, where partitions lie on different nodes: for the threads of the IO method that
    /// fill their frames. Empty where nodes make no difference.
    pub(crate) fn lane_cpus(&self) -> Vec<Vec<usize>> {
        let groups = &self.plan.groups;
        if self.plan.used != Mode::Partition || groups.len() < 2 || self.plan.partitions.len() > 64 {
            return Vec::new();
        }
        let cpus: Vec<Vec<usize>> = self
            .plan
            .partitions
            .iter()
            .map(|p| groups[p.group as usize].home_cpus.iter().map(|&cpu| cpu as usize).collect())
            .collect();
        // A node of memory only has nobody at home.
        if cpus.iter().any(Vec::is_empty) { Vec::new() } else { cpus }
    }

    /// CPUs that threads of this process may use.
    pub(crate) fn processors(&self) -> usize {
        self.plan.groups.iter().map(|group| group.home_cpus.len()).sum::<usize>().max(1)
    }

    /// The policy that was asked for, for partitions of these many frames.
    pub(crate) fn balance(&self, frames: Vec<u32>) -> Balance {
        let nodes = |p: &plan::PartitionPlan| self.plan.groups[p.group as usize].nodes.as_slice();
        let distance = |from: &plan::PartitionPlan, to: &plan::PartitionPlan| {
            let pairs = nodes(from).iter().flat_map(|&a| nodes(to).iter().map(move |&b| (a, b)));
            let nearest = pairs.map(|(a, b)| self.machine.distance(a, b)).min();
            if from.group == to.group { 10 } else { nearest.unwrap_or(20) }
        };
        let row = |from| self.plan.partitions.iter().map(|to| distance(from, to)).collect();
        let distances: Vec<Vec<u32>> = self.plan.partitions.iter().map(row).collect();
        Balance::new(self.balance, Layout::new(frames, &distances))
    }

    /// Maps, binds and populates.
    pub(crate) fn place(&mut self) -> Result<()> {
        let placed = bind::place_all(&self.machine, &self.plan, size_of::<Descriptor>(), self.options);
        let (memory, warnings) = placed.map_err(refused)?;
        self.memory = memory;
        self.warnings.extend(warnings);
        Ok(())
    }

    pub(crate) fn take_memory(&mut self) -> Vec<PlacedPartition> {
        std::mem::take(&mut self.memory)
    }

    /// Memory that all threads use alike: on all nodes of the plan in turn, page by page.
    pub(crate) fn shared_by_all<T>(&mut self, len: usize, make: impl Fn() -> T) -> Result<Slab<T>> {
        let mut nodes: Vec<u32> = self.plan.groups.iter().flat_map(|group| group.nodes.iter().copied()).collect();
        nodes.sort_unstable();
        let bound = |p: &plan::PartitionPlan| matches!(p.memory, MemoryPolicy::Bind(_) | MemoryPolicy::Interleave(_));
        let memory = match self.plan.partitions.iter().all(bound) && nodes.len() > 1 {
            true => MemoryPolicy::Interleave(nodes),
            false => MemoryPolicy::Default,
        };
        let request = bind::Request {
            memory: &memory,
            cpus: &[],
            len: (len * size_of::<T>()).max(1),
            unit: None,
            options: MapOptions { huge_pages: HugePages::Off, huge_page_size: None },
            strict: self.plan.strict,
        };
        let placed = bind::place(&self.machine, request).map_err(refused)?;
        self.warnings.extend(placed.fallbacks.iter().map(|text| format!("mapping table: {text}")));
        Slab::new(placed, len, make)
    }
}

fn refused(error: BindError) -> Error {
    let error = Error::new(ErrorKind::Limit, error.to_string());
    error.with_hint("lower shared_buffers, or raise the memory limit of the process or container")
}

/// A machine of which nothing is known but its CPUs: all memory is one node.
fn unknown() -> Machine {
    let cpus = thread::allowed_cpus().into_iter().map(|cpu| cpu as u32).collect();
    Machine::made(Source::Made, vec![Node { memory: 1 << 30, cpus, ..Node::default() }], None)
}

/// How one partition was placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartitionPlacement {
    /// Its number.
    pub partition: usize,
    /// Frames it has.
    pub frames: u32,
    /// Frames it should have.
    pub planned_frames: u32,
    /// The node that all of it is meant to be on, if it is one.
    pub node: Option<u32>,
    /// How frames came to be where they are.
    pub placement: bind::Placement,
    /// The kind of pages that the frames lie on.
    pub pages: String,
}

/// Where the pool was meant to go and where it went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlacementReport {
    /// What was asked for.
    pub asked: Mode,
    /// What is done.
    pub used: Mode,
    /// Why.
    pub reasons: Vec<String>,
    /// When threads take frames of other partitions.
    pub balance: NumaBalance,
    /// What could not be done, once each.
    pub warnings: Vec<String>,
    /// The partitions.
    pub partitions: Vec<PartitionPlacement>,
}

impl Placement {
    /// What became of the plan in these partitions.
    pub(crate) fn report(&self, partitions: &[super::partition::Partition]) -> PlacementReport {
        let partition = |(plan, partition): (&plan::PartitionPlan, &super::partition::Partition)| {
            let [frames, _] = partition.placed();
            PartitionPlacement {
                partition: plan.index as usize,
                frames: partition.len(),
                planned_frames: plan.frames,
                // Of a machine that was not looked at nothing is known.
                node: plan.node.filter(|_| self.machine.source != Source::Made),
                placement: frames.placement,
                pages: partition.report().used.to_string(),
            }
        };
        PlacementReport {
            asked: self.plan.asked,
            used: self.plan.used,
            reasons: self.plan.reasons.clone(),
            balance: self.balance,
            warnings: self.warnings.clone(),
            partitions: self.plan.partitions.iter().zip(partitions).map(partition).collect(),
        }
    }
}
