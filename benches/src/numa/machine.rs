//! Machines: how long memory takes, and how much of it there is in a second.

/// Bytes of a block.
pub(super) const BLOCK: f64 = 8192.0;

/// A machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What it is.
    pub name: String,
    /// Nanoseconds from a node's CPUs to a node's memory.
    pub latency: Vec<Vec<f64>>,
    /// Bytes a nanosecond (GB/s) that one node's memory gives.
    pub node_bandwidth: f64,
    /// Bytes a nanosecond that leave one node, and as many that enter it.
    pub link_bandwidth: f64,
    /// CPUs of a node.
    pub cpus: u32,
    /// CPU nanoseconds to decode and sum a block that is in the cache.
    pub block_ns: f64,
    /// CPU nanoseconds to get a block from the kernel's page cache, without the memory's own time.
    pub read_ns: f64,
    /// Reads of consecutive lines that a CPU has under way at once in a scan.
    pub parallel_lines: f64,
}

/// `nodes` nodes in sockets of `per_socket`: latencies to oneself, within a socket and across.
fn latencies(nodes: usize, per_socket: usize, [own, near, far]: [f64; 3]) -> Vec<Vec<f64>> {
    let latency = |a: usize, b: usize| match (a == b, a / per_socket == b / per_socket) {
        (true, _) => own,
        (_, true) => near,
        _ => far,
    };
    (0..nodes).map(|a| (0..nodes).map(|b| latency(a, b)).collect()).collect()
}

impl Machine {
    /// Four sockets, 32 cores, slow interconnect: 17 GB/s a socket. Latencies were not published: 90 and 340 ns are
    /// common for such machines.
    pub fn four_sockets() -> Self {
        Self {
            name: "4 sockets, 32 cores, slow links".into(),
            latency: latencies(4, 1, [90.0, 340.0, 340.0]),
            node_bandwidth: 17.0,
            link_bandwidth: 7.0,
            cpus: 8,
            block_ns: 4200.0,
            read_ns: 3650.0,
            parallel_lines: 20.0,
        }
    }

    /// Two sockets, 64 cores, 105 and 170 ns, 175 and 55 GB/s.
    pub fn two_sockets() -> Self {
        Self {
            name: "2 sockets, 64 cores, 105/170 ns".into(),
            latency: latencies(2, 1, [105.0, 170.0, 170.0]),
            node_bandwidth: 175.0,
            link_bandwidth: 55.0,
            cpus: 32,
            block_ns: 2000.0,
            read_ns: 1600.0,
            parallel_lines: 20.0,
        }
    }

    /// Chiplets of 107, 117 and 207 ns: `nodes` of them, half of them on each of two sockets.
    pub fn chiplets(nodes: usize) -> Self {
        Self {
            name: format!("{nodes} chiplet nodes on 2 sockets, 107/117/207 ns"),
            latency: latencies(nodes, nodes.div_ceil(2), [107.0, 117.0, 207.0]),
            node_bandwidth: 80.0,
            link_bandwidth: 50.0,
            cpus: 16,
            ..Self::two_sockets()
        }
    }

    /// A cloud instance: a node for each chiplet, and no difference between them.
    pub fn cloud() -> Self {
        Self {
            name: "4 nodes of one socket, 130/130 ns".into(),
            latency: latencies(4, 4, [130.0; 3]),
            node_bandwidth: 80.0,
            link_bandwidth: 80.0,
            cpus: 12,
            ..Self::two_sockets()
        }
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.latency.len()
    }
}
