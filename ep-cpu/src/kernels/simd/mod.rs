//! Vectors of f32 and f64, one pair of types per instruction-set level, for kernels that are written once.
//!
//! Plain loops over elements vectorise well while they are arithmetic. The mathematical functions need
//! instructions that the compiler does not choose by itself (scaling by a power of two, exponent and
//! mantissa, approximate reciprocals) and fused multiply-add, so they are written over [`Vector`].
//! [`dispatch`] runs such a kernel at the level of an [`Isa`].
//!
//! Levels differ in [`Vector::mul_add`]: it rounds once from AVX2 up, and twice at the baseline, where
//! fusing would be a function call. Results therefore differ between levels, within the limits stated for
//! each function. At one level a result depends on its operands only, not on its place or the thread.

/// The operators of a vector type, from its methods.
macro_rules! operators {
    ($t:ty $(where $v:ident)?) => {
        impl$(<$v: Vector>)? std::ops::Add for $t {
            type Output = Self;

            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self.plus(b)
            }
        }

        impl$(<$v: Vector>)? std::ops::Sub for $t {
            type Output = Self;

            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self.minus(b)
            }
        }

        impl$(<$v: Vector>)? std::ops::Mul for $t {
            type Output = Self;

            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                self.times(b)
            }
        }

        impl$(<$v: Vector>)? std::ops::Div for $t {
            type Output = Self;

            #[inline(always)]
            fn div(self, b: Self) -> Self {
                self.over(b)
            }
        }

        impl$(<$v: Vector>)? std::ops::Neg for $t {
            type Output = Self;

            #[inline(always)]
            fn neg(self) -> Self {
                self.negated()
            }
        }

        impl$(<$v: Vector>)? std::ops::Add<f64> for $t {
            type Output = Self;

            #[inline(always)]
            fn add(self, b: f64) -> Self {
                self.plus(Self::splat(b))
            }
        }

        impl$(<$v: Vector>)? std::ops::Sub<f64> for $t {
            type Output = Self;

            #[inline(always)]
            fn sub(self, b: f64) -> Self {
                self.minus(Self::splat(b))
            }
        }

        impl$(<$v: Vector>)? std::ops::Mul<f64> for $t {
            type Output = Self;

            #[inline(always)]
            fn mul(self, b: f64) -> Self {
                self.times(Self::splat(b))
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod pair;
mod scalar;
#[cfg(test)]
mod scale_tests;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{EXP_SLOPE, POWERS};
use half::{bf16, f16};
use std::hint::cold_path;
use std::mem::MaybeUninit;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// The most lanes that any level has of any type.
pub(crate) const MAX_LANES: usize = 64;

/// One truth value per lane.
pub(crate) trait Mask:
    Copy + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self>
{
    /// Whether any lane is true.
    fn any(self) -> bool;
    /// The lanes before the first one that is true; all of them where none is.
    fn before_first(self) -> usize;
}

/// Lanes of one floating-point type. An `f64` as an operand stands for that constant in every lane.
///
/// Comparisons are false where a lane is NaN. Methods are only sound to call inside [`dispatch`], which
/// proves that the CPU has the instructions; nothing else names the implementing types.
pub(crate) trait Vector:
    Copy
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + Add<f64, Output = Self>
    + Sub<f64, Output = Self>
    + Mul<f64, Output = Self>
{
    type Mask: Mask;
    /// What a lane is in memory.
    type Elem: Copy;
    const LANES: usize;
    /// Added to a number of magnitude below a quarter of it, leaves the nearest integer in the low bits.
    const ROUNDER: f64;
    /// [`Self::ROUNDER`] plus the bias of exponents.
    const POWER_ROUNDER: f64;
    /// Whether [`Self::mul_add`] rounds once.
    const FUSED: bool;

    /// `x` in every lane, rounded to the lane's type.
    fn splat(x: f64) -> Self;
    /// `self * b + c`.
    fn mul_add(self, b: Self, c: Self) -> Self;
    fn abs(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// The same for a `self` that is not negative; NaN has either sign.
    #[inline(always)]
    fn with_sign(self, sign: Self) -> Self {
        self.copysign(sign)
    }
    fn sqrt(self) -> Self;
    fn floor(self) -> Self;
    fn lt(self, other: Self) -> Self::Mask;
    fn le(self, other: Self) -> Self::Mask;
    fn equals(self, other: Self) -> Self::Mask;
    fn is_nan(self) -> Self::Mask;
    /// `a` where the mask is true, `b` elsewhere.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// The smaller; `self` if either is NaN.
    #[inline(always)]
    fn at_most(self, bound: f64) -> Self {
        Self::splat(bound).lesser(self)
    }
    /// The greater; `self` if either is NaN.
    #[inline(always)]
    fn at_least(self, bound: f64) -> Self {
        Self::splat(bound).greater(self)
    }
    /// The same, of which the compiler computes the vectors in step: each has this value before one of them goes on.
    #[inline(always)]
    fn in_step(self) -> Self {
        self
    }
    /// [`Self::in_step`] of two.
    #[inline(always)]
    fn two_in_step(two: [Self; 2]) -> [Self; 2] {
        two
    }
    /// [`Self::in_step`] of four.
    #[inline(always)]
    fn four_in_step(four: [Self; 4]) -> [Self; 4] {
        four
    }
    /// The smaller; `other` if either is NaN.
    fn lesser(self, other: Self) -> Self;
    /// The greater; `other` if either is NaN.
    fn greater(self, other: Self) -> Self;
    /// `self * 2^n` rounded once, for a magnitude below 2^63, infinity or NaN, and an integral `n` within twice the exponent
    /// range. A magnitude from 2^-24 on takes no longer where the result is subnormal or less.
    #[inline(always)]
    fn scale(self, n: Self) -> Self {
        let low = n.lt(Self::splat(if size_of::<Self::Elem>() == 4 { -96.0 } else { -960.0 }));
        if low.any() {
            cold_path();
            if !Self::subnormals_are_fast() {
                return self.scale_low(n, low);
            }
        }
        self.scale_by_product(n)
    }
    /// [`Self::scale`] of any magnitude. Most CPUs take a hundred times as long for a product that is less than normal, unless
    /// [`Self::subnormals_are_fast`].
    fn scale_by_product(self, n: Self) -> Self;
    /// Whether [`Self::scale_by_product`] takes no longer for results that are less than normal, and rounds them once.
    #[inline(always)]
    fn subnormals_are_fast() -> bool {
        false
    }
    /// The same for loops with many constants, of which compilers then leave some in memory.
    #[inline(always)]
    fn subnormals_are_fast_or_ask() -> bool {
        false
    }
    /// [`Self::scale`] where some `n` are `low`.
    #[inline(always)]
    fn scale_low(self, n: Self, low: Self::Mask) -> Self {
        // 2 to these is the reciprocal of the smallest subnormal number, and how many of it are the smallest normal one.
        let (all, digits) = if size_of::<Self::Elem>() == 4 { (149.0, 23) } else { (1074.0, 52) };
        let (zero, normal) = (Self::splat(0.0), Self::splat((1u64 << digits) as f64));
        let units = self.abs().scale_by_product(Self::select(low, (n + all).at_least(-64.0), zero));
        let subnormal = low & units.lt(normal);
        let usual = self.scale_by_product(Self::select(subnormal, zero, n));
        // The sum is rounded to an integer.
        Self::select(subnormal, (units + normal).subnormals().copysign(self), usual)
    }
    /// For a sum of 2^digits and an integer from 0 to that: as many of the smallest subnormal number.
    fn subnormals(self) -> Self;
    /// For a sum with [`Self::POWER_ROUNDER`]: 2 to the integer that was added, within the range of normal numbers.
    fn power_of_two(self) -> Self;
    /// For `rounded` a sum with [`Self::ROUNDER`]: `self` times 2 to the integer in its low bits, where all three are
    /// normal numbers.
    #[inline(always)]
    fn times_power(self, rounded: Self) -> Self {
        self.scale(rounded - Self::splat(Self::ROUNDER))
    }
    /// `(k, m)` with `self = 2^k m` and m in 0.75..1.5, for positive finite numbers; else unspecified.
    fn split(self) -> (Self, Self);
    /// For a sum with [`Self::ROUNDER`]: whether bit `bit` of the integer in its low bits is set.
    fn low_bit(self, bit: u32) -> Self::Mask;
    /// `self` negated where bit `bit` of `rounded`, as of [`Self::low_bit`], is set.
    fn flip_if_bit(self, rounded: Self, bit: u32) -> Self;
    /// `self / d` within an ulp, for finite operands, `d` and the quotient in 2^-60..2^60 or the
    /// quotient less.
    #[inline(always)]
    fn quotient(self, d: Self) -> Self {
        self / d
    }
    /// `1 / (1 + self)` within an ulp, where `self` in 0..=1 counts with all its digits.
    #[inline(always)]
    fn one_over_one_plus(self) -> Self {
        let one = Self::splat(1.0);
        let r = one / (self + 1.0);
        // The error is taken from `self`, since the sum has lost some of its digits; 1 - r has all.
        r.mul_add(self.neg_mul_add(r, one - r), r)
    }
    /// About `1 / self`, of f32 to 2^-21 and of f64 to 2^-27 at least, under the conditions of [`Self::quotient`].
    #[inline(always)]
    fn rough_reciprocal(self) -> Self {
        Self::splat(1.0) / self
    }
    /// `1 / sqrt(self)` within two ulps; the limits at zero, infinity and below zero.
    #[inline(always)]
    fn rsqrt(self) -> Self {
        Self::splat(1.0) / self.sqrt()
    }
    /// `f` of each lane.
    fn map(self, f: impl Fn(f64) -> f64) -> Self;
    /// `f` of each pair of lanes.
    fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self;

    /// # Safety
    /// `p` is readable for [`Self::LANES`] elements.
    unsafe fn load(p: *const Self::Elem) -> Self;
    /// # Safety
    /// `p` is writable for [`Self::LANES`] elements.
    unsafe fn store(self, p: *mut Self::Elem);
    /// Stores past the cache where the level can.
    ///
    /// # Safety
    /// As [`Self::store`], with `p` aligned to the vector.
    #[inline(always)]
    unsafe fn stream(self, p: *mut Self::Elem) {
        // SAFETY: the caller's promise.
        unsafe { self.store(p) };
    }

    /// The first `n` lanes, of which there is at least one; the others hold the first.
    ///
    /// # Safety
    /// `p` is readable for `n` elements, fewer than [`Self::LANES`].
    #[inline(always)]
    unsafe fn load_part(p: *const Self::Elem, n: usize) -> Self {
        // SAFETY: the caller's promise; the array has room for the lanes.
        unsafe {
            let mut lanes = [p.read(); MAX_LANES];
            for (i, lane) in lanes[..n].iter_mut().enumerate() {
                *lane = p.add(i).read();
            }
            Self::load(lanes.as_ptr())
        }
    }

    /// Stores the first `n` lanes.
    ///
    /// # Safety
    /// `p` is writable for `n` elements, fewer than [`Self::LANES`].
    #[inline(always)]
    unsafe fn store_part(self, p: *mut Self::Elem, n: usize) {
        let mut lanes = [const { MaybeUninit::<Self::Elem>::uninit() }; MAX_LANES];
        // SAFETY: the array has room for the lanes, and the caller promises room for `n`.
        unsafe {
            self.store(lanes.as_mut_ptr().cast());
            for (i, lane) in lanes[..n].iter().enumerate() {
                p.add(i).write(lane.assume_init());
            }
        }
    }

    /// `c - self * b`.
    #[inline(always)]
    fn neg_mul_add(self, b: Self, c: Self) -> Self {
        (-self).mul_add(b, c)
    }

    /// The rounding error of `self * b`, given the rounded product. Without a fused multiply-add the
    /// operands must be far from overflow.
    #[inline(always)]
    fn product_error(self, b: Self, product: Self) -> Self {
        if Self::FUSED {
            return self.mul_add(b, -product);
        }
        let (ah, al) = self.halves();
        let (bh, bl) = b.halves();
        al * bl - (((product - ah * bh) - al * bh) - ah * bl)
    }

    /// `self` as a sum of two numbers of half the digits.
    #[inline(always)]
    fn halves(self) -> (Self, Self) {
        // Twice the rounder is 2^(digits - 1) times 1.5 times 2; its square root is near 2^(digits / 2).
        let factor = if size_of::<Self::Elem>() == 4 { 4097.0 } else { 134_217_729.0 };
        let big = self * factor;
        let high = big - (big - self);
        (high, self - high)
    }
}

/// `c[0] + c[1] x + ...`
#[inline(always)]
pub(crate) fn polynomial<V: Vector, const N: usize>(x: V, c: &[f64; N]) -> V {
    let mut sum = V::splat(c[N - 1]);
    for k in (0..N - 1).rev() {
        sum = sum.mul_add(x, V::splat(c[k])).in_step();
    }
    sum
}

/// The integer nearest to `x c`, and that added to the rounder.
#[inline(always)]
pub(crate) fn nearest<V: Vector>(x: V, c: f64) -> (V, V) {
    let rounder = V::splat(V::ROUNDER);
    let rounded = x.mul_add(V::splat(c), rounder).in_step();
    (rounded - rounder, rounded)
}

/// An f32 for each of 16 pieces.
#[repr(align(64))]
pub(crate) struct Table(pub(crate) [f32; 16]);

/// A function from 0 to [`Pieces::end`] as 32 polynomials of `N` coefficients, on pieces of one length, or that are the
/// shorter the farther out.
pub(crate) struct Pieces<const N: usize, const SHORTER: bool> {
    /// The piece of `t` is the integer below `t (scale + growth t)`, which is below 32 before `end`.
    pub(crate) scale: f32,
    /// As of `scale`; nothing unless `SHORTER`.
    pub(crate) growth: f32,
    pub(crate) end: f32,
    /// What is subtracted from an argument.
    pub(crate) centers: [Table; 2],
    /// The coefficients of 1, of the difference, of its square and so on.
    pub(crate) coefficients: [[Table; 2]; N],
}

/// An odd function from 0 to [`Widening::end`], and there 1, as 16 polynomials of `N` coefficients. With `t + start` pieces widen,
/// four to each power of two: that of `t` is in the two low bits of the exponent and the two high ones behind the point.
pub(crate) struct Widening<const N: usize> {
    pub(crate) start: f32,
    /// Up to which `t + start` the first piece's values are beside `t` itself, which small results have more digits of; or 0.
    pub(crate) first: f32,
    pub(crate) end: f32,
    /// As in [`Pieces`].
    pub(crate) centers: Table,
    /// As in [`Pieces`].
    pub(crate) coefficients: [Table; N],
}

/// An f64 for each of 16 pieces.
#[repr(align(64))]
pub(crate) struct WideTable(pub(crate) [f64; 16]);

/// A function of f64 from 0 on as 16 polynomials of `N` coefficients, on pieces as those of [`Widening`]: up to 15 times `start`.
pub(crate) struct WidePieces<const N: usize> {
    pub(crate) start: f64,
    /// As of [`Widening`].
    pub(crate) first: f64,
    /// As in [`Pieces`].
    pub(crate) centers: WideTable,
    /// As in [`Pieces`].
    pub(crate) coefficients: [WideTable; N],
}

/// An f32 for each of 8 pieces.
#[repr(align(32))]
pub(crate) struct Eight(pub(crate) [f32; 8]);

/// A function from 0 to [`EightPieces::END`] as 8 polynomials of `N` coefficients. Farther out the pieces are shorter: that
/// of `t` is the integer below `t (1 + t / 4)`.
pub(crate) struct EightPieces<const N: usize> {
    /// As in [`Pieces`].
    pub(crate) centers: Eight,
    /// As in [`Pieces`].
    pub(crate) coefficients: [Eight; N],
}

impl<const N: usize> EightPieces<N> {
    pub(crate) const END: f32 = 4.0;
}

/// Lanes of f32.
pub(crate) trait Single: Vector<Elem = f32> {
    /// Whether arguments whose exponentials and their reciprocals are normal numbers are worth a way of their own, because
    /// [`Vector::scale`] takes many instructions, of which [`Vector::times_power`] saves most.
    const PLAIN_POWERS: bool = false;
    /// The function at `self + low`, for `self` from 0 to before its end and `low` at most an ulp of it; unspecified
    /// for other arguments. `None` at levels where that would not be fast.
    #[inline(always)]
    fn piecewise<const N: usize, const SHORTER: bool>(
        self,
        low: Self,
        pieces: &'static Pieces<N, SHORTER>,
    ) -> Option<Self> {
        let (value, _) = self.piecewise_in_parts(low, pieces)?;
        Some(value)
    }
    /// The same, and what its last rounding has lost.
    #[inline(always)]
    fn piecewise_in_parts<const N: usize, const SHORTER: bool>(
        self,
        _low: Self,
        _pieces: &'static Pieces<N, SHORTER>,
    ) -> Option<(Self, Self)> {
        None
    }
    /// The odd function at `self`. `None` as of [`Self::piecewise`].
    #[inline(always)]
    fn widening<const N: usize>(self, _pieces: &'static Widening<N>) -> Option<Self> {
        None
    }
    /// The numbers of the pieces of [`EightPieces`] that `self` is on, in the low bits of each lane. `None` at levels where
    /// [`Self::of_eight`] would not be fast, or [`Self::piecewise`] is faster.
    #[inline(always)]
    fn on_eight(self) -> Option<Self> {
        None
    }
    /// The numbers of the pieces that [`Self::on_eight`] gave.
    #[inline(always)]
    fn of_eight(self, _eight: &'static Eight) -> Self {
        unreachable!("a level without such pieces")
    }
    /// The function at `self`, from 0 to before [`EightPieces::END`]; unspecified for other arguments. `None` as of
    /// [`Self::on_eight`].
    #[inline(always)]
    fn on_eight_pieces<const N: usize>(self, pieces: &'static EightPieces<N>) -> Option<Self> {
        let piece = self.on_eight()?;
        let x = self - piece.of_eight(&pieces.centers);
        let mut sum = piece.of_eight(&pieces.coefficients[N - 1]);
        for k in (0..N - 1).rev() {
            sum = sum.mul_add(x, piece.of_eight(&pieces.coefficients[k])).in_step();
        }
        Some(sum)
    }
    /// `exp(self)` within 1.75 ulps. `None` at levels where looking up part of it would not be fast.
    #[inline(always)]
    fn exp_by_table(self) -> Option<Self> {
        None
    }
    /// `ln(self)` within 2 ulps. `None` as of [`Self::exp_by_table`].
    #[inline(always)]
    fn ln_by_table(self) -> Option<Self> {
        None
    }
    /// For a positive finite `self`: `self` to the power of `y` within 4 ulps, and the binary logarithm of that power, if it is of a
    /// magnitude below 1000. Else the power is unspecified, and the logarithm has its sign and a magnitude from 1000 on, or is
    /// NaN. `None` as of [`Self::exp_by_table`].
    #[inline(always)]
    fn pow_by_table(self, _y: Self) -> Option<(Self, Self)> {
        None
    }
    /// As many lanes of f64.
    type Wide: Double;
    fn widen(self) -> Self::Wide;
    /// Rounds to nearest.
    fn narrow(wide: Self::Wide) -> Self;
    /// The sum of all lanes: the upper half is added to the lower, then the upper half of these, and so on.
    fn total(wide: Self::Wide) -> f64;
    /// # Safety
    /// `p` is readable for [`Vector::LANES`] elements.
    unsafe fn load_f16(p: *const f16) -> Self;
    /// # Safety
    /// `p` is writable for [`Vector::LANES`] elements.
    unsafe fn store_f16(self, p: *mut f16);
    /// # Safety
    /// `p` is readable for [`Vector::LANES`] elements.
    unsafe fn load_bf16(p: *const bf16) -> Self;
    /// # Safety
    /// `p` is writable for [`Vector::LANES`] elements.
    unsafe fn store_bf16(self, p: *mut bf16);
    /// [`Self::store_bf16`] of two, one behind the other.
    ///
    /// # Safety
    /// `p` is writable for twice [`Vector::LANES`] elements.
    #[inline(always)]
    unsafe fn store_two_bf16([a, b]: [Self; 2], p: *mut bf16) {
        // SAFETY: the caller's promise.
        unsafe {
            a.store_bf16(p);
            b.store_bf16(p.add(Self::LANES));
        }
    }
}

/// Lanes of f64.
pub(crate) trait Double: Vector<Elem = f64> {
    /// The function at `self + low`, for `self` from 0 to below its end and `low` at most an ulp of it; unspecified for other
    /// arguments, and NaN of NaN. `None` at levels where that would not be fast.
    #[inline(always)]
    fn on_pieces<const N: usize>(self, _low: Self, _pieces: &'static WidePieces<N>) -> Option<Self> {
        None
    }
}

/// The vectors of one level.
pub(crate) trait Lanes: 'static {
    type F32: Single;
    /// For functions that may, on many elements: as many vectors in step as keep the CPU busy while each
    /// instruction waits for the one before.
    type ManyF32: Single;
    type F64: Double;
}

/// A computation written over any [`Lanes`]. All of it must be `#[inline(always)]`, and
/// vectors must not pass through closures or iterators: what is not inlined is compiled for the baseline.
pub(crate) trait Kernel {
    fn run<L: Lanes>(self);
}

/// Runs `kernel` without vectors, and compiles it for no other level.
#[inline]
pub(crate) fn at_baseline<K: Kernel>(kernel: K) {
    kernel.run::<scalar::Scalar>();
}

/// Runs `kernel` with the vectors of a level.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        Level::Baseline => kernel.run::<scalar::Scalar>(),
        // SAFETY: the `Isa` is the proof that the CPU has the level.
        Level::Avx2 => unsafe { avx2::run(kernel) },
        // SAFETY: as above.
        Level::Avx512 | Level::Amx => unsafe { avx512::run(kernel) },
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        kernel.run::<scalar::Scalar>();
    }
}
