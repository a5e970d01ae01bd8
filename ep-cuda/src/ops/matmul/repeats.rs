//! Products that are asked for again with the same operands, as layers of a model are at each of its turns: their launches
//! are kept, and done again without the library.

use super::Factor;
use super::batches::{Loop, Problem};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// All that decides what the library launches for a primitive, and with which arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    sizes: [u64; 3],
    /// Of a from row to row and from column to column, then of b.
    steps: [u64; 4],
    batch: Loop,
    addresses: [u64; 3],
    factors: [[u64; 2]; 2],
}

impl Asked {
    /// None for products that are several calls of the library.
    pub(super) fn of(problem: &Problem, addresses: [u64; 3], factors: [Factor; 2]) -> Option<Asked> {
        let Problem { m, n, k, a, b, outer, inner } = problem;
        let batch = match (outer.as_slice(), inner.as_slice()) {
            ([], []) => Loop::default(),
            ([batch], []) => *batch,
            _ => return None,
        };
        Some(Asked {
            sizes: [*m, *n, *k],
            steps: [a.row, a.col, b.row, b.col],
            batch,
            addresses,
            factors: factors.map(|f| f.words),
        })
    }
}

/// Times that operands are asked for before their launch is worth recording, which takes as long as some twenty calls.
const TIMES: u32 = 8;

/// Operands that are remembered.
const MOST: usize = 1024;

/// Launches by their operands.
pub(super) struct Repeats<T> {
    seen: Mutex<Seen<T>>,
}

struct Seen<T> {
    operands: HashMap<Asked, State<T>>,
    /// [`TIMES`], and twice as many each time that more operands came than there is room for.
    times: u32,
}

enum State<T> {
    Asked(u32),
    Kept(Arc<T>),
    /// It is not one kernel, or could not be recorded.
    Never,
}

/// What is to be done for operands.
pub(super) enum Next<T> {
    /// This again.
    Again(Arc<T>),
    /// Let the library do it, and then keep its launch.
    Keep,
    /// Let the library do it.
    Ask,
}

impl<T> Default for Repeats<T> {
    fn default() -> Repeats<T> {
        Repeats { seen: Mutex::new(Seen { operands: HashMap::new(), times: TIMES }) }
    }
}

impl<T> Repeats<T> {
    /// Counts one more launch of these operands.
    pub(super) fn next(&self, asked: &Asked) -> Next<T> {
        // Where another thread is at it, this one asks the library rather than wait.
        let Some(mut guard) = self.seen.try_lock() else { return Next::Ask };
        let seen = &mut *guard;
        match seen.operands.get_mut(asked) {
            Some(State::Kept(launch)) => Next::Again(launch.clone()),
            Some(State::Never) => Next::Ask,
            Some(State::Asked(times)) => {
                *times += 1;
                // Once: until it is kept, other threads ask the library.
                if *times == seen.times { Next::Keep } else { Next::Ask }
            }
            None => {
                let mut forgotten = HashMap::new();
                if seen.operands.len() == MOST {
                    forgotten = std::mem::take(&mut seen.operands);
                    seen.times = seen.times.saturating_mul(2);
                }
                seen.operands.insert(*asked, State::Asked(1));
                drop(guard);
                // Launches end behind the lock: that calls the driver.
                drop(forgotten);
                Next::Ask
            }
        }
    }

    /// Keeps a launch; none where there cannot be one.
    pub(super) fn keep(&self, asked: &Asked, launch: Option<T>) {
        let state = launch.map_or(State::Never, |launch| State::Kept(Arc::new(launch)));
        let replaced = self.seen.lock().operands.insert(*asked, state);
        drop(replaced);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(address: u64) -> Asked {
        let problem = Problem::one([2, 3, 4], [false; 2]);
        Asked::of(&problem, [address, 0, 0], [Factor::ZERO; 2]).unwrap()
    }

    fn name(next: &Next<u32>) -> String {
        match next {
            Next::Again(launch) => format!("again {launch}"),
            Next::Keep => "keep".into(),
            Next::Ask => "ask".into(),
        }
    }

    #[test]
    fn a_launch_is_kept_once_its_operands_have_come_often_enough() {
        let repeats = Repeats::default();
        let times = |n: u32, address| -> Vec<String> {
            (0..n).map(|_| name(&repeats.next(&asked(address)))).collect()
        };
        assert_eq!(times(TIMES - 1, 1), vec!["ask"; TIMES as usize - 1]);
        assert_eq!(times(1, 2), ["ask"], "others count for themselves");
        assert_eq!(times(2, 1), ["keep", "ask"]);
        repeats.keep(&asked(1), Some(7));
        assert_eq!(times(2, 1), ["again 7", "again 7"]);
        repeats.keep(&asked(2), None);
        assert_eq!(times(2 * TIMES, 2), vec!["ask"; 2 * TIMES as usize], "it is not tried again");
    }

    #[test]
    fn more_operands_than_there_is_room_for_begin_anew_and_wait_longer() {
        let repeats = Repeats::default();
        repeats.keep(&asked(0), Some(7));
        for address in 1..MOST as u64 {
            repeats.next(&asked(address));
        }
        assert_eq!(name(&repeats.next(&asked(0))), "again 7", "there is just room");
        repeats.next(&asked(MOST as u64));
        let again: Vec<_> = (0..2 * TIMES).map(|_| name(&repeats.next(&asked(0)))).collect();
        let waited = vec!["ask".to_owned(); 2 * TIMES as usize - 1];
        assert_eq!(again, [&waited[..], &["keep".to_owned()]].concat());
    }

    #[test]
    fn whatever_changes_a_launch_tells_operands_apart() {
        let one = Problem::one([2, 3, 4], [false; 2]);
        let two = Factor { words: [2, 0], ..Factor::ZERO };
        let of = |problem: &Problem, addresses, factors| Asked::of(problem, addresses, factors);
        let problems = [
            one,
            Problem::one([2, 3, 4], [true, false]),
            Problem::one([2, 3, 4], [false, true]),
            one.batch(5),
        ];
        let mut all: Vec<_> = problems.iter().map(|p| of(p, [0; 3], [Factor::ZERO; 2])).collect();
        all.push(of(&Problem::one([2, 3, 5], [false; 2]), [0; 3], [Factor::ZERO; 2]));
        all.extend([[1, 0, 0], [0, 1, 0], [0, 0, 1]].map(|at| of(&one, at, [Factor::ZERO; 2])));
        all.extend([[two, Factor::ZERO], [Factor::ZERO, two]].map(|factors| of(&one, [0; 3], factors)));
        for (i, a) in all.iter().enumerate() {
            assert!(a.is_some() && all[..i].iter().all(|b| a != b), "{i}: {a:?}");
        }
        let summed = Problem::broadcast([&[5, 2, 3], &[5, 3, 4], &[2, 4]], [false; 2]).unwrap();
        assert_eq!(of(&summed, [0; 3], [Factor::ZERO; 2]), None, "several calls");
    }

    #[test]
    fn a_thread_that_finds_it_taken_asks_the_library() {
        let repeats = Repeats::default();
        repeats.keep(&asked(1), Some(7));
        let taken = repeats.seen.lock();
        assert_eq!(name(&repeats.next(&asked(1))), "ask");
        drop(taken);
        assert_eq!(name(&repeats.next(&asked(1))), "again 7");
    }
}
