//! The innermost loop of products on tiles.

use std::arch::asm;

/// Up to 32 rows times a panel of 32 columns.
pub(super) struct Piece {
    pub(super) a: *const u16,
    /// Bytes between rows of `a`, and between its steps along the depth.
    pub(super) row_bytes: usize,
    pub(super) step_bytes: usize,
    pub(super) steps: usize,
    /// One more step, packed: the addresses of its upper and its lower rows, or null.
    pub(super) rest: Option<[*const u16; 2]>,
    /// The first row of the lower tiles.
    pub(super) lower: usize,
    pub(super) b: *const u16,
    pub(super) out: *mut f32,
    pub(super) out_bytes: usize,
    /// Whether the sums begin with what `out` holds.
    pub(super) adds: bool,
}

impl Piece {
    /// # Safety
    /// Tiles are set up for the rows; the factors are readable, and 32 columns of the sums are writable in each of the
    /// rows.
    #[inline(always)]
    pub(super) unsafe fn multiply(&self) {
        let rest = self.rest.as_ref().map_or(std::ptr::null(), |rest| rest.as_ptr());
        // SAFETY: tiles are used by nothing else in this thread, and what they read and write is the caller's.
        unsafe {
            asm!(
                "test {adds:e}, {adds:e}",
                "jz 2f",
                "tileloadd tmm0, [{out} + {out_bytes}]",
                "tileloadd tmm1, [{out} + {out_bytes} + 64]",
                "tileloadd tmm2, [{out_lower} + {out_bytes}]",
                "tileloadd tmm3, [{out_lower} + {out_bytes} + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "test {steps}, {steps}",
                "jz 5f",
                "4:",
                "tileloadd tmm4, [{a} + {row_bytes}]",
                "tileloadd tmm6, [{b} + {b_bytes}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {b_bytes} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a_lower} + {row_bytes}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, {step_bytes}",
                "add {a_lower}, {step_bytes}",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 4b",
                "5:",
                "test {rest}, {rest}",
                "jz 6f",
                "mov {a}, [{rest}]",
                "mov {a_lower}, [{rest} + 8]",
                "mov {row_bytes}, {b_bytes}",
                "xor {rest:e}, {rest:e}",
                "mov {steps:e}, 1",
                "jmp 4b",
                "6:",
                "tilestored [{out_lower} + {out_bytes}], tmm2",
                "tilestored [{out_lower} + {out_bytes} + 64], tmm3",
                "tilestored [{out} + {out_bytes}], tmm0",
                "tilestored [{out} + {out_bytes} + 64], tmm1",
                adds = in(reg) u32::from(self.adds),
                out = in(reg) self.out,
                out_lower = in(reg) self.out.wrapping_byte_add(self.lower * self.out_bytes),
                out_bytes = in(reg) self.out_bytes,
                a = inout(reg) self.a => _,
                a_lower = inout(reg) self.a.wrapping_byte_add(self.lower * self.row_bytes) => _,
                row_bytes = inout(reg) self.row_bytes => _,
                step_bytes = in(reg) self.step_bytes,
                steps = inout(reg) self.steps => _,
                b = inout(reg) self.b => _,
                b_bytes = in(reg) 64usize,
                rest = inout(reg) rest => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
