//! Copies keep what PyTorch's keep, and write nothing else.

use crate::model::{Model, Step, apply, shape, step};
use crate::under::{devices, invalid, ops};
use ep_core::primitive::{BinaryOp, IndexMode, UnaryOp};
use ep_core::{Complex, DType};
use ep_ops::{MemoryFormat, Ops, Tensor};
use proptest::prelude::*;

use MemoryFormat::{ChannelsLast, ChannelsLast3d, Contiguous, Preserve};

/// A view of a new tensor of these numbers, with its model; steps that are not possible are left out.
fn viewed(ops: &Ops<'_>, base: &[i64], first: i32, steps: &[Step]) -> (Tensor, Tensor, Model, Vec<i32>) {
    let data: Vec<i32> = (first..first + base.iter().product::<i64>() as i32).collect();
    let root = ops.tensor(&data, base).unwrap();
    let (mut t, mut m) = (root.alias(), Model::whole(base));
    for step in steps {
        (t, m) = apply(*step, t.alias(), m.clone()).unwrap_or((t, m));
        if m.at.len() > 500 {
            break;
        }
    }
    (root, t, m, data)
}

/// A tensor that can be broadcast to a shape, and what it is then: some dimensions of one element, some left out, stored in
/// another order.
fn source(ops: &Ops<'_>, shape: &[i64], seed: u64, dtype: DType) -> (Tensor, Vec<i32>) {
    let ones = shape.iter().enumerate().map(|(d, n)| if seed >> d & 3 == 3 { 1 } else { *n });
    let small: Vec<i64> = ones.skip(seed as usize % 7 / 6).collect();
    let count = small.iter().product::<i64>() as i32;
    let data: Vec<i32> = (0..count).map(|i| (i * 37 + seed as i32) % 200).collect();
    let values = Model::whole(&small).expand(shape).read(&data);
    // Innermost first: written through a transposed view of memory in the opposite order.
    let backwards: Vec<i64> = (0..small.len() as i64).rev().collect();
    let reversed: Vec<i64> = small.iter().rev().copied().collect();
    let t = ops.empty(DType::I32, &reversed).unwrap().permute(&backwards).unwrap();
    ops.copy_(&t, &ops.tensor(&data, &small).unwrap()).unwrap();
    (ops.to_dtype(&t, dtype).unwrap(), values)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// `copy_` into any view broadcasts, converts, crosses devices, and touches nothing else.
    #[test]
    fn into_views(
        base in shape(),
        steps in prop::collection::vec(step(), 0..6),
        seed in 0..10_000u64,
        dtype in 0..4usize,
        on in 0..2usize,
        from in 0..3usize,
    ) {
        let (there, here) = (ops(["cpu:0", devices()[1], "sim:1"][from]), ops(devices()[on]));
        let (root, dst, m, mut data) = viewed(&here, &base, -5000, &steps);
        let (src, values) = source(&there, &m.shape, seed, [DType::I32, DType::F32, DType::I64, DType::U8][dtype]);
        let before = there.to_vec::<i32>(&there.to_dtype(&src, DType::I32).unwrap()).unwrap();
        match here.copy_(&dst, &src) {
            Ok(()) => {
                prop_assert!(!m.overlaps());
                m.at.iter().zip(values).for_each(|(at, value)| data[*at] = value);
            }
            Err(e) => {
                // Windows may look as if they overlapped where they do not.
                prop_assert!(m.overlaps() || steps.iter().any(|s| matches!(s, Step::Unfold(..))), "{}", e);
                prop_assert!(e.message().contains("some of its elements share memory"), "{}", e);
            }
        }
        prop_assert_eq!(here.to_vec::<i32>(&root).unwrap(), data, "{:?} to {:?}", src, dst);
        let after = there.to_vec::<i32>(&there.to_dtype(&src, DType::I32).unwrap()).unwrap();
        prop_assert_eq!(before, after);
        prop_assert!(here.fallbacks().is_empty());
    }

    /// What is copied within one storage is what was there before.
    #[test]
    fn within_a_storage(
        base in shape(),
        steps in prop::collection::vec(step(), 0..4),
        change in prop::collection::vec((0..4usize, 0..100i64), 8),
        on in 0..2usize,
    ) {
        let here = ops(devices()[on]);
        let (root, mut dst, mut m, mut data) = viewed(&here, &base, 0, &steps);
        let (mut src, mut seen) = (dst.alias(), m.clone());
        for (d, (what, n)) in change.into_iter().enumerate().take(m.shape.len()) {
            match what {
                0 => (src, seen) = (src.flip(&[d as i64]).unwrap(), seen.flip(d)),
                1 if m.shape[d] > 0 => {
                    let at = n % m.shape[d];
                    (src, seen) = (src.narrow(d as i64, at, 1).unwrap(), seen.narrow(d, at, 1));
                }
                // Both the same but for where they begin.
                2 if m.shape[d] > 0 && seen.shape[d] > 1 => {
                    let (dim, len) = (d as i64, m.shape[d] - 1);
                    (dst, m) = (dst.narrow(dim, 1, len).unwrap(), m.narrow(d, 1, len));
                    (src, seen) = (src.narrow(dim, 0, len).unwrap(), seen.narrow(d, 0, len));
                }
                _ => {}
            }
        }
        let values = seen.expand(&m.shape).read(&data);
        if here.copy_(&dst, &src).is_ok() {
            m.at.iter().zip(values).for_each(|(at, value)| data[*at] = value);
        }
        prop_assert_eq!(here.to_vec::<i32>(&root).unwrap(), data, "{:?} to {:?}", src, dst);
    }

    /// Copies of any view, in each format and on another device.
    #[test]
    fn of_views(base in shape(), steps in prop::collection::vec(step(), 0..6), on in 0..2usize) {
        let here = ops(devices()[on]);
        let (_root, t, m, data) = viewed(&here, &base, 0, &steps);
        let values = m.read(&data);
        for format in [Contiguous, ChannelsLast, ChannelsLast3d, Preserve] {
            let ranks = match format { ChannelsLast => 4..5, ChannelsLast3d => 5..6, _ => 0..9 };
            let copy = here.clone(&t, format);
            if !ranks.contains(&t.rank()) {
                prop_assert!(invalid(copy).contains("it is a format of"));
                continue;
            }
            let copy = copy.unwrap();
            prop_assert!(copy.is_contiguous(format) && !copy.shares_storage(&t), "{:?} of {:?}", format, t);
            prop_assert_eq!(&here.to_vec::<i32>(&copy).unwrap(), &values);
            if format != Preserve {
                let same = here.contiguous(&t, format).unwrap();
                prop_assert_eq!(same.shares_storage(&t), t.is_contiguous(format));
                prop_assert_eq!(&here.to_vec::<i32>(&same).unwrap(), &values);
            } else if t.is_dense_without_overlap() {
                prop_assert_eq!(copy.strides(), t.strides());
            }
        }
        let other = ops(["sim:1", "cpu:0"][on]);
        let moved = other.to_device(&t).unwrap();
        prop_assert_eq!(moved.device(), other.device());
        prop_assert_eq!(&other.to_vec::<i32>(&moved).unwrap(), &values);
        prop_assert_eq!(&here.to_vec::<i32>(&moved).unwrap(), &values);
        if t.is_dense_without_overlap() {
            prop_assert_eq!(moved.strides(), t.strides());
        }
    }
}

/// The example of the article: `[1, 64, 5, 4]` made channels last, so that 64 points of 20 channels are copied.
#[test]
fn channels_last_as_in_the_article() {
    for device in devices() {
        let ops = ops(device);
        let x = ops.arange(DType::F32, 0, 1280, 1).unwrap().view(&[1, 64, 5, 4]).unwrap();
        assert_eq!(x.strides(), [1280, 20, 4, 1]);
        let y = ops.contiguous(&x, ChannelsLast).unwrap();
        assert_eq!((y.shape(), y.strides()), ([1i64, 64, 5, 4].as_slice(), [1280i64, 1, 256, 64].as_slice()));
        assert_eq!(ops.to_vec::<f32>(&y).unwrap(), ops.to_vec::<f32>(&x).unwrap());
        // In memory the channels of a point follow each other.
        let memory = y.permute(&[0, 2, 3, 1]).unwrap();
        assert!(memory.is_contiguous(Contiguous));
        assert_eq!(ops.to_vec::<f32>(&memory).unwrap()[..3], [0.0, 20.0, 40.0]);
        // Once it has the format, nothing is copied; a clone keeps it.
        assert!(ops.contiguous(&y, ChannelsLast).unwrap().shares_storage(&y));
        assert_eq!(ops.clone(&y, Preserve).unwrap().strides(), [1280, 1, 256, 64]);
        assert_eq!(ops.clone(&y, Contiguous).unwrap().strides(), [1280, 20, 4, 1]);
        let half = ops.to_dtype(&y.narrow(1, 0, 32).unwrap(), DType::F16).unwrap();
        assert_eq!(half.strides(), [640, 1, 128, 32]);
    }
}

#[test]
fn a_transposed_matrix_as_in_the_article() {
    for device in devices() {
        let ops = ops(device);
        let x = ops.tensor(&[1i32, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
        let t = x.t().unwrap();
        assert!(!t.is_contiguous(Contiguous) && t.is_dense_without_overlap());
        let c = ops.contiguous(&t, Contiguous).unwrap();
        assert_eq!((c.strides(), c.shares_storage(&x)), ([2i64, 1].as_slice(), false));
        assert_eq!(c.into_buffer().unwrap().download::<i32>().unwrap(), [1, 4, 2, 5, 3, 6]);
        assert!(ops.contiguous(&x, Contiguous).unwrap().shares_storage(&x));
        // The clone of what is dense lies as it does.
        let clone = ops.clone(&t, Preserve).unwrap();
        assert_eq!(clone.strides(), [1, 3]);
        assert_eq!(
            clone.t().unwrap().into_buffer().map(|_| ()).unwrap_err().code(),
            ep_core::Code::InvalidArgument
        );
        assert_eq!(
            invalid(ops.contiguous(&x, Preserve)),
            "contiguous: Preserve is no format to have; name another, or use clone"
        );
    }
}

#[test]
fn dtypes_are_converted_as_by_cast() {
    for device in devices() {
        let ops = ops(device);
        let x = ops.tensor(&[-1.5f32, 0.0, f32::NAN, 3e9, 300.7, f32::INFINITY], &[2, 3]).unwrap();
        let t = x.t().unwrap();
        let ints = ops.to_dtype(&t, DType::I32).unwrap();
        assert_eq!(ints.strides(), [1, 3]);
        assert_eq!(ops.to_vec::<i32>(&ints).unwrap(), [-1, i32::MAX, 0, 300, 0, i32::MAX]);
        let bools = ops.to_dtype(&x, DType::BOOL).unwrap();
        assert_eq!(ops.to_vec::<bool>(&bools).unwrap(), [true, false, true, true, true, true]);
        let complex = ops.full(DType::COMPLEX64, &[3], ep_core::Scalar::Complex(2.0, 5.0)).unwrap();
        ops.copy_(&x.select(0, 1).unwrap(), &complex).unwrap();
        assert_eq!(ops.to_vec::<f32>(&x).unwrap()[3..], [2.0, 2.0, 2.0]);
        ops.copy_(&complex, &ops.tensor(&[true], &[]).unwrap()).unwrap();
        assert_eq!(ops.to_vec::<Complex<f32>>(&complex).unwrap()[2], Complex { re: 1.0, im: 0.0 });
        assert!(ops.to_dtype(&x, DType::F32).unwrap().shares_storage(&x));
        let told = invalid(ops.to_vec::<i32>(&x));
        assert_eq!(
            told,
            format!("Tensor(f32[2, 3], strides [3, 1], on {device}) as i32; convert it with to_dtype")
        );
    }
}

/// Buffers know a written start only: what a view leaves out before it is set to 0, and what was written stays.
#[test]
fn parts_of_what_was_never_written() {
    for device in devices() {
        let ops = ops(device);
        let ones = ops.full(DType::U8, &[2, 2], 1).unwrap();
        let x = ops.empty(DType::BOOL, &[3, 4]).unwrap();
        let told = invalid(ops.to_vec::<bool>(&x));
        assert!(told.contains("only 0..0 of the buffer have been written"), "{told}");
        ops.copy_(&x.narrow(0, 1, 1).unwrap(), &ones.select(0, 0).unwrap().select(0, 0).unwrap()).unwrap();
        let seen =
            |t: &Tensor| ops.to_vec::<bool>(t).unwrap().iter().map(|b| u8::from(*b)).collect::<Vec<_>>();
        assert_eq!(seen(&x.narrow(0, 0, 2).unwrap()), [0, 0, 0, 0, 1, 1, 1, 1]);
        invalid(ops.to_vec::<bool>(&x));
        ops.copy_(&x.slice(0, 0, 3, 2).unwrap().slice(1, 1, 4, 2).unwrap(), &ones).unwrap();
        assert_eq!(seen(&x.slice(0, 0, 3, 2).unwrap()), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(seen(&x), [0, 1, 0, 1, 1, 1, 1, 1, 0, 1, 0, 1]);
    }
}

#[test]
fn refusals() {
    let ops = ops("cpu:0");
    let x = ops.zeros(DType::I32, &[2, 3]).unwrap();
    let far = crate::under::ops("sim:0").zeros(DType::I32, &[2, 3]).unwrap();
    assert_eq!(
        invalid(ops.copy_(&x, &ops.zeros(DType::I32, &[2]).unwrap())),
        "copy_ from Tensor(i32[2], strides [1], on cpu:0) to Tensor(i32[2, 3], strides [3, 1], on cpu:0): [2] cannot be \
         expanded to [2, 3]: its dimension 0 has 2 elements, neither 1 nor 3"
    );
    assert_eq!(
        invalid(ops.copy_(&x.narrow(0, 0, 1).unwrap().expand(&[2, 3]).unwrap(), &x)),
        "copy_ to Tensor(i32[2, 3], strides [0, 1], on cpu:0): some of its elements share memory; write to a clone, or to \
         what it was expanded from"
    );
    assert_eq!(
        invalid(ops.clone(&far, Contiguous)),
        "clone: input 0 is on sim:0 and the operators on cpu:0; bring it with to_device"
    );
    assert!(ops.contiguous(&far.t().unwrap(), Contiguous).is_err());
    assert_eq!(
        invalid(ops.contiguous(&x, ChannelsLast)),
        "contiguous: ChannelsLast of shape [2, 3]: it is a format of 4 dimensions; use Contiguous or Preserve"
    );
    // The destination's device does it, whoever is asked.
    ops.copy_(&far, &ops.full(DType::U8, &[3], 7).unwrap()).unwrap();
    assert_eq!(ops.to_vec::<i32>(&far).unwrap(), [7; 6]);
}

/// Two threads that copy to and fro end, and neither tears what the other writes.
#[test]
fn to_and_fro_by_two_threads() {
    for device in devices() {
        let first = ops(device);
        let (a, b) = (first.zeros(DType::I32, &[8]).unwrap(), first.full(DType::I32, &[8], 1).unwrap());
        std::thread::scope(|threads| {
            for swap in [false, true] {
                let (a, b) = (a.alias(), b.alias());
                threads.spawn(move || {
                    let ops = ops(device);
                    for _ in 0..100 {
                        let (dst, src) = if swap { (&b, &a) } else { (&a, &b) };
                        ops.copy_(dst, src).unwrap();
                        ops.binary_(BinaryOp::MAX, dst, src).unwrap();
                        let index = ops.zeros(DType::I32, &[0]).unwrap();
                        let none = src.narrow(0, 0, 0).unwrap();
                        ops.scatter_add_(dst, &index, &none, 0, IndexMode::ERROR).unwrap();
                    }
                    ops.sync().unwrap();
                });
            }
        });
        for t in [&a, &b] {
            let seen = first.to_vec::<i32>(t).unwrap();
            assert!(seen == [0; 8] || seen == [1; 8], "{seen:?}");
        }
    }
}

/// Copies can be recorded into a graph; what only a graph will write is not set to 0 again.
#[test]
fn recorded() {
    let ops = ops(devices()[1]);
    let (x, y) = (ops.zeros(DType::I32, &[3, 4]).unwrap(), ops.empty(DType::I32, &[3, 4]).unwrap());
    let src = ops.full(DType::I64, &[3], 5).unwrap();
    let graph = ops
        .stream()
        .capture(|_| {
            ops.copy_(&y, &x)?;
            ops.copy_(&y.select(1, 2)?, &src)
        })
        .unwrap();
    graph.launch(ops.stream()).unwrap();
    assert_eq!(ops.to_vec::<i32>(&y).unwrap(), [0, 0, 5, 0, 0, 0, 5, 0, 0, 0, 5, 0]);
    let z = ops.empty(DType::I32, &[3, 4]).unwrap();
    let told = invalid(ops.stream().capture(|_| ops.copy_(&z.select(1, 2)?, &src)));
    assert!(told.contains("upload or fill it first"), "{told}");
    // Parts that lie one behind the other are all there is, without anything that fills gaps.
    let (a, b) = (ops.tensor(&[1, -2], &[1, 2]).unwrap(), ops.tensor(&[3], &[1, 1]).unwrap());
    let mut joined = None;
    let graph = ops
        .stream()
        .capture(|_| {
            let row = ops.unary(UnaryOp::NEGATIVE, &ops.concat(&[&a, &b], 1)?)?;
            let rows = ops.concat(&[&row, &row], 0)?;
            joined = Some(ops.concat(&[&rows, &rows.narrow(1, 0, 1)?], 1)?);
            Ok(())
        })
        .unwrap();
    graph.launch(ops.stream()).unwrap();
    assert_eq!(ops.to_vec::<i32>(&joined.unwrap()).unwrap(), [-1, 2, -3, -1, -1, 2, -3, -1]);
    // In place, each time that the graph is launched.
    let step = ops.tensor(&[10], &[1]).unwrap();
    let graph = ops.stream().capture(|_| ops.binary_(BinaryOp::ADD, &a, &step)).unwrap();
    graph.launch(ops.stream()).unwrap();
    graph.launch(ops.stream()).unwrap();
    assert_eq!(ops.to_vec::<i32>(&a).unwrap(), [21, 18]);
}
