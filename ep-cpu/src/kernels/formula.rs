//! Formulas over the functions of [`Math`], run on the elements of a launch.

use super::elem::Storage;
use super::engine::Run;
use super::lines::LINE;
use super::math::{Double, Math, Single};
use super::raw::prefetch;
use super::simd::{self, Kernel, Lanes, MAX_LANES, Vector};
use crate::isa::Isa;
use half::{bf16, f16};
use simd::Single as _;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// A function of `N` floating-point operands and the attributes, which are rounded to the type computed in.
pub(super) trait Formula<const N: usize>: 'static {
    /// What its elements are computed in, where they are not f64.
    const WIDTH: Width;
    /// Whether f16 and bf16 have code of their own, which is worth its size for what networks are made of.
    const OFTEN: bool = false;
    /// Whether many elements of f32 have, which compute several vectors in step.
    const MANY: bool = Self::OFTEN;
    fn apply<M: Math>(x: [M::V; N], attr: [M::V; 2]) -> M::V;
}

/// What f32 and narrower elements are computed in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// f32.
    Single,
    /// f64, but in f32 at levels that multiply and add with one rounding, and f16 and bf16 at all.
    Fused,
    /// f64, but f16 and bf16 in f32.
    Wide,
    /// f64.
    Double,
}

/// [`Formula::WIDTH`] by the word of a row.
macro_rules! width {
    (fused) => {
        Width::Fused
    };
    (wide) => {
        Width::Wide
    };
    (double) => {
        Width::Double
    };
    ($($other:ident)?) => {
        Width::Single
    };
}
pub(super) use width;

/// Whether a row has the word `often`: [`Formula::OFTEN`].
macro_rules! often {
    (often) => {
        true
    };
    ($($other:ident)?) => {
        false
    };
}
pub(super) use often;

/// Whether a row has the word `often` or `many`: [`Formula::MANY`].
macro_rules! many {
    (often) => {
        true
    };
    (many) => {
        true
    };
    ($($other:ident)?) => {
        false
    };
}
pub(super) use many;

/// A floating-point element that a formula runs on.
pub(super) trait Cell: Storage {
    /// Whether [`Self::run`] can store past the cache.
    const STREAMS: bool;

    /// Computes the elements of `run`.
    ///
    /// # Safety
    /// The sources are readable and `dst` is writable for those aligned elements of `Self`, and `dst`
    /// overlaps no source. A run past the cache is as [`Run`] says.
    unsafe fn run<F: Formula<N>, const N: usize>(
        isa: Isa,
        attr: [f64; 2],
        src: [*const u8; N],
        dst: *mut u8,
        run: Run,
    );
}

/// A loop over vectors of elements, written once for every level. What it calls must be inlined, hence no
/// closures and iterators over vectors: they would be functions of their own, compiled for the baseline.
trait Step<const N: usize> {
    type From: Copy;
    type To: Copy;
    fn lanes<L: Lanes>() -> usize;
    /// Computes as many elements as there are lanes, and stores them past the cache if they are to `stream`.
    ///
    /// # Safety
    /// The sources are readable and `dst` is writable for that many; to stream, `dst` is aligned to them, or to a line where
    /// that is less.
    unsafe fn step<L: Lanes>(&self, src: [*const Self::From; N], dst: *mut Self::To, stream: bool);
    /// Copies `n` elements, fewer than lanes, to where there is room for all, and one of them to the others.
    ///
    /// # Safety
    /// `from` is readable for `n` elements, more than none, and `to` is writable for as many as there are lanes.
    #[inline(always)]
    unsafe fn extend<L: Lanes>(from: *const Self::From, n: usize, to: *mut Self::From) {
        // SAFETY: the caller's contract.
        unsafe {
            let first = from.read();
            for i in 0..Self::lanes::<L>() {
                to.add(i).write(first);
            }
            from.copy_to_nonoverlapping(to, n);
        }
    }
    /// Copies the first `n` of as many elements as there are lanes.
    ///
    /// # Safety
    /// `from` is readable for those lanes, and `to` is writable for `n` elements, which are fewer.
    #[inline(always)]
    unsafe fn cut<L: Lanes>(from: *const Self::To, n: usize, to: *mut Self::To) {
        // SAFETY: the caller's contract.
        unsafe { from.copy_to_nonoverlapping(to, n) };
    }
}

/// The elements of a [`Run`] by a [`Step`], of which there is at least one.
struct Each<S: Step<N>, const N: usize> {
    step: S,
    src: [*const S::From; N],
    dst: *mut S::To,
    run: Run,
}

impl<S: Step<N>, const N: usize> Kernel for Each<S, N> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let lanes = S::lanes::<L>();
        let Run { n: count, ahead } = self.run;
        let (mut src, mut dst, mut n) = (self.src, self.dst, count);
        let mut buffers = [[const { MaybeUninit::<S::From>::uninit() }; MAX_LANES]; N];
        let mut out = [const { MaybeUninit::<S::To>::uninit() }; MAX_LANES];
        if n < lanes {
            for k in 0..N {
                let start = buffers[k].as_mut_ptr().cast::<S::From>();
                // SAFETY: there are `n` elements, more than none, and the buffer has room for all lanes.
                unsafe { S::extend::<L>(src[k], n, start) };
                src[k] = start;
            }
            dst = out.as_mut_ptr().cast();
            n = lanes;
        }
        let last = n - lanes;
        // The second vector is the first whose address in the destination is aligned, and the last ends where
        // the elements do: either may compute results of its neighbour again.
        // One of many vectors in step is aligned enough at a line.
        let aligned = lanes.min(LINE / size_of::<S::To>());
        let next = lanes - dst.addr() / size_of::<S::To>() % aligned;
        let mut i = 0;
        loop {
            let mut at = src;
            // SAFETY: `i + lanes` is at most `n`: the elements that `each` was promised, or the buffers,
            // which hold `MAX_LANES`.
            unsafe {
                for k in 0..N {
                    at[k] = src[k].add(i);
                    if ahead != 0 {
                        for line in (0..lanes * size_of::<S::From>()).step_by(LINE) {
                            prefetch(at[k].wrapping_byte_add(ahead + line));
                        }
                    }
                }
                self.step.step::<L>(at, dst.add(i), ahead != 0);
            }
            if i == last {
                break;
            }
            i = (if i == 0 { next } else { i + lanes }).min(last);
        }
        if count < lanes {
            // SAFETY: the loop has written `lanes` values, and `self.dst` has `count` elements, which are
            // fewer.
            unsafe { S::cut::<L>(out.as_ptr().cast(), count, self.dst) };
        }
    }
}

/// Computes the elements of `run`.
///
/// # Safety
/// The sources are readable and `dst` is writable for them, and `dst` overlaps no source. A run past the cache is as
/// [`Run`] says.
#[inline]
unsafe fn each<S: Step<N>, const N: usize>(
    isa: Isa,
    step: S,
    src: [*const S::From; N],
    dst: *mut S::To,
    run: Run,
) {
    if run.n > 0 {
        simd::dispatch(isa, Each { step, src, dst, run });
    }
}

/// From so many elements on, a formula computes several vectors in step where it may ([`Formula::MANY`]). Of fewer, too many would
/// be computed twice.
const MANY_FROM: usize = 256;

/// A formula on f32 elements: `MANY`, or some.
struct OnF32<F, const MANY: bool>([f64; 2], PhantomData<F>);

impl<F, const MANY: bool> OnF32<F, MANY> {
    /// [`Step::step`] with vectors `V`.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn on<V: simd::Single, const N: usize>(&self, src: [*const f32; N], dst: *mut f32, stream: bool)
    where
        F: Formula<N>,
    {
        let mut x = [V::splat(0.0); N];
        for i in 0..N {
            // SAFETY: the caller's contract.
            x[i] = unsafe { V::load(src[i]) };
        }
        let y = on_lanes::<F, V, N, false>(x, self.0);
        // SAFETY: as above.
        unsafe { if stream { y.stream(dst) } else { y.store(dst) } }
    }
}

impl<F: Formula<N>, const N: usize, const MANY: bool> Step<N> for OnF32<F, MANY> {
    type From = f32;
    type To = f32;

    #[inline(always)]
    fn lanes<L: Lanes>() -> usize {
        if MANY { L::ManyF32::LANES } else { L::F32::LANES }
    }

    #[inline(always)]
    unsafe fn extend<L: Lanes>(from: *const f32, n: usize, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { L::F32::load_part(from, n).store(to) };
    }

    #[inline(always)]
    unsafe fn cut<L: Lanes>(from: *const f32, n: usize, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { L::F32::load(from).store_part(to, n) };
    }

    #[inline(always)]
    unsafe fn step<L: Lanes>(&self, src: [*const f32; N], dst: *mut f32, stream: bool) {
        // SAFETY: the caller's contract.
        unsafe {
            if MANY {
                self.on::<L::ManyF32, N>(src, dst, stream);
            } else {
                self.on::<L::F32, N>(src, dst, stream);
            }
        }
    }
}

/// A formula on lanes of f32, or of `HALVES`: what is stored as f16 or bf16.
#[inline(always)]
fn on_lanes<F: Formula<N>, V: simd::Single, const N: usize, const HALVES: bool>(
    x: [V; N],
    [a0, a1]: [f64; 2],
) -> V {
    let single = match F::WIDTH {
        Width::Single => true,
        Width::Fused => HALVES || V::FUSED,
        Width::Wide => HALVES,
        Width::Double => false,
    };
    if single {
        return F::apply::<Single<V>>(x, [V::splat(a0), V::splat(a1)]);
    }
    let mut wide = [V::Wide::splat(0.0); N];
    for i in 0..N {
        wide[i] = x[i].widen();
    }
    V::narrow(F::apply::<Double<V::Wide>>(wide, [V::Wide::splat(a0), V::Wide::splat(a1)]))
}

/// A formula on f64 elements.
struct OnF64<F>([f64; 2], PhantomData<F>);

impl<F: Formula<N>, const N: usize> Step<N> for OnF64<F> {
    type From = f64;
    type To = f64;

    #[inline(always)]
    fn lanes<L: Lanes>() -> usize {
        L::F64::LANES
    }

    #[inline(always)]
    unsafe fn extend<L: Lanes>(from: *const f64, n: usize, to: *mut f64) {
        // SAFETY: the caller's contract.
        unsafe { L::F64::load_part(from, n).store(to) };
    }

    #[inline(always)]
    unsafe fn cut<L: Lanes>(from: *const f64, n: usize, to: *mut f64) {
        // SAFETY: the caller's contract.
        unsafe { L::F64::load(from).store_part(to, n) };
    }

    #[inline(always)]
    unsafe fn step<L: Lanes>(&self, src: [*const f64; N], dst: *mut f64, stream: bool) {
        let [a0, a1] = self.0;
        let mut x = [L::F64::splat(0.0); N];
        for i in 0..N {
            // SAFETY: the caller's contract.
            x[i] = unsafe { L::F64::load(src[i]) };
        }
        let y = F::apply::<Double<L::F64>>(x, [L::F64::splat(a0), L::F64::splat(a1)]);
        // SAFETY: as above.
        unsafe { if stream { y.stream(dst) } else { y.store(dst) } }
    }
}

impl Cell for f32 {
    const STREAMS: bool = true;

    unsafe fn run<F: Formula<N>, const N: usize>(
        isa: Isa,
        attr: [f64; 2],
        src: [*const u8; N],
        dst: *mut u8,
        run: Run,
    ) {
        let (src, dst) = (src.map(<*const u8>::cast), dst.cast());
        // SAFETY: the caller's contract.
        unsafe {
            if const { F::MANY } && run.n >= MANY_FROM {
                each(isa, OnF32::<F, true>(attr, PhantomData), src, dst, run);
            } else {
                each(isa, OnF32::<F, false>(attr, PhantomData), src, dst, run);
            }
        }
    }
}

impl Cell for f64 {
    const STREAMS: bool = true;

    unsafe fn run<F: Formula<N>, const N: usize>(
        isa: Isa,
        attr: [f64; 2],
        src: [*const u8; N],
        dst: *mut u8,
        run: Run,
    ) {
        // SAFETY: the caller's contract.
        unsafe { each(isa, OnF64(attr, PhantomData::<F>), src.map(<*const u8>::cast), dst.cast(), run) }
    }
}

/// Elements of f16 or bf16 that are converted at a time: with their f32 copies well within a first-level
/// cache.
const CHUNK: usize = 1024;

/// Copies of a chunk, where no vector lies across two lines.
#[repr(align(64))]
struct Wide([MaybeUninit<f32>; CHUNK]);

impl Wide {
    const NEW: Wide = Wide([const { MaybeUninit::uninit() }; CHUNK]);
}

/// f16 and bf16 share the code of f32, between two conversions, unless a formula is used often.
macro_rules! narrow {
    ($($t:ty, $load:ident, $store:ident, $direct:ident, $widen:ident, $narrow:ident;)*) => {$(
        /// A formula on elements that are converted in registers: `MANY`, or some.
        struct $direct<F, const MANY: bool>([f64; 2], PhantomData<F>);

        impl<F, const MANY: bool> $direct<F, MANY> {
            /// [`Step::step`] with vectors `V`.
            ///
            /// # Safety
            /// As there.
            #[inline(always)]
            unsafe fn on<V: simd::Single, const N: usize>(&self, src: [*const $t; N], dst: *mut $t)
            where
                F: Formula<N>,
            {
                let mut x = [V::splat(0.0); N];
                for i in 0..N {
                    // SAFETY: the caller's contract.
                    x[i] = unsafe { V::$load(src[i]) };
                }
                // SAFETY: as above.
                unsafe { on_lanes::<F, V, N, true>(x, self.0).$store(dst) }
            }
        }

        impl<F: Formula<N>, const N: usize, const MANY: bool> Step<N> for $direct<F, MANY> {
            type From = $t;
            type To = $t;

            #[inline(always)]
            fn lanes<L: Lanes>() -> usize {
                if MANY { L::ManyF32::LANES } else { L::F32::LANES }
            }

            #[inline(always)]
            unsafe fn step<L: Lanes>(&self, src: [*const $t; N], dst: *mut $t, _: bool) {
                // SAFETY: the caller's contract.
                unsafe {
                    if MANY {
                        self.on::<L::ManyF32, N>(src, dst);
                    } else {
                        self.on::<L::F32, N>(src, dst);
                    }
                }
            }
        }

        struct $widen;

        impl Step<1> for $widen {
            type From = $t;
            type To = f32;

            #[inline(always)]
            fn lanes<L: Lanes>() -> usize {
                L::F32::LANES
            }

            #[inline(always)]
            unsafe fn step<L: Lanes>(&self, [src]: [*const $t; 1], dst: *mut f32, _: bool) {
                // SAFETY: the caller's contract.
                unsafe { L::F32::$load(src).store(dst) }
            }
        }

        struct $narrow;

        impl Step<1> for $narrow {
            type From = f32;
            type To = $t;

            #[inline(always)]
            fn lanes<L: Lanes>() -> usize {
                L::F32::LANES
            }

            #[inline(always)]
            unsafe fn step<L: Lanes>(&self, [src]: [*const f32; 1], dst: *mut $t, _: bool) {
                // SAFETY: the caller's contract.
                unsafe { L::F32::load(src).$store(dst) }
            }
        }

        impl Cell for $t {
            const STREAMS: bool = false;

            unsafe fn run<F: Formula<N>, const N: usize>(
                isa: Isa,
                attr: [f64; 2],
                src: [*const u8; N],
                dst: *mut u8,
                Run { n, .. }: Run,
            ) {
                if F::OFTEN {
                    let (src, dst, run) = (src.map(<*const u8>::cast), dst.cast(), Run::cached(n));
                    // SAFETY: the caller's contract.
                    return unsafe {
                        if const { F::MANY } && n >= MANY_FROM {
                            each(isa, $direct::<F, true>(attr, PhantomData), src, dst, run);
                        } else {
                            each(isa, $direct::<F, false>(attr, PhantomData), src, dst, run);
                        }
                    };
                }
                let mut wide = [const { Wide::NEW }; N];
                let mut out = const { Wide::NEW };
                for start in (0..n).step_by(CHUNK) {
                    let len = CHUNK.min(n - start);
                    let run = Run::cached(len);
                    // SAFETY: `start + len` is at most `n`, and `len` at most what the buffers hold; each
                    // call writes `len` elements of the buffer that the next one reads.
                    unsafe {
                        for (to, from) in wide.iter_mut().zip(src) {
                            let from = from.cast::<$t>().add(start);
                            each(isa, $widen, [from], to.0.as_mut_ptr().cast(), run);
                        }
                        let src = wide.each_ref().map(|buffer| buffer.0.as_ptr().cast());
                        f32::run::<F, N>(isa, attr, src, out.0.as_mut_ptr().cast(), run);
                        each(isa, $narrow, [out.0.as_ptr().cast()], dst.cast::<$t>().add(start), run);
                    }
                }
            }
        }
    )*};
}
narrow! {
    f16, load_f16, store_f16, OnF16, WidenF16, NarrowF16;
    bf16, load_bf16, store_bf16, OnBf16, WidenBf16, NarrowBf16;
}
