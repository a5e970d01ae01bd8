//! The least and greatest of floating-point numbers, by vectors: what the compiler makes of the loops in `rows` and `columns`,
//! where NaN has to come through, takes longer than memory does, and it converts halves without the instructions for that.

use super::CHUNK;
use super::fold::End;
use super::rows::{AHEAD, Chunks};
use super::source::Source;
use crate::isa::{Isa, Level};
use crate::kernels::elem::Storage;
use crate::kernels::num::{Float, Number};
use crate::kernels::simd::{self, Kernel, Lanes, MAX_LANES, Mask, Vector};
use crate::kernels::sink::prefetch;
use crate::kernels::stream::suits_intel;
use half::{bf16, f16};
use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Combines what `chunks` says.
///
/// # Panics
/// For other types than floating-point numbers.
///
/// # Safety
/// What is said of [`Chunks`].
pub(super) unsafe fn run<S: 'static, A: 'static>(isa: Isa, end: End, chunks: &Chunks<S, A>) {
    let &Chunks { src, reduced, first, of, count, out } = chunks;
    let types = (TypeId::of::<S>(), TypeId::of::<A>());
    macro_rules! of_types {
        ($($s:ty, $a:ty;)*) => {
            $(if types == (TypeId::of::<$s>(), TypeId::of::<$a>()) {
                let chunks = &Chunks::<$s, $a> { src: src.cast(), reduced, first, of, count, out: out.cast() };
                match end {
                    End::Least => simd::dispatch(isa, Extremes::<$s, $a, Least>(chunks, PhantomData)),
                    End::Greatest => simd::dispatch(isa, Extremes::<$s, $a, Greatest>(chunks, PhantomData)),
                }
                return;
            })*
        };
    }
    of_types! { f32, f32; f16, f32; bf16, f32; f64, f64; }
    unreachable!("only floating-point numbers have a value that does not compare");
}

/// Combines `count` rows `stride` apart with what was found of their columns, as far as there are whole vectors of them: how many
/// columns that was, none of other types than floating-point numbers.
///
/// # Safety
/// Each of the rows is readable for `acc.len()` elements; called inside of [`simd::dispatch`] at this level.
#[inline(always)]
pub(super) unsafe fn columns<L: Lanes, S: 'static, A: 'static>(
    end: End,
    acc: &mut [A],
    row: *const S,
    count: usize,
    stride: usize,
) -> usize {
    let types = (TypeId::of::<S>(), TypeId::of::<A>());
    let (n, acc) = (acc.len(), acc.as_mut_ptr());
    macro_rules! of_types {
        ($($s:ty, $a:ty, $lanes:ident;)*) => {
            $(if types == (TypeId::of::<$s>(), TypeId::of::<$a>()) {
                let (acc, row) = (acc.cast::<$a>(), row.cast::<$s>());
                // SAFETY: the caller's promise; these are the types.
                return unsafe {
                    match end {
                        End::Least => side_by_side::<L::$lanes, $s, Least>(acc, n, row, count, stride),
                        End::Greatest => side_by_side::<L::$lanes, $s, Greatest>(acc, n, row, count, stride),
                    }
                };
            })*
        };
    }
    of_types! { f32, f32, F32; f16, f32, F32; bf16, f32, F32; f64, f64, F64; }
    0
}

/// The extreme of `count` elements, of which there is at least one, and where it is first; NaN and its place if there is one.
/// Nothing for other types than floating-point numbers, nor at the baseline, where a vector has one lane.
///
/// # Safety
/// `src` is readable for them.
pub(crate) unsafe fn first<S: Storage>(
    isa: Isa,
    end: End,
    src: *const S,
    count: usize,
) -> Option<(S::Value, usize)> {
    if isa.level() == Level::Baseline {
        return None;
    }
    let types = (TypeId::of::<S>(), TypeId::of::<S::Value>());
    let mut found = MaybeUninit::<(S::Value, usize)>::uninit();
    macro_rules! of_types {
        ($($s:ty, $a:ty;)*) => {
            $(if types == (TypeId::of::<$s>(), TypeId::of::<$a>()) {
                let (src, into) = (src.cast::<$s>(), found.as_mut_ptr().cast::<($a, usize)>());
                match end {
                    End::Least => {
                        simd::dispatch(isa, First::<$s, $a, Least>(src, count, into, PhantomData));
                    }
                    End::Greatest => {
                        simd::dispatch(isa, First::<$s, $a, Greatest>(src, count, into, PhantomData));
                    }
                }
                // SAFETY: `First` has written it, and these are the types.
                return Some(unsafe { found.assume_init() });
            })*
        };
    }
    of_types! { f32, f32; f16, f32; bf16, f32; f64, f64; }
    None
}

/// # Safety
/// `acc` is valid for `n` elements, and each of the rows readable for as many; called inside of [`simd::dispatch`].
#[inline(always)]
unsafe fn side_by_side<V: Vector, S: Source<V>, C: Choice>(
    acc: *mut V::Elem,
    n: usize,
    row: *const S,
    count: usize,
    stride: usize,
) -> usize {
    let whole = n - n % V::LANES;
    for at in (0..whole).step_by(V::LANES) {
        // SAFETY: the caller's promise: a whole vector of each row, and of what was found.
        unsafe {
            let mut best = V::load(acc.add(at));
            for r in 0..count {
                let x = S::vector(row.add(r * stride + at));
                // NaN once it was found, in this order; which NaN does not matter.
                best = V::select(x.is_nan(), x, C::better(x, best));
            }
            best.store(acc.add(at));
        }
    }
    whole
}

/// Which of two numbers counts.
trait Choice: 'static {
    /// What no number loses to.
    const WORST: f64;
    /// The one that counts; `b` if either is NaN.
    fn better<V: Vector>(a: V, b: V) -> V;
    /// Whether `a` counts beside `b`, where neither is NaN.
    fn beats<A: PartialOrd>(a: A, b: A) -> bool;
    /// The one that counts of many.
    fn over<A: Number>(all: &[A]) -> A;
}

struct Least;
struct Greatest;

impl Choice for Least {
    const WORST: f64 = f64::INFINITY;

    #[inline(always)]
    fn better<V: Vector>(a: V, b: V) -> V {
        a.lesser(b)
    }

    #[inline(always)]
    fn beats<A: PartialOrd>(a: A, b: A) -> bool {
        a < b
    }

    #[inline(always)]
    fn over<A: Number>(all: &[A]) -> A {
        halved(all, Number::min)
    }
}

impl Choice for Greatest {
    const WORST: f64 = f64::NEG_INFINITY;

    #[inline(always)]
    fn better<V: Vector>(a: V, b: V) -> V {
        a.greater(b)
    }

    #[inline(always)]
    fn beats<A: PartialOrd>(a: A, b: A) -> bool {
        a > b
    }

    #[inline(always)]
    fn over<A: Number>(all: &[A]) -> A {
        halved(all, Number::max)
    }
}

/// What `of` makes of all, which are as many as a vector has, as a tree: each step waits for few of those before.
#[inline(always)]
fn halved<A: Copy>(all: &[A], of: impl Fn(A, A) -> A) -> A {
    let mut values = [all[0]; MAX_LANES];
    values[..all.len()].copy_from_slice(all);
    let mut n = all.len();
    while n > 1 {
        n /= 2;
        for i in 0..n {
            values[i] = of(values[i], values[n + i]);
        }
    }
    values[0]
}

struct Extremes<'a, S, A, C>(&'a Chunks<S, A>, PhantomData<C>);

/// Writes the extreme of elements and where it is first. Made only where the first is readable for so many, of which there is at
/// least one, and the last writable.
struct First<S, A, C>(*const S, usize, *mut (A, usize), PhantomData<C>);

macro_rules! kernels {
    ($($s:ty, $a:ty, $lanes:ident;)*) => {
        $(impl<C: Choice> Kernel for Extremes<'_, $s, $a, C> {
            #[inline(always)]
            fn run<L: Lanes>(self) {
                // SAFETY: what a `Chunks` is made with; `dispatch` runs this.
                unsafe { each::<L::$lanes, $s, $a, C>(self.0) }
            }
        }

        impl<C: Choice> Kernel for First<$s, $a, C> {
            #[inline(always)]
            fn run<L: Lanes>(self) {
                let First(src, count, into, _) = self;
                // SAFETY: what a `First` is made with; `dispatch` runs this.
                unsafe { into.write(first_of::<L::$lanes, $s, $a, C>(src, count)) };
            }
        })*
    };
}
kernels! { f32, f32, F32; f16, f32, F32; bf16, f32, F32; f64, f64, F64; }

/// # Safety
/// What is said of [`Chunks`]; called inside of [`simd::dispatch`].
#[inline(always)]
unsafe fn each<V: Vector<Elem = A>, S: Source<V>, A: Float, C: Choice>(chunks: &Chunks<S, A>) {
    let (mut row, mut chunk) = (chunks.src, chunks.first);
    let ahead = suits_intel();
    for i in 0..chunks.count {
        let start = chunk * CHUNK;
        let count = CHUNK.min(chunks.reduced - start);
        // SAFETY: the caller's promise.
        unsafe {
            chunks.out.add(i).write(extreme::<V, S, A, C>(row.add(start), count, ahead));
            chunk += 1;
            if chunk == chunks.of {
                (row, chunk) = (row.add(chunks.reduced), 0);
            }
        }
    }
}

/// Elements that are looked through at a time, from the cache the second time.
pub(crate) const BLOCK: usize = 2048;

/// # Safety
/// `src` is readable for `count` elements, of which there is at least one; called inside of [`simd::dispatch`].
#[inline(always)]
unsafe fn first_of<
    V: Vector<Elem = A>,
    S: Source<V> + Storage<Value = A>,
    A: Float + Into<f64>,
    C: Choice,
>(
    src: *const S,
    count: usize,
) -> (A, usize) {
    let (mut best, mut place) = (A::of(C::WORST), 0);
    for from in (0..count).step_by(BLOCK) {
        let n = BLOCK.min(count - from);
        // SAFETY: the caller's promise.
        unsafe {
            // Every CPU stands still between blocks, until it knows where to go on.
            let found = extreme::<V, S, A, C>(src.add(from), n, true);
            if from == 0 || found.is_nan() || C::beats(found, best) {
                (best, place) = (found, from + place_of::<V, S, A>(src.add(from), n, found));
            }
        }
        if best.is_nan() {
            break;
        }
    }
    (best, place)
}

/// Where `found`, which is one of `count` elements, is first.
///
/// # Safety
/// `src` is readable for them; called inside of [`simd::dispatch`].
#[inline(always)]
unsafe fn place_of<V: Vector<Elem = A>, S: Source<V> + Storage<Value = A>, A: Float + Into<f64>>(
    src: *const S,
    count: usize,
    found: A,
) -> usize {
    let (lanes, nan, sought) = (V::LANES, found.is_nan(), V::splat(found.into()));
    // SAFETY: all indices are less than `count`.
    unsafe {
        let here = |at: usize| {
            let x = S::vector(src.add(at));
            if nan { x.is_nan() } else { x.equals(sought) }
        };
        let mut at = 0;
        // One branch for four vectors, whose end no branch predictor guesses.
        while at + 4 * lanes <= count {
            // Nothing else asks for what lies behind these elements meanwhile.
            let behind = src.wrapping_add(count + at).cast::<u8>();
            prefetch(behind.wrapping_add(AHEAD), 4 * lanes * size_of::<S>());
            let (a, b) = (here(at) | here(at + lanes), here(at + 2 * lanes) | here(at + 3 * lanes));
            if (a | b).any() {
                break;
            }
            at += 4 * lanes;
        }
        while at + lanes <= count {
            let here = here(at);
            if here.any() {
                return at + here.before_first();
            }
            at += lanes;
        }
        if count >= lanes {
            // The last ones again: those before were others.
            return count - lanes + here(count - lanes).before_first();
        }
        while at + 1 < count {
            let x = src.add(at).read().load();
            if x == found || nan && x.is_nan() {
                break;
            }
            at += 1;
        }
        at
    }
}

/// The extreme of `count` elements, of which there is at least one; NaN if one of them is. Fetches what follows, if `ahead`.
///
/// # Safety
/// `src` is readable for them; called inside of [`simd::dispatch`].
#[inline(always)]
unsafe fn extreme<V: Vector<Elem = A>, S: Source<V>, A: Float, C: Choice>(
    src: *const S,
    count: usize,
    ahead: bool,
) -> A {
    let lanes = V::LANES;
    let worst = V::splat(C::WORST);
    let (mut a, mut b, mut c, mut d) = (worst, worst, worst, worst);
    // NaN is looked for apart: in this order it loses to what there was.
    let (mut nan, mut other) = (worst.is_nan(), worst.is_nan());
    let mut at = 0;
    // SAFETY: all indices are less than `count`; an array has room for a vector, and `lanes` elements once one is stored.
    unsafe {
        while at + 4 * lanes <= count {
            let from = src.add(at);
            if ahead {
                prefetch(from.cast::<u8>().wrapping_add(AHEAD), 4 * lanes * size_of::<S>());
            }
            let (p, q) = (S::vector(from), S::vector(from.add(lanes)));
            let (r, s) = (S::vector(from.add(2 * lanes)), S::vector(from.add(3 * lanes)));
            nan = nan | p.is_nan() | q.is_nan();
            other = other | r.is_nan() | s.is_nan();
            (a, b) = (C::better(p, a), C::better(q, b));
            (c, d) = (C::better(r, c), C::better(s, d));
            at += 4 * lanes;
        }
        while at + lanes <= count {
            let p = S::vector(src.add(at));
            nan = nan | p.is_nan();
            a = C::better(p, a);
            at += lanes;
        }
        if at < count {
            // The last ones again, where there are as many as a vector has; else the first one in place of what is missing.
            let p = if count >= lanes {
                S::vector(src.add(count - lanes))
            } else {
                let mut elements = [src.read(); MAX_LANES];
                std::ptr::copy_nonoverlapping(src, elements.as_mut_ptr(), count);
                S::vector(elements.as_ptr())
            };
            nan = nan | p.is_nan();
            a = C::better(p, a);
        }
        if (nan | other).any() {
            return A::of(f64::NAN);
        }
        let mut found = [const { MaybeUninit::<A>::uninit() }; MAX_LANES];
        C::better(C::better(a, b), C::better(c, d)).store(found.as_mut_ptr().cast());
        C::over(std::slice::from_raw_parts(found.as_ptr().cast(), lanes))
    }
}
