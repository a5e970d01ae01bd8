//! The host's thread pool: the one `parallel_for` that every provider shares.
//!
//! A call offers its chunks on a board of slots and starts working on them at once; workers that are
//! idle join it. Nothing ever waits for a worker to become free, only for chunks that are already
//! running, so nested calls, calls from many threads and calls through several plugins cannot deadlock:
//! a worker joins a call only when it has nothing else on its stack, so whatever it waits for began
//! after whatever waits for it, and a circle of waits would have to begin before itself.
//!
//! # How a range is cut
//!
//! With `g = max(grain, 1)`, `w = min(max_threads, threads)` (`threads` where `max_threads` is 0) and the
//! unit `u = 64` where `g >= 64`, else 1:
//!
//! ```text
//! units  = n / u                              whole units; the remainder goes to the last chunk
//! chunks = units / ceil(g / u)                at least 1, at most 4 * w
//! chunks = 1 where w is 1; else a number above w is rounded down to a multiple of w
//! ```
//!
//! Chunk `i` has `units / chunks` units, and one more where `i < units % chunks`. So no chunk is smaller
//! than the grain (unless `n` is), all threads get the same share, and with a grain of 64 elements or
//! more every chunk begins as aligned as the buffer does. Which thread runs which chunk is decided as
//! they run, the caller taking from the first on and its helpers from the last; the boundaries are not, and
//! depend on the arguments and the size of the pool alone.
//!
//! # Sleeping
//!
//! A worker without work polls for [`DEFAULT_SPIN`] (see [`ThreadPool::with_spin`]) and then sleeps.
//! Opening a call makes a system call only if no worker is polling; workers that join wake further ones,
//! two each, so that a large pool is awake in a few steps. On Linux the waker takes its own CPU from the
//! affinity of the worker it wakes, because some schedulers would run the two in turns on that CPU; the
//! pool touches the affinity of no other thread.
//!
//! # Forks
//!
//! A forked child has the pool but no workers: calls there run on the caller alone. If a task forks, its
//! call ends in the child with [`Code::Unavailable`](ep_core::Code::Unavailable) where a worker was running
//! one of its chunks, because that chunk will never finish there.

mod board;
mod cpu;
mod idle;
mod job;
#[cfg(test)]
mod tests;

use board::Board;
use ep_core::parallel::{Parallel, Task};
use ep_core::{Error, Result};
use idle::{Backoff, Idle};
use job::{Job, Plan};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, mem, process, thread};

/// The most threads of one pool, the caller included.
pub const MAX_THREADS: usize = 4096;

/// How long an idle worker polls before it sleeps, unless [`ThreadPool::with_spin`] says otherwise:
/// about what a sleep and a wake-up cost together.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);

/// The longest polling time of an idle worker.
pub const MAX_SPIN: Duration = Duration::from_millis(10);

/// A shared pool of threads; clones are handles to the same pool.
///
/// Dropping the last handle ends the workers and waits for them, except on a worker of the same pool
/// (which would wait for itself) and in a forked child (which has none).
#[derive(Clone)]
pub struct ThreadPool {
    workers: Arc<Workers>,
}

impl ThreadPool {
    /// A pool in which `threads` threads, the caller included, work on a call; so `threads - 1` workers,
    /// named `ep-pool-1` and up. `0` means as many as the process may use
    /// ([`thread::available_parallelism`], which honours CPU affinity and cgroup limits).
    ///
    /// # Errors
    /// `InvalidArgument` above [`MAX_THREADS`]; `Unavailable` if the number of CPUs cannot be found out or
    /// a thread cannot be started.
    pub fn new(threads: usize) -> Result<ThreadPool> {
        ThreadPool::with_spin(threads, DEFAULT_SPIN)
    }

    /// Like [`ThreadPool::new`], with the time that an idle worker, or a caller whose last chunks run on
    /// workers, polls before it sleeps. Zero sleeps at once: the least CPU time, the slowest start.
    ///
    /// # Errors
    /// As [`ThreadPool::new`]; `InvalidArgument` if `spin` is above [`MAX_SPIN`].
    pub fn with_spin(threads: usize, spin: Duration) -> Result<ThreadPool> {
        if threads > MAX_THREADS {
            return Err(Error::invalid(format!(
                "a pool of {threads} threads was asked for; the most is {MAX_THREADS} (0 means one per CPU)"
            )));
        }
        if spin > MAX_SPIN {
            return Err(Error::invalid(format!(
                "idle workers may poll for at most {MAX_SPIN:?}, not {spin:?}"
            )));
        }
        let threads = if threads == 0 {
            let cpus = thread::available_parallelism().map_err(|e| {
                Error::unavailable(format!("the number of CPUs is unknown ({e}); give the number of threads"))
            })?;
            cpus.get().min(MAX_THREADS)
        } else {
            threads
        };
        let pid = process::id();
        let shared =
            Arc::new(Shared { board: Board::new(), idle: Idle::new(threads - 1, pid), spin, pid, threads });
        // Built first, so that an error below ends the workers that already run.
        let mut workers = Workers { shared, handles: Vec::with_capacity(threads - 1) };
        for index in 0..threads - 1 {
            let shared = Arc::clone(&workers.shared);
            let name = format!("ep-pool-{}", index + 1);
            let handle =
                thread::Builder::new().name(name).spawn(move || shared.serve(index)).map_err(|e| {
                    Error::unavailable(format!(
                        "worker {} of a pool of {threads} threads did not start: {e}; ask for fewer threads",
                        index + 1
                    ))
                })?;
            workers.handles.push(handle);
        }
        Ok(ThreadPool { workers: Arc::new(workers) })
    }
}

// SAFETY: the chunks of a `Plan` follow one another from 0 to `n`, and none is empty; `Job::run` takes each once, from one end
// or the other of what is left, and `Shared::run` waits for those that began. What an error or a panic skips is an `Err`.
unsafe impl Parallel for ThreadPool {
    /// See the [module](self) for how `0..n` is cut. A panic in `task` is caught, skips the chunks not yet
    /// begun, and is returned as an error with [`Code::Panic`](ep_core::Code::Panic).
    fn parallel_for(&self, n: usize, grain: usize, max_threads: usize, task: &Task<'_>) -> Result<()> {
        self.workers.shared.run(n, grain, max_threads, task)
    }

    fn threads(&self) -> usize {
        self.workers.shared.threads
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool")
            .field("threads", &self.threads())
            .field("spin", &self.workers.shared.spin)
            .finish_non_exhaustive()
    }
}

/// What the handles own: the threads.
struct Workers {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Drop for Workers {
    fn drop(&mut self) {
        let handles = mem::take(&mut self.handles);
        if process::id() != self.shared.pid {
            // The threads stayed in the parent, and the system's records of them here are stale: joining
            // would hang, and detaching may free their stacks twice.
            mem::forget(handles);
            return;
        }
        self.shared.board.shut_down();
        while self.shared.idle.wake_one() {}
        let current = thread::current().id();
        if handles.iter().any(|handle| handle.thread().id() == current) {
            // Dropping the handles detaches the threads; each ends by itself and keeps `shared` until then.
            return;
        }
        for handle in handles {
            let name = handle.thread().name().map(str::to_owned);
            if handle.join().is_err() {
                tracing::error!(thread = name, "a pool worker panicked outside of any task");
            }
        }
    }
}

/// What the handles and the workers share.
struct Shared {
    board: Board,
    idle: Idle,
    spin: Duration,
    /// The process that has the workers.
    pid: u32,
    threads: usize,
}

impl Shared {
    fn run(&self, n: usize, grain: usize, max_threads: usize, task: &Task<'_>) -> Result<()> {
        let width = if max_threads == 0 { self.threads } else { max_threads.min(self.threads) };
        let plan = Plan::new(n, grain, width);
        let helpers = width.min(plan.chunks()).saturating_sub(1);
        let job = Job::new(plan, task);
        if helpers == 0 {
            job.work();
        } else {
            self.board.share(&job, helpers, self.spin, self.pid, || self.idle.ensure_searching(1));
        }
        job.into_result()
    }

    /// A worker's life.
    fn serve(&self, index: usize) {
        self.idle.enrol(index);
        self.idle.begin_search();
        let mut backoff = Backoff::new(self.spin);
        let mut first_slot = index;
        while !self.board.is_shut_down() {
            if let Some(joined) = self.board.join(first_slot) {
                self.idle.end_search();
                // This worker may be the one that others counted on to find their calls, so the check
                // comes after it has left the searchers (see `Idle`).
                if self.board.has_news() {
                    self.idle.ensure_searching(2);
                }
                joined.work();
                self.idle.begin_search();
                backoff = Backoff::new(self.spin);
                // Starting elsewhere next time keeps one busy caller from having all the help.
                first_slot += 1;
            } else if !backoff.snooze() {
                self.idle.sleep(index, || self.board.has_news());
                backoff = Backoff::new(self.spin);
            }
        }
    }
}
