//! CPUs that may be used, and pinning threads to them.

use nix::{
    errno::Errno,
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// The CPUs that the calling thread may run on (its cpuset and affinity), ascending. The answer of
/// `available_parallelism`, counted from 0, when the kernel has more CPUs than a fixed `cpu_set_t` holds.
pub fn allowed_cpus() -> Vec<usize> {
    match sched_getaffinity(Pid::from_raw(0)) {
        Ok(set) => (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect(),
        Err(_) => (0..std::thread::available_parallelism().map_or(1, usize::from)).collect(),
    }
}

/// Confines the calling thread to `cpus`.
///
/// # Errors
/// EINVAL when none of them may be used or one is beyond what `cpu_set_t` holds, EPERM when it is forbidden.
pub fn pin_current_thread(cpus: &[usize]) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_narrows_what_is_allowed() {
        std::thread::spawn(|| {
            let all = allowed_cpus();
            let last = *all.last().expect("at least one CPU");
            pin_current_thread(&[last]).expect("an allowed CPU");
            assert_eq!(allowed_cpus(), [last]);
        })
        .join()
        .expect("the pinned thread");
    }

    #[test]
    fn cpus_that_do_not_exist_are_refused() {
        assert_eq!(pin_current_thread(&[]), Err(Errno::EINVAL));
        assert_eq!(pin_current_thread(&[1 << 20]), Err(Errno::EINVAL));
    }
}
