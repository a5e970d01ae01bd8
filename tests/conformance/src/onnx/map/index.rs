//! What goes by indices: gathering, one-hot, positions of the largest.

use super::{Family, Operator, Rule, one};
use crate::onnx::launches::{scalar, strides};
use crate::onnx::machine::{Launch, Machine, Mapped, Value, count};
use Rule::Launches;
use ep_core::{DType, Scalar};

pub(super) const RULES: Family = &[
    ("ArgMax", Launches(|on, o| position(on, o, "argmax"))),
    ("ArgMin", Launches(|on, o| position(on, o, "argmin"))),
    ("Gather", Launches(gather)),
    ("GatherElements", Launches(|on, o| one(gather_elements(on, o)))),
    ("GatherND", Launches(gather_nd)),
    ("Hardmax", Launches(hardmax)),
    ("OneHot", Launches(one_hot)),
    ("ReverseSequence", Launches(reverse_sequence)),
];

/// The first of the extreme elements of each row of an axis, which is gone.
fn arg_reduce(on: &mut Machine<'_>, op: &str, x: &Value, axis: usize) -> Mapped<Value> {
    let [outer, reduced, inner] = x.around(axis);
    let mut shape = x.shape.clone();
    shape.remove(axis);
    Launch::new("arg_reduce")
        .select("op", op)
        .dtype("src", x.dtype)
        .dtype("dst", DType::I64)
        .sizes(&[("outer", outer), ("reduced", reduced), ("inner", inner)])
        .read("src", x)
        .make(on, "dst", DType::I64, &shape)
}

/// A value backwards along an axis.
fn reversed(on: &mut Machine<'_>, x: &Value, axis: usize) -> Mapped<Value> {
    let mut steps = strides(&x.shape);
    let last = (x.shape[axis] - 1) * steps[axis];
    steps[axis] = -steps[axis];
    on.strided(x, &x.shape, &steps, last)
}

/// The last of equal elements is the first from behind.
fn position(on: &mut Machine<'_>, o: &Operator<'_>, op: &str) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let axis = x.axis(o.int("axis", 0))?;
    let last = o.int("select_last_index", 0) != 0;
    let mut found = if last {
        let backwards = reversed(on, x, axis)?;
        let from_behind = arg_reduce(on, op, &backwards, axis)?;
        let end = on.fill(DType::I64, &[], x.shape[axis] - 1)?;
        on.binary("sub", &end, &from_behind)?
    } else {
        arg_reduce(on, op, x, axis)?
    };
    if o.int("keepdims", 1) != 0 {
        let mut shape = x.shape.clone();
        shape[axis] = 1;
        found = found.shaped(&shape)?;
    }
    one(Ok(found))
}

fn gather(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    one(on.gather(x, x.axis(o.int("axis", 0))?, o.input(1)?))
}

/// The axis last, what the indices do not reach of the other dimensions cut off, and a pick from each row.
fn gather_elements(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Value> {
    let (x, indices) = (o.input(0)?, o.input(1)?);
    let axis = x.axis(o.int("axis", 0))?;
    let mut within = indices.shape.clone();
    within[axis] = x.shape[axis];
    let reached = if within == x.shape { x.clone() } else { on.crop(x, &vec![0; x.rank()], &within)? };
    let (rows, picks) = (on.axis_last(&reached, axis)?, on.axis_last(indices, axis)?);
    let picked = on.pick(&rows, &picks)?;
    on.axis_back(&picked, axis)
}

/// Each tuple of indices as one index of rows, computed by launches; negative ones count from the end.
fn gather_nd(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, indices) = (o.input(0)?, o.input(1)?);
    let batch = o.int("batch_dims", 0) as usize;
    let depth = indices.shape[indices.rank() - 1] as usize;
    let addressed = &x.shape[batch..batch + depth];
    let (sizes, steps) = (on.integers(addressed)?, on.integers(&strides(addressed))?);
    let positive = on.binary("floor_mod", indices, &sizes)?;
    let scaled = on.binary("mul", &positive, &steps)?;
    let flat = on.reduce_axes("sum", &scaled, &[scaled.rank() - 1], DType::I64)?;
    let rest = &x.shape[batch + depth..];
    let (batches, rows, inner) = (count(&x.shape[..batch]), count(addressed), count(rest));
    let mut shape = indices.shape[..indices.rank() - 1].to_vec();
    shape.extend(rest);
    let of_each = count(&flat.shape[batch..]);
    let launch = Launch::new("batch_gather")
        .select("mode", "error")
        .dtype("indices", DType::I64)
        .dtype("data", x.dtype)
        .sizes(&[("batch", batches), ("outer", 1), ("processed", rows), ("inner", inner)])
        .sizes(&[("num_indices", of_each), ("offset", 0), ("size", 0)]);
    one(launch.read("indices", &flat).read("src", x).make(on, "dst", x.dtype, &shape))
}

/// One where the maximum of a row is met first.
fn hardmax(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let axis = x.axis(o.int("axis", -1))?;
    let largest = arg_reduce(on, "argmax", x, axis)?;
    let rows = on.one_hot(&largest, x.shape[axis], x.dtype, Scalar::I64(1), Scalar::I64(0))?;
    one(on.axis_back(&rows, axis))
}

/// Indices may have any dtype, and count from the end where they are negative.
fn one_hot(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (indices, values) = (o.input(0)?, o.input(2)?);
    let depth = on.number(o.input(1)?)?.as_f64() as i64;
    let content = values.download()?;
    let (off, lit) = (scalar(content.get(0)), scalar(content.get(1)));
    let indices = on.cast(indices, DType::I64)?;
    let from_end = on.binary_scalar("add", &indices, depth)?;
    let negative = on.compare_scalar("less_than", &indices, 0)?;
    let indices = on.choose(&negative, &from_end, &indices)?;
    let rows = on.one_hot(&indices, depth, values.dtype, lit, off)?;
    let axis = rows.axis(o.int("axis", -1))?;
    one(on.axis_back(&rows, axis))
}

/// The first elements of each sequence backwards, the rest in place: indices that depend on the lengths only.
fn reverse_sequence(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, lengths) = (o.input(0)?, o.list(1)?.unwrap_or_default());
    let (batch, time) = (o.int("batch_axis", 1), o.int("time_axis", 0));
    let (0 | 1, 0 | 1) = (batch, time) else { return o.not_mapped("axes other than the first two") };
    let x = if batch == 0 { x.clone() } else { swapped(on, x)? };
    let [batches, steps] = x.shape[..2] else { return o.not_mapped("fewer than 2 dimensions") };
    let of = |length: i64| (0..steps).map(move |i| if i < length { length - 1 - i } else { i });
    let indices = on.integers(&lengths.iter().flat_map(|l| of(*l)).collect::<Vec<_>>())?;
    let launch = Launch::new("batch_gather")
        .select("mode", "error")
        .dtype("indices", DType::I64)
        .dtype("data", x.dtype)
        .sizes(&[("batch", batches), ("outer", 1), ("processed", steps), ("inner", count(&x.shape[2..]))])
        .sizes(&[("num_indices", steps), ("offset", 0), ("size", 0)]);
    let result = launch.read("indices", &indices).read("src", &x).make(on, "dst", x.dtype, &x.shape)?;
    one(if batch == 0 { Ok(result) } else { swapped(on, &result) })
}

/// The first two dimensions exchanged.
fn swapped(on: &mut Machine<'_>, x: &Value) -> Mapped<Value> {
    let mut order: Vec<usize> = (0..x.rank()).collect();
    order.swap(0, 1);
    on.permute(x, &order)
}
