use crate::isa::Isa;
use crate::kernels::binary::{self, BinaryArgs};
use crate::kernels::elem::Storage;
use crate::kernels::stream::STREAM_BYTES;
use crate::kernels::testing::{Guarded, Rng, Threads};
use crate::kernels::unary::{self, UnaryArgs};
use ep_core::DType;

fn noise(n: usize) -> Vec<f32> {
    let mut rng = Rng::new();
    (0..n).map(|_| rng.signed() as f32).collect()
}

/// Past the cache, at an odd address, on threads.
#[test]
fn large_unary_launches_stream() {
    let n = STREAM_BYTES / 4 + 777;
    let op = unary::OPS.iter().position(|o| *o == "negative").unwrap();
    let kernel = unary::lookup(op, DType::F32, DType::F32).unwrap();
    let src = noise(n + 1);
    for isa in Isa::available() {
        let mut dst = Guarded::<f32>::new(n + 3);
        let args = UnaryArgs {
            count: n,
            src: src[1..].as_ptr().cast(),
            dst: dst.ptr().wrapping_add(3).cast(),
            attr: [0.0; 2],
        };
        // SAFETY: both have `n` elements from there on.
        unsafe { kernel.launch(isa, &Threads(2), &args) }.unwrap();
        let out = &dst.written()[3..];
        assert_eq!((0..n).find(|&i| out[i].to_bits() != (-src[i + 1]).to_bits()), None, "{isa}");
    }
}

/// Formulas store past the cache by themselves, and give the bits that they give inside it.
#[test]
fn large_formulas_stream() {
    let n = STREAM_BYTES / 4 + 777;
    let op = unary::OPS.iter().position(|o| *o == "exp").unwrap();
    let kernel = unary::lookup(op, DType::F32, DType::F32).unwrap();
    let src = noise(n + 1);
    for isa in Isa::available() {
        let mut dst = Guarded::<f32>::new(n + 3);
        let to = dst.ptr().wrapping_add(3);
        let args = UnaryArgs { count: n, src: src[1..].as_ptr().cast(), dst: to.cast(), attr: [0.0; 2] };
        // SAFETY: both have `n` elements from there on.
        unsafe { kernel.launch(isa, &Threads(2), &args) }.unwrap();
        let out = &dst.written()[3..];
        for start in (0..n).step_by(10_007) {
            let mut small = Guarded::<f32>::new(10_007.min(n - start));
            let count = small.written().len();
            let args = UnaryArgs {
                count,
                src: src[1 + start..].as_ptr().cast(),
                dst: small.ptr().cast(),
                attr: [0.0; 2],
            };
            // SAFETY: both have `count` elements from there on.
            unsafe { kernel.launch(isa, &Threads(1), &args) }.unwrap();
            let same = small.written().iter().zip(&out[start..]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "from {start} {isa}");
        }
    }
}

/// Of operands that second-level cache holds lines are asked for before they are written, if this is a CPU for that.
#[test]
fn launches_that_second_level_cache_holds() {
    let (unary_op, binary_op) = (
        unary::OPS.iter().position(|o| *o == "negative").unwrap(),
        binary::OPS.iter().position(|o| *o == "sub").unwrap(),
    );
    let unary = unary::lookup(unary_op, DType::F32, DType::F32).unwrap();
    let binary = binary::lookup(binary_op, DType::F32, DType::F32).unwrap();
    for (n, threads) in [8191, 8192, 40_001, 70_001].into_iter().flat_map(|n| [1, 2].map(|t| (n, t))) {
        let (a, b) = (noise(n), noise(n));
        for isa in Isa::available() {
            let [mut one, mut two] = [0; 2].map(|_| Guarded::<f32>::new(n + 1));
            let (to, dims) = (one.ptr().wrapping_add(1).cast(), [n as i64]);
            let args = UnaryArgs { count: n, src: a.as_ptr().cast(), dst: to, attr: [0.0; 2] };
            // SAFETY: both have `n` elements from there on.
            unsafe { unary.launch(isa, &Threads(threads), &args) }.unwrap();
            let args = BinaryArgs {
                src0_dims: &dims,
                src1_dims: &dims,
                src0: a.as_ptr().cast(),
                src1: b.as_ptr().cast(),
                dst: two.ptr().wrapping_add(1).cast(),
                attr: [0.0; 2],
            };
            // SAFETY: all have `n` elements from there on.
            unsafe { binary.launch(isa, &Threads(threads), &args) }.unwrap();
            let (one, two) = (one.written(), two.written());
            let right = |i: usize| one[i + 1] == -a[i] && two[i + 1] == a[i] - b[i];
            assert_eq!((0..n).find(|&i| !right(i)), None, "{n} on {threads} {isa}");
        }
    }
}

#[test]
fn large_binary_launches_stream() {
    let (rows, cols) = (2903i64, 3001i64);
    let n = (rows * cols) as usize;
    assert!(n * 4 > STREAM_BYTES);
    let op = binary::OPS.iter().position(|o| *o == "sub").unwrap();
    let kernel = binary::lookup(op, DType::F32, DType::F32).unwrap();
    let (a, b) = (noise(n), noise(n));
    let index = |shape: &[i64], i: usize| match *shape {
        [_, 1] => i / cols as usize,
        [_, _] => i,
        [_] => i % cols as usize,
        _ => 0,
    };
    let all: [[&[i64]; 2]; 6] = [
        [&[rows, cols], &[rows, cols]],
        [&[rows, cols], &[cols]],
        [&[rows, 1], &[rows, cols]],
        [&[rows, 1], &[cols]],
        [&[rows, cols], &[]],
        [&[cols], &[rows, cols]],
    ];
    for [x, y] in all {
        let mut dst = Guarded::<f32>::new(n + 1);
        let args = BinaryArgs {
            src0_dims: x,
            src1_dims: y,
            src0: a.as_ptr().cast(),
            src1: b.as_ptr().cast(),
            dst: dst.ptr().wrapping_add(1).cast(),
            attr: [0.0; 2],
        };
        let isa = *Isa::available().last().unwrap();
        // SAFETY: all have the elements of their shapes from there on.
        unsafe { kernel.launch(isa, &Threads(2), &args) }.unwrap();
        let out = &dst.written()[1..];
        let wrong = (0..n).find(|&i| out[i].to_bits() != (a[index(x, i)] - b[index(y, i)]).to_bits());
        assert_eq!(wrong, None, "{x:?} {y:?}");
    }
}

/// In place, with a scalar, or both, in one block and in several.
#[test]
fn small_launches_in_place_and_with_scalars() {
    let op = binary::OPS.iter().position(|o| *o == "sub").unwrap();
    let kernel = binary::lookup(op, DType::F32, DType::F32).unwrap();
    for n in [1usize, 5, 1023, 1025, 9001] {
        let (a, b) = (noise(n), noise(n));
        let dims = [n as i64];
        for isa in Isa::available() {
            for (in_place, scalar) in [
                ([true, false], None),
                ([false, true], None),
                ([true, true], None),
                ([false, false], Some(0)),
                ([false, false], Some(1)),
                ([true, false], Some(1)),
                ([false, true], Some(0)),
            ] {
                let mut dst = Guarded::from(if in_place[0] { &a } else { &b });
                let own = dst.ptr().cast_const().cast();
                let shape = |k| if scalar == Some(k) { &[][..] } else { &dims[..] };
                let args = BinaryArgs {
                    src0_dims: shape(0),
                    src1_dims: shape(1),
                    src0: if in_place[0] { own } else { a.as_ptr().cast() },
                    src1: if in_place[1] { own } else { b.as_ptr().cast() },
                    dst: dst.ptr().cast(),
                    attr: [0.0; 2],
                };
                // SAFETY: all have the elements of their shapes.
                unsafe { kernel.launch(isa, &Threads(2), &args) }.unwrap();
                let of = |k: usize, i: usize| {
                    let from = if k == 0 || in_place == [true; 2] { &a } else { &b };
                    from[if scalar == Some(k) { 0 } else { i }]
                };
                let wrong = (0..n).find(|&i| dst.written()[i].to_bits() != (of(0, i) - of(1, i)).to_bits());
                assert_eq!(wrong, None, "{n} {in_place:?} {scalar:?} {isa}");
            }
        }
    }
}

/// A row of one element beside each of many, on either side, where the other may be the destination.
#[test]
fn an_element_for_each_row() {
    rows_beside_elements(noise, |a, b| a - b);
    let wide = |n| noise(n).into_iter().map(|x| f64::from(x) / 3.0).collect();
    rows_beside_elements(wide, |a: f64, b| a - b);
    let mut rng = Rng::new();
    rows_beside_elements(|n| (0..n).map(|_| rng.next() as u32).collect(), u32::wrapping_sub);
    rows_beside_elements(|n| (0..n).map(|_| rng.next()).collect(), u64::wrapping_sub);
}

fn rows_beside_elements<T: Storage + PartialEq + Default>(
    mut some: impl FnMut(usize) -> Vec<T>,
    sub: impl Fn(T, T) -> T,
) {
    let op = binary::OPS.iter().position(|o| *o == "sub").unwrap();
    let kernel = binary::lookup(op, T::DTYPE, T::DTYPE).unwrap();
    let shapes = [
        (300, 15),
        (300, 16),
        (300, 17),
        (100, 40),
        (3, 127),
        (40, 127),
        (40, 128),
        (40, 777),
        (2, 9001),
        (300, 1001),
    ];
    for (rows, cols) in shapes {
        let (matrix, column) = (some(rows * cols), some(rows));
        for (isa, which) in Isa::available().into_iter().flat_map(|isa| [(isa, 0), (isa, 1)]) {
            for in_place in [false, true] {
                let mut dst = Guarded::from(&matrix);
                let many = if in_place { dst.ptr().cast_const() } else { matrix.as_ptr() }.cast();
                let shapes = [[rows as i64, cols as i64], [rows as i64, 1]];
                let args = BinaryArgs {
                    src0_dims: &shapes[which],
                    src1_dims: &shapes[1 - which],
                    src0: if which == 0 { many } else { column.as_ptr().cast() },
                    src1: if which == 0 { column.as_ptr().cast() } else { many },
                    dst: dst.ptr().cast(),
                    attr: [0.0; 2],
                };
                // SAFETY: all have the elements of their shapes.
                unsafe { kernel.launch(isa, &Threads(2), &args) }.unwrap();
                let want = |i: usize| {
                    let (x, y) = (matrix[i], column[i / cols]);
                    if which == 0 { sub(x, y) } else { sub(y, x) }
                };
                let wrong = (0..rows * cols).find(|&i| dst.written()[i] != want(i));
                assert_eq!(wrong, None, "{} {rows} {cols} {which} {in_place} {isa}", T::DTYPE);
            }
        }
    }
}

/// One source, or both, may be the destination.
#[test]
fn large_launches_in_place() {
    let n = STREAM_BYTES / 4 + 5;
    let op = binary::OPS.iter().position(|o| *o == "sub").unwrap();
    let kernel = binary::lookup(op, DType::F32, DType::F32).unwrap();
    let (a, b) = (noise(n), noise(n));
    for which in 0..3 {
        let mut dst = Guarded::from(if which == 1 { &b } else { &a });
        let own = dst.ptr().cast_const().cast();
        let args = BinaryArgs {
            src0_dims: &[n as i64],
            src1_dims: &[n as i64],
            src0: if which == 1 { a.as_ptr().cast() } else { own },
            src1: if which == 0 { b.as_ptr().cast() } else { own },
            dst: dst.ptr().cast(),
            attr: [0.0; 2],
        };
        let isa = *Isa::available().last().unwrap();
        // SAFETY: all have `n` elements.
        unsafe { kernel.launch(isa, &Threads(2), &args) }.unwrap();
        let want = |i: usize| if which == 2 { a[i] - a[i] } else { a[i] - b[i] };
        let wrong = (0..n).find(|&i| dst.written()[i].to_bits() != want(i).to_bits());
        assert_eq!(wrong, None, "{which}");
    }
}
