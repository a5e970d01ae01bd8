//! The tiles of AMX: setting them up for a thread, and releasing them.

use crate::isa::{self, Isa, Level};
use std::arch::asm;

/// Whether tiles may be used at this level.
pub(super) fn has_tiles(isa: Isa) -> bool {
    isa.level() == Level::Amx && isa::tiles_permitted()
}

/// Rows of `a` that two tiles hold.
const MOST_ROWS: usize = 32;

/// What the tiles are: as the instruction that sets them up reads it.
#[repr(C, align(64))]
pub(super) struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Tiles for `rows` rows of `a`, of 1 to 32: 0 and 1, and 4, have the upper 16, 2 and 3, and 5, the lower ones; 6 and 7 have
    /// 16 rows.
    pub(super) fn new(rows: usize) -> Config {
        let upper = rows.min(16) as u8;
        // No tile may be without rows.
        let lower = rows.saturating_sub(16).max(1) as u8;
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(64);
        config.rows[..8].copy_from_slice(&[upper, upper, lower, lower, upper, lower, 16, 16]);
        config
    }

    /// # Safety
    /// The CPU has tiles, and the process may use them.
    #[inline(always)]
    pub(super) unsafe fn load(&self) {
        // SAFETY: reads this struct, whose layout is the instruction's.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) };
    }
}

/// Tiles that are set up for this thread until this is dropped, by unwinding too: a thread in the host's pool must
/// not carry them on.
pub(super) struct SetUp;

impl SetUp {
    /// For 32 rows of `a`.
    ///
    /// # Safety
    /// As for [`Config::load`].
    pub(super) unsafe fn new() -> SetUp {
        // SAFETY: the caller's promise.
        unsafe { Config::new(MOST_ROWS).load() };
        SetUp
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        // SAFETY: there are tiles where there is a `SetUp`.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Whether this thread's tiles hold anything, as the CPU tells.
///
/// # Safety
/// The CPU has tiles.
#[cfg(test)]
pub(super) unsafe fn tiles_in_use() -> bool {
    let in_use: u32;
    // SAFETY: a CPU with tiles has the instruction, with this argument.
    unsafe { asm!("xgetbv", in("ecx") 1, out("eax") in_use, out("edx") _, options(nostack, nomem)) };
    in_use & (0b11 << 17) != 0
}
