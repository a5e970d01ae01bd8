//! Whether two threads of a pool have a last-level cache each: then a launch that both share has twice as much.
//!
//! The system tells of processors which share a cache, and in virtual machines it is wrong as often as not: two cores that it says
//! to be of one may be on two chips. So two threads pass a line to and fro once, before the first launch for which it matters.
//! Takes some ten microseconds, of launches of a millisecond.

use ep_core::parallel::Parallel;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a line may take to the other thread and back where both have one cache. Cores of Zen 3 and 4 take some 50 ns within a cache, and
/// 170 to 350 from one to another.
const TOGETHER: Duration = Duration::from_nanos(120);
/// How long one waits for the other to come, which may have to be woken.
const PATIENCE: Duration = Duration::from_micros(100);
/// How often two threads are looked for: a busy pool may have none to spare.
const TRIES: u8 = 8;
/// Times that the line goes to and fro in each try, of which the fastest counts.
const ROUNDS: usize = 16;
const SETS: usize = 8;

#[cfg(test)]
thread_local! {
    /// What this thread takes pools of several threads to be.
    pub(super) static APART_FORCED: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

/// Whether two threads are known to be apart. The same for all pools of the process, once it is known.
pub(super) fn are(par: &dyn Parallel) -> bool {
    const TOLD: u8 = 1 << 7;
    /// How many tries there were; or [`TOLD`], with the answer in the lowest bit.
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    if par.threads() < 2 {
        return false;
    }
    #[cfg(test)]
    if let Some(forced) = APART_FORCED.get() {
        return forced;
    }
    let known = KNOWN.load(Ordering::Relaxed);
    if known >= TOLD || known == TRIES {
        return known == TOLD | 1;
    }
    match round_trip(par) {
        Some(time) => {
            let apart = time > TOGETHER;
            KNOWN.store(TOLD | u8::from(apart), Ordering::Relaxed);
            apart
        }
        None => {
            // Others may have tried at the same time: then it is one try.
            let _ = KNOWN.compare_exchange(known, known + 1, Ordering::Relaxed, Ordering::Relaxed);
            false
        }
    }
}

/// How long a line takes to another thread and back; none if no other comes in time.
fn round_trip(par: &dyn Parallel) -> Option<Duration> {
    let game = Game {
        players: Line(AtomicUsize::new(0)),
        ball: Line(AtomicUsize::new(0)),
        best: Line(AtomicUsize::new(usize::MAX)),
    };
    par.parallel_for(2, 1, 2, &|range| {
        range.for_each(|_| game.play());
        Ok(())
    })
    .ok()?;
    let best = game.best.0.into_inner();
    (best != usize::MAX).then(|| Duration::from_nanos(best as u64))
}

#[repr(align(128))]
struct Line(AtomicUsize);

/// Two players and a ball that each adds one to in turn: even for the first player.
struct Game {
    players: Line,
    ball: Line,
    /// Nanoseconds of a round.
    best: Line,
}

impl Game {
    /// Plays as the first or the second. Where the second is the same thread, the first has already given up.
    fn play(&self) {
        const PLAYERS: usize = 2;
        let end = Instant::now() + PATIENCE;
        match self.players.0.fetch_add(1, Ordering::AcqRel) {
            0 => {
                while self.players.0.load(Ordering::Acquire) < PLAYERS {
                    if Instant::now() > end {
                        // The next who comes is neither.
                        self.players.0.fetch_add(PLAYERS, Ordering::AcqRel);
                        return;
                    }
                    spin_loop();
                }
                let mut best = usize::MAX;
                for set in 0..SETS {
                    let start = Instant::now();
                    for round in set * ROUNDS..(set + 1) * ROUNDS {
                        self.ball.0.store(2 * round + 1, Ordering::Release);
                        if !self.returns(2 * round + 2, end) {
                            return;
                        }
                    }
                    best = best.min(start.elapsed().as_nanos() as usize / ROUNDS);
                }
                self.best.0.store(best, Ordering::Relaxed);
            }
            1 => {
                for round in 0..SETS * ROUNDS {
                    if !self.returns(2 * round + 1, end) {
                        return;
                    }
                    self.ball.0.store(2 * round + 2, Ordering::Release);
                }
            }
            _ => {}
        }
    }

    /// Waits until the ball has this number. False if that takes too long: the other is not running.
    fn returns(&self, number: usize, end: Instant) -> bool {
        const LOOKS: usize = 256;
        loop {
            for _ in 0..LOOKS {
                if self.ball.0.load(Ordering::Acquire) == number {
                    return true;
                }
            }
            if Instant::now() > end + PATIENCE {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Threads;
    use ep_core::parallel::Serial;

    #[test]
    fn a_line_takes_its_time() {
        assert_eq!(round_trip(&Serial), None);
        assert!(!are(&Serial));
        // A machine of one CPU, or a busy one, may tell nothing.
        if let Some(time) = (0..20).find_map(|_| round_trip(&Threads(2))) {
            assert!(time > Duration::ZERO && time < PATIENCE, "{time:?}");
        }
    }

    #[test]
    fn one_thread_alone_gives_up() {
        let game = Game {
            players: Line(AtomicUsize::new(0)),
            ball: Line(AtomicUsize::new(0)),
            best: Line(AtomicUsize::new(usize::MAX)),
        };
        (0..2).for_each(|_| game.play());
        assert_eq!((game.ball.0.into_inner(), game.best.0.into_inner()), (0, usize::MAX));
    }
}
