//! Why the kernel refuses rings, in words that help.

use crate::IoConfig;

/// The likely cause of `errno` from setting up a ring, and what to do. The errno alone does not tell: the sysctl and
/// seccomp filters both answer EPERM, filters anything.
pub(crate) fn likely_cause(errno: i32, config: &IoConfig) -> String {
    let sysctl = std::fs::read_to_string(config.proc_root.join("sys/kernel/io_uring_disabled"));
    match sysctl.as_deref().map(str::trim) {
        Ok("2") => {
            return "sysctl kernel.io_uring_disabled is 2 (off for everybody): set it to 0, or use io_method worker"
                .to_owned();
        }
        Ok("1") => {
            return "sysctl kernel.io_uring_disabled is 1 (only for CAP_SYS_ADMIN and the group in kernel.io_uring_group): \
                    join that group, set it to 0, or use io_method worker"
                .to_owned();
        }
        _ => {}
    }
    match errno {
        libc::ENOMEM => {
            let (soft, hard) =
                nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK).unwrap_or((0, 0));
            format!(
                "likely the limit on locked memory, which all processes of a user share: RLIMIT_MEMLOCK is {soft} (hard {hard}) bytes \
                 for {} rings of {} entries: raise it (ulimit -l, LimitMEMLOCK), lower lanes or io_max_concurrency, or use io_method worker",
                config.lane_count(),
                config.io_max_concurrency
            )
        }
        libc::EMFILE | libc::ENFILE => {
            "too many open files: raise the limit (ulimit -n) or use io_method worker".to_owned()
        }
        libc::ENOSYS if sysctl.is_err() => {
            "this kernel has no io_uring (CONFIG_IO_URING), or a seccomp filter hides it: use io_method worker"
                .to_owned()
        }
        libc::EINVAL => "this kernel refuses the ring's settings: use io_method worker".to_owned(),
        _ => {
            "likely a seccomp filter (the default of Docker and containerd): allow io_uring_setup, io_uring_enter and \
              io_uring_register in the profile, or use io_method worker"
                .to_owned()
        }
    }
}
