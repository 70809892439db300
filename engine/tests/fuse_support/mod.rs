//! A file system in this process whose reads go wrong as the test wants: what the kernel then tells the IO methods is what
//! it tells them of a network file system or a dying disk, not what an imitation of the kernel would.
#![allow(unreachable_pub, reason = "a module of tests")]

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, Request,
};
use std::{
    ffi::OsStr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

/// What happens to one read.
pub enum Answer {
    /// So many bytes at most.
    Bytes(usize),
    Errno(i32),
    /// All of it, later.
    After(Duration),
}

/// Decides what happens to a read of so many bytes at an offset; the first argument counts the reads of the file.
pub type Plan = Box<dyn Fn(u64, u64, usize) -> Answer + Send + Sync>;

/// Of the reads of that file.
#[derive(Default)]
struct Counts {
    all: AtomicU64,
    waiting: AtomicU64,
    most_waiting: AtomicU64,
}

/// A folder of which one file is read by plan.
struct Folder {
    files: Vec<(String, Arc<Vec<u8>>)>,
    victim: String,
    plan: Arc<Mutex<Plan>>,
    counts: Arc<Counts>,
}

/// The mounted folder; unmounted when dropped.
pub struct Mounted {
    _session: BackgroundSession,
    plan: Arc<Mutex<Plan>>,
    counts: Arc<Counts>,
}

impl Mounted {
    /// From now on reads are answered by `plan`, and counted from 0.
    pub fn set(&self, plan: Plan) {
        *self.plan.lock().expect("no panic") = plan;
        for count in [&self.counts.all, &self.counts.most_waiting] {
            count.store(0, Ordering::SeqCst);
        }
    }

    /// Reads of the file that the kernel has asked for since then.
    pub fn reads(&self) -> u64 {
        self.counts.all.load(Ordering::SeqCst)
    }

    /// How many of those that were answered later waited at the same time.
    pub fn most_at_once(&self) -> u64 {
        self.counts.most_waiting.load(Ordering::SeqCst)
    }
}

/// Puts a copy of `folder` over it, in which reads of `victim` go by plan.
///
/// # Errors
/// Where there is no FUSE, or nobody who may mount.
pub fn mount_over(folder: &Path, victim: &str) -> std::io::Result<Mounted> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        files.push((entry.file_name().into_string().expect("UTF-8"), Arc::new(std::fs::read(entry.path())?)));
    }
    let plan: Plan = Box::new(|_, _, size| Answer::Bytes(size));
    let (plan, counts) = (Arc::new(Mutex::new(plan)), Arc::default());
    let served = Folder { files, victim: victim.to_owned(), plan: Arc::clone(&plan), counts: Arc::clone(&counts) };
    let mut config = fuser::Config::default();
    config.mount_options = vec![fuser::MountOption::RO, fuser::MountOption::FSName("heapscan-test".to_owned())];
    config.n_threads = Some(2);
    let session = fuser::spawn_mount(served, folder, &config)?;
    Ok(Mounted { _session: session, plan, counts })
}

impl Folder {
    fn attributes(&self, ino: u64) -> Option<FileAttr> {
        let (size, kind) = match ino {
            1 => (0, FileType::Directory),
            _ => (self.file(ino)?.1.len() as u64, FileType::RegularFile),
        };
        Some(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: if ino == 1 { 0o700 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        })
    }

    fn file(&self, ino: u64) -> Option<&(String, Arc<Vec<u8>>)> {
        self.files.get(usize::try_from(ino).ok()?.checked_sub(2)?)
    }
}

impl Filesystem for Folder {
    fn lookup(&self, _: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.files.iter().position(|(file, _)| name == OsStr::new(file));
        match found.and_then(|index| self.attributes(index as u64 + 2)) {
            Some(attributes) => reply.entry(&Duration::from_secs(60), &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino.0) {
            Some(attributes) => reply.attr(&Duration::from_secs(60), &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Past the page cache: the kernel hands on each read as it was asked for, and the answer as it was given.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some((name, bytes)) = self.file(ino.0) else { return reply.error(Errno::ENOENT) };
        let from = usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
        let whole = (bytes.len() - from).min(size as usize);
        let answer = match *name == self.victim {
            false => Answer::Bytes(whole),
            true => {
                let number = self.counts.all.fetch_add(1, Ordering::SeqCst);
                self.plan.lock().expect("no panic")(number, offset, whole)
            }
        };
        match answer {
            Answer::Bytes(most) => reply.data(&bytes[from..from + whole.min(most)]),
            Answer::Errno(errno) => reply.error(Errno::from_i32(errno)),
            Answer::After(delay) => {
                // Elsewhere, so that reads overtake one another.
                let (bytes, counts) = (Arc::clone(bytes), Arc::clone(&self.counts));
                let waiting = counts.waiting.fetch_add(1, Ordering::SeqCst) + 1;
                counts.most_waiting.fetch_max(waiting, Ordering::SeqCst);
                std::thread::spawn(move || {
                    std::thread::sleep(delay);
                    counts.waiting.fetch_sub(1, Ordering::SeqCst);
                    reply.data(&bytes[from..from + whole]);
                });
            }
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        for (index, (name, _)) in self.files.iter().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(INodeNo(index as u64 + 2), index as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }
}
