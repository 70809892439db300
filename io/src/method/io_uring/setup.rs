//! Making rings: flags, limits, the probe read, and words for what can go wrong.

use crate::{IoConfig, IoError, MethodName, config::cpu_count, method::ring_errors};
use io_uring::{IoUring, opcode, types};
use std::{fs::File, io, os::fd::AsRawFd, path::Path, time::Duration};

/// Fewest entries of a ring: below this, halving the depth because of a memory limit stops.
const ENTRIES_MIN: u32 = 8;
/// The kernel gives the memory of closed rings back late; so often creating one is tried again.
const ENOMEM_RETRIES: u32 = 3;

/// Flags that make a ring cheaper but that older or patched kernels do not know. SINGLE_ISSUER, DEFER_TASKRUN and
/// COOP_TASKRUN are not among them and never may be: they bind completions to the thread that submitted, and a paused
/// scan would keep others from the blocks that it has in flight.
#[derive(Clone, Copy, Debug)]
struct Rung {
    name: &'static str,
    submit_all: bool,
    no_sqarray: bool,
}

const LADDER: [Rung; 3] = [
    Rung { name: "SUBMIT_ALL|NO_SQARRAY", submit_all: true, no_sqarray: true },
    Rung { name: "SUBMIT_ALL", submit_all: true, no_sqarray: false },
    Rung { name: "none", submit_all: false, no_sqarray: false },
];

/// A ring that was proven to read.
pub(super) struct Made {
    pub(super) ring: IoUring,
    pub(super) flags: &'static str,
    pub(super) depth: u32,
    /// Whether a kernel thread polls for submissions, or why not.
    pub(super) sqpoll: Result<(), String>,
    /// Whether completions are polled for, or why not.
    pub(super) iopoll: Result<(), String>,
}

/// Why a ring cannot be had.
#[derive(Debug)]
pub(super) struct Refused {
    what: &'static str,
    errno: i32,
}

fn refused(what: &'static str) -> impl Fn(io::Error) -> Refused {
    move |error| Refused { what, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

fn build(sqpoll: bool, rung: Rung, depth: u32, iopoll: bool) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork();
    // CLAMP: a depth beyond the kernel's limit becomes that limit; what came out is read from the ring.
    builder.setup_clamp();
    if rung.submit_all {
        builder.setup_submit_all();
    }
    if rung.no_sqarray {
        builder.setup_no_sqarray();
    }
    if sqpoll {
        builder.setup_sqpoll(100);
    }
    if iopoll {
        builder.setup_iopoll();
    }
    builder.build(depth)
}

/// Steps down the ladder on EINVAL only, and halves the depth on ENOMEM.
fn create(config: &IoConfig, sqpoll: bool, iopoll: bool) -> Result<(IoUring, &'static str, u32), Refused> {
    let mut depth = config.io_max_concurrency.next_power_of_two().max(ENTRIES_MIN);
    let mut rungs = LADDER.into_iter().peekable();
    let mut patience = ENOMEM_RETRIES;
    loop {
        let Some(&rung) = rungs.peek() else { return Err(Refused { what: "io_uring_setup", errno: libc::EINVAL }) };
        match build(sqpoll, rung, depth, iopoll) {
            Ok(ring) => return Ok((ring, rung.name, depth)),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINVAL) => drop(rungs.next()),
                Some(libc::ENOMEM) if patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(Duration::from_millis(10));
                }
                Some(libc::ENOMEM) if depth > ENTRIES_MIN => depth /= 2,
                _ => return Err(refused("io_uring_setup")(error)),
            },
        }
    }
}

/// A working ring: created, and a no-op and a real read went through it.
pub(super) fn make(config: &IoConfig) -> Result<Made, Refused> {
    let not_asked = || Err("not asked for".to_owned());
    let mut sqpoll = if config.sqpoll { Ok(()) } else { not_asked() };
    let mut iopoll = if config.iopoll { Ok(()) } else { not_asked() };
    if config.iopoll {
        match make_polled(config) {
            Ok((ring, flags, depth)) => return Ok(Made { ring, flags, depth, sqpoll, iopoll }),
            Err(why) => iopoll = Err(why),
        }
    }
    let mut created = create(config, config.sqpoll, false);
    if config.sqpoll
        && let Err(Refused { errno, .. }) = created
    {
        created = create(config, false, false);
        sqpoll = Err(format!("the kernel refused it: {}", io::Error::from_raw_os_error(errno)));
    }
    let (ring, flags, depth) = created?;
    let parameters = ring.params();
    if !parameters.is_feature_ext_arg() || !parameters.is_feature_nodrop() {
        // Without them no bounded wait, or lost completions (before Linux 5.11).
        return Err(Refused { what: "io_uring_setup features EXT_ARG and NODROP", errno: libc::EOPNOTSUPP });
    }
    probe(&ring)?;
    Ok(Made { ring, flags, depth, sqpoll, iopoll })
}

/// A no-op, then the first bytes of a file of which we know that it exists: this program.
fn probe(ring: &IoUring) -> Result<(), Refused> {
    let answer = ask_once(ring, &opcode::Nop::new().build(), 1).map_err(refused("io_uring_enter"))?;
    if answer < 0 {
        return Err(Refused { what: "a no-op", errno: -answer });
    }
    let file = File::open("/proc/self/exe").map_err(refused("opening /proc/self/exe"))?;
    let mut bytes = Box::new([0u8; 4]);
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), bytes.as_mut_ptr(), 4).build();
    let answer = match ask_once(ring, &read, 2) {
        Ok(answer) => answer,
        Err(error) => {
            // The kernel may still write them.
            Box::leak(bytes);
            return Err(refused("io_uring_enter")(error));
        }
    };
    match answer {
        4 if *bytes == *b"\x7fELF" => Ok(()),
        0.. => Err(Refused { what: "the bytes of a probe read", errno: libc::EIO }),
        _ => Err(Refused { what: "a probe read", errno: -answer }),
    }
}

/// A polled ring, proven by a direct read from the device that is meant.
fn make_polled(config: &IoConfig) -> Result<(IoUring, &'static str, u32), String> {
    let path = config.probe_file.as_deref().unwrap_or_else(|| Path::new("/proc/self/exe"));
    let (ring, flags, depth) = create(config, config.sqpoll, true)
        .map_err(|refusal| format!("no such ring: {}", io::Error::from_raw_os_error(refusal.errno)))?;
    match probe_polled(&ring, path) {
        Ok(()) => Ok((ring, flags, depth)),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Err(format!("{}: the file system or the device has no poll queues ({error})", path.display()))
        }
        Err(error) => Err(format!("{}: polled direct read: {error}", path.display())),
    }
}

/// A direct read through a polled ring; EOPNOTSUPP where the device has no poll queues.
fn probe_polled(ring: &IoUring, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut page = Box::new(Page([0; 4096]));
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), page.0.as_mut_ptr(), 4096).build();
    match ask_once(ring, &read, 3) {
        Ok(4096) => Ok(()),
        Ok(answer) => Err(io::Error::from_raw_os_error(if answer < 0 { -answer } else { libc::EIO })),
        Err(error) => {
            // The kernel may still write it.
            Box::leak(page);
            Err(error)
        }
    }
}

#[allow(unsafe_code, reason = "entries hold raw pointers")]
fn ask_once(ring: &IoUring, entry: &io_uring::squeue::Entry, user_data: u64) -> io::Result<i32> {
    let entry = entry.clone().user_data(user_data);
    // SAFETY: nobody else has this ring yet; it is only lent to us.
    let (mut submission, mut completion) = unsafe { (ring.submission_shared(), ring.completion_shared()) };
    // SAFETY: both callers keep the memory and the file of the entry until the completion was seen, or leak the memory
    // when it was not.
    unsafe { submission.push(&entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))?;
    drop(submission);
    let limit = types::Timespec::new().sec(5);
    let arguments = types::SubmitArgs::new().timespec(&limit);
    for _ in 0..100 {
        match ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
        completion.sync();
        if let Some(entry) = completion.by_ref().find(|entry| entry.user_data() == user_data) {
            return Ok(entry.result());
        }
    }
    Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
}

/// The one line that a user gets to see.
pub(super) fn explain(refusal: &Refused, config: &IoConfig) -> String {
    let Refused { what, errno } = *refusal;
    let error = io::Error::from_raw_os_error(errno);
    format!("{what} failed: {error}; {}", ring_errors::likely_cause(errno, config))
}

pub(super) fn unavailable(refusal: &Refused, config: &IoConfig) -> IoError {
    IoError::Unavailable { method: MethodName::IoUring, reason: explain(refusal, config) }
}

/// Bounds the kernel's workers for a ring (by default there may be thousands) and says so.
pub(super) fn bound_workers(ring: &IoUring, config: &IoConfig, lane: usize) -> String {
    let bound = config.io_wq_workers.unwrap_or_else(|| u32::try_from(cpu_count().min(16)).unwrap_or(16)).max(1);
    let mut text = match ring.submitter().register_iowq_max_workers(&mut [bound, bound]) {
        Ok(()) => bound.to_string(),
        Err(error) => format!("not bounded: {error}"),
    };
    if let Some(cpus) = config.cpus_of_lane(lane) {
        text += &match set_worker_cpus(ring, cpus) {
            Ok(()) => format!(" on CPUs {cpus:?}"),
            Err(error) => format!(", CPUs not bound: {error}"),
        };
    }
    text
}

#[allow(unsafe_code, reason = "cpu_set_t is filled by macros that take references")]
fn set_worker_cpus(ring: &IoUring, cpus: &[usize]) -> io::Result<()> {
    // SAFETY: a plain bit set; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index was just checked.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    ring.submitter().register_iowq_aff(&set)
}
