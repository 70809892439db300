//! Where a tablespace is.
//!
//! The danger is a link that is followed without a thought: in a copy of a cluster the links of `pg_tblspc` are
//! absolute and lead to the live server's files.

use super::{Cluster, bytes::is_missing};
use crate::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// `DEFAULTTABLESPACE_OID`: `pg_default`, the folder `base`.
pub(super) const DEFAULT_TABLESPACE: u32 = 1663;
/// `GLOBALTABLESPACE_OID`: `pg_global`, the folder `global`.
pub(super) const GLOBAL_TABLESPACE: u32 = 1664;

/// The folder in which a tablespace keeps the files of `database`.
///
/// # Errors
/// `NotFound` if the tablespace is not there, `Unsupported` if it lies outside the cluster and links may not be followed, or
/// has no folder of the cluster's version, `Io`.
pub(super) fn database_directory(cluster: &Cluster, tablespace: u32, database: u32) -> Result<PathBuf> {
    match tablespace {
        DEFAULT_TABLESPACE => return Ok(cluster.path().join("base").join(database.to_string())),
        GLOBAL_TABLESPACE => return Ok(cluster.path().join("global")),
        _ => {}
    }
    let root = root(cluster, tablespace)?;
    let control = cluster.control();
    // TABLESPACE_VERSION_DIRECTORY: during pg_upgrade two versions share a tablespace.
    let version = root.join(format!("PG_{}_{}", control.major_version, control.catalog_version));
    match version.metadata() {
        Ok(_) => Ok(version.join(database.to_string())),
        Err(e) if is_missing(&e) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("tablespace {tablespace} has no folder of this cluster's version; it has {}", list(&root)),
        )
        .with_path(version)),
        Err(e) => Err(Error::os(version, "stat", &e)),
    }
}

fn root(cluster: &Cluster, tablespace: u32) -> Result<PathBuf> {
    if let Some(folder) = cluster.options().tablespaces.get(&tablespace) {
        return Ok(folder.clone());
    }
    let link = cluster.path().join("pg_tblspc").join(tablespace.to_string());
    let meta = match link.symlink_metadata() {
        Ok(meta) => meta,
        Err(e) if is_missing(&e) => {
            return Err(Error::new(ErrorKind::NotFound, format!("tablespace {tablespace} is missing"))
                .with_path(link)
                .with_hint("name its folder, if the copy of the cluster keeps it elsewhere"));
        }
        Err(e) => return Err(Error::os(link, "stat", &e)),
    };
    if meta.is_dir() {
        return Ok(link);
    }
    if !meta.is_symlink() {
        return Err(Error::new(ErrorKind::Corrupt, "is neither a link nor a directory").with_path(link));
    }
    let target = link.read_link().map_err(|e| Error::os(&link, "read link", &e))?;
    let resolved = link.canonicalize().map_err(|e| {
        Error::os(&link, format!("follow link of tablespace {tablespace} to {}", target.display()), &e)
            .with_hint("name its folder, if the copy of the cluster keeps it elsewhere")
    })?;
    let inside = cluster.path().canonicalize().is_ok_and(|root| resolved.starts_with(root));
    if !inside && !cluster.options().follow_tablespace_links {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "tablespace {tablespace} is a link to {} ({}), outside the cluster",
                target.display(),
                resolved.display()
            ),
        )
        .with_path(link)
        .with_hint(
            "in a copy this may be the live server's folder: follow_tablespace_links (--follow-tablespace-links) if it is not, or name the right \
             folder",
        ));
    }
    Ok(resolved)
}

/// The entries of a folder for an error message; never many.
fn list(folder: &Path) -> String {
    let Ok(entries) = folder.read_dir() else {
        return "nothing that can be listed".to_owned();
    };
    let mut names: Vec<_> =
        entries.flatten().take(8).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}
