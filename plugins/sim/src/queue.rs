//! A stream's queue: a thread that does its work in order, and takes its time.

use crate::faults::mix;
use crate::hooks::Shortcuts;
use crate::lock;
use ep_core::{Error, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the objects of a device know of it.
#[derive(Default)]
pub(crate) struct Health {
    lost: Mutex<Option<Error>>,
}

impl Health {
    /// Loses the device for good.
    pub(crate) fn lose(&self, why: &str) {
        lock(&self.lost).get_or_insert(Error::device_lost(format!(
            "the device was lost ({why}); drop its objects, and make a new instance of the provider"
        )));
    }

    /// # Errors
    /// `DeviceLost`, from the loss on for ever.
    pub(crate) fn check(&self) -> Result<()> {
        lock(&self.lost).clone().map_or(Ok(()), Err)
    }
}

/// When a queue goes on: after random delays, and not while the file `hold` exists.
pub(crate) struct Pace {
    pub(crate) seed: u64,
    pub(crate) max_delay: Duration,
    pub(crate) hold: Option<PathBuf>,
    pub(crate) steps: u64,
}

impl Pace {
    /// Lets other queues go first, or not: half of the time it does nothing.
    pub(crate) fn pause(&mut self) {
        self.steps += 1;
        let random = mix(self.seed, self.steps);
        let most = u64::try_from(self.max_delay.as_nanos()).unwrap_or(u64::MAX);
        if random & 1 == 1 && most > 0 {
            std::thread::sleep(Duration::from_nanos((random >> 1) % most));
        }
        while self.hold.as_ref().is_some_and(|file| file.exists()) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Takes its time by the queue's pace.
type Work = dyn FnOnce(&mut Pace) -> Result<()> + Send;

/// What a queue does one after another.
pub(crate) enum Job {
    /// A launch or a copy. Not done once the device is lost.
    Work(Box<Work>),
    /// Done whatever happens, so that nobody waits for ever and memory is freed.
    Always(Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    running: bool,
    closing: bool,
    error: Option<Error>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A thread and its jobs. Dropping does what is left.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    health: Arc<Health>,
    shortcuts: Shortcuts,
    worker: Option<JoinHandle<()>>,
}

impl Shared {
    fn run(&self, health: &Health, mut pace: Pace, shortcuts: Shortcuts) {
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
            // Also drops what the job holds, before it counts as done.
            let done = catch_unwind(AssertUnwindSafe(|| match job {
                Job::Work(work) => health.check().and_then(|()| work(&mut pace)),
                Job::Always(work) => {
                    work();
                    Ok(())
                }
            }));
            state = lock(&self.state);
            state.running = false;
            let done = done.unwrap_or_else(|payload| Err(panicked(&*payload)));
            if shortcuts.only_the_last_result {
                state.error = done.err();
            } else if let Err(e) = done {
                state.error.get_or_insert(e);
            }
            self.changed.notify_all();
        }
    }
}

fn panicked(payload: &(dyn std::any::Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    Error::panic(format!("work of a stream panicked: {}", text.unwrap_or("(no text)")))
}

impl Queue {
    pub(crate) fn new(name: String, health: Arc<Health>, pace: Pace, shortcuts: Shortcuts) -> Result<Queue> {
        let shared = Arc::new(Shared::default());
        let worker = std::thread::Builder::new()
            .name(name)
            .spawn({
                let (shared, health) = (shared.clone(), health.clone());
                move || shared.run(&health, pace, shortcuts)
            })
            .map_err(|e| Error::unavailable(format!("no thread for a stream: {e}; use fewer streams")))?;
        Ok(Queue { shared, health, shortcuts, worker: Some(worker) })
    }

    /// # Errors
    /// `DeviceLost`; the job is dropped then.
    pub(crate) fn push(&self, job: Job) -> Result<()> {
        self.health.check()?;
        self.push_always(job);
        Ok(())
    }

    /// Queues a job on a lost device too.
    pub(crate) fn push_always(&self, job: Job) {
        lock(&self.shared.state).jobs.push_back(job);
        self.shared.changed.notify_all();
    }

    /// Whether everything is done.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub(crate) fn query(&self) -> Result<bool> {
        self.health.check()?;
        let state = lock(&self.shared.state);
        Ok(state.jobs.is_empty() && (!state.running || self.shortcuts.query_skips_running))
    }

    fn idle(&self) -> MutexGuard<'_, State> {
        let busy = |state: &mut State| !state.jobs.is_empty() || state.running;
        let state = lock(&self.shared.state);
        self.shared.changed.wait_while(state, busy).unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until everything is done.
    pub(crate) fn drain(&self) {
        drop(self.idle());
    }

    /// The same for a stream that ends.
    pub(crate) fn finish(&self) {
        if self.shortcuts.destroy_drops_work {
            // What must be done whatever happens is done, or somebody would wait for it for ever.
            lock(&self.shared.state).jobs.retain(|job| matches!(job, Job::Always(_)));
        }
        self.drain();
    }

    /// Blocks until everything is done, and takes the first error since the last call.
    ///
    /// # Errors
    /// That one; `DeviceLost` every time.
    pub(crate) fn sync(&self) -> Result<()> {
        let first = self.idle().error.take();
        self.health.check()?;
        first.map_or(Ok(()), Err)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        lock(&self.shared.state).closing = true;
        self.shared.changed.notify_all();
        if let Some(Err(_)) = self.worker.take().map(JoinHandle::join) {
            tracing::error!("the thread of a stream died");
        }
        let unreported = lock(&self.shared.state).error.take();
        if let Some(error) = unreported.filter(|_| self.health.check().is_ok()) {
            tracing::warn!("a stream ended with an error that no sync told of: {error}");
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
    use ep_core::Code;

    fn queue(max_delay: Duration, shortcuts: Shortcuts) -> Queue {
        let pace = Pace { seed: 7, max_delay, hold: None, steps: 0 };
        Queue::new("test".into(), Arc::new(Health::default()), pace, shortcuts).unwrap()
    }

    fn correct(max_delay: Duration) -> Queue {
        queue(max_delay, Shortcuts::default())
    }

    fn seen() -> (Arc<Mutex<Vec<i32>>>, impl Fn(i32) -> Job) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let job = move |i| {
            let log = log.clone();
            Job::Work(Box::new(move |pace: &mut Pace| {
                pace.pause();
                lock(&log).push(i);
                Ok(())
            }))
        };
        (seen, job)
    }

    #[test]
    fn work_is_done_in_order_and_dropping_waits_for_it() {
        let (seen, job) = seen();
        let q = correct(Duration::from_micros(100));
        (0..50).for_each(|i| q.push(job(i)).unwrap());
        drop(q);
        assert_eq!(*lock(&seen), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn the_first_error_is_told_once_and_later_work_is_done() {
        let (seen, job) = seen();
        let q = correct(Duration::ZERO);
        q.push(Job::Work(Box::new(|_| panic!("boom {}", 1)))).unwrap();
        q.push(Job::Work(Box::new(|_| Err(Error::internal("second"))))).unwrap();
        q.push(job(3)).unwrap();
        let e = q.sync().unwrap_err();
        assert_eq!((e.code(), e.message()), (Code::Panic, "work of a stream panicked: boom 1"));
        assert_eq!(*lock(&seen), [3]);
        assert!(q.query().unwrap());
        q.sync().unwrap();
    }

    #[test]
    fn shortcuts_leave_out_what_they_say() {
        let gate = Arc::new(Point::default());
        let held = |q: &Queue| {
            let (gate, begun) = (gate.clone(), Arc::new(Point::default()));
            let running = begun.clone();
            q.push_always(Job::Always(Box::new(move || {
                begun.reach();
                gate.wait();
            })));
            running.wait();
        };
        let early = queue(Duration::ZERO, Shortcuts { query_skips_running: true, ..Shortcuts::default() });
        held(&early);
        assert!(early.query().unwrap());
        let forgets = queue(Duration::ZERO, Shortcuts { destroy_drops_work: true, ..Shortcuts::default() });
        held(&forgets);
        let (seen, job) = seen();
        forgets.push(job(1)).unwrap();
        std::thread::scope(|scope| {
            let finishing = scope.spawn(|| forgets.finish());
            while !lock(&forgets.shared.state).jobs.is_empty() {
                std::thread::yield_now();
            }
            gate.reach();
            finishing.join().unwrap();
        });
        assert_eq!(*lock(&seen), []);
        let last = queue(Duration::ZERO, Shortcuts { only_the_last_result: true, ..Shortcuts::default() });
        last.push(Job::Work(Box::new(|_| Err(Error::internal("lost"))))).unwrap();
        last.push(Job::Work(Box::new(|_| Ok(())))).unwrap();
        last.sync().unwrap();
    }

    #[test]
    fn a_lost_device_does_no_work_but_what_must_be() {
        let (seen, job) = seen();
        let q = correct(Duration::ZERO);
        let (point, health) = (Arc::new(Point::default()), q.health.clone());
        q.push(Job::Work(Box::new(move |_| {
            health.lose("a test");
            health.check()
        })))
        .unwrap();
        q.push_always(job(1));
        let reach = point.clone();
        q.push_always(Job::Always(Box::new(move || reach.reach())));
        point.wait();
        for _ in 0..3 {
            let e = q.sync().unwrap_err();
            assert_eq!(e.code(), Code::DeviceLost);
            assert!(e.message().contains("a test"), "{e}");
        }
        assert_eq!(q.push(job(2)).unwrap_err().code(), Code::DeviceLost);
        assert_eq!(q.query().unwrap_err().code(), Code::DeviceLost);
        assert_eq!(*lock(&seen), []);
    }
}
