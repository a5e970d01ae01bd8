//! A lock that one thread takes without a locked instruction.
//!
//! A stream is used by one thread almost always, and two locked instructions are half of what a small launch costs. So the
//! first thread that takes the lock becomes its owner. The owner says that it is inside with a plain store, and then looks
//! whether others want in. The first thread that does says so, has the kernel order the memory accesses of every thread
//! of the process (`membarrier`), after which either the owner sees what was said or its own store is seen, and waits until
//! the owner is outside. From then on there is no owner, and the lock is a mutex for all.
//!
//! Where the kernel has no such barrier, it is a mutex from the start. Where it had one and refuses it later, the owner goes
//! on and others get an error, until the owner comes again and finds that somebody asked: it then gives its ownership up by
//! itself, which needs no barrier.
//!
//! A thread that has the lock and asks for it again, from a callback within a call, gets an error.

use crate::platform;
use ep_core::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use std::time::Duration;

/// No owner yet.
const FREE: usize = 0;
/// No owner any more. No thread's number, as those are addresses.
const NOBODY: usize = usize::MAX;

/// How often a thread looks for the owner to leave before it sleeps in between, for longer each time.
const LOOKS: usize = 200;
const FIRST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(2);

pub(crate) struct OwnedMutex<T> {
    /// The number of the thread that needs no mutex, [`FREE`] or [`NOBODY`]. Changes only with the mutex held.
    owner: AtomicUsize,
    /// Whether the owner holds the lock without the mutex. Set by the owner only.
    inside: AtomicBool,
    /// Whether another thread has come. Never taken back: the owner that sees it makes the lock a mutex, also where the
    /// other thread has gone away with an error.
    ended: AtomicBool,
    mutex: Mutex<()>,
    /// The number of the thread whose guard has the mutex, else [`FREE`].
    holder: AtomicUsize,
    /// The kernel's barrier; tests have others.
    order_threads: fn() -> std::io::Result<()>,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread with a guard touches the value, which may then be another one than before.
unsafe impl<T: Send> Sync for OwnedMutex<T> {}

/// The lock, held until this is dropped.
pub(crate) struct Guard<'a, T> {
    lock: &'a OwnedMutex<T>,
    /// `None` for the owner.
    mutex: Option<MutexGuard<'a, ()>>,
    value: PhantomData<&'a mut T>,
}

/// A number that no other living thread has.
#[inline]
fn this_thread() -> usize {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

impl<T> OwnedMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        let lock = Self::without_owner(value);
        if platform::can_order_threads() {
            lock.owner.store(FREE, Ordering::Relaxed);
        }
        lock
    }

    /// A mutex for all from the start, whose [`lock`](Self::lock) never fails.
    pub(crate) fn without_owner(value: T) -> Self {
        OwnedMutex {
            owner: AtomicUsize::new(NOBODY),
            inside: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            mutex: Mutex::new(()),
            holder: AtomicUsize::new(FREE),
            order_threads: platform::order_threads,
            value: UnsafeCell::new(value),
        }
    }

    /// The value, where nobody else can have the lock.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Waits for the lock. A thread that got it once and let go of it never fails to get it again: it is the owner, or there
    /// is none any more.
    ///
    /// # Errors
    /// `Unavailable` where another thread is the owner and the system refuses the barrier. `InvalidArgument` where this thread
    /// has the lock already, which would wait for itself.
    #[inline]
    pub(crate) fn lock(&self) -> Result<Guard<'_, T>> {
        if self.enter() {
            return Ok(Guard { lock: self, mutex: None, value: PhantomData });
        }
        self.lock_mutex()
    }

    /// The owner's way in. False for all others, for an owner that is inside already, and once another thread has come.
    #[inline]
    fn enter(&self) -> bool {
        // Acquiring orders a thread behind a former one of the same number.
        if self.owner.load(Ordering::Relaxed) == this_thread() && !self.inside.load(Ordering::Acquire) {
            self.inside.store(true, Ordering::Relaxed);
            // The processor may still do the two in another order, for which `end_ownership` has the kernel's barrier.
            compiler_fence(Ordering::SeqCst);
            if !self.ended.load(Ordering::Acquire) {
                return true;
            }
            self.inside.store(false, Ordering::Release);
        }
        false
    }

    #[cold]
    fn lock_mutex(&self) -> Result<Guard<'_, T>> {
        let this = this_thread();
        // Both are about this thread only where this thread has set them. Before the mutex, which this thread may have, or
        // another that waits for this one to be outside.
        let owner_inside = self.owner.load(Ordering::Relaxed) == this && self.inside.load(Ordering::Acquire);
        if owner_inside || self.holder.load(Ordering::Relaxed) == this {
            return Err(Error::invalid(
                "a stream is used within a call on it, by a receiver of the provider's messages or another callback; use it \
                 after the call",
            ));
        }
        let mutex = self.mutex.lock();
        match self.owner.load(Ordering::Relaxed) {
            NOBODY => {}
            FREE => {
                // Whoever comes next gets the mutex after this, and so sees both.
                self.owner.store(this, Ordering::Relaxed);
                self.inside.store(true, Ordering::Relaxed);
                return Ok(Guard { lock: self, mutex: None, value: PhantomData });
            }
            // Only this thread may be inside without the mutex, and it is here: there is nobody to be ordered with.
            owner if owner == this => self.owner.store(NOBODY, Ordering::Relaxed),
            _ => self.end_ownership()?,
        }
        self.holder.store(this, Ordering::Relaxed);
        Ok(Guard { lock: self, mutex: Some(mutex), value: PhantomData })
    }

    /// Waits until the owner is outside, and sees to it that it does not come back without the mutex, which the caller holds.
    ///
    /// # Errors
    /// `Unavailable` where the system refuses the barrier. `inside` says nothing then, so the caller has to go away. `ended`
    /// stays: an owner that sees it takes the mutex, in `lock_mutex`; one that does not see it yet is alone as before.
    fn end_ownership(&self) -> Result<()> {
        self.ended.store(true, Ordering::Relaxed);
        (self.order_threads)().map_err(|e| {
            Error::unavailable(format!(
                "another thread used this stream first, and the system refuses `membarrier`, which a second thread needs \
                 ({e}); allow that system call in the sandbox of this process, or use the stream from one thread only"
            ))
        })?;
        // If the owner did not see `ended`, then its store came before the barrier, and is seen here.
        let (mut looks, mut nap) = (0, FIRST_NAP);
        while self.inside.load(Ordering::Acquire) {
            if looks < LOOKS {
                looks += 1;
                std::hint::spin_loop();
            } else {
                std::thread::sleep(nap);
                nap = (2 * nap).min(LONGEST_NAP);
            }
        }
        self.owner.store(NOBODY, Ordering::Relaxed);
        Ok(())
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time: with the mutex after the owner has left for good, or the owner's, who
        // is inside and saw that nobody ended its ownership.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.mutex.is_none() {
            self.lock.inside.store(false, Ordering::Release);
        } else {
            self.lock.holder.store(FREE, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::Code;
    use std::cell::Cell;
    use std::io;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread::{scope, yield_now};
    use std::time::Instant;

    type Pair = OwnedMutex<[u64; 2]>;

    thread_local! {
        /// Whether the system refuses the barrier to this thread.
        static REFUSED: Cell<bool> = const { Cell::new(false) };
    }

    fn order_unless_refused() -> io::Result<()> {
        if REFUSED.get() { Err(io::ErrorKind::PermissionDenied.into()) } else { platform::order_threads() }
    }

    fn pair() -> Pair {
        OwnedMutex { order_threads: order_unless_refused, ..OwnedMutex::new([0, 0]) }
    }

    fn owner<T>(lock: &OwnedMutex<T>) -> usize {
        lock.owner.load(Ordering::Relaxed)
    }

    /// Takes the lock `times` times, and counts each time in two steps that only a lock keeps together.
    fn count(lock: &Pair, times: u64) {
        for _ in 0..times {
            let mut guard = lock.lock().unwrap();
            let [a, b] = *guard;
            assert_eq!(a, b, "somebody else is inside");
            // Volatile, so that the two are not one.
            // SAFETY: this thread has the lock.
            unsafe { (&raw mut guard[0]).write_volatile(a + 1) };
            std::hint::spin_loop();
            // SAFETY: as above.
            unsafe { (&raw mut guard[1]).write_volatile(b + 1) };
        }
    }

    /// Lets nobody wait for a thread that has ended, however it did.
    struct Ends<'a>(&'a AtomicUsize);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(usize::MAX, Ordering::Release);
        }
    }

    /// The other thread comes while the owner goes in and out: a thousand times, or as often as half a second is enough for.
    #[test]
    fn others_may_come_at_any_time() {
        let locks: Vec<Pair> = (0..1000).map(|_| OwnedMutex::new([0, 0])).collect();
        let start = Instant::now();
        let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        scope(|scope| {
            scope.spawn(|| {
                let _ends = Ends(&done);
                for (i, lock) in locks.iter().enumerate() {
                    while begun.load(Ordering::Acquire) <= i {
                        yield_now();
                    }
                    count(lock, 20);
                    done.store(i + 1, Ordering::Release);
                }
            });
            let _ends = Ends(&begun);
            for (i, lock) in
                locks.iter().enumerate().take_while(|_| start.elapsed() < Duration::from_millis(500))
            {
                count(lock, 1);
                begun.store(i + 1, Ordering::Release);
                let mut counted = 1;
                // Without yielding: two threads that take turns on one processor never meet.
                while done.load(Ordering::Acquire) <= i {
                    count(lock, 1);
                    counted += 1;
                }
                // Where the other has panicked, that is what is told.
                if done.load(Ordering::Acquire) <= locks.len() {
                    assert_eq!(*lock.lock().unwrap(), [counted + 20; 2], "some counts are lost");
                    assert_eq!(owner(lock), NOBODY);
                }
            }
        });
    }

    #[test]
    fn one_thread_needs_no_mutex_and_two_do() {
        let lock = OwnedMutex::new(0);
        let owned = platform::can_order_threads();
        for _ in 0..3 {
            assert_eq!(lock.lock().unwrap().mutex.is_none(), owned);
        }
        scope(|s| drop(s.spawn(|| assert!(lock.lock().unwrap().mutex.is_some()))));
        // Before the former owner comes, who would see to it too.
        assert_eq!(owner(&lock), NOBODY);
        assert!(lock.lock().unwrap().mutex.is_some());
    }

    #[test]
    fn the_owner_is_waited_for() {
        let lock = OwnedMutex::new(0);
        let mut guard = lock.lock().unwrap();
        scope(|scope| {
            let other = scope.spawn(|| *lock.lock().unwrap());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!other.is_finished(), "two threads are inside");
            *guard = 7;
            drop(guard);
            assert_eq!(other.join().unwrap(), 7);
        });
    }

    #[test]
    fn the_owner_enters_once_at_a_time_and_not_after_another_came() {
        let lock = OwnedMutex { owner: AtomicUsize::new(FREE), ..pair() };
        assert!(!lock.enter(), "there is no owner yet");
        for _ in 0..2 {
            let guard = lock.lock().unwrap();
            assert!(!lock.enter(), "it is inside");
            drop(guard);
            assert!(lock.enter());
            lock.inside.store(false, Ordering::Relaxed);
        }
        scope(|s| drop(s.spawn(|| assert!(!lock.enter(), "another thread is the owner"))));
        // As a thread leaves it that is about to wait.
        lock.ended.store(true, Ordering::Relaxed);
        assert!(!lock.enter());
        assert!(!lock.inside.load(Ordering::Relaxed), "the other would wait for ever");
        assert!(lock.lock().unwrap().mutex.is_some());
        assert_eq!(owner(&lock), NOBODY);
    }

    #[test]
    fn a_mutex_where_threads_cannot_be_ordered() {
        let lock = OwnedMutex { owner: AtomicUsize::new(NOBODY), ..pair() };
        scope(|scope| {
            scope.spawn(|| count(&lock, 1000));
            count(&lock, 1000);
        });
        let guard = lock.lock().unwrap();
        assert!(guard.mutex.is_some());
        assert_eq!(*guard, [2000; 2]);
    }

    #[test]
    fn whoever_has_the_lock_is_refused_it() {
        fn refused(lock: &Pair) {
            let error = lock.lock().err().expect("two guards at once");
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.message().contains("within a call on it"), "{error}");
        }
        // With an owner, and as a mutex.
        for lock in [pair(), Pair::without_owner([0, 0])] {
            for _ in 0..2 {
                let guard = lock.lock().unwrap();
                refused(&lock);
                drop(guard);
                count(&lock, 1);
            }
        }
        // While another thread waits for the owner to be outside, with the mutex.
        let lock = pair();
        let guard = lock.lock().unwrap();
        scope(|scope| {
            scope.spawn(|| count(&lock, 1));
            std::thread::sleep(Duration::from_millis(20));
            refused(&lock);
            drop(guard);
        });
        count(&lock, 1);
        assert_eq!(*lock.lock().unwrap(), [2; 2]);
    }

    #[test]
    fn a_panic_lets_go_of_the_lock() {
        let lock = pair();
        let panics = || {
            let _guard = lock.lock().unwrap();
            panic!("while the lock is held");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        count(&lock, 1);
        assert!(scope(|s| s.spawn(panics).join()).is_err());
        count(&lock, 1);
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        scope(|s| drop(s.spawn(|| count(&lock, 1))));
        assert_eq!(*lock.lock().unwrap(), [3; 2]);
    }

    /// A second thread is refused the barrier: it gets an error that says what to do.
    fn refused(lock: &Pair) {
        REFUSED.set(true);
        for _ in 0..2 {
            let error = lock.lock().err().expect("nothing tells whether the owner is inside");
            assert_eq!(error.code(), Code::Unavailable);
            let message = error.message();
            assert!(message.contains("membarrier") && message.contains("from one thread only"), "{message}");
        }
        REFUSED.set(false);
    }

    #[test]
    fn after_a_refused_barrier_the_owner_goes_on_and_the_lock_becomes_a_mutex() {
        let mut lock = OwnedMutex { owner: AtomicUsize::new(FREE), ..pair() };
        let mut guard = lock.lock().unwrap();
        scope(|s| drop(s.spawn(|| refused(&lock))));
        *guard = [1; 2];
        drop(guard);
        // The owner is outside now, which the other cannot know.
        scope(|s| drop(s.spawn(|| refused(&lock))));
        assert_ne!(owner(&lock), NOBODY);
        REFUSED.set(true);
        count(&lock, 2);
        assert_eq!(owner(&lock), NOBODY);
        scope(|s| drop(s.spawn(|| count(&lock, 2))));
        count(&lock, 2);
        REFUSED.set(false);
        assert_eq!(*lock.get_mut(), [7; 2]);
    }

    #[test]
    fn after_a_refused_barrier_another_thread_may_try_again() {
        let lock = pair();
        if !platform::can_order_threads() {
            return;
        }
        count(&lock, 1);
        scope(|scope| {
            scope.spawn(|| {
                refused(&lock);
                count(&lock, 2);
            });
        });
        count(&lock, 1);
        assert_eq!(*lock.lock().unwrap(), [4; 2]);
    }
}
