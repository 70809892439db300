//! What the machine can do at best: the bare kernel interface on the same files, in the same run.

use super::{case::Case, clock::Clock, run::Run};
use heapscan_io::{RawPoint, raw_read};
use std::{fs::File, os::unix::fs::FileExt, path::PathBuf};

/// Sizes and depths that are tried for the ceiling of direct reads.
const SIZES: [usize; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
const DEPTHS: [u32; 5] = [4, 8, 16, 32, 64];
/// Memory for the reads in flight.
const MOST_IN_FLIGHT: usize = 64 << 20;

/// The best size, depth and kind of memory for direct reads of `files`, by reading up to `bytes` with each.
pub(super) fn sweep(
    files: &[PathBuf],
    bytes: u64,
    progress: &mut dyn FnMut(&RawPoint, f64),
) -> Result<RawPoint, String> {
    let mut points = Vec::new();
    let mut measure = |point: RawPoint, points: &mut Vec<(f64, RawPoint)>| -> Result<(), String> {
        let result = raw_read(files, point).map_err(|e| e.to_string())?;
        if !result.direct {
            return Err("the file system has no direct IO for these files".to_owned());
        }
        let rate = result.bytes as f64 / result.elapsed.as_secs_f64();
        progress(&point, rate);
        points.push((rate, RawPoint { registered: result.registered, ..point }));
        Ok(())
    };
    for read_bytes in SIZES {
        for depth in DEPTHS.into_iter().filter(|&d| d as usize * read_bytes <= MOST_IN_FLIGHT) {
            measure(RawPoint { read_bytes, depth, registered: false, random: None, bytes }, &mut points)?;
        }
    }
    // The best few again, over more bytes, with and without registered memory: one lucky point is no ceiling.
    points.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut best = Vec::new();
    for (_, point) in points.iter().take(3) {
        for registered in [false, true] {
            measure(RawPoint { registered, bytes: bytes * 2, ..*point }, &mut best)?;
        }
    }
    best.sort_by(|a, b| b.0.total_cmp(&a.0));
    best.first().map(|(_, point)| *point).ok_or_else(|| "nothing was measured".to_owned())
}

/// The name of a point, which the row carries instead of an IO method, and back.
pub(super) fn name(point: &RawPoint) -> String {
    format!("{}x{}kB{}", point.depth, point.read_bytes >> 10, if point.registered { " fixed" } else { "" })
}

/// The point that a row of a ceiling stands for.
pub(super) fn point(case: &Case) -> RawPoint {
    RawPoint {
        read_bytes: case.io_combine_limit as usize,
        depth: case.effective_io_concurrency,
        registered: case.io_method.ends_with("fixed"),
        random: case.workload.is_random().then_some(1),
        bytes: u64::MAX,
    }
}

/// All of the files, or `lookups` reads at random.
pub(super) fn raw(case: &Case, files: &[PathBuf], lookups: u64) -> Result<Run, String> {
    let mut wanted = point(case);
    if wanted.random.is_some() {
        wanted.bytes = lookups * wanted.read_bytes as u64;
    }
    let clock = Clock::start();
    let result = raw_read(files, wanted).map_err(|e| e.to_string())?;
    let mut spent = clock.stop();
    // Without getting the memory.
    spent.wall = result.elapsed.as_secs_f64();
    match (result.direct, result.registered == wanted.registered) {
        (false, _) => Err("the reads were not direct".to_owned()),
        (_, false) => Err("the memory could not be registered".to_owned()),
        _ => Ok(Run { spent, bytes: result.bytes, operations: result.reads, ..Run::default() }),
    }
}

/// 128 kB reads, one after the other, into one buffer that stays in the processor's cache.
pub(super) fn pread(files: &[PathBuf]) -> Result<Run, String> {
    let mut buffer = vec![0u8; 128 << 10];
    let (mut bytes, clock) = (0u64, Clock::start());
    for path in files {
        let show = |error| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(show)?;
        let mut offset = 0;
        loop {
            match file.read_at(&mut buffer, offset).map_err(show)? {
                0 => break,
                n => offset += n as u64,
            }
        }
        bytes += offset;
    }
    let operations = bytes.div_ceil(128 << 10);
    Ok(Run { spent: clock.stop(), bytes, operations, ..Run::default() })
}
