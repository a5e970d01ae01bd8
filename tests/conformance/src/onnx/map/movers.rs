//! Elements in other places: nothing is computed.

use super::{Family, Operator, Rule, one};
use crate::onnx::launches::{broadcast, scalar, strides};
use crate::onnx::machine::{Launch, Machine, Mapped, Value, count};
use Rule::Launches;
use ep_core::{DType, Error, Scalar};

pub(super) const RULES: Family = &[
    ("BitCast", Launches(bit_cast)),
    ("CenterCropPad", Launches(center_crop_pad)),
    ("Concat", Launches(concat)),
    ("DepthToSpace", Launches(depth_to_space)),
    ("Dropout", Launches(dropout)),
    ("Expand", Launches(expand)),
    ("Flatten", Launches(flatten)),
    ("Identity", Launches(|on, o| as_shape(on, o, &o.input(0)?.shape))),
    ("Pad", Launches(pad)),
    ("Reshape", Launches(reshape)),
    ("Slice", Launches(slice)),
    ("SpaceToDepth", Launches(space_to_depth)),
    ("Split", Launches(split)),
    ("Squeeze", Launches(squeeze)),
    ("Tile", Launches(tile)),
    ("Transpose", Launches(transpose)),
    ("Unsqueeze", Launches(unsqueeze)),
];

/// A copy of the first input in other dimensions.
fn as_shape(on: &mut Machine<'_>, o: &Operator<'_>, shape: &[i64]) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    one(on.copy(x, x.dtype, shape))
}

fn bit_cast(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let to = o.dtype("to", x.dtype)?;
    if to.bytes_for_bounds() != x.dtype.bytes_for_bounds() {
        return o.not_mapped("dtypes of different sizes");
    }
    one(on.copy(x, to, &x.shape))
}

fn concat(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let axis = o.input(0)?.axis(o.int("axis", 0))?;
    one(on.concat(&o.all(), axis))
}

/// Inference: what is dropped is decided by random numbers, which no two programs draw alike.
fn dropout(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let ratio = o.number(on, 1)?.map_or(0.5, Scalar::as_f64);
    let training = o.number(on, 2)?.is_some_and(|t| t.as_f64() != 0.0);
    if training && ratio != 0.0 {
        return o.not_mapped("training draws random numbers");
    }
    let mut outputs = vec![on.copy(x, x.dtype, &x.shape)?];
    if o.wants(1) {
        outputs.push(on.fill(DType::BOOL, &x.shape, true)?);
    }
    Ok(outputs)
}

fn expand(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, wanted) = (o.input(0)?, o.list(1)?.unwrap_or_default());
    one(on.expand(x, &broadcast(&x.shape, &wanted)?))
}

fn flatten(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let axis = o.int("axis", 1);
    let axis = if axis < 0 { axis + x.rank() as i64 } else { axis } as usize;
    let (before, behind) = x.shape.split_at(axis.min(x.rank()));
    as_shape(on, o, &[count(before), count(behind)])
}

fn reshape(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let mut shape = o.list_or(1, "shape")?.unwrap_or_default();
    if o.int("allowzero", 0) == 0 {
        for (d, old) in shape.iter_mut().zip(&x.shape).filter(|(d, _)| **d == 0) {
            *d = *old;
        }
    }
    if let Some(i) = shape.iter().position(|d| *d == -1) {
        let others: i64 = shape.iter().filter(|d| **d != -1).product();
        shape[i] = if others == 0 { 0 } else { x.count() / others };
    }
    as_shape(on, o, &shape)
}

fn squeeze(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let gone: Vec<usize> = match o.list_or(1, "axes")? {
        Some(axes) => axes.iter().map(|a| x.axis(*a)).collect::<Mapped<_>>()?,
        None => (0..x.rank()).filter(|i| x.shape[*i] == 1).collect(),
    };
    let kept: Vec<i64> = (0..x.rank()).filter(|i| !gone.contains(i)).map(|i| x.shape[i]).collect();
    as_shape(on, o, &kept)
}

fn unsqueeze(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let axes = o.list_or(1, "axes")?.unwrap_or_default();
    let rank = (x.rank() + axes.len()) as i64;
    let new: Vec<i64> = axes.iter().map(|a| if *a < 0 { a + rank } else { *a }).collect();
    let mut old = x.shape.iter();
    let shape = (0..rank).map(|i| if new.contains(&i) { Some(1) } else { old.next().copied() });
    let shape: Option<Vec<i64>> = shape.collect();
    let shape = shape.ok_or_else(|| Error::invalid(format!("new axes {axes:?} of {:?}", x.shape)))?;
    as_shape(on, o, &shape)
}

fn transpose(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let order: Vec<usize> = match o.ints("perm") {
        Some(order) => order.iter().map(|a| x.axis(*a)).collect::<Mapped<_>>()?,
        None => (0..x.rank()).rev().collect(),
    };
    one(on.permute(x, &order))
}

/// The repeats as dimensions of their own, along which the source stands still.
fn tile(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, repeats) = (o.input(0)?, o.list(1)?.unwrap_or_default());
    if 2 * x.rank() > 8 {
        return o.not_mapped("more than 4 dimensions");
    }
    let interleave =
        |a: &[i64], b: &[i64]| -> Vec<i64> { a.iter().zip(b).flat_map(|(a, b)| [*a, *b]).collect() };
    let dims = interleave(&repeats, &x.shape);
    let steps = interleave(&vec![0; x.rank()], &strides(&x.shape));
    let shape: Vec<i64> = repeats.iter().zip(&x.shape).map(|(r, d)| r * d).collect();
    one(on.strided(x, &dims, &steps, 0)?.shaped(&shape))
}

/// A strided view; negative steps go backwards from the last element.
fn slice(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let starts = o.list_or(1, "starts")?.unwrap_or_default();
    let ends = o.list_or(2, "ends")?.unwrap_or_default();
    let axes = o.list_or(3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = o.list(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    let (mut dims, mut by, mut offset) = (x.shape.clone(), strides(&x.shape), 0);
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = x.axis(*axis)?;
        let (first, taken) = steps_of(x.shape[axis], *start, *end, *step);
        offset += first * by[axis];
        (dims[axis], by[axis]) = (taken, by[axis] * step);
    }
    // An empty view may begin anywhere, even behind the end.
    let offset = if count(&dims) == 0 { 0 } else { offset };
    one(on.strided(x, &dims, &by, offset))
}

/// The first index of a slice and the number of its elements, by Python's rules.
fn steps_of(size: i64, start: i64, end: i64, step: i64) -> (i64, i64) {
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let bound = |at: i64| (if at < 0 { at.saturating_add(size) } else { at }).clamp(low, high);
    let (first, last) = (bound(start), bound(end));
    let reach = if step > 0 { last - first } else { first - last };
    let size = step.unsigned_abs().min(i64::MAX as u64) as i64;
    (first, if reach > 0 { (reach - 1) / size + 1 } else { 0 })
}

fn split(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let axis = x.axis(o.int("axis", 0))?;
    let size = x.shape[axis];
    let parts = match o.list_or(1, "split")? {
        Some(parts) => parts,
        None => {
            let n = o.int("num_outputs", o.node.outputs.len() as i64);
            let each = (size + n - 1) / n;
            (0..n).map(|i| each.min(size - i * each).max(0)).collect()
        }
    };
    let (mut at, mut shape) = (vec![0; x.rank()], x.shape.clone());
    let mut outputs = Vec::new();
    for part in parts {
        shape[axis] = part;
        outputs.push(on.crop(x, &at, &shape)?);
        at[axis] += part;
    }
    Ok(outputs)
}

/// A value with another around it.
pub(super) fn padded(
    on: &mut Machine<'_>,
    x: &Value,
    before: &[i64],
    after: &[i64],
    value: Scalar,
) -> Mapped<Value> {
    let shape: Vec<i64> = (0..x.rank()).map(|i| x.shape[i] + before[i] + after[i]).collect();
    Launch::new("constant_pad")
        .dtype("data", x.dtype)
        .list("src_dims", &x.shape)
        .list("padding_before", before)
        .list("padding_after", after)
        .scalar("value", value)
        .read("src", x)
        .make(on, "dst", x.dtype, &shape)
}

/// What is no constant comes from other places of the same axis: indices that depend on sizes only.
fn pad(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let pads = o.list_or(1, "pads")?.unwrap_or_default();
    let axes = o.list(3)?.unwrap_or_else(|| (0..x.rank() as i64).collect());
    let (mut before, mut after) = (vec![0; x.rank()], vec![0; x.rank()]);
    for (i, axis) in axes.iter().enumerate() {
        let axis = x.axis(*axis)?;
        (before[axis], after[axis]) = (pads[i], pads[i + axes.len()]);
    }
    let mode = o.text("mode", "constant");
    if mode == "constant" {
        let value = match o.optional(2) {
            Some(value) => scalar(value.download()?.get(0)),
            None => Scalar::None,
        };
        return one(padded(on, x, &before, &after, value));
    }
    let mut result = x.clone();
    for axis in 0..x.rank() {
        if (before[axis], after[axis]) == (0, 0) {
            continue;
        }
        let size = x.shape[axis];
        let Some(indices) = sources(mode, size, -before[axis]..size + after[axis]) else {
            return o.not_mapped(&format!("mode `{mode}`"));
        };
        result = on.take(&result, axis, &indices)?;
    }
    one(Ok(result))
}

/// Which index each one of a padded axis comes from.
fn sources(mode: &str, size: i64, indices: std::ops::Range<i64>) -> Option<Vec<i64>> {
    let source: fn(i64, i64) -> i64 = match mode {
        "edge" => |i, n| i.clamp(0, n - 1),
        "wrap" => |i, n| i.rem_euclid(n),
        // The ends are not repeated.
        "reflect" => |i, n| {
            let period = (2 * (n - 1)).max(1);
            let at = i.rem_euclid(period);
            at.min(period - at)
        },
        _ => return None,
    };
    Some(indices.map(|i| source(i, size)).collect())
}

/// Crops and pads as much on both sides; what is left over goes behind.
fn center_crop_pad(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let wanted = o.list(1)?.unwrap_or_default();
    let axes: Vec<i64> = o.ints("axes").map_or_else(|| (0..x.rank() as i64).collect(), <[i64]>::to_vec);
    let (mut before, mut after) = (vec![0; x.rank()], vec![0; x.rank()]);
    for (axis, size) in axes.iter().zip(wanted) {
        let axis = x.axis(*axis)?;
        let more = size - x.shape[axis];
        // Towards zero both when it grows and when it shrinks.
        before[axis] = more / 2;
        after[axis] = more - before[axis];
    }
    one(padded(on, x, &before, &after, Scalar::None))
}

/// Blocks of channels as dimensions of their own, moved beside rows and columns.
fn depth_to_space(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let ([n, c, h, w], b) = (four(o, x)?, o.int("blocksize", 1));
    let out = c / (b * b);
    let (dims, order) = match o.text("mode", "DCR") {
        "DCR" => ([n, b, b, out, h, w], [0, 3, 4, 1, 5, 2]),
        "CRD" => ([n, out, b, b, h, w], [0, 1, 4, 2, 5, 3]),
        other => return o.not_mapped(&format!("mode `{other}`")),
    };
    one(on.permute(&x.shaped(&dims)?, &order)?.shaped(&[n, out, h * b, w * b]))
}

fn space_to_depth(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let ([n, c, h, w], b) = (four(o, x)?, o.int("blocksize", 1));
    let blocks = [n, c, h / b, b, w / b, b];
    let order = match o.text("mode", "DCR") {
        "DCR" => [0, 3, 5, 1, 2, 4],
        "CRD" => [0, 1, 3, 5, 2, 4],
        other => return o.not_mapped(&format!("mode `{other}`")),
    };
    one(on.permute(&x.shaped(&blocks)?, &order)?.shaped(&[n, c * b * b, h / b, w / b]))
}

fn four(o: &Operator<'_>, x: &Value) -> Mapped<[i64; 4]> {
    match x.shape[..] {
        [n, c, h, w] => Ok([n, c, h, w]),
        _ => o.not_mapped("other than 4 dimensions"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_those_of_python() {
        // (size, start, end, step), and the indices that Python gives.
        let cases: [(i64, i64, i64, i64, &[i64]); 8] = [
            (5, 1, 4, 1, &[1, 2, 3]),
            (5, 0, 1000, 2, &[0, 2, 4]),
            (5, -2, i64::MAX, 1, &[3, 4]),
            (5, 4, i64::MIN, -1, &[4, 3, 2, 1, 0]),
            (5, 20, 0, -4, &[4]),
            (5, -1, -6, -2, &[4, 2, 0]),
            (5, 1000, 1000, 1, &[]),
            (0, 0, 10, 1, &[]),
        ];
        for (size, start, end, step, wanted) in cases {
            let (first, taken) = steps_of(size, start, end, step);
            let found: Vec<i64> = (0..taken).map(|i| first + i * step).collect();
            assert_eq!(found, wanted, "{size} [{start}:{end}:{step}]");
        }
    }

    #[test]
    fn padding_takes_from_the_axis() {
        let of = |mode| sources(mode, 3, -3..5);
        assert_eq!(of("edge").unwrap(), [0, 0, 0, 0, 1, 2, 2, 2]);
        assert_eq!(of("wrap").unwrap(), [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(of("reflect").unwrap(), [1, 2, 1, 0, 1, 2, 1, 0]);
        assert_eq!(of("constant"), None);
    }
}
