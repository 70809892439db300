//! How long requests took.

use crossbeam_utils::CachePadded;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Durations below and above are counted as these, in nanoseconds.
const BOUNDS: (u64, u64) = (256, 3_600_000_000_000);
/// Two digits: a percentile is right to one per cent.
const DIGITS: u8 = 2;
/// Threads share them; a completion takes one of them for some nanoseconds.
const SHARDS: usize = 4;

/// Percentiles of the time from submission to completion, in nanoseconds, right to one per cent. All 0 without
/// requests. For requests that run inside the submitting call this is the read itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencySummary {
    /// Requests that were measured.
    pub count: u64,
    /// Median.
    pub p50_nanos: u64,
    /// Nine of ten requests took no longer.
    pub p90_nanos: u64,
    /// 99 of 100 requests took no longer.
    pub p99_nanos: u64,
    /// The longest.
    pub max_nanos: u64,
}

/// The histogram, in shards.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    shards: [CachePadded<Mutex<Option<Histogram<u32>>>>; SHARDS],
}

fn histogram() -> Option<Histogram<u32>> {
    // The bounds are constants that it accepts.
    Histogram::new_with_bounds(BOUNDS.0, BOUNDS.1, DIGITS).ok()
}

impl Latencies {
    pub(crate) fn record(&self, latency: Duration) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        let shard = SHARD.try_with(|shard| *shard).unwrap_or(0);
        let mut shard = self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner);
        if shard.is_none() {
            *shard = histogram();
        }
        if let Some(histogram) = &mut *shard {
            histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    pub(crate) fn summary(&self) -> LatencySummary {
        let Some(mut sum) = Histogram::<u64>::new_with_bounds(BOUNDS.0, BOUNDS.1, DIGITS).ok() else {
            return LatencySummary::default();
        };
        for shard in &self.shards {
            if let Some(histogram) = &*shard.lock().unwrap_or_else(PoisonError::into_inner) {
                for value in histogram.iter_recorded() {
                    sum.saturating_record_n(value.value_iterated_to(), u64::from(value.count_at_value()));
                }
            }
        }
        if sum.is_empty() {
            return LatencySummary::default();
        }
        LatencySummary {
            count: sum.len(),
            p50_nanos: sum.value_at_quantile(0.5),
            p90_nanos: sum.value_at_quantile(0.9),
            p99_nanos: sum.value_at_quantile(0.99),
            max_nanos: sum.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_threads() {
        let latencies = Latencies::default();
        assert_eq!(latencies.summary(), LatencySummary::default());
        std::thread::scope(|scope| {
            for part in 0..5u64 {
                let latencies = &latencies;
                scope.spawn(move || {
                    (part * 200..(part + 1) * 200).for_each(|n| latencies.record(Duration::from_micros(n + 1)))
                });
            }
        });
        let summary = latencies.summary();
        let near = |nanos: u64, micros: u64| nanos.abs_diff(micros * 1000) <= micros * 20;
        assert_eq!(summary.count, 1000);
        assert!(near(summary.p50_nanos, 500) && near(summary.p90_nanos, 900), "{summary:?}");
        assert!(near(summary.p99_nanos, 990) && near(summary.max_nanos, 1000), "{summary:?}");
        latencies.record(Duration::from_secs(100_000));
        assert!(latencies.summary().max_nanos >= 3_500_000_000_000, "an endless read is in it");
    }
}
