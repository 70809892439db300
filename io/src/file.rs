//! Open data files.

use crate::IoError;
use std::{
    fs::File,
    path::{Path, PathBuf},
};

/// How to open a data file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenFileOptions {
    /// Past the page cache (`O_DIRECT`), where the file system can; else buffered, and [`DataFile::is_direct`] says so.
    pub direct: bool,
}

/// A file open for reading; closed when the last request on it has ended.
#[derive(Debug)]
pub struct DataFile {
    pub(crate) file: File,
    path: PathBuf,
    size: u64,
    direct: bool,
}

impl DataFile {
    /// Opens `path` for reading.
    pub fn open(path: &Path, _options: OpenFileOptions) -> Result<Self, IoError> {
        let wrap = |what| move |source| IoError::File { path: path.to_owned(), what, source };
        let file = File::open(path).map_err(wrap("open"))?;
        let size = file.metadata().map_err(wrap("stat"))?.len();
        Ok(Self { file, path: path.to_owned(), size, direct: false })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}
