//! Which rows are measured: a comparison of the methods in each state, and each setting varied alone.

use super::{
    args::BenchArgs,
    case::{Access, Case, State, Workload},
    ceilings,
    data::Data,
};
use heapscan::{MethodName, pool::DEFAULT_IO_CONCURRENCY};
use heapscan_io::RawPoint;

pub(super) struct Plan {
    /// The settings that rows have unless they say otherwise.
    pub(super) base: Case,
    /// Rows that take turns.
    pub(super) groups: Vec<Vec<Case>>,
}

/// Lookups in flight, and their pool at most.
const LOOKUPS_IN_FLIGHT: u32 = 64;
const LOOKUP_POOL: u64 = 8 << 20;

/// A pool that holds all of the table, with some room for the catalogs.
pub(super) fn hot_pool(bytes: u64) -> u64 {
    (bytes + bytes / 32 + (16 << 20)).next_multiple_of(2 << 20)
}

/// Rows for `methods`; `best` is the point of the ceiling of direct reads, where it is known.
pub(super) fn plan(args: &BenchArgs, data: &Data, methods: &[MethodName], best: Option<&RawPoint>, fio: bool) -> Plan {
    let base = Case {
        system: "heapscan".to_owned(),
        workload: Workload::Agg,
        state: State::Cold,
        access: Access::Direct,
        io_method: "sync".to_owned(),
        io_combine_limit: 128 << 10,
        effective_io_concurrency: DEFAULT_IO_CONCURRENCY,
        io_workers: None,
        clients: 1,
        threads: 1,
        shared_buffers: args.shared_buffers,
        huge_pages: args.huge_pages,
    };
    let workloads = if args.method_only { vec![Workload::MethodOnly] } else { args.workloads.clone() };
    let make = Maker { args, base: &base, methods, workloads: &workloads };
    let mut groups = vec![
        make.cold_direct(best, fio),
        make.cold_lookups(data, best.is_some(), fio),
        make.plain(State::Cold, Access::Buffered),
        make.warm(),
        make.warm_concurrent(data),
        make.hot(data),
        make.hot_concurrent(data),
    ];
    for group in &mut groups {
        group.retain(|case| args.states.contains(&case.state));
        let mut seen: Vec<Case> = Vec::new();
        group.retain(|case| {
            let new = !seen.contains(case);
            if new {
                seen.push(case.clone());
            }
            new
        });
    }
    // A ceiling alone is not worth its time.
    groups.retain(|group| group.iter().any(|case| !case.workload.is_ceiling()));
    Plan { base, groups }
}

struct Maker<'a> {
    args: &'a BenchArgs,
    base: &'a Case,
    methods: &'a [MethodName],
    workloads: &'a [Workload],
}

impl Maker<'_> {
    fn has(&self, workload: Workload) -> bool {
        self.workloads.contains(&workload)
    }

    fn scan(&self, workload: Workload, method: MethodName) -> Case {
        Case { workload, io_method: method.to_string(), ..self.base.clone() }
    }

    /// Each workload with each method.
    fn plain(&self, state: State, access: Access) -> Vec<Case> {
        if state == State::Cold && !self.args.reads.contains(&access) {
            return Vec::new();
        }
        let offset = (state == State::Warm).then_some(Workload::Offset);
        let scans = [Workload::Agg, Workload::MethodOnly].into_iter().chain(offset).filter(|&w| self.has(w));
        let mut cases: Vec<Case> =
            scans.flat_map(|w| self.methods.iter().map(move |&m| Case { state, access, ..self.scan(w, m) })).collect();
        if self.has(Workload::Agg) {
            // The others are of interest beside the best method.
            let best = if self.methods.contains(&MethodName::IoUring) { Some(MethodName::IoUring) } else { None };
            let best = best.or(self.methods.last().copied());
            cases.retain(|case| {
                let all = case.workload == Workload::Agg || (!self.args.quick && case.workload == Workload::MethodOnly);
                all || case.method() == best
            });
        }
        cases
    }

    fn cold_direct(&self, best: Option<&RawPoint>, fio: bool) -> Vec<Case> {
        let mut cases = Vec::new();
        if !self.args.reads.contains(&Access::Direct) {
            return cases;
        }
        if let Some(point) = best {
            let ceiling = |workload, system: &str| Case {
                workload,
                system: system.to_owned(),
                io_method: if point.registered { "io_uring fixed" } else { "io_uring" }.to_owned(),
                io_combine_limit: point.read_bytes as u64,
                effective_io_concurrency: point.depth,
                ..self.base.clone()
            };
            cases.push(ceiling(Workload::Raw, "bare ring"));
            if fio {
                let fio = ceiling(Workload::Fio, "fio");
                // The same, and what a scan with the usual settings asks for.
                let (io_combine_limit, effective_io_concurrency) =
                    (self.base.io_combine_limit, self.base.effective_io_concurrency);
                let io_method = "io_uring".to_owned();
                cases.push(Case { io_method, io_combine_limit, effective_io_concurrency, ..fio.clone() });
                cases.push(fio);
            }
        }
        cases.extend(self.plain(State::Cold, Access::Direct));
        if self.has(Workload::Agg) {
            cases.extend(self.sweeps());
        }
        cases
    }

    /// One setting at a time, where the device is what is waited for.
    fn sweeps(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        let args = self.args;
        for &method in self.methods {
            let scan = self.scan(Workload::Agg, method);
            // In a quick run only the limits that the bars of the project speak of.
            for &limit in args.io_combine_limits.iter().filter(|&&limit| !args.quick || limit <= 8 << 10) {
                cases.push(scan.with_combine_limit(limit));
            }
            if method != MethodName::Sync && !args.quick {
                for &concurrency in &args.effective_io_concurrencies {
                    cases.push(Case { effective_io_concurrency: concurrency, ..scan.clone() });
                }
            }
            if method == MethodName::Worker {
                for &workers in args.io_workers.iter().filter(|&&n| !args.quick || n == 8) {
                    cases.push(Case { io_workers: Some(workers), ..scan.clone() });
                }
            }
        }
        cases
    }

    fn warm(&self) -> Vec<Case> {
        let mut cases = vec![Case {
            workload: Workload::Pread,
            system: "pread".to_owned(),
            state: State::Warm,
            access: Access::Buffered,
            io_method: "sync".to_owned(),
            effective_io_concurrency: 1,
            ..self.base.clone()
        }];
        cases.extend(self.plain(State::Warm, Access::Buffered));
        cases
    }

    fn hot(&self, data: &Data) -> Vec<Case> {
        let mut cases = vec![Case {
            workload: Workload::Memory,
            system: "one core".to_owned(),
            state: State::Hot,
            access: Access::Buffered,
            io_method: "none".to_owned(),
            io_combine_limit: 0,
            effective_io_concurrency: 0,
            ..self.base.clone()
        }];
        // Nothing is read, so one method stands for all.
        if let Some(&method) = self.methods.first() {
            let shared_buffers = hot_pool(data.bytes()).max(self.args.shared_buffers);
            for &workload in &[Workload::Agg, Workload::Offset, Workload::Lookups, Workload::LookupsFew] {
                if self.has(workload) {
                    let scan = self.scan(workload, method);
                    cases.push(Case { state: State::Hot, access: Access::Buffered, shared_buffers, ..scan });
                }
            }
        }
        cases
    }

    /// Single blocks at random, many in flight, and what the device gives at best of them.
    fn cold_lookups(&self, data: &Data, ring: bool, fio: bool) -> Vec<Case> {
        let mut cases = Vec::new();
        if !self.has(Workload::Lookups) || !self.args.reads.contains(&Access::Direct) {
            return cases;
        }
        // A pool so small that nearly every lookup reads.
        let usual = Case {
            effective_io_concurrency: LOOKUPS_IN_FLIGHT,
            io_combine_limit: 8 << 10,
            shared_buffers: (data.bytes() / 32).clamp(2 << 20, LOOKUP_POOL),
            ..self.base.clone()
        };
        let ceiling = |workload, system: &str| Case {
            workload,
            system: system.to_owned(),
            io_method: "io_uring".to_owned(),
            ..usual.clone()
        };
        if ring {
            cases.push(ceiling(Workload::RawRandom, "bare ring"));
            if fio {
                cases.push(ceiling(Workload::FioRandom, "fio"));
            }
        }
        cases.extend(self.methods.iter().map(|method| Case {
            workload: Workload::Lookups,
            io_method: method.to_string(),
            ..usual.clone()
        }));
        cases
    }

    fn concurrent(&self, state: State, method: MethodName, shared_buffers: u64) -> impl Iterator<Item = Case> {
        let scan = self.scan(Workload::SeqConcurrScans, method);
        let clients = self.args.clients.iter();
        clients.map(move |&clients| Case { clients, state, access: Access::Buffered, shared_buffers, ..scan.clone() })
    }

    fn warm_concurrent(&self, data: &Data) -> Vec<Case> {
        if !self.has(Workload::SeqConcurrScans) {
            return Vec::new();
        }
        // Each table is more than a quarter of the pool, so that none stays in it.
        let (largest, _) = data.concurrent_bytes();
        let shared_buffers = self.args.shared_buffers.min((2 * largest).max(4 << 20));
        self.methods.iter().flat_map(|&method| self.concurrent(State::Warm, method, shared_buffers)).collect()
    }

    fn hot_concurrent(&self, data: &Data) -> Vec<Case> {
        match self.methods.first() {
            Some(&method) if self.has(Workload::SeqConcurrScans) => {
                let shared_buffers = hot_pool(data.concurrent_bytes().1).max(self.args.shared_buffers);
                self.concurrent(State::Hot, method, shared_buffers).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// What a row is called beside its method: the settings that are not the usual ones.
pub(super) fn remark(case: &Case, base: &Case) -> String {
    match case.workload {
        Workload::Raw | Workload::Fio | Workload::RawRandom | Workload::FioRandom => {
            format!("ceiling, {}", ceilings::name(&ceilings::point(case)))
        }
        Workload::Pread | Workload::Memory => "ceiling".to_owned(),
        _ => case.differs(base),
    }
}
