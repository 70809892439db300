//! The simulator at toy size: what policies must do, and the published shapes. About ten seconds.

use heapscan::pool::balance::NumaBalance;
use heapscan_benches::numa::{
    Machine, Memory, Outcome, Run,
    cases::{self, Scale, Thread, UNDIVIDED},
    report,
};

const TOY: Scale = Scale::TOY;

/// What a pool is by default.
fn default(per_node: u32) -> Memory {
    Memory::Partitioned(per_node, NumaBalance::default())
}

#[test]
fn a_lone_scan_has_no_price() {
    for (machine, per_node) in [(Machine::chiplets(4), 2), (Machine::chiplets(8), 1), (Machine::two_sockets(), 1)] {
        for part in [0.2, 0.8] {
            let hits = |memory| cases::lone_scan(TOY, &machine, memory, part, Thread::Stays).hit_ratio;
            let (undivided, partitioned) = (hits(UNDIVIDED), hits(default(per_node)));
            assert!(partitioned >= undivided - 0.01, "{}: {partitioned} of {undivided}, table {part}", machine.name);
        }
    }
}

#[test]
fn a_lone_client_loses_with_strict_locality_as_was_published() {
    let machine = Machine::four_sockets();
    let base = cases::lone_scan(TOY, &machine, Memory::OneNode, 0.2, Thread::Stays).blocks_per_second;
    let change = |per_node, kind, thread| {
        let memory = Memory::Partitioned(per_node, kind);
        cases::lone_scan(TOY, &machine, memory, 0.2, thread).blocks_per_second / base - 1.0
    };
    for (per_node, published) in [(1, -0.25), (2, -0.47), (4, -0.49)] {
        // Either the table does not fit, or the thread has moved away from it.
        let [stays, moved] = [Thread::Stays, Thread::Moved].map(|thread| change(per_node, NumaBalance::Off, thread));
        let modelled = stays.min(moved);
        assert!((modelled - published).abs() < 0.05, "{per_node} a node: {modelled}, published {published}");
    }
    let stays = [2, 4].map(|per_node| change(per_node, NumaBalance::default(), Thread::Stays));
    assert!(stays.iter().all(|&loss| loss > -0.25), "only remote memory is left to lose: {stays:?}");
}

#[test]
fn all_load_on_one_home_fills_the_others() {
    for nodes in [2, 4, 8] {
        let fill = cases::fill(TOY, &Machine::chiplets(nodes), 2, NumaBalance::default()).least_fill;
        assert!(fill >= 0.95, "{nodes} nodes: {fill}");
    }
    assert_eq!(cases::fill(TOY, &Machine::chiplets(4), 2, NumaBalance::Off).least_fill, 0.0);
}

#[test]
fn even_load_stays_at_home() {
    for kind in [NumaBalance::Age, NumaBalance::Budget] {
        for (nodes, per_node) in [(2, 1), (4, 2), (8, 1)] {
            let memory = Memory::Partitioned(per_node, kind);
            let share = cases::even(TOY, &Machine::chiplets(nodes), memory, per_node as usize).outcome().home_victims;
            assert!(share >= 0.95, "{kind}, {nodes} x {per_node}: {share}");
        }
    }
}

#[test]
fn skewed_clients_hit_as_in_an_undivided_pool() {
    let machine = Machine::chiplets(4);
    for first in [3, 27] {
        let of = |memory| cases::skewed(TOY, &machine, memory, first, 0.72).outcome();
        let undivided = of(UNDIVIDED).hit_ratio;
        let Outcome { hit_ratio, home_victims, .. } = of(default(1));
        assert!(hit_ratio >= 0.97 * undivided, "weight {first}: {hit_ratio} of {undivided}");
        assert!(home_victims >= 0.85, "weight {first}: {home_victims} at home");
        let strict = of(Memory::Partitioned(1, NumaBalance::Off)).hit_ratio;
        assert!(strict < 0.85 * undivided, "weight {first}: the case is worth it");
    }
}

#[test]
fn many_clients_gain_by_placement_and_by_a_batched_hand() {
    let machine = Machine::four_sockets();
    let run = |memory, part| cases::concurrent_scans(TOY, &machine, memory, 64, part);
    let of = |run: Run| run.outcome().blocks_per_second;
    let interleaved = of(run(UNDIVIDED, 0.8));
    let gain = interleaved / of(run(Memory::OneNode, 0.8));
    assert!((1.6..2.3).contains(&gain), "interleaved against one node, published 1.8: {gain}");
    let gain = of(run(default(1), 1.6)) / of(run(UNDIVIDED, 1.6));
    assert!((1.2..1.9).contains(&gain), "partitioned against interleaved, published 1.31 to 1.38: {gain}");
    // Published for two sockets: 1.16 to 1.3. The model overstates it, because its threads do little else.
    let machine = Machine::two_sockets();
    let run = || cases::concurrent_scans(TOY, &machine, UNDIVIDED, 64, 1.6);
    let gain = of(run()) / of(Run { hand_batch: 1, ..run() });
    assert!((1.1..1.7).contains(&gain), "a hand that is moved in batches: {gain}");
}

#[test]
fn nodes_that_do_not_differ_gain_nothing() {
    let machine = Machine::cloud();
    let of = |memory| cases::lookups(TOY, &machine, memory, 32).outcome().blocks_per_second;
    let gain = of(default(1)) / of(UNDIVIDED);
    assert!((0.98..1.03).contains(&gain), "{gain}");
}

#[test]
fn the_report_is_the_same_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let scale = Scale { frames: 2048, rounds: 1, seed: 5 };
    let pages = ["a", "b"].map(|name| {
        let dir = dir.path().join(name);
        report::write(&dir, scale, "command").unwrap();
        ["README.md", "lone-scan.svg", "concurrent-2-sockets.svg", "skew.svg"]
            .map(|file| std::fs::read_to_string(dir.join(file)).unwrap())
    });
    assert!(pages[0] == pages[1]);
    assert!(pages[0][0].contains("| lone scan, 80 %") && pages[0][1].contains("</svg>"));
}
