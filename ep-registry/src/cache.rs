//! The cache of primitives by request.
//!
//! Keyed by the full request: op, device, descriptor bytes. Bounded: two halves, of which the older is dropped
//! when the newer is full, so what is used stays. Cleared when the registry changes; the generation keeps a
//! primitive that was chosen before the change from being stored after it.

use crate::primitive::Core;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Primitives in one half.
const HALF: usize = 4096;
/// Words of a key: those of the descriptor and of the op's name. Requests that need more are not cached.
const MAX_WORDS: usize = 24;

/// A request, by value, so that looking one up allocates nothing.
#[derive(Clone)]
pub(crate) struct CacheKey {
    device: u32,
    /// Words in use; the others are zero.
    len: u32,
    /// Bytes of the op's name.
    op: u64,
    words: [u64; MAX_WORDS],
}

impl PartialEq for CacheKey {
    #[inline]
    fn eq(&self, other: &CacheKey) -> bool {
        let head = |k: &CacheKey| (k.device, k.len, k.op);
        head(self) == head(other) && self.used() == other.used()
    }
}

impl Eq for CacheKey {}

impl CacheKey {
    /// `None` when the descriptor and the op's name are too long to be cached.
    #[inline]
    pub(crate) fn new(op: &str, device: u32, desc: &[u64]) -> Option<CacheKey> {
        let name = op.as_bytes();
        let len = desc.len() + name.len().div_ceil(8);
        if len > MAX_WORDS {
            return None;
        }
        let mut words = [0; MAX_WORDS];
        words[..desc.len()].copy_from_slice(desc);
        let (whole, rest) = name.as_chunks::<8>();
        for (word, chunk) in words[desc.len()..].iter_mut().zip(whole) {
            *word = u64::from_ne_bytes(*chunk);
        }
        if !rest.is_empty() {
            words[len - 1] = rest.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b));
        }
        Some(CacheKey { device, len: len as u32, op: name.len() as u64, words })
    }

    #[inline]
    fn used(&self) -> &[u64] {
        &self.words[..(self.len as usize).min(MAX_WORDS)]
    }

    /// Multiplies and folds, two words at a time; the keys are the host's own requests, not an attacker's.
    #[inline]
    fn hash(&self) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let fold = |a: u64, b: u64| {
            let m = u128::from(a) * u128::from(b);
            m as u64 ^ (m >> 64) as u64
        };
        let mut h = fold(self.op ^ ODD, u64::from(self.device) ^ 0xf39c_c060_5ced_c835);
        // What is beyond `len` is zero and does no harm.
        for pair in self.words[..(self.len as usize).next_multiple_of(2).min(MAX_WORDS)].as_chunks::<2>().0 {
            h = fold(pair[0] ^ h ^ ODD, pair[1] ^ h.rotate_left(32));
        }
        h
    }
}

impl std::hash::Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(CacheKey::hash(self));
    }
}

/// Passes on the hash that the key has computed.
#[derive(Default, Clone)]
struct Ready;

impl BuildHasher for Ready {
    type Hasher = ReadyHasher;
    fn build_hasher(&self) -> ReadyHasher {
        ReadyHasher(0)
    }
}

struct ReadyHasher(u64);

impl Hasher for ReadyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys write one u64")
    }

    fn write_u64(&mut self, h: u64) {
        self.0 = h;
    }
}

type Map = HashMap<CacheKey, Arc<Core>, Ready>;

#[derive(Default)]
struct Halves {
    new: Map,
    old: Map,
}

/// The cache.
#[derive(Default)]
pub(crate) struct Cache {
    halves: RwLock<Halves>,
    generation: AtomicU64,
}

impl Cache {
    #[inline]
    pub(crate) fn get(&self, key: &CacheKey) -> Option<Arc<Core>> {
        let halves = self.halves.read();
        if let Some(core) = halves.new.get(key) {
            return Some(core.clone());
        }
        let core = halves.old.get(key).cloned()?;
        // Read under the lock: of a clear that comes in between, the insertion must know.
        let generation = self.generation();
        drop(halves);
        self.insert(key.clone(), core.clone(), generation);
        Some(core)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Stores a primitive that was chosen at `generation`.
    pub(crate) fn insert(&self, key: CacheKey, core: Arc<Core>, generation: u64) {
        // Declared before the lock, so dropped after it is released: dropping a primitive runs a provider's code.
        let (mut _half, mut _replaced) = (Map::default(), None);
        let mut halves = self.halves.write();
        if self.generation() != generation {
            return;
        }
        if halves.new.len() >= HALF {
            let full = std::mem::take(&mut halves.new);
            _half = std::mem::replace(&mut halves.old, full);
        }
        _replaced = halves.new.insert(key, core);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let mut halves = self.halves.write();
        self.generation.fetch_add(1, Ordering::AcqRel);
        let dropped = std::mem::take(&mut *halves);
        drop(halves);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_every_part_apart() {
        let key = |op: &str, device, desc: &[u64]| CacheKey::new(op, device, desc).unwrap();
        let long = "vendor.an_op_with_a_name_of_forty_letters";
        let keys = [
            key("softmax", 0, &[1, 2, 3]),
            key("softmaz", 0, &[1, 2, 3]),
            key("softmax", 1, &[1, 2, 3]),
            key("softmax", 0, &[1, 2, 4]),
            key("softmax", 0, &[1, 2, 3, 0]),
            key("softmax", 0, &[2, 1, 3]),
            key("softmax\0", 0, &[1, 2, 3]),
            key("soft.max", 0, &[1, 2, 3]),
            key(long, 0, &[1, 2, 3]),
            key(&long[..long.len() - 1], 0, &[1, 2, 3]),
            key("", 0, &[]),
        ];
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                assert_eq!(a == b, i == j, "{i} and {j}");
                assert_eq!(a.hash() == b.hash(), i == j, "{i} and {j}");
            }
        }
    }

    #[test]
    fn what_is_too_long_has_no_key() {
        assert!(CacheKey::new(&"x".repeat(8 * MAX_WORDS), 0, &[]).is_some());
        assert!(CacheKey::new(&"x".repeat(8 * MAX_WORDS), 0, &[0]).is_none());
        assert!(CacheKey::new("x", 0, &[0; MAX_WORDS - 1]).is_some());
        assert!(CacheKey::new("x", 0, &[0; MAX_WORDS]).is_none());
        assert!(CacheKey::new("x", 0, &[0; 1000]).is_none());
    }
}
