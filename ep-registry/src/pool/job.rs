//! One call: how its range is cut, and running the pieces.

use ep_core::parallel::Task;
use ep_core::{Error, Result};
use parking_lot::Mutex;
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Chunks per thread where the grain allows: a thread that is late or slow leaves a quarter of its share
/// to the others at a time.
const CHUNKS_PER_THREAD: usize = 4;

/// Grains of at least this many elements are cut at its multiples: 64 one-byte elements fill the widest
/// vector register and a cache line.
const UNIT: usize = 64;

/// How `0..n` is cut; the module [`super`] has the formula.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    n: usize,
    unit: usize,
    chunks: usize,
    /// Units per chunk.
    share: usize,
    /// How many chunks, from the first, have one unit more.
    longer: usize,
}

impl Plan {
    pub(super) fn new(n: usize, grain: usize, width: usize) -> Plan {
        let (grain, width) = (grain.max(1), width.max(1));
        let unit = if grain >= UNIT { UNIT } else { 1 };
        let units = n / unit;
        let chunks = match width {
            1 => 1,
            _ => (units / grain.div_ceil(unit)).clamp(1, CHUNKS_PER_THREAD * width),
        };
        let chunks = if chunks > width { chunks - chunks % width } else { chunks };
        let chunks = if n == 0 { 0 } else { chunks };
        Plan { n, unit, chunks, share: units / chunks.max(1), longer: units % chunks.max(1) }
    }

    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    pub(super) fn chunk(&self, index: usize) -> Range<usize> {
        let begin = |i: usize| (i * self.share + i.min(self.longer)) * self.unit;
        let end = if index + 1 == self.chunks { self.n } else { begin(index + 1) };
        begin(index)..end
    }
}

/// A call in progress. Lives on its caller's stack; [`super::board`] lends it to workers.
pub(super) struct Job<'a> {
    task: &'a Task<'a>,
    plan: Plan,
    /// How many chunks the caller has taken, from the first on, and in the upper half how many its helpers have, from
    /// the last on. So with one helper both get the chunks that they had the last time, whose data may still be in
    /// their caches, and either takes more where the other is late.
    taken: AtomicU64,
    error: Mutex<Option<Error>>,
    abandoned: AtomicBool,
}

impl<'a> Job<'a> {
    pub(super) fn new(plan: Plan, task: &'a Task<'a>) -> Job<'a> {
        Job {
            task,
            plan,
            taken: AtomicU64::new(0),
            error: Mutex::new(None),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Runs chunks on the caller until none is left. Never unwinds.
    pub(super) fn work(&self) {
        self.run(1, |first, _| first);
    }

    /// Runs chunks on a helper until none is left. Never unwinds.
    pub(super) fn help(&self) {
        self.run(1 << 32, |_, last| last);
    }

    /// Takes chunks by adding `one`; `pick` chooses from the first and the last of those that are left.
    fn run(&self, one: u64, pick: impl Fn(usize, usize) -> usize) {
        loop {
            // Relaxed: only the numbers matter here. The data behind them is ordered by the board, which
            // a thread passes before its first chunk and after its last.
            let taken = self.taken.fetch_add(one, Ordering::Relaxed);
            let (first, helped) = ((taken & u64::from(u32::MAX)) as usize, (taken >> 32) as usize);
            if first + helped >= self.plan.chunks {
                return;
            }
            let index = pick(first, self.plan.chunks - 1 - helped);
            let range = self.plan.chunk(index);
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.task)(range.clone())));
            if let Err(error) = outcome.unwrap_or_else(|payload| {
                Err(Error::panic(format!("a parallel task panicked on {range:?}: {}", message_of(payload))))
            }) {
                self.fail(error);
            }
        }
    }

    fn fail(&self, error: Error) {
        self.taken.store(self.plan.chunks as u64, Ordering::Relaxed);
        // Someone else holds the lock only to record an error that came first. Not waiting for them keeps
        // a forked child going if that someone stayed in the parent.
        if let Some(mut first) = self.error.try_lock() {
            first.get_or_insert(error);
        }
    }

    /// Records that a worker has begun a chunk that will never end, because this is a forked child.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    pub(super) fn into_result(self) -> Result<()> {
        if self.abandoned.into_inner() {
            return Err(Error::unavailable(
                "the process forked inside a parallel task; the chunks that other threads were running are not \
                 finished in the child",
            ));
        }
        self.error.into_inner().map_or(Ok(()), Err)
    }
}

/// What a panic said.
fn message_of(payload: Box<dyn Any + Send>) -> String {
    let payload = match payload.downcast::<&'static str>() {
        Ok(text) => return (*text).to_owned(),
        Err(payload) => payload,
    };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => {
            // Dropping a value of an unknown type may panic too. Its own payload is leaked: somewhere the
            // chain has to end.
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(other))) {
                std::mem::forget(second);
            }
            "(the panic carried no text)".to_owned()
        }
    }
}
