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
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CacheKey {
    device: u32,
    len: u32,
    op: u64,
    words: [u64; MAX_WORDS],
}

impl CacheKey {
    /// `None` when the descriptor or the op's name is too long to be cached.
    #[inline]
    pub(crate) fn new(op: &str, device: u32, desc: &[u64]) -> Option<CacheKey> {
        if desc.len() > MAX_WORDS - OP_WORDS {
            return None;
        }
        let mut words = [0; MAX_WORDS];
        words[..desc.len()].copy_from_slice(desc);
        let op = op_words(op, &mut words[desc.len()..])?;
        Some(CacheKey { device, len: (desc.len() + OP_WORDS) as u32, op, words })
    }

    fn hash(&self) -> u64 {
        // Multiply and fold; the keys are the host's own requests, not an attacker's.
        let mut h = self.op ^ u64::from(self.device).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for w in &self.words[..self.len as usize] {
            let m = u128::from(h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            h = (m as u64) ^ ((m >> 64) as u64);
        }
        h
    }
}

/// Words that an op's name takes in a key.
const OP_WORDS: usize = 8;

/// Packs a name; returns its length, or `None` when it is too long.
#[inline]
fn op_words(op: &str, out: &mut [u64]) -> Option<u64> {
    let bytes = op.as_bytes();
    if bytes.len() > OP_WORDS * 8 {
        return None;
    }
    for (word, chunk) in out.iter_mut().zip(bytes.chunks(8)) {
        let mut b = [0; 8];
        b[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_ne_bytes(b);
    }
    Some(bytes.len() as u64)
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
