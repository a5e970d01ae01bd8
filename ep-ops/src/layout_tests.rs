//! Strides as PyTorch 2 has them.

use super::*;
use MemoryFormat::{ChannelsLast, ChannelsLast3d, Contiguous, Preserve};

type Ints = &'static [i64];

#[test]
fn strides_of_new_tensors() {
    let table: [(MemoryFormat, &[i64], &[i64]); 11] = [
        (Contiguous, &[], &[]),
        (Contiguous, &[5], &[1]),
        (Contiguous, &[2, 3, 4], &[12, 4, 1]),
        (Contiguous, &[2, 1, 4], &[4, 4, 1]),
        // A dimension of 0 counts as one of 1.
        (Contiguous, &[2, 0, 4], &[4, 4, 1]),
        (Contiguous, &[0, 3], &[3, 1]),
        (ChannelsLast, &[1, 64, 5, 4], &[1280, 1, 256, 64]),
        (ChannelsLast, &[2, 3, 4, 5], &[60, 1, 15, 3]),
        (ChannelsLast, &[2, 1, 4, 5], &[20, 1, 5, 1]),
        (ChannelsLast, &[0, 3, 4, 5], &[60, 1, 15, 3]),
        (ChannelsLast3d, &[2, 3, 4, 5, 6], &[360, 1, 90, 18, 3]),
    ];
    for (format, shape, strides) in table {
        let found = of_format(format, shape, &contiguous(shape)).unwrap();
        assert_eq!(found.as_slice(), strides, "{format:?} of {shape:?}");
        assert!(is_contiguous(format, shape, &found), "{format:?} of {shape:?}");
        assert!(is_dense(shape, &found), "{format:?} of {shape:?}");
    }
    let error = of_format(ChannelsLast, &[2, 3, 4], &[12, 4, 1]).unwrap_err();
    assert_eq!(
        error.message(),
        "ChannelsLast of shape [2, 3, 4]: it is a format of 4 dimensions; use Contiguous or Preserve"
    );
}

#[test]
fn what_is_contiguous() {
    let table: [(MemoryFormat, &[i64], &[i64], bool); 17] = [
        (Contiguous, &[], &[], true),
        (Contiguous, &[3, 2], &[1, 3], false),
        (Contiguous, &[3, 2], &[2, 1], true),
        (Contiguous, &[3, 2], &[4, 1], false),
        (Contiguous, &[3, 1, 2], &[2, 77, 1], true),
        (Contiguous, &[1, 1], &[0, -5], true),
        (Contiguous, &[3, 0], &[7, 7], true),
        (Contiguous, &[3], &[-1], false),
        (Contiguous, &[3], &[0], false),
        (ChannelsLast, &[2, 3, 4, 5], &[60, 20, 5, 1], false),
        (ChannelsLast, &[2, 3, 4, 5], &[60, 1, 15, 3], true),
        // Both at once: one channel, or images of one point.
        (ChannelsLast, &[2, 1, 4, 5], &[20, 20, 5, 1], true),
        (ChannelsLast, &[2, 3, 1, 1], &[3, 1, 1, 1], true),
        (ChannelsLast, &[3, 4, 5], &[1, 15, 3], false),
        (ChannelsLast, &[0, 3, 4, 5], &[60, 20, 5, 1], false),
        (Preserve, &[3, 2], &[1, 3], true),
        (Preserve, &[3, 2], &[1, 4], false),
    ];
    for (format, shape, strides, yes) in table {
        assert_eq!(is_contiguous(format, shape, strides), yes, "{format:?} {shape:?} {strides:?}");
    }
}

#[test]
fn what_is_dense_and_what_overlaps() {
    // Shape, strides, dense, may overlap.
    let table: [(&[i64], &[i64], bool, bool); 12] = [
        (&[], &[], true, false),
        (&[2, 3, 4], &[12, 4, 1], true, false),
        (&[4, 2, 3], &[1, 12, 4], true, false),
        (&[4, 1, 3], &[3, 0, 1], true, false),
        (&[4, 3], &[6, 2], false, false),
        (&[4, 3], &[0, 1], false, true),
        (&[4, 3], &[1, 1], false, true),
        (&[4, 3], &[3, 0], false, true),
        (&[0, 3], &[0, 0], true, false),
        (&[4, 3], &[-3, -1], false, false),
        (&[2, 2], &[i64::MIN, 1], false, false),
        // 0, 2, 4 and 3, 5, 7: none, but strides do not say so at once.
        (&[2, 3], &[3, 2], false, true),
    ];
    for (shape, strides, dense, overlap) in table {
        assert_eq!(is_dense(shape, strides), dense, "{shape:?} {strides:?}");
        assert_eq!(may_overlap(shape, strides), overlap, "{shape:?} {strides:?}");
    }
}

#[test]
fn preserved_formats() {
    let table: [(&[i64], &[i64], &[i64]); 8] = [
        // Dense: as it is, even of dimensions of size 1.
        (&[4, 2, 3], &[1, 12, 4], &[1, 12, 4]),
        (&[2, 1, 3], &[3, 50, 1], &[3, 50, 1]),
        // With gaps: the order remains.
        (&[4, 2, 2], &[1, 12, 4], &[1, 8, 4]),
        (&[2, 3, 2, 2], &[60, 1, 15, 3], &[12, 1, 6, 3]),
        // Repeated: in order, or around what has an order.
        (&[3, 4], &[0, 1], &[4, 1]),
        (&[3, 4], &[1, 0], &[4, 1]),
        (&[2, 3, 4], &[1, 0, 2], &[1, 2, 6]),
        // Backwards.
        (&[2, 3], &[-1, -2], &[1, 2]),
    ];
    for (shape, strides, preserved) in table {
        let found = of_format(Preserve, shape, strides).unwrap();
        assert_eq!(found.as_slice(), preserved, "{shape:?} {strides:?}");
    }
}

#[test]
fn views_where_strides_allow_them() {
    let table: [(Ints, Ints, Ints, Option<Ints>); 24] = [
        (&[2, 3, 4], &[12, 4, 1], &[6, 4], Some(&[4, 1])),
        (&[2, 3, 4], &[12, 4, 1], &[24], Some(&[1])),
        (&[2, 3, 4], &[12, 4, 1], &[3, 8], Some(&[8, 1])),
        (&[2, 3, 4], &[12, 4, 1], &[2, 1, 12, 1], Some(&[12, 12, 1, 1])),
        // Transposed: each dimension can be cut, and no two joined.
        (&[4, 3, 2], &[1, 4, 12], &[12, 2], None),
        (&[4, 3, 2], &[1, 4, 12], &[24], None),
        (&[4, 3, 2], &[1, 4, 12], &[2, 2, 3, 2], Some(&[2, 1, 4, 12])),
        (&[4, 3, 2], &[1, 4, 12], &[4, 3, 1, 2], Some(&[1, 4, 24, 12])),
        // A part of each row.
        (&[2, 3], &[6, 1], &[6], None),
        (&[2, 3], &[6, 1], &[3, 2], None),
        (&[2, 3], &[6, 1], &[2, 1, 3], Some(&[6, 3, 1])),
        // Each second row of a matrix, and each second element of it.
        (&[2, 4], &[8, 1], &[2, 2, 2], Some(&[8, 2, 1])),
        (&[4, 2], &[4, 2], &[8], Some(&[2])),
        (&[4, 2], &[4, 2], &[2, 4], Some(&[8, 2])),
        // Repeated.
        (&[3, 4], &[0, 1], &[12], None),
        (&[3, 4], &[0, 1], &[3, 2, 2], Some(&[0, 2, 1])),
        (&[3, 4], &[1, 0], &[3, 2, 2], Some(&[1, 0, 0])),
        (&[3, 4], &[0, 0], &[12], Some(&[0])),
        // Backwards.
        (&[6], &[-1], &[2, 3], Some(&[-3, -1])),
        // Strides of dimensions of one element do not count.
        (&[2, 1, 3], &[3, 100, 1], &[6], Some(&[1])),
        // Images with channels last: points can be joined, channels not.
        (&[2, 3, 4, 5], &[60, 1, 15, 3], &[2, 3, 20], Some(&[60, 1, 3])),
        (&[2, 3, 4, 5], &[60, 1, 15, 3], &[2, 60], None),
        // A single element, and none.
        (&[], &[], &[1, 1], Some(&[1, 1])),
        (&[0, 3], &[1, 9], &[3, 0, 2], Some(&[2, 2, 1])),
    ];
    for (shape, strides, wanted, view) in table {
        let found = of_view(shape, strides, wanted);
        assert_eq!(found.as_deref(), view, "{shape:?} {strides:?} as {wanted:?}");
    }
    assert_eq!(of_view(&[1, 1], &[7, 7], &[]).as_deref(), Some(&[] as &[i64]));
    assert_eq!(of_view(&[0, 3], &[1, 9], &[0, 3]).as_deref(), Some(&[1i64, 9] as &[i64]));
}

#[test]
fn sizes_that_are_inferred() {
    assert_eq!(infer_size(24, &[2, -1, 3]).unwrap(), [2, 4, 3]);
    assert_eq!(infer_size(1, &[]).unwrap(), [0i64; 0]);
    assert_eq!(infer_size(0, &[-1, 3]).unwrap(), [0, 3]);
    assert_eq!(infer_size(0, &[5, 0]).unwrap(), [5, 0]);
    let message = |numel, shape: &[i64]| infer_size(numel, shape).unwrap_err().message().to_owned();
    assert_eq!(
        message(24, &[-1, 2, -1]),
        "shape [-1, 2, -1]: dimensions 0 and 2 are -1; only one can be inferred"
    );
    assert_eq!(message(0, &[-1, 0]), "shape [-1, 0]: -1 could be anything beside a dimension of 0; give it");
    assert_eq!(message(24, &[5, -1]), "shape [5, -1] does not hold the 24 elements that there are");
    assert_eq!(message(24, &[5, 5]), "shape [5, 5] does not hold the 24 elements that there are");
    assert_eq!(message(2, &[]), "shape [] does not hold the 2 elements that there are");
}

#[test]
fn expanded_strides() {
    let table: [(Ints, Ints, Ints, Ints, Ints); 6] = [
        (&[3, 1], &[1, 1], &[3, 4], &[3, 4], &[1, 0]),
        (&[3, 1], &[1, 1], &[-1, 4], &[3, 4], &[1, 0]),
        (&[3], &[1], &[2, 3], &[2, 3], &[0, 1]),
        (&[3], &[1], &[1, 3], &[1, 3], &[3, 1]),
        (&[], &[], &[2, 2], &[2, 2], &[0, 0]),
        (&[1, 2], &[2, 1], &[0, 2], &[0, 2], &[0, 1]),
    ];
    for (shape, strides, wanted, sizes, steps) in table {
        let (found_sizes, found_steps) = of_expanded(shape, strides, wanted).unwrap();
        assert_eq!((&found_sizes[..], found_steps.as_slice()), (sizes, steps), "{shape:?} to {wanted:?}");
    }
    let message = |shape: &[i64], wanted: &[i64]| {
        of_expanded(shape, &contiguous(shape), wanted).unwrap_err().message().to_owned()
    };
    assert_eq!(
        message(&[3, 2], &[3, 4]),
        "[3, 2] cannot be expanded to [3, 4]: its dimension 1 has 2 elements, neither 1 nor 4"
    );
    assert_eq!(
        message(&[3, 2], &[2]),
        "[3, 2] cannot be expanded to [2]: it has 2 dimensions, which is more"
    );
    assert_eq!(
        message(&[2], &[-1, 2]),
        "[2] cannot be expanded to [-1, 2]: dimension 0 is new, so that -1 has no meaning"
    );
    assert_eq!(message(&[1], &[-2]), "[1] cannot be expanded to [-2]: size -2 is negative");
}
