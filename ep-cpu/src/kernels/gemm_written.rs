//! The inner loop of [`gemm_micro`](super::gemm_micro) for AVX-512, written out: eight rows of `a` by a panel of two or three
//! vectors of `b`, where both are whole, packed or as they are stored.
//!
//! Nothing but multipliers limits these steps, and between groups they stay busy only if the next one's steps come at once. With
//! loops as compilers make them products of 64 to 512 cubed take 3 to 8 % longer.

use crate::kernels::gemm_block::Out;
use crate::kernels::gemm_lanes::x86::Avx512;
use crate::kernels::gemm_lanes::{Lanes, Real};
use crate::kernels::gemm_micro::{MANY, Micro};
use std::arch::asm;
use std::arch::x86_64::{_mm512_setzero_pd, _mm512_setzero_ps};

/// Bytes of a line, and of a vector.
const LINE: usize = 64;

/// The number of a row in all lanes of a register, and its products with the vectors of `b` added to its sums.
macro_rules! row {
    ($real:tt, $at:literal, $x:literal, $($sum:literal + $b:literal),*) => {
        concat!(
            "vbroadcasts", $real, " zmm", $x, ", [", $at, "]\n",
            $("vfmadd231p", $real, " zmm", $sum, ", zmm", $x, ", zmm", $b, "\n"),*
        )
    };
}

/// One step along the depth.
macro_rules! step {
    ($real:tt, 3) => {
        concat!(
            "vmovups zmm24, [{b}]\n",
            "vmovups zmm25, [{b} + 64]\n",
            "vmovups zmm26, [{b} + 128]\n",
            row!($real, "{a}", 27, 0 + 24, 1 + 25, 2 + 26),
            row!($real, "{a} + {row}", 28, 3 + 24, 4 + 25, 5 + 26),
            row!($real, "{a} + 2*{row}", 29, 6 + 24, 7 + 25, 8 + 26),
            row!($real, "{a} + {rows}", 30, 9 + 24, 10 + 25, 11 + 26),
            row!($real, "{lower}", 27, 12 + 24, 13 + 25, 14 + 26),
            row!($real, "{lower} + {row}", 28, 15 + 24, 16 + 25, 17 + 26),
            row!($real, "{lower} + 2*{row}", 29, 18 + 24, 19 + 25, 20 + 26),
            row!($real, "{lower} + {rows}", 30, 21 + 24, 22 + 25, 23 + 26),
            "add {a}, {step}\n",
            "add {lower}, {step}\n",
            "add {b}, {b_row}\n",
        )
    };
    ($real:tt, 2) => {
        concat!(
            "vmovups zmm24, [{b}]\n",
            "vmovups zmm25, [{b} + 64]\n",
            row!($real, "{a}", 27, 0 + 24, 1 + 25),
            row!($real, "{a} + {row}", 28, 2 + 24, 3 + 25),
            row!($real, "{a} + 2*{row}", 29, 4 + 24, 5 + 25),
            row!($real, "{a} + {rows}", 30, 6 + 24, 7 + 25),
            row!($real, "{lower}", 27, 8 + 24, 9 + 25),
            row!($real, "{lower} + {row}", 28, 10 + 24, 11 + 25),
            row!($real, "{lower} + 2*{row}", 29, 12 + 24, 13 + 25),
            row!($real, "{lower} + {rows}", 30, 14 + 24, 15 + 25),
            "add {a}, {step}\n",
            "add {lower}, {step}\n",
            "add {b}, {b_row}\n",
        )
    };
}

/// Lines to ask for in one round of a loop: of a row's sums, of one of the next group's rows, the next one of a panel, and those of
/// two of the next group's rows.
macro_rules! ask {
    (sums 3) => {
        concat!("prefetcht0 [{asked} + 128]\n", ask!(sums 2))
    };
    (sums 2) => {
        "prefetcht0 [{asked}]\nprefetcht0 [{asked} + 64]\nadd {asked}, {by}\n"
    };
    (row "s") => {
        "prefetcht0 [{next}]\nadd {next}, {row}\n"
    };
    (row "d") => {
        "prefetcht0 [{next}]\nprefetcht0 [{next} + 64]\nadd {next}, {row}\n"
    };
    (panel) => {
        "prefetcht1 [{asked}]\nadd {asked}, {by}\n"
    };
    (rows) => {
        "prefetcht0 [{asked}]\nprefetcht0 [{asked} + {by}]\nadd {asked}, {row}\n"
    };
    (nothing) => {
        "/* {asked} {by} */"
    };
}

/// Where the loop is.
struct At<R> {
    /// The first row's number, and the fifth's.
    a: *const R,
    lower: *const R,
    /// Bytes between rows, and between neighbours along the depth.
    row: usize,
    step: usize,
    /// The panel's vectors, and bytes between them.
    b: *const R,
    b_row: usize,
}

/// `count` rounds, at least one: each asks for lines, from `asked` on and those `by` bytes apart, and takes some steps.
macro_rules! rounds {
    ($at:ident, $sums:ident [$($register:tt $i:tt $j:tt),*], $count:expr, $asked:expr, $by:expr, [$($next:expr)?], $ask:expr, $($step:expr),*) => {
        asm!(
            ".p2align 5",
            "2:",
            $ask,
            $($step,)*
            "dec {count}",
            "jnz 2b",
            count = inout(reg) $count => _,
            asked = inout(reg) $asked => _,
            by = in(reg) $by,
            $(next = inout(reg) $next => _,)?
            a = inout(reg) $at.a,
            lower = inout(reg) $at.lower,
            row = in(reg) $at.row,
            rows = in(reg) 3 * $at.row,
            step = in(reg) $at.step,
            b = inout(reg) $at.b,
            b_row = in(reg) $at.b_row,
            $(inout($register) $sums[$i][$j],)*
            out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
            out("zmm28") _, out("zmm29") _, out("zmm30") _,
            options(nostack, readonly),
        )
    };
}

macro_rules! groups {
    ($name:ident: $real:ty, $zero:ident, $letter:tt, $vectors:tt, [$($step:expr),*], [$($rows:expr),*], $registers:tt) => {
        /// # Safety
        /// As for [`Written::groups`].
        #[target_feature(enable = "avx512f")]
        unsafe fn $name(m: &Micro<Avx512<$real>>) {
            const SIZE: usize = size_of::<$real>();
            // Both parts of a complex number are rows.
            let row = m.a_row >> (m.parts - 1);
            debug_assert!(m.rows == MANY && (m.parts == 1 || m.a_step == MANY && row == 1));
            let asks_rows = m.ahead && m.a_step == 1;
            let next_sums = if m.ahead_sums { MANY * m.out.stride } else { 0 };
            // As much of the next panel as is this group's to ask for.
            let share = if m.ahead_panel { (m.depth * $vectors).div_ceil(m.groups) } else { 0 };
            for group in 0..m.groups {
                let a = m.a.wrapping_add(group * m.a_group);
                let next = m.b.wrapping_add(m.depth * m.b_row + group * share * LINE / SIZE);
                let out = Out { at: m.out.at.wrapping_add(group * MANY * m.out.stride), ..m.out };
                let mut at = At {
                    a,
                    lower: a.wrapping_add(4 * row),
                    row: row * SIZE,
                    step: m.a_step * SIZE,
                    b: m.b,
                    b_row: m.b_row * SIZE,
                };
                // SAFETY: as many steps of both factors as the depth has, and the group's sums, as promised. The registers are those of
                // the operands, and what is asked for is not read.
                unsafe {
                    let mut sums = [[$zero(); $vectors]; MANY];
                    let first = (m.depth / 2).min(MANY);
                    if first > 0 {
                        let asked = out.at.wrapping_add(next_sums);
                        // What the first steps of the next group's rows need, or this one's, which is there.
                        let next = if asks_rows { a.wrapping_add(m.a_group) } else { a };
                        let by = out.stride * SIZE;
                        rounds!(at, sums $registers, first, asked, by, [next], concat!(ask!(sums $vectors), ask!(row $letter)), $($step),*);
                    }
                    let mut left = m.depth - 2 * first;
                    if asks_rows {
                        let each = LINE / SIZE;
                        for line in 2 * MANY / each..m.depth / each {
                            let asked = a.wrapping_add(m.a_group + line * each);
                            rounds!(at, sums $registers, 4usize, asked, 4 * at.row, [], ask!(rows), $($rows),*);
                        }
                        left %= each;
                    }
                    let asks = (left / 4).min(share);
                    if asks > 0 {
                        rounds!(at, sums $registers, asks, next, LINE, [], ask!(panel), $($step,)* $($step),*);
                        left -= 4 * asks;
                    }
                    if left / 4 > 0 {
                        rounds!(at, sums $registers, left / 4, a, 0usize, [], ask!(panel), $($step,)* $($step),*);
                    }
                    if left % 4 > 0 {
                        rounds!(at, sums $registers, left % 4, a, 0usize, [], ask!(nothing), step!($letter, $vectors));
                    }
                    debug_assert_eq!(at.b, m.b.wrapping_add(m.depth * m.b_row), "steps of this group");
                    m.write(&sums, out);
                }
            }
        }
    };
}

groups! {
    f32_by_3: f32, _mm512_setzero_ps, "s", 3, [step!("s", 3), step!("s", 3)],
        [step!("s", 3), step!("s", 3), step!("s", 3), step!("s", 3)],
        ["zmm0" 0 0, "zmm1" 0 1, "zmm2" 0 2, "zmm3" 1 0, "zmm4" 1 1, "zmm5" 1 2, "zmm6" 2 0, "zmm7" 2 1, "zmm8" 2 2,
         "zmm9" 3 0, "zmm10" 3 1, "zmm11" 3 2, "zmm12" 4 0, "zmm13" 4 1, "zmm14" 4 2, "zmm15" 5 0, "zmm16" 5 1, "zmm17" 5 2,
         "zmm18" 6 0, "zmm19" 6 1, "zmm20" 6 2, "zmm21" 7 0, "zmm22" 7 1, "zmm23" 7 2]
}
groups! {
    f32_by_2: f32, _mm512_setzero_ps, "s", 2, [step!("s", 2), step!("s", 2)],
        [step!("s", 2), step!("s", 2), step!("s", 2), step!("s", 2)],
        ["zmm0" 0 0, "zmm1" 0 1, "zmm2" 1 0, "zmm3" 1 1, "zmm4" 2 0, "zmm5" 2 1, "zmm6" 3 0, "zmm7" 3 1,
         "zmm8" 4 0, "zmm9" 4 1, "zmm10" 5 0, "zmm11" 5 1, "zmm12" 6 0, "zmm13" 6 1, "zmm14" 7 0, "zmm15" 7 1]
}
groups! {
    f64_by_3: f64, _mm512_setzero_pd, "d", 3, [step!("d", 3), step!("d", 3)], [step!("d", 3), step!("d", 3)],
        ["zmm0" 0 0, "zmm1" 0 1, "zmm2" 0 2, "zmm3" 1 0, "zmm4" 1 1, "zmm5" 1 2, "zmm6" 2 0, "zmm7" 2 1, "zmm8" 2 2,
         "zmm9" 3 0, "zmm10" 3 1, "zmm11" 3 2, "zmm12" 4 0, "zmm13" 4 1, "zmm14" 4 2, "zmm15" 5 0, "zmm16" 5 1, "zmm17" 5 2,
         "zmm18" 6 0, "zmm19" 6 1, "zmm20" 6 2, "zmm21" 7 0, "zmm22" 7 1, "zmm23" 7 2]
}
groups! {
    f64_by_2: f64, _mm512_setzero_pd, "d", 2, [step!("d", 2), step!("d", 2)], [step!("d", 2), step!("d", 2)],
        ["zmm0" 0 0, "zmm1" 0 1, "zmm2" 1 0, "zmm3" 1 1, "zmm4" 2 0, "zmm5" 2 1, "zmm6" 3 0, "zmm7" 3 1,
         "zmm8" 4 0, "zmm9" 4 1, "zmm10" 5 0, "zmm11" 5 1, "zmm12" 6 0, "zmm13" 6 1, "zmm14" 7 0, "zmm15" 7 1]
}

/// What there are loops for.
pub(super) trait Written: Real {
    /// # Safety
    /// As for [`Lanes::groups`].
    unsafe fn groups<const VECTORS: usize>(m: &Micro<Avx512<Self>>)
    where
        Avx512<Self>: Lanes<Real = Self>;
}

impl Written for f32 {
    #[inline(always)]
    unsafe fn groups<const VECTORS: usize>(m: &Micro<Avx512<f32>>) {
        // SAFETY: the caller's promise.
        unsafe { if VECTORS == 2 { f32_by_2(m) } else { f32_by_3(m) } }
    }
}

impl Written for f64 {
    #[inline(always)]
    unsafe fn groups<const VECTORS: usize>(m: &Micro<Avx512<f64>>) {
        // SAFETY: the caller's promise.
        unsafe { if VECTORS == 2 { f64_by_2(m) } else { f64_by_3(m) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, Level};
    use crate::kernels::gemm_micro::Rows;
    use crate::kernels::testing::Rng;

    /// How the numbers of `a` lie.
    #[derive(Clone, Copy, Debug)]
    enum Layout {
        Packed,
        PackedComplex,
        Rows,
        Columns,
    }

    /// Both loops add up in the order of the depth, with FMAs: the same bits, and nothing written beside the sums.
    fn agree<R: Written, const VECTORS: usize>(rng: &mut Rng)
    where
        Avx512<R>: Lanes<Real = R>,
    {
        let lanes = <Avx512<R> as Lanes>::LANES;
        let mut numbers =
            |count: usize| -> Vec<R> { (0..count).map(|_| R::from_f32(rng.signed() as f32)).collect() };
        for depth in (0..70).chain([127, 128, 200]) {
            for layout in [Layout::Packed, Layout::PackedComplex, Layout::Rows, Layout::Columns] {
                for case in 0..8 {
                    let [ahead, ahead_sums, ahead_panel] = [1, 2, 4].map(|bit| case & bit != 0);
                    let groups = 1 + case % 3;
                    let (a_group, a_row, a_step, parts) = match layout {
                        Layout::Packed => (MANY * depth, 1, MANY, 1),
                        Layout::PackedComplex => (MANY * depth, 2, MANY, 2),
                        Layout::Rows => (MANY * (depth + 3), depth + 3, 1, 1),
                        Layout::Columns => (MANY, 1, MANY * groups + 5, 1),
                    };
                    let rows = groups * MANY;
                    let a = numbers(rows * (depth + 3) + depth * (rows + 5));
                    let b_row = VECTORS * lanes + if case & 1 == 0 { 0 } else { 3 };
                    let b = numbers(depth * b_row + VECTORS * lanes);
                    let stride = VECTORS * lanes + 1;
                    let old = numbers(rows * stride);
                    let (alpha, beta) = match case {
                        0..4 => (R::ONE, R::ZERO),
                        4..6 => (R::from_f32(0.75), R::ONE),
                        _ => (R::from_f32(-2.0), R::from_f32(0.5)),
                    };
                    let run = |written: bool| {
                        let mut c = old.clone();
                        let out = Out { at: c.as_mut_ptr(), stride, alpha, beta };
                        let micro = Micro::<Avx512<R>> {
                            depth,
                            a: a.as_ptr(),
                            a_group,
                            a_row,
                            a_step,
                            parts,
                            b: b.as_ptr(),
                            b_row,
                            groups,
                            rows: MANY,
                            last: lanes - case % 3,
                            out,
                            ahead,
                            ahead_sums,
                            ahead_panel,
                            few: false,
                        };
                        // SAFETY: the caller has seen the level; the factors and the sums have these sizes.
                        unsafe {
                            match written {
                                true => R::groups::<VECTORS>(&micro),
                                false => <Avx512<R> as Lanes>::run(Rows::<_, MANY, VECTORS, false>(micro)),
                            }
                        }
                        // SAFETY: numbers without padding, as bytes.
                        unsafe { c.align_to::<u8>().1.to_vec() }
                    };
                    assert!(run(true) == run(false), "{layout:?} x{VECTORS} depth {depth} case {case}");
                }
            }
        }
    }

    #[test]
    fn what_is_written_out_agrees_with_what_is_compiled() {
        if Isa::available().iter().all(|isa| isa.level() != Level::Avx512) {
            println!("skipped: no AVX-512");
            return;
        }
        let mut rng = Rng::new();
        agree::<f32, 2>(&mut rng);
        agree::<f32, 3>(&mut rng);
        agree::<f64, 2>(&mut rng);
        agree::<f64, 3>(&mut rng);
    }
}
