//! Ops on complex numbers.

use super::*;

/// The product by its formula in f64.
pub(super) fn product(a: Val, b: Val) -> Complex<f64> {
    let (Val::Complex(ar, ai), Val::Complex(br, bi)) = (a, b) else { panic!("{a:?}, {b:?}") };
    let (a, b) = (Complex { re: ar, im: ai }, Complex { re: br, im: bi });
    let product = a.mul(b);
    if product.is_lost() { a.repaired_product(b) } else { product }
}

/// Within two ulps of f32 of a part that is not rounded yet; the sign of a zero counts where that part is one.
pub(super) fn near_part(got: f64, want: f64) -> bool {
    if want == 0.0 { got.to_bits() == want.to_bits() } else { close(DType::F32, got, want, 2.0, 0.0) }
}

/// Products of complex64 are those of the formula in f64 within two ulps of each part, however much cancels, whatever their
/// place, and exactly where they are infinite, NaN or zero (but near the end of the range); past the cache they are the same.
#[test]
fn products_of_complex64_are_near_in_each_part() {
    let mut rng = Rng::new();
    let row = row("mul", DType::COMPLEX64);
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        1e20,
        -1e20,
        f32::MIN_POSITIVE,
        1e-30,
        -1e-42,
    ];
    let mut all: Vec<[f32; 4]> = Vec::new();
    for i in 0..special.len().pow(4) {
        let n = special.len();
        all.push([i % n, i / n % n, i / n.pow(2) % n, i / n.pow(3)].map(|k| special[k]));
    }
    for _ in 0..20_000 {
        let mut draw = || (rng.signed() * 2f64.powi((rng.next() % 24) as i32 - 12)) as f32;
        let (x, y) = (draw(), draw());
        all.push([x, y, draw(), draw()]);
        // One part cancels, but for the last digits.
        all.push([x, y, y * (1.0 + f32::EPSILON), x]);
        all.push([x, y, x, -y * (1.0 - f32::EPSILON)]);
    }
    let stored = |at: usize| -> Vec<u8> {
        all.iter()
            .flat_map(|x| x[at..at + 2].iter().flat_map(|p| p.to_ne_bytes()).collect::<Vec<_>>())
            .collect()
    };
    let (a, b) = (stored(0), stored(2));
    let shape = [all.len() as i64];
    for isa in Isa::available() {
        let call = Call { isa, par: &Serial, shapes: [&shape, &shape], attr: ATTR };
        let bytes = call.run(row, [&a, &b], None).unwrap();
        let all = decode(row.dst, &bytes);
        for ((a, b), got) in decode(row.src, &a).into_iter().zip(decode(row.src, &b)).zip(&all) {
            let want = product(a, b);
            let &Val::Complex(re, im) = got else { panic!("{got:?}") };
            assert!(
                near_part(re, want.re) && near_part(im, want.im),
                "{isa} {a:?} {b:?}: {got:?}, not {want:?}"
            );
        }
        // Each from another place in a line on.
        for skip in [1, 3, 8 * 500 + 5] {
            let from = skip * size(row.src);
            let shape = [(all.len() - skip) as i64];
            let call = Call { shapes: [&shape, &shape], ..call };
            let again = decode(row.dst, &call.run(row, [&a[from..], &b[from..]], None).unwrap());
            for (i, (got, want)) in again.iter().zip(&all[skip..]).enumerate() {
                assert!(got.same(*want), "{isa} {skip} [{i}]: {got:?} is not {want:?}");
            }
        }
        if isa.level() > Level::Baseline {
            /// Eight elements.
            #[derive(Clone)]
            #[repr(C, align(64))]
            struct Line([u8; 64]);
            let (mut left, mut right) = (Buffer::of(&a, size(row.src)), Buffer::of(&b, size(row.src)));
            let mut dst = vec![Line([0xa5; 64]); all.len() / 8];
            let run = Run { n: dst.len() * 8, ahead: 1024 };
            // SAFETY: so many elements are there, the destination is whole lines at one, and this level stores past the cache.
            unsafe { (row.kernel.0.block)(isa, ATTR, left.ptr(), right.ptr(), dst.as_mut_ptr().cast(), run) };
            fence();
            for (i, (line, want)) in dst.iter().zip(bytes.chunks(64)).enumerate() {
                assert_eq!(line.0, want, "{isa} {i}");
            }
        }
    }
}

#[test]
fn complex_ops_match_their_formulas() {
    let mut rng = Rng::new();
    for row in rows().iter().filter(|r| r.src.is_complex()) {
        let n = 400;
        let part = if row.src == DType::COMPLEX64 { DType::F32 } else { DType::F64 };
        let mut draw = || -> Vec<u8> {
            (0..2 * n).flat_map(|_| encode(part, Val::Float((rng.signed() * 4.0).round() * 0.75))).collect()
        };
        let (a, b) = (draw(), draw());
        let got = decode(row.dst, &apply(row, &a, &b, ATTR));
        for ((a, b), got) in decode(row.src, &a).into_iter().zip(decode(row.src, &b)).zip(got) {
            let (Val::Complex(ar, ai), Val::Complex(br, bi)) = (a, b) else { unreachable!() };
            let norm = br * br + bi * bi;
            let (wr, wi) = match OPS[row.op] {
                "equal" | "not_equal" => {
                    let equal = ar == br && ai == bi;
                    assert_eq!(got.truth(), equal == (OPS[row.op] == "equal"), "{a:?} {b:?}");
                    continue;
                }
                "add" => (ar + br, ai + bi),
                "sub" => (ar - br, ai - bi),
                "mul" => (ar * br - ai * bi, ar * bi + ai * br),
                _ if norm == 0.0 => continue,
                "div" => ((ar * br + ai * bi) / norm, (ai * br - ar * bi) / norm),
                _ => {
                    // dy / (2 conj(sqrt(x))), in polar form.
                    let (r, t) = (ar.hypot(ai) / (2.0 * norm.powf(0.25)), ai.atan2(ar) + bi.atan2(br) / 2.0);
                    (r * t.cos(), r * t.sin())
                }
            };
            let Val::Complex(gr, gi) = got else { panic!("{got:?}") };
            let slack = if part == DType::F32 { 2e-7 } else { 1e-15 } * (1.0 + wr.hypot(wi)) * 4.0;
            assert!(
                (gr - wr).abs() <= slack && (gi - wi).abs() <= slack,
                "{} {a:?} {b:?}: {got:?}",
                label(row)
            );
        }
    }
    let div = |a: (f64, f64), b: (f64, f64)| {
        let row = row("div", DType::COMPLEX128);
        let [a, b] = [a, b].map(|(re, im)| encode(row.src, Val::Complex(re, im)));
        decode(row.dst, &apply(row, &a, &b, ATTR))[0]
    };
    assert!(div((1e300, 1e300), (1e300, 1e300)).same(Val::Complex(1.0, 0.0)));
    assert!(div((1.0, -1.0), (0.0, 0.0)).same(Val::Complex(f64::INFINITY, f64::NEG_INFINITY)));
}
