//! The same queries through a PostgreSQL server on the same cluster.

use super::{
    args::BenchArgs,
    cache,
    case::{Access, Case, State, Workload},
    clock::Spent,
    data::{Data, Scratch},
    plan::hot_pool,
    run::{Failure, Run},
};
use crate::{generate, say};
use heapscan::{Error, ErrorKind, Result};
use heapscan_fixtures::server::{self, Server, Session};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// Lookups of one query.
const LOOKUPS: u64 = 200_000;

/// What a server that runs was started with.
#[derive(Clone, Debug, PartialEq)]
struct Settings {
    io_method: String,
    shared_buffers: u64,
    direct: bool,
}

struct Running {
    settings: Settings,
    server: Server,
    /// Its pool holds the tables.
    prewarmed: bool,
}

pub(super) struct Postgres<'a> {
    bin: PathBuf,
    data: &'a Data,
    /// The cluster that it runs on.
    pgdata: PathBuf,
    database: String,
    pub(super) name: String,
    major: u32,
    quick: bool,
    drop_caches: bool,
    running: Option<Running>,
    _scratch: Option<Scratch>,
}

/// The major version of the server of `bin`.
pub(super) fn major(bin: &Path) -> Result<u32> {
    let program = bin.join("postgres");
    let version = server::full_version(&program);
    version.as_deref().and_then(|v| v.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).ok_or_else(|| {
        Error::new(ErrorKind::Usage, "cannot be run")
            .with_path(program)
            .with_hint("--postgres takes the folder of PostgreSQL's programs, such as /usr/lib/postgresql/18/bin")
    })
}

impl<'a> Postgres<'a> {
    pub(super) fn new(args: &BenchArgs, bin: &Path, data: &'a Data) -> Result<Self> {
        let (major, written) = (major(bin)?, data.postgres_version);
        if major != written {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("the server is PostgreSQL {major}, the cluster was written by {written}"),
            )
            .with_path(bin));
        }
        let version = server::full_version(&bin.join("postgres")).unwrap_or_else(|| major.to_string());
        // A cluster of the user's is copied: a server writes to it.
        let (pgdata, scratch) = match data.generated {
            Some(_) => (data.pgdata.clone(), None),
            None => copy(data)?,
        };
        Ok(Self {
            bin: bin.to_owned(),
            data,
            pgdata,
            database: data.database_name.clone(),
            name: format!("postgres {version}"),
            major,
            quick: args.quick,
            drop_caches: args.drop_caches,
            running: None,
            _scratch: scratch,
        })
    }

    /// The rows of the server, in an order that needs few restarts.
    pub(super) fn cases(&self, args: &BenchArgs, base: &Case) -> Vec<Case> {
        let methods: &[&str] = if self.major >= 18 { &["sync", "worker", "io_uring"] } else { &["sync"] };
        let parallel = u32::try_from(heapscan_placement::thread::allowed_cpus().len()).unwrap_or(1).clamp(2, 8);
        let hot = hot_pool(self.data.bytes() + self.data.concurrent_bytes().1) + (128 << 20);
        let mut cases = Vec::new();
        for &method in methods {
            let row = |state, access, shared_buffers| Case {
                system: self.name.clone(),
                io_method: method.to_owned(),
                // PostgreSQL's default.
                effective_io_concurrency: if self.major >= 18 { 16 } else { 1 },
                state,
                access,
                shared_buffers,
                ..base.clone()
            };
            let usual = base.shared_buffers;
            let states = [
                row(State::Cold, Access::Buffered, usual),
                row(State::Warm, Access::Buffered, usual),
                row(State::Cold, Access::Direct, usual),
                row(State::Hot, Access::Buffered, hot),
            ];
            for case in states {
                let direct = case.access == Access::Direct;
                let wanted = args.states.contains(&case.state)
                    && (case.state != State::Cold || args.reads.contains(&case.access))
                    && (!direct || self.major >= 16);
                if !wanted {
                    continue;
                }
                let has = |workload| args.workloads.contains(&workload);
                if has(Workload::Agg) {
                    cases.push(case.clone());
                    cases.push(Case { threads: parallel + 1, ..case.clone() });
                }
                if case.state != State::Cold && has(Workload::Offset) {
                    cases.push(Case { workload: Workload::Offset, ..case.clone() });
                }
                let most = args.clients.iter().copied().max();
                if let (State::Warm | State::Hot, true, Some(clients)) =
                    (case.state, has(Workload::SeqConcurrScans), most)
                {
                    cases.push(Case { workload: Workload::SeqConcurrScans, clients, ..case.clone() });
                }
                if case.state == State::Hot && has(Workload::Lookups) {
                    cases.push(Case { workload: Workload::Lookups, ..case.clone() });
                }
            }
        }
        cases
    }

    pub(super) fn run(&mut self, case: &Case) -> std::result::Result<Run, Failure> {
        let files: Vec<PathBuf> = self.files(case)?;
        let settings = Settings {
            io_method: case.io_method.clone(),
            shared_buffers: case.shared_buffers,
            direct: case.access == Access::Direct,
        };
        if case.state == State::Cold {
            self.stop()?;
            cache::make_cold(&files, self.drop_caches).map_err(Failure::Refused)?;
            if case.access == Access::Buffered {
                cache::provide_memory(self.data.bytes(), self.quick);
            }
        }
        self.start(settings)?;
        if case.state == State::Hot {
            self.prewarm()?;
        } else if case.state == State::Warm {
            cache::make_warm(&files).map_err(Failure::Refused)?;
        }
        let query = self.query(case);
        let mut sessions = (0..case.clients).map(|_| self.session(case)).collect::<Result<Vec<Session>>>()?;
        // The catalogs are read, the plan is made, nothing of the table is.
        for session in &mut sessions {
            session.run(&format!("explain {}", query(0))).map_err(refused)?;
        }
        if case.state == State::Warm {
            // What an earlier state left in the pool is not in the ring of this one.
            sessions[0].run(&query(0)).map_err(refused)?;
        }
        let before = cache::cached(&files).map_err(Failure::Refused)?;
        if case.state == State::Cold && before.share() > cache::COLD {
            return Err(Failure::Refused(
                "the server brought the table into the page cache before the query".to_owned(),
            ));
        }
        let mut run = self.measure(case, &mut sessions, &query)?;
        run.cached_before = before.share();
        run.cached_after = cache::cached(&files).map_err(Failure::Refused)?.share();
        if case.access == Access::Direct && case.state == State::Cold && run.cached_after > cache::COLD {
            let share = 100.0 * run.cached_after;
            return Err(Failure::Refused(format!(
                "{share:.0} % of the files are in the page cache after it: not direct"
            )));
        }
        Ok(run)
    }

    /// The files of a row's tables, in the cluster that the server runs on.
    fn files(&self, case: &Case) -> Result<Vec<PathBuf>> {
        let targets = self.data.targets(case).iter().flat_map(|t| &t.files);
        targets
            .map(|file| match file.strip_prefix(&self.data.pgdata) {
                Ok(inside) => Ok(self.pgdata.join(inside)),
                Err(_) => {
                    Err(Error::new(ErrorKind::Unsupported, "lies outside the data directory: not copied")
                        .with_path(file))
                }
            })
            .collect()
    }

    /// The statement of a client.
    fn query(&self, case: &Case) -> impl Fn(usize) -> String + use<> {
        let (agg, workload) = (self.data.agg.clone(), case.workload);
        let tables: Vec<String> = self.data.targets(case).iter().map(|t| t.table.clone()).collect();
        let (blocks, rows) = (self.data.main.blocks, self.data.rows_a_page);
        move |client| {
            let table = &tables[client % tables.len()];
            match workload {
                Workload::Offset => format!("select * from {table} offset 4000000000"),
                Workload::Lookups => format!(
                    "select count(t.*) from (select format('(%s,%s)', floor(random() * {blocks})::int, \
                     1 + floor(random() * {rows})::int)::tid as place from generate_series(1, {LOOKUPS}) offset 0) p \
                     join {table} t on t.ctid = p.place"
                ),
                _ => format!("select {agg} from {table}"),
            }
        }
    }

    fn session(&self, case: &Case) -> Result<Session> {
        let running = self.running.as_ref().ok_or_else(|| Error::new(ErrorKind::Method, "no server runs"))?;
        let mut session = running.server.session(&self.database).map_err(failed)?;
        let workers = case.threads - 1;
        session
            .run(&format!(
                "set max_parallel_workers_per_gather = {workers}; set jit = off; set enable_hashjoin = off; \
                 set enable_mergejoin = off; set min_parallel_table_scan_size = 0; set parallel_setup_cost = 0; \
                 set parallel_tuple_cost = 0"
            ))
            .map_err(failed)?;
        Ok(session)
    }

    fn measure(
        &self,
        case: &Case,
        sessions: &mut [Session],
        query: &(impl Fn(usize) -> String + Sync),
    ) -> std::result::Result<Run, Failure> {
        let pid = self.running.as_ref().map_or(0, |r| r.server.pid());
        let rounds = match case.workload {
            Workload::SeqConcurrScans => self.data.rounds(case, self.quick) as u64,
            _ => 1,
        };
        let (cpu, began) = (cpu_seconds(pid), Instant::now());
        let answers: Vec<std::result::Result<String, _>> = std::thread::scope(|scope| {
            let clients = sessions.iter_mut().enumerate().map(|(client, session)| {
                scope.spawn(move || {
                    let mut answer = String::new();
                    for _ in 0..rounds {
                        answer = session.run(&query(client))?.0;
                    }
                    Ok(answer)
                })
            });
            let threads: Vec<_> = clients.collect();
            let died = || Err(heapscan_fixtures::FixtureError::Usage("a client's thread panicked".to_owned()));
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| died())).collect()
        });
        let wall = began.elapsed().as_secs_f64();
        let answers = answers.into_iter().collect::<std::result::Result<Vec<_>, _>>().map_err(refused)?;
        let (user, system) = cpu_seconds(pid);
        let spent = Spent { wall, user: user - cpu.0, system: system - cpu.1 };
        let block_size = u64::from(self.data.block_size);
        let targets = self.data.targets(case);
        let (bytes, operations) = match case.workload {
            Workload::Lookups => (LOOKUPS * block_size, LOOKUPS),
            _ => {
                let scanned = (0..case.clients as usize).map(|c| u64::from(targets[c % targets.len()].blocks));
                (scanned.sum::<u64>() * block_size * rounds, rounds * u64::from(case.clients))
            }
        };
        let answer = answers.first().map(|a| a.trim_end().replace('|', "\t"));
        let answer = answer.filter(|_| case.workload == Workload::Agg);
        Ok(Run { spent, bytes, operations, answer, memory_pages: "server".to_owned(), ..Run::default() })
    }

    fn start(&mut self, settings: Settings) -> std::result::Result<(), Failure> {
        if self.running.as_ref().is_some_and(|running| running.settings == settings) {
            return Ok(());
        }
        self.stop()?;
        let mut list = vec![format!("shared_buffers={}kB", settings.shared_buffers >> 10), "jit=off".to_owned()];
        list.push("max_connections=100".to_owned());
        if self.major >= 18 {
            list.push(format!("io_method={}", settings.io_method));
        }
        if settings.direct {
            list.push("debug_io_direct=data".to_owned());
        }
        let server = Server::start_with(&self.bin, &self.pgdata, &list).map_err(refused)?;
        self.running = Some(Running { settings, server, prewarmed: false });
        Ok(())
    }

    pub(super) fn stop(&mut self) -> Result<()> {
        match self.running.take() {
            Some(running) => running.server.stop().map_err(failed),
            None => Ok(()),
        }
    }

    /// Brings all tables into the pool: a scan of a range of places uses no ring, unlike a scan of a large table.
    fn prewarm(&mut self) -> std::result::Result<(), Failure> {
        let Some(running) = self.running.as_mut().filter(|r| !r.prewarmed) else { return Ok(()) };
        let mut session = running.server.session(&self.database).map_err(refused)?;
        session.run("set max_parallel_workers_per_gather = 0").map_err(refused)?;
        for table in std::iter::once(&self.data.main).chain(&self.data.concurrent) {
            session.run(&format!("select count(*) from {} where ctid >= '(0,0)'", table.table)).map_err(refused)?;
        }
        let explain = "explain (analyze, buffers, costs off, timing off, summary off)";
        let (text, _) =
            session.run(&format!("{explain} select count(*) from {}", self.data.main.table)).map_err(refused)?;
        let read =
            text.split("read=").nth(1).and_then(|t| t.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok());
        if read.is_some_and(|read| read * 100 > u64::from(self.data.main.blocks)) {
            return Err(Failure::Refused(format!("{} blocks were not in the server's pool", read.unwrap_or(0))));
        }
        running.prewarmed = true;
        Ok(())
    }
}

impl Drop for Postgres<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            say(&format!("heapscan: warning: {error}"));
        }
    }
}

fn failed(error: heapscan_fixtures::FixtureError) -> Error {
    generate::fixture_error(error)
}

/// What a server will not do (an io_method that it was built without) costs its row, not the others.
fn refused(error: heapscan_fixtures::FixtureError) -> Failure {
    let text = error.to_string();
    Failure::Refused(
        text.lines().rev().find(|l| l.contains("FATAL") || l.contains("ERROR")).unwrap_or(&text).replace('\n', " "),
    )
}

fn copy(data: &Data) -> Result<(PathBuf, Option<Scratch>)> {
    let target = Path::new("/var/tmp").join(format!("heapscan-bench-server-{}", std::process::id()));
    let bytes = folder_bytes(&data.pgdata);
    generate::check_space(&target, bytes + (64 << 20))?;
    say(&format!("copying {} for the server ...", data.pgdata.display()));
    let scratch = Scratch::new(target.clone());
    let mut command = Command::new("cp");
    command.args(["-a", "--reflink=auto", "--"]).arg(data.pgdata.join(".")).arg(&target);
    let make = fs::create_dir(&target).and_then(|()| command.status());
    match make {
        Ok(status) if status.success() => Ok((target, Some(scratch))),
        Ok(status) => Err(Error::new(ErrorKind::Io, format!("cp: {status}")).with_path(target)),
        Err(error) => Err(Error::os(target, "copy the cluster", &error)),
    }
}

fn folder_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// User and system seconds of a server: of its first process, of its children, and of those that have ended (proc_pid_stat(5),
/// in ticks of 10 ms).
fn cpu_seconds(postmaster: u32) -> (f64, f64) {
    let mut ticks = (0u64, 0u64);
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some((user, system)) = ticks_of(&text, pid, postmaster) {
            ticks = (ticks.0 + user, ticks.1 + system);
        }
    }
    let second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64;
    (ticks.0 as f64 / second, ticks.1 as f64 / second)
}

fn ticks_of(stat: &str, pid: u32, postmaster: u32) -> Option<(u64, u64)> {
    // The name can hold anything; what follows its last parenthesis are numbers, the state first.
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split(' ').collect();
    let number = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok());
    let parent = number(1)?;
    if pid == postmaster {
        return Some((number(11)? + number(13)?, number(12)? + number(14)?));
    }
    (parent == u64::from(postmaster)).then_some((number(11)?, number(12)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_the_server_and_its_children() {
        let stat = |ppid: u32| format!("7 (a) b) S {ppid} 7 7 0 -1 4 1 2 3 4 100 20 3 4 20 0 1 0");
        assert_eq!(ticks_of(&stat(1), 7, 7), Some((103, 24)));
        assert_eq!(ticks_of(&stat(9), 7, 9), Some((100, 20)));
        assert_eq!(ticks_of(&stat(1), 7, 9), None);
        assert_eq!(ticks_of("", 7, 7), None);
    }
}
