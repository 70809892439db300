//! Which thread of a scan has its home on which node, and which blocks have theirs there.

use heapscan_placement::plan::Plan;

/// Where one thread belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeatPlan {
    /// Homes, its own first, then the nearest. A home is a group of the plan.
    pub(crate) nearest: Vec<u32>,
    /// Nodes of its home; none if the plan tells no nodes apart.
    pub(crate) nodes: Vec<u32>,
    /// CPUs to pin it to, if there are several homes.
    pub(crate) cpus: Option<Vec<usize>>,
}

/// Seats for `threads` threads: each home gets as many as it has CPUs in proportion. With one home nobody is pinned, the
/// kernel knows better.
pub(crate) fn seats(plan: Option<&Plan>, threads: usize) -> Vec<SeatPlan> {
    let alone = || vec![SeatPlan { nearest: vec![0], nodes: Vec::new(), cpus: None }; threads];
    let Some(plan) = plan else { return alone() };
    // Groups without partitions or CPUs are nobody's home.
    let homes: Vec<usize> = (0..plan.groups.len())
        .filter(|&g| !plan.groups[g].partitions.is_empty() && !plan.groups[g].home_cpus.is_empty())
        .collect();
    if homes.len() < 2 {
        return alone();
    }
    let mut taken = vec![0usize; homes.len()];
    let seat = |_| {
        // The home with the fewest threads for its CPUs; the first of equals.
        let load = |i: usize| (taken[i] + 1) as f64 / plan.groups[homes[i]].home_cpus.len() as f64;
        let own = (0..homes.len()).min_by(|&a, &b| load(a).total_cmp(&load(b))).unwrap_or(0);
        taken[own] += 1;
        let group = &plan.groups[homes[own]];
        let mut nearest = vec![own as u32];
        for &partition in &plan.partitions[group.partitions[0] as usize].nearest {
            let other = plan.partitions[partition as usize].group as usize;
            if let Some(place) = homes.iter().position(|&home| home == other)
                && !nearest.contains(&(place as u32))
            {
                nearest.push(place as u32);
            }
        }
        let cpus = group.home_cpus.iter().map(|&cpu| cpu as usize).collect();
        SeatPlan { nearest, nodes: group.nodes.clone(), cpus: Some(cpus) }
    };
    (0..threads).map(seat).collect()
}

/// In how many homes the blocks of a relation are parted.
pub(crate) fn homes(seats: &[SeatPlan]) -> u32 {
    seats.iter().map(|seat| seat.nearest.len()).max().unwrap_or(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use heapscan_placement::{
        plan::{self, Mode, Settings},
        topology::{Machine, Node, Source},
    };

    fn plan_of(nodes: &[(u32, std::ops::Range<u32>)], mode: Mode) -> Plan {
        let nodes: Vec<Node> = nodes
            .iter()
            .map(|(id, cpus)| Node {
                id: *id,
                memory: 64 << 30,
                cpus: cpus.clone().collect(),
                package: Some(*id),
                ..Node::default()
            })
            .collect();
        let far = |a: &Node, b: &Node| 10 + 10 * a.id.abs_diff(b.id);
        let distances = nodes.iter().map(|a| nodes.iter().map(|b| far(a, b)).collect()).collect();
        let machine = Machine::made(Source::Made, nodes, Some(distances));
        plan::plan(&machine, &Settings { mode, ..Settings::new(1 << 30, 8192) }).unwrap()
    }

    #[test]
    fn on_one_node_nobody_is_pinned() {
        for mode in [Mode::Off, Mode::Partition] {
            let seats = seats(Some(&plan_of(&[(0, 0..4)], mode)), 3);
            assert_eq!((seats.len(), homes(&seats)), (3, 1));
            assert!(seats.iter().all(|seat| seat.cpus.is_none() && seat.nearest == [0]));
        }
        let seats = seats(Some(&plan_of(&[(0, 0..4), (1, 4..8)], Mode::Off)), 3);
        assert_eq!(homes(&seats), 1);
    }

    #[test]
    fn homes_get_threads_by_their_cpus_and_the_nearest_come_first() {
        let plan = plan_of(&[(0, 0..2), (4, 2..4), (5, 4..8)], Mode::Partition);
        let seats = seats(Some(&plan), 8);
        assert_eq!(homes(&seats), 3);
        let at = |home| seats.iter().filter(|seat| seat.nearest[0] == home).count();
        assert_eq!((at(0), at(1), at(2)), (2, 2, 4));
        let of = |home| seats.iter().find(|seat| seat.nearest[0] == home).unwrap();
        assert_eq!(of(0).nearest, [0, 1, 2]);
        assert_eq!(of(1).nearest, [1, 2, 0]);
        assert_eq!(of(2).nearest, [2, 1, 0]);
        assert_eq!(of(2).nodes, [5]);
        assert_eq!(of(2).cpus.as_deref(), Some(&[4, 5, 6, 7][..]));
        // Fewer threads than homes: a home without threads is helped.
        assert_eq!(super::seats(Some(&plan), 1)[0].nearest.len(), 3);
    }
}
