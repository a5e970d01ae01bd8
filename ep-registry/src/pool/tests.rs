use super::*;
use ep_core::Code;
use proptest::prelude::*;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::Instant;

static SHARED: LazyLock<ThreadPool> = LazyLock::new(|| ThreadPool::new(4).unwrap());

/// Sums `0..n` through a task and checks the sum: every index once, or the result differs.
fn sum(pool: &ThreadPool, n: usize, grain: usize) {
    let total = AtomicUsize::new(0);
    pool.parallel_for(n, grain, 0, &|range| {
        total.fetch_add(range.sum::<usize>(), Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    assert_eq!(total.into_inner(), n * n.saturating_sub(1) / 2);
}

/// The ranges a call ran, in order.
fn ranges(pool: &ThreadPool, n: usize, grain: usize, max_threads: usize) -> Vec<Range<usize>> {
    let seen = Mutex::new(Vec::new());
    pool.parallel_for(n, grain, max_threads, &|range| {
        seen.lock().unwrap().push(range);
        Ok(())
    })
    .unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by_key(|range| range.start);
    seen
}

fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain");
        thread::sleep(Duration::from_micros(100));
    }
}

fn on_worker() -> bool {
    thread::current().name().is_some_and(|name| name.starts_with("ep-pool-"))
}

proptest! {
    #[test]
    fn chunks_cover_the_range_once_and_keep_the_grain(
        n in prop_oneof![0usize..300, 0usize..1 << 40],
        grain in prop_oneof![0usize..200, 0usize..1 << 30, Just(usize::MAX)],
        max_threads in 0usize..7,
    ) {
        let runs = ranges(&SHARED, n, grain, max_threads);
        let mut end = 0;
        for (i, range) in runs.iter().enumerate() {
            prop_assert_eq!(range.start, end);
            prop_assert!(range.end > range.start);
            prop_assert!(range.len() >= grain || i + 1 == runs.len());
            prop_assert!(grain < 64 || range.start % 64 == 0);
            end = range.end;
        }
        prop_assert_eq!(end, n);
        let width = if max_threads == 0 { 4 } else { max_threads.min(4) };
        let most = if width == 1 { 1 } else { 4 * width };
        prop_assert!(runs.len() <= most);
        prop_assert!(runs.len() <= width || runs.len().is_multiple_of(width));
        let unit = if grain >= 64 { 64 } else { 1 };
        let longest = runs.iter().map(Range::len).max().unwrap_or(0);
        let shortest = runs.iter().map(Range::len).min().unwrap_or(0);
        prop_assert!(longest - shortest < 2 * unit, "balanced but for the remainder: {:?}", runs);
        prop_assert_eq!(&runs, &ranges(&SHARED, n, grain, max_threads), "the same cut every time");
    }

    #[test]
    fn plans_do_not_overflow(n in any::<usize>(), grain in any::<usize>(), width in 0usize..=MAX_THREADS) {
        for n in [n, usize::MAX - n % 100] {
            for grain in [grain, grain % 5000] {
                let plan = Plan::new(n, grain, width);
                let mut end = 0;
                for range in (0..plan.chunks()).map(|i| plan.chunk(i)) {
                    prop_assert_eq!(range.start, end);
                    prop_assert!(range.end > range.start);
                    end = range.end;
                }
                prop_assert_eq!(end, n);
            }
        }
    }
}

#[test]
fn the_documented_cuts() {
    let pool = &*SHARED;
    assert_eq!(ranges(pool, 0, 1, 0), Vec::<Range<usize>>::new());
    assert_eq!(ranges(pool, 10, 1, 1), vec![0..10]);
    assert_eq!(ranges(pool, 3, 0, 2), vec![0..2, 2..3]);
    // Three grains, but two threads: two equal chunks rather than a third one that waits for its turn.
    assert_eq!(ranges(pool, 640, 200, 2), vec![0..320, 320..640]);
    // 15 units of 64 and 63 elements; a grain of 100 is two units.
    assert_eq!(ranges(pool, 1023, 100, 3), vec![0..192, 192..384, 384..576, 576..704, 704..832, 832..1023]);
}

#[test]
fn a_caller_and_its_helpers_work_from_both_ends() {
    for _ in 0..10 {
        let seen = Mutex::new(Vec::new());
        SHARED
            .parallel_for(16, 1, 0, &|range| {
                seen.lock().unwrap().push((range.start, on_worker()));
                thread::sleep(Duration::from_micros(300));
                Ok(())
            })
            .unwrap();
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen.len(), 16);
        assert!(seen.is_sorted_by_key(|&(_, worker)| worker), "{seen:?}");
    }
}

#[test]
fn small_pools_and_bad_arguments() {
    let one = ThreadPool::new(1).unwrap();
    assert_eq!(one.threads(), 1);
    let caller = thread::current().id();
    one.parallel_for(1000, 1, 0, &|range| {
        assert_eq!((thread::current().id(), range), (caller, 0..1000));
        Ok(())
    })
    .unwrap();
    assert_eq!(ThreadPool::new(0).unwrap().threads(), thread::available_parallelism().unwrap().get());
    assert_eq!(ThreadPool::new(MAX_THREADS + 1).unwrap_err().code(), Code::InvalidArgument);
    let error = ThreadPool::with_spin(2, MAX_SPIN + Duration::from_nanos(1)).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[test]
fn all_threads_take_part_and_no_more_than_allowed() {
    for max_threads in 2..=4 {
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let seen = Mutex::new(HashSet::new());
        SHARED
            .parallel_for(64, 1, max_threads, &|_| {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                seen.lock().unwrap().insert(thread::current().id());
                // The first chunk of each thread holds it until all allowed threads are there. Tests that
                // run beside this one use the same workers, so the help may take a while to come.
                wait_until(|| seen.lock().unwrap().len() == max_threads);
                thread::sleep(Duration::from_micros(200));
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
            .unwrap();
        assert_eq!(most.into_inner(), max_threads);
        let seen = seen.into_inner().unwrap();
        assert!(seen.len() == max_threads && seen.contains(&thread::current().id()));
    }
}

#[test]
fn a_pool_of_many_words_of_workers_wakes_them_all() {
    // More than 64 workers, all asleep at first.
    let pool = ThreadPool::with_spin(100, Duration::ZERO).unwrap();
    wait_until(|| pool.workers.shared.idle.sleepers() == 99);
    let arrived = AtomicUsize::new(0);
    pool.parallel_for(100, 1, 0, &|range| {
        assert_eq!(range.len(), 1);
        arrived.fetch_add(1, Ordering::SeqCst);
        wait_until(|| arrived.load(Ordering::SeqCst) == 100);
        Ok(())
    })
    .unwrap();
}

#[test]
fn nested_calls() {
    let leaves = AtomicUsize::new(0);
    SHARED
        .parallel_for(9, 1, 0, &|outer| {
            SHARED.parallel_for(7 * outer.len(), 1, 3, &|middle| {
                SHARED.parallel_for(5 * middle.len(), 1, 0, &|inner| {
                    leaves.fetch_add(inner.len(), Ordering::Relaxed);
                    Ok(())
                })
            })
        })
        .unwrap();
    assert_eq!(leaves.into_inner(), 9 * 7 * 5);
}

#[test]
fn two_pools_calling_each_other() {
    let (a, b) = (ThreadPool::new(2).unwrap(), ThreadPool::with_spin(3, Duration::ZERO).unwrap());
    let leaves = AtomicUsize::new(0);
    for _ in 0..50 {
        a.parallel_for(4, 1, 0, &|x| {
            b.parallel_for(6 * x.len(), 1, 0, &|y| {
                a.parallel_for(3 * y.len(), 1, 0, &|z| {
                    leaves.fetch_add(z.len(), Ordering::Relaxed);
                    Ok(())
                })
            })
        })
        .unwrap();
    }
    assert_eq!(leaves.into_inner(), 50 * 4 * 6 * 3);
}

#[test]
fn an_error_skips_the_rest_and_comes_back() {
    // Two threads and eight chunks: while the failing chunk runs, at most one other thread is busy.
    let pool = ThreadPool::new(2).unwrap();
    let (begun, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let error = pool
        .parallel_for(800, 1, 0, &|range| {
            begun.fetch_add(1, Ordering::SeqCst);
            if range.start == 0 {
                failed.store(true, Ordering::SeqCst);
                return Err(Error::out_of_memory("chunk 0"));
            }
            wait_until(|| failed.load(Ordering::SeqCst));
            // Time for the other thread to record the failure that it has announced.
            thread::sleep(Duration::from_millis(50));
            Ok(())
        })
        .unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::OutOfMemory, "chunk 0"));
    assert!(begun.into_inner() <= 2);
    sum(&pool, 1000, 1);
}

#[test]
fn a_panic_is_an_error_and_the_pool_survives() {
    struct Rude;
    impl Drop for Rude {
        fn drop(&mut self) {
            panic!("and another");
        }
    }
    let pool = ThreadPool::new(2).unwrap();
    let cases: [(fn(), &str); 3] = [
        (|| panic!("plain"), "plain"),
        (|| panic!("number {}", 7), "number 7"),
        (|| std::panic::panic_any(Rude), "no text"),
    ];
    for (blow_up, text) in cases {
        // Once on the caller, once on the worker.
        for on_caller in [true, false] {
            let caller = thread::current().id();
            let blown = AtomicBool::new(false);
            let error = pool
                .parallel_for(2, 1, 0, &|_| {
                    if (thread::current().id() == caller) == on_caller {
                        blown.store(true, Ordering::SeqCst);
                        blow_up();
                    }
                    wait_until(|| blown.load(Ordering::SeqCst));
                    Ok(())
                })
                .unwrap_err();
            assert_eq!(error.code(), Code::Panic);
            assert!(error.message().contains(text), "{error}");
        }
    }
    sum(&pool, 1000, 1);
    drop(pool);
}

#[test]
fn callers_on_eight_threads() {
    thread::scope(|scope| {
        for caller in 0..8 {
            scope.spawn(move || (0..200).for_each(|i| sum(&SHARED, 500 + 37 * caller + i, 1 + i % 9)));
        }
    });
}

#[test]
fn more_calls_than_slots() {
    // 80 calls are open at once: those without a slot run on their callers. Workers are held up too, since
    // they could otherwise finish a call before its caller has a chunk.
    let arrived = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..80 {
            scope.spawn(|| {
                let first = AtomicBool::new(true);
                let outcome = SHARED.parallel_for(16, 1, 0, &|_| {
                    if !on_worker() && first.swap(false, Ordering::SeqCst) {
                        arrived.fetch_add(1, Ordering::SeqCst);
                    }
                    wait_until(|| arrived.load(Ordering::SeqCst) == 80);
                    Ok(())
                });
                outcome.unwrap();
            });
        }
    });
    sum(&SHARED, 1000, 1);
}

#[test]
fn the_caller_sleeps_until_a_slow_worker_is_done() {
    let pool = ThreadPool::with_spin(2, Duration::from_micros(1)).unwrap();
    for _ in 0..5 {
        let (worker_began, finished) = (AtomicBool::new(false), AtomicUsize::new(0));
        pool.parallel_for(2, 1, 0, &|_| {
            if on_worker() {
                worker_began.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(5));
            } else {
                wait_until(|| worker_began.load(Ordering::SeqCst));
            }
            finished.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .unwrap();
        assert_eq!(finished.into_inner(), 2);
    }
}

#[test]
fn dropping_joins_the_workers() {
    for spin in [Duration::ZERO, DEFAULT_SPIN, MAX_SPIN] {
        for used in [false, true] {
            let pool = ThreadPool::with_spin(3, spin).unwrap();
            let handle = pool.clone();
            if used {
                sum(&pool, 100, 1);
                thread::sleep(Duration::from_millis(1));
            }
            let shared = Arc::downgrade(&pool.workers.shared);
            drop(pool);
            sum(&handle, 100, 1);
            drop(handle);
            assert_eq!(shared.strong_count(), 0, "no worker is left");
        }
    }
}

#[test]
fn dropping_on_a_worker_detaches() {
    // Safe callers hold a handle during a call, so a worker can hold the last one only if the call came
    // by another way, as calls through the C interface may.
    let pool = ThreadPool::new(2).unwrap();
    let shared = Arc::clone(&pool.workers.shared);
    let last = Mutex::new(Some(pool));
    let dropped = AtomicBool::new(false);
    shared
        .run(2, 1, 0, &|_| {
            if on_worker() {
                drop(last.lock().unwrap().take());
                dropped.store(true, Ordering::SeqCst);
            }
            wait_until(|| dropped.load(Ordering::SeqCst));
            Ok(())
        })
        .unwrap();
    wait_until(|| Arc::strong_count(&shared) == 1);
}

#[test]
fn workers_are_named() {
    let names = Mutex::new(HashSet::new());
    let pool = ThreadPool::new(3).unwrap();
    pool.parallel_for(3, 1, 0, &|_| {
        names.lock().unwrap().insert(thread::current().name().map(str::to_owned));
        wait_until(|| names.lock().unwrap().len() == 3);
        Ok(())
    })
    .unwrap();
    let names = names.into_inner().unwrap();
    assert!(["ep-pool-1", "ep-pool-2"].iter().all(|name| names.contains(&Some((*name).to_owned()))));
}

#[cfg(unix)]
mod fork {
    use super::*;

    /// Runs `child` in a forked process and returns the status it exits with.
    fn in_child(child: impl FnOnce() -> i32) -> i32 {
        // SAFETY: `fork` takes no arguments. The child runs only `child` and `_exit`; the closures below
        // use atomics, their stack, and the allocator, which the C library keeps usable across forks.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: ends the process without exit handlers or destructors; `alarm` ends it if it hangs.
            unsafe {
                libc::alarm(10);
                libc::_exit(child())
            }
        }
        let mut status = 0;
        // SAFETY: `pid` is a child of this process that nobody else waits for; `status` is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status), "the child was killed: status {status}");
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_child_runs_alone_and_can_drop_the_pool() {
        // Workers asleep, and workers that poll.
        for spin in [Duration::ZERO, MAX_SPIN] {
            let pool = ThreadPool::with_spin(3, spin).unwrap();
            sum(&pool, 1000, 1);
            let idle = &pool.workers.shared.idle;
            wait_until(|| !spin.is_zero() || idle.sleepers() == 2);
            let status = in_child(|| {
                let sleepers = idle.sleepers();
                let total = AtomicUsize::new(0);
                let nested = pool.parallel_for(20, 1, 0, &|outer| {
                    pool.parallel_for(10 * outer.len(), 1, 0, &|range| {
                        total.fetch_add(range.len(), Ordering::Relaxed);
                        Ok(())
                    })
                });
                drop(pool.clone());
                // What looks asleep here are the parent's threads, which the child must not touch.
                let right = nested.is_ok() && total.into_inner() == 200 && idle.sleepers() == sleepers;
                // The last handle here: a copy of the parent's.
                // SAFETY: `pool` is not used again in this process, which exits right after.
                drop(unsafe { std::ptr::read(&pool) });
                if right { 40 } else { 41 }
            });
            assert_eq!(status, 40);
            sum(&pool, 1000, 1);
        }
    }

    #[test]
    fn a_fork_inside_a_task_reports_the_lost_chunk_in_the_child() {
        let pool = ThreadPool::new(2).unwrap();
        let (worker_inside, forked) = (AtomicBool::new(false), AtomicBool::new(false));
        let parent = process::id();
        let status = AtomicUsize::new(0);
        let outcome = pool.parallel_for(2, 1, 0, &|_| {
            if on_worker() {
                worker_inside.store(true, Ordering::SeqCst);
                wait_until(|| forked.load(Ordering::SeqCst));
            } else {
                wait_until(|| worker_inside.load(Ordering::SeqCst));
                // SAFETY: as in `in_child`; the child leaves through `_exit` below.
                let pid = unsafe { libc::fork() };
                assert!(pid >= 0);
                if pid > 0 {
                    forked.store(true, Ordering::SeqCst);
                    status.store(pid as usize, Ordering::SeqCst);
                } else {
                    // SAFETY: ends the child if it hangs.
                    unsafe { libc::alarm(10) };
                }
            }
            Ok(())
        });
        if process::id() != parent {
            let right = outcome.is_err_and(|e| e.code() == Code::Unavailable);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(if right { 40 } else { 41 }) }
        }
        outcome.unwrap();
        let mut code = 0;
        // SAFETY: the child forked above; `code` is writable.
        unsafe { libc::waitpid(status.into_inner() as i32, &mut code, 0) };
        assert!(libc::WIFEXITED(code) && libc::WEXITSTATUS(code) == 40, "status {code}");
    }
}

/// Everything at once for a second: callers, nesting, errors, panics, sleeping and polling workers.
#[test]
fn stress() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&"stress") {
            quiet(info);
        }
    }));
    let spins = [Duration::ZERO, Duration::from_micros(3), DEFAULT_SPIN];
    let pools = spins.map(|spin| ThreadPool::with_spin(3, spin).unwrap());
    let end = Instant::now() + Duration::from_secs(1);
    let calls = AtomicUsize::new(0);
    thread::scope(|scope| {
        for caller in 0..5u64 {
            let (pools, calls) = (&pools, &calls);
            scope.spawn(move || {
                let mut seed = caller + 1;
                let mut random = move |below: u64| {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    ((seed >> 33) % below) as usize
                };
                while Instant::now() < end {
                    let (pool, inner) = (&pools[random(3)], &pools[random(3)]);
                    let (n, grain, width) = (random(200), random(20), random(5));
                    // A borrowed buffer on this stack: a late worker would write into a dead frame.
                    let cells: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                    let bad = random(400);
                    let fate = random(3);
                    let outcome = pool.parallel_for(n, grain, width, &|range| {
                        if range.contains(&bad) && fate == 0 {
                            return Err(Error::invalid("stress"));
                        }
                        if range.contains(&bad) && fate == 1 {
                            panic!("stress");
                        }
                        inner.parallel_for(range.len(), 3, 2, &|part| {
                            for i in part {
                                cells[range.start + i].fetch_add(1, Ordering::Relaxed);
                            }
                            Ok(())
                        })
                    });
                    match (fate, bad < n) {
                        (0, true) => assert_eq!(outcome.unwrap_err().code(), Code::InvalidArgument),
                        (1, true) => assert_eq!(outcome.unwrap_err().code(), Code::Panic),
                        _ => {
                            outcome.unwrap();
                            assert!(cells.iter().all(|cell| cell.load(Ordering::Relaxed) == 1));
                        }
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                    if random(50) == 0 {
                        thread::sleep(Duration::from_micros(random(200) as u64));
                    }
                }
            });
        }
    });
    assert!(calls.into_inner() > 100);
}
