//! The inner loop of [`gemm_simd`](super::gemm_simd): the sums of a few rows of `a` times a panel of `b`, in registers.

use crate::isa::Body;
use crate::kernels::gemm_block::Out;
use crate::kernels::gemm_lanes::{Lanes, Real};
use crate::kernels::gemm_stored::{FewRows, StoredRows};
use crate::kernels::raw::{opaque, prefetch, prefetch_l2};

/// Depth from which asking for the sums ahead of time costs nothing to speak of.
pub(super) const FAR: usize = 192;

/// Steps along the depth between requests for what the next group needs: a line of f32.
const CHUNK: usize = 16;

/// Depth below which a loop that is quick to begin is the faster one.
const SHORT: usize = 24;

/// Rows whose offsets are too many for the registers, unless they are known as the loop is compiled.
pub(super) const MANY: usize = 8;

/// Rows of levels with half as many registers.
pub(super) const FEW: usize = 4;

/// Groups of a few rows times a panel.
pub(super) struct Micro<L: Lanes> {
    pub(super) depth: usize,
    pub(super) a: *const L::Real,
    /// Reals between groups.
    pub(super) a_group: usize,
    /// Reals between numbers of neighbouring rows, whose parts lie next to each other.
    pub(super) a_row: usize,
    pub(super) a_step: usize,
    /// Rows of sums that a number makes.
    pub(super) parts: usize,
    pub(super) b: *const L::Real,
    pub(super) b_row: usize,
    pub(super) groups: usize,
    /// Rows of sums of each group: [`Lanes::ROWS`], unless there is one group only.
    pub(super) rows: usize,
    /// Lanes of the last vector of sums that exist.
    pub(super) last: usize,
    pub(super) out: Out<L::Real>,
    /// Whether to ask for the rows of `a` of the next group, and for its sums, where the group's own would come too late.
    pub(super) ahead: bool,
    pub(super) ahead_sums: bool,
    /// Whether to ask for the panel of `b` behind this one, which is in no core's own cache.
    pub(super) ahead_panel: bool,
    /// Whether `a` is packed, its last group filled up with zeros, and `b` large and read where it is stored.
    pub(super) few: bool,
}

impl<L: Lanes> Micro<L> {
    /// With `CUT`, the last vector of `b` is read in part, which takes longer.
    ///
    /// # Safety
    /// The CPU has the level; the factors are readable, with [`Micro::few`] as many numbers as [`Lanes::ROWS`] at each step of `a`, and
    /// the sums readable and writable.
    #[inline(always)]
    pub(super) unsafe fn by_rows<const VECTORS: usize, const CUT: bool>(self) {
        // Stored factors may lie like this too, eight columns of a transposed one.
        let packed = self.a_step == L::ROWS && self.a_row == self.parts;
        // Functions of their own: they are the same for every number that is computed in these vectors.
        // SAFETY: the caller's promise.
        unsafe {
            let whole = self.rows == L::ROWS && VECTORS > 1 && !CUT;
            let even = packed || self.parts == 1;
            let by_eight = L::ROWS == MANY && self.rows == MANY && self.parts == 1 && self.a_step == 1;
            if L::FEW_ROWS > 0 && self.few && !CUT {
                match self.rows {
                    1 => L::run(FewRows::<L, 1, VECTORS>(self)),
                    2 => L::run(FewRows::<L, 2, VECTORS>(self)),
                    3..=FEW => L::run(FewRows::<L, FEW, VECTORS>(self)),
                    _ => L::run(FewRows::<L, MANY, VECTORS>(self)),
                }
            } else if whole && even && L::groups::<VECTORS>(&self) {
                // All is done.
            } else if by_eight && self.depth >= SHORT {
                L::run(StoredRows::<L, VECTORS, CUT>(self));
            } else if whole && L::PACKED && L::ROWS == FEW && packed {
                L::run(Whole::<L, VECTORS, true>(self));
            } else if whole && L::PACKED && L::ROWS == FEW && even && self.depth >= SHORT {
                L::run(Whole::<L, VECTORS, false>(self));
            } else if L::ROWS == MANY && self.rows > FEW {
                L::run(Rows::<L, MANY, VECTORS, CUT>(self));
            } else if self.rows > 2 {
                L::run(Rows::<L, FEW, VECTORS, CUT>(self));
            } else if self.rows == 2 {
                L::run(Rows::<L, 2, VECTORS, CUT>(self));
            } else {
                L::run(Rows::<L, 1, VECTORS, CUT>(self));
            }
        }
    }
}

/// The inner loop for at most `M` rows. Made only in [`Micro::by_rows`], under its promise, and by tests of other loops.
pub(super) struct Rows<L: Lanes, const M: usize, const VECTORS: usize, const CUT: bool>(pub(super) Micro<L>);

impl<L: Lanes, const M: usize, const VECTORS: usize, const CUT: bool> Body for Rows<L, M, VECTORS, CUT> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: the promise of `by_rows`.
        unsafe { self.groups() }
    }
}

/// The inner loop for groups of [`FEW`] rows. Made only in [`Micro::by_rows`], under its promise.
struct Whole<L: Lanes, const VECTORS: usize, const PACKED: bool>(Micro<L>);

impl<L: Lanes, const VECTORS: usize, const PACKED: bool> Body for Whole<L, VECTORS, PACKED> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        // SAFETY: the promise of `by_rows`.
        unsafe { self.groups() }
    }
}

impl<L: Lanes, const VECTORS: usize, const PACKED: bool> Whole<L, VECTORS, PACKED> {
    /// Groups of [`FEW`] rows. With `PACKED` their numbers lie behind each other for each place along the depth: as offsets
    /// they take no registers. With each two steps, and then with each four, goes a request for what is needed later, as a
    /// core waits for many at once. The requests, and where there are fewer of them hiding where the factors are, also keep
    /// compilers from reading so far ahead that sums have to leave their registers, which takes a third of the speed where
    /// there are 16 of them.
    ///
    /// # Safety
    /// As for [`Micro::by_rows`].
    #[inline(always)]
    unsafe fn groups(&self) {
        let Micro { depth, a_group, a_row, b_row, groups, ahead_sums, ahead_panel, .. } = self.0;
        let offsets: [usize; FEW] = std::array::from_fn(|i| if PACKED { i } else { i * a_row });
        let a_step = if PACKED { FEW } else { self.0.a_step };
        let line = 64 / size_of::<L::Real>();
        // Each group asks for its share of the next panel, or for as much of it as it has steps for; whoever has nothing to ask
        // for, or no more, asks for the same line again.
        let share = if ahead_panel { (depth * VECTORS * L::LANES).div_ceil(line * groups) } else { 1 };
        for group in 0..groups {
            let mut a = self.0.a.wrapping_add(group * a_group);
            let mut b = self.0.b;
            let next = if ahead_panel { b.wrapping_add(depth * b_row + group * share * line) } else { a };
            let out = Out { at: self.0.out.at.wrapping_add(group * FEW * self.0.out.stride), ..self.0.out };
            // The group's own sums, or those of the next one where it has too few steps to wait for its own.
            let asked = out.at.wrapping_add(if ahead_sums { FEW * out.stride } else { 0 });
            // SAFETY: as many steps of both factors as the depth has, and the group's sums.
            unsafe {
                let mut sums = [[L::splat(L::Real::ZERO); VECTORS]; FEW];
                let pairs = depth / 2;
                for pair in 0..pairs.min(FEW) {
                    for j in 0..VECTORS {
                        prefetch(asked.wrapping_add(pair * out.stride + j * L::LANES));
                    }
                    (a, b) = two_steps::<L, VECTORS>(&mut sums, a, a_step, &offsets, b, b_row);
                }
                let mut pair = FEW;
                while pair + 2 <= pairs {
                    prefetch_l2(next.wrapping_add(((pair - FEW) / 2).min(share - 1) * line));
                    (a, b) =
                        two_steps::<L, VECTORS>(&mut sums, opaque(a), a_step, &offsets, opaque(b), b_row);
                    (a, b) =
                        two_steps::<L, VECTORS>(&mut sums, opaque(a), a_step, &offsets, opaque(b), b_row);
                    pair += 2;
                }
                if pair < pairs {
                    (a, b) =
                        two_steps::<L, VECTORS>(&mut sums, opaque(a), a_step, &offsets, opaque(b), b_row);
                }
                if depth % 2 == 1 {
                    step::<L, FEW, VECTORS, false>(&mut sums, a, &offsets, b, L::LANES);
                }
                self.0.write(&sums, out);
            }
        }
    }
}

impl<L: Lanes, const M: usize, const VECTORS: usize, const CUT: bool> Rows<L, M, VECTORS, CUT> {
    /// Groups of any rows.
    ///
    /// # Safety
    /// As for [`Micro::by_rows`].
    #[inline(always)]
    unsafe fn groups(&self) {
        let Micro {
            depth,
            a,
            a_group,
            a_row,
            a_step,
            parts,
            b,
            b_row,
            groups,
            rows,
            last,
            out,
            ahead,
            ahead_sums,
            ..
        } = self.0;
        // Rows that do not exist compute with one that does, for nothing.
        let row = |i: usize| i.min(rows - 1);
        // One part, or two.
        let (shift, odd) = (parts - 1, parts - 1);
        let offsets: [usize; M] = std::array::from_fn(|i| (row(i) >> shift) * a_row + (row(i) & odd));
        let asks = ahead || ahead_sums;
        let chunk = if asks { CHUNK } else { depth };
        for group in 0..groups {
            // SAFETY: rows of `a` of the group below `rows`, and the vectors of `b` of each step, as promised.
            unsafe {
                let mut a = a.add(group * a_group);
                let mut b = b;
                let out = Out { at: out.at.add(group * M * out.stride), ..out };
                let next = a.wrapping_add(a_group);
                if depth >= FAR {
                    for i in 0..M {
                        for j in 0..VECTORS {
                            prefetch(out.at.wrapping_add(row(i) * out.stride + j * L::LANES));
                        }
                    }
                }
                let mut sums = [[L::splat(L::Real::ZERO); VECTORS]; M];
                // Chunks keep the sums in memory between them, so that there is one only where nothing is asked for.
                let mut done = 0;
                while done < depth {
                    if asks {
                        self.ask(next, &offsets, done, out);
                    }
                    let steps = chunk.min(depth - done);
                    done += steps;
                    // Two at a time; more would read `b` so far ahead that it took registers from the sums.
                    for _ in 0..steps / 2 {
                        step::<L, M, VECTORS, CUT>(&mut sums, a, &offsets, b, last);
                        let (a_odd, b_odd) = (a.wrapping_add(a_step), b.wrapping_add(b_row));
                        step::<L, M, VECTORS, CUT>(&mut sums, a_odd, &offsets, b_odd, last);
                        (a, b) = (a_odd.wrapping_add(a_step), b_odd.wrapping_add(b_row));
                    }
                    if steps % 2 == 1 {
                        step::<L, M, VECTORS, CUT>(&mut sums, a, &offsets, b, last);
                        (a, b) = (a.wrapping_add(a_step), b.wrapping_add(b_row));
                    }
                }
                self.0.write(&sums, out);
            }
        }
    }
}

/// Two steps along the depth of [`FEW`] rows, and where the next ones begin.
///
/// # Safety
/// As for [`step`], at both places.
#[inline(always)]
unsafe fn two_steps<L: Lanes, const VECTORS: usize>(
    sums: &mut [[L::V; VECTORS]; FEW],
    a: *const L::Real,
    a_step: usize,
    offsets: &[usize; FEW],
    b: *const L::Real,
    b_row: usize,
) -> (*const L::Real, *const L::Real) {
    let (a_odd, b_odd) = (a.wrapping_add(a_step), b.wrapping_add(b_row));
    // SAFETY: the caller's promise.
    unsafe {
        step::<L, FEW, VECTORS, false>(sums, a, offsets, b, L::LANES);
        step::<L, FEW, VECTORS, false>(sums, a_odd, offsets, b_odd, L::LANES);
    }
    (a_odd.wrapping_add(a_step), b_odd.wrapping_add(b_row))
}

/// One step along the depth.
///
/// # Safety
/// The CPU has the level; `a` is readable at each offset, and the vectors of `b`, with `CUT` `last` lanes of
/// the last one.
#[inline(always)]
pub(super) unsafe fn step<L: Lanes, const M: usize, const VECTORS: usize, const CUT: bool>(
    sums: &mut [[L::V; VECTORS]; M],
    a: *const L::Real,
    offsets: &[usize; M],
    b: *const L::Real,
    last: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut v = [L::splat(L::Real::ZERO); VECTORS];
        for (j, v) in v.iter_mut().enumerate() {
            let from = b.add(j * L::LANES);
            *v = if CUT && j == VECTORS - 1 { L::load_part(from, last) } else { L::load(from) };
        }
        for i in 0..M {
            let x = L::splat(*a.add(offsets[i]));
            for j in 0..VECTORS {
                sums[i][j] = L::mul_add(x, v[j], sums[i][j]);
            }
        }
    }
}

impl<L: Lanes, const M: usize, const VECTORS: usize, const CUT: bool> Rows<L, M, VECTORS, CUT> {
    /// Asks for a part of what the next group needs, after `done` steps of this one: all of it at once would be more than a
    /// core can wait for.
    #[inline(always)]
    fn ask(&self, next: *const L::Real, offsets: &[usize; M], done: usize, out: Out<L::Real>) {
        if self.0.ahead {
            for offset in offsets {
                prefetch(next.wrapping_add(offset + done * self.0.a_step));
            }
        }
        if self.0.ahead_sums {
            for i in 0..2 {
                let line = out.at.wrapping_add((M + done / CHUNK * 2 + i) * out.stride);
                for j in 0..VECTORS {
                    prefetch(line.wrapping_add(j * L::LANES));
                }
            }
        }
    }
}

impl<L: Lanes> Micro<L> {
    /// # Safety
    /// As for [`Micro::by_rows`].
    #[inline(always)]
    pub(super) unsafe fn write<const M: usize, const VECTORS: usize>(
        &self,
        sums: &[[L::V; VECTORS]; M],
        out: Out<L::Real>,
    ) {
        let Micro { rows, last, .. } = *self;
        // SAFETY: as promised. What is added to is not read where its factor is zero.
        unsafe {
            let (alpha, beta) = (L::splat(out.alpha), L::splat(out.beta));
            if rows >= M && last == L::LANES {
                let adds = !out.beta.is_zero();
                for (i, sums) in sums.iter().enumerate() {
                    for (j, &sum) in sums.iter().enumerate() {
                        let at = out.at.add(i * out.stride + j * L::LANES);
                        let sum = L::mul(alpha, sum);
                        L::store(at, if adds { L::mul_add(beta, L::load(at), sum) } else { sum });
                    }
                }
                return;
            }
            for (i, sums) in sums.iter().enumerate() {
                if i >= rows {
                    break;
                }
                for (j, &sum) in sums.iter().enumerate() {
                    let at = out.at.add(i * out.stride + j * L::LANES);
                    let sum = L::mul(alpha, sum);
                    let whole = j < VECTORS - 1 || last == L::LANES;
                    match (whole, out.beta.is_zero()) {
                        (true, true) => L::store(at, sum),
                        (true, false) => L::store(at, L::mul_add(beta, L::load(at), sum)),
                        (false, true) => L::store_part(at, last, sum),
                        (false, false) => {
                            L::store_part(at, last, L::mul_add(beta, L::load_part(at, last), sum))
                        }
                    }
                }
            }
        }
    }
}
