//! What a primitive worked out for the launch before: most launches of one have the sizes of the last.

use parking_lot::Mutex;

/// The last key and what was found for it.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    last: Mutex<Option<(K, V)>>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Recent<K, V> {
        Recent { last: Mutex::default() }
    }
}

impl<K: Copy + PartialEq, V: Copy> Recent<K, V> {
    /// The value for a key; by `find`, where another key was the last.
    ///
    /// # Errors
    /// Those of `find`, which are not remembered.
    #[inline]
    pub(super) fn get_or_try<E>(
        &self,
        key: K,
        find: impl FnOnce() -> std::result::Result<V, E>,
    ) -> std::result::Result<V, E> {
        // Where another thread is at it, this one works it out rather than wait.
        if let Some(last) = self.last.try_lock()
            && let Some((of, value)) = &*last
            && *of == key
        {
            return Ok(*value);
        }
        let value = find()?;
        if let Some(mut last) = self.last.try_lock() {
            *last = Some((key, value));
        }
        Ok(value)
    }

    /// The same where nothing can fail.
    #[inline]
    pub(super) fn get_or(&self, key: K, find: impl FnOnce() -> V) -> V {
        let found = self.get_or_try(key, || Ok::<_, std::convert::Infallible>(find()));
        found.unwrap_or_else(|never| match never {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_last_key_found_is_remembered() {
        let recent = Recent::default();
        let mut found = Vec::new();
        let mut get = |key: u32| {
            recent.get_or(key, || {
                found.push(key);
                key * 10
            })
        };
        assert_eq!([1, 1, 2, 2, 1].map(&mut get), [10, 10, 20, 20, 10]);
        assert_eq!(found, [1, 2, 1]);
    }

    #[test]
    fn failures_are_tried_again_and_keep_what_was_there() {
        let recent = Recent::default();
        assert_eq!(recent.get_or_try(1, || Ok::<_, ()>(10)), Ok(10));
        assert_eq!(recent.get_or_try(2, || Err("no")), Err("no"));
        assert_eq!(recent.get_or_try(1, || Err("not asked")), Ok(10));
        assert_eq!(recent.get_or_try(2, || Ok::<_, ()>(20)), Ok(20));
    }

    #[test]
    fn a_thread_that_finds_it_taken_does_not_wait() {
        let recent = Recent::default();
        let inner = recent.get_or(1, || 10);
        let taken = recent.last.lock();
        assert_eq!(recent.get_or(1, || 11), inner + 1);
        drop(taken);
        assert_eq!(recent.get_or(1, || 12), 10);
    }
}
