//! Seeing whether other processes use the CPU, so that timings are taken when they do not.
//!
//! `/proc/stat` counts the time of all processes, and that the hypervisor gave to others; what this process used
//! itself is subtracted. Elsewhere than on Linux nothing is known, and nothing waits.

use std::path::Path;
use std::time::{Duration, Instant};

/// Below this many CPUs of foreign work the machine counts as idle.
pub const IDLE: f64 = 0.06;

/// A point in time with the CPU times until then, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    at: Instant,
    busy: f64,
    own: f64,
}

impl Mark {
    /// Now.
    pub fn now() -> Mark {
        Mark { at: Instant::now(), busy: busy().unwrap_or(0.0), own: own_seconds() }
    }

    /// CPUs that others kept busy since then, on average; 0 where it is not known. The clock behind it ticks in
    /// hundredths of a second, so the time since then should be some tenths.
    pub fn foreign(&self) -> f64 {
        let now = Mark::now();
        let wall = now.at.duration_since(self.at).as_secs_f64().max(1e-3);
        (((now.busy - self.busy) - (now.own - self.own)) / wall).max(0.0)
    }
}

/// Seconds in which any CPU was not idle, stolen ones included.
fn busy() -> Option<f64> {
    parse(&std::fs::read_to_string("/proc/stat").ok()?)
}

fn parse(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().map_while(|x| x.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let [user, nice, system, _, _, irq, softirq, steal] = *ticks.first_chunk()?;
    // SAFETY: no memory is involved.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some((user + nice + system + irq + softirq + steal) / per_second.max(1) as f64)
}

/// CPU seconds of this process.
pub fn own_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    if result == 0 { time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9 } else { 0.0 }
}

/// Waits until the machine was idle for a fifth of a second, at most `limit`; whether it was.
pub fn wait_idle(limit: Duration) -> bool {
    let start = Instant::now();
    loop {
        let mark = Mark::now();
        std::thread::sleep(Duration::from_millis(200));
        if mark.foreign() < IDLE {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
    }
}

/// Waits until this process's other threads, such as those of a library that spin for a while after their last
/// work, have gone to sleep; at most some 300 ms. Whether they have.
pub fn settle() -> bool {
    for _ in 0..300 {
        std::thread::sleep(Duration::from_millis(1));
        if !others_run() {
            return true;
        }
    }
    false
}

/// Whether any thread of this process but this one runs or is ready to. Their CPU time would not tell: of a thread
/// that runs without a break it is counted at ticks of the clock only, up to 10 ms apart.
fn others_run() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter(|task| runs(&task.path())).nth(1).is_some()
}

/// Whether a thread, by its folder below `/proc`, runs or is ready to.
fn runs(task: &Path) -> bool {
    // The state comes after the name in parentheses, which may contain any.
    let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_counts() {
        let text = "cpu  100 20 30 1000 5 1 2 42 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        // SAFETY: no memory is involved.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        assert_eq!(parse(text), Some(195.0 / per_second));
        assert_eq!(parse("cpu 1 2"), None);
        assert_eq!(parse(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_spins_is_seen_and_one_that_sleeps_is_not() {
        use std::sync::atomic::{AtomicBool, Ordering};
        use std::sync::{Arc, Barrier, mpsc};
        let (go, done) = (Arc::new(AtomicBool::new(true)), Arc::new(Barrier::new(2)));
        let (send, receive) = mpsc::channel();
        let thread = std::thread::spawn({
            let (go, done) = (Arc::clone(&go), Arc::clone(&done));
            move || {
                // SAFETY: takes nothing and returns a number.
                send.send(unsafe { libc::gettid() }).unwrap();
                while go.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                done.wait();
            }
        });
        let task = format!("/proc/self/task/{}", receive.recv().unwrap());
        let until = |wanted: bool| {
            let start = Instant::now();
            while runs(task.as_ref()) != wanted || (wanted && !others_run()) {
                assert!(start.elapsed() < Duration::from_secs(10), "seen to run is still not {wanted}");
            }
        };
        until(true);
        go.store(false, Ordering::Relaxed);
        until(false);
        done.wait();
        thread.join().unwrap();
    }

    #[test]
    fn own_work_is_counted() {
        let (before, start) = (own_seconds(), Instant::now());
        while own_seconds() <= before {
            assert!(start.elapsed() < Duration::from_secs(10), "no CPU time in ten seconds");
        }
    }
}
