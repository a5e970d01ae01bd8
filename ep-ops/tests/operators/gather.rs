//! Gather, batch gather and scatter add.

use crate::support::{Host, Layout, Random, cpu, few, layouts, on_each, shapes};
use ep_core::primitive::IndexMode;
use ep_core::{Code, DType};
use proptest::prelude::*;

/// Indices for an axis of so many elements, and the mode that takes them.
fn pick(shape: &[i64], size: i64, random: &mut Random) -> (Host, IndexMode) {
    let mode = if size == 0 { IndexMode::ZERO } else { IndexMode(random.below(3) as u32) };
    let indices = Host::from_fn(shape, |_| match mode {
        IndexMode::WRAP => random.below(2 * size as u64) as f64 - size as f64,
        IndexMode::ZERO => random.below(2 * size as u64 + 3) as f64 - 2.0,
        _ => random.below(size as u64) as f64,
    });
    (indices, mode)
}

/// The place that an index means.
fn place(index: f64, size: i64, mode: IndexMode) -> Option<i64> {
    let index = index as i64;
    match mode {
        IndexMode::WRAP if index < 0 => Some(index + size),
        _ => (0..size).contains(&index).then_some(index),
    }
}

/// The model of all gathers: `out[batch, before, picked, behind]`.
fn model(params: &Host, indices: &Host, axis: usize, batch: usize, mode: IndexMode) -> Host {
    let picked = indices.shape.len() - batch;
    let shape = [&params.shape[..axis], &indices.shape[batch..], &params.shape[axis + 1..]].concat();
    Host::from_fn(&shape, |index| {
        let own = [&index[..batch], &index[axis..axis + picked]].concat();
        match place(indices.get(&own), params.shape[axis], mode) {
            Some(i) => params.get(&[&index[..axis], &[i], &index[axis + picked..]].concat()),
            None => 0.0,
        }
    })
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn slices_by_indices_of_any_shape(
        params in shapes(1..4), picked in shapes(0..3), at in 0usize..4, negative: bool, wide: bool, seed: u64,
        layout in layouts(), index_layout in layouts(),
    ) {
        let rank = params.len();
        let axis = at % rank;
        let dim = if negative { axis as i64 - rank as i64 } else { axis as i64 };
        let mut random = Random(seed);
        let (indices, mode) = pick(&picked, params[axis], &mut random);
        let params = Host::random(&params, &mut random);
        let index_dtype = if wide { DType::I64 } else { DType::I32 };
        on_each(|ops| {
            let tensors = (params.laid_out(ops, DType::I16, layout), indices.laid_out(ops, index_dtype, index_layout));
            let out = ops.gather(&tensors.0, &tensors.1, dim, mode).unwrap();
            model(&params, &indices, axis, 0, mode).assert_equal(ops, &out);
        });
    }

    #[test]
    fn batches_have_their_own_indices(
        params in shapes(1..5), picked in shapes(0..3), at in 0usize..5, batches in 0usize..4, seed: u64,
        layout in layouts(), index_layout in layouts(),
    ) {
        let axis = at % params.len();
        let batch = batches.min(axis);
        let mut random = Random(seed);
        let (indices, mode) = pick(&[&params[..batch], &picked].concat(), params[axis], &mut random);
        let params = Host::random(&params, &mut random);
        on_each(|ops| {
            let tensors = (params.laid_out(ops, DType::F32, layout), indices.laid_out(ops, DType::I32, index_layout));
            let out = ops.batch_gather(&tensors.0, &tensors.1, axis as i64, batch, mode).unwrap();
            model(&params, &indices, axis, batch, mode).assert_equal(ops, &out);
        });
    }

    #[test]
    fn slices_are_added(
        base in shapes(1..4), picked in shapes(0..3), at in 0usize..4, seed: u64, layout in layouts(),
    ) {
        let axis = at % base.len();
        let mut random = Random(seed);
        let (indices, mode) = pick(&picked, base[axis], &mut random);
        let src = Host::random(&[&base[..axis], &picked, &base[axis + 1..]].concat(), &mut random);
        let base = Host::random(&base, &mut random);
        let n = picked.len();
        let expected = Host::from_fn(&base.shape, |index| {
            let mut sum = base.get(index);
            for own in crate::support::indices(&picked) {
                if place(indices.get(&own), base.shape[axis], mode) == Some(index[axis]) {
                    sum += src.get(&[&index[..axis], &own, &index[axis + 1..]].concat());
                }
            }
            sum
        });
        assert_eq!(src.shape.len(), base.shape.len() - 1 + n);
        on_each(|ops| {
            let tensor = base.laid_out(ops, DType::I32, layout);
            let (indices, src) = (indices.laid_out(ops, DType::I64, layout), src.laid_out(ops, DType::I32, layout));
            let out = ops.scatter_add(&tensor, &indices, &src, axis as i64, mode).unwrap();
            expected.assert_equal(ops, &out);
            base.assert_equal(ops, &tensor);
        });
    }
}

/// 0, 1, 2 and 10, 11, 12 and so on.
fn params() -> Host {
    Host::from_fn(&[4, 3], |index| (10 * index[0] + index[1]) as f64)
}

/// The examples of "在 Oneflow 中开发 Gather Primitive".
#[test]
fn examples_of_the_article() {
    on_each(|ops| {
        let t = params().to(ops, DType::F32);
        let i = |shape: &[i64], data: &[f64]| Host::new(shape, data).to(ops, DType::I64);
        let out = ops.gather(&t, &i(&[2], &[2.0, 1.0]), 1, IndexMode::ERROR).unwrap();
        Host::new(&[4, 2], &[2.0, 1.0, 12.0, 11.0, 22.0, 21.0, 32.0, 31.0]).assert_equal(ops, &out);

        let indices = i(&[2, 2], &[2.0, 0.0, 0.0, 1.0]);
        let out = ops.gather(&t, &indices, 0, IndexMode::ERROR).unwrap();
        let rows = [20.0, 21.0, 22.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 10.0, 11.0, 12.0];
        Host::new(&[2, 2, 3], &rows).assert_equal(ops, &out);

        let out = ops.gather(&t, &indices, 1, IndexMode::ERROR).unwrap();
        let of_row = |first: f64| [first + 2.0, first, first, first + 1.0];
        let expected: Vec<f64> = [0.0, 10.0, 20.0, 30.0].into_iter().flat_map(of_row).collect();
        Host::new(&[4, 2, 2], &expected).assert_equal(ops, &out);

        let indices = i(&[4, 2], &[2.0, 1.0, 0.0, 2.0, 1.0, 1.0, 1.0, 0.0]);
        let out = ops.batch_gather(&t, &indices, 1, 1, IndexMode::ERROR).unwrap();
        Host::new(&[4, 2], &[2.0, 1.0, 10.0, 12.0, 21.0, 21.0, 31.0, 30.0]).assert_equal(ops, &out);
    });
}

/// Of [4, 2, 3, 2] by [4, 2, 5] along dimension 3 with two batch dimensions the article has [4, 2, 3, 5].
#[test]
fn a_batch_gather_with_dimensions_before_the_axis() {
    let ops = cpu();
    let mut random = Random(3);
    let params = Host::random(&[4, 2, 3, 2], &mut random);
    let indices = Host::from_fn(&[4, 2, 5], |_| random.below(2) as f64);
    let out =
        ops.batch_gather(&params.to(&ops, DType::F32), &indices.to(&ops, DType::I32), 3, 2, IndexMode::ERROR);
    let out = out.unwrap();
    assert_eq!(out.shape(), [4, 2, 3, 5]);
    model(&params, &indices, 3, 2, IndexMode::ERROR).assert_equal(&ops, &out);
}

#[test]
fn a_single_element_has_one_dimension() {
    on_each(|ops| {
        let one = Host::new(&[], &[7.0]);
        let indices = Host::new(&[2], &[0.0, -1.0]).to(ops, DType::I32);
        let out = ops.gather(&one.to(ops, DType::I8), &indices, 0, IndexMode::WRAP).unwrap();
        Host::new(&[2], &[7.0, 7.0]).assert_equal(ops, &out);
        let src = Host::new(&[2], &[1.0, 2.0]).to(ops, DType::I8);
        let out = ops.scatter_add(&one.to(ops, DType::I8), &indices, &src, 0, IndexMode::WRAP).unwrap();
        Host::new(&[], &[10.0]).assert_equal(ops, &out);
    });
}

#[test]
fn an_index_outside_is_an_error_at_last_of_the_synchronisation() {
    on_each(|ops| {
        let t = params().laid_out(ops, DType::F32, Layout::Dense);
        let indices = Host::new(&[2], &[0.0, 3.0]).to(ops, DType::I64);
        for mode in [IndexMode::ERROR, IndexMode::WRAP] {
            let found = ops.gather(&t, &indices, 1, mode).and_then(|_| ops.sync());
            let error = found.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
            assert!(error.message().contains('3'), "{error}");
        }
        // Of no elements nothing is read, and indices are judged all the same.
        let empty = Host::new(&[0, 3], &[]).to(ops, DType::F32);
        assert!(ops.gather(&empty, &indices, 1, IndexMode::ERROR).and_then(|_| ops.sync()).is_err());
    });
}
