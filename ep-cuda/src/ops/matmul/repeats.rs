//! Products that are asked for again with the same operands, as layers of a model are at each of its turns: their launches
//! are kept, and done again without the library.

use super::Factor;
use parking_lot::Mutex;
use primitives::matmul::{Loop, Problem};
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

/// Launches by the library before one is worth recording, which takes as long as some twenty calls.
const TIMES: u32 = 8;

/// More than that are not waited for, however many operands come.
const MOST_TIMES: u32 = 1024;

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
    /// The library did it so often.
    Asked(u32),
    Kept(Arc<T>),
    /// The library goes on doing it: for good, or until it is settled what becomes of the launch.
    Left,
}

/// What came of recording a launch.
pub(super) enum Recorded<T> {
    Kept(T),
    /// It cannot be one kernel's launch.
    Never,
    /// It could not be recorded now.
    Later,
}

impl<T> Default for Repeats<T> {
    fn default() -> Repeats<T> {
        Repeats { seen: Mutex::new(Seen { operands: HashMap::new(), times: TIMES }) }
    }
}

impl<T> Repeats<T> {
    /// The launch of these operands, where it is kept. While another thread is at the table there is none: the library is
    /// asked rather than waited for.
    pub(super) fn kept(&self, asked: &Asked) -> Option<Arc<T>> {
        match self.seen.try_lock()?.operands.get(asked)? {
            State::Kept(launch) => Some(launch.clone()),
            State::Asked(_) | State::Left => None,
        }
    }

    /// Counts a launch by the library. Whether it is to be recorded, and [settled](Repeats::settle), now.
    pub(super) fn is_due(&self, asked: &Asked) -> bool {
        let Some(mut guard) = self.seen.try_lock() else { return false };
        let seen = &mut *guard;
        let due = match seen.operands.get_mut(asked) {
            Some(State::Asked(times)) => {
                *times += 1;
                *times >= seen.times
            }
            Some(State::Kept(_) | State::Left) => false,
            None => {
                let forgotten = seen.make_room();
                seen.operands.insert(*asked, State::Asked(1));
                drop(guard);
                // Launches end behind the lock: that calls the driver.
                drop(forgotten);
                return false;
            }
        };
        if due {
            seen.operands.insert(*asked, State::Left);
        }
        due
    }

    /// What becomes of the launch of these operands, if they are still remembered.
    pub(super) fn settle(&self, asked: &Asked, recorded: Recorded<T>) {
        let mut state = match recorded {
            Recorded::Kept(launch) => State::Kept(Arc::new(launch)),
            Recorded::Never => State::Left,
            Recorded::Later => State::Asked(0),
        };
        if let Some(now) = self.seen.lock().operands.get_mut(asked) {
            std::mem::swap(now, &mut state);
        }
        // What was there before ends behind the lock, as above.
        drop(state);
    }
}

impl<T> Seen<T> {
    /// Forgets what is not kept where there is no room for more, and all if that is not much. What is forgotten.
    fn make_room(&mut self) -> HashMap<Asked, State<T>> {
        if self.operands.len() < MOST {
            return HashMap::new();
        }
        self.times = (2 * self.times).min(MOST_TIMES);
        let kept = self.operands.values().filter(|state| matches!(state, State::Kept(_))).count();
        let all = std::mem::take(&mut self.operands);
        let (kept, forgotten) =
            all.into_iter().partition(|(_, state)| kept <= MOST / 2 && matches!(state, State::Kept(_)));
        self.operands = kept;
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn asked(address: u64) -> Asked {
        let problem = Problem::one([2, 3, 4], [false; 2]);
        Asked::of(&problem, [address, 0, 0], [Factor::ZERO; 2]).unwrap()
    }

    /// How many launches of operands by the library there are until one is due, of so many at most.
    fn due_after(repeats: &Repeats<u32>, address: u64, most: u32) -> Option<u32> {
        (1..=most).find(|_| repeats.is_due(&asked(address)))
    }

    #[test]
    fn a_launch_is_due_once_the_library_has_done_it_often_enough() {
        let repeats = Repeats::<u32>::default();
        assert_eq!(due_after(&repeats, 2, 1), None);
        assert_eq!(due_after(&repeats, 1, 99), Some(TIMES));
        assert_eq!(
            (repeats.kept(&asked(1)), due_after(&repeats, 1, 99)),
            (None, None),
            "until it is settled"
        );
        repeats.settle(&asked(1), Recorded::Kept(7));
        assert_eq!(repeats.kept(&asked(1)).as_deref(), Some(&7));
        assert_eq!(due_after(&repeats, 1, 99), None);
        assert_eq!(due_after(&repeats, 2, 99), Some(TIMES - 1), "others count for themselves");
        repeats.settle(&asked(2), Recorded::Later);
        assert_eq!(due_after(&repeats, 2, 99), Some(TIMES));
        repeats.settle(&asked(2), Recorded::Never);
        assert_eq!((repeats.kept(&asked(2)), due_after(&repeats, 2, 99)), (None, None));
        repeats.settle(&asked(1), Recorded::Never);
        assert_eq!(repeats.kept(&asked(1)), None, "of one that failed");
    }

    /// Makes launches of these operands kept, the address each one's launch.
    fn keep(repeats: &Repeats<u32>, addresses: std::ops::Range<u64>) {
        for address in addresses {
            assert!(due_after(repeats, address, 99).is_some());
            repeats.settle(&asked(address), Recorded::Kept(address as u32));
        }
    }

    #[test]
    fn what_is_kept_outlasts_operands_that_come_once() {
        let repeats = Repeats::default();
        keep(&repeats, 0..3);
        let others = 1000..1000 + 5 * MOST as u64;
        assert!(others.clone().all(|address| !repeats.is_due(&asked(address))));
        assert_eq!([0, 1, 2].map(|i| repeats.kept(&asked(i)).as_deref().copied()), [0, 1, 2].map(Some));
        assert!(repeats.seen.lock().operands.len() <= MOST);
        // They were many, so what comes now has to come more often.
        assert_eq!(due_after(&repeats, 10, 9999), Some(TIMES << 5));
        let more = others.end..others.end + 99 * MOST as u64;
        assert!(more.clone().all(|address| !repeats.is_due(&asked(address))));
        assert_eq!(due_after(&repeats, 11, 9999), Some(MOST_TIMES));
        // Of what was forgotten nothing comes back.
        repeats.settle(&asked(1000), Recorded::Kept(9));
        assert_eq!(repeats.kept(&asked(1000)), None);
    }

    #[test]
    fn more_than_there_is_room_for_is_not_kept() {
        let repeats = Repeats::default();
        keep(&repeats, 0..MOST as u64);
        assert_eq!(repeats.kept(&asked(0)).as_deref(), Some(&0), "there is just room");
        assert!(!repeats.is_due(&asked(9999)));
        assert_eq!((repeats.kept(&asked(0)), repeats.seen.lock().operands.len()), (None, 1));
    }

    #[test]
    fn whatever_changes_a_launch_tells_operands_apart() {
        let one = Problem::one([2, 3, 4], [false; 2]);
        let words = |words| Factor { words, ..Factor::ZERO };
        let of = |problem: &Problem, addresses, factors| Asked::of(problem, addresses, factors);
        let mut problems: Vec<_> =
            [[false; 2], [true, false], [false, true]].map(|t| Problem::one([2, 3, 4], t)).into();
        problems.extend([[3, 3, 4], [2, 4, 4], [2, 3, 5]].map(|sizes| Problem::one(sizes, [false; 2])));
        problems.extend([5, 6].map(|length| one.batch(length)));
        let [a, b, c]: [&[u64]; 3] = [&[5, 2, 4], &[5, 4, 3], &[5, 2, 3]];
        problems.push(Problem::broadcast([&a[1..], b, c], [false; 2]).unwrap());
        problems.push(Problem::broadcast([&[5, 4, 2], &b[1..], c], [true, false]).unwrap());
        let mut all: Vec<_> = problems.iter().map(|p| of(p, [0; 3], [Factor::ZERO; 2])).collect();
        all.extend([[1, 0, 0], [0, 1, 0], [0, 0, 1]].map(|at| of(&one, at, [Factor::ZERO; 2])));
        for word in [[2, 0], [0, 2]].map(words) {
            all.extend([[word, Factor::ZERO], [Factor::ZERO, word]].map(|f| of(&one, [0; 3], f)));
        }
        for (i, a) in all.iter().enumerate() {
            assert!(a.is_some() && all[..i].iter().all(|b| a != b), "{i}: {a:?}");
        }
        let summed = Problem::broadcast([&[5, 2, 3], &[5, 3, 4], &[2, 4]], [false; 2]).unwrap();
        assert_eq!(of(&summed, [0; 3], [Factor::ZERO; 2]), None, "several calls");
    }

    #[test]
    fn a_thread_that_finds_it_taken_asks_the_library() {
        let repeats = Repeats::default();
        keep(&repeats, 1..2);
        let taken = repeats.seen.lock();
        assert!(repeats.kept(&asked(1)).is_none() && !repeats.is_due(&asked(1)));
        drop(taken);
        assert!(repeats.kept(&asked(1)).is_some());
    }

    #[test]
    fn of_threads_that_ask_at_a_time_one_is_told_to_record() {
        for _ in 0..50 {
            let repeats = Repeats::<u32>::default();
            let due = |n: u32| (0..n).filter(|_| repeats.is_due(&asked(1))).count();
            let told: usize = thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(|| due(100)));
                threads.into_iter().map(|t| t.join().unwrap()).sum()
            });
            assert_eq!(told + due(TIMES), 1);
        }
    }
}
