//! Scans as futures streams, for any executor.
//!
//! A scan blocks: it waits for reads, and it decodes. It therefore runs in a thread of its own and hands its batches over
//! through a queue of two places; when the queue is full the scan waits, and so do its reads. The stream itself
//! only looks into the queue, and needs nothing of the executor but the waker.
//!
//! Dangers: a stream that is neither polled nor dropped keeps its thread and the pins of its scan. One that was leaked
//! (`mem::forget`) does so for ever; the frames stay the pool's, so nothing is written where it should not.

use super::{RowFormat, ScanBuilder};
use crate::{Error, ErrorKind, Result};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    fmt,
    io::Write,
    pin::Pin,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    thread::JoinHandle,
};

/// Batches that wait for the consumer; one more is in the making.
const CAPACITY: usize = 2;

struct State<T> {
    queue: VecDeque<Result<T>>,
    waker: Option<Waker>,
    /// Nothing more will come.
    ended: bool,
    /// Nobody wants more.
    cancelled: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// There is room in the queue, or nobody wants more.
    room: Condvar,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // What it guards is consistent whenever it is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it from the side of the consumer.
    fn cancel(&self) {
        let (queue, waker) = {
            let mut state = self.lock();
            state.cancelled = true;
            (std::mem::take(&mut state.queue), state.waker.take())
        };
        self.room.notify_all();
        // Batches and wakers run code of others when dropped: not under the lock.
        drop((queue, waker));
    }
}

/// The side of the thread that makes batches.
pub struct BatchSink<T> {
    shared: Arc<Shared<T>>,
}

/// The consumer has dropped its stream: there is no need to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl<T> BatchSink<T> {
    /// Whether the stream was dropped. Worth a look now and then in long work that yields nothing.
    pub fn is_cancelled(&self) -> bool {
        self.shared.lock().cancelled
    }

    /// Hands one batch over, waiting for room.
    ///
    /// # Errors
    /// [`Cancelled`] if the stream was dropped, before or while it waited.
    pub fn send(&self, batch: Result<T>) -> Result<(), Cancelled> {
        let mut state = self.shared.lock();
        while !state.cancelled && state.queue.len() >= CAPACITY {
            state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.cancelled {
            return Err(Cancelled);
        }
        state.queue.push_back(batch);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

impl<T> Drop for BatchSink<T> {
    fn drop(&mut self) {
        // Also when the thread unwinds: a consumer must not wait for ever.
        let waker = {
            let mut state = self.shared.lock();
            state.ended = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> fmt::Debug for BatchSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchSink").finish_non_exhaustive()
    }
}

type Producer<T> = Box<dyn FnOnce(&BatchSink<T>) -> Result<()> + Send>;

/// A scan as a [`Stream`] of batches. Nothing happens before it is polled for the first time.
///
/// To drop it at any moment is fine and does not block: its thread ends at the next page, reads in flight end on their
/// own. [`ScanStream::close`] waits for that.
pub struct ScanStream<T> {
    shared: Arc<Shared<T>>,
    producer: Option<Producer<T>>,
    thread: Option<JoinHandle<()>>,
    /// Set when nobody wants more; a scan looks at it for each page.
    gone: Arc<AtomicBool>,
}

impl<T: Send + 'static> ScanStream<T> {
    /// A stream of what `batches` yields; it is called, and its iterator lives, in a thread of its own.
    pub fn from_iter_in_thread<I, F>(batches: F) -> Self
    where
        F: FnOnce() -> Result<I> + Send + 'static,
        I: Iterator<Item = Result<T>>,
    {
        Self::from_fn(move |sink| {
            for batch in batches()? {
                if sink.send(batch).is_err() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// A stream of what `produce` sends, in a thread of its own. Its error is the stream's last item.
    pub fn from_fn(produce: impl FnOnce(&BatchSink<T>) -> Result<()> + Send + 'static) -> Self {
        let state = State { queue: VecDeque::new(), waker: None, ended: false, cancelled: false };
        Self {
            shared: Arc::new(Shared { state: Mutex::new(state), room: Condvar::new() }),
            producer: Some(Box::new(produce)),
            thread: None,
            gone: Arc::default(),
        }
    }

    fn with_flag(mut self, gone: Arc<AtomicBool>) -> Self {
        self.gone = gone;
        self
    }

    fn start(&mut self, produce: Producer<T>) -> Result<()> {
        let sink = BatchSink { shared: Arc::clone(&self.shared) };
        let work = move || {
            if let Err(error) = produce(&sink) {
                // If nobody wants it, nobody wants its error.
                let _ = sink.send(Err(error));
            }
        };
        // A spawn that fails drops the sink, which ends the stream behind the error.
        let thread = std::thread::Builder::new().name("heapscan-stream".to_owned()).spawn(work).map_err(|e| {
            Error::new(ErrorKind::Limit, format!("cannot start a thread for the stream: {e}"))
                .with_hint("the limit on threads is reached (ulimit -u, pids.max), or memory is short")
        })?;
        self.thread = Some(thread);
        Ok(())
    }
}

impl<T> ScanStream<T> {
    /// Stops the scan and waits until its thread has ended: then nothing is pinned for it any more. Blocks; not for use
    /// on an executor's thread. A panic of the thread has been reported by it and is not raised again.
    pub fn close(mut self) {
        self.gone.store(true, Ordering::Relaxed);
        self.shared.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<T: Send + 'static> Stream for ScanStream<T> {
    type Item = Result<T>;

    /// # Panics
    /// As the producer did, if it panicked.
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(produce) = this.producer.take()
            && let Err(error) = this.start(produce)
        {
            return Poll::Ready(Some(Err(error)));
        }
        let mut state = this.shared.lock();
        if let Some(batch) = state.queue.pop_front() {
            drop(state);
            this.shared.room.notify_one();
            return Poll::Ready(Some(batch));
        }
        if !state.ended {
            let old = match &mut state.waker {
                Some(waker) if waker.will_wake(context.waker()) => None,
                waker => waker.replace(context.waker().clone()),
            };
            drop(state);
            drop(old);
            return Poll::Pending;
        }
        drop(state);
        // The thread has nothing left to do but to end.
        match this.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            _ => Poll::Ready(None),
        }
    }
}

impl<T> Drop for ScanStream<T> {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
        self.shared.cancel();
    }
}

impl<T> fmt::Debug for ScanStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("ScanStream").field("waiting", &state.queue.len()).field("ended", &state.ended).finish()
    }
}

impl ScanBuilder {
    /// The rows as text, in chunks of about 256 kB that end with a row, as a stream for any executor.
    ///
    /// The items are errors as those of [`ScanBuilder::write_rows`]; what came before the bad row comes before its error,
    /// which is the last item.
    pub fn stream_rows(self, format: RowFormat) -> ScanStream<Vec<u8>> {
        let gone = Arc::<AtomicBool>::default();
        let scan = self.cancelled_by(Arc::clone(&gone));
        let stream = ScanStream::from_fn(move |sink| match scan.write_rows(format, &mut ChunkWriter(sink)) {
            // Our own writer refuses only when nobody reads.
            Err(_) if sink.is_cancelled() => Ok(()),
            result => result.map(|_| ()),
        });
        stream.with_flag(gone)
    }

    /// What `batches` makes of this scan, as a stream for any executor: `scan.stream_of(ScanBuilder::batches)`.
    pub fn stream_of<T, I, F>(self, batches: F) -> ScanStream<T>
    where
        T: Send + 'static,
        F: FnOnce(Self) -> Result<I> + Send + 'static,
        I: Iterator<Item = Result<T>>,
    {
        let gone = Arc::<AtomicBool>::default();
        let scan = self.cancelled_by(Arc::clone(&gone));
        ScanStream::from_iter_in_thread(move || batches(scan)).with_flag(gone)
    }
}

/// Makes one batch of each write.
struct ChunkWriter<'a>(&'a BatchSink<Vec<u8>>);

impl Write for ChunkWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if !bytes.is_empty() {
            self.0.send(Ok(bytes.to_vec())).map_err(|Cancelled| std::io::Error::from_raw_os_error(libc::EPIPE))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
