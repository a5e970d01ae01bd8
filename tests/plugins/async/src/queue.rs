//! A queue: a thread that runs jobs in order, each after a random delay.

use crate::lock;
use ep_core::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A piece of work.
pub(crate) type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// Live queues by handle, for `ep.foreign_stream`: shared by all instances of this library, as a platform's
/// streams are shared by all libraries.
static QUEUES: Mutex<BTreeMap<u64, Weak<Queue>>> = Mutex::new(BTreeMap::new());

/// A thread and its jobs. Dropping runs what is left and joins.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
    device: u32,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    running: bool,
    closing: bool,
    error: Option<Error>,
}

/// When a queue does its next job: after a random delay of at most `max_us` microseconds (half of them are none
/// at all), and not while the file `hold` exists.
#[derive(Clone)]
pub(crate) struct Pace {
    pub(crate) seed: u64,
    pub(crate) max_us: u64,
    pub(crate) hold: Option<PathBuf>,
}

impl Pace {
    fn pause(&mut self) {
        // SplitMix64: any seed is a good one.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let x = x ^ (x >> 31);
        if x & 1 == 1 && self.max_us > 0 {
            std::thread::sleep(Duration::from_micros((x >> 1) % self.max_us.saturating_add(1)));
        }
        while self.hold.as_ref().is_some_and(|file| file.exists()) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Shared {
    fn work(&self, mut pace: Pace) {
        let mut state = lock(&self.state);
        loop {
            let Some(job) = state.jobs.pop_front() else {
                if state.closing {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.running = true;
            drop(state);
            pace.pause();
            let result =
                catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|payload| Err(panicked(&*payload)));
            state = lock(&self.state);
            state.running = false;
            if let (Err(e), None) = (result, &state.error) {
                state.error = Some(e);
            }
            self.changed.notify_all();
        }
    }
}

fn panicked(payload: &(dyn std::any::Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    Error::panic(format!("queued work panicked: {}", text.unwrap_or("(the payload is not text)")))
}

impl Queue {
    pub(crate) fn new(device: u32, pace: Pace) -> Result<Arc<Queue>> {
        let shared = Arc::new(Shared::default());
        let worker = std::thread::Builder::new()
            .name(format!("test-async:{device}"))
            .spawn({
                let shared = shared.clone();
                move || shared.work(pace)
            })
            .map_err(|e| Error::unavailable(format!("no thread for a stream: {e}")))?;
        Ok(Arc::new(Queue { shared, worker: Some(worker), device }))
    }

    /// The handle of a queue, valid as long as it lives.
    pub(crate) fn handle(self: &Arc<Self>) -> u64 {
        let handle = Arc::as_ptr(self).addr() as u64;
        lock(&QUEUES).insert(handle, Arc::downgrade(self));
        handle
    }

    /// The live queue with this handle.
    pub(crate) fn find(handle: u64, device: u32) -> Result<Arc<Queue>> {
        let queue = lock(&QUEUES).get(&handle).and_then(Weak::upgrade);
        let queue = queue.ok_or_else(|| Error::not_found(format!("there is no queue {handle:#x} here")))?;
        if queue.device != device {
            return Err(Error::invalid(format!("queue {handle:#x} is of device {}", queue.device)));
        }
        Ok(queue)
    }

    pub(crate) fn push(&self, job: Job) {
        lock(&self.shared.state).jobs.push_back(job);
        self.shared.changed.notify_all();
    }

    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.shared.state);
        state.jobs.is_empty() && !state.running
    }

    fn idle(&self) -> MutexGuard<'_, State> {
        let state = lock(&self.shared.state);
        let busy = |s: &mut State| !s.jobs.is_empty() || s.running;
        self.shared.changed.wait_while(state, busy).unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until everything is done.
    pub(crate) fn drain(&self) {
        drop(self.idle());
    }

    /// Blocks until everything is done, and takes the first error since the last call.
    pub(crate) fn sync(&self) -> Result<()> {
        self.idle().error.take().map_or(Ok(()), Err)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        lock(&QUEUES).remove(&(std::ptr::from_ref(self).addr() as u64));
        lock(&self.shared.state).closing = true;
        self.shared.changed.notify_all();
        let joined = self.worker.take().map(JoinHandle::join);
        if let Some(Err(_)) = joined {
            tracing::error!("the thread of a stream died");
        }
        if let Some(error) = &lock(&self.shared.state).error {
            tracing::warn!("a queue ended with an error that no sync told of: {error}");
        }
    }
}

/// A point in a queue's work: when it was reached.
#[derive(Default)]
pub(crate) struct Point {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Point {
    pub(crate) fn reach(&self) {
        *lock(&self.reached) = Some(Instant::now());
        self.changed.notify_all();
    }

    pub(crate) fn reached(&self) -> Option<Instant> {
        *lock(&self.reached)
    }

    pub(crate) fn wait(&self) {
        let reached = lock(&self.reached);
        drop(self.changed.wait_while(reached, |r| r.is_none()).unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn queue(max_us: u64) -> Arc<Queue> {
        Queue::new(0, Pace { seed: 7, max_us, hold: None }).unwrap()
    }

    #[test]
    fn jobs_run_in_order_and_dropping_waits_for_them() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let q = queue(100);
        for i in 0..50 {
            let seen = seen.clone();
            q.push(Box::new(move || {
                lock(&seen).push(i);
                Ok(())
            }));
        }
        drop(q);
        assert_eq!(*lock(&seen), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn the_first_error_is_told_once_and_later_work_runs() {
        let q = queue(0);
        let ran = Arc::new(AtomicUsize::new(0));
        q.push(Box::new(|| panic!("boom {}", 1)));
        q.push(Box::new(|| Err(Error::internal("second"))));
        let count = ran.clone();
        q.push(Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        let e = q.sync().unwrap_err();
        assert_eq!((e.code(), e.message()), (ep_core::Code::Panic, "queued work panicked: boom 1"));
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        assert!(q.is_idle());
        q.sync().unwrap();
    }

    #[test]
    fn handles_find_live_queues_of_the_device_only() {
        let q = queue(0);
        let handle = q.handle();
        assert!(Arc::ptr_eq(&Queue::find(handle, 0).unwrap(), &q));
        assert_eq!(Queue::find(handle, 1).err().unwrap().code(), ep_core::Code::InvalidArgument);
        drop(q);
        assert_eq!(Queue::find(handle, 0).err().unwrap().code(), ep_core::Code::NotFound);
    }
}
