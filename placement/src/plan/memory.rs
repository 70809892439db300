//! How many partitions, and how many frames each.

use super::{Log, Mode, PlanError, Settings};
use crate::{list, topology::Machine};

/// What is left free on a node: memory is needed there for other things too.
fn spare(available: u64) -> u64 {
    (available / 20).max(64 << 20)
}

/// The partitions of each group: as asked, fewer where they would be too small. A pool that is too small for a partition
/// on each node is not partitioned at all.
pub(super) fn partitions_per_node(
    settings: &Settings,
    frames: u32,
    groups: &mut Vec<Vec<u32>>,
    used: &mut Mode,
    log: &mut Log,
) -> Vec<u32> {
    if let Some(count) = settings.force_partitions {
        log.because(format!("{count} partitions were forced"));
        let count = count as usize;
        if groups.len() > count {
            // Neighbours go together.
            let merged = groups.len();
            let all = std::mem::take(groups);
            groups.resize(count, Vec::new());
            for (index, nodes) in all.into_iter().enumerate() {
                groups[index * count / merged].extend(nodes);
            }
        }
        let places = groups.len();
        return (0..places).map(|place| ((place + 1) * count / places - place * count / places) as u32).collect();
    }
    let wanted = settings.partitions_per_node;
    let most = frames / settings.min_frames.max(1) / groups.len() as u32;
    if most >= wanted {
        return vec![wanted; groups.len()];
    }
    if most >= 1 {
        log.because(format!(
            "{wanted} partitions for each node would have fewer than {} frames; making {most}",
            settings.min_frames
        ));
        return vec![most; groups.len()];
    }
    if groups.len() > 1 {
        log.because(format!(
            "a pool of {frames} frames is too small for {} partitions of {} frames at least; not partitioned",
            groups.len(),
            settings.min_frames
        ));
        let all = groups.concat();
        *groups = vec![all];
        *used = Mode::Off;
    }
    vec![1]
}

/// Frames that the nodes of a group can hold; `None` when that is not known.
fn room(machine: &Machine, settings: &Settings, nodes: &[u32]) -> Option<u64> {
    let bytes: Option<u64> = nodes
        .iter()
        .map(|&id| {
            let node = machine.node(id)?;
            let huge = node.huge_pages.iter().filter_map(|pool| Some(pool.free? * pool.page_size)).max().unwrap_or(0);
            node.available.map(|available| available.saturating_sub(spare(available)).max(huge))
        })
        .sum();
    bytes.map(|bytes| bytes / u64::from(settings.block_size))
}

/// Frames of each partition, group by group: equal shares, less where a node lacks memory, and what is missing there on
/// the others as far as they have room. Groups that cannot hold a partition worth having are dropped.
pub(super) fn share_out(
    machine: &Machine,
    settings: &Settings,
    frames: u32,
    groups: &mut Vec<Vec<u32>>,
    mut partitions: Vec<u32>,
    log: &mut Log,
) -> Result<Vec<Vec<u32>>, PlanError> {
    if groups.len() > 1 && settings.force_partitions.is_none() {
        let full =
            |nodes: &Vec<u32>| room(machine, settings, nodes).is_some_and(|room| room < u64::from(settings.min_frames));
        let keep: Vec<bool> = groups.iter().map(|nodes| !full(nodes)).collect();
        if keep.contains(&true) {
            for (nodes, _) in groups.iter().zip(&keep).filter(|(_, keep)| !**keep) {
                log.problem(format!("node {} has too little free memory for a partition", list::format(nodes)))?;
            }
            let mut kept = keep.iter();
            groups.retain(|_| *kept.next().unwrap_or(&true));
            let mut kept = keep.iter();
            partitions.retain(|_| *kept.next().unwrap_or(&true));
        }
    }
    let total: u32 = partitions.iter().sum();
    let at = |step: u32| (u64::from(frames) * u64::from(step) / u64::from(total)) as u32;
    let mut sizes = Vec::new();
    let mut step = 0;
    for &count in &partitions {
        sizes.push((step..step + count).map(|step| at(step + 1) - at(step)).collect::<Vec<u32>>());
        step += count;
    }
    if groups.len() > 1 {
        fit(machine, settings, groups, &mut sizes, log)?;
    }
    Ok(sizes)
}

/// Moves frames from groups that lack memory to those that have room.
fn fit(
    machine: &Machine,
    settings: &Settings,
    groups: &[Vec<u32>],
    sizes: &mut [Vec<u32>],
    log: &mut Log,
) -> Result<(), PlanError> {
    let sum = |sizes: &[u32]| sizes.iter().map(|&n| u64::from(n)).sum::<u64>();
    let rooms: Vec<u64> = groups.iter().map(|nodes| room(machine, settings, nodes).unwrap_or(u64::MAX)).collect();
    let mut missing = 0;
    for (index, sizes) in sizes.iter_mut().enumerate() {
        let (wanted, room) = (sum(sizes), rooms[index].max(sizes.len() as u64));
        if wanted > room {
            log.problem(format!("node {} has room for {room} of {wanted} frames", list::format(&groups[index])))?;
            resize(sizes, room);
            missing += wanted - room;
        }
    }
    // Evenly; what one group has no room for goes round again.
    for left in (1..=sizes.len()).rev() {
        let share = missing.div_ceil(left as u64);
        for (index, sizes) in sizes.iter_mut().enumerate() {
            let has = sum(sizes);
            let more = share.min(missing).min(rooms[index].saturating_sub(has));
            if more > 0 {
                resize(sizes, has + more);
                missing -= more;
            }
        }
    }
    if missing > 0 {
        log.problem(format!("the pool is {missing} frames smaller than asked: the nodes used have no room for more"))?;
    }
    Ok(())
}

fn resize(sizes: &mut [u32], total: u64) {
    let count = sizes.len() as u64;
    for (step, size) in (0..).zip(sizes.iter_mut()) {
        *size = (total * (step + 1) / count - total * step / count) as u32;
    }
}
