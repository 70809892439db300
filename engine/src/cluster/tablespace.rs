//! Where a tablespace is.
//!
//! The danger is a link that is followed without a thought: in a copy of a cluster the links of `pg_tblspc` are
//! absolute and lead to the live server's files.

use super::{
    Cluster,
    bytes::{is_missing, read_small_file},
    state::LABEL_MAX,
};
use crate::{Error, ErrorKind, Result};
use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

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
    let (target, named_by) = match link.symlink_metadata() {
        Ok(meta) if meta.is_dir() => match mapped(cluster, tablespace, &link)? {
            Some(folder) => return Ok(folder),
            None => return Ok(link),
        },
        Ok(meta) if meta.is_symlink() => {
            (link.read_link().map_err(|e| Error::os(&link, "read link", &e))?, link.clone())
        }
        Ok(_) => return Err(Error::new(ErrorKind::Corrupt, "is neither a link nor a directory").with_path(link)),
        Err(e) if is_missing(&e) => {
            // A backup has a file in place of the links.
            let file = cluster.path().join("tablespace_map");
            match listed(&file, tablespace)? {
                Some(target) => (target, file),
                None => match mapped(cluster, tablespace, &link)? {
                    Some(folder) => return Ok(folder),
                    None => {
                        return Err(Error::new(ErrorKind::NotFound, format!("tablespace {tablespace} is missing"))
                            .with_path(link)
                            .with_hint(format!("name its folder: --tablespace-map {tablespace}=FOLDER")));
                    }
                },
            }
        }
        Err(e) => return Err(Error::os(link, "stat", &e)),
    };
    if let Some(folder) = mapped(cluster, tablespace, &target)? {
        return Ok(folder);
    }
    // A relative link is meant from where it lies.
    let absolute = named_by.parent().unwrap_or(cluster.path()).join(&target);
    let resolved = absolute.canonicalize().map_err(|e| {
        Error::os(&named_by, format!("follow link of tablespace {tablespace} to {}", target.display()), &e).with_hint(
            format!("name its folder, if the copy keeps it elsewhere: --tablespace-map {}=FOLDER", target.display()),
        )
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
        .with_path(named_by)
        .with_hint(format!(
            "in a copy this may be the live server's folder: follow_tablespace_links (--follow-tablespace-links) if it is \
             not, or name the right folder: --tablespace-map {}=FOLDER",
            target.display()
        )));
    }
    Ok(resolved)
}

/// The folder that the user gave for a tablespace which the cluster has at `source`.
fn mapped(cluster: &Cluster, tablespace: u32, source: &Path) -> Result<Option<PathBuf>> {
    let oid = tablespace.to_string();
    let found =
        cluster.options().tablespace_map.iter().find(|(old, _)| old == source || old.as_os_str() == oid.as_str());
    let Some((_, folder)) = found else { return Ok(None) };
    match folder.metadata() {
        Ok(meta) if meta.is_dir() => Ok(Some(folder.clone())),
        Ok(_) => Err(Error::new(ErrorKind::Usage, "is no folder, but was given for a tablespace").with_path(folder)),
        Err(e) => Err(Error::os(folder, format!("find the folder given for tablespace {tablespace}"), &e)),
    }
}

/// What the file `tablespace_map` of a backup says of a tablespace: lines of an oid and a path, in which a backslash
/// takes the meaning from the character behind it (`read_tablespace_map` of `xlogrecovery.c`).
fn listed(file: &Path, tablespace: u32) -> Result<Option<PathBuf>> {
    let Some(text) = read_small_file(file, LABEL_MAX)? else { return Ok(None) };
    let (mut lines, mut line, mut escaped) = (Vec::new(), Vec::new(), false);
    for &byte in text.iter().chain(b"\n") {
        match byte {
            b'\n' | b'\r' if !escaped => lines.push(std::mem::take(&mut line)),
            b'\\' if !escaped => {
                escaped = true;
                continue;
            }
            _ => line.push(byte),
        }
        escaped = false;
    }
    let prefix = format!("{tablespace} ");
    let found = lines.iter().find_map(|line| line.strip_prefix(prefix.as_bytes()));
    Ok(found.filter(|path| !path.is_empty()).map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path))))
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
