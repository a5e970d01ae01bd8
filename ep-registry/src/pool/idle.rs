//! Workers without work: polling, sleeping, waking.
//!
//! A *searcher* is a worker that will look at the board again before it sleeps. No call is missed:
//!
//! - A caller opens its call, then reads the number of searchers, and if that is 0 wakes a sleeper.
//! - A worker going to sleep marks itself asleep, then leaves the searchers, then looks at the board.
//! - A searcher that found work leaves the searchers, then looks at the board, and where more can be
//!   joined sees to it that somebody searches.
//!
//! These steps are all sequentially consistent, so for a caller and a worker in either of the last two
//! cases at least one sees what the other did. A missed call would cost speed only: its caller works on it.

use super::board::Apart;
use super::cpu::Placement;
use parking_lot::Mutex;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

pub(super) struct Idle {
    pid: u32,
    /// Workers that will look at the board again, those being woken included. A worker that wakes faster
    /// than its waker counts it makes this too low, even negative, for a moment; never too high.
    searching: Apart<AtomicIsize>,
    /// One bit per worker that sleeps, or is about to, and that nobody has begun to wake.
    asleep: Box<[AtomicU64]>,
    workers: Box<[OnceLock<Worker>]>,
}

struct Worker {
    thread: Thread,
    /// Locked by whoever wakes the worker, so by one thread at a time.
    placement: Mutex<Option<Placement>>,
}

impl Idle {
    /// For `workers` threads that process `pid` will start.
    pub(super) fn new(workers: usize, pid: u32) -> Idle {
        Idle {
            pid,
            searching: Apart(AtomicIsize::new(0)),
            asleep: (0..workers.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            workers: (0..workers).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Makes the current thread known as worker `index`.
    pub(super) fn enrol(&self, index: usize) {
        self.workers[index].get_or_init(|| Worker {
            thread: thread::current(),
            placement: Mutex::new(Placement::of_current()),
        });
    }

    pub(super) fn begin_search(&self) {
        self.searching.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end_search(&self) {
        self.searching.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes sleepers until there are `wanted` searchers, as far as there are sleepers.
    pub(super) fn ensure_searching(&self, wanted: isize) {
        for _ in self.searching.0.load(Ordering::SeqCst).max(0)..wanted {
            if !self.wake_one() {
                return;
            }
        }
    }

    /// Wakes one sleeper, who counts as a searcher from now on; false if nobody sleeps.
    pub(super) fn wake_one(&self) -> bool {
        if process::id() != self.pid {
            // A forked child: the sleepers are the parent's, and not to be touched from here.
            return false;
        }
        for (word, asleep) in self.asleep.iter().enumerate() {
            let taken = asleep.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |bits| {
                // Always the lowest, so that where few are needed it is the same few, with warm caches.
                (bits != 0).then(|| bits & (bits - 1))
            });
            let Ok(bits) = taken else {
                continue;
            };
            self.begin_search();
            let index = word * 64 + bits.trailing_zeros() as usize;
            let worker = self.workers[index].get().expect("a worker enrols before it sleeps");
            if let Some(placement) = worker.placement.lock().as_mut() {
                placement.avoid_this_cpu();
            }
            worker.thread.unpark();
            return true;
        }
        false
    }

    #[cfg(test)]
    pub(super) fn sleepers(&self) -> u32 {
        self.asleep.iter().map(|word| word.load(Ordering::SeqCst).count_ones()).sum()
    }

    /// Sleeps until woken, or returns at once if there are `news` after all. The worker is a searcher
    /// before and after.
    pub(super) fn sleep(&self, index: usize, news: impl FnOnce() -> bool) {
        let (asleep, bit) = (&self.asleep[index / 64], 1 << (index % 64));
        asleep.fetch_or(bit, Ordering::SeqCst);
        self.end_search();
        if news() && asleep.fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
            self.begin_search();
            return;
        }
        // Parking also returns for no reason, or for an `unpark` meant for an earlier sleep.
        while asleep.load(Ordering::Acquire) & bit != 0 {
            thread::park();
        }
    }
}

/// Waiting by polling, for a bounded time.
pub(super) struct Backoff {
    budget: Duration,
    polls: u32,
    since: Option<Instant>,
}

/// Polls without a look at the clock: about 2 us.
const HOT_POLLS: u32 = 64;

impl Backoff {
    pub(super) fn new(budget: Duration) -> Backoff {
        Backoff { budget, polls: 0, since: None }
    }

    /// Waits a little; false if the budget is spent and the caller should sleep.
    pub(super) fn snooze(&mut self) -> bool {
        if self.polls < HOT_POLLS && !self.budget.is_zero() {
            self.polls += 1;
            std::hint::spin_loop();
            return true;
        }
        let spent = self.since.get_or_insert_with(Instant::now).elapsed();
        if spent >= self.budget {
            return false;
        }
        std::hint::spin_loop();
        true
    }
}
