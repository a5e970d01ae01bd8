//! Special values and factors in products of matrices.

use crate::launch::{Launch, Rig};
use ep_core::{DType, Scalar};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// The three ops, on `[m, k]` and `[k, n]`.
fn products(dtype: DType, [m, n, k]: [i64; 3]) -> [Launch; 3] {
    let of = |op| {
        let launch = Launch::of(op).selector("transpose_a", "none").selector("transpose_b", "none");
        launch.dtype("data", dtype)
    };
    let sizes = ["m", "n", "k"];
    [
        of("matmul").sizes(sizes, [m, n, k]),
        of("batch_matmul").sizes(["batch"], [1]).sizes(sizes, [m, n, k]),
        of("broadcast_matmul").list("a_dims", &[m, k]).list("b_dims", &[k, n]).list("c_dims", &[m, n]),
    ]
}

#[test]
fn products_of_special_values() {
    let rig = Rig::new(1);
    for (dtype, most) in [
        (DType::F16, 65504.0),
        (DType::BF16, 3.3895313892515355e38),
        (DType::F32, f32::MAX as f64),
        (DType::F64, f64::MAX),
    ] {
        for product in products(dtype, [2, 2, 2]) {
            let with = |a: &[f64], b: &[f64]| product.clone().reals("a", a).reals("b", b);
            // A NaN reaches its row, or its column; infinity times 0 is NaN.
            rig.gives(&with(&[NAN, 0.0, 1.0, 0.0], &[1.0, 2.0, 3.0, 4.0]), "c", &[NAN, NAN, 1.0, 2.0]);
            rig.gives(&with(&[1.0, 0.0, 0.0, 1.0], &[1.0, NAN, 3.0, 4.0]), "c", &[1.0, NAN, 3.0, NAN]);
            rig.gives(&with(&[INF, 0.0, 1.0, 1.0], &[0.0, 1.0, 1.0, -1.0]), "c", &[NAN, INF, 1.0, 0.0]);
            rig.gives(
                &with(&[most, most, 1.0, 0.0], &[1.0, 0.5, 1.0, 0.0]),
                "c",
                &[INF, most / 2.0, 1.0, 0.5],
            );
        }
        for product in products(dtype, [1, 2, 2]) {
            let product = product.reals("a", &[NAN, INF]).reals("b", &[1.0, 1.0, 0.0, 1.0]);
            // Without alpha the factors are not read, without beta the old c is not.
            let scaled = product.clone().scalar("alpha", 0.0).scalar("beta", 2.0).reals("c", &[3.0, most]);
            rig.gives(&scaled, "c", &[6.0, INF]);
            rig.gives(&product.scalar("alpha", 0.0).scalar("beta", 0.0), "c", &[0.0, 0.0]);
        }
        for product in products(dtype, [1, 1, 1]) {
            let launch = product.reals("a", &[2.0]).reals("b", &[3.0]);
            rig.gives(&launch.clone().scalar("beta", 0.0), "c", &[6.0]);
            rig.gives(&launch.clone().scalar("beta", 1.0).reals("c", &[NAN]), "c", &[NAN]);
            rig.gives(&launch.scalar("alpha", INF), "c", &[INF]);
        }
        for product in products(dtype, [1, 2, 0]) {
            // Over nothing the product is 0, also where the factor is not finite.
            let launch = product.scalar("alpha", INF).scalar("beta", 1.0);
            rig.gives(&launch.reals("c", &[3.0, -0.5]), "c", &[3.0, -0.5]);
        }
    }
    for product in products(DType::I8, [1, 1, 2]) {
        rig.gives(&product.clone().ints("a", &[100, 100]).ints("b", &[1, 1]), "c", &[-56.0]);
        rig.gives(&product.ints("a", &[1, 1]).ints("b", &[1, 1]).scalar("alpha", 64i64), "c", &[-128.0]);
    }
}

#[test]
fn factors_must_exist_in_the_dtype() {
    let rig = Rig::new(1);
    for (dtype, factor, word) in [
        (DType::I32, Scalar::F64(0.5), "0.5"),
        (DType::I32, Scalar::F64(NAN), "NaN"),
        (DType::I8, Scalar::I64(128), "128"),
        (DType::F32, Scalar::Complex(1.0, 2.0), "2i"),
    ] {
        // Over nothing too, and where nothing is written.
        for sizes in [[1, 1, 1], [1, 1, 0], [0, 1, 1]] {
            for product in products(dtype, sizes) {
                let c = vec![1; sizes[0] as usize];
                rig.refuses(&product.clone().scalar("alpha", factor), &["alpha", word]);
                rig.refuses(&product.scalar("beta", factor).ints("c", &c), &["beta", word]);
            }
        }
    }
}

/// Tiles, and AVX-512's products of pairs, read subnormal factors as 0 and make no subnormal products and sums; other units
/// do both.
#[test]
fn what_is_subnormal_of_bf16_counts_or_is_zero() {
    let rig = Rig::new(1);
    let k = 40;
    // A subnormal factor, and two normal ones whose product is subnormal, though the sum of all is not.
    for powers in [[-133, 0], [-70, -60]] {
        let [a, b] = powers.map(|power| 2f64.powi(power));
        for product in products(DType::BF16, [40, 40, k]) {
            let launch = product.reals("a", &[a; 1600]).reals("b", &[b; 1600]);
            let got = rig.output(&launch, "c");
            assert!(got.iter().all(|x| x.re() == 0.0 || x.re() == k as f64 * a * b), "{powers:?}: {got:?}");
        }
    }
}
