//! Wall and CPU time, and the peak of resident memory.

use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;
use std::time::Instant;

/// Seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Spent {
    pub(super) wall: f64,
    /// All threads of the process, the kernel's workers for it included.
    pub(super) user: f64,
    pub(super) system: f64,
}

impl Spent {
    pub(super) fn cpu(&self) -> f64 {
        self.user + self.system
    }
}

pub(super) struct Clock {
    wall: Instant,
    user: f64,
    system: f64,
}

fn cpu() -> (f64, f64) {
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_SELF).map_or((0.0, 0.0), |u| (seconds(u.user_time()), seconds(u.system_time())))
}

impl Clock {
    pub(super) fn start() -> Self {
        let (user, system) = cpu();
        Self { wall: Instant::now(), user, system }
    }

    pub(super) fn stop(&self) -> Spent {
        let wall = self.wall.elapsed().as_secs_f64();
        let (user, system) = cpu();
        Spent { wall, user: user - self.user, system: system - self.system }
    }
}

/// Lets the kernel begin anew with the peak of resident memory (proc_pid_clear_refs(5)).
pub(super) fn reset_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Median, least and most of some figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        if count == 0 {
            return Self::default();
        }
        let median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        Self { median, min: sorted[0], max: sorted[count - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0].into_iter()), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0].into_iter()).median, 2.5);
        assert_eq!(Spread::of(std::iter::empty()), Spread::default());
    }

    #[test]
    fn cpu_time_is_counted() {
        let clock = Clock::start();
        let mut x = 1u64;
        while clock.wall.elapsed().as_millis() < 50 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        let spent = clock.stop();
        assert!(spent.wall >= 0.05 && spent.cpu() > 0.0 && spent.cpu() < 60.0, "{spent:?}");
    }
}
