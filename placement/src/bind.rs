//! Does what the plan says: maps, binds before anything is touched, populates from threads on the node, and falls back
//! step by step where something cannot be had: huge pages to ordinary ones, bound to unbound, smaller.
//!
//! Touching memory that is bound to a node which has none left ends the process (SIGBUS for explicit huge pages, the OOM
//! killer for others). So everything bound is populated here, by a call that fails instead, and ordinary pages only
//! after a look at what the node has left.

use crate::{
    list,
    memory::{HugePages, MapError, MapOptions, Mapping, PageKind, default_huge_page_size},
    pages::{self, PageCounts},
    plan::{MemoryPolicy, PartitionPlan, Plan},
    sys, thread,
    topology::Machine,
};
use serde::Serialize;
use std::{fmt, io, ops::Range};

/// Ordinary pages are populated in pieces of this size, with a look at the node's free memory before each.
const CHUNK: usize = 64 << 20;

/// Memory that stays free on a node while a piece is populated: others allocate too.
const SPARE: u64 = 64 << 20;

/// A node that cannot hold a quarter of what it should is not worth binding to.
const WORTH_HAVING: usize = 4;

/// Pages looked at to see where memory went.
const SAMPLE: usize = 512;

/// How memory came to be where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Bound to a node and populated.
    Bound,
    /// Populated by threads on the node, without binding.
    FirstTouch,
    /// Page by page on several nodes.
    Interleaved,
    /// Wherever the kernel took it from.
    Unbound,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bound => "bound",
            Self::FirstTouch => "first touch",
            Self::Interleaved => "interleaved",
            Self::Unbound => "unbound",
        })
    }
}

/// Memory that was placed.
#[derive(Debug)]
pub struct Placed {
    /// The memory.
    pub mapping: Mapping,
    /// How it came to be where it is.
    pub placement: Placement,
    /// Bytes that may be used: what was asked for, or less when the node has no room for more.
    pub len: usize,
    /// Whether all pages are there. If not, [`Mapping::populate`] has to be called before memory is touched.
    pub populated: bool,
    /// What was not as planned, one line each.
    pub fallbacks: Vec<String>,
}

impl Placed {
    /// Where the memory is, by asking the kernel about every page.
    ///
    /// # Errors
    /// When the kernel or a container refuses.
    pub fn where_are(&self) -> io::Result<PageCounts> {
        pages::where_are(&self.mapping, 0..self.len)
    }

    /// Whole frames of a size.
    pub fn frames(&self, frame_bytes: usize) -> usize {
        self.len / frame_bytes.max(1)
    }
}

/// Memory could not be had, or not as strictly as wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// No memory, or no huge pages although they must be.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Memory cannot be placed as planned and `strict` is set.
    #[error("{0}; without strict placement this would be a warning")]
    Strict(String),
}

/// What to place.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Where.
    pub memory: &'a MemoryPolicy,
    /// CPUs to populate from.
    pub cpus: &'a [u32],
    /// Bytes.
    pub len: usize,
    /// What `len` may be reduced by multiples of when the node has no room; `None`: it must not be reduced.
    pub unit: Option<usize>,
    /// Huge pages.
    pub options: MapOptions,
    /// Whether what cannot be had is an error.
    pub strict: bool,
}

struct Placing<'a> {
    machine: &'a Machine,
    request: Request<'a>,
    fallbacks: Vec<String>,
}

enum Failure {
    /// The node has room for so many bytes only.
    Room(usize),
    /// The policy was refused.
    Refused(String),
    /// The pages cannot be had.
    Pages(MapError),
}

impl Placing<'_> {
    fn fall_back(&mut self, why: String) -> Result<(), BindError> {
        if self.request.strict {
            return Err(BindError::Strict(why));
        }
        self.fallbacks.push(why);
        Ok(())
    }

    fn node(&self) -> Option<u32> {
        if let MemoryPolicy::Bind(node) = self.request.memory { Some(*node) } else { None }
    }

    fn run(mut self) -> Result<Placed, BindError> {
        let mut len = self.request.len;
        if let Some(mapping) = self.huge(len)? {
            let placement = self.planned();
            return Ok(self.finish(mapping, len, placement, true));
        }
        let asked = self.request.options.huge_pages;
        if *self.request.memory == MemoryPolicy::Default {
            let mapping = Mapping::ordinary(len, asked, Vec::new())?;
            return Ok(self.finish(mapping, len, Placement::Unbound, false));
        }
        // Once smaller at most: room that goes on shrinking is somebody else's, and no place to be.
        // Room can be taken between looking and taking, so what is left is asked for again.
        for try_smaller in [true, true, true, false] {
            match self.ordinary(len) {
                Ok(mapping) => {
                    let placement = self.planned();
                    return Ok(self.finish(mapping, len, placement, true));
                }
                Err(Failure::Room(room)) => {
                    let node = self.node().unwrap_or(0);
                    let unit = self.request.unit.unwrap_or(usize::MAX);
                    let smaller = room / unit * unit;
                    let why = format!("node {node} has room for {room} of {len} bytes");
                    if try_smaller && smaller > 0 && smaller >= len / WORTH_HAVING {
                        self.fall_back(format!("{why}: using {smaller} bytes there"))?;
                        len = smaller;
                        continue;
                    }
                    self.fall_back(format!("{why}: memory is not bound"))?;
                }
                Err(Failure::Refused(why)) => self.fall_back(why)?,
                Err(Failure::Pages(error)) => self.fall_back(format!("bound memory: {error}"))?,
            }
            break;
        }
        // A mapping without a policy, so that no page of it is bound to where there is none.
        let mapping = Mapping::ordinary(len, asked, Vec::new())?;
        on_cpus(self.request.cpus, || mapping.populate(0..mapping.len()))?;
        Ok(self.finish(mapping, len, Placement::FirstTouch, true))
    }

    /// Ordinary pages. The node is looked at first: what it has no room for need not be mapped.
    fn ordinary(&self, len: usize) -> Result<Mapping, Failure> {
        if let Some(room) = self.room().filter(|&room| room < len) {
            return Err(Failure::Room(room));
        }
        let asked = self.request.options.huge_pages;
        let mapping = Mapping::ordinary(len, asked, Vec::new()).map_err(Failure::Pages)?;
        self.policy(&mapping)?;
        self.populate(&mapping)?;
        Ok(mapping)
    }

    /// Bytes of ordinary pages that the node to bind to can give now, if there is one and that is known.
    fn room(&self) -> Option<usize> {
        let available = self.machine.available_now(self.node()?)?;
        Some(usize::try_from(available.saturating_sub(SPARE)).unwrap_or(usize::MAX))
    }

    /// Explicit huge pages, if they are wanted and there are some.
    fn huge(&mut self, len: usize) -> Result<Option<Mapping>, BindError> {
        let options = self.request.options;
        let required = options.huge_pages == HugePages::On;
        if options.huge_pages == HugePages::Off || (!required && self.lacks_huge_pages(len)) {
            return Ok(None);
        }
        let mut mapping = match Mapping::new(len, options) {
            Ok(mapping) => mapping,
            // Not even address space for so many ordinary pages; fewer may do.
            Err(MapError::Map { .. }) if !required => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !matches!(mapping.report().used, PageKind::Huge(_)) {
            return Ok(None);
        }
        if *self.request.memory == MemoryPolicy::Default {
            mapping.populate_all()?;
            return Ok(Some(mapping));
        }
        match self.policy(&mapping).and_then(|()| self.populate(&mapping)) {
            Ok(()) => Ok(Some(mapping)),
            Err(Failure::Pages(error)) if required => Err(error.into()),
            Err(Failure::Pages(error)) => {
                // The promise was for the whole machine.
                let node = self.node().map_or(String::new(), |node| format!(" on node {node}"));
                self.fall_back(format!("explicit huge pages{node}: {error}; ordinary pages instead"))?;
                Ok(None)
            }
            // Huge pages without the node are still worth having, but for ordinary pages the same is found out again.
            Err(Failure::Refused(why)) if required => {
                self.fall_back(why)?;
                on_cpus(self.request.cpus, || mapping.populate_all())?;
                Ok(Some(mapping))
            }
            Err(_) => Ok(None),
        }
    }

    /// Whether the node is known to have too few huge pages: then none are reserved, which others could use.
    fn lacks_huge_pages(&mut self, len: usize) -> bool {
        let Some(node) = self.node() else { return false };
        let size = self.request.options.huge_page_size.or_else(default_huge_page_size);
        let Some(size) = size.filter(|size| size.is_power_of_two()) else { return false };
        let needed = len.div_ceil(size) as u64;
        let Some(free) = self.machine.free_huge_pages_now(node, size as u64) else { return false };
        if free >= needed {
            return false;
        }
        // Nobody reserved any: the ordinary state of a machine, nothing to warn of.
        let reserved = |pool: &crate::topology::HugePagePool| pool.page_size == size as u64 && pool.total > 0;
        if self.machine.nodes.iter().flat_map(|node| &node.huge_pages).any(reserved) {
            self.fallbacks.push(format!(
                "node {node} has {free} of {needed} free huge pages of {} kB; ordinary pages instead",
                size / 1024
            ));
        }
        true
    }

    fn policy(&self, mapping: &Mapping) -> Result<(), Failure> {
        let (mode, nodes) = match self.request.memory {
            MemoryPolicy::Default | MemoryPolicy::FirstTouch(_) => return Ok(()),
            MemoryPolicy::Bind(node) => (sys::MPOL_BIND, vec![*node]),
            MemoryPolicy::Interleave(nodes) => (sys::MPOL_INTERLEAVE, nodes.clone()),
        };
        sys::bind(mapping, mode, &nodes).map_err(|error| {
            let hint = match error.raw_os_error() {
                Some(libc::EPERM) => " (a container's seccomp profile; CAP_SYS_NICE may lift it)",
                Some(libc::ENOSYS) => " (a kernel without NUMA)",
                Some(libc::EINVAL) => " (is the node online, with memory, and allowed by the cpuset?)",
                _ => "",
            };
            Failure::Refused(format!("mbind to node {}: {error}{hint}; memory is not bound", list::format(&nodes)))
        })
    }

    fn populate(&self, mapping: &Mapping) -> Result<(), Failure> {
        let ordinary = !matches!(mapping.report().used, PageKind::Huge(_));
        on_cpus(self.request.cpus, || {
            for start in (0..mapping.len()).step_by(CHUNK) {
                let range: Range<usize> = start..(start + CHUNK).min(mapping.len());
                if ordinary && self.room().is_some_and(|room| room < range.len()) {
                    return Err(Failure::Room(start));
                }
                mapping.populate(range).map_err(Failure::Pages)?;
            }
            Ok(())
        })
    }

    fn planned(&self) -> Placement {
        match self.request.memory {
            MemoryPolicy::Default => Placement::Unbound,
            MemoryPolicy::FirstTouch(_) => Placement::FirstTouch,
            MemoryPolicy::Bind(_) => Placement::Bound,
            MemoryPolicy::Interleave(_) => Placement::Interleaved,
        }
    }

    fn finish(mut self, mapping: Mapping, len: usize, placement: Placement, populated: bool) -> Placed {
        // Believe the kernel, not the calls: look where it went. Where that is refused, nothing more can be known.
        if let (Placement::Bound, Some(node)) = (placement, self.node())
            && let Ok(counts) = pages::sample(&mapping, SAMPLE)
        {
            let known = counts.total() - counts.unknown;
            let elsewhere = known - counts.on(node);
            if elsewhere > 0 {
                self.fallbacks.push(format!("{elsewhere} of {known} pages looked at are not on node {node}"));
            }
        }
        Placed { mapping, placement, len, populated, fallbacks: self.fallbacks }
    }
}

/// Maps memory, binds and populates it. Explicit huge pages are always populated, other unbound memory is not (see
/// [`Placed::populated`]).
///
/// # Errors
/// [`BindError`]: without `strict` only when there is no memory, or no huge pages with [`HugePages::On`].
pub fn place(machine: &Machine, request: Request<'_>) -> Result<Placed, BindError> {
    Placing { machine, request, fallbacks: Vec::new() }.run()
}

/// Frames and descriptors of one partition.
#[derive(Debug)]
pub struct PlacedPartition {
    /// The frames.
    pub frames: Placed,
    /// How many; fewer than planned when the node has no room.
    pub frame_count: u32,
    /// Memory for the descriptors, on the same node, on small pages of its own; zeroed.
    pub descriptors: Placed,
}

/// Places all partitions of a plan at the same time, with `descriptor_bytes` of descriptor memory a frame. Returns them in
/// the plan's order, and what was not as planned, each once.
///
/// # Errors
/// As [`place`], the first of any partition.
pub fn place_all(
    machine: &Machine,
    plan: &Plan,
    descriptor_bytes: usize,
    options: MapOptions,
) -> Result<(Vec<PlacedPartition>, Vec<String>), BindError> {
    let placed: Vec<Result<PlacedPartition, BindError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = plan
            .partitions
            .iter()
            .map(|partition| scope.spawn(move || place_partition(machine, plan, partition, descriptor_bytes, options)))
            .collect();
        let panicked = || Err(BindError::Strict("the thread that places a partition panicked".to_owned()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    let placed: Vec<PlacedPartition> = placed.into_iter().collect::<Result<_, _>>()?;
    let warnings = warnings(&placed);
    Ok((placed, warnings))
}

fn place_partition(
    machine: &Machine,
    plan: &Plan,
    partition: &PartitionPlan,
    descriptor_bytes: usize,
    options: MapOptions,
) -> Result<PlacedPartition, BindError> {
    let block_size = plan.block_size as usize;
    let (memory, cpus, strict) = (&partition.memory, partition.populate_cpus.as_slice(), plan.strict);
    let len = partition.frames as usize * block_size;
    let frames = place(machine, Request { memory, cpus, len, unit: Some(block_size), options, strict })?;
    let frame_count = partition.frames.min(frames.frames(block_size) as u32);
    let small = MapOptions { huge_pages: HugePages::Off, huge_page_size: None };
    let len = (frame_count as usize * descriptor_bytes).max(1);
    let descriptors = place(machine, Request { memory, cpus, len, unit: None, options: small, strict })?;
    Ok(PlacedPartition { frames, frame_count, descriptors })
}

/// The same trouble of several partitions is one line.
fn warnings(placed: &[PlacedPartition]) -> Vec<String> {
    let mut lines: Vec<(String, Vec<u32>)> = Vec::new();
    for (index, partition) in (0..).zip(placed) {
        for text in partition.frames.fallbacks.iter().chain(&partition.descriptors.fallbacks) {
            match lines.iter_mut().find(|(known, _)| known == text) {
                Some((_, partitions)) if partitions.last() == Some(&index) => {}
                Some((_, partitions)) => partitions.push(index),
                None => lines.push((text.clone(), vec![index])),
            }
        }
    }
    lines.into_iter().map(|(text, partitions)| format!("partition {}: {text}", list::format(&partitions))).collect()
}

/// Runs something on a thread of its own, on these CPUs if that is allowed: memory is then on their node by first touch,
/// and the caller's own affinity stays as it is.
fn on_cpus<T: Send>(cpus: &[u32], work: impl FnOnce() -> T + Send) -> T {
    let wanted: Vec<usize> = cpus.iter().map(|&cpu| cpu as usize).collect();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Best effort: bound memory goes where it shall from anywhere.
            let _ = thread::pin_current_thread(&wanted);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
