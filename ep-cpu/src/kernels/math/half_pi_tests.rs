use super::{Double, Math, Single};
use crate::isa::Isa;
use crate::kernels::simd::{Kernel, Lanes, MAX_LANES, Vector, dispatch};
use std::f64::consts::FRAC_PI_2;

type Three<T> = [[T; MAX_LANES]; 3];

struct Singles<'a>(&'a [f32], &'a mut Three<f32>);

impl Kernel for Singles<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for at in (0..MAX_LANES).step_by(L::F32::LANES) {
            // SAFETY: all have `MAX_LANES` elements, a multiple of the lanes.
            unsafe {
                let x = L::F32::load(self.0.as_ptr().add(at));
                for (y, out) in [Single::sin(x), Single::cos(x), Single::tan(x)].into_iter().zip(&mut *self.1)
                {
                    y.store(out.as_mut_ptr().add(at));
                }
            }
        }
    }
}

struct Doubles<'a>(&'a [f64], &'a mut Three<f64>);

impl Kernel for Doubles<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for at in (0..MAX_LANES).step_by(L::F64::LANES) {
            // SAFETY: as above.
            unsafe {
                let x = L::F64::load(self.0.as_ptr().add(at));
                for (y, out) in [Double::sin(x), Double::cos(x), Double::tan(x)].into_iter().zip(&mut *self.1)
                {
                    y.store(out.as_mut_ptr().add(at));
                }
            }
        }
    }
}

/// Angles that are near a multiple of pi / 2 of each magnitude, between two of them, and about the ends of the ways that angles
/// are reduced.
fn angles() -> Vec<f64> {
    let mut all = vec![0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
    for power in -140..129 {
        for _ in 0..24 {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let part = (bits >> 11) as f64 / (1u64 << 53) as f64;
            let x = (1.0 + part) * 2f64.powi(power - 1);
            all.extend([x, -x, (x / FRAC_PI_2).round() * FRAC_PI_2]);
        }
    }
    for end in [512.0, 1024.0, 2e5, 1e6, (1u32 << 30) as f64] {
        all.extend([end, end * 0.99999, end * 1.00001, -end]);
    }
    all
}

/// How far a result with so many binary digits is from another, in those of its last digit.
fn ulps(got: f64, want: f64, digits: i32) -> f64 {
    if got.is_nan() || want.is_nan() {
        return if got.is_nan() && want.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let exponent = (want.abs().to_bits() >> 52) as i32 - 1023;
    (got - want).abs() / 2f64.powi(exponent.max(if digits == 24 { -126 } else { -900 }) + 1 - digits)
}

/// Alone among small angles and beside others the same, within 2 ulps, of the tangent 4.
#[test]
fn single_angles_of_any_size() {
    let mut all: Vec<f32> = angles().into_iter().map(|x| x as f32).collect();
    // At the baseline further off than others of their size, by products that are rounded twice.
    all.push(581.210_27);
    // Those that are nearest to a multiple of pi / 2 among smaller ones, and among all.
    let multiples = (1..131_072).map(|k| f64::from(k) * FRAC_PI_2);
    all.extend(multiples.filter(|x| (f64::from(*x as f32) - x).abs() < 1e-6).map(|x| x as f32));
    all.push(f32::from_bits(0x6f79_be45));
    all.extend(all.clone().iter().map(|x| x.next_up()));
    all.resize(all.len().next_multiple_of(MAX_LANES), 0.5);
    for isa in Isa::available() {
        for chunk in all.chunks(MAX_LANES) {
            let mut y = [[0.0; MAX_LANES]; 3];
            dispatch(isa, Singles(chunk, &mut y));
            for (i, &x) in chunk.iter().enumerate() {
                let (mut near, mut alone) = ([0.25; MAX_LANES], [[0.0; MAX_LANES]; 3]);
                near[i] = x;
                dispatch(isa, Singles(&near, &mut alone));
                let wide = f64::from(x);
                let want = [libm::sin(wide), libm::cos(wide), libm::tan(wide)];
                for (way, want) in want.into_iter().enumerate() {
                    let got = y[way][i];
                    let same =
                        alone[way][i].to_bits() == got.to_bits() || got.is_nan() && alone[way][i].is_nan();
                    assert!(same, "{way} of {x:e} at {isa}");
                    let off = ulps(got.into(), want, 24);
                    assert!(
                        off <= if way == 2 { 4.0 } else { 2.0 },
                        "{way} of {x:e} at {isa}: {got:e}, not {want:e}: {off} ulps"
                    );
                    assert!(
                        want != 0.0 || got.is_sign_negative() == want.is_sign_negative(),
                        "{x:e} at {isa}"
                    );
                }
            }
        }
    }
}

/// Within 4 ulps, of the tangent 16, of what is itself within one.
#[test]
fn double_angles_of_any_size() {
    let mut all = angles();
    all.resize(all.len().next_multiple_of(MAX_LANES), 0.5);
    for isa in Isa::available() {
        for chunk in all.chunks(MAX_LANES) {
            let mut y = [[0.0; MAX_LANES]; 3];
            dispatch(isa, Doubles(chunk, &mut y));
            for (i, &x) in chunk.iter().enumerate() {
                let want = [libm::sin(x), libm::cos(x), libm::tan(x)];
                for (way, want) in want.into_iter().enumerate() {
                    let got = y[way][i];
                    let off = ulps(got, want, 53);
                    assert!(
                        off <= if way == 2 { 17.0 } else { 5.0 },
                        "{way} of {x:e} at {isa}: {got:e}, not {want:e}: {off} ulps"
                    );
                }
            }
        }
    }
}
