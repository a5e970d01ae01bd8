//! Special values in what is computed element by element.

use crate::launch::{Launch, Rig};
use ep_core::{DType, Scalar};
use primitives::reference::Number;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(half::bf16::MAX),
        DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}

#[test]
fn sums_of_special_values() {
    let rig = Rig::new(1);
    let add = |dtype, arity, n| Launch::of("add").dtype("data", dtype).arity(arity).sizes(["count"], [n]);
    for dtype in FLOATS {
        let most = largest(dtype);
        let launch = add(dtype, 2, 5).reals("srcs", &[NAN, INF, INF, most, -0.0]);
        rig.gives(&launch.reals("srcs", &[1.0, 1.0, -INF, most, -0.0]), "dst", &[NAN, INF, NAN, INF, -0.0]);
    }
    // From left to right, in f32: what comes back into the range of f16 was never out of that of f32.
    let launch = add(DType::F16, 3, 1).reals("srcs", &[65504.0]).reals("srcs", &[65504.0]);
    rig.gives(&launch.reals("srcs", &[-65504.0]), "dst", &[65504.0]);
    let launch = add(DType::F32, 3, 1).reals("srcs", &[1.0]).reals("srcs", &[largest(DType::F32)]);
    rig.gives(&launch.reals("srcs", &[-largest(DType::F32)]), "dst", &[0.0]);
    for (dtype, a, b, sum) in [
        (DType::I8, 127, 1, -128),
        (DType::U8, 255, 2, 1),
        (DType::I16, -32768, -1, 32767),
        (DType::I32, i64::from(i32::MAX), 2, i64::from(i32::MIN) + 1),
        (DType::I64, i64::MAX, 1, i64::MIN),
        (DType::BOOL, 1, 1, 1),
    ] {
        let launch = add(dtype, 2, 1).ints("srcs", &[a]).ints("srcs", &[b]);
        assert_eq!(rig.output(&launch, "dst")[0].int(), i128::from(sum), "{dtype}");
    }
    rig.gives(&add(DType::F32, 0, 3), "dst", &[0.0; 3]);
    rig.gives(&add(DType::F32, 1, 2).reals("srcs", &[NAN, -0.0]), "dst", &[NAN, -0.0]);
}

#[test]
fn sequences_of_special_values() {
    let rig = Rig::new(1);
    let arange = |dtype, start: Scalar, step: Scalar| {
        Launch::of("arange")
            .dtype("data", dtype)
            .sizes(["count"], [3])
            .scalar("start", start)
            .scalar("step", step)
    };
    for dtype in FLOATS {
        rig.gives(&arange(dtype, NAN.into(), 1.0.into()), "dst", &[NAN; 3]);
        // 0 * infinity is NaN.
        rig.gives(&arange(dtype, 1.0.into(), INF.into()), "dst", &[NAN, INF, INF]);
        rig.gives(&arange(dtype, (-INF).into(), 1.0.into()), "dst", &[-INF; 3]);
        rig.gives(&arange(dtype, 0.0.into(), largest(dtype).into()), "dst", &[0.0, largest(dtype), INF]);
        rig.gives(&arange(dtype, Scalar::None, Scalar::None), "dst", &[0.0, 1.0, 2.0]);
    }
    rig.gives(&arange(DType::I8, 126i64.into(), 1i64.into()), "dst", &[126.0, 127.0, -128.0]);
    rig.gives(&arange(DType::U16, (-1i64).into(), 1i64.into()), "dst", &[65535.0, 0.0, 1.0]);
    // As `fill` converts, to 64 bits: NaN is 0, and what is beyond saturates before it is cut.
    rig.gives(&arange(DType::I32, NAN.into(), INF.into()), "dst", &[0.0, -1.0, -2.0]);
}

#[test]
fn casts_of_special_values() {
    let rig = Rig::new(1);
    let cast = |src, dst, n: usize| {
        Launch::of("cast").dtype("src", src).dtype("dst", dst).sizes(["count"], [n as i64])
    };
    for src in FLOATS {
        let from = [NAN, INF, -INF, 2.75, -2.75, -0.0];
        let to = |dst| cast(src, dst, 6).reals("src", &from);
        rig.gives(&to(DType::I8), "dst", &[0.0, 127.0, -128.0, 2.0, -2.0, 0.0]);
        rig.gives(&to(DType::U16), "dst", &[0.0, 65535.0, 0.0, 2.0, 0.0, 0.0]);
        rig.gives(&to(DType::BOOL), "dst", &[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
        let i64s = rig.output(&to(DType::I64), "dst");
        assert_eq!(i64s[1..3], [Number::Int(i64::MAX.into()), Number::Int(i64::MIN.into())], "{src}");
        for dst in FLOATS {
            rig.gives(&to(dst), "dst", &from);
            if largest(src) > largest(dst) {
                let wide = cast(src, dst, 2).reals("src", &[largest(src), -largest(src)]);
                rig.gives(&wide, "dst", &[INF, -INF]);
            }
        }
        let complex = rig.output(&to(DType::COMPLEX64), "dst");
        assert!(
            complex[0].re().is_nan() && complex.iter().all(|c| c.im().to_bits() == 0),
            "{src}: {complex:?}"
        );
    }
    rig.gives(&cast(DType::I64, DType::I8, 2).ints("src", &[300, i64::MIN]), "dst", &[44.0, 0.0]);
    rig.gives(&cast(DType::U64, DType::F16, 1).numbers("src", [Number::Int(u64::MAX.into())]), "dst", &[INF]);
    let complex = [Number::Complex(NAN, 1.0), Number::Complex(0.0, INF), Number::Complex(0.0, -0.0)];
    rig.gives(&cast(DType::COMPLEX128, DType::F32, 3).numbers("src", complex), "dst", &[NAN, 0.0, 0.0]);
    rig.gives(&cast(DType::COMPLEX128, DType::BOOL, 3).numbers("src", complex), "dst", &[1.0, 1.0, 0.0]);
}

fn unary(op: &'static str, src: DType, dst: DType, values: &[f64]) -> Launch {
    let launch = Launch::of("elementwise_unary").selector("op", op).dtype("src", src).dtype("dst", dst);
    launch.sizes(["count"], [values.len() as i64]).reals("src", values)
}

#[test]
fn functions_of_special_values() {
    let rig = Rig::new(1);
    for dtype in FLOATS {
        let most = largest(dtype);
        for (op, from, want) in [
            ("identity", &[NAN, INF, -0.0][..], &[NAN, INF, -0.0][..]),
            ("negative", &[NAN, INF, 0.0], &[NAN, -INF, -0.0]),
            ("abs", &[NAN, -INF, -0.0], &[NAN, INF, 0.0]),
            ("relu", &[NAN, -INF, INF], &[NAN, 0.0, INF]),
            ("exp", &[NAN, -INF, INF, most], &[NAN, 0.0, INF, INF]),
            ("log", &[NAN, INF, 0.0, -1.0], &[NAN, INF, -INF, NAN]),
            ("sqrt", &[NAN, INF, -1.0, -0.0], &[NAN, INF, NAN, -0.0]),
            ("square", &[NAN, -INF, most], &[NAN, INF, INF]),
            ("sin", &[NAN, INF, -INF], &[NAN, NAN, NAN]),
            ("tanh", &[NAN, INF, -INF, most], &[NAN, 1.0, -1.0, 1.0]),
            ("sigmoid", &[NAN, INF, -INF], &[NAN, 1.0, 0.0]),
            ("sign", &[INF, -INF, 0.0], &[1.0, -1.0, 0.0]),
            // Division by zero.
            ("reciprocal", &[NAN, 0.0, -0.0, INF], &[NAN, INF, -INF, 0.0]),
            ("reciprocal_no_nan", &[0.0, -0.0, 2.0], &[0.0, 0.0, 0.5]),
            ("rsqrt", &[NAN, 0.0, INF], &[NAN, INF, 0.0]),
        ] {
            let launch = unary(op, dtype, dtype, from);
            let got = rig.output(&launch, "dst");
            // The sign of a zero that replaces something is not of interest.
            let same = |(g, w): (&Number, &f64)| {
                g.same(Number::Real(*w)) || op == "reciprocal_no_nan" && g.re() == *w
            };
            assert!(got.iter().zip(want).all(same), "{op} {dtype} of {from:?}: {got:?}");
        }
        for (op, want) in
            [("is_nan", [1.0, 0.0, 0.0]), ("is_inf", [0.0, 1.0, 0.0]), ("is_finite", [0.0, 0.0, 1.0])]
        {
            rig.gives(&unary(op, dtype, DType::BOOL, &[NAN, -INF, most]), "dst", &want);
        }
    }
    rig.gives(&unary("negative", DType::I8, DType::I8, &[-128.0, 127.0]), "dst", &[-128.0, -127.0]);
    rig.gives(&unary("abs", DType::I16, DType::I16, &[-32768.0]), "dst", &[-32768.0]);
    rig.gives(&unary("square", DType::U8, DType::U8, &[16.0, 15.0]), "dst", &[0.0, 225.0]);
}

/// The strided ops compute the same functions.
#[test]
fn strided_functions_of_special_values() {
    let rig = Rig::new(1);
    for dtype in FLOATS {
        let launch = Launch::of("broadcast_elementwise_unary").selector("op", "reciprocal");
        let launch = launch.dtype("src", dtype).dtype("dst", dtype).list("src_dims", &[4]);
        let launch = launch.list("src_strides", &[1]).list("dst_dims", &[4]).list("dst_strides", &[1]);
        rig.gives(&launch.reals("src", &[NAN, INF, 0.0, -0.0]), "dst", &[NAN, 0.0, INF, -INF]);
    }
}

fn binary(op: &'static str, src: DType, dst: DType) -> Launch {
    Launch::of("broadcast_elementwise_binary").selector("op", op).dtype("src", src).dtype("dst", dst)
}

#[test]
fn pairs_of_special_values() {
    let rig = Rig::new(1);
    let of = |op, src, dst, a: &[f64], b: &[f64]| {
        let dims = [a.len() as i64];
        binary(op, src, dst)
            .list("src0_dims", &dims)
            .list("src1_dims", &dims)
            .reals("src0", a)
            .reals("src1", b)
    };
    for dtype in FLOATS {
        let most = largest(dtype);
        for (op, a, b, want) in [
            ("add", [INF, most, NAN], [-INF, most, 1.0], [NAN, INF, NAN]),
            ("sub", [INF, -most, 0.0], [INF, most, NAN], [NAN, -INF, NAN]),
            ("mul", [INF, most, 0.0], [0.0, -2.0, NAN], [NAN, -INF, NAN]),
            ("div", [1.0, -1.0, 0.0], [0.0, 0.0, 0.0], [INF, -INF, NAN]),
            ("div", [INF, 1.0, NAN], [INF, -0.0, 0.0], [NAN, -INF, NAN]),
            ("max", [NAN, 1.0, INF], [1.0, NAN, 2.0], [NAN, NAN, INF]),
            ("min", [NAN, 1.0, -INF], [1.0, NAN, 2.0], [NAN, NAN, -INF]),
            ("fmod", [1.0, INF, 5.0], [0.0, 2.0, INF], [NAN, NAN, 5.0]),
            ("pow", [2.0, 0.0, NAN], [INF, -1.0, 0.0], [INF, INF, 1.0]),
        ] {
            rig.gives(&of(op, dtype, dtype, &a, &b), "dst", &want);
        }
        for (op, want) in [
            ("equal", [0.0, 0.0, 1.0, 1.0]),
            ("not_equal", [1.0, 1.0, 0.0, 0.0]),
            ("less_than", [0.0; 4]),
            ("less_equal", [0.0, 0.0, 1.0, 1.0]),
            ("greater_equal", [0.0, 0.0, 1.0, 1.0]),
            ("logical_and", [1.0, 1.0, 1.0, 0.0]),
        ] {
            let (a, b) = ([NAN, NAN, INF, 0.0], [NAN, 1.0, INF, -0.0]);
            rig.gives(&of(op, dtype, DType::BOOL, &a, &b), "dst", &want);
        }
    }
    for (dtype, low, high) in [(DType::I8, -128.0, 127.0), (DType::I32, -2147483648.0, 2147483647.0)] {
        for (op, a, b, want) in [
            ("add", high, 1.0, low),
            ("sub", low, 1.0, high),
            ("mul", low, -1.0, low),
            ("div", low, -1.0, low),
            ("floor_div", low, -1.0, low),
            ("trunc_div", low, -1.0, low),
            ("fmod", low, -1.0, 0.0),
            ("floor_mod", low, -1.0, 0.0),
            ("div", 5.0, 0.0, 0.0),
            ("floor_div", -5.0, 0.0, 0.0),
            ("trunc_div", 5.0, 0.0, 0.0),
            ("fmod", 5.0, 0.0, 0.0),
            ("floor_mod", -5.0, 0.0, 0.0),
        ] {
            rig.gives(&of(op, dtype, dtype, &[a], &[b]), "dst", &[want]);
        }
    }
}

#[test]
fn scalars_convert_and_stand_in() {
    let rig = Rig::new(1);
    let with = |dtype, scalar: Scalar| {
        binary("add", dtype, dtype).list("src0_dims", &[2]).list("src1_dims", &[]).scalar("scalar1", scalar)
    };
    rig.gives(&with(DType::F16, 1e9.into()).reals("src0", &[0.0, -INF]), "dst", &[INF, NAN]);
    rig.gives(&with(DType::I8, 1e9.into()).ints("src0", &[0, 1]), "dst", &[127.0, -128.0]);
    rig.gives(&with(DType::I8, NAN.into()).ints("src0", &[0, 1]), "dst", &[0.0, 1.0]);
    rig.gives(&with(DType::U8, (-1i64).into()).ints("src0", &[0, 1]), "dst", &[255.0, 0.0]);
}
