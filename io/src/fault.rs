//! Faults on purpose, for tests: what kernels, file systems and devices do rarely, done often.
//!
//! Two kinds, of operations and of delivery. Faults of single operations (short results, EINTR, EAGAIN, EIO) are drawn in
//! [`Transfer`](crate::transfer::Transfer), so that every method meets them through the shared rule. Faults of
//! delivery (delays, completions out of order, twice or never) are a method that wraps another one.
//!
//! Every draw is a function of the seed and of *what* is read, not of when or by which thread: the same plan does the
//! same to the same requests with every method.

use crate::{
    Completer, Completion, IoMethod, IoStats, MemoryRegistration, MethodName, OutstandingRead, Request, Segment,
    WaitOutcome, latency::LatencySummary,
};
use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// What goes wrong, how often. Text form: `seed=7,short=0.3,eintr=0.1,eagain=0.1,delay=50us,reorder`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Seed of all draws.
    pub seed: u64,
    /// Probability that an operation returns fewer bytes than it read (`short`).
    pub short: f64,
    /// Probability of EINTR (`eintr`).
    pub eintr: f64,
    /// Probability of EAGAIN (`eagain`); 1 is "for ever", and only the blocking read helps.
    pub eagain: f64,
    /// Probability of EIO (`eio`).
    pub eio: f64,
    /// EIO for every operation that touches this byte of any file (`eio_at`).
    pub eio_at: Option<u64>,
    /// Completions are held back for up to this long (`delay`, with us, ms or s).
    pub delay: Duration,
    /// Completions come in another order than that of their reads (`reorder`).
    pub reorder: bool,
    /// Probability that a completion is delivered twice (`duplicate`).
    pub duplicate: f64,
    /// Probability that a completion is never delivered (`lose`): its memory then stays with whoever owns it.
    pub lose: f64,
    /// Probability that submitting to a ring is refused with EAGAIN after the entries were queued (`enter_eagain`).
    pub enter_eagain: f64,
    /// A ring takes one entry a system call, however many are queued (`one_by_one`).
    pub one_by_one: bool,
    /// Direct reads are refused with EINVAL, as file systems do that only claim to have them (`no_direct`).
    pub no_direct: bool,
}

fn parse_duration(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let count: u64 = text[..unit].parse().ok()?;
    match &text[unit..] {
        "us" => Some(Duration::from_micros(count)),
        "ms" => Some(Duration::from_millis(count)),
        "s" => Some(Duration::from_secs(count)),
        _ => None,
    }
}

fn parse_probability(text: &str) -> Option<f64> {
    text.parse().ok().filter(|p| (0.0..=1.0).contains(p))
}

impl FromStr for FaultPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let understood = match key {
                "seed" => value.parse().map(|v| plan.seed = v).ok(),
                "short" => parse_probability(value).map(|v| plan.short = v),
                "eintr" => parse_probability(value).map(|v| plan.eintr = v),
                "eagain" => parse_probability(value).map(|v| plan.eagain = v),
                "eio" => parse_probability(value).map(|v| plan.eio = v),
                "eio_at" => value.parse().map(|v| plan.eio_at = Some(v)).ok(),
                "delay" => parse_duration(value).map(|v| plan.delay = v),
                "duplicate" => parse_probability(value).map(|v| plan.duplicate = v),
                "lose" => parse_probability(value).map(|v| plan.lose = v),
                "reorder" => value.is_empty().then(|| plan.reorder = true),
                "enter_eagain" => parse_probability(value).map(|v| plan.enter_eagain = v),
                "one_by_one" => value.is_empty().then(|| plan.one_by_one = true),
                "no_direct" => value.is_empty().then(|| plan.no_direct = true),
                _ => {
                    return Err(format!(
                        "unknown fault {key:?}: use seed, short, eintr, eagain, eio, eio_at, delay, reorder, duplicate, lose, enter_eagain, one_by_one or no_direct"
                    ));
                }
            };
            if understood.is_none() {
                return Err(format!("fault {part:?}: a probability is 0 to 1, a delay like 50us, 2ms or 1s"));
            }
        }
        Ok(plan)
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        let probabilities = [
            ("short", self.short),
            ("eintr", self.eintr),
            ("eagain", self.eagain),
            ("eio", self.eio),
            ("duplicate", self.duplicate),
            ("lose", self.lose),
            ("enter_eagain", self.enter_eagain),
        ];
        for (name, probability) in probabilities.into_iter().filter(|(_, p)| *p > 0.0) {
            write!(f, ",{name}={probability}")?;
        }
        if let Some(at) = self.eio_at {
            write!(f, ",eio_at={at}")?;
        }
        if !self.delay.is_zero() {
            write!(f, ",delay={}us", self.delay.as_micros())?;
        }
        let switches = [("reorder", self.reorder), ("one_by_one", self.one_by_one), ("no_direct", self.no_direct)];
        for (name, _) in switches.iter().filter(|(_, on)| *on) {
            write!(f, ",{name}")?;
        }
        Ok(())
    }
}

/// One step of splitmix64, as a hash of its input.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number in 0..1 from 53 bits of a hash.
fn unit(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

/// What happens to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Injected {
    Nothing,
    /// At most so many bytes.
    Short(i32),
    Errno(i32),
}

impl Injected {
    /// The answer that the shared rule sees instead of the kernel's.
    pub(crate) fn apply(self, answer: i32, blocking: bool) -> i32 {
        match self {
            Self::Nothing => answer,
            Self::Short(bytes) => answer.min(bytes),
            // A blocking read is never told to come again.
            Self::Errno(libc::EAGAIN | libc::EINTR) if blocking => answer,
            Self::Errno(errno) => -errno,
        }
    }
}

/// A plan at work.
pub(crate) struct Faults {
    plan: FaultPlan,
    /// Draws of the submission faults, which belong to no request.
    enters: std::sync::atomic::AtomicU64,
}

impl Faults {
    pub(crate) fn new(plan: FaultPlan) -> Self {
        Self { plan, enters: 0.into() }
    }

    /// Draws for one operation of a request.
    pub(crate) fn draw(&self, request_offset: u64, offset: u64, len: usize, attempt: u32) -> Injected {
        let plan = &self.plan;
        if plan.eio_at.is_some_and(|at| at >= offset && at - offset < len as u64) {
            return Injected::Errno(libc::EIO);
        }
        let hash = mix(plan.seed ^ mix(request_offset ^ mix(offset ^ mix((len as u64) ^ mix(u64::from(attempt))))));
        let mut at = unit(hash);
        let errors = [(plan.eio, libc::EIO), (plan.eintr, libc::EINTR), (plan.eagain, libc::EAGAIN)];
        for (probability, errno) in errors {
            if at < probability {
                return Injected::Errno(errno);
            }
            at -= probability;
        }
        if at < plan.short && len > 1 {
            // Often the nasty lengths (one byte, one missing, half), else any.
            let any = 1 + mix(hash ^ 1) % (len as u64 - 1);
            let short = match mix(hash ^ 2) % 6 {
                0 => 1,
                1 => len as u64 - 1,
                2 => (len as u64 / 2).max(1),
                3 => any.next_multiple_of(512).min(len as u64 - 1),
                _ => any,
            };
            return Injected::Short(i32::try_from(short).unwrap_or(i32::MAX));
        }
        Injected::Nothing
    }

    /// Whether direct reads fail.
    pub(crate) fn refuse_direct(&self) -> bool {
        self.plan.no_direct
    }

    /// How many of `queued` entries a ring may be given now; `None`: refused with EAGAIN.
    #[cfg_attr(not(feature = "io_uring"), expect(dead_code, reason = "only rings are entered"))]
    pub(crate) fn enter(&self, queued: usize) -> Option<usize> {
        let plan = &self.plan;
        if plan.enter_eagain > 0.0 {
            let number = self.enters.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if unit(mix(plan.seed ^ mix(number))) < plan.enter_eagain {
                return None;
            }
        }
        Some(if plan.one_by_one { queued.min(1) } else { queued })
    }
}

/// Completions held back, by the time at which they are due.
#[derive(Default)]
struct Held {
    by_time: BTreeMap<(Instant, u64), Completion>,
    number: u64,
    closing: bool,
}

/// Stands between a method and its completer and lets completions be late.
pub(crate) struct Delayer {
    completer: Arc<dyn Completer>,
    seed: u64,
    delay: Duration,
    duplicate: f64,
    lose: f64,
    held: Mutex<Held>,
    changed: Condvar,
}

/// Spread of completions that are only to be reordered.
const REORDER_WINDOW: Duration = Duration::from_micros(300);

impl Completer for Delayer {
    fn complete(&self, completion: Completion) {
        let span = self.delay.as_nanos() as u64;
        let wait = if span == 0 { 0 } else { mix(self.seed ^ mix(completion.tag)) % span };
        if unit(mix(self.seed ^ mix(completion.tag ^ 1))) < self.lose {
            return;
        }
        let twice = unit(mix(self.seed ^ mix(completion.tag ^ 2))) < self.duplicate;
        let due = Instant::now() + Duration::from_nanos(wait);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for late in 0..1 + u64::from(twice) {
            held.number += 1;
            let key = (due + Duration::from_micros(100 * late), held.number);
            let Completion { tag, bytes, ref error, retries, latency } = completion;
            held.by_time.insert(key, Completion { tag, bytes, error: error.clone(), retries, latency });
        }
        drop(held);
        self.changed.notify_one();
    }
}

impl Delayer {
    fn run(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            match held.by_time.first_key_value() {
                Some((&key, _)) if key.0 <= now || held.closing => {
                    let completion = held.by_time.remove(&key);
                    drop(held);
                    if let Some(completion) = completion {
                        self.completer.complete(completion);
                    }
                    held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
                }
                Some((&(due, _), _)) => {
                    held = self.changed.wait_timeout(held, due - now).unwrap_or_else(PoisonError::into_inner).0;
                }
                None if held.closing => return,
                None => held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A method whose completions are late and out of order.
pub(crate) struct FaultMethod {
    /// Always there until drop.
    inner: Option<Box<dyn IoMethod>>,
    name: MethodName,
    delayer: Arc<Delayer>,
    thread: Option<JoinHandle<()>>,
}

/// How long a wait trusts the wrapped method, which does not know what is held back.
const TICK: Duration = Duration::from_micros(200);

impl FaultMethod {
    /// The completer to give to the method that is to be wrapped; `None` when the plan has no faults of time.
    pub(crate) fn delayer(plan: &FaultPlan, completer: Arc<dyn Completer>) -> Option<Arc<Delayer>> {
        let delay = if plan.reorder { plan.delay + REORDER_WINDOW } else { plan.delay };
        let delivery = plan.duplicate > 0.0 || plan.lose > 0.0;
        (delivery || !delay.is_zero()).then(|| {
            let (held, changed) = (Mutex::default(), Condvar::new());
            let (duplicate, lose) = (plan.duplicate, plan.lose);
            Arc::new(Delayer { completer, seed: plan.seed, delay, duplicate, lose, held, changed })
        })
    }

    pub(crate) fn wrap(inner: Box<dyn IoMethod>, delayer: Arc<Delayer>) -> std::io::Result<Self> {
        let run = Arc::clone(&delayer);
        let thread = std::thread::Builder::new().name("heapscan-fault".to_owned()).spawn(move || run.run())?;
        Ok(Self { name: inner.name(), inner: Some(inner), delayer, thread: Some(thread) })
    }

    fn inner(&self) -> Option<&dyn IoMethod> {
        self.inner.as_deref()
    }
}

impl IoMethod for FaultMethod {
    fn name(&self) -> MethodName {
        self.name
    }

    fn lanes(&self) -> usize {
        self.inner().map_or(1, IoMethod::lanes)
    }

    fn is_asynchronous(&self) -> bool {
        // Completions come from another thread, whatever is wrapped.
        true
    }

    fn submit(&self, lane: usize, requests: &mut Vec<Request>) {
        if let Some(inner) = self.inner() {
            inner.submit(lane, requests);
        }
    }

    fn submit_for_wait(&self, lane: usize, requests: &mut Vec<Request>) {
        if let Some(inner) = self.inner() {
            inner.submit_for_wait(lane, requests);
        }
    }

    fn lost(&self, lane: usize) -> Option<&'static str> {
        self.inner()?.lost(lane)
    }

    fn reap(&self, lane: usize) -> usize {
        self.inner().map_or(0, |inner| inner.reap(lane))
    }

    fn wait(&self, lane: usize, done: &dyn Fn() -> bool, timeout: Duration) -> WaitOutcome {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let outcome = match self.inner() {
                Some(inner) => inner.wait(lane, done, left.min(TICK)),
                None => WaitOutcome::TimedOut,
            };
            if outcome == WaitOutcome::Done || left.is_zero() {
                return outcome;
            }
        }
    }

    fn stats(&self) -> IoStats {
        self.inner().map_or_else(IoStats::default, IoMethod::stats)
    }

    fn latency(&self) -> LatencySummary {
        self.inner().map_or_else(LatencySummary::default, IoMethod::latency)
    }

    fn outstanding(&self) -> Vec<OutstandingRead> {
        self.inner().map_or_else(Vec::new, IoMethod::outstanding)
    }

    #[allow(unsafe_code, reason = "passes the caller's promise on")]
    unsafe fn register_memory(&self, memory: &[Segment]) -> MemoryRegistration {
        match self.inner() {
            // SAFETY: the caller promises for this method, which drops the inner one when it is dropped itself.
            Some(inner) => unsafe { inner.register_memory(memory) },
            None => MemoryRegistration::Plain("closed".to_owned()),
        }
    }
}

impl Drop for FaultMethod {
    fn drop(&mut self) {
        // First the wrapped method, which delivers what is in flight; then what is held back.
        drop(self.inner.take());
        self.delayer.held.lock().unwrap_or_else(PoisonError::into_inner).closing = true;
        self.delayer.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A completer that panicked did so in its own name; nothing is left to do for it here.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_prints_as_it_is_written() {
        let text = "seed=7,short=0.3,eintr=0.1,eagain=0.1,enter_eagain=0.5,eio_at=8192,delay=50us,reorder,one_by_one,no_direct";
        let plan: FaultPlan = text.parse().expect("a plan");
        assert_eq!(plan.to_string(), text);
        assert_eq!(plan.delay, Duration::from_micros(50));
        let all: FaultPlan = "seed=1,eio=1,delay=2ms".parse().expect("a plan");
        assert_eq!(all.to_string(), "seed=1,eio=1,delay=2000us");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["short=2", "short=-0.1", "eintr=x", "delay=5", "delay=us", "reorder=1", "shrot=0.1", "eio_at=-1"] {
            assert!(text.parse::<FaultPlan>().is_err(), "{text}");
        }
    }

    #[test]
    fn draws_depend_on_the_read_alone() {
        let plan: FaultPlan = "seed=3,short=0.3,eintr=0.2,eagain=0.2,eio=0.1".parse().expect("a plan");
        let (a, b) = (Faults::new(plan.clone()), Faults::new(plan));
        let drawn: Vec<_> = (0..1000).map(|n| a.draw(n * 8192, n * 8192, 8192, 0)).collect();
        let again: Vec<_> = (0..1000).rev().map(|n| b.draw(n * 8192, n * 8192, 8192, 0)).collect();
        assert!(drawn.iter().eq(again.iter().rev()));
        let count = |wanted: fn(&Injected) -> bool| drawn.iter().filter(|i| wanted(i)).count();
        assert!((220..380).contains(&count(|i| matches!(i, Injected::Short(1..=8191)))));
        assert!((130..270).contains(&count(|i| *i == Injected::Errno(libc::EINTR))));
        assert!((50..150).contains(&count(|i| *i == Injected::Errno(libc::EIO))));
    }
}
