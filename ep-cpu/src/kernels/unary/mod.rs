//! ElementwiseUnary: `dst[i] = op(src[i])`.
//!
//! f16 and bf16 compute in a wider type and round once. Integers wrap. What is not obvious per op:
//! `relu`, `hard_tanh` and the shrinks keep NaN, `square_relu` and `sign` give 0 for it; `round` and
//! `rint` both round ties to even; gated activations are products, so that `silu(-inf)` is NaN as
//! elsewhere; rounding ops, `nan_assign` and `is_*` on integers do what they do to whole finite numbers.
//! Attributes: `elu`, `celu`, `leaky_relu`, `soft_shrink` alpha; `hard_shrink` lambda; `hard_tanh` min, max;
//! `soft_plus` beta, threshold; `threshold` threshold, value. Others ignore them.

mod ops;
mod table;
#[cfg(test)]
pub(super) mod tests;
#[cfg(all(test, target_arch = "x86_64"))]
mod underflow_tests;

use super::elem::Storage;
use super::engine::{Cost, Run, Unary, UnaryBlock, level_of, streams};
use super::formula::{Cell, Formula};
use super::grouped::{self, Function};
use super::raw::prefetch;
use super::stream::{ASK_BYTES, NewLine, ask, is_near, suits_intel};
use crate::isa::{Body, Isa};
use ep_core::parallel::Parallel;
use ep_core::{DType, Result};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::slice;

pub(super) use super::math::fast_gelu_argument;
pub(crate) use ops::{product, quick_gelu_argument};
pub use table::{OPS, lookup, rows};

/// The arguments of one launch.
#[derive(Clone, Copy, Debug)]
pub struct UnaryArgs {
    /// Elements; 0 does nothing.
    pub count: usize,
    /// The first source element.
    pub src: *const u8,
    /// The first destination element.
    pub dst: *mut u8,
    /// Attributes 0 and 1 of the op.
    pub attr: [f64; 2],
}

/// The kernel of one (op, source dtype, destination dtype).
#[derive(Clone, Copy)]
pub struct UnaryKernel(Unary);

impl UnaryKernel {
    /// Runs the kernel.
    ///
    /// # Errors
    /// `InvalidArgument` when `src` and `dst` are one address but their dtypes differ in size; the first
    /// error of `par`.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for `count` elements of the kernel's dtypes, both aligned to
    /// their element, and nothing else writes `src` or touches `dst` meanwhile. They are the same address
    /// or do not overlap.
    #[inline]
    pub unsafe fn launch(&self, isa: Isa, par: &dyn Parallel, args: &UnaryArgs) -> Result<()> {
        // SAFETY: the caller's contract, passed on.
        unsafe { self.0.launch(isa, par, args.attr, args.count, args.src, args.dst) }
    }

    pub(super) fn of<O: Op<S, D>, S: Storage, D: Storage>() -> UnaryKernel {
        UnaryKernel(Unary {
            block: block::<O, S, D>,
            src_size: size_of::<S>(),
            dst_size: size_of::<D>(),
            cost: O::COST,
            streams: O::VECTOR && streams::<S, D>(),
        })
    }

    /// A kernel that is not an [`Op`]: `block` computes elements of `S` to elements of `D`, few instructions each.
    pub(super) fn cheap<S: Storage, D: Storage>(block: UnaryBlock) -> UnaryKernel {
        UnaryKernel(Unary {
            block,
            src_size: size_of::<S>(),
            dst_size: size_of::<D>(),
            cost: Cost::Cheap,
            streams: false,
        })
    }

    fn formula<F: Formula<1>, S: Cell>() -> UnaryKernel {
        UnaryKernel::formulas::<S>(formula_block::<F, S>)
    }

    /// `G` where the first attribute is below 0.
    fn formula_by_sign<F: Formula<1>, G: Formula<1>, S: Cell>() -> UnaryKernel {
        UnaryKernel::formulas::<S>(formula_block_by_sign::<F, G, S>)
    }

    fn formulas<S: Cell>(block: UnaryBlock) -> UnaryKernel {
        UnaryKernel(Unary {
            block,
            src_size: size_of::<S>(),
            dst_size: size_of::<S>(),
            cost: Cost::Elementary,
            streams: S::STREAMS,
        })
    }
}

/// One supported combination.
#[derive(Clone, Copy)]
pub struct UnaryRow {
    /// Index into [`OPS`].
    pub op: usize,
    /// Source dtype.
    pub src: DType,
    /// Destination dtype.
    pub dst: DType,
    /// What computes it.
    pub kernel: UnaryKernel,
}

/// An operation from `S` to `D`.
pub(super) trait Op<S: Storage, D: Storage>: 'static {
    const COST: Cost;
    /// Whether to compile it for each instruction-set level.
    const VECTOR: bool = !matches!(Self::COST, Cost::Special);
    fn apply(x: S::Value, attr: [f64; 2]) -> D::Value;
}

struct Map<'a, O, S, D> {
    src: &'a [S],
    dst: &'a mut [MaybeUninit<D>],
    attr: [f64; 2],
    /// As in [`Run`].
    ahead: usize,
    op: PhantomData<O>,
}

impl<O: Op<S, D>, S: Storage, D: Storage> Body for Map<'_, O, S, D> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Self { src, dst, attr, ahead, .. } = self;
        if !streams::<S, D>() || ahead == 0 {
            return map::<O, S, D>(src, dst, attr);
        }
        let lanes = NewLine::new().elements::<D>().len();
        for at in (0..dst.len()).step_by(lanes) {
            let (from, to) = (&src[at..at + lanes], &mut dst[at..at + lanes]);
            prefetch(from.as_ptr().wrapping_byte_add(ahead));
            let mut line = NewLine::new();
            map::<O, S, D>(from, line.elements(), attr);
            // SAFETY: the destination is lines at a line, and `map` writes as many elements as it is given room for.
            unsafe { line.store(to.as_mut_ptr().cast()) };
        }
    }
}

/// The same, to lines that are asked for before.
struct Asking<'a, O, S, D>(Map<'a, O, S, D>);

impl<O: Op<S, D>, S: Storage, D: Storage> Body for Asking<'_, O, S, D> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Map { src, dst, attr, .. } = self.0;
        let (each, mut done) = (ASK_BYTES / size_of::<D>(), 0);
        while dst.len() - done >= each {
            let part = done..done + each;
            ask(dst[done..].as_mut_ptr());
            map::<O, S, D>(&src[part.clone()], &mut dst[part], attr);
            done += each;
        }
        map::<O, S, D>(&src[done..], &mut dst[done..], attr);
    }
}

/// A loop that second-level cache holds. Out of line, as small launches pass by here.
#[inline(never)]
fn near<O: Op<S, D>, S: Storage, D: Storage>(isa: Isa, map: Map<'_, O, S, D>) {
    if suits_intel() {
        isa.dispatch(Asking(map));
    } else {
        level_of::<S, D>(isa, O::COST, 0).dispatch(map);
    }
}

// Slices as parameters of their own tell the compiler that they do not alias; inside a struct they do not.
#[inline(always)]
fn map<O: Op<S, D>, S: Storage, D: Storage>(src: &[S], dst: &mut [MaybeUninit<D>], attr: [f64; 2]) {
    // By index, because setting up zipped iterators is a call that is not inlined, and blocks are short.
    let n = dst.len();
    let src = &src[..n];
    for i in 0..n {
        dst[i].write(D::store(O::apply(src[i].load(), attr)));
    }
}

/// # Safety
/// As [`super::engine::UnaryBlock`], with aligned elements of `S` and `D`.
unsafe fn block<O: Op<S, D>, S: Storage, D: Storage>(
    isa: Isa,
    attr: [f64; 2],
    src: *const u8,
    dst: *mut u8,
    Run { n, ahead }: Run,
) {
    if S::BULK || D::BULK {
        // Some processes of a core of AMD's Zen 4 take twice as long for longer vectors of these past the cache, others not.
        let isa = if (S::DTYPE, D::DTYPE) == (DType::BF16, DType::F32) { isa.for_memory() } else { isa };
        // SAFETY: the caller's contract.
        return unsafe { grouped::run::<Grouped<O>, S, D, 1>(isa, attr, [src.cast()], dst.cast(), n) };
    }
    // SAFETY: `n` valid elements each by the caller's contract, which also excludes overlap; every bit
    // pattern is a valid `S`.
    let (src, dst) =
        unsafe { (slice::from_raw_parts(src.cast(), n), slice::from_raw_parts_mut(dst.cast(), n)) };
    let map = Map::<O, S, D> { src, dst, attr, ahead, op: PhantomData };
    let footprint = n * (size_of::<S>() + size_of::<D>());
    if const { O::VECTOR && streams::<S, D>() } && ahead == 0 && is_near(footprint) {
        near(isa, map);
    } else if O::VECTOR {
        level_of::<S, D>(isa, O::COST, ahead).dispatch(map)
    } else {
        map.run()
    }
}

/// An [`Op`] on groups.
struct Grouped<O>(PhantomData<O>);

impl<O: Op<S, D>, S: Storage, D: Storage> Function<S, D, 1> for Grouped<O> {
    #[inline(always)]
    fn apply([x]: [S::Value; 1], attr: [f64; 2]) -> D::Value {
        O::apply(x, attr)
    }
}

/// # Safety
/// As [`super::engine::UnaryBlock`], with aligned elements of `S`.
unsafe fn formula_block<F: Formula<1>, S: Cell>(
    isa: Isa,
    attr: [f64; 2],
    src: *const u8,
    dst: *mut u8,
    run: Run,
) {
    // SAFETY: the caller's contract.
    unsafe { S::run::<F, 1>(isa, attr, [src], dst, run) }
}

/// # Safety
/// As for [`formula_block`].
unsafe fn formula_block_by_sign<F: Formula<1>, G: Formula<1>, S: Cell>(
    isa: Isa,
    attr: [f64; 2],
    src: *const u8,
    dst: *mut u8,
    run: Run,
) {
    let block = if attr[0] < 0.0 { formula_block::<G, S> } else { formula_block::<F, S> };
    // SAFETY: the caller's contract.
    unsafe { block(isa, attr, src, dst, run) }
}
