//! The vectors that rows are computed in: one type for each level and type computed in.

use super::lanes;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::kernels::real::{Cell, Real};

/// The most lanes of any vector.
pub(super) const MAX_LANES: usize = 16;

/// Arithmetic on a vector of a level. Values exist only in code that [`dispatch`] has compiled for that level: all
/// of it is `#[inline(always)]`.
pub(super) trait Arithmetic: Copy {
    /// What is computed in.
    type Lane: Real + Cell<Self::Lane>;
    /// How many; a power of two, at most [`MAX_LANES`].
    const LANES: usize;

    fn splat(x: Self::Lane) -> Self;
    /// The first lane.
    fn first(self) -> Self::Lane;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Lane by lane `self` where it is larger, else `other`: also where one of them is NaN.
    fn max(self, other: Self) -> Self;
    /// Lane by lane `self` where it is smaller, else `other`: also where one of them is NaN.
    fn min(self, other: Self) -> Self;
    /// Lanes below `least` become 0. A NaN stays one.
    fn zero_below(self, least: Self) -> Self;
    /// `self * a + b`, fused where the level has that.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// `b - self * a`, fused where the level has that.
    fn neg_mul_add(self, a: Self, b: Self) -> Self;
    /// The number whose exponent field is the low bits of `self`, and whose fraction is 0.
    fn exponent(self) -> Self;
}

/// The rest of a vector: what moves between lanes, and to and from memory.
pub(super) trait Vector: Arithmetic {
    /// Whether loading and storing part of a vector costs no more than all of it.
    const FAST_PARTS: bool = false;
    /// The magnitudes up to which [`Self::exp_near`] is right, if that is faster than what is right for all: rows of
    /// such elements need no shift.
    const NEAR: Option<Self::Lane> = None;

    /// `exp(self)` to 1.6 times the distance from 1 to the next number, relatively, for magnitudes up to
    /// [`Self::NEAR`] and NaN; any number for others.
    #[inline(always)]
    fn exp_near(self) -> Self {
        unreachable!("a level without a bound has nothing that is near")
    }

    /// As [`Self::exp_near`], but to 2^-14, for magnitudes up to 64, and with less to do: for what is rounded to bf16. For
    /// larger bf16, infinity included, more than 2^68 or an infinity of either sign, or NaN: rows that are near by their words
    /// are told from others by that.
    #[inline(always)]
    fn exp_near_short(self) -> Self {
        self.exp_near()
    }

    /// [`Self::exp_near`] of each.
    #[inline(always)]
    fn exp_near_of<const N: usize>(mut x: [Self; N]) -> [Self; N] {
        for x in &mut x {
            *x = x.exp_near();
        }
        x
    }

    /// [`Self::exp_near_short`] of each.
    #[inline(always)]
    fn exp_near_short_of<const N: usize>(mut x: [Self; N]) -> [Self; N] {
        for x in &mut x {
            *x = x.exp_near_short();
        }
        x
    }

    /// The same, in step where the level is faster so, as `in_step.rs` says.
    #[inline(always)]
    fn in_step<const N: usize>(x: [Self; N]) -> [Self; N] {
        x
    }

    /// The larger magnitude, lane by lane, of `self` and of what is not negative; that where `self` is NaN.
    #[inline(always)]
    fn magnitude(self, least: Self) -> Self {
        self.max(Self::splat(Self::Lane::ZERO).sub(self)).max(least)
    }

    /// As [`Self::magnitude`], but any number where a NaN signals: only for what such a NaN spoils as a whole.
    #[inline(always)]
    fn magnitude_in_row(self, least: Self) -> Self {
        self.magnitude(least)
    }

    /// The larger of each two 16-bit words, taken for unsigned numbers: of bf16 with negative ones among them the lowest, or
    /// a NaN. Only for levels with [`Self::NEAR`].
    #[inline(always)]
    fn larger_words(self, _other: Self) -> Self {
        unreachable!("a level without a bound has nothing that is near")
    }

    /// Whether no word is above `most`, as in [`Self::larger_words`].
    #[inline(always)]
    fn words_within(self, _most: u16) -> bool {
        unreachable!("a level without a bound has nothing that is near")
    }

    /// The first `len` lanes, and zeros.
    #[inline(always)]
    fn first_lanes(self, len: usize) -> Self {
        let mut lanes = lanes(self);
        lanes[len..].fill(Self::Lane::ZERO);
        // SAFETY: the array holds a vector.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// Whether no lane is above `bound`.
    #[inline(always)]
    fn within(self, bound: Self::Lane) -> bool {
        lanes(self).iter().all(|&lane| lane <= bound)
    }

    /// Every lane becomes `f` over all lanes.
    fn fold(self, f: impl Fn(Self, Self) -> Self) -> Self;

    /// Lane `i` becomes `f` over the lanes of `rows[i]`.
    fn fold_each(rows: &[Self; MAX_LANES], f: impl Fn(Self, Self) -> Self) -> Self;

    /// # Safety
    /// `at` is readable for a vector of elements.
    unsafe fn load<S: Cell<Self::Lane>>(at: *const S) -> Self;

    /// # Safety
    /// `at` is writable for a vector of elements.
    unsafe fn store<D: Cell<Self::Lane>>(self, at: *mut D);

    /// Stores past the cache where the level can for these elements.
    ///
    /// # Safety
    /// `at` is writable for a vector of elements, and aligned to their size or to 64 bytes if that is less.
    #[inline(always)]
    unsafe fn stream<D: Cell<Self::Lane>>(self, at: *mut D) {
        // SAFETY: the caller's promise.
        unsafe { self.store(at) };
    }

    /// Whether this CPU has an instruction for [`Self::store_two`] to elements `D` that takes subnormal numbers for 0.
    #[inline(always)]
    fn narrows<D: Cell<Self::Lane>>() -> bool {
        false
    }

    /// Whether a lane of either is subnormal. Asked only where [`Self::narrows`] is true.
    #[inline(always)]
    fn any_subnormal(self, _other: Self) -> bool {
        unreachable!("a level without such an instruction has nothing to ask for")
    }

    /// Stores this vector and the next one, past the cache if they are to `stream`. To `narrow` is as
    /// [`Self::narrows`] says.
    ///
    /// # Safety
    /// `at` is writable for two vectors of elements; to stream, it is aligned to their size or to 64 bytes if that is
    /// less. Only what `narrows` may be narrowed.
    #[inline(always)]
    unsafe fn store_two<D: Cell<Self::Lane>>(self, next: Self, at: *mut D, stream: bool, narrow: bool) {
        let _ = narrow;
        // SAFETY: the caller's promise.
        unsafe { self.store_each_of_two(next, at, stream) };
    }

    /// [`Self::store_two`] without narrowing.
    ///
    /// # Safety
    /// As for [`Self::store_two`].
    #[inline(always)]
    unsafe fn store_each_of_two<D: Cell<Self::Lane>>(self, next: Self, at: *mut D, stream: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            let second = at.add(Self::LANES);
            if stream {
                self.stream(at);
                next.stream(second);
            } else {
                self.store(at);
                next.store(second);
            }
        }
    }

    /// The first `len` lanes from memory, the others `fill`.
    ///
    /// # Safety
    /// `at` is readable for `len` elements; `len` is at most a vector.
    #[inline(always)]
    unsafe fn load_part<S: Cell<Self::Lane>>(at: *const S, len: usize, fill: Self::Lane) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::load_each_part(at, len, fill) }
    }

    /// The first `len` lanes to memory.
    ///
    /// # Safety
    /// `at` is writable for `len` elements; `len` is at most a vector.
    #[inline(always)]
    unsafe fn store_part<D: Cell<Self::Lane>>(self, at: *mut D, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.store_each_part(at, len) };
    }

    /// [`Self::load_part`] of any element type, one by one.
    ///
    /// # Safety
    /// As for [`Self::load_part`].
    #[inline(always)]
    unsafe fn load_each_part<S: Cell<Self::Lane>>(at: *const S, len: usize, fill: Self::Lane) -> Self {
        let mut part = [S::write(fill); MAX_LANES];
        // SAFETY: the caller's promise; the array holds a vector.
        unsafe {
            for (i, part) in part[..len].iter_mut().enumerate() {
                *part = at.add(i).read();
            }
            Self::load(part.as_ptr())
        }
    }

    /// [`Self::store_part`] of any element type, one by one.
    ///
    /// # Safety
    /// As for [`Self::store_part`].
    #[inline(always)]
    unsafe fn store_each_part<D: Cell<Self::Lane>>(self, at: *mut D, len: usize) {
        let mut part = [D::write(Self::Lane::ZERO); MAX_LANES];
        // SAFETY: the array holds a vector; the rest is the caller's promise.
        unsafe {
            self.store(part.as_mut_ptr());
            for (i, &x) in part[..len].iter().enumerate() {
                at.add(i).write(x);
            }
        }
    }

    /// [`Self::load`] of any element type, one by one.
    ///
    /// # Safety
    /// As for [`Self::load`].
    #[inline(always)]
    unsafe fn load_each<S: Cell<Self::Lane>>(at: *const S) -> Self {
        let mut lanes = [Self::Lane::ZERO; MAX_LANES];
        for (i, lane) in lanes[..Self::LANES].iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *lane = unsafe { at.add(i).read() }.read();
        }
        // SAFETY: the array holds a vector.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// [`Self::store`] of any element type, one by one.
    ///
    /// # Safety
    /// As for [`Self::store`].
    #[inline(always)]
    unsafe fn store_each<D: Cell<Self::Lane>>(self, at: *mut D) {
        let mut lanes = [Self::Lane::ZERO; MAX_LANES];
        // SAFETY: the array holds a vector.
        unsafe { self.store(lanes.as_mut_ptr()) };
        for (i, &lane) in lanes[..Self::LANES].iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { at.add(i).write(D::write(lane)) };
        }
    }
}

/// A type computed in, and its vectors at each level.
#[cfg(target_arch = "x86_64")]
pub(super) trait Compute: Real + Cell<Self> {
    type Baseline: Vector<Lane = Self>;
    type Avx2: Vector<Lane = Self>;
    type Avx512: Vector<Lane = Self>;
}

/// A type computed in.
#[cfg(not(target_arch = "x86_64"))]
pub(super) trait Compute: Real + Cell<Self> {}

#[cfg(not(target_arch = "x86_64"))]
impl<A: Real + Cell<A>> Compute for A {}

/// What [`dispatch`] runs: code that is generic over the vector, all of it `#[inline(always)]`.
pub(super) trait Body<A> {
    type Out;

    fn run<V: Vector<Lane = A>>(self) -> Self::Out;
}

/// Runs `body`, compiled for the level of `isa`, with the level's vectors.
#[inline]
pub(super) fn dispatch<A: Compute, B: Body<A>>(isa: Isa, body: B) -> B::Out {
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        Level::Baseline => body.run::<A::Baseline>(),
        // SAFETY: an `Isa` of this level is the proof that this CPU has its features.
        Level::Avx2 => unsafe { run_avx2(body) },
        // SAFETY: as above.
        Level::Avx512 | Level::Amx => unsafe { run_avx512(body) },
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        body.run::<Portable<A>>()
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx2<A: Compute, B: Body<A>>(body: B) -> B::Out {
    body.run::<A::Avx2>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd")]
fn run_avx512<A: Compute, B: Body<A>>(body: B) -> B::Out {
    body.run::<A::Avx512>()
}

/// A vector of any processor: an array.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[derive(Clone, Copy)]
pub(super) struct Portable<A>([A; 4]);

#[cfg(any(test, not(target_arch = "x86_64")))]
impl<A: Real> Portable<A> {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(A, A) -> A) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
impl<A: Real + Cell<A>> Arithmetic for Portable<A> {
    type Lane = A;
    const LANES: usize = 4;

    #[inline(always)]
    fn splat(x: A) -> Self {
        Self([x; 4])
    }

    #[inline(always)]
    fn first(self) -> A {
        self.0[0]
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn zero_below(self, least: Self) -> Self {
        self.zip(least, |a, b| if a < b { A::ZERO } else { a })
    }

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        self.mul(a).add(b)
    }

    #[inline(always)]
    fn neg_mul_add(self, a: Self, b: Self) -> Self {
        b.sub(self.mul(a))
    }

    #[inline(always)]
    fn exponent(self) -> Self {
        Self(self.0.map(A::exponent))
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
impl<A: Real + Cell<A>> Vector for Portable<A> {
    #[inline(always)]
    fn fold(self, f: impl Fn(Self, Self) -> Self) -> Self {
        let [a, b, c, d] = self.0;
        let halves = f(self, Self([c, d, a, b]));
        let [a, b, c, d] = halves.0;
        f(halves, Self([b, a, d, c]))
    }

    #[inline(always)]
    fn fold_each(rows: &[Self; MAX_LANES], f: impl Fn(Self, Self) -> Self) -> Self {
        Self(std::array::from_fn(|i| rows[i].fold(&f).0[0]))
    }

    #[inline(always)]
    unsafe fn load<S: Cell<A>>(at: *const S) -> Self {
        // SAFETY: the caller's promise.
        Self(std::array::from_fn(|i| unsafe { at.add(i).read() }.read()))
    }

    #[inline(always)]
    unsafe fn store<D: Cell<A>>(self, at: *mut D) {
        for (i, &x) in self.0.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { at.add(i).write(D::write(x)) };
        }
    }
}
