//! The one error type of the crate.

use std::{error::Error as StdError, fmt, path::PathBuf};

/// Shorthand.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong; match on this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused: open, stat, read.
    Io,
    /// The folder is not a PostgreSQL cluster.
    NotACluster,
    /// `global/pg_control` cannot be believed: short, or its CRC is wrong.
    ControlFile,
    /// A PostgreSQL version, layout or feature that heapscan does not read.
    Unsupported,
    /// A server is running on the cluster (`postmaster.pid`).
    ServerRunning,
    /// The cluster was not shut down cleanly, or is a base backup that was not recovered.
    Unclean,
    /// No such database, schema, table or column.
    NotFound,
    /// A page, tuple or file is damaged.
    Corrupt,
    /// A page's checksum does not match.
    Checksum,
    /// The file and the catalog do not fit together: a tuple has more attributes than its relation.
    Schema,
    /// One value cannot be decoded.
    Value,
    /// The transaction status of a row cannot be found out.
    Visibility,
    /// All frames of the buffer pool are pinned.
    NoUnpinnedBuffers,
    /// An IO method cannot be used, or a read did not end in time.
    Method,
    /// Whoever asked does not want it any more.
    Cancelled,
    /// A setting or an argument makes no sense.
    Usage,
    /// Something exceeds a limit of this program or of the process.
    Limit,
}

/// An error with all that is known of where it happened.
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    path: Option<PathBuf>,
    block: Option<u32>,
    errno: Option<i32>,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    /// The value is whole, but what was asked for cannot be had of it.
    refusal: bool,
    /// The block is not there, rather than damaged.
    missing_block: bool,
}

impl Error {
    /// An error of `kind`; `message` says what happened, in lower case, without the path.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            path: None,
            block: None,
            errno: None,
            hint: None,
            source: None,
            refusal: false,
            missing_block: false,
        }))
    }

    /// Adds the file.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.path = Some(path.into());
        self
    }

    /// Adds the block number (absolute, not within the segment).
    #[must_use]
    pub fn with_block(mut self, block: u32) -> Self {
        self.0.block = Some(block);
        self
    }

    /// Adds the kernel's error number.
    #[must_use]
    pub fn with_errno(mut self, errno: i32) -> Self {
        self.0.errno = Some(errno);
        self
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Puts `context` before the message: where in the error's file, or for whose sake, it happened.
    #[must_use]
    pub fn in_context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// Says that nothing is damaged: the value is as it should be, but does not fit what was asked for.
    #[cfg_attr(not(feature = "arrow"), expect(dead_code, reason = "only Arrow types refuse values"))]
    #[must_use]
    pub(crate) fn into_refusal(mut self) -> Self {
        self.0.refusal = true;
        self
    }

    pub(crate) fn is_refusal(&self) -> bool {
        self.0.refusal
    }

    /// Says that the block is not there at all.
    #[must_use]
    pub(crate) fn into_missing_block(mut self) -> Self {
        self.0.missing_block = true;
        self
    }

    pub(crate) fn is_missing_block(&self) -> bool {
        self.0.missing_block
    }

    /// The message without path, block and hint.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// An error of the operating system on `path`.
    pub fn os(path: impl Into<PathBuf>, what: impl Into<String>, source: &std::io::Error) -> Self {
        let error = Self::new(ErrorKind::Io, format!("{}: {source}", what.into())).with_path(path);
        match source.raw_os_error() {
            Some(errno) => error.with_errno(errno),
            None => error,
        }
    }

    /// What kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The file, if there is one.
    pub fn path(&self) -> Option<&std::path::Path> {
        self.0.path.as_deref()
    }

    /// The block, if there is one.
    pub fn block(&self) -> Option<u32> {
        self.0.block
    }

    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }
}

/// As `Display`, with the kind before it: what `fn main() -> heapscan::Result<()>` shows to people.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.0.path {
            write!(f, "{}: ", path.display())?;
        }
        if let Some(block) = self.0.block {
            write!(f, "block {block}: ")?;
        }
        f.write_str(&self.0.message)?;
        if let Some(hint) = &self.0.hint {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|s| s as &(dyn StdError + 'static))
    }
}

impl From<heapscan_io::IoError> for Error {
    fn from(error: heapscan_io::IoError) -> Self {
        use heapscan_io::IoError;
        match &error {
            IoError::File { path, what, source } => Self::os(path.clone(), *what, source),
            IoError::Setting(_) => Self::new(ErrorKind::Usage, error.to_string()),
            _ => Self::new(ErrorKind::Method, error.to_string()),
        }
    }
}

impl From<heapscan_io::ReadError> for Error {
    fn from(error: heapscan_io::ReadError) -> Self {
        let source = std::io::Error::from_raw_os_error(error.errno);
        Self::os(error.path, format!("read at offset {}", error.offset), &source)
    }
}
