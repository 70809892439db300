//! How fast one file can be read, by size of the reads and by how many are in flight: what settings pay here.

use crate::{
    Completer, Completion, DataFile, IoConfig, IoError, IoMethod, LatencySummary, OpenFileOptions, Request, Segment,
    WaitOutcome, open,
};
use heapscan_placement::memory::{MapOptions, Mapping};
use serde::Serialize;
use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Measured in this order, in bytes a read and reads in flight.
const POINTS: [(usize, u32); 10] = [
    (128 << 10, 1),
    (128 << 10, 2),
    (128 << 10, 4),
    (128 << 10, 8),
    (128 << 10, 16),
    (128 << 10, 32),
    (8 << 10, 1),
    (8 << 10, 32),
    (256 << 10, 16),
    (1 << 20, 8),
];
/// A setting is good enough that reaches this part of the best rate.
const ENOUGH: f64 = 0.95;
/// The longest wait for one read.
const PATIENCE: Duration = Duration::from_secs(10);

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CurvePoint {
    /// Bytes a read.
    pub read_bytes: usize,
    /// Reads in flight.
    pub depth: u32,
    /// Reads that ended.
    pub reads: u64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// How long the reads took.
    pub latency: LatencySummary,
}

/// What to set, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Recommendation {
    /// The method.
    pub io_method: String,
    /// Reads in flight.
    pub effective_io_concurrency: u32,
    /// Bytes of a combined read.
    pub io_combine_limit: usize,
    /// Why, a line each.
    pub reasons: Vec<String>,
}

/// The measurements of one file.
#[derive(Clone, Debug, Serialize)]
pub struct DepthCurve {
    /// The method that read.
    pub io_method: String,
    /// Whether the reads went past the page cache; if not, this is the speed of the page cache.
    pub direct: bool,
    /// Why not.
    pub note: Option<String>,
    /// The measurements.
    pub points: Vec<CurvePoint>,
    /// What follows from them.
    pub recommendation: Recommendation,
}

/// Counts completions and owns the memory.
struct Counter {
    memory: Mapping,
    /// Pieces of the memory into which no read is under way; a piece is the tag of its read.
    free: Mutex<Vec<u64>>,
    ended: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicBool,
}

impl Completer for Counter {
    fn complete(&self, completion: Completion) {
        self.bytes.fetch_add(completion.bytes as u64, Ordering::Relaxed);
        if let Some(error) = completion.error {
            tracing::warn!("{error}");
            self.failed.store(true, Ordering::Relaxed);
        }
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(completion.tag);
        self.ended.fetch_add(1, Ordering::Release);
    }
}

/// Reads `path` directly for about `budget` in all with the method of `config`, at several sizes and depths.
///
/// # Errors
/// Those of opening file and method; [`IoError::Setting`] for a file under 1 MiB, where nothing can be measured, and if
/// reads fail.
pub fn depth_curve(path: &Path, config: &IoConfig, budget: Duration) -> Result<DepthCurve, IoError> {
    let file = Arc::new(DataFile::open(path, OpenFileOptions { direct: true, ..OpenFileOptions::default() })?);
    if file.size() < 1 << 20 {
        let text =
            format!("{}: {} bytes are too few to measure: name a file of 64 MB or more", path.display(), file.size());
        return Err(IoError::Setting(text));
    }
    let mut points = Vec::with_capacity(POINTS.len());
    let mut used = String::new();
    for (read_bytes, depth) in POINTS {
        let memory = Mapping::new(read_bytes * depth as usize, MapOptions::default())
            .and_then(|memory| memory.populate(0..memory.len()).map(|()| memory))
            .map_err(|error| IoError::Setting(error.to_string()))?;
        let counter = Arc::new(Counter {
            memory,
            free: Mutex::new((0..u64::from(depth)).rev().collect()),
            ended: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        });
        let config = IoConfig { lanes: Some(1), ..config.clone() };
        let opened = open(&config, Arc::clone(&counter) as Arc<dyn Completer>)?;
        used = opened.report.used;
        points.push(measure(&*opened.method, &file, &counter, (read_bytes, depth), budget / POINTS.len() as u32)?);
    }
    let recommendation = recommend(&points, &used);
    Ok(DepthCurve { io_method: used, direct: file.is_direct(), note: file.note(), points, recommendation })
}

fn measure(
    method: &dyn IoMethod,
    file: &Arc<DataFile>,
    counter: &Arc<Counter>,
    (read_bytes, depth): (usize, u32),
    budget: Duration,
) -> Result<CurvePoint, IoError> {
    let places = file.size() / read_bytes as u64;
    // Every point begins elsewhere, so that it does not read what a cache below us has from the one before.
    let mut place = (read_bytes as u64).wrapping_mul(u64::from(depth) * 7919) % places;
    // Half of the window at a time, so that many reads are one system call.
    let batch = depth.div_ceil(2) as usize;
    let mut asked = 0u64;
    let began = Instant::now();
    let mut requests = Vec::new();
    while began.elapsed() < budget || asked == 0 {
        let pieces: Vec<u64> = {
            let mut free = counter.free.lock().unwrap_or_else(PoisonError::into_inner);
            if free.len() < batch {
                Vec::new()
            } else {
                let keep = free.len() - batch;
                free.split_off(keep)
            }
        };
        for piece in pieces {
            requests.push(fence::request(file, counter, place * read_bytes as u64, read_bytes, piece));
            asked += 1;
            place = (place + 1) % places;
        }
        if !requests.is_empty() {
            method.submit(0, &mut requests);
        }
        wait(method, counter, asked.saturating_sub(u64::from(depth) - batch as u64))?;
    }
    wait(method, counter, asked)?;
    let seconds = began.elapsed().as_secs_f64();
    let bytes_per_second = counter.bytes.load(Ordering::Relaxed) as f64 / seconds;
    Ok(CurvePoint { read_bytes, depth, reads: asked, bytes_per_second, latency: method.latency() })
}

/// Waits until `count` reads ended.
fn wait(method: &dyn IoMethod, counter: &Counter, count: u64) -> Result<(), IoError> {
    let done = || counter.ended.load(Ordering::Acquire) >= count;
    if method.wait(0, &done, PATIENCE) == WaitOutcome::TimedOut {
        return Err(IoError::Setting(format!("a read did not end within {PATIENCE:?}: the storage hangs")));
    }
    match counter.failed.load(Ordering::Relaxed) {
        true => Err(IoError::Setting("reads fail (see the warnings): nothing to measure".to_owned())),
        false => Ok(()),
    }
}

fn rate(points: &[CurvePoint], read_bytes: usize, depth: u32) -> f64 {
    points.iter().find(|p| (p.read_bytes, p.depth) == (read_bytes, depth)).map_or(0.0, |p| p.bytes_per_second)
}

/// What `points` of `io_method` say about the settings.
fn recommend(points: &[CurvePoint], io_method: &str) -> Recommendation {
    const COMBINED: usize = 128 << 10;
    let gb = |rate: f64| format!("{:.2} GB/s", rate / 1e9);
    let at = |depth| rate(points, COMBINED, depth);
    let depths = points.iter().filter(|p| p.read_bytes == COMBINED);
    let best = depths.clone().map(|p| p.bytes_per_second).fold(0.0, f64::max);
    let depth = depths.filter(|p| p.bytes_per_second >= ENOUGH * best).map(|p| p.depth).min().unwrap_or(16);
    let mut reasons = vec![format!(
        "128 kB reads: {} one at a time, {} with {depth} in flight; more bring less than {:.0} %",
        gb(at(1)),
        gb(at(depth)),
        100.0 * (1.0 - ENOUGH)
    )];
    // A scan refills half of its window while the device works on the other half.
    let concurrency = (2 * depth).clamp(1, 64);
    if depth == 1 {
        reasons.push("reading ahead brings nothing on this device; two in flight hide the time of decoding".to_owned());
    } else {
        reasons.push(format!("effective_io_concurrency {concurrency}: a scan refills half of its window at a time"));
    }
    let larger = [(256 << 10, 16), (1 << 20, 8)].map(|(bytes, depth)| (bytes, rate(points, bytes, depth)));
    let (combine, combined) =
        larger.into_iter().find(|&(_, rate)| rate > best * (2.0 - ENOUGH) && rate > 0.0).unwrap_or((COMBINED, best));
    reasons.push(if combine == COMBINED {
        "io_combine_limit 128 kB: larger reads are no faster here".to_owned()
    } else {
        format!("io_combine_limit {} kB: {}", combine >> 10, gb(combined))
    });
    let (single, many) = (rate(points, 8 << 10, 1), rate(points, 8 << 10, 32));
    if single > 0.0 {
        reasons.push(format!(
            "8 kB reads: {} one at a time, {} with 32 in flight: what {io_method} gains where blocks cannot be combined",
            gb(single),
            gb(many)
        ));
    }
    Recommendation {
        io_method: io_method.to_owned(),
        effective_io_concurrency: concurrency,
        io_combine_limit: combine,
        reasons,
    }
}

#[allow(unsafe_code, reason = "requests into memory of the completer")]
mod fence {
    use super::*;

    /// A read into a piece that nobody else has.
    pub(super) fn request(file: &Arc<DataFile>, counter: &Counter, offset: u64, len: usize, piece: u64) -> Request {
        let at = piece as usize * len;
        assert!(at + len <= counter.memory.len(), "a piece of the memory");
        // SAFETY: within the mapping, as just checked.
        let ptr = unsafe { counter.memory.as_ptr().add(at) };
        // SAFETY: the mapping lives as long as the completer, which the method holds until nothing is in flight. The
        // piece was taken from the free ones, and only the completion of this read puts it back; nobody looks into it.
        unsafe { Request::new(Arc::clone(file), offset, vec![Segment { ptr, len }], piece) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MethodChoice, MethodName};

    fn point(read_bytes: usize, depth: u32, gigabytes: f64) -> CurvePoint {
        CurvePoint {
            read_bytes,
            depth,
            reads: 1,
            bytes_per_second: gigabytes * 1e9,
            latency: LatencySummary::default(),
        }
    }

    #[test]
    fn the_recommendation_follows_the_curve() {
        let k128 = 128 << 10;
        let curve = [(1, 1.0), (2, 1.9), (4, 3.0), (8, 3.5), (16, 3.6), (32, 3.6)];
        let mut points: Vec<_> = curve.map(|(depth, rate)| point(k128, depth, rate)).to_vec();
        let said = recommend(&points, "io_uring");
        assert_eq!((said.effective_io_concurrency, said.io_combine_limit), (16, k128));
        points.push(point(1 << 20, 8, 5.0));
        assert_eq!(recommend(&points, "io_uring").io_combine_limit, 1 << 20);
        let flat: Vec<_> = curve.map(|(depth, _)| point(k128, depth, 0.1)).to_vec();
        assert_eq!(recommend(&flat, "worker").effective_io_concurrency, 2);
    }

    #[test]
    fn every_method_measures_a_file() {
        let file = tempfile::Builder::new().tempfile_in("/var/tmp").expect("a file");
        std::fs::write(file.path(), vec![7u8; 4 << 20]).expect("write");
        for method in [MethodName::Sync, MethodName::Worker] {
            let config = IoConfig { method: MethodChoice::Named(method), ..IoConfig::default() };
            let curve = depth_curve(file.path(), &config, Duration::from_millis(50)).expect("a curve");
            assert_eq!((curve.io_method.as_str(), curve.points.len()), (method.as_str(), POINTS.len()));
            for p in &curve.points {
                assert!(p.reads > 0 && p.bytes_per_second > 0.0, "{p:?}");
                assert!(p.latency.count == p.reads && p.latency.p50_nanos <= p.latency.max_nanos, "{p:?}");
            }
        }
        std::fs::write(file.path(), [0; 100]).expect("write");
        let error = depth_curve(file.path(), &IoConfig::default(), Duration::from_millis(10)).expect_err("too small");
        assert!(error.to_string().contains("64 MB"), "{error}");
    }
}
