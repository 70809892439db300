//! From a machine and settings to a plan: how many partitions the pool has, on which nodes, and whose home they are.
//! Pure functions: nothing here asks the kernel or changes anything, so that every machine can be planned for anywhere.

mod memory;
mod nodes;

use crate::{
    list,
    measure::Matrix,
    topology::{Machine, PolicyMode},
};
use serde::Serialize;
use std::{collections::BTreeMap, fmt, str::FromStr};

/// What to do about nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing.
    Off,
    /// One pool, its pages in turn on all nodes.
    Interleave,
    /// A part of the pool on each node.
    Partition,
    /// `partition` where nodes differ, else `off`.
    #[default]
    Auto,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::Interleave => "interleave",
            Self::Partition => "partition",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Off, Self::Interleave, Self::Partition, Self::Auto]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| format!("unknown numa mode {text:?}: use off, interleave, partition or auto"))
    }
}

/// Which nodes make one place for partitions, where a socket has several (sub-NUMA clustering, NPS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grouping {
    /// Each node for itself.
    #[default]
    Node,
    /// The nodes of a socket together, the memory interleaved between them.
    Socket,
    /// All nodes together, the memory interleaved between them.
    Off,
}

impl FromStr for Grouping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "node" => Ok(Self::Node),
            "socket" => Ok(Self::Socket),
            "off" => Ok(Self::Off),
            _ => Err(format!("unknown numa grouping {text:?}: use node, socket or off")),
        }
    }
}

/// What the user wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What to do about nodes.
    pub mode: Mode,
    /// Only these nodes (the kernel's ids); naming them is the only way to use nodes without CPUs.
    pub nodes: Option<Vec<u32>>,
    /// Confine threads to the CPUs of the nodes used.
    pub bind_threads: bool,
    /// Partitions for each node or group of nodes.
    pub partitions_per_node: u32,
    /// Exactly this many partitions, whatever the machine and however small they get; for tests of policies.
    pub force_partitions: Option<u32>,
    /// Which nodes go together.
    pub grouping: Grouping,
    /// What cannot be had is an error instead of a warning.
    pub strict: bool,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes of a frame.
    pub block_size: u32,
    /// Partitions smaller than this are not worth having.
    pub min_frames: u32,
    /// Measured latencies; where there are some, `auto` believes them rather than the kernel's distances.
    pub latencies: Option<Matrix>,
}

impl Settings {
    /// `auto`, one partition a node, for a pool of this many bytes in frames of `block_size`.
    pub fn new(pool_bytes: u64, block_size: u32) -> Self {
        Self {
            mode: Mode::Auto,
            nodes: None,
            bind_threads: false,
            partitions_per_node: 1,
            force_partitions: None,
            grouping: Grouping::Node,
            strict: false,
            pool_bytes,
            block_size,
            min_frames: 1024,
            latencies: None,
        }
    }
}

/// Where the memory of a partition comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "policy", content = "nodes")]
pub enum MemoryPolicy {
    /// From wherever the kernel takes it.
    Default,
    /// Populated by threads on these nodes but not bound: somebody else's policy holds, or binding is refused.
    FirstTouch(Vec<u32>),
    /// From this node only (mbind, MPOL_BIND).
    Bind(u32),
    /// In turn from these (mbind, MPOL_INTERLEAVE).
    Interleave(Vec<u32>),
}

/// A part of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionPlan {
    /// Its dense number, from 0.
    pub index: u32,
    /// The group that it belongs to, an index into [`Plan::groups`].
    pub group: u32,
    /// The node that all its memory is meant to be on, if it is one.
    pub node: Option<u32>,
    /// The pool's frame number of its first frame.
    pub first_frame: u32,
    /// How many frames.
    pub frames: u32,
    /// Where its memory comes from.
    pub memory: MemoryPolicy,
    /// CPUs to populate it from.
    pub populate_cpus: Vec<u32>,
    /// All partitions, this one first, then the nearest; equally near ones in turn, so that neighbours do not all turn
    /// to the same one.
    pub nearest: Vec<u32>,
}

/// Nodes that make one place, and the threads at home there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its nodes; none when the plan does not tell nodes apart.
    pub nodes: Vec<u32>,
    /// Its partitions, ascending.
    pub partitions: Vec<u32>,
    /// CPUs on these nodes that may be used.
    pub own_cpus: Vec<u32>,
    /// All CPUs whose threads are at home here: its own, and those of nodes that have no partition and are nearest.
    pub home_cpus: Vec<u32>,
}

/// What to do, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What was asked for.
    pub asked: Mode,
    /// What is done; never [`Mode::Auto`].
    pub used: Mode,
    /// The parts of the pool; at least one.
    pub partitions: Vec<PartitionPlan>,
    /// Where they are; at least one.
    pub groups: Vec<Group>,
    /// CPU to the partitions at home there, its own first. CPUs that may not be used are not in it.
    homes: BTreeMap<u32, Vec<u32>>,
    /// Bytes of a frame.
    pub block_size: u32,
    /// The CPUs to confine threads to, if they are to be confined.
    pub thread_cpus: Option<Vec<u32>>,
    /// Whether what cannot be had is an error.
    pub strict: bool,
    /// To be shown to the user, once.
    pub warnings: Vec<String>,
    /// Why the plan is what it is, for who asks.
    pub reasons: Vec<String>,
}

/// No plan is possible, or not the one that `strict` wants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A setting that means nothing.
    #[error("{0}")]
    Setting(String),
    /// Something cannot be had.
    #[error("{0}; without strict placement this would be a warning")]
    Strict(String),
}

impl Plan {
    /// Frames of all partitions.
    pub fn frames(&self) -> u32 {
        self.partitions.iter().map(|partition| partition.frames).sum()
    }

    /// The partitions at home on a CPU, its own first: a thread takes the first, or they are shared out between
    /// threads. All partitions for a CPU that the plan does not know.
    pub fn homes(&self, cpu: u32) -> &[u32] {
        self.homes.get(&cpu).map_or(&self.partitions[0].nearest, Vec::as_slice)
    }

    /// The home of the `ordinal`-th thread that starts on a CPU.
    pub fn home(&self, cpu: u32, ordinal: usize) -> u32 {
        let homes = self.homes(cpu);
        homes[ordinal % homes.len()]
    }

    /// The partition of a frame of the pool, by arithmetic.
    pub fn partition_of(&self, frame: u32) -> Option<&PartitionPlan> {
        let index = self.partitions.partition_point(|partition| partition.first_frame <= frame);
        let partition = &self.partitions[index.checked_sub(1)?];
        (frame - partition.first_frame < partition.frames).then_some(partition)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "numa = {} (asked: {}), {} frames of {} bytes",
            self.used,
            self.asked,
            self.frames(),
            self.block_size
        )?;
        for partition in &self.partitions {
            let where_to = match &partition.memory {
                MemoryPolicy::Default => "where the kernel puts them".to_owned(),
                MemoryPolicy::FirstTouch(nodes) => format!("populated from node {}, not bound", list::format(nodes)),
                MemoryPolicy::Bind(node) => format!("bound to node {node}"),
                MemoryPolicy::Interleave(nodes) => format!("interleaved over nodes {}", list::format(nodes)),
            };
            let group = &self.groups[partition.group as usize];
            let (first, frames) = (partition.first_frame, partition.frames);
            writeln!(
                f,
                "  partition {}: frames {first}..{}, {where_to}, home of CPUs {}",
                partition.index,
                first + frames,
                list::format(&group.home_cpus)
            )?;
        }
        if let Some(cpus) = &self.thread_cpus {
            writeln!(f, "  threads are confined to CPUs {}", list::format(cpus))?;
        }
        self.reasons.iter().try_for_each(|reason| writeln!(f, "  because {reason}"))?;
        self.warnings.iter().try_for_each(|warning| writeln!(f, "  warning: {warning}"))
    }
}

/// What is said along the way.
#[derive(Default)]
struct Log {
    strict: bool,
    warnings: Vec<String>,
    reasons: Vec<String>,
}

impl Log {
    fn because(&mut self, reason: impl Into<String>) {
        self.reasons.push(reason.into());
    }

    /// Something that was asked for cannot be had.
    fn problem(&mut self, problem: impl Into<String>) -> Result<(), PlanError> {
        let problem = problem.into();
        if self.strict {
            return Err(PlanError::Strict(problem));
        }
        self.warnings.push(problem);
        Ok(())
    }
}

/// How the memory of partitions is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binding {
    Bind,
    FirstTouch,
    Leave,
}

/// Makes the plan.
///
/// # Errors
/// [`PlanError::Setting`] for settings that mean nothing (no frame, no partition, more partitions than frames);
/// [`PlanError::Strict`] when `strict` is set and something asked for cannot be had.
pub fn plan(machine: &Machine, settings: &Settings) -> Result<Plan, PlanError> {
    let frames = check(settings)?;
    let mut log = Log { strict: settings.strict, ..Log::default() };
    for note in &machine.notes {
        log.because(note.clone());
    }
    let usable = nodes::usable(machine, settings, &mut log)?;
    let mut used = decide(machine, settings, &usable, &mut log);
    let binding = binding(machine, settings, used, &mut log)?;
    if binding == Binding::Leave && used == Mode::Partition && settings.force_partitions.is_none() && usable.len() > 1 {
        used = Mode::Off;
    }
    let mut groups = match used {
        Mode::Partition => nodes::group(machine, &usable, settings.grouping, &mut log),
        _ => vec![usable.clone()],
    };
    let per_node = memory::partitions_per_node(settings, frames, &mut groups, &mut used, &mut log);
    let sizes = memory::share_out(machine, settings, frames, &mut groups, per_node, &mut log)?;
    let mut plan = Plan {
        asked: settings.mode,
        used,
        partitions: Vec::new(),
        groups: nodes::homes_of_groups(machine, &groups),
        homes: BTreeMap::new(),
        block_size: settings.block_size,
        thread_cpus: None,
        strict: settings.strict,
        warnings: Vec::new(),
        reasons: Vec::new(),
    };
    add_partitions(&mut plan, machine, &sizes, binding);
    assign_homes(&mut plan);
    if settings.bind_threads {
        let mut cpus: Vec<u32> = plan.groups.iter().flat_map(|group| group.own_cpus.iter().copied()).collect();
        cpus.sort_unstable();
        if cpus.is_empty() {
            log.problem("the nodes used have no CPUs that threads could be confined to")?;
        } else {
            plan.thread_cpus = Some(cpus);
        }
    }
    if let Some(value @ 1..) = machine.balancing
        && matches!(plan.used, Mode::Partition | Mode::Interleave)
        && binding == Binding::Bind
    {
        // Not an error for `strict`: the plan is carried out all the same.
        log.warnings.push(format!(
            "automatic NUMA balancing is on (kernel.numa_balancing = {value}): it unmaps pages to see who uses them, which \
             costs faults, and moves what is not bound; measure with it off (sysctl kernel.numa_balancing=0)"
        ));
    }
    (plan.warnings, plan.reasons) = (log.warnings, log.reasons);
    Ok(plan)
}

fn check(settings: &Settings) -> Result<u32, PlanError> {
    let wrong = |text: String| Err(PlanError::Setting(text));
    if settings.block_size == 0 {
        return wrong("a block size of 0".to_owned());
    }
    let frames = match u32::try_from(settings.pool_bytes / u64::from(settings.block_size)) {
        Ok(0) => {
            return wrong(format!("a pool of {} bytes holds no frame of {}", settings.pool_bytes, settings.block_size));
        }
        Ok(frames) => frames,
        Err(_) => return wrong(format!("a pool of {} bytes has too many frames", settings.pool_bytes)),
    };
    if settings.partitions_per_node == 0 || settings.force_partitions == Some(0) {
        return wrong("a pool has at least one partition".to_owned());
    }
    match settings.force_partitions {
        Some(count) if count > frames => wrong(format!("{count} partitions of a pool of {frames} frames")),
        _ => Ok(frames),
    }
}

/// What `auto` comes to, and whether the rest can be.
fn decide(machine: &Machine, settings: &Settings, usable: &[u32], log: &mut Log) -> Mode {
    let with_memory = machine.nodes.iter().filter(|node| node.memory > 0).count();
    match settings.mode {
        Mode::Off => {
            log.because("numa = off was asked for");
            Mode::Off
        }
        Mode::Interleave if usable.len() == 1 => {
            log.because(format!("only node {} can be used, there is nothing to interleave", usable[0]));
            if with_memory > 1 { Mode::Partition } else { Mode::Off }
        }
        Mode::Interleave | Mode::Partition => {
            log.because(format!("numa = {} was asked for; nodes to use: {}", settings.mode, list::format(usable)));
            settings.mode
        }
        Mode::Auto if with_memory == 1 => {
            log.because("auto: one node has memory");
            Mode::Off
        }
        Mode::Auto if settings.nodes.is_some() => {
            log.because(format!("auto: nodes were named, memory goes to {}", list::format(usable)));
            Mode::Partition
        }
        Mode::Auto if usable.len() == 1 => {
            log.because(format!("auto: of the nodes with memory this process can use node {} only", usable[0]));
            Mode::Off
        }
        Mode::Auto => {
            let (differ, why) = nodes::differ(machine, usable, settings.latencies.as_ref());
            log.because(format!("auto: {why}"));
            if differ { Mode::Partition } else { Mode::Off }
        }
    }
}

/// Whether to bind, or who else decided.
fn binding(machine: &Machine, settings: &Settings, used: Mode, log: &mut Log) -> Result<Binding, PlanError> {
    if used == Mode::Off {
        return Ok(Binding::Leave);
    }
    let policy = &machine.policy;
    if policy.is_set() {
        log.because(format!(
            "memory policy {} of nodes {} was inherited (numactl, systemd, ...): nothing is bound again",
            policy.mode,
            list::format(&policy.nodes)
        ));
        return Ok(match policy.mode {
            PolicyMode::Interleave | PolicyMode::WeightedInterleave | PolicyMode::Unknown => Binding::Leave,
            _ if used == Mode::Interleave => Binding::Leave,
            _ => Binding::FirstTouch,
        });
    }
    if let Some(why) = &machine.refused {
        log.problem(format!("memory cannot be bound ({why}); it is populated by threads on the nodes instead"))?;
        return Ok(if used == Mode::Interleave { Binding::Leave } else { Binding::FirstTouch });
    }
    if machine.nodes.iter().filter(|node| node.memory > 0).count() == 1 && settings.nodes.is_none() {
        log.because("one node has memory: there is nothing to bind");
        return Ok(Binding::Leave);
    }
    Ok(Binding::Bind)
}

fn add_partitions(plan: &mut Plan, machine: &Machine, sizes: &[Vec<u32>], binding: Binding) {
    let mut first_frame = 0;
    let only_one = machine.nodes.iter().filter(|node| node.memory > 0).count() == 1;
    for (group_index, sizes) in sizes.iter().enumerate() {
        let group = &mut plan.groups[group_index];
        let nodes = &group.nodes;
        let memory = match (binding, plan.used, nodes.as_slice()) {
            (_, Mode::Off | Mode::Auto, _) | (Binding::Leave, ..) | (_, _, []) => MemoryPolicy::Default,
            (Binding::FirstTouch, ..) => MemoryPolicy::FirstTouch(nodes.clone()),
            (Binding::Bind, _, &[node]) => MemoryPolicy::Bind(node),
            (Binding::Bind, ..) => MemoryPolicy::Interleave(nodes.clone()),
        };
        let node = match (&memory, nodes.as_slice()) {
            (MemoryPolicy::Bind(node), _) => Some(*node),
            // What local threads do to untouched memory.
            (MemoryPolicy::FirstTouch(_), &[node]) => Some(node),
            (MemoryPolicy::Default, &[node]) if only_one => Some(node),
            _ => None,
        };
        for &frames in sizes {
            let index = plan.partitions.len() as u32;
            group.partitions.push(index);
            plan.partitions.push(PartitionPlan {
                index,
                group: group_index as u32,
                node,
                first_frame,
                frames,
                memory: memory.clone(),
                populate_cpus: nodes::populate_cpus(machine, group),
                nearest: Vec::new(),
            });
            first_frame += frames;
        }
    }
    let count = plan.partitions.len() as u32;
    for index in 0..count {
        let here = &plan.groups[plan.partitions[index as usize].group as usize].nodes;
        let distance = |other: u32| {
            let there = &plan.groups[plan.partitions[other as usize].group as usize].nodes;
            nodes::group_distance(machine, here, there)
        };
        let mut nearest: Vec<u32> = (0..count).map(|step| (index + step) % count).collect();
        // Stable: among equals the next in turn.
        nearest[1..].sort_by_key(|&other| distance(other));
        plan.partitions[index as usize].nearest = nearest;
    }
}

/// Shares the CPUs at home in a group out between its partitions.
fn assign_homes(plan: &mut Plan) {
    for group in &plan.groups {
        let (cpus, partitions) = (group.home_cpus.len(), group.partitions.len());
        for (position, &cpu) in group.home_cpus.iter().enumerate() {
            let mut homes = group.partitions.clone();
            homes.rotate_left(position * partitions / cpus);
            plan.homes.insert(cpu, homes);
        }
    }
}
