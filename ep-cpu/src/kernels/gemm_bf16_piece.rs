//! The innermost loops of products of pairs.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::offset_of;

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
    /// Whether `b` comes from memory.
    pub(super) streams: bool,
    /// How many rows there are.
    pub(super) lines: usize,
    /// How many columns: those beyond are padding.
    pub(super) cols: usize,
    /// Pairs of the last step that are not padding, 1 to 16.
    pub(super) last_pairs: usize,
    /// What is rounded meanwhile.
    pub(super) rounding: Rounding,
}

/// Sums of 32 columns that are rounded while tiles multiply, at most two rows for each step: by itself that would take a
/// twentieth of the time of a product of 1024 x 1024 x 1024, and stores to lines that are not in cache as long again.
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    pub(super) sums: *const f32,
    pub(super) to: *mut u16,
    /// Bytes between rows of `to`.
    pub(super) to_bytes: usize,
    pub(super) rows: usize,
    /// The columns that exist.
    pub(super) mask: u32,
}

impl Rounding {
    /// Of nothing.
    pub(super) const NONE: Rounding =
        Rounding { sums: std::ptr::null(), to: std::ptr::null_mut(), to_bytes: 0, rows: 0, mask: 0 };
}

/// Rows whose sums are in registers at a time.
const SIDE_BY_SIDE: usize = 8;
/// Columns of a panel, and of half of it.
const PANEL: usize = 32;
const HALF: usize = PANEL / 2;
/// Pairs along the depth in a step, and bytes of a step of a row, of one half of the columns, and of both.
const PAIRS: usize = 16;
const ROW_BYTES: usize = 64;
const HALF_BYTES: usize = 1024;
const STEP_BYTES: usize = 2 * HALF_BYTES;
/// How far ahead dot products ask for a `b` that comes from memory.
const AHEAD_BYTES: usize = 2 * STEP_BYTES;
/// Steps from which on first-level cache does not hold a panel of `b`.
const FAR_STEPS: usize = 32;

/// The most rows of a piece. One for each step, where there are [`FAR_STEPS`], are all of them.
const ROWS: usize = 32;
const _: () = assert!(FAR_STEPS >= ROWS);

/// What the loop on tiles has no registers for.
#[repr(C)]
struct Frame {
    step_bytes: usize,
    to_bytes: usize,
    out: *mut f32,
    out_lower: *mut f32,
    out_bytes: usize,
    adds: usize,
    rest: *const [*const u16; 2],
    /// Whether `b` comes past first-level cache too, and one row is rounded in a step, not two; 2 where it comes from memory.
    far: usize,
}

/// Asks for the step of `b` that comes after the next three: of each pair of lines one, with which the other comes. Hardware
/// alone begins anew with each page, of which there are two steps.
macro_rules! prefetch_b {
    () => {
        prefetch_b!(0, 128, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1664, 1792, 1920)
    };
    ($($at:literal),*) => {
        concat!($("prefetcht1 [{b} + 8192 + ", $at, "]\n"),*)
    };
}

/// A row is rounded, if there is one more.
macro_rules! round_row {
    () => {
        concat!(
            "dec {rows}\n",
            "js 20f\n",
            "vmovups {x}, [{sums} + 64]\n",
            "vcvtne2ps2bf16 {x}, {x}, [{sums}]\n",
            "vmovdqu16 [{to}] {{{mask}}}, {x}\n",
            "add {to}, [{frame} + {to_bytes}]\n",
            "sub {sums}, -128\n",
        )
    };
}

/// A step on tiles, in the middle of which rows are rounded. `a` comes past first-level cache, which keeps a panel of `b`
/// for other rows.
macro_rules! step {
    ($load_b:literal, $round:expr) => {
        concat!(
            "tileloaddt1 tmm4, [{a} + {row_bytes}]\n",
            $load_b,
            " tmm6, [{b} + {b_bytes}]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            $round,
            "20:\n",
            $load_b,
            " tmm7, [{b} + {b_bytes} + 1024]\n",
            "tdpbf16ps tmm1, tmm4, tmm7\n",
            "tileloaddt1 tmm5, [{a_lower} + {row_bytes}]\n",
            "tdpbf16ps tmm2, tmm5, tmm6\n",
            "tdpbf16ps tmm3, tmm5, tmm7\n",
            "add {a}, [{frame} + {step_bytes}]\n",
            "add {a_lower}, [{frame} + {step_bytes}]\n",
            "add {b}, 2048\n",
        )
    };
}

impl Piece {
    /// Multiplies on tiles, or by dot products.
    ///
    /// # Safety
    /// The CPU has the unit, whose tiles are set up for the rows; there is a step at least, or `rest`; the factors are readable and written, and 32 columns of the sums are
    /// writable in each of the rows. Tiles come with AVX-512F and BW. Where rows are rounded the CPU has AVX-512 with bf16 too;
    /// they are at most two for each of `steps`, their sums are readable and not among those that are written, and the masked columns are writable.
    #[inline(always)]
    pub(super) unsafe fn multiply<const TILES: bool>(&self) {
        // SAFETY: the caller's promise.
        unsafe { if TILES { self.on_tiles() } else { self.by_dots() } }
    }

    /// # Safety
    /// As for [`Piece::multiply`].
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn by_dots(&self) {
        debug_assert!(
            self.steps + usize::from(self.rest.is_some()) > 0 && (1..=PAIRS).contains(&self.last_pairs)
        );
        // SAFETY: the caller's promise.
        unsafe {
            match (self.streams, self.lines, self.cols <= HALF) {
                (true, 2, _) => self.rows::<2, 2, true>(0),
                (true, 1, _) => self.rows::<1, 2, true>(0),
                (.., true) => self.all_rows::<1>(),
                (.., false) => self.all_rows::<2>(),
            }
        }
    }

    /// # Safety
    /// As for [`Piece::multiply`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn all_rows<const HALVES: usize>(&self) {
        let mut row = 0;
        // SAFETY: the caller's promise.
        unsafe {
            // As many sums in registers with one half as with two.
            while HALVES == 1 && row + 2 * SIDE_BY_SIDE <= self.lines {
                self.rows::<{ 2 * SIDE_BY_SIDE }, HALVES, false>(row);
                row += 2 * SIDE_BY_SIDE;
            }
            while row + SIDE_BY_SIDE <= self.lines {
                self.rows::<SIDE_BY_SIDE, HALVES, false>(row);
                row += SIDE_BY_SIDE;
            }
            if self.lines - row >= 4 {
                self.rows::<4, HALVES, false>(row);
                row += 4;
            }
            if self.lines - row >= 2 {
                self.rows::<2, HALVES, false>(row);
                row += 2;
            }
            if row < self.lines {
                self.rows::<1, HALVES, false>(row);
            }
        }
    }

    /// The first one or both `HALVES` of the columns. With `AHEAD`, `b` is asked for ahead of time: few rows are multiplied faster
    /// than memory gives it.
    ///
    /// # Safety
    /// As for [`Piece::multiply`], of the `N` rows from `row` on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn rows<const N: usize, const HALVES: usize, const AHEAD: bool>(&self, row: usize) {
        let out: [*mut f32; N] =
            std::array::from_fn(|i| self.out.wrapping_byte_add((row + i) * self.out_bytes));
        let mut sums = [[_mm512_setzero_ps(); HALVES]; N];
        // SAFETY: the caller's promise: 32 sums in each row, and of each step 32 elements of each row and of each column.
        unsafe {
            if self.adds {
                for (sums, out) in sums.iter_mut().zip(out) {
                    for (half, sums) in sums.iter_mut().enumerate() {
                        *sums = _mm512_loadu_ps(out.add(half * HALF));
                    }
                }
            }
            let (mut a, mut b) = (self.a.wrapping_byte_add(row * self.row_bytes), self.b);
            for _ in 0..if self.rest.is_some() { self.steps } else { self.steps - 1 } {
                step::<N, HALVES, AHEAD>(&mut sums, a, self.row_bytes, b, PAIRS);
                (a, b) = (a.wrapping_byte_add(self.step_bytes), b.wrapping_byte_add(STEP_BYTES));
            }
            let (last, last_bytes) = match self.rest {
                // Lower rows lie behind the upper ones.
                Some([rest, _]) => (rest.wrapping_byte_add(row * ROW_BYTES), ROW_BYTES),
                None => (a, self.row_bytes),
            };
            // The next panel lies behind this one.
            step::<N, HALVES, AHEAD>(&mut sums, last, last_bytes, b, self.last_pairs);
            for (sums, out) in sums.iter().zip(out) {
                for half in 0..PANEL / HALF {
                    // Of padding anything may be stored, but something.
                    let sums = sums.get(half).copied().unwrap_or(_mm512_setzero_ps());
                    _mm512_storeu_ps(out.add(half * HALF), sums);
                }
            }
        }
    }

    /// # Safety
    /// As for [`Piece::multiply`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn on_tiles(&self) {
        let frame = Frame {
            step_bytes: self.step_bytes,
            to_bytes: self.rounding.to_bytes,
            out: self.out,
            out_lower: self.out.wrapping_byte_add(self.lower * self.out_bytes),
            out_bytes: self.out_bytes,
            adds: usize::from(self.adds),
            rest: self.rest.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            far: if self.steps >= FAR_STEPS { 1 + usize::from(self.streams) } else { 0 },
        };
        // SAFETY: tiles are used by nothing else in this thread, and what they read and write is the caller's.
        unsafe {
            asm!(
                "cmp qword ptr [{frame} + {adds}], 0",
                "je 2f",
                "mov {x1}, [{frame} + {out}]",
                "mov {x2}, [{frame} + {out_bytes}]",
                "tileloadd tmm0, [{x1} + {x2}]",
                "tileloadd tmm1, [{x1} + {x2} + 64]",
                "mov {x1}, [{frame} + {out_lower}]",
                "tileloadd tmm2, [{x1} + {x2}]",
                "tileloadd tmm3, [{x1} + {x2} + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "mov {x2}, [{frame} + {rest}]",
                "test {steps}, {steps}",
                "jz 6f",
                "cmp qword ptr [{frame} + {far}], 1",
                "je 5f",
                "ja 8f",
                "4:",
                step!("tileloadd", concat!(round_row!(), round_row!())),
                "dec {steps}",
                "jnz 4b",
                "jmp 6f",
                "5:",
                step!("tileloaddt1", round_row!()),
                "dec {steps}",
                "jnz 5b",
                "jmp 6f",
                "8:",
                prefetch_b!(),
                step!("tileloaddt1", round_row!()),
                "dec {steps}",
                "jnz 8b",
                "6:",
                "test {x2}, {x2}",
                "jz 7f",
                "mov {a}, [{x2}]",
                "mov {a_lower}, [{x2} + 8]",
                "mov {row_bytes}, {b_bytes}",
                "xor {x2:e}, {x2:e}",
                "mov {steps:e}, 1",
                "jmp 4b",
                "7:",
                "mov {x1}, [{frame} + {out_lower}]",
                "mov {x2}, [{frame} + {out_bytes}]",
                "tilestored [{x1} + {x2}], tmm2",
                "tilestored [{x1} + {x2} + 64], tmm3",
                "mov {x1}, [{frame} + {out}]",
                "tilestored [{x1} + {x2}], tmm0",
                "tilestored [{x1} + {x2} + 64], tmm1",
                frame = in(reg) &frame,
                step_bytes = const offset_of!(Frame, step_bytes),
                to_bytes = const offset_of!(Frame, to_bytes),
                out = const offset_of!(Frame, out),
                out_lower = const offset_of!(Frame, out_lower),
                out_bytes = const offset_of!(Frame, out_bytes),
                adds = const offset_of!(Frame, adds),
                rest = const offset_of!(Frame, rest),
                far = const offset_of!(Frame, far),
                x1 = out(reg) _,
                x2 = out(reg) _,
                a = inout(reg) self.a => _,
                a_lower = inout(reg) self.a.wrapping_byte_add(self.lower * self.row_bytes) => _,
                row_bytes = inout(reg) self.row_bytes => _,
                steps = inout(reg) self.steps => _,
                b = inout(reg) self.b => _,
                b_bytes = in(reg) ROW_BYTES,
                sums = inout(reg) self.rounding.sums => _,
                to = inout(reg) self.rounding.to => _,
                rows = inout(reg) self.rounding.rows => _,
                mask = in(kreg) self.rounding.mask,
                x = out(zmm_reg) _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Adds the products of the first `pairs` of one step of `N` rows, `row_bytes` apart, and of `HALVES` times 16 columns.
///
/// # Safety
/// The CPU has the features; so many pairs of each row, and of each of the halves, are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn step<const N: usize, const HALVES: usize, const AHEAD: bool>(
    sums: &mut [[__m512; HALVES]; N],
    a: *const u16,
    row_bytes: usize,
    b: *const u16,
    pairs: usize,
) {
    for pair in 0..pairs {
        // SAFETY: the caller's promise.
        unsafe {
            let b = b.byte_add(pair * ROW_BYTES);
            for half in if AHEAD { &[0, HALF_BYTES][..] } else { &[] } {
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_byte_add(AHEAD_BYTES + half).cast());
            }
            let columns: [__m512i; HALVES] =
                std::array::from_fn(|half| _mm512_loadu_si512(b.byte_add(half * HALF_BYTES).cast()));
            for (i, sums) in sums.iter_mut().enumerate() {
                let at = a.byte_add(i * row_bytes + 4 * pair).cast::<i32>();
                let x = as_pairs(_mm512_set1_epi32(at.read_unaligned()));
                for (sums, columns) in sums.iter_mut().zip(columns) {
                    *sums = _mm512_dpbf16_ps(*sums, x, as_pairs(columns));
                }
            }
        }
    }
}

/// The same bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn as_pairs(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, of which any are numbers.
    unsafe { std::mem::transmute(x) }
}
