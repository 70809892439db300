//! Where results go: standard output, or a file that is there when it is whole and not before.

use heapscan::{Engine, Error, ErrorKind, Result, Table};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Refuses to write where the cluster lies: creating the output would empty one of its files, or leave a stray one.
pub(crate) fn check_output(path: &Path, engine: &Engine, table: &Table) -> Result<()> {
    let refuse = |why: &str| {
        Err(Error::new(ErrorKind::Usage, format!("will not be written: {why}"))
            .with_path(path)
            .with_hint("choose an output file outside the cluster"))
    };
    // Pipes and devices; their links in /proc lead nowhere.
    if path.metadata().is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
        return Ok(());
    }
    let target = match (path.canonicalize(), path.symlink_metadata()) {
        (Ok(target), _) => target,
        (Err(_), Ok(_)) => return refuse("it is a link that leads nowhere, or cannot be followed"),
        (Err(_), Err(_)) => {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let folder = folder.canonicalize().map_err(|e| Error::os(path, "create", &e))?;
            folder.join(path.file_name().unwrap_or_default())
        }
    };
    let inside = |folder: &Path| folder.canonicalize().is_ok_and(|folder| target.starts_with(folder));
    if inside(engine.cluster().path()) || table.fork().path().parent().is_some_and(inside) {
        return refuse("it lies in the cluster that is read");
    }
    // A hard link elsewhere is the same file.
    let Ok(existing) = target.metadata() else { return Ok(()) };
    if table.blocks() == 0 {
        return Ok(());
    }
    let last = table.blocks().saturating_sub(1);
    let per_segment = engine.cluster().control().blocks_per_segment;
    let same = (0..=last).step_by(per_segment as usize).any(|block| {
        let segment = table.fork().path_of(block).metadata();
        segment.is_ok_and(|s| (s.dev(), s.ino()) == (existing.dev(), existing.ino()))
    });
    if same { refuse("it is a file of the table that is read") } else { Ok(()) }
}

/// Standard output or a file.
///
/// A file is written under another name beside it and takes its name at the end ([`finish`](Self::finish)): what was
/// there before stays until then, and after an error. Pipes and devices are written as they are.
pub(crate) struct Output {
    path: Option<PathBuf>,
    file: Option<File>,
    /// What is to take the name of `path`.
    unfinished: Option<(PathBuf, PathBuf)>,
}

impl Output {
    /// An output to `path`, or to standard output. Nothing is made before the first write.
    pub(crate) fn new(path: Option<&Path>) -> Self {
        Self { path: path.map(Path::to_owned), file: None, unfinished: None }
    }

    fn writer(&mut self) -> io::Result<Box<dyn Write + '_>> {
        let Some(path) = &self.path else { return Ok(Box::new(io::stdout().lock())) };
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let (file, unfinished) = create(path)?;
                self.unfinished = unfinished;
                file
            }
        };
        Ok(Box::new(self.file.insert(file)))
    }

    /// All is written: gives the file its name.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.writer()?.flush()?;
        match self.unfinished.take() {
            Some((from, to)) => std::fs::rename(&from, to).inspect_err(|_| drop(std::fs::remove_file(&from))),
            None => Ok(()),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer()?.flush()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((unfinished, _)) = self.unfinished.take() {
            // Nobody is left who could be told.
            let _ = std::fs::remove_file(unfinished);
        }
    }
}

/// Opens what is to become `path`; with the names to rename from and to, if it is a file.
fn create(path: &Path) -> io::Result<(File, Option<(PathBuf, PathBuf)>)> {
    // Through links: the file they lead to is the one to be replaced.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mode = match path.metadata() {
        Ok(meta) if !meta.is_file() => return Ok((OpenOptions::new().write(true).open(path)?, None)),
        // Others that share the file by a hard link would not see its successor.
        Ok(meta) if meta.nlink() > 1 => return Ok((File::create(&target)?, None)),
        // Who may not write to it may not replace it either.
        Ok(meta) => OpenOptions::new().write(true).open(&target).map(|_| Some(meta.permissions()))?,
        Err(_) => None,
    };
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let unfinished = target.with_file_name(format!(".{name}.{}.unfinished", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
    let names = (unfinished, target);
    if let Some(permissions) = mode
        && let Err(error) = file.set_permissions(permissions)
    {
        let _ = std::fs::remove_file(&names.0);
        return Err(error);
    }
    Ok((file, Some(names)))
}
