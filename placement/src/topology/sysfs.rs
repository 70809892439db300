//! Reads a machine from `/sys/devices/system/{node,cpu}` and `/proc` (Documentation/ABI/stable/sysfs-devices-node).
//! Whatever is missing or odd costs the detail, not the description; it is noted.

use super::{HugePagePool, Machine, Node, Source, TopologyError};
use crate::list;
use std::{collections::BTreeSet, fs, path::Path};

struct Tree<'a> {
    root: &'a Path,
    notes: Vec<String>,
}

impl Tree<'_> {
    fn text(&self, path: &str) -> std::io::Result<String> {
        fs::read_to_string(self.root.join(path))
    }

    /// A list, if the file is there and holds one.
    fn list(&mut self, path: &str) -> Option<Vec<u32>> {
        let text = self.text(path).ok()?;
        list::parse(&text).map_err(|error| self.notes.push(format!("/{path}: {error}"))).ok()
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path).ok()?.trim().parse().ok()
    }
}

pub(super) fn read(root: &Path, source: Source) -> Result<Machine, TopologyError> {
    let mut tree = Tree { root, notes: Vec::new() };
    let online = "sys/devices/system/node/online";
    let ids = match tree.list(online) {
        Some(ids) if !ids.is_empty() => ids,
        _ => {
            let source = tree.text(online).map_or_else(
                |error| error,
                |text| std::io::Error::other(format!("{:?} is no list of nodes", text.trim())),
            );
            return Err(TopologyError::Read { path: root.join(online), source });
        }
    };
    let online_cpus: Option<BTreeSet<u32>> =
        tree.list("sys/devices/system/cpu/online").map(|list| list.into_iter().collect());
    let nodes: Vec<Node> = ids.iter().map(|&id| node(&mut tree, id, online_cpus.as_ref())).collect();
    let distances = distances(&mut tree, &ids);
    let mut machine = Machine::made(source, nodes, distances);
    let possible = tree.list("sys/devices/system/node/possible").unwrap_or_default();
    machine.offline = possible.into_iter().filter(|id| !ids.contains(id)).collect();
    let status = tree.text("proc/self/status").unwrap_or_default();
    let field =
        |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).and_then(|text| list::parse(text).ok());
    machine.allowed_nodes = field("Mems_allowed_list:");
    machine.allowed_cpus = field("Cpus_allowed_list:");
    machine.balancing = tree.number("proc/sys/kernel/numa_balancing").and_then(|value| u32::try_from(value).ok());
    machine.notes = tree.notes;
    if machine.nodes.iter().all(|node| node.memory == 0) {
        return Err(TopologyError::NoMemory(machine.source));
    }
    Ok(machine)
}

fn node(tree: &mut Tree<'_>, id: u32, online_cpus: Option<&BTreeSet<u32>>) -> Node {
    let base = format!("sys/devices/system/node/node{id}");
    let mut cpus = tree.list(&format!("{base}/cpulist")).unwrap_or_default();
    cpus.retain(|cpu| online_cpus.is_none_or(|online| online.contains(cpu)));
    let meminfo = tree.text(&format!("{base}/meminfo")).unwrap_or_default();
    let packages: BTreeSet<u64> = cpus
        .iter()
        .filter_map(|cpu| tree.number(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id")))
        .collect();
    let package = match packages.first() {
        Some(&package) if packages.len() == 1 => u32::try_from(package).ok(),
        _ => None,
    };
    Node {
        id,
        memory: field(&meminfo, "MemTotal").unwrap_or(0),
        free: field(&meminfo, "MemFree"),
        available: available(tree.root, id),
        huge_pages: huge_pages(tree, &base),
        cpus,
        package,
        subtype: None,
    }
}

/// `Node 0 MemTotal:  24617488 kB`, in bytes.
fn field(meminfo: &str, key: &str) -> Option<u64> {
    meminfo.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        if words.next()?.strip_suffix(':')? != key {
            return None;
        }
        words.next()?.parse::<u64>().ok()?.checked_mul(1024)
    })
}

/// Like `MemAvailable`, which the kernel gives for the whole machine only (mm/show_mem.c, si_mem_available): free pages
/// above what it keeps for itself, half of the page cache's (the rest may be in use), what slab can give back.
fn reclaimable(meminfo: &str, zoneinfo: &str, id: u32) -> Option<u64> {
    let get = |key| field(meminfo, key).unwrap_or(0);
    let cache = get("Active(file)").saturating_add(get("Inactive(file)")).saturating_add(get("SReclaimable"));
    let free = field(meminfo, "MemFree")?.saturating_sub(reserve(zoneinfo, id));
    Some(free.saturating_add(cache / 2))
}

/// Bytes that the zones of a node keep free: the high watermark, and the largest protection from requests that could
/// take memory elsewhere (`/proc/zoneinfo`, in pages). Below that the kernel reclaims, and then kills.
fn reserve(zoneinfo: &str, id: u32) -> u64 {
    let (mut pages, mut here) = (0u64, false);
    for line in zoneinfo.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Node"), Some(node)) => here = node.trim_end_matches(',').parse() == Ok(id),
            (Some("high"), Some(number)) if here => pages = pages.saturating_add(number.parse().unwrap_or(0)),
            (Some("protection:"), Some(_)) if here => {
                let numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u64>().ok());
                pages = pages.saturating_add(numbers.max().unwrap_or(0));
            }
            _ => {}
        }
    }
    pages.saturating_mul(crate::pages::page_size() as u64)
}

pub(super) fn available(root: &Path, id: u32) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join(format!("sys/devices/system/node/node{id}/meminfo"))).ok()?;
    reclaimable(&meminfo, &fs::read_to_string(root.join("proc/zoneinfo")).unwrap_or_default(), id)
}

/// Free huge pages of a size on a node.
pub(super) fn free_huge_pages(root: &Path, id: u32, page_size: u64) -> Option<u64> {
    let size = page_size / 1024;
    let path = format!("sys/devices/system/node/node{id}/hugepages/hugepages-{size}kB/free_hugepages");
    fs::read_to_string(root.join(path)).ok()?.trim().parse().ok()
}

fn huge_pages(tree: &Tree<'_>, base: &str) -> Vec<HugePagePool> {
    let folder = format!("{base}/hugepages");
    let Ok(entries) = fs::read_dir(tree.root.join(&folder)) else { return Vec::new() };
    let mut pools: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let kilobytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            Some(HugePagePool {
                page_size: kilobytes.checked_mul(1024)?,
                total: tree.number(&format!("{folder}/{name}/nr_hugepages"))?,
                free: tree.number(&format!("{folder}/{name}/free_hugepages")),
            })
        })
        .collect();
    pools.sort_unstable_by_key(|pool| pool.page_size);
    pools
}

/// One file a node, one column for each *online* node in ascending order (not for each id).
fn distances(tree: &mut Tree<'_>, ids: &[u32]) -> Option<Vec<Vec<u32>>> {
    let mut rows = Vec::with_capacity(ids.len());
    for id in ids {
        let path = format!("sys/devices/system/node/node{id}/distance");
        let text = tree.text(&path).ok()?;
        let row: Option<Vec<u32>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
        match row {
            Some(row) if row.len() == ids.len() => rows.push(row),
            _ => {
                tree.notes.push(format!("/{path}: {:?} is not {} distances; taken as unknown", text.trim(), ids.len()));
                return None;
            }
        }
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_keeps_is_not_available() {
        let zones = "Node 0, zone      DMA\n  pages free     3840\n        boost    0\n        min      21\n        high     33\n        \
                     protection: (0, 100, 90)\nNode 1, zone   Normal\n        high     1000\n    cpu: 0\n              high:  500\n        \
                     protection: (0, 0)\n";
        let page = crate::pages::page_size() as u64;
        assert_eq!((reserve(zones, 0), reserve(zones, 1), reserve(zones, 2)), (133 * page, 1000 * page, 0));
        let meminfo = "Node 1 MemFree: 8192 kB\nNode 1 Active(file): 2048 kB\n";
        assert_eq!(reclaimable(meminfo, zones, 1), Some((8192 << 10) - 1000 * page + (1024 << 10)));
        assert_eq!(reclaimable("Node 1 MemFree: 1 kB", zones, 1), Some(0));
        assert_eq!(reclaimable("", zones, 1), None);
    }
}
