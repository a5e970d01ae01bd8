//! `softmax`, `log_softmax`, `matmul` and `batch_matmul`.

use crate::support::{Num, Random, Rig, bytes_of, check};
use ep_core::primitive::{
    BatchMatmul, BatchMatmulCall, BatchMatmulDesc, LogSoftmax, LogSoftmaxCall, LogSoftmaxDesc, Matmul,
    MatmulCall, MatmulDesc, Softmax, SoftmaxCall, SoftmaxDesc, Transpose,
};
use ep_core::{DType, Scalar};
use ep_registry::InPlace;

const ROWS: usize = 5;
const COLS: usize = 19;

/// Softmax of each row in f64; its logarithm with `log`.
fn softmax(x: &[Num], log: bool) -> Vec<Num> {
    let row = |row: &[Num]| {
        let max = row.iter().map(|x| x.float()).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x.float() - max).exp()).sum();
        let value = |x: f64| if log { x - max - sum.ln() } else { (x - max).exp() / sum };
        row.iter().map(|x| Num::Float(value(x.float()))).collect::<Vec<_>>()
    };
    x.chunks(COLS).flat_map(row).collect()
}

/// Rows of quarters with a `-inf`, one with a NaN, one with `inf`, one with nothing but `-inf`.
fn rows(random: &mut Random, dtype: DType) -> Vec<Num> {
    let mut x = random.wholes(dtype, ROWS * COLS);
    x[3] = Num::Float(f64::NEG_INFINITY);
    x[COLS + 4] = Num::Float(f64::NAN);
    x[2 * COLS + 5] = Num::Float(f64::INFINITY);
    x[3 * COLS..4 * COLS].fill(Num::Float(f64::NEG_INFINITY));
    x
}

#[test]
fn softmaxes_of_every_pair_of_dtypes() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let (rows_arg, cols) = (ROWS as i64, COLS as i64);
    for (src, dst) in DType::FLOAT.iter().flat_map(|src| DType::FLOAT.iter().map(move |dst| (*src, *dst))) {
        let x = rows(&mut random, src);
        let a = rig.upload(src, &x);
        // Sums are of f32 unless one side is f64, and results are rounded to `dst`, whose ulp is this near 1.
        let tolerance = match dst {
            DType::F16 => 1e-3,
            DType::BF16 => 8e-3,
            _ if src == DType::F64 || dst == DType::F64 => 1e-7,
            _ => 1e-6,
        };
        let softmax_of = rig.runtime.primitive::<Softmax>(rig.cpu(), SoftmaxDesc::new(src, dst)).unwrap();
        let log_of = rig.runtime.primitive::<LogSoftmax>(rig.cpu(), LogSoftmaxDesc::new(src, dst)).unwrap();
        for log in [false, true] {
            let op = if log { "log_softmax" } else { "softmax" };
            let request = rig.request(op, &[], &[("src", src), ("dst", dst)]);
            let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
            let got = rig.outputs(
                dst,
                ROWS * COLS,
                |b| match log {
                    true => log_of.launch(
                        &rig.stream,
                        LogSoftmaxCall { rows: rows_arg, cols, inner: 1, src: &a, dst: b },
                    ),
                    false => softmax_of
                        .launch(&rig.stream, SoftmaxCall { rows: rows_arg, cols, inner: 1, src: &a, dst: b }),
                },
                |b| {
                    let args = dynamic.args().size("rows", rows_arg)?.size("cols", cols)?;
                    dynamic.launch(&rig.stream, args.read("src", &a)?.write("dst", b)?)
                },
            );
            check(&format!("{op} from {src} to {dst}"), dst, &got, &softmax(&x, log), tolerance);
            if src.size() == dst.size() {
                // In place the buffer has the destination's dtype and the source's bytes.
                let mut data = rig.upload(src, &x).reinterpret(dst).unwrap();
                let launched = match log {
                    true => log_of.launch(
                        &rig.stream,
                        LogSoftmaxCall { rows: rows_arg, cols, inner: 1, src: InPlace, dst: &mut data },
                    ),
                    false => softmax_of.launch(
                        &rig.stream,
                        SoftmaxCall { rows: rows_arg, cols, inner: 1, src: InPlace, dst: &mut data },
                    ),
                };
                launched.unwrap();
                assert!(bytes_of(data) == got, "{op} from {src} to {dst} in place");
            }
        }
    }
}

fn add(a: Num, b: Num) -> Num {
    match (a, b) {
        (Num::Int(a), Num::Int(b)) => Num::Int(a + b),
        (Num::Complex(a, x), Num::Complex(b, y)) => Num::Complex(a + b, x + y),
        _ => Num::Float(a.float() + b.float()),
    }
}

fn mul(a: Num, b: Num) -> Num {
    match (a, b) {
        (Num::Int(a), Num::Int(b)) => Num::Int(a.wrapping_mul(b)),
        (Num::Complex(a, x), Num::Complex(b, y)) => Num::Complex(a * b - x * y, a * y + x * b),
        _ => Num::Float(a.float() * b.float()),
    }
}

/// A product of the dtype's numbers.
struct Shape {
    m: usize,
    n: usize,
    k: usize,
    trans: [bool; 2],
}

impl Shape {
    /// `alpha * op(a) * op(b) + beta * c`; a transposed complex factor is conjugated.
    fn product(&self, a: &[Num], b: &[Num], c: &[Num], alpha: Num, beta: Num) -> Vec<Num> {
        let &Shape { m, n, k, trans } = self;
        let conj = |x: Num| if let Num::Complex(re, im) = x { Num::Complex(re, -im) } else { x };
        let at_a = |i: usize, p: usize| if trans[0] { conj(a[p * m + i]) } else { a[i * k + p] };
        let at_b = |p: usize, j: usize| if trans[1] { conj(b[j * k + p]) } else { b[p * n + j] };
        let zero = mul(alpha, Num::Int(0));
        let one = |i: usize, j: usize| {
            let terms = (0..k).map(|p| mul(at_a(i, p), at_b(p, j)));
            let sum = terms.reduce(add).unwrap_or(zero);
            add(mul(alpha, sum), mul(beta, c[i * n + j]))
        };
        (0..m).flat_map(|i| (0..n).map(move |j| one(i, j)).collect::<Vec<_>>()).collect()
    }
}

/// The dtype's number for `re + im i`, or what it has of it.
fn number(dtype: DType, re: i32, im: i32) -> Num {
    match dtype {
        d if d.is_complex() => Num::Complex(re.into(), im.into()),
        d if d.is_float() => Num::Float(re.into()),
        _ => Num::Int(re.into()),
    }
}

fn transposes() -> impl Iterator<Item = [bool; 2]> {
    [false, true].into_iter().flat_map(|a| [false, true].map(|b| [a, b]))
}

fn name(transposed: bool) -> &'static str {
    if transposed { "transpose" } else { "none" }
}

#[test]
fn products_of_every_dtype_and_transpose() {
    let (rig, mut random) = (Rig::new(), Random::new());
    let selector = |t: bool| if t { Transpose::TRANSPOSE } else { Transpose::NONE };
    let dtypes = DType::ALL.into_iter().filter(|d| *d != DType::BOOL);
    for (dtype, trans) in dtypes.flat_map(|d| transposes().map(move |t| (d, t))) {
        let shape = Shape { m: 5, n: 6, k: 7, trans };
        let batch = 3;
        let (a, b) = (random.wholes(dtype, batch * 35), random.wholes(dtype, batch * 42));
        let c = random.wholes(dtype, batch * 30);
        let (alpha, beta) = (number(dtype, 2, -1), number(dtype, 3, 1));
        let (buffer_a, buffer_b) = (rig.upload(dtype, &a), rig.upload(dtype, &b));
        let (m, n, k) = (5, 6, 7);
        let what = format!("{dtype} {trans:?}");
        let selectors = [("transpose_a", name(trans[0])), ("transpose_b", name(trans[1]))];

        let desc = MatmulDesc::new(selector(trans[0]), selector(trans[1]), dtype);
        let typed = rig.runtime.primitive::<Matmul>(rig.cpu(), desc).unwrap();
        let request = rig.request("matmul", &selectors, &[("data", dtype)]);
        let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
        // Without factors the old result, poison here, does not matter.
        let got = rig.outputs(
            dtype,
            30,
            |c| {
                let (alpha, beta) = (Scalar::None, Scalar::None);
                typed.launch(&rig.stream, MatmulCall { m, n, k, alpha, beta, a: &buffer_a, b: &buffer_b, c })
            },
            |c| {
                let args = dynamic.args().size("m", m)?.size("n", n)?.size("k", k)?;
                let args = args.read("a", &buffer_a)?.read("b", &buffer_b)?.write("c", c)?;
                dynamic.launch(&rig.stream, args)
            },
        );
        let (one, zero) = (number(dtype, 1, 0), number(dtype, 0, 0));
        let want = shape.product(&a[..35], &b[..42], &c, one, zero);
        check(&what, dtype, &got, &want, 0.0);

        let mut buffer_c = rig.upload(dtype, &c[..30]);
        let call = MatmulCall {
            m,
            n,
            k,
            alpha: alpha.scalar(),
            beta: beta.scalar(),
            a: &buffer_a,
            b: &buffer_b,
            c: &mut buffer_c,
        };
        typed.launch(&rig.stream, call).unwrap();
        let want = shape.product(&a[..35], &b[..42], &c, alpha, beta);
        check(&format!("{what} with factors"), dtype, &bytes_of(buffer_c), &want, 0.0);

        let desc = BatchMatmulDesc::new(selector(trans[0]), selector(trans[1]), dtype);
        let typed = rig.runtime.primitive::<BatchMatmul>(rig.cpu(), desc).unwrap();
        let request = rig.request("batch_matmul", &selectors, &[("data", dtype)]);
        let dynamic = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
        let want: Vec<_> = (0..batch)
            .flat_map(|i| shape.product(&a[i * 35..], &b[i * 42..], &c[i * 30..], alpha, beta))
            .collect();
        let (alpha, beta, batch) = (alpha.scalar(), beta.scalar(), batch as i64);
        let mut by_types = rig.upload(dtype, &c);
        let call =
            BatchMatmulCall { batch, m, n, k, alpha, beta, a: &buffer_a, b: &buffer_b, c: &mut by_types };
        typed.launch(&rig.stream, call).unwrap();
        let by_types = bytes_of(by_types);
        check(&format!("{what} in a batch"), dtype, &by_types, &want, 0.0);
        let mut by_name = rig.upload(dtype, &c);
        let args = dynamic.args().size("batch", batch).unwrap().size("m", m).unwrap().size("n", n).unwrap();
        let args = args.size("k", k).unwrap().scalar("alpha", alpha).unwrap().scalar("beta", beta).unwrap();
        let args = args.read("a", &buffer_a).unwrap().read("b", &buffer_b).unwrap();
        dynamic.launch(&rig.stream, args.write("c", &mut by_name).unwrap()).unwrap();
        assert_eq!(bytes_of(by_name), by_types, "{what} in a batch by names");
    }
}

#[test]
fn an_empty_sum_is_zero_and_no_rows_are_nothing() {
    let rig = Rig::new();
    let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::F32);
    let matmul = rig.runtime.primitive::<Matmul>(rig.cpu(), desc).unwrap();
    let (alpha, beta) = (Scalar::None, Scalar::None);
    let a = rig.cpu().upload::<f32>(&[]).unwrap();
    let mut c = rig.cpu().upload(&[f32::NAN; 7]).unwrap();
    let call = MatmulCall { m: 2, n: 3, k: 0, alpha, beta, a: &a, b: &a, c: &mut c };
    matmul.launch(&rig.stream, call).unwrap();
    let call = MatmulCall { m: 0, n: 3, k: 0, alpha, beta, a: &a, b: &a, c: &mut c };
    matmul.launch(&rig.stream, call).unwrap();
    let c = c.download::<f32>().unwrap();
    assert!(c[..6].iter().all(|x| *x == 0.0) && c[6].is_nan(), "{c:?}");
}
