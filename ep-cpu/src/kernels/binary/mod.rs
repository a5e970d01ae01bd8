//! BroadcastElementwiseBinary: `dst = op(src0, src1)` with numpy broadcasting.
//!
//! f16 and bf16 compute in a wider type and round once. Integers wrap; dividing one by zero, or taking the
//! remainder, gives 0. `floor_div` and `floor_mod` follow Python's sign rules, `fmod` and `trunc_div` C's.
//! `max` and `min` give NaN if either operand is NaN. On bool, `add` is or, `mul` and, and the others are
//! those on the integers 0 and 1, stored as whether the result differs from zero. An integer to a negative
//! power is its reciprocal truncated. Comparisons and logical ops write bool; NaN counts as true.
//! `is_close` takes atol and rtol: `|a - b| <= atol + |rtol b|`, or equal (infinities of one sign are).
//! Backward ops take `dy` first, then `x` or `y`; their attributes are those of the forward op. The two
//! power gradients take `x`, then `dy`, and the scalar as attribute 0.

mod backward;
mod complex;
mod ops;
mod table;
#[cfg(test)]
mod tests;

use super::elem::Storage;
use super::engine::{Binary, Cost, Run, level_of, streams};
use super::formula::{Cell, Formula};
use super::grouped::{self, Function};
use super::operands::Rows;
use super::raw::prefetch;
use super::stream::{ASK_BYTES, NewLine, ask, is_near, suits_intel};
use crate::isa::{Body, Isa};
use ep_core::parallel::Parallel;
use ep_core::{DType, Result};
use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::slice;

pub use table::{OPS, lookup, rows};

/// The arguments of one launch.
#[derive(Clone, Copy, Debug)]
pub struct BinaryArgs<'a> {
    /// Shape of `src0`, outermost dimension first, at most 8 dimensions. Shapes are aligned at their last
    /// dimension and broadcast; the destination has the broadcast shape. No dimensions: one element.
    pub src0_dims: &'a [i64],
    /// Shape of `src1`.
    pub src1_dims: &'a [i64],
    /// The first element of the first source; contiguous, row-major.
    pub src0: *const u8,
    /// The first element of the second source; contiguous, row-major.
    pub src1: *const u8,
    /// The first element of the destination; contiguous, row-major.
    pub dst: *mut u8,
    /// Attributes 0 and 1 of the op.
    pub attr: [f64; 2],
}

/// The kernel of one (op, source dtype, destination dtype).
#[derive(Clone, Copy)]
pub struct BinaryKernel(Binary);

impl BinaryKernel {
    /// Runs the kernel.
    ///
    /// # Errors
    /// `InvalidArgument` for shapes that do not broadcast, and for a destination that is also a source
    /// but has another shape or element size; the first error of `par`.
    ///
    /// # Safety
    /// Each address is aligned to its element and valid for the elements of its shape; nothing else
    /// writes the sources or touches the destination meanwhile. The destination is the same address as a
    /// source or does not overlap it.
    #[inline]
    pub unsafe fn launch(&self, isa: Isa, par: &dyn Parallel, args: &BinaryArgs<'_>) -> Result<()> {
        let shapes = [args.src0_dims, args.src1_dims];
        // SAFETY: the caller's contract, passed on.
        unsafe { self.0.launch(isa, par, args.attr, shapes, [args.src0, args.src1], args.dst) }
    }

    fn of<O: Op<S, D>, S: Storage, D: Storage>() -> BinaryKernel {
        BinaryKernel(Binary {
            block: block::<O, S, D>,
            // Not compiled where it is not used.
            repeat: if const { repeats::<O, S, D>() } { Some(repeat::<O, S, D>) } else { None },
            src_size: size_of::<S>(),
            dst_size: size_of::<D>(),
            cost: O::COST,
            streams: O::VECTOR && streams::<S, D>(),
        })
    }

    fn formula<F: Formula<2>, S: Cell>() -> BinaryKernel {
        BinaryKernel(Binary {
            block: formula_block::<F, S>,
            repeat: None,
            src_size: size_of::<S>(),
            dst_size: size_of::<S>(),
            cost: Cost::Elementary,
            streams: S::STREAMS,
        })
    }
}

/// One supported combination.
#[derive(Clone, Copy)]
pub struct BinaryRow {
    /// Index into [`OPS`].
    pub op: usize,
    /// Dtype of both sources.
    pub src: DType,
    /// Destination dtype.
    pub dst: DType,
    /// What computes it.
    pub kernel: BinaryKernel,
}

/// Whether a loop with an operand of one element is compiled: one more for each op and dtype. Halves and bytes are written out instead,
/// which takes a stage fewer stores.
const fn repeats<O: Op<S, D>, S: Storage, D: Storage>() -> bool {
    let wide = matches!(
        (S::DTYPE, D::DTYPE),
        (DType::F64, DType::F64) | (DType::U32, DType::U32) | (DType::U64, DType::U64)
    );
    O::VECTOR && (streams::<S, D>() || wide && matches!(O::COST, Cost::Cheap))
}

/// An operation on two `S` that gives a `D`.
trait Op<S: Storage, D: Storage>: 'static {
    const COST: Cost;
    /// Whether to compile it for each instruction-set level.
    const VECTOR: bool = !matches!(Self::COST, Cost::Special);
    fn apply(a: S::Value, b: S::Value, attr: [f64; 2]) -> D::Value;
    /// Whether a result of [`Self::apply`] must be [repaired](Self::repair).
    #[inline(always)]
    fn is_lost(_result: &D) -> bool {
        false
    }
    /// The right result where the formula has lost it, which is rare; so loops over the formula stay simple.
    fn repair(_a: S::Value, _b: S::Value, result: D) -> D {
        result
    }
}

struct Map<'a, O, S, D> {
    src: [&'a [S]; 2],
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
        let Self { src: [a, b], dst, attr, ahead, .. } = self;
        if !streams::<S, D>() || ahead == 0 {
            return map::<O, S, D>(a, b, dst, attr);
        }
        let lanes = NewLine::new().elements::<D>().len();
        for at in (0..dst.len()).step_by(lanes) {
            let (a, b, to) = (&a[at..at + lanes], &b[at..at + lanes], &mut dst[at..at + lanes]);
            prefetch(a.as_ptr().wrapping_byte_add(ahead));
            prefetch(b.as_ptr().wrapping_byte_add(ahead));
            let mut line = NewLine::new();
            map::<O, S, D>(a, b, line.elements(), attr);
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
        let Map { src: [a, b], dst, attr, .. } = self.0;
        let (each, mut done) = (ASK_BYTES / size_of::<D>(), 0);
        while dst.len() - done >= each {
            let part = done..done + each;
            ask(dst[done..].as_mut_ptr());
            map::<O, S, D>(&a[part.clone()], &b[part.clone()], &mut dst[part], attr);
            done += each;
        }
        map::<O, S, D>(&a[done..], &b[done..], &mut dst[done..], attr);
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
fn map<O: Op<S, D>, S: Storage, D: Storage>(a: &[S], b: &[S], dst: &mut [MaybeUninit<D>], attr: [f64; 2]) {
    // By index, because setting up zipped iterators is a call that is not inlined, and blocks are short.
    let n = dst.len();
    let (a, b) = (&a[..n], &b[..n]);
    let mut lost = false;
    for i in 0..n {
        let result = D::store(O::apply(a[i].load(), b[i].load(), attr));
        lost |= O::is_lost(&result);
        dst[i].write(result);
    }
    if lost {
        for i in 0..n {
            let result = D::store(O::apply(a[i].load(), b[i].load(), attr));
            if O::is_lost(&result) {
                dst[i].write(O::repair(a[i].load(), b[i].load(), result));
            }
        }
    }
}

/// Of such of f16 a core of AMD's Zen 4 computes two short vectors in 0.76 to 0.9 of the time of a long one; the greater of two takes up to
/// twice as long that way, bf16 up to a tenth longer.
fn is_sum_or_product<O: 'static>() -> bool {
    [TypeId::of::<ops::Add>(), TypeId::of::<ops::Sub>(), TypeId::of::<ops::Mul>()]
        .contains(&TypeId::of::<O>())
}

/// # Safety
/// As [`super::engine::BinaryBlock`], with aligned elements of `S` and `D`.
unsafe fn block<O: Op<S, D>, S: Storage, D: Storage>(
    isa: Isa,
    attr: [f64; 2],
    a: *const u8,
    b: *const u8,
    dst: *mut u8,
    Run { n, ahead }: Run,
) {
    if S::BULK || D::BULK {
        // SAFETY: the caller's contract.
        return unsafe {
            let isa = if S::DTYPE == DType::F16 && is_sum_or_product::<O>() { isa.for_memory() } else { isa };
            grouped::run::<Grouped<O>, S, D, 2>(isa, attr, [a.cast(), b.cast()], dst.cast(), n)
        };
    }
    // SAFETY: `n` valid elements each by the caller's contract, which also excludes overlap with `dst`;
    // every bit pattern is a valid `S`.
    let (src, dst) = unsafe {
        let src: [&[S]; 2] = [slice::from_raw_parts(a.cast(), n), slice::from_raw_parts(b.cast(), n)];
        (src, slice::from_raw_parts_mut(dst.cast(), n))
    };
    let map = Map::<O, S, D> { src, dst, attr, ahead, op: PhantomData };
    let footprint = n * (2 * size_of::<S>() + size_of::<D>());
    if const { O::VECTOR && streams::<S, D>() } && ahead == 0 && is_near(footprint) {
        near(isa, map);
    } else if O::VECTOR {
        level_of::<S, D>(isa, O::COST, ahead).dispatch(map)
    } else {
        map.run()
    }
}

/// With `SECOND` the second operand is `one`, else the first. Made only where both and `dst` have what the rows say.
struct Repeat<O, S, D, const SECOND: bool> {
    many: *const S,
    one: *const S,
    dst: *mut D,
    rows: Rows<2>,
    attr: [f64; 2],
    op: PhantomData<O>,
}

impl<O: Op<S, D>, S: Storage, D: Storage, const SECOND: bool> Body for Repeat<O, S, D, SECOND> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Self { many, one, dst, rows: Rows { inner, rows, steps }, attr, .. } = self;
        for row in 0..rows {
            // SAFETY: what a `Repeat` is made with; every bit pattern is a valid `S`.
            let (many, one, dst) = unsafe {
                let dst = dst.add(row * inner).cast::<MaybeUninit<D>>();
                let many = slice::from_raw_parts(many.add(row * steps[0]), inner);
                (many, &*one.add(row * steps[1]), slice::from_raw_parts_mut(dst, inner))
            };
            map_repeated::<O, S, D, SECOND>(many, one, dst, attr);
        }
    }
}

/// [`map`] of an operand and an element, for ops of which no result is lost.
#[inline(always)]
fn map_repeated<O: Op<S, D>, S: Storage, D: Storage, const SECOND: bool>(
    many: &[S],
    one: &S,
    dst: &mut [MaybeUninit<D>],
    attr: [f64; 2],
) {
    let n = dst.len();
    let many = &many[..n];
    let one = one.load();
    for i in 0..n {
        let [a, b] = if SECOND { [many[i].load(), one] } else { [one, many[i].load()] };
        dst[i].write(D::store(O::apply(a, b, attr)));
    }
}

/// # Safety
/// As [`super::engine::RepeatBlock`], with aligned elements of `S` and `D`.
unsafe fn repeat<O: Op<S, D>, S: Storage, D: Storage>(
    isa: Isa,
    attr: [f64; 2],
    many: *const u8,
    one: *const u8,
    second: bool,
    dst: *mut u8,
    rows: Rows<2>,
) {
    // By the caller's contract there are so many valid elements, of which `dst` overlaps none.
    let (many, one, dst) = (many.cast::<S>(), one.cast::<S>(), dst.cast::<D>());
    let isa = level_of::<S, D>(isa, O::COST, 0);
    if second {
        isa.dispatch(Repeat::<O, S, D, true> { many, one, dst, rows, attr, op: PhantomData });
    } else {
        isa.dispatch(Repeat::<O, S, D, false> { many, one, dst, rows, attr, op: PhantomData });
    }
}

/// An [`Op`] on groups. None of those that f16 and bf16 have loses a result.
struct Grouped<O>(PhantomData<O>);

impl<O: Op<S, D>, S: Storage, D: Storage> Function<S, D, 2> for Grouped<O> {
    #[inline(always)]
    fn apply([a, b]: [S::Value; 2], attr: [f64; 2]) -> D::Value {
        O::apply(a, b, attr)
    }
}

/// # Safety
/// As [`super::engine::BinaryBlock`], with aligned elements of `S`.
unsafe fn formula_block<F: Formula<2>, S: Cell>(
    isa: Isa,
    attr: [f64; 2],
    a: *const u8,
    b: *const u8,
    dst: *mut u8,
    run: Run,
) {
    // SAFETY: the caller's contract.
    unsafe { S::run::<F, 2>(isa, attr, [a, b], dst, run) }
}
