//! Whether a folder is a cluster at rest: the checks before anything of it is believed.

use super::{
    OpenOptions,
    bytes::{is_missing, read_small_file},
    control::{ChecksumState, ClusterState, ControlFile},
};
use crate::{Error, ErrorKind, Result};
use nix::{errno::Errno, sys::signal::kill, unistd::Pid};
use std::path::Path;

const RECIPE: &str = "start a server of the same version once on a copy or snapshot of the folder, stop it, and scan \
                      that; or set allow_unclean (--allow-unclean) and take the rows as they lie in the files";

/// Longer files of that name are none.
pub(super) const LABEL_MAX: u64 = 1 << 20;

/// Checks that `path` is a cluster of PostgreSQL at all, and which version its folder says it is.
pub(super) fn check_folder(path: &Path) -> Result<u32> {
    match path.metadata() {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(Error::new(ErrorKind::NotACluster, "is not a directory").with_path(path)),
        Err(e) if is_missing(&e) => {
            return Err(Error::new(ErrorKind::NotACluster, "there is no such directory").with_path(path));
        }
        Err(e) => return Err(Error::os(path, "stat", &e)),
    }
    let version_path = path.join("PG_VERSION");
    let Some(bytes) = read_small_file(&version_path, 64)? else {
        return Err(Error::new(ErrorKind::NotACluster, "has no PG_VERSION: not a PostgreSQL cluster")
            .with_path(path)
            .with_hint("name the data directory, the one with global/ and base/ in it"));
    };
    parse_version(&bytes).map_err(|e| e.with_path(version_path))
}

fn parse_version(bytes: &[u8]) -> Result<u32> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    if let Ok(major) = text.parse() {
        return Ok(major);
    }
    // Before 10 the first two numbers were the major version.
    let old = text.split_once('.').is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok());
    if old {
        return Err(Error::new(ErrorKind::Unsupported, format!("PostgreSQL {text} is not read")));
    }
    Err(Error::new(ErrorKind::NotACluster, format!("{text:?} is no version of PostgreSQL")))
}

/// Checks that nothing waits to be recovered; returns what is worth a warning. `lock` is what [`check_lock`] found.
///
/// # Errors
/// `ServerRunning` (of a server that died), `Unclean`, `Unsupported` (encrypted), `Io`.
pub(super) fn check_at_rest(
    path: &Path,
    control: &ControlFile,
    lock: Option<Error>,
    options: &OpenOptions,
) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    check_encryption(path)?;
    let mut unclean = |error: Error| {
        if options.allow_unclean {
            warnings.push(format!("not replayed: {error}"));
            return Ok(());
        }
        Err(error.with_hint(RECIPE))
    };
    if let Some(error) = lock {
        unclean(error)?;
    }
    for name in ["backup_label", "tablespace_map"] {
        let label = path.join(name);
        let text = read_small_file(&label, LABEL_MAX)?.unwrap_or_default();
        if text.split(|&b| b == b'\n').any(|line| line.starts_with(b"INCREMENTAL FROM LSN:")) {
            return Err(incremental(&label));
        }
        if exists(&label)? {
            let what = "is there: this is a base backup that was not recovered";
            unclean(Error::new(ErrorKind::Unclean, what).with_path(label))?;
        }
    }
    if control.backup_start_point != 0 {
        let what = "the end of the base backup was not reached by recovery";
        unclean(Error::new(ErrorKind::Unclean, what).with_path(path))?;
    }
    if !control.state.is_clean() {
        let what = format!("was not shut down cleanly: its state is \"{}\"", control.state);
        unclean(Error::new(ErrorKind::Unclean, what).with_path(path))?;
    }
    for name in ["standby.signal", "recovery.signal"] {
        if exists(&path.join(name))? {
            warnings.push(format!("{name} is there: a standby, which may lag behind its primary"));
        }
    }
    if control.state == ClusterState::ShutDownInRecovery {
        warnings.push("was shut down in recovery: a standby, which may lag behind its primary".to_owned());
    }
    if control.checksums == ChecksumState::InProgress {
        warnings.push("data checksums were being switched on or off: a mismatch proves nothing".to_owned());
    }
    Ok(warnings)
}

/// A file of an incremental backup, which holds only the blocks that changed.
pub(crate) fn incremental(path: &Path) -> Error {
    Error::new(ErrorKind::Unsupported, "is part of an incremental backup, which has only the blocks that changed")
        .with_path(path)
        .with_hint(
            "put it together with the backups that it depends on: pg_combinebackup -o OUTPUT FULL ... INCREMENTAL",
        )
}

/// Looks for a server's lock file. `Err` if the server runs; an error to be weighed if one seems to have run and died.
///
/// # Errors
/// `ServerRunning`, `Io`.
pub(super) fn check_lock(path: &Path) -> Result<Option<Error>> {
    let lock = path.join("postmaster.pid");
    let Some(bytes) = read_small_file(&lock, 4096)? else {
        return Ok(None);
    };
    let first = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
    // A single-user server writes its pid negated.
    let pid = String::from_utf8_lossy(first).trim().parse::<i32>().ok().and_then(i32::checked_abs).filter(|&p| p > 0);
    let Some(pid) = pid else {
        return Err(Error::new(ErrorKind::ServerRunning, "is there, but names no process")
            .with_path(lock)
            .with_hint("a server is just starting, or the file is damaged: remove it if no server runs"));
    };
    // EPERM means that the process exists and is somebody else's.
    if kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH) {
        let what = format!("names process {pid}, which does not run here: a server died, or runs on another machine");
        return Ok(Some(Error::new(ErrorKind::ServerRunning, what).with_path(lock)));
    }
    Err(Error::new(ErrorKind::ServerRunning, format!("a server runs on the cluster: process {pid}"))
        .with_path(lock)
        .with_hint("stop it, or scan a snapshot; if that process is no PostgreSQL server, remove the file"))
}

/// Transparent data encryption leaves its keys and maps next to the relations.
fn check_encryption(path: &Path) -> Result<()> {
    let encrypted = |what: std::path::PathBuf| {
        Err(Error::new(ErrorKind::Unsupported, "looks encrypted: this belongs to transparent data encryption")
            .with_path(what)
            .with_hint("encrypted clusters are not read; dump them with their own server"))
    };
    for folder in ["pg_tde", "pg_encryption"] {
        let folder = path.join(folder);
        // The folder alone is made when the library is loaded; keys are there when it was used.
        if let Some(file) = first_filled_file(&folder)? {
            return encrypted(file);
        }
    }
    let base = path.join("base");
    let entries = match base.read_dir() {
        Ok(entries) => entries,
        Err(e) if is_missing(&e) => return Ok(()),
        Err(e) => return Err(Error::os(base, "read directory", &e)),
    };
    for entry in entries {
        let map = entry.map_err(|e| Error::os(&base, "read directory", &e))?.path().join("pg_tde.map");
        if exists(&map)? {
            return encrypted(map);
        }
    }
    Ok(())
}

fn first_filled_file(folder: &Path) -> Result<Option<std::path::PathBuf>> {
    let entries = match folder.read_dir() {
        Ok(entries) => entries,
        Err(e) if is_missing(&e) => return Ok(None),
        Err(e) => return Err(Error::os(folder, "read directory", &e)),
    };
    for entry in entries {
        let entry = entry.map_err(|e| Error::os(folder, "read directory", &e))?;
        let meta = entry.metadata().map_err(|e| Error::os(entry.path(), "stat", &e))?;
        if meta.is_file() && meta.len() > 0 {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

pub(super) fn exists(path: &Path) -> Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(e) if is_missing(&e) => Ok(false),
        Err(e) => Err(Error::os(path, "stat", &e)),
    }
}
