//! A lock that one thread takes without a locked instruction.
//!
//! A stream is used by one thread almost always, and two locked instructions are half of what a small launch costs. So the
//! first thread that takes the lock becomes its owner. The owner says that it is inside with a plain store, and then looks
//! whether others want in. The first thread that does says so, has the kernel order the memory accesses of every thread
//! of the process (`membarrier`), after which either the owner sees what was said or its own store is seen, and waits until
//! the owner is outside. From then on there is no owner, and the lock is a mutex for all.
//!
//! Where the kernel has no such barrier, it is a mutex from the start.

use crate::platform;
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

/// How often a thread looks for the owner to leave before it sleeps in between.
const LOOKS: usize = 200;
const NAP: Duration = Duration::from_micros(50);

pub(crate) struct OwnedMutex<T> {
    /// The number of the thread that needs no mutex, [`FREE`] or [`NOBODY`]. Changes only with the mutex held.
    owner: AtomicUsize,
    /// Whether the owner holds the lock without the mutex. Set by the owner only.
    inside: AtomicBool,
    /// Whether another thread has come.
    ended: AtomicBool,
    mutex: Mutex<()>,
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
        let owner = if platform::can_order_threads() { FREE } else { NOBODY };
        OwnedMutex {
            owner: AtomicUsize::new(owner),
            inside: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            mutex: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        // The owner that is inside already waits for itself below, as with any mutex. Acquiring also orders a thread
        // behind a former one of the same number.
        if self.owner.load(Ordering::Relaxed) == this_thread() && !self.inside.load(Ordering::Acquire) {
            self.inside.store(true, Ordering::Relaxed);
            // The processor may still do the two in another order, for which `end_ownership` has the kernel's barrier.
            compiler_fence(Ordering::SeqCst);
            if !self.ended.load(Ordering::Acquire) {
                return Guard { lock: self, mutex: None, value: PhantomData };
            }
            self.inside.store(false, Ordering::Release);
        }
        self.lock_mutex()
    }

    #[cold]
    fn lock_mutex(&self) -> Guard<'_, T> {
        let mutex = self.mutex.lock();
        match self.owner.load(Ordering::Relaxed) {
            NOBODY => {}
            FREE => {
                // Whoever comes next gets the mutex after this, and so sees both.
                self.owner.store(this_thread(), Ordering::Relaxed);
                self.inside.store(true, Ordering::Relaxed);
                return Guard { lock: self, mutex: None, value: PhantomData };
            }
            _ => self.end_ownership(),
        }
        Guard { lock: self, mutex: Some(mutex), value: PhantomData }
    }

    /// Waits until the owner is outside, and sees to it that it does not come back without the mutex, which the caller holds.
    fn end_ownership(&self) {
        self.ended.store(true, Ordering::Relaxed);
        platform::order_threads();
        // If the owner did not see `ended`, then its store came before the barrier, and is seen here.
        let mut looks = 0;
        while self.inside.load(Ordering::Acquire) {
            looks += 1;
            if looks < LOOKS { std::hint::spin_loop() } else { std::thread::sleep(NAP) }
        }
        self.owner.store(NOBODY, Ordering::Relaxed);
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Takes the lock `times` times, and counts each time in two steps that only a lock keeps together.
    fn count(lock: &OwnedMutex<[u64; 2]>, times: u64) {
        for _ in 0..times {
            let mut guard = lock.lock();
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

    #[test]
    fn others_may_come_at_any_time() {
        for round in 0..3000 {
            let lock = OwnedMutex::new([0, 0]);
            let start = Barrier::new(3);
            // The owner.
            count(&lock, 1);
            let others = 1 + round % 2;
            std::thread::scope(|scope| {
                for other in 0..2 {
                    let (lock, start) = (&lock, &start);
                    scope.spawn(move || {
                        start.wait();
                        if other < others {
                            (0..round % 97).for_each(|_| std::hint::spin_loop());
                            count(lock, 50);
                        }
                    });
                }
                start.wait();
                count(&lock, 100);
            });
            assert_eq!(*lock.lock(), [101 + 50 * others; 2]);
        }
    }

    #[test]
    fn one_thread_needs_no_mutex_and_two_do() {
        let lock = OwnedMutex::new(0);
        let owned = platform::can_order_threads();
        for _ in 0..3 {
            assert_eq!(lock.lock().mutex.is_none(), owned);
        }
        std::thread::scope(|s| drop(s.spawn(|| assert!(lock.lock().mutex.is_some()))));
        assert!(lock.lock().mutex.is_some());
    }

    #[test]
    fn the_owner_is_waited_for() {
        let lock = OwnedMutex::new(0);
        let mut guard = lock.lock();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!other.is_finished(), "two threads are inside");
            *guard = 7;
            drop(guard);
            assert_eq!(other.join().unwrap(), 7);
        });
    }

    #[test]
    fn a_mutex_where_threads_cannot_be_ordered() {
        let lock = OwnedMutex { owner: AtomicUsize::new(NOBODY), ..OwnedMutex::new([0, 0]) };
        std::thread::scope(|scope| {
            scope.spawn(|| count(&lock, 1000));
            count(&lock, 1000);
        });
        let guard = lock.lock();
        assert!(guard.mutex.is_some());
        assert_eq!(*guard, [2000; 2]);
    }
}
