//! Opening a method: by name, or the best that works here.

use crate::{
    Completer, IoConfig, IoError, IoMethod, MethodChoice, MethodName,
    fault::{FaultMethod, Faults},
    method::{sync::SyncMethod, worker::WorkerMethod},
    transfer::Core,
};
use std::sync::Arc;

/// A method at work, and what is to be known about it.
pub struct Opened {
    /// The method.
    pub method: Box<dyn IoMethod>,
    /// What was asked for and what runs.
    pub report: MethodReport,
}

/// What was asked for and what runs; belongs into every log and every row of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MethodReport {
    /// The setting.
    pub requested: String,
    /// The method that runs.
    pub used: String,
    /// Why it is not the best one.
    pub why: Option<String>,
    /// Lanes, depth, flags and the like, as name and value.
    pub details: Vec<(String, String)>,
}

/// A method, and whether it can be used here.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MethodStatus {
    /// Its name.
    pub name: String,
    /// Whether this build contains it.
    pub compiled_in: bool,
    /// Whether it works here and now.
    pub usable: bool,
    /// Why not, and what to do.
    pub reason: Option<String>,
}

/// Opens the method that `config` asks for. `completer` is told of every request that ends.
///
/// # Errors
/// [`IoError::Unavailable`] when a method was named that cannot be used here; [`IoError::Setting`] for settings out of
/// range. `auto` goes on to the next best method instead.
pub fn open(config: &IoConfig, completer: Arc<dyn Completer>) -> Result<Opened, IoError> {
    config.check()?;
    let delayer = config.fault.as_ref().and_then(|plan| FaultMethod::delayer(plan, Arc::clone(&completer)));
    let core = Arc::new(Core {
        completer: delayer.clone().map_or(completer, |delayer| delayer as Arc<dyn Completer>),
        counters: Default::default(),
        latencies: Default::default(),
        faults: config.fault.clone().map(Faults::new),
    });
    let mut opened = match config.method {
        MethodChoice::Named(name) => open_named(name, config, core)?,
        MethodChoice::Auto => open_best(config, core)?,
    };
    opened.report.requested = config.method.to_string();
    if let Some(plan) = &config.fault {
        opened.report.details.push(("fault".to_owned(), plan.to_string()));
    }
    if let Some(delayer) = delayer {
        let wrapped = FaultMethod::wrap(opened.method, delayer)
            .map_err(|error| IoError::Setting(format!("cannot start the thread of the fault plan: {error}")))?;
        opened.method = Box::new(wrapped);
    }
    Ok(opened)
}

fn open_best(config: &IoConfig, core: Arc<Core>) -> Result<Opened, IoError> {
    let mut reasons = Vec::new();
    for name in [MethodName::IoUring, MethodName::Worker] {
        match open_named(name, config, Arc::clone(&core)) {
            Ok(mut opened) => {
                opened.report.why = join(&reasons);
                return Ok(opened);
            }
            Err(error) => {
                tracing::info!("{error}");
                reasons.push(error.to_string());
            }
        }
    }
    let mut opened = open_named(MethodName::Sync, config, core)?;
    opened.report.why = join(&reasons);
    Ok(opened)
}

fn join(reasons: &[String]) -> Option<String> {
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

fn open_named(name: MethodName, config: &IoConfig, core: Arc<Core>) -> Result<Opened, IoError> {
    let report = |details| MethodReport { requested: String::new(), used: name.to_string(), why: None, details };
    let lanes = ("lanes".to_owned(), config.lane_count().to_string());
    match name {
        MethodName::Sync => {
            Ok(Opened { method: Box::new(SyncMethod::new(core, config.lane_count())), report: report(vec![lanes]) })
        }
        MethodName::Worker => {
            let (min, max) = config.worker_bounds();
            let mut details = vec![lanes, ("io_workers".to_owned(), format!("{min}..{max}"))];
            let cpus = crate::config::cpu_count();
            if max > 4 * cpus {
                let text = format!("{max} workers on {cpus} CPUs: more than four a CPU mostly cost wake-ups");
                tracing::warn!("{text}");
                details.push(("io_workers_warning".to_owned(), text));
            }
            details.push(("queue".to_owned(), (config.io_max_concurrency as usize * config.lane_count()).to_string()));
            if let Some(cpus) = &config.worker_cpus {
                details.push(("worker_cpus".to_owned(), format!("{cpus:?}")));
            }
            if !config.lane_cpus.is_empty() {
                let (crews, min, max) = crate::method::worker::crew_bounds(config);
                let cpus: Vec<_> = (0..crews).filter_map(|lane| config.cpus_of_lane(lane)).collect();
                details.push(("io_workers_a_lane".to_owned(), format!("{min}..{max} on CPUs {cpus:?}")));
            }
            let method = WorkerMethod::new(config, core)?;
            Ok(Opened { method: Box::new(method), report: report(details) })
        }
        #[cfg(feature = "io_uring")]
        MethodName::IoUring => {
            let (method, details) = crate::method::io_uring::IoUringMethod::new(config, core)?;
            Ok(Opened { method: Box::new(method), report: report(details) })
        }
        #[cfg(feature = "tokio_uring")]
        MethodName::TokioUring => {
            let (method, details) = crate::method::tokio_uring::TokioUringMethod::new(config, core)?;
            Ok(Opened { method: Box::new(method), report: report(details) })
        }
        #[cfg(not(all(feature = "io_uring", feature = "tokio_uring")))]
        name => Err(not_compiled_in(name)),
    }
}

#[cfg(not(all(feature = "io_uring", feature = "tokio_uring")))]
fn not_compiled_in(method: MethodName) -> IoError {
    IoError::Unavailable { method, reason: format!("not compiled in: build with the cargo feature {method}") }
}

/// Which methods this build has, and which of them work here.
pub fn probe_all() -> Vec<MethodStatus> {
    probe_all_with(&IoConfig::default())
}

/// [`probe_all`] under the limits and the procfs of `config`.
pub fn probe_all_with(config: &IoConfig) -> Vec<MethodStatus> {
    // Without any ring in this build nothing depends on it.
    let _ = config;
    let status = |name: MethodName| {
        let (compiled_in, outcome) = match name {
            MethodName::Sync | MethodName::Worker => (true, Ok(())),
            #[cfg(feature = "io_uring")]
            MethodName::IoUring => (true, crate::method::io_uring::probe(config)),
            #[cfg(feature = "tokio_uring")]
            MethodName::TokioUring => (true, crate::method::tokio_uring::probe(config)),
            #[cfg(not(all(feature = "io_uring", feature = "tokio_uring")))]
            name => (false, Err(format!("not compiled in: build with the cargo feature {name}"))),
        };
        MethodStatus { name: name.to_string(), compiled_in, usable: outcome.is_ok(), reason: outcome.err() }
    };
    MethodName::ALL.into_iter().map(status).collect()
}
