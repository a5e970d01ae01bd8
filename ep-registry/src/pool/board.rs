//! Where calls are offered and workers find them: the only unsafe code of the pool.
//!
//! A job lives on its caller's stack, so a worker must never reach it late. Slots therefore live as long
//! as the board, and a worker *joins* through the slot's state before it looks at the pointer inside:
//!
//! - The state holds an `OPEN` flag, how many helpers the job admits, and how many are inside. Joining is
//!   one compare-and-swap that succeeds only on an open, not yet full state. Whether the state is the
//!   one the worker has seen before or that of a later job in the same slot does not matter: the swap
//!   acts on the present one, and the pointer is read after it.
//! - Nobody leaves before all chunks are taken, and leaving closes the slot first. The caller closes it
//!   too, then waits until no helper is inside, and only then frees the slot and returns.
//!
//! So between a successful join and the matching leave the caller is inside [`Board::share`], and the job
//! it borrows is alive.

use super::idle::Backoff;
use super::job::Job;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;
use std::{process, ptr, thread};

/// Calls that can be offered at once. Further ones run on their callers alone.
const SLOTS: usize = 63;
/// The bit of [`Board::open`] after those of the slots: the workers shall end.
const SHUT_DOWN: u64 = 1 << SLOTS;

/// State: helpers may join.
const OPEN: u32 = 1 << 31;
/// State: the caller sleeps until the last helper has left.
const WAITING: u32 = 1 << 30;
/// State: helpers inside.
const INSIDE: u32 = (1 << ADMITTED_SHIFT) - 1;
/// State: where the number of helpers admitted begins.
const ADMITTED_SHIFT: u32 = 15;

const _: () = assert!(super::MAX_THREADS < INSIDE as usize, "the state has too few bits for the helpers");

/// A value with cache lines of its own (two: hardware prefetches lines in pairs).
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

struct Slot {
    state: AtomicU32,
    /// Valid while the slot is open or a helper is inside.
    job: AtomicPtr<Job<'static>>,
    /// The caller, where `WAITING` is set.
    waiter: Mutex<Option<Thread>>,
}

pub(super) struct Board {
    /// One bit per slot that a worker may join, and `SHUT_DOWN`. The one word that idle workers poll.
    open: Apart<AtomicU64>,
    /// One bit per slot that no call uses.
    free: Apart<AtomicU64>,
    slots: Box<[Apart<Slot>]>,
}

impl Board {
    pub(super) fn new() -> Board {
        let slot = || Slot {
            state: AtomicU32::new(0),
            job: AtomicPtr::new(ptr::null_mut()),
            waiter: Mutex::new(None),
        };
        Board {
            open: Apart(AtomicU64::new(0)),
            free: Apart(AtomicU64::new(SHUT_DOWN - 1)),
            slots: (0..SLOTS).map(|_| Apart(slot())).collect(),
        }
    }

    /// Works on `job`, together with up to `helpers` workers; returns when every chunk that was begun has
    /// ended. `announce` is called once workers can find the job. `pid` is the process that has workers.
    pub(super) fn share(
        &self,
        job: &Job<'_>,
        helpers: usize,
        spin: Duration,
        pid: u32,
        announce: impl FnOnce(),
    ) {
        let Some(index) = self.take_slot() else {
            return job.work();
        };
        // Also closes and waits if something below unwinds, before the borrow of `job` can end.
        let _offer = Offer { board: self, index, job, spin, pid };
        let slot = &self.slots[index].0;
        slot.job.store(ptr::from_ref(job).cast::<Job<'static>>().cast_mut(), Ordering::Relaxed);
        // Nobody else writes the state of a slot that is neither open nor occupied. Release: a worker that
        // joins sees the pointer, the job, and what the caller wrote before.
        slot.state.store(OPEN | ((helpers as u32) << ADMITTED_SHIFT), Ordering::Release);
        self.open.0.fetch_or(1 << index, Ordering::SeqCst);
        announce();
        job.work();
    }

    /// A call to help with, if there is one; looks at the slots from `first` on, in a circle.
    pub(super) fn join(&self, first: usize) -> Option<Joined<'_>> {
        // Relaxed: a hint. What counts is the state of the slot.
        let open = self.open.0.load(Ordering::Relaxed) & !SHUT_DOWN;
        let below = (1 << (first % SLOTS)) - 1;
        for mut bits in [open & !below, open & below] {
            while bits != 0 {
                let index = bits.trailing_zeros() as usize;
                if self.enter(index) {
                    return Some(Joined { board: self, index });
                }
                bits &= bits - 1;
            }
        }
        None
    }

    /// Whether there is a call to join or the board is shut down. Ordered with [`Board::share`] and
    /// [`Board::shut_down`] as [`super::idle::Idle`] needs it.
    pub(super) fn has_news(&self) -> bool {
        self.open.0.load(Ordering::SeqCst) != 0
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.open.0.load(Ordering::Relaxed) & SHUT_DOWN != 0
    }

    pub(super) fn shut_down(&self) {
        self.open.0.fetch_or(SHUT_DOWN, Ordering::SeqCst);
    }

    fn take_slot(&self) -> Option<usize> {
        let free = &self.free.0;
        // Acquire: pairs with the release of the slot by its last user.
        free.fetch_update(Ordering::Acquire, Ordering::Relaxed, |free| (free != 0).then(|| free & (free - 1)))
            .ok()
            .map(|free| free.trailing_zeros() as usize)
    }

    fn enter(&self, index: usize) -> bool {
        let joinable = |state: u32| state & OPEN != 0 && state & INSIDE < admitted(state);
        // Acquire: pairs with the store that opened the slot (through the joins in between, which continue
        // its release sequence).
        let entered = self.slots[index]
            .0
            .state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| joinable(state).then_some(state + 1));
        let Ok(before) = entered else {
            return false;
        };
        if !joinable(before + 1) {
            // Full: idle workers need not look here again. The slot cannot pass to another job meanwhile,
            // since this thread is inside.
            self.open.0.fetch_and(!(1 << index), Ordering::SeqCst);
        }
        true
    }

    /// Lets nobody join any more. Whoever closes first clears the bit in `open`, and is inside the slot or
    /// its owner while doing so; hence a cleared bit always belongs to the present job. A helper that joined by
    /// a bit of the job before may close ahead of the bit's being set: the owner looks again at the end.
    fn close(&self, index: usize) {
        // Relaxed: nothing is handed over here.
        if self.slots[index].0.state.fetch_and(!OPEN, Ordering::Relaxed) & OPEN != 0 {
            self.open.0.fetch_and(!(1 << index), Ordering::SeqCst);
        }
    }
}

fn admitted(state: u32) -> u32 {
    (state >> ADMITTED_SHIFT) & INSIDE
}

/// A slot that a call owns. Dropping it takes the job back.
struct Offer<'a, 'j> {
    board: &'a Board,
    index: usize,
    job: &'a Job<'j>,
    spin: Duration,
    pid: u32,
}

impl Drop for Offer<'_, '_> {
    fn drop(&mut self) {
        self.board.close(self.index);
        let slot = &self.board.slots[self.index].0;
        let mut backoff = Backoff::new(self.spin);
        // Acquire: pairs with the release of every helper that left.
        while slot.state.load(Ordering::Acquire) & INSIDE != 0 {
            if backoff.snooze() {
                continue;
            }
            if process::id() != self.pid {
                // The helpers stayed in the parent; here nobody can leave, and nobody uses the job either.
                // The slot stays taken.
                self.job.abandon();
                return;
            }
            slot.sleep_until_empty();
        }
        // Nobody else sets it, and nobody is inside to clear it. Left set, it would keep idle workers from sleeping.
        let (open, bit) = (&self.board.open.0, 1 << self.index);
        if open.load(Ordering::Relaxed) & bit != 0 {
            open.fetch_and(!bit, Ordering::SeqCst);
        }
        // Release: whoever takes the slot next comes after everything above.
        self.board.free.0.fetch_or(1 << self.index, Ordering::Release);
    }
}

impl Slot {
    fn sleep_until_empty(&self) {
        *self.waiter.lock() = Some(thread::current());
        self.state.fetch_or(WAITING, Ordering::Release);
        while self.state.load(Ordering::Acquire) & INSIDE != 0 {
            thread::park();
        }
    }

    fn leave(&self) {
        let mut state = self.state.load(Ordering::Acquire);
        let mut waiter = None;
        loop {
            if state & (WAITING | INSIDE) == WAITING | 1 {
                // Taken before the count falls: after that the slot belongs to others.
                waiter = waiter.or_else(|| self.waiter.lock().take());
            }
            // Release: the caller sees what the chunks wrote.
            match self.state.compare_exchange(state, state - 1, Ordering::Release, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        if let Some(waiter) = waiter {
            waiter.unpark();
        }
    }
}

/// A worker inside a slot. Dropping it leaves.
pub(super) struct Joined<'a> {
    board: &'a Board,
    index: usize,
}

impl Joined<'_> {
    /// Runs chunks of the job until none is left, and leaves.
    pub(super) fn work(self) {
        let job = self.board.slots[self.index].0.job.load(Ordering::Relaxed);
        // SAFETY: `self` exists, so this thread has entered the slot and not left it. The acquire of
        // entering pairs with the release that opened the slot, so `job` is the pointer stored for this
        // opening, made from a reference to a live `Job`. The `Offer` of that call does not end before
        // this thread has left (after the last use of the reference below), and the call's borrow of the
        // job and, through it, of the task outlives the `Offer`; that the pointer's type says 'static
        // grants nothing, since `Job::help` keeps no reference. Shared use from several threads is
        // fine because `Job` is `Sync` (asserted below). In a forked child there is no such thread.
        unsafe { &*job }.help();
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.board.close(self.index);
        self.board.slots[self.index].0.leave();
    }
}

/// `AtomicPtr` is `Sync` whatever it points to, so the requirement is stated here.
const _: () = {
    const fn sync<T: Sync>() {}
    sync::<Job<'static>>();
};
