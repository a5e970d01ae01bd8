use super::*;
use crate::kernels::testing::{Guarded, Rng, Threads, between_pages, bytes_of, words};
use primitives::reference::{Data, Launch, Number};

/// Launches a row of the table; what it writes.
fn launch(row: &Row, [outer, reduced, inner]: [usize; 3], src: &[u64], threads: usize, isa: Isa) -> Vec<u8> {
    let bytes = outer * inner * row.dst.size().unwrap();
    let mut out = Guarded::<u64>::new(bytes.div_ceil(8));
    let args = ReduceArgs { outer, reduced, inner, src: src.as_ptr().cast(), dst: out.ptr().cast() };
    // SAFETY: both sides have these sizes, aligned to 8.
    unsafe { (row.kernel)(isa, &Threads(threads), &args) }.unwrap();
    bytes_of(out.written(), bytes)
}

/// Modest numbers with a few specials where the reduction is exact.
fn content(row: &Row, count: usize, rng: &mut Rng) -> Data {
    let exact = matches!(OPS[row.op], "max" | "min" | "any" | "all");
    let one = |rng: &mut Rng| match rng.next() % 64 {
        0 if exact => f64::NAN,
        1 if exact => f64::NEG_INFINITY,
        2..20 => 0.0,
        n if OPS[row.op] == "prod" => [1.0, -1.0, 0.5, 2.0][n as usize % 4],
        _ => 100.0 * rng.signed(),
    };
    let element = |rng: &mut Rng| {
        if DType::COMPLEX.contains(&row.src) {
            Number::Complex(one(rng), one(rng))
        } else if DType::FLOAT.contains(&row.src) {
            Number::Real(one(rng))
        } else {
            Number::Int((one(rng) as i128).clamp(-100, 100))
        }
    };
    let wanted = row.src;
    let value = |x: Number| match x {
        Number::Int(i) if wanted == DType::BOOL => Number::Bool(i != 0),
        Number::Int(i) if wanted.to_string().starts_with('u') => Number::Int(i.abs()),
        other => other,
    };
    Data::new(row.src, (0..count).map(|_| value(element(rng))))
}

fn near(row: &Row, n: usize, want: Number, got: Number) -> bool {
    let close = |w: f64, g: f64| {
        let eps = match row.dst {
            DType::F16 => 2f64.powi(-10),
            DType::BF16 => 2f64.powi(-7),
            DType::F32 | DType::COMPLEX64 => 2f64.powi(-23),
            _ => 0.0,
        };
        // One rounding of the result, and those of sums of four in f32; the rest is accumulated in f64.
        let fours = matches!(OPS[row.op], "sum" | "mean") && row.src != DType::F64 && eps > 0.0;
        let fours = if fours { 2f64.powi(-23) * (n as f64).sqrt() } else { 0.0 };
        let size = 100f64.powi(if OPS[row.op] == "prod" { 2 } else { 1 });
        w == g
            || (w.is_nan() && g.is_nan())
            || (w - g).abs() <= eps * w.abs() + (fours + 1e-15 * n as f64) * size
    };
    match (want, got) {
        (Number::Real(w), Number::Real(g)) => close(w, g),
        (Number::Complex(a, b), Number::Complex(c, d)) => close(a, c) && close(b, d),
        (w, g) => w.same(g),
    }
}

/// Row by row where nothing is combined before it is taken.
#[test]
fn columns_are_combined_in_order() {
    let mut rng = Rng::new();
    for (op, src) in [("sum", DType::F64), ("prod", DType::F64), ("sum", DType::COMPLEX128)] {
        let row = rows().find(|r| OPS[r.op] == op && (r.src, r.dst) == (src, src)).unwrap();
        let parts = src.size().unwrap() / size_of::<f64>();
        for (reduced, inner) in [(33, 70), (37, 1100), (6, 64)] {
            // Of so many digits that each step rounds, and another order gives another result.
            let values: Vec<f64> = (0..reduced * inner * parts).map(|_| rng.signed() / 3.0).collect();
            let start = if op == "sum" { 0.0 } else { 1.0 };
            let take = |acc: f64, x: f64| if op == "sum" { acc + x } else { acc * x };
            let all =
                |column| (0..reduced).fold(start, |acc, i| take(acc, values[i * inner * parts + column]));
            let bytes = |values: Vec<f64>| values.into_iter().flat_map(f64::to_ne_bytes).collect::<Vec<u8>>();
            let want = bytes((0..inner * parts).map(all).collect());
            let from = words(&bytes(values.clone()));
            for isa in Isa::available() {
                let got = launch(row, [1, reduced, inner], &from, 1, isa);
                assert!(got == want, "{op} of {src}, {reduced}x{inner}, at {isa}");
            }
        }
    }
}

#[test]
fn the_reference_agrees() {
    let mut rng = Rng::new();
    let shapes = [
        [0, 3, 2],
        [3, 0, 2],
        [2, 0, 1],
        [3, 1, 1],
        [37, 3, 1],
        [5, 63, 1],
        [1, 131, 1],
        [3, 1301, 1],
        [2, 37, 5],
        [1, 900, 3],
        [3, 9, 64],
        [2, 33, 1100],
    ];
    for row in rows() {
        for shape in shapes {
            let [outer, reduced, inner] = shape;
            let data = content(row, outer * reduced * inner, &mut rng);
            let src = words(&data.bytes);
            let want = Launch::new("reduce")
                .selector("op", OPS[row.op])
                .dtype("src", row.src)
                .dtype("dst", row.dst)
                .size("outer", outer as i64)
                .size("reduced", reduced as i64)
                .size("inner", inner as i64)
                .read("src", data.view())
                .run()
                .unwrap();
            let want = want.get("dst").unwrap();
            for isa in Isa::available() {
                let got = Data { dtype: row.dst, bytes: launch(row, shape, &src, 2, isa) };
                for i in 0..outer * inner {
                    let (w, g) = (want.get(i), got.get(i));
                    let what = format!("{} {} to {} {shape:?} [{i}] {isa}", OPS[row.op], row.src, row.dst);
                    assert!(near(row, reduced, w, g), "{what}: {w:?} {g:?}");
                }
            }
        }
    }
}

/// Sums of four that overflow, or are infinite or NaN, where the whole is not or must be.
#[test]
fn sums_of_four_lose_nothing() {
    let f32_row =
        |op: &str| *rows().find(|r| OPS[r.op] == op && r.src == DType::F32 && r.dst == DType::F32).unwrap();
    let run = |op: &str, values: &[f32], isa: Isa| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let out = launch(&f32_row(op), [1, values.len(), 1], &words(&bytes), 1, isa);
        f32::from_ne_bytes(out.try_into().unwrap())
    };
    for isa in Isa::available() {
        for n in [256, 300, 512, 1000] {
            let mut values = vec![0f32; n];
            // Elements 32 apart are added first, or 16, by vectors of 8.
            for apart in [16, 32] {
                let large =
                    [(3, 3e38), (2 * apart + 3, 3e38), (3 * apart + 3, 3e38), (4, -3e38), (apart + 4, -3e38)];
                values.fill(0.0);
                for (at, x) in large {
                    values[at] = x;
                }
                let want = 3e38f32;
                assert_eq!(run("sum", &values, isa), want, "{n} at {isa}, {apart}");
                assert_eq!(
                    run("mean", &values, isa),
                    (f64::from(want) / n as f64) as f32,
                    "{n} at {isa}, {apart}"
                );
            }
            values[70] = f32::INFINITY;
            assert_eq!(run("sum", &values, isa), f32::INFINITY, "{n} at {isa}");
            for at in [0, 70, 140, 255, n - 1] {
                let mut values = values.clone();
                values[at] = f32::NAN;
                for op in ["sum", "mean", "max", "min"] {
                    assert!(run(op, &values, isa).is_nan(), "{op} of {n} with NaN at {at}, at {isa}");
                }
                values[at] = f32::NEG_INFINITY;
                assert_eq!(run("min", &values, isa), f32::NEG_INFINITY, "{n}, {at}, {isa}");
            }
        }
    }
}

/// Launches on elements whose last one is at the end of its memory, or whose first one at the beginning.
fn launch_between_pages(
    row: &Row,
    [outer, reduced, inner]: [usize; 3],
    data: &Data,
    end: bool,
    isa: Isa,
) -> Data {
    let src = between_pages(data.bytes.len(), end);
    // SAFETY: there is room for them.
    unsafe { src.ptr().copy_from_nonoverlapping(data.bytes.as_ptr(), data.bytes.len()) };
    let bytes = outer * inner * row.dst.size().unwrap();
    let mut out = Guarded::<u64>::new(bytes.div_ceil(8));
    let args = ReduceArgs { outer, reduced, inner, src: src.ptr().cast_const(), dst: out.ptr().cast() };
    // SAFETY: both sides have these sizes.
    unsafe { (row.kernel)(isa, &Threads(1), &args) }.unwrap();
    Data { dtype: row.dst, bytes: bytes_of(out.written(), bytes) }
}

/// Rows of every length up to some vectors of four, and of such a rest behind a whole chunk, beside plain sums in f64.
#[test]
fn sums_of_rows_of_all_lengths() {
    let mut rng = Rng::new();
    let to_f32 = |r: &&Row| r.op == SUM && r.dst == DType::F32;
    for cols in (rows::SHORT..300).chain((1..35).step_by(3).map(|rest| CHUNK + rest)) {
        // Past the rows that are combined in one go, or a few.
        let outer = match cols {
            CHUNK.. => 1,
            _ if cols.is_multiple_of(60) => 70,
            _ => 1 + rng.next() as usize % 5,
        };
        for row in rows().filter(to_f32) {
            let data = Data::new(row.src, (0..outer * cols).map(|_| Number::Real(1000.0 * rng.signed())));
            for (isa, end) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
                let got = launch_between_pages(row, [outer, cols, 1], &data, end, isa);
                for i in 0..outer {
                    let values = || (i * cols..(i + 1) * cols).map(|at| data.get(at).re());
                    let (want, size): (f64, f64) = (values().sum(), values().map(f64::abs).sum());
                    let off = (got.get(i).re() - want).abs();
                    let what = format!("{} of {cols} at {isa}", row.src);
                    assert!(off <= 2f64.powi(-22) * size, "{what}: {:?}, not {want}", got.get(i));
                }
            }
        }
    }
}

/// The least and the greatest beside other columns, of every width up to some vectors and past a strip: NaN wherever one is, in
/// that column alone.
#[test]
fn extremes_of_columns_of_all_widths() {
    let mut rng = Rng::new();
    for inner in (2..150).chain([STRIP - 1, STRIP + 7]) {
        for reduced in [1, 2, 4, 7, 9] {
            let special = |rng: &mut Rng| match rng.next() % 24 {
                0 => f64::NAN,
                1 => f64::NEG_INFINITY,
                2 => f64::INFINITY,
                n => (n as f64 - 40.0) * if rng.next().is_multiple_of(2) { 1.0 } else { -1.0 },
            };
            let values: Vec<f64> = (0..reduced * inner).map(|_| special(&mut rng)).collect();
            for row in rows().filter(|r| [MAX, MIN].contains(&r.op) && DType::FLOAT.contains(&r.src)) {
                let data = Data::new(row.src, values.iter().map(|&x| Number::Real(x)));
                for (isa, end) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
                    let got = launch_between_pages(row, [1, reduced, inner], &data, end, isa);
                    for column in 0..inner {
                        let better = |a: f64, b: f64| match row.op {
                            _ if a.is_nan() || b.is_nan() => f64::NAN,
                            MAX => a.max(b),
                            _ => a.min(b),
                        };
                        let want = values.iter().skip(column).step_by(inner).copied().reduce(better).unwrap();
                        let got = got.get(column).re();
                        let what = format!("{} {} of {reduced} x {inner}, {isa}", OPS[row.op], row.src);
                        assert!(
                            got == want || (want.is_nan() && got.is_nan()),
                            "{what}: column {column} is {got}, not {want}"
                        );
                    }
                }
            }
        }
    }
}

/// The least and the greatest of rows of every length up to some vectors, and of such a rest behind a whole chunk, the last row
/// at the end of its memory and the first at the beginning: wherever they are, and NaN wherever one is.
#[test]
fn extremes_of_rows_of_all_lengths() {
    let mut rng = Rng::new();
    let lengths = (rows::SHORT..200).chain((1..70).step_by(3).map(|rest| CHUNK + rest));
    for (cols, end) in lengths.flat_map(|cols| [(cols, false), (cols, true)]) {
        let specials = [None, Some(f64::NAN), Some(f64::NEG_INFINITY), Some(f64::INFINITY)];
        let outer = if cols < CHUNK { 2 * specials.len() } else { 1 };
        // Small integers are exact in every dtype, and so are their ends. Where all have one sign, 0 would be seen. What
        // counts is in the rest behind a chunk, if there is one.
        let values = |rng: &mut Rng, special: Option<f64>| -> Vec<f64> {
            let shift = [0.0, -130.0, 130.0][rng.next() as usize % 3];
            let mut values: Vec<f64> = (0..cols).map(|_| shift + (rng.next() % 201) as f64 - 100.0).collect();
            let first = cols / CHUNK * CHUNK;
            let at = |rng: &mut Rng| first + rng.next() as usize % (cols - first);
            values[at(rng)] = shift + [101.0, -101.0][rng.next() as usize % 2];
            if let Some(special) = special {
                values[at(rng)] = special;
            }
            values
        };
        let table: Vec<Vec<f64>> =
            (0..outer).map(|row| values(&mut rng, specials[(row + cols) % specials.len()])).collect();
        for row in rows().filter(|r| [MAX, MIN].contains(&r.op) && DType::FLOAT.contains(&r.src)) {
            let data = Data::new(row.src, table.iter().flatten().map(|&x| Number::Real(x)));
            for isa in Isa::available() {
                let got = launch_between_pages(row, [outer, cols, 1], &data, end, isa);
                for (i, values) in table.iter().enumerate() {
                    let better = |a: f64, b: f64| if row.op == MAX { a.max(b) } else { a.min(b) };
                    let nan = values.iter().any(|x| x.is_nan());
                    let want = if nan { f64::NAN } else { values.iter().copied().reduce(better).unwrap() };
                    let got = got.get(i).re();
                    let what = format!("{} {} of {cols}, {isa}", OPS[row.op], row.src);
                    assert!(got == want || (nan && got.is_nan()), "{what}: {got}, not {want}");
                }
            }
        }
    }
}

/// Sums of four beside other columns, where the rows added first depend on how many there are.
#[test]
fn sums_of_four_rows_lose_nothing() {
    let sum = rows().find(|r| OPS[r.op] == "sum" && r.src == DType::F32 && r.dst == DType::F32).unwrap();
    let max = rows().find(|r| OPS[r.op] == "max" && r.src == DType::F32).unwrap();
    let run = |row: &Row, values: &[f32], inner: usize, isa: Isa| -> Vec<f32> {
        let bytes: Vec<u8> =
            values.iter().flat_map(|x| std::iter::repeat_n(x.to_ne_bytes(), inner).flatten()).collect();
        let out = launch(row, [1, values.len(), inner], &words(&bytes), 1, isa);
        out.chunks(4).map(|x| f32::from_ne_bytes(x.try_into().unwrap())).collect()
    };
    // Any four of one sign overflow.
    let values: Vec<f32> = (0..119).map(|i| if i < 60 { 3e38 } else { -3e38 }).collect();
    for isa in Isa::available() {
        for inner in [2, 5, 64, 70, 1030] {
            assert_eq!(run(sum, &values, inner, isa), vec![3e38; inner], "{inner} at {isa}");
            for at in [0, 3, 57, 118] {
                let mut values = values.clone();
                values[at] = f32::NAN;
                for row in [sum, max] {
                    let got = run(row, &values, inner, isa);
                    assert!(got.iter().all(|x| x.is_nan()), "{inner} with NaN at {at}, at {isa}");
                }
            }
        }
    }
}

/// The same of bf16, over rows and beside other columns.
#[test]
fn sums_of_four_halves_lose_nothing() {
    let row = rows().find(|r| r.op == SUM && r.src == DType::BF16 && r.dst == DType::F32).unwrap();
    let large = 0.75 * bf16::MAX.to_f64();
    for inner in [1, 2, 70, 130] {
        let values = (0..119).map(|i| if i < 60 { large } else { -large });
        let data = Data::new(row.src, values.flat_map(|x| std::iter::repeat_n(Number::Real(x), inner)));
        // What is stored.
        let want = data.get(0).re();
        for isa in Isa::available() {
            let got =
                Data { dtype: row.dst, bytes: launch(row, [1, 119, inner], &words(&data.bytes), 1, isa) };
            for column in 0..inner {
                assert_eq!(got.get(column).re(), want, "column {column} of {inner} at {isa}");
            }
        }
    }
}

/// Long axes, which are cut into chunks: the same bits for any number of threads, and the right ones.
#[test]
fn threads_change_nothing() {
    let mut rng = Rng::new();
    let isa = *Isa::available().last().unwrap();
    let sum = |d: DType| *rows().find(|r| r.op == SUM && r.src == d && r.dst == d).unwrap();
    for dtype in [DType::F32, DType::F64, DType::I32] {
        for shape in [[1, 3 * CHUNK + 17, 1], [3, 2 * CHUNK + 1, 1], [1, 40_000, 5], [2, 1000, 300]] {
            let row = sum(dtype);
            let count: usize = shape.iter().product();
            let data = content(&row, count, &mut rng);
            let src = words(&data.bytes);
            let one = launch(&row, shape, &src, 1, isa);
            for threads in [2, 3, 7] {
                assert_eq!(launch(&row, shape, &src, threads, isa), one, "{dtype} {shape:?} {threads}");
            }
            let exact: f64 = (0..shape[1]).map(|i| data.get(i * shape[2]).re()).sum();
            let got = Data { dtype, bytes: one }.get(0).re();
            assert!((got - exact).abs() <= 1e-6 * exact.abs() + 1e-3, "{dtype} {shape:?}: {got} {exact}");
        }
    }
}

/// The same of halves and of extremes.
#[test]
fn threads_change_nothing_of_halves_and_extremes() {
    let mut rng = Rng::new();
    let chosen = |r: &&Row| {
        let sums = r.op == SUM && [DType::F16, DType::BF16].contains(&r.src) && r.dst == DType::F32;
        sums || ([MAX, MIN].contains(&r.op) && [DType::F16, DType::F32].contains(&r.src))
    };
    for row in rows().filter(chosen) {
        for shape in [[1, 3 * CHUNK + 17, 1], [1, 40_000, 5], [2, 1000, 300]] {
            let [outer, reduced, inner] = shape;
            let count: usize = shape.iter().product();
            let data = Data::new(row.src, (0..count).map(|_| Number::Real(100.0 * rng.signed())));
            let src = words(&data.bytes);
            for isa in Isa::available() {
                let one = launch(row, shape, &src, 1, isa);
                let what = format!("{} {} {shape:?} at {isa}", OPS[row.op], row.src);
                for threads in [2, 3, 7] {
                    assert_eq!(launch(row, shape, &src, threads, isa), one, "{what}: {threads}");
                }
                let got = Data { dtype: row.dst, bytes: one };
                for at in 0..outer * inner {
                    let first = at / inner * reduced * inner + at % inner;
                    let values = || (0..reduced).map(|i| data.get(first + i * inner).re());
                    let (got, size) = (got.get(at).re(), values().map(f64::abs).sum::<f64>());
                    let off = match row.op {
                        SUM => (got - values().sum::<f64>()).abs() / (2f64.powi(-22) * size),
                        MAX => (got - values().reduce(f64::max).unwrap()).abs(),
                        _ => (got - values().reduce(f64::min).unwrap()).abs(),
                    };
                    assert!(off <= if row.op == SUM { 1.0 } else { 0.0 }, "{what} [{at}]: {got}");
                }
            }
        }
    }
}

#[test]
fn shapes_that_no_memory_holds_are_refused() {
    let row = rows().next().unwrap();
    let huge = ReduceArgs {
        outer: usize::MAX,
        reduced: 3,
        inner: 2,
        src: std::ptr::null(),
        dst: std::ptr::null_mut(),
    };
    // SAFETY: refused before any access.
    let refused = unsafe { (row.kernel)(Isa::BASELINE, &Threads(1), &huge) };
    assert_eq!(refused.unwrap_err().code(), ep_core::Code::InvalidArgument);
}
