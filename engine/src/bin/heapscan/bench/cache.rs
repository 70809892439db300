//! Brings the page cache into the state that a row names, and checks that it is.

use heapscan_placement::{
    cache::{self, Cached},
    memory::{HugePages, MapOptions, Mapping},
};
use std::{fs::File, io::Read, path::PathBuf};

/// A file that is cached less than this is cold.
pub(super) const COLD: f64 = 0.01;
/// A file that is cached more than this is warm.
pub(super) const WARM: f64 = 0.99;
/// Memory that is touched and freed before a cold run through the page cache.
const TOUCHED: u64 = 2 << 30;

pub(super) fn cached(files: &[PathBuf]) -> Result<Cached, String> {
    cache::cached(files).map_err(|error| format!("how much of the files is cached is not known: {error}"))
}

/// Gets the files out of the page cache. An error is a reason to refuse the row.
pub(super) fn make_cold(files: &[PathBuf], drop_caches: bool) -> Result<Cached, String> {
    let before = cached(files)?;
    if before.resident == 0 {
        return Ok(before);
    }
    cache::forget(files).map_err(|error| format!("the page cache cannot be dropped: {error}"))?;
    let mut now = cached(files)?;
    if now.share() > COLD && drop_caches {
        std::fs::write("/proc/sys/vm/drop_caches", "1").map_err(|error| format!("drop_caches: {error}"))?;
        now = cached(files)?;
    }
    if now.share() > COLD {
        return Err(format!(
            "{:.0} % of the files stay in the page cache (somebody maps or reads them); --drop-caches as root may help",
            100.0 * now.share()
        ));
    }
    Ok(now)
}

/// Reads the files into the page cache.
pub(super) fn make_warm(files: &[PathBuf]) -> Result<Cached, String> {
    let before = cached(files)?;
    if before.share() > WARM {
        return Ok(before);
    }
    let mut buffer = vec![0u8; 1 << 20];
    for path in files {
        let show = |error| format!("{}: {error}", path.display());
        let mut file = File::open(path).map_err(show)?;
        while file.read(&mut buffer).map_err(show)? > 0 {}
    }
    let now = cached(files)?;
    if now.share() <= WARM {
        return Err(format!("only {:.0} % of the files fit into the page cache", 100.0 * now.share()));
    }
    Ok(now)
}

/// Touches and frees as much memory as a scan of `bytes` needs of the page cache. What was dropped from it may have gone
/// back to the host of a virtual machine, and to get it again costs more than reading the device: that would be measured
/// instead.
pub(super) fn provide_memory(bytes: u64, quick: bool) {
    let least = if quick { 0 } else { TOUCHED };
    let len = least.max(bytes + bytes / 4).min(available_memory() / 2);
    let options = MapOptions { huge_pages: HugePages::Try, ..MapOptions::default() };
    if let Ok(len) = usize::try_from(len)
        && let Ok(mapping) = Mapping::new(len, options)
    {
        // Without that much memory the run is what it is; its spread will tell.
        let _ = mapping.populate(0..mapping.len());
    }
}

/// Memory that can be had without pushing anything out, in bytes; 0 if the kernel does not tell.
pub(super) fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Bytes that this process had read from storage (proc_pid_io(5)); `None` where the kernel does not count.
pub(super) fn storage_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_cold_and_warm() {
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        let files = [folder.path().join("a")];
        std::fs::write(&files[0], vec![1; 4 << 20]).expect("write");
        assert!(make_cold(&files, false).expect("cold").share() <= COLD);
        assert!(make_warm(&files).expect("warm").share() > WARM);
        assert!(make_warm(&[folder.path().join("b")]).is_err());
    }
}
