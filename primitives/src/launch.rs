//! Cutting a launch into chunks for threads.

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
    /// least that.
    pub fn grain(&self, chunk_bytes: usize) -> usize {
        let multiple = self.multiple.max(1);
        let items = chunk_bytes.div_ceil(self.item_bytes.max(1)).max(1);
        items.checked_next_multiple_of(multiple).unwrap_or(multiple)
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
        assert_eq!(Work { items: 5, item_bytes: 1, multiple: 7 }.grain(usize::MAX), 7);
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
