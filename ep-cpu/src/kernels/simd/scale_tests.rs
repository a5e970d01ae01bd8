//! Scaling by powers of two beside the product that it stands for.

use super::{Kernel, Lanes, Vector, dispatch};
use crate::isa::{Isa, SUBNORMALS_FORCED};

/// Both ways of scaling each pair, bit by bit.
struct Scaled<'a> {
    singles: (&'a [f32], &'a [f32], &'a mut Vec<[u32; 2]>),
    doubles: (&'a [f64], &'a [f64], &'a mut Vec<[u64; 2]>),
}

/// The pairs that make up whole vectors.
#[inline(always)]
fn both<V: Vector>(x: &[V::Elem], n: &[V::Elem], mut put: impl FnMut(V::Elem, V::Elem)) {
    for (x, n) in x.chunks_exact(V::LANES).zip(n.chunks_exact(V::LANES)) {
        let mut out = [[x[0]; super::MAX_LANES]; 2];
        // SAFETY: the slices are vectors, and the arrays have room for one.
        unsafe {
            let (x, n) = (V::load(x.as_ptr()), V::load(n.as_ptr()));
            x.scale(n).store(out[0].as_mut_ptr());
            x.scale_by_product(n).store(out[1].as_mut_ptr());
        }
        let [scaled, products] = out;
        for (scaled, product) in scaled.into_iter().zip(products).take(V::LANES) {
            put(scaled, product);
        }
    }
}

impl Kernel for Scaled<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (x, n, out) = self.singles;
        both::<L::F32>(x, n, |a, b| out.push([a.to_bits(), b.to_bits()]));
        let (x, n, out) = self.doubles;
        both::<L::F64>(x, n, |a, b| out.push([a.to_bits(), b.to_bits()]));
    }
}

/// All that a number may be: around 1, with all digits, halfway between two when digits are lost, far from 1, and none.
fn numbers() -> Vec<f64> {
    let mut all = vec![0.0, 1.0, 1.5, 1.25, 1.75, f64::INFINITY, f64::NAN, 1000.0, 3.0e7, 6.0e-8];
    for digits in [23, 52] {
        let least = 2f64.powi(-digits);
        all.extend([1.0 + least, 2.0 - least, 1.0 + 3.0 * least, 1.5 + least, 1.5 - least]);
    }
    all.extend([0.75, 0.625].map(|x| x + 2f64.powi(-20)));
    all.iter().flat_map(|&x| [x, -x]).collect()
}

#[test]
fn scaling_rounds_as_a_product_does() {
    // Where these are fast, it is such a product.
    SUBNORMALS_FORCED.set(Some(false));
    let numbers = numbers();
    // Low powers beside others, in every order.
    let pairs = |least: i32, most: i32| {
        let powers: Vec<i32> = (least..=most).collect();
        let mixed = powers.iter().zip(powers.iter().rev()).flat_map(|(&a, &b)| [a, a, b]);
        let mixed: Vec<i32> = mixed.collect();
        numbers.iter().flat_map(|&x| mixed.iter().map(move |&n| (x, f64::from(n)))).collect::<Vec<_>>()
    };
    let (singles, doubles) = (pairs(-250, 250), pairs(-2040, 2040));
    let single = |x: &f64| *x as f32;
    let (xs, ns): (Vec<f64>, Vec<f64>) = singles.into_iter().unzip();
    let (xs, ns): (Vec<f32>, Vec<f32>) = (xs.iter().map(single).collect(), ns.iter().map(single).collect());
    let (xd, nd): (Vec<f64>, Vec<f64>) = doubles.into_iter().unzip();
    for isa in Isa::available() {
        let (mut of_singles, mut of_doubles) = (Vec::new(), Vec::new());
        dispatch(isa, Scaled { singles: (&xs, &ns, &mut of_singles), doubles: (&xd, &nd, &mut of_doubles) });
        assert!(of_singles.len() + 64 > xs.len() && of_doubles.len() + 64 > xd.len());
        for (i, [scaled, product]) in of_singles.into_iter().enumerate() {
            let nan = f32::from_bits(scaled).is_nan() && f32::from_bits(product).is_nan();
            assert!(
                nan || scaled == product,
                "{:e} 2^{} at {isa}: {scaled:x}, not {product:x}",
                xs[i],
                ns[i]
            );
        }
        for (i, [scaled, product]) in of_doubles.into_iter().enumerate() {
            let nan = f64::from_bits(scaled).is_nan() && f64::from_bits(product).is_nan();
            assert!(
                nan || scaled == product,
                "{:e} 2^{} at {isa}: {scaled:x}, not {product:x}",
                xd[i],
                nd[i]
            );
        }
    }
    SUBNORMALS_FORCED.set(None);
}
