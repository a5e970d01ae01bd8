//! Random steps, and where they begin.

use std::time::{SystemTime, UNIX_EPOCH};

/// A generator (SplitMix64: any seed is a good one).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }
}

/// `EP_SIM_SEED`, or else the clock; printed, so that a failure tells it.
pub fn first_seed() -> u64 {
    let seed = match std::env::var("EP_SIM_SEED") {
        Ok(text) => text.parse().expect("EP_SIM_SEED is a number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_millis() as u64),
    };
    println!("EP_SIM_SEED={seed}");
    seed
}
