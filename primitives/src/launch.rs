//! Cutting a launch into chunks for threads.
//!
//! ```
//! use ep_core::parallel::{Parallel, Serial};
//! use primitives::launch::Work;
//!
//! /// What a chunk moves at least, so that handing it to a thread is worth it.
//! const CHUNK_BYTES: usize = 64 << 10;
//!
//! fn total(threads: &dyn Parallel, numbers: &[f32]) -> ep_core::Result<f64> {
//!     // 16 f32 are a cache line.
//!     let work = Work { items: numbers.len(), item_bytes: 4, multiple: 16 };
//!     if !work.is_shareable(CHUNK_BYTES) {
//!         return Ok(numbers.iter().map(|x| f64::from(*x)).sum());
//!     }
//!     let sum = std::sync::Mutex::new(0.0);
//!     threads.parallel_for(work.items, work.grain(CHUNK_BYTES), 0, &|range| {
//!         let part: f64 = numbers[range].iter().map(|x| f64::from(*x)).sum();
//!         *sum.lock().unwrap() += part;
//!         Ok(())
//!     })?;
//!     Ok(sum.into_inner().unwrap())
//! }
//!
//! assert_eq!(total(&Serial, &[1.0; 100])?, 100.0);
//! assert_eq!(total(&Serial, &[1.0; 100_000])?, 100_000.0);
//! # Ok::<(), ep_core::Error>(())
//! ```

/// A loop to share out among threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// How many items there are.
    pub items: usize,
    /// Bytes that an item reads and writes, or another measure of its cost.
    pub item_bytes: usize,
    /// Chunks begin at multiples of this many items, so that no two threads write one cache line.
    pub multiple: usize,
}

impl Work {
    /// The fewest items of a chunk that moves at least `chunk_bytes`: a multiple of [`Work::multiple`], and at
    /// least that. Where no `usize` holds so many, the greatest multiple that one holds.
    pub fn grain(&self, chunk_bytes: usize) -> usize {
        let multiple = self.multiple.max(1);
        let items = chunk_bytes.div_ceil(self.item_bytes.max(1)).max(1);
        items.checked_next_multiple_of(multiple).unwrap_or(usize::MAX - usize::MAX % multiple)
    }

    /// Whether at least two chunks of `chunk_bytes` can be made.
    pub fn is_shareable(&self, chunk_bytes: usize) -> bool {
        self.items / 2 >= self.grain(chunk_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_work_is_not_shared() {
        let work = |items| Work { items, item_bytes: 8, multiple: 16 };
        assert_eq!(work(0).grain(1 << 20), 1 << 17);
        assert!(!work(0).is_shareable(0) && !work((1 << 18) - 1).is_shareable(1 << 20));
        assert!(work(1 << 18).is_shareable(1 << 20));
        assert_eq!(work(1).grain(1), 16);
        assert_eq!(Work { items: 5, item_bytes: 0, multiple: 0 }.grain(0), 1);
        // What never fills one chunk is not shared.
        let endless = Work { items: usize::MAX, item_bytes: 1, multiple: 7 };
        assert_eq!(endless.grain(usize::MAX), usize::MAX / 7 * 7);
        assert!(!endless.is_shareable(usize::MAX) && endless.is_shareable(1 << 40));
        assert_eq!(Work { items: 5, item_bytes: 1, multiple: usize::MAX }.grain(1), usize::MAX);
    }

    proptest! {
        #[test]
        fn grains_hold_enough_and_no_more(bytes in 0usize..1 << 40, item_bytes in 1usize..1 << 20, multiple in 1usize..5000) {
            let grain = Work { items: 1, item_bytes, multiple }.grain(bytes);
            prop_assert!(grain.is_multiple_of(multiple) && grain * item_bytes >= bytes);
            prop_assert!(grain == multiple || (grain - multiple) * item_bytes < bytes);
        }
    }
}
