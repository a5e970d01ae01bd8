mod complex;
mod gradients;

use super::*;
use crate::isa::Level;
use crate::kernels::check::{Buffer, Val, agree, close, decode, encode, rounded, samples, size};
use crate::kernels::elem::Complex;
use crate::kernels::special;
use crate::kernels::stream::fence;
use crate::kernels::testing::{Guarded, Rng, Threads, epsilon};
use crate::kernels::unary::tests::{ATTR, between_levels, float_reference};
use complex::{near_part, product};
use ep_core::Code;
use ep_core::parallel::Serial;
use proptest::prelude::*;

fn row(name: &str, src: DType) -> &'static BinaryRow {
    let op = OPS.iter().position(|n| *n == name).unwrap();
    rows().iter().find(|r| r.op == op && r.src == src).unwrap()
}

fn label(row: &BinaryRow) -> String {
    format!("{} {} -> {}", OPS[row.op], row.src, row.dst)
}

struct Call<'a> {
    isa: Isa,
    par: &'a dyn Parallel,
    shapes: [&'a [i64]; 2],
    attr: [f64; 2],
}

impl Call<'_> {
    /// `in_place`: which source is the destination too.
    fn run(&self, row: &BinaryRow, src: [&[u8]; 2], in_place: Option<usize>) -> Result<Vec<u8>> {
        let count = |s: &[i64]| s.iter().product::<i64>() as usize;
        let rank = self.shapes[0].len().max(self.shapes[1].len());
        let dim = |s: &[i64], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
        let out: i64 = (0..rank)
            .map(|i| {
                let (a, b) = (dim(self.shapes[0], i), dim(self.shapes[1], i));
                if a == 1 { b } else { a }
            })
            .product();
        for (s, shape) in src.iter().zip(self.shapes) {
            assert_eq!(s.len(), count(shape) * size(row.src));
        }
        let mut sources = src.map(|s| Buffer::of(s, size(row.src)));
        let mut dst = Buffer::poisoned(out as usize * size(row.dst), size(row.dst));
        let [a, b] = &mut sources;
        let (src0, src1) = (a.ptr(), b.ptr());
        let args = BinaryArgs {
            src0_dims: self.shapes[0],
            src1_dims: self.shapes[1],
            src0,
            src1,
            dst: in_place.map_or(dst.ptr(), |n| [src0, src1][n]),
            attr: self.attr,
        };
        // SAFETY: the sources hold their shapes' elements; the destination holds the broadcast shape's,
        // or is a source, which the launch accepts only if it has that shape.
        unsafe { row.kernel.launch(self.isa, self.par, &args) }?;
        let [a, b] = sources;
        Ok(match in_place {
            None => dst,
            Some(0) => a,
            Some(_) => b,
        }
        .into_bytes())
    }
}

/// Element by element on shapes that are equal, at the highest level.
fn apply(row: &BinaryRow, a: &[u8], b: &[u8], attr: [f64; 2]) -> Vec<u8> {
    let shape = [(a.len() / size(row.src)) as i64];
    let isa = *Isa::available().last().unwrap();
    Call { isa, par: &Serial, shapes: [&shape, &shape], attr }.run(row, [a, b], None).unwrap()
}

#[test]
fn tables_are_complete_and_unambiguous() {
    assert_eq!(OPS.len(), 81);
    for pair in rows().windows(2) {
        let key = |r: &BinaryRow| (r.op, r.src, r.dst);
        assert!(key(&pair[0]) < key(&pair[1]), "{} twice", label(&pair[1]));
    }
    for (op, name) in OPS.iter().enumerate() {
        let row = rows().iter().find(|r| r.op == op).unwrap_or_else(|| panic!("{name} has no kernel"));
        assert_eq!(OPS.iter().position(|n| n == name), Some(op));
        assert!(lookup(op, row.src, row.dst).is_some());
    }
    assert!(lookup(0, DType::F32, DType::BOOL).is_none() && lookup(81, DType::F32, DType::F32).is_none());
    let dtypes = |name: &str| rows().iter().filter(|r| OPS[r.op] == name).count();
    assert_eq!((dtypes("add"), dtypes("less_than"), dtypes("bitwise_or"), dtypes("pow")), (15, 13, 9, 13));
}

#[test]
fn in_place_changes_nothing_at_any_level() {
    let mut rng = Rng::new();
    for row in rows() {
        let n = 100 + (rng.next() % 90) as usize;
        let (a, mut b) = (samples(row.src, n, &mut rng), samples(row.src, n, &mut rng));
        b.rotate_left(size(row.src) * (1 + rng.next() as usize % (n - 1)));
        let shape = [n as i64];
        let call = |isa| Call { isa, par: &Serial, shapes: [&shape, &shape], attr: ATTR };
        let base = decode(row.dst, &call(Isa::BASELINE).run(row, [&a, &b], None).unwrap());
        for isa in Isa::available() {
            let want = decode(row.dst, &call(isa).run(row, [&a, &b], None).unwrap());
            for (i, (&g, &w)) in want.iter().zip(&base).enumerate() {
                // Functions round differently with a fused multiply-add; all else is the same everywhere.
                let near = || {
                    let [a, b] = [&a, &b].map(|side| decode(row.src, side)[i].float().abs());
                    let slack = 32.0 * epsilon(row.dst) * a.max(b).min(f64::MAX);
                    close(row.dst, g.float(), w.float(), between_levels(row.dst), slack)
                };
                // So do products of complex64, each part by itself.
                let parts = || {
                    let Val::Complex(re, im) = g else { return false };
                    let [a, b] = [&a, &b].map(|side| decode(row.src, side)[i]);
                    let want = product(a, b);
                    near_part(re, want.re) && near_part(im, want.im)
                };
                // No function has such a result, and its derivative may overflow where it is not computed in f64. Where one is the
                // least number at one level and 0 at another, infinity times it differs.
                let at_ends = || {
                    let [a, b] = [&a, &b].map(|side| decode(row.src, side)[i].float().abs());
                    let name = OPS[row.op];
                    name.ends_with("_with_dy_y") && b > 1e15
                        || name.contains("_backward_")
                            && a == f64::INFINITY
                            && (g.float().is_nan() || w.float().is_nan())
                };
                let is_product = OPS[row.op] == "mul" && row.dst == DType::COMPLEX64;
                let alike = g.same(w)
                    || row.src == row.dst && row.dst.is_float() && (near() || at_ends())
                    || is_product && parts();
                assert!(alike, "{} {isa} [{i}]: {g:?} is not {w:?}", label(row));
            }
            for in_place in [Some(0), Some(1)] {
                let got = match call(isa).run(row, [&a, &b], in_place) {
                    Ok(got) => decode(row.dst, &got),
                    Err(e) => {
                        assert!(in_place.is_some() && size(row.src) != size(row.dst), "{}: {e}", label(row));
                        assert_eq!(e.code(), Code::InvalidArgument);
                        continue;
                    }
                };
                for (i, (g, w)) in got.into_iter().zip(&want).enumerate() {
                    assert!(
                        agree(row.dst, g, *w),
                        "{} {isa} {in_place:?} [{i}]: {g:?} is not {w:?}",
                        label(row)
                    );
                }
            }
        }
    }
}

#[test]
fn integer_ops_match_their_formulas() {
    let mut rng = Rng::new();
    for row in rows().iter().filter(|r| r.src.is_int() || r.src == DType::BOOL) {
        let (a, mut b) = (samples(row.src, 300, &mut rng), samples(row.src, 300, &mut rng));
        b.rotate_left(size(row.src) * (rng.next() as usize % 20));
        let got = decode(row.dst, &apply(row, &a, &b, [3.0, 0.5]));
        for ((a, b), got) in decode(row.src, &a).into_iter().zip(decode(row.src, &b)).zip(got) {
            let (x, y) = (a.int(), b.int());
            let nonzero = |f: &dyn Fn() -> i128| if y == 0 { 0 } else { f() };
            let floor_div = || x.div_euclid(y) - i128::from(y < 0 && x.rem_euclid(y) != 0);
            let want = match OPS[row.op] {
                "add" => x + y,
                "sub" => x - y,
                "mul" => x.wrapping_mul(y),
                "div" | "trunc_div" => nonzero(&|| x / y),
                "max" => x.max(y),
                "min" => x.min(y),
                "pow" if y < 0 => match x {
                    1 => 1,
                    -1 => 1 - 2 * (y & 1),
                    _ => 0,
                },
                // Powers modulo 2^128 agree with powers modulo the width of the dtype.
                "pow" => (0..128).rev().fold(1i128, |r, bit| {
                    let r = r.wrapping_mul(r);
                    if y >> bit & 1 == 1 { r.wrapping_mul(x) } else { r }
                }),
                "fmod" => nonzero(&|| x % y),
                "floor_div" => nonzero(&floor_div),
                "floor_mod" => nonzero(&|| x - y * floor_div()),
                "equal" => (x == y).into(),
                "not_equal" => (x != y).into(),
                "less_than" => (x < y).into(),
                "less_equal" => (x <= y).into(),
                "greater_than" => (x > y).into(),
                "greater_equal" => (x >= y).into(),
                "is_close" | "is_close_equal_nan" => {
                    ((x - y).abs() as f64 <= 3.0 + 0.5 * y.abs() as f64).into()
                }
                "logical_and" => (x != 0 && y != 0).into(),
                "logical_or" => (x != 0 || y != 0).into(),
                "logical_xor" => ((x != 0) != (y != 0)).into(),
                "bitwise_and" => x & y,
                "bitwise_or" => x | y,
                "bitwise_xor" => x ^ y,
                other => panic!("no formula for {other}"),
            };
            let want = match row.dst {
                DType::BOOL => Val::Int((want != 0).into()),
                dtype => rounded(dtype, Val::Int(want)),
            };
            assert!(got.same(want), "{} of {x}, {y}: {got:?}, not {want:?}", label(row));
        }
    }
}

#[test]
fn float_ops_match_their_formulas() {
    let mut rng = Rng::new();
    let mut wrong = Vec::new();
    let forward = |r: &&BinaryRow| r.src.is_float() && !OPS[r.op].contains("backward");
    for row in rows().iter().filter(forward) {
        let (mut a, mut b) = (samples(row.src, 700, &mut rng), samples(row.src, 700, &mut rng));
        // Every special value meets every other.
        let specials: Vec<Vec<u8>> = a.chunks(size(row.src)).take(26).map(<[u8]>::to_vec).collect();
        for x in &specials {
            for y in &specials {
                a.extend(x);
                b.extend(y);
            }
        }
        let got = decode(row.dst, &apply(row, &a, &b, ATTR));
        for ((a, b), got) in decode(row.src, &a).into_iter().zip(decode(row.src, &b)).zip(got) {
            let (x, y) = (a.float(), b.float());
            let floor_mod = || {
                let r = libm::fmod(x, y);
                if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
            };
            let test = |b: bool| (f64::from(u8::from(b)), 0.0);
            let close_to = |nan: bool| {
                let near = (x - y).is_finite() && (x - y).abs() <= ATTR[0] + (ATTR[1] * y).abs();
                test(x == y || near || nan && x.is_nan() && y.is_nan())
            };
            let (want, ulps) = match OPS[row.op] {
                "add" => (x + y, 0.51),
                "sub" => (x - y, 0.51),
                "mul" => (x * y, 0.51),
                "div" => (x / y, 0.51),
                "max" | "min" if x.is_nan() || y.is_nan() => (f64::NAN, 0.0),
                "max" => (x.max(y), 0.0),
                "min" => (x.min(y), 0.0),
                "pow" => (libm::pow(x, y), if row.src == DType::F32 { 4.0 } else { 1.0 }),
                "fmod" => (libm::fmod(x, y), 0.51),
                "floor_mod" => (floor_mod(), 1.0),
                // Where the quotient has more digits than the dtype, each of its integers is far apart.
                "floor_div" => {
                    let q = (x - floor_mod()) / y;
                    let whole = if q.abs() < 1e15 { q.round() } else { q };
                    let below_zero = y.is_infinite() && x * y < 0.0;
                    let limit = if below_zero && x.is_finite() { -1.0 } else { x / y };
                    (if y == 0.0 || x.is_infinite() || y.is_infinite() { limit } else { whole }, 1.0)
                }
                "trunc_div" => {
                    let q =
                        rounded(if size(row.src) == 8 { DType::F64 } else { DType::F32 }, Val::Float(x / y));
                    (q.float().trunc(), 0.51)
                }
                "scalar_base_power_grad" => (ATTR[0].powf(x) * ATTR[0].ln() * y, 1.0),
                "scalar_exp_power_grad" => (ATTR[0] * libm::pow(x, ATTR[0] - 1.0) * y, 1.0),
                "zeta" => (special::zeta(x, y), 1.0),
                "equal" => test(x == y),
                "not_equal" => test(x != y),
                "less_than" => test(x < y),
                "less_equal" => test(x <= y),
                "greater_than" => test(x > y),
                "greater_equal" => test(x >= y),
                "is_close" => close_to(false),
                "is_close_equal_nan" => close_to(true),
                "logical_and" => test(x != 0.0 && y != 0.0),
                "logical_or" => test(x != 0.0 || y != 0.0),
                "logical_xor" => test((x != 0.0) != (y != 0.0)),
                other => panic!("no formula for {other}"),
            };
            let right = match got {
                Val::Int(i) => i as f64 == want,
                got if OPS[row.op] == "floor_div" && x.is_infinite() => {
                    got.float().is_nan() || got.float() == want
                }
                got => {
                    let ulps = if row.dst == DType::F64 && ulps == 1.0 { 64.0 } else { ulps };
                    close(row.dst, got.float(), want, ulps, 0.0)
                }
            };
            if !right {
                wrong.push(format!("{} of {x:e}, {y:e}: {got:?}, not {want:e}", label(row)));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(60)]);
}

#[test]
fn floor_division_follows_python() {
    let nan = f64::NAN;
    let inf = f64::INFINITY;
    for (x, y, div, modulo) in [
        (7.0, 2.0, 3.0, 1.0),
        (-7.0, 2.0, -4.0, 1.0),
        (7.0, -2.0, -4.0, -1.0),
        (-7.0, -2.0, 3.0, -1.0),
        (1.0, 0.1, 9.0, 1.0 % 0.1),
        (-1.0, inf, -1.0, inf),
        (1.0, inf, 0.0, 1.0),
        (6.0, -3.0, -2.0, -0.0),
        (-0.0, 3.0, -0.0, 0.0),
        (5.0, 0.0, inf, nan),
    ] {
        let one = |name: &str| {
            let row = row(name, DType::F64);
            let [a, b] = [x, y].map(|v| encode(DType::F64, Val::Float(v)));
            decode(DType::F64, &apply(row, &a, &b, ATTR))[0]
        };
        assert!(one("floor_div").same(Val::Float(div)), "{x} // {y}: {:?}", one("floor_div"));
        assert!(one("floor_mod").same(Val::Float(modulo)), "{x} % {y}: {:?}", one("floor_mod"));
    }
}

#[test]
fn bad_shapes_and_aliases_are_refused_and_empty_is_fine() {
    let row = row("sub", DType::I32);
    fn call<'a>(shapes: [&'a [i64]; 2]) -> Call<'a> {
        Call { isa: Isa::BASELINE, par: &Serial, shapes, attr: ATTR }
    }
    let ints = |n: usize| vec![7u8; 4 * n];
    assert_eq!(call([&[0, 3], &[1, 3]]).run(row, [&[], &ints(3)], None).unwrap(), []);
    assert_eq!(call([&[2, 0], &[1]]).run(row, [&[], &ints(1)], None).unwrap(), []);
    assert_eq!(call([&[], &[]]).run(row, [&ints(1), &ints(1)], None).unwrap(), [0; 4]);
    let refused = |shapes: [&[i64]; 2], n: [usize; 2], in_place| {
        let e = call(shapes).run(row, [&ints(n[0]), &ints(n[1])], in_place).unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument, "{e}");
    };
    refused([&[2, 3], &[2]], [6, 2], None);
    refused([&[3], &[2, 3]], [3, 6], Some(0));
    refused([&[2, 3], &[1]], [6, 1], Some(1));
}

/// Two shapes that broadcast: each repeats over some dimensions of a common one. One dimension may be
/// longer than a staging buffer, so that rows are cut, shared between threads, and long or short.
fn shapes() -> impl Strategy<Value = [Vec<i64>; 2]> {
    let dim = prop_oneof![8 => 1i64..5, 1 => 0i64..2, 2 => 100i64..160];
    let dims = prop::collection::vec((dim, any::<[bool; 2]>(), prop::bool::weighted(0.6)), 0..6);
    (dims, 0usize..6, prop_oneof![3 => Just(1i64), 1 => 900i64..1400]).prop_map(|(dims, long, factor)| {
        let mut budget = 30_000 / factor;
        let mut shapes = [Vec::new(), Vec::new()];
        for (i, (mut d, keep, both)) in dims.into_iter().enumerate() {
            d = if d > budget { 1 } else { d };
            budget /= d.max(1);
            d *= if i == long { factor } else { 1 };
            for n in 0..2 {
                shapes[n].push(if keep[n] || both { d } else { 1 });
            }
        }
        shapes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn broadcasting_agrees_with_index_arithmetic(
        shapes in shapes(),
        which in prop::sample::select(vec![
            ("sub", DType::I32), ("floor_mod", DType::I32), ("sub", DType::U8), ("less_than", DType::I64),
            ("floor_div", DType::I16), ("sub", DType::I8),
        ]),
        drop_leading in any::<bool>(),
    ) {
        let row = row(which.0, which.1);
        let mut rng = Rng::new();
        let rank = shapes[0].len();
        let out: Vec<i64> = (0..rank).map(|i| {
            let (a, b) = (shapes[0][i], shapes[1][i]);
            if a == 1 { b } else { a }
        }).collect();
        let count = out.iter().product::<i64>() as usize;
        let values = [0, 1].map(|n| {
            let len = shapes[n].iter().product::<i64>() as usize;
            (0..len).map(|_| i128::from(rng.next() % 100) - 50).collect::<Vec<_>>()
        });
        let bytes = [0, 1].map(|n| -> Vec<u8> {
            values[n].iter().flat_map(|&v| encode(row.src, Val::Int(v))).collect()
        });
        let values = [0, 1].map(|n| decode(row.src, &bytes[n]));

        let at = |n: usize, mut flat: i64| {
            let (mut offset, mut stride) = (0, 1);
            for axis in (0..rank).rev() {
                let i = flat % out[axis];
                flat /= out[axis];
                if shapes[n][axis] != 1 {
                    offset += i * stride;
                    stride *= shapes[n][axis];
                }
            }
            values[n][offset as usize].int()
        };
        // A leading 1 may be left out of either shape.
        let mut given: [&[i64]; 2] = [&shapes[0], &shapes[1]];
        if drop_leading && given[1].first() == Some(&1) {
            given[1] = &given[1][1..];
        }
        for (isa, par) in [(Isa::BASELINE, &Serial as &dyn Parallel), (*Isa::available().last().unwrap(), &Threads(3))] {
            for in_place in [None, Some(0), Some(1)] {
                if in_place.is_some_and(|n| shapes[n] != out || size(row.src) != size(row.dst)) {
                    continue;
                }
                let got = Call { isa, par, shapes: given, attr: ATTR }.run(row, [&bytes[0], &bytes[1]], in_place);
                let got = decode(row.dst, &got.unwrap());
                prop_assert_eq!(got.len(), count);
                for (flat, got) in got.into_iter().enumerate() {
                    let (x, y) = (at(0, flat as i64), at(1, flat as i64));
                    let want = match which.0 {
                        "sub" => x - y,
                        "less_than" => (x < y).into(),
                        _ if y == 0 => 0,
                        "floor_mod" => (x % y + y) % y,
                        _ => (x as f64 / y as f64).floor() as i128,
                    };
                    let want = rounded(row.dst, Val::Int(want));
                    prop_assert!(got.same(want), "{} {:?} {:?} [{}]: {:?} is not {:?}",
                        label(row), given, in_place, flat, got, want);
                }
            }
        }
    }
}

struct Minus;

impl Op<f32, f32> for Minus {
    const COST: Cost = Cost::Cheap;

    fn apply(a: f32, b: f32, _: [f64; 2]) -> f32 {
        a - b
    }
}

/// Whatever this CPU would choose.
#[test]
fn lines_may_be_asked_for_at_every_length() {
    for n in (0..3).chain([63, 64, 65, 127, 200, 1000]) {
        let src: Vec<f32> = (0..2 * n).map(|i| (i * i) as f32).collect();
        let (a, b) = src.split_at(n);
        for isa in Isa::available() {
            let mut dst = Guarded::<f32>::new(n);
            // SAFETY: so many elements.
            let to = unsafe { slice::from_raw_parts_mut(dst.ptr().cast(), n) };
            let map =
                Map::<Minus, f32, f32> { src: [a, b], dst: to, attr: [0.0; 2], ahead: 0, op: PhantomData };
            isa.dispatch(Asking(map));
            assert!((0..n).all(|i| dst.written()[i] == a[i] - b[i]), "{n} {isa}");
        }
    }
}
