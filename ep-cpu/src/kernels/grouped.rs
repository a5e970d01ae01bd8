//! Loops over elements that are converted many at a time.
//!
//! The compiler makes vectors of a loop over values, but does not choose what levels have for f16 and bf16.
//! Here a group of elements is converted by these, and a loop of fixed length over its values in between becomes
//! operations on the same registers.

use super::elem::{GROUP, Group, Storage};
use super::simd::{self, Kernel, Lanes};
use crate::isa::Isa;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// A function of `N` elements `S` that gives a `D`.
pub(super) trait Function<S: Storage, D: Storage, const N: usize>: 'static {
    fn apply(values: [S::Value; N], attr: [f64; 2]) -> D::Value;
}

/// Computes `n` elements.
///
/// # Safety
/// The sources are readable and `dst` is writable for `n` aligned elements, and `dst` overlaps no source.
pub(super) unsafe fn run<F: Function<S, D, N>, S: Storage, D: Storage, const N: usize>(
    isa: Isa,
    attr: [f64; 2],
    src: [*const S; N],
    dst: *mut D,
    n: usize,
) {
    simd::dispatch(isa, Grouped { src, dst, n, attr, function: PhantomData::<fn(F)> });
}

/// Made only under the promises of [`run`].
struct Grouped<F, S, D, const N: usize> {
    src: [*const S; N],
    dst: *mut D,
    n: usize,
    attr: [f64; 2],
    function: PhantomData<fn(F)>,
}

impl<F: Function<S, D, N>, S: Storage, D: Storage, const N: usize> Kernel for Grouped<F, S, D, N> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Grouped { src, dst, n, attr, .. } = self;
        let whole = n - n % GROUP;
        let mut at = src;
        // SAFETY: all groups but the last are within the `n` elements, and it is made of copies.
        unsafe {
            for i in (0..whole).step_by(GROUP) {
                for k in 0..N {
                    at[k] = src[k].add(i);
                }
                group::<F, S, D, L, N>(at, dst.add(i), attr);
            }
            if whole == n {
                return;
            }
            let mut from = [[const { MaybeUninit::<S>::uninit() }; GROUP]; N];
            let mut to = [const { MaybeUninit::<D>::uninit() }; GROUP];
            for k in 0..N {
                let start = src[k].add(whole);
                from[k] = [MaybeUninit::new(start.read()); GROUP];
                start.copy_to_nonoverlapping(from[k].as_mut_ptr().cast(), n - whole);
                at[k] = from[k].as_ptr().cast();
            }
            group::<F, S, D, L, N>(at, to.as_mut_ptr().cast(), attr);
            dst.add(whole).copy_from_nonoverlapping(to.as_ptr().cast(), n - whole);
        }
    }
}

/// # Safety
/// The sources are readable and `dst` is writable for a group.
#[inline(always)]
unsafe fn group<F: Function<S, D, N>, S: Storage, D: Storage, L: Lanes, const N: usize>(
    src: [*const S; N],
    dst: *mut D,
    attr: [f64; 2],
) {
    let mut values = [const { MaybeUninit::<Group<S::Value>>::uninit() }; N];
    let mut results = MaybeUninit::<Group<D::Value>>::uninit();
    let to = results.as_mut_ptr().cast::<D::Value>();
    // SAFETY: the caller's promise; the values are all written before they are read, and so are the results.
    unsafe {
        for k in 0..N {
            values[k].write(S::load_group::<L>(src[k]));
        }
        for i in 0..GROUP {
            let mut x = [values[0].assume_init_ref().0[i]; N];
            for k in 1..N {
                x[k] = values[k].assume_init_ref().0[i];
            }
            to.add(i).write(F::apply(x, attr));
        }
        D::store_group::<L>(results.assume_init_ref(), dst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elem::Bool;
    use crate::kernels::testing::{Guarded, Rng};
    use half::{bf16, f16};

    struct Least;

    impl Function<f16, f16, 2> for Least {
        #[inline(always)]
        fn apply([a, b]: [f32; 2], [c, _]: [f64; 2]) -> f32 {
            if a < b { a * c as f32 } else { b }
        }
    }

    struct Less;

    impl Function<f16, Bool, 2> for Less {
        #[inline(always)]
        fn apply([a, b]: [f32; 2], _: [f64; 2]) -> u8 {
            u8::from(a < b)
        }
    }

    impl Function<bf16, bf16, 2> for Least {
        #[inline(always)]
        fn apply([a, b]: [f32; 2], [c, _]: [f64; 2]) -> f32 {
            if a < b { a * c as f32 } else { b }
        }
    }

    struct Half;

    impl Function<f32, f16, 1> for Half {
        #[inline(always)]
        fn apply([a]: [f32; 1], _: [f64; 2]) -> f32 {
            a * 0.5
        }
    }

    fn check<F: Function<S, D, N>, S: Storage, D: Storage, const N: usize>(
        isa: Isa,
        src: [&[S]; N],
        same: impl Fn(&D, &D) -> bool,
    ) {
        let attr = [3.0, 0.0];
        let n = src[0].len();
        let mut dst = Guarded::<D>::new(n);
        // SAFETY: all have `n` elements, and the destination is its own.
        unsafe { run::<F, S, D, N>(isa, attr, src.map(<[S]>::as_ptr), dst.ptr(), n) };
        for (i, got) in dst.written().iter().enumerate() {
            let want = D::store(F::apply(src.map(|s| s[i].load()), attr));
            assert!(same(got, &want), "element {i} of {n} at {isa}");
        }
    }

    /// Any bits, so all kinds of numbers; lengths around those of groups, at odd addresses.
    #[test]
    fn groups_are_what_each_element_is() {
        let mut rng = Rng::new();
        let halves: Vec<f16> = (0..400).map(|_| f16::from_bits(rng.next() as u16)).collect();
        let singles: Vec<f32> = (0..200).map(|_| f32::from_bits(rng.next() as u32)).collect();
        let brains: Vec<bf16> = halves.iter().map(|h| bf16::from_bits(h.to_bits())).collect();
        let number = |a: &f16, b: &f16| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        for isa in Isa::available() {
            for n in [0, 1, 5, 31, 32, 33, 64, 95, 130] {
                for start in [0, 1, 3] {
                    let (a, b) = (&halves[start..][..n], &halves[200..][..n]);
                    check::<Least, f16, f16, 2>(isa, [a, b], number);
                    let (c, d) = (&brains[start..][..n], &brains[200..][..n]);
                    check::<Least, bf16, bf16, 2>(isa, [c, d], |a, b| a.to_bits() == b.to_bits());
                    check::<Less, f16, Bool, 2>(isa, [a, b], |a, b| a.load() == b.load());
                    check::<Half, f32, f16, 1>(isa, [&singles[start..][..n]], number);
                }
            }
        }
    }
}
