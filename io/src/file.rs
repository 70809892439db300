//! Open data files.

use crate::IoError;
use nix::sys::statfs::{FUSE_SUPER_MAGIC, fstatfs};
use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Alignment assumed for direct reads where the kernel does not report one (statx without STATX_DIOALIGN).
const ALIGN_UNKNOWN: u32 = 512;

/// How to open a data file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenFileOptions {
    /// Past the page cache (`O_DIRECT`), where the file system can; else buffered, and [`DataFile::is_direct`] says so.
    pub direct: bool,
    /// Through the page cache but leave nothing there (`RWF_DONTCACHE`), where kernel and file system can; else
    /// ordinary buffered reads, and [`DataFile::is_uncached`] says so.
    pub uncached: bool,
}

/// Alignment that direct reads need, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlignment {
    /// Of memory addresses.
    pub memory: u32,
    /// Of file offsets and lengths.
    pub offset: u32,
}

/// A file open for reading; closed when the last request on it has ended.
#[derive(Debug)]
pub struct DataFile {
    file: File,
    /// The same file through the page cache, opened when a direct read cannot do it.
    buffered: OnceLock<File>,
    path: PathBuf,
    size: u64,
    id: u64,
    direct: AtomicBool,
    /// O_DIRECT is set on `file`, whether it is still used so or not.
    o_direct: AtomicBool,
    uncached: AtomicBool,
    /// See [`DataFile::is_unfit_for_rings`].
    fuse: bool,
    alignment: DirectAlignment,
    note: Mutex<Option<String>>,
}

impl DataFile {
    /// Opens `path` for reading. Only regular files: a pipe in a data directory would block for ever.
    ///
    /// # Errors
    /// [`IoError::File`] when the file cannot be opened or is not a regular file. Never because direct or uncached
    /// reads cannot be had: that is a [`DataFile::note`].
    pub fn open(path: &Path, options: OpenFileOptions) -> Result<Self, IoError> {
        let wrap = |what| move |source| IoError::File { path: path.to_owned(), what, source };
        // O_NONBLOCK so that opening a pipe does not wait for a writer.
        let file = open_with(path, libc::O_NONBLOCK).map_err(wrap("open"))?;
        let metadata = file.metadata().map_err(wrap("stat"))?;
        if !metadata.is_file() {
            return Err(wrap("open")(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        let mut opened = Self::from_file(file, path, metadata.len());
        opened.fuse = fstatfs(&opened.file).is_ok_and(|system| system.filesystem_type() == FUSE_SUPER_MAGIC);
        // io_uring answers EAGAIN for reads of files in non-blocking mode.
        sys::set_status_flags(&opened.file, 0).map_err(wrap("fcntl"))?;
        if options.direct {
            opened.try_direct();
        }
        if options.uncached && !opened.is_direct() {
            match sys::probe_uncached(&opened.file, opened.size) {
                Ok(()) => opened.uncached = AtomicBool::new(true),
                Err(error) => opened.set_note(format!("uncached reads (RWF_DONTCACHE) refused: {error}")),
            }
        }
        Ok(opened)
    }

    pub(crate) fn from_file(file: File, path: &Path, size: u64) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Self {
            file,
            buffered: OnceLock::new(),
            path: path.to_owned(),
            size,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            direct: AtomicBool::new(false),
            o_direct: AtomicBool::new(false),
            uncached: AtomicBool::new(false),
            fuse: false,
            alignment: DirectAlignment { memory: ALIGN_UNKNOWN, offset: ALIGN_UNKNOWN },
            note: Mutex::new(None),
        }
    }

    fn try_direct(&mut self) {
        // "Not reported" means unknown: tmpfs reports nothing and works. Zero means: cannot.
        match sys::direct_alignment(&self.file) {
            Some(DirectAlignment { memory: 0, .. } | DirectAlignment { offset: 0, .. }) => {
                return self
                    .set_note("the file system has no direct IO for this file (statx): read buffered".to_owned());
            }
            Some(alignment) => self.alignment = alignment,
            None => {}
        }
        match sys::set_status_flags(&self.file, libc::O_DIRECT) {
            Ok(()) => {
                self.direct = AtomicBool::new(true);
                self.o_direct = AtomicBool::new(true);
            }
            Err(error) => self.set_note(format!("O_DIRECT refused: {error}: read buffered")),
        }
    }

    fn set_note(&self, text: String) {
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Device and inode, or `None` if the kernel does not tell.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    /// Whether reads go past the page cache. Can become false when a read is refused.
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Whether the page cache may have what is read.
    pub(crate) fn may_be_cached(&self) -> bool {
        !self.is_direct()
    }

    /// Whether reads leave nothing in the page cache (`RWF_DONTCACHE`).
    pub fn is_uncached(&self) -> bool {
        self.uncached.load(Ordering::Relaxed)
    }

    /// Whether io_uring may read other bytes of it than it was asked for. On FUSE a file can be past the page cache by
    /// its server's wish (FOPEN_DIRECT_IO), which nobody is told. When such a read comes back short, the kernel's
    /// io_read() goes on by itself, but from the offset where it began: fuse_direct_read_iter() does not advance that of
    /// an asynchronous request (seen on Linux 6.18 with a server without FUSE_ASYNC_DIO).
    #[cfg_attr(not(any(feature = "io_uring", feature = "tokio_uring")), expect(dead_code, reason = "only rings ask"))]
    pub(crate) fn is_unfit_for_rings(&self) -> bool {
        self.fuse
    }

    /// Remembers that it is read by blocking calls for that reason.
    #[cfg_attr(not(any(feature = "io_uring", feature = "tokio_uring")), expect(dead_code, reason = "only rings tell"))]
    pub(crate) fn note_unfit_for_rings(&self) {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        note.get_or_insert_with(|| {
            "on FUSE, where io_uring can misplace what follows a short read: read by blocking calls; worker reads ahead \
             there"
                .to_owned()
        });
    }

    /// Alignment of direct reads; a guess (512 bytes) where the kernel does not say.
    pub fn alignment(&self) -> DirectAlignment {
        self.alignment
    }

    /// Why it is not read in the way that was asked for.
    pub fn note(&self) -> Option<String> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Unique in this process, unlike the descriptor, which is used again.
    #[cfg_attr(
        not(any(feature = "io_uring", feature = "tokio_uring")),
        expect(dead_code, reason = "only rings keep tables of files")
    )]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// A descriptor that reads through the page cache. A failure is not remembered: a descriptor may be free next time.
    /// When none is, the file is read through the page cache by the descriptor that there is, from now on.
    pub(crate) fn buffered_fd(&self) -> Result<RawFd, i32> {
        loop {
            if let Some(file) = self.buffered.get() {
                return Ok(file.as_raw_fd());
            }
            match self.reopen() {
                // Another thread may have been faster: then its descriptor is used, and this one is closed.
                Ok(file) => drop(self.buffered.set(file)),
                Err(error) => match error.raw_os_error().unwrap_or(libc::EIO) {
                    libc::EINTR => {}
                    errno @ (libc::EMFILE | libc::ENFILE) => {
                        // Reads in flight took over O_DIRECT, or not, when they were submitted.
                        sys::set_status_flags(&self.file, 0).map_err(|error| error.raw_os_error().unwrap_or(errno))?;
                        self.direct.store(false, Ordering::Relaxed);
                        self.o_direct.store(false, Ordering::Relaxed);
                        self.set_note(format!(
                            "no descriptor was left to reopen it buffered ({error}): read buffered from then on"
                        ));
                        return Ok(self.fd());
                    }
                    errno => return Err(errno),
                },
            }
        }
    }

    /// Opens the same file again: through procfs, which works for a file that was unlinked meanwhile; without procfs by
    /// its path, if that still leads to the same file.
    fn reopen(&self) -> io::Result<File> {
        if let Ok(file) = open_with(Path::new(&format!("/proc/self/fd/{}", self.fd())), 0) {
            return Ok(file);
        }
        let file = open_with(&self.path, 0)?;
        let (was, is) = (self.file.metadata()?, file.metadata()?);
        if (was.dev(), was.ino()) != (is.dev(), is.ino()) {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        Ok(file)
    }

    /// A direct read was refused as a whole: from now on the page cache. Says whether this call changed it.
    pub(crate) fn give_up_direct(&self) -> bool {
        let changed = self.direct.swap(false, Ordering::Relaxed);
        if changed {
            self.set_note("a direct read was refused (EINVAL): reopened, read buffered from then on".to_owned());
        }
        // O_DIRECT stays set on the first descriptor (reads may be in flight), so it is not used any more.
        changed
    }

    pub(crate) fn give_up_uncached(&self) {
        if self.uncached.swap(false, Ordering::Relaxed) {
            self.set_note(
                "an uncached read (RWF_DONTCACHE) was refused: ordinary buffered reads from then on".to_owned(),
            );
        }
    }

    /// Whether the first descriptor has O_DIRECT set, even if it was given up.
    pub(crate) fn opened_direct(&self) -> bool {
        self.o_direct.load(Ordering::Relaxed)
    }
}

fn open_with(path: &Path, flags: i32) -> io::Result<File> {
    // std sets O_CLOEXEC.
    OpenOptions::new().read(true).custom_flags(flags | libc::O_NOCTTY).open(path)
}

#[allow(unsafe_code, reason = "system calls that neither std nor nix wraps")]
mod sys {
    use super::DirectAlignment;
    use std::{fs::File, io, mem::MaybeUninit, os::fd::AsRawFd};

    /// Sets O_DIRECT, O_NONBLOCK and the like.
    pub(super) fn set_status_flags(file: &File, flags: i32) -> io::Result<()> {
        // SAFETY: F_SETFL takes an int and touches no memory; the descriptor is open because `file` is borrowed.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Alignment by statx(2), if the kernel reports it (Linux 6.1, not all file systems).
    pub(super) fn direct_alignment(file: &File) -> Option<DirectAlignment> {
        let mut answer = MaybeUninit::<libc::statx>::zeroed();
        // SAFETY: the path is an empty C string (AT_EMPTY_PATH: the descriptor itself), the answer is one statx.
        let result = unsafe {
            libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, answer.as_mut_ptr())
        };
        if result != 0 {
            return None;
        }
        // SAFETY: a plain struct of integers, zeroed before and written by the kernel.
        let answer = unsafe { answer.assume_init() };
        (answer.stx_mask & libc::STATX_DIOALIGN != 0)
            .then_some(DirectAlignment { memory: answer.stx_dio_mem_align, offset: answer.stx_dio_offset_align })
    }

    /// Whether the kernel takes RWF_DONTCACHE for this file: a read at its end, which reads nothing.
    pub(super) fn probe_uncached(file: &File, size: u64) -> io::Result<()> {
        let mut byte = 0u8;
        let iovec = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let offset = libc::off_t::try_from(size).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        // SAFETY: one iovec that describes one byte of our stack.
        match unsafe { libc::preadv2(file.as_raw_fd(), &raw const iovec, 1, offset, crate::transfer::RWF_DONTCACHE) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}
