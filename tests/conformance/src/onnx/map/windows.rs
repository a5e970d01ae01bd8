//! Windows that slide over neighbours: a strided copy that reads elements more than once, and a reduction or a product.

use super::movers::padded;
use super::{Family, Operator, Rule, one};
use crate::onnx::launches::{scalar, strides};
use crate::onnx::machine::{Machine, Mapped, Value, count};
use Rule::Launches;
use ep_core::{DType, Error, Scalar};
use primitives::reference::{Number, int_range};

pub(super) const RULES: Family = &[
    ("AveragePool", Launches(average_pool)),
    ("Conv", Launches(conv)),
    ("ConvInteger", Launches(conv_integer)),
    ("LpPool", Launches(lp_pool)),
    ("LRN", Launches(response_norm)),
    ("MaxPool", Launches(max_pool)),
];

/// Where the windows lie along one dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slide {
    kernel: i64,
    stride: i64,
    dilation: i64,
    before: i64,
    after: i64,
    /// Elements behind the padding that the last window reaches when sizes are rounded up.
    beyond: i64,
    count: i64,
}

impl Slide {
    /// Over `size` elements, with padding that is given or chosen so that there are `size / stride` windows.
    fn new(size: i64, [kernel, stride, dilation]: [i64; 3], pads: [i64; 2], auto: &str, ceil: bool) -> Slide {
        let reach = (kernel - 1) * dilation + 1;
        let same = (((size + stride - 1) / stride - 1) * stride + reach - size).max(0);
        let [before, after] = match auto {
            "SAME_UPPER" => [same / 2, same - same / 2],
            "SAME_LOWER" => [same - same / 2, same / 2],
            "VALID" => [0, 0],
            _ => pads,
        };
        let room = size + before + after - reach;
        let up = if ceil { stride - 1 } else { 0 };
        let mut count = ((room + up).div_euclid(stride) + 1).max(0);
        // A window that begins behind the elements is none.
        if ceil && (count - 1) * stride >= size + before {
            count -= 1;
        }
        let beyond = ((count - 1) * stride - room).max(0);
        Slide { kernel, stride, dilation, before, after, beyond, count }
    }
}

/// The windows of an operator over [n, channels, ...].
fn slides(o: &Operator<'_>, x: &Value, kernel: &[i64]) -> Mapped<Vec<Slide>> {
    let spatial = x.shape.get(2..).unwrap_or_default();
    let n = spatial.len();
    if kernel.len() != n || n == 0 {
        return Err(Error::invalid(format!("a kernel {kernel:?} over {:?}", x.shape)).into());
    }
    let list =
        |name, default: i64, len: usize| o.ints(name).map_or_else(|| vec![default; len], <[i64]>::to_vec);
    let (by, dilations, pads) = (list("strides", 1, n), list("dilations", 1, n), list("pads", 0, 2 * n));
    let (auto, ceil) = (o.text("auto_pad", "NOTSET"), o.int("ceil_mode", 0) != 0);
    let slide = |i: usize| {
        Slide::new(spatial[i], [kernel[i], by[i], dilations[i]], [pads[i], pads[n + i]], auto, ceil)
    };
    Ok((0..n).map(slide).collect())
}

/// The windows themselves, [n, channels, places..., kernel...]; `pad` is around the elements and `beyond` behind it.
fn windows(on: &mut Machine<'_>, x: &Value, slides: &[Slide], pad: Scalar, beyond: Scalar) -> Mapped<Value> {
    let each =
        |f: fn(&Slide) -> i64| -> Vec<i64> { [0, 0].into_iter().chain(slides.iter().map(f)).collect() };
    let mut x = x.clone();
    for (before, after, value) in
        [(each(|s| s.before), each(|s| s.after), pad), (each(|_| 0), each(|s| s.beyond), beyond)]
    {
        if before.iter().chain(&after).any(|p| *p != 0) {
            x = padded(on, &x, &before, &after, value)?;
        }
    }
    let steps = strides(&x.shape);
    let (mut dims, mut by) = (x.shape[..2].to_vec(), steps[..2].to_vec());
    dims.extend(slides.iter().map(|s| s.count));
    by.extend(slides.iter().zip(&steps[2..]).map(|(s, step)| s.stride * step));
    dims.extend(slides.iter().map(|s| s.kernel));
    by.extend(slides.iter().zip(&steps[2..]).map(|(s, step)| s.dilation * step));
    on.strided(&x, &dims, &by, 0)
}

/// Each window as one element.
fn reduced(on: &mut Machine<'_>, op: &str, windows: &Value, slides: &[Slide]) -> Mapped<Value> {
    let axes: Vec<usize> = (2 + slides.len()..windows.rank()).collect();
    on.reduce_axes(op, windows, &axes, windows.dtype)
}

fn kernel_shape<'o>(o: &'o Operator<'_>) -> Mapped<&'o [i64]> {
    let missing = || Error::invalid(format!("{} without kernel_shape", o.node.op));
    Ok(o.ints("kernel_shape").ok_or_else(missing)?)
}

/// What is not there is lower than everything.
fn max_pool(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    if o.wants(1) {
        return o.not_mapped("the places of the maxima");
    }
    let slides = slides(o, x, kernel_shape(o)?)?;
    let lowest = match x.dtype.is_float() {
        true => Scalar::F64(f64::NEG_INFINITY),
        false => scalar(Number::Int(int_range(x.dtype).0)),
    };
    let windows = windows(on, x, &slides, lowest, lowest)?;
    one(reduced(on, "max", &windows, &slides))
}

/// The sum of each window over the number of its elements, padding included where an attribute says so.
fn average_pool(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let slides = slides(o, x, kernel_shape(o)?)?;
    let zero = Scalar::I64(0);
    let content = windows(on, x, &slides, zero, zero)?;
    let sums = reduced(on, "sum", &content, &slides)?;
    let mut shape = x.shape.clone();
    shape[..2].fill(1);
    let ones = on.fill(x.dtype, &shape, 1)?;
    let padding = Scalar::I64(i64::from(o.int("count_include_pad", 0) != 0));
    let counted = windows(on, &ones, &slides, padding, zero)?;
    let counts = reduced(on, "sum", &counted, &slides)?;
    one(on.binary("div", &sums, &counts))
}

fn lp_pool(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let slides = slides(o, x, kernel_shape(o)?)?;
    let p = o.int("p", 2) as f64;
    let sizes = on.unary("abs", x)?;
    let powers = on.binary_scalar("pow", &sizes, p)?;
    let windows = windows(on, &powers, &slides, Scalar::I64(0), Scalar::I64(0))?;
    let sums = reduced(on, "sum", &windows, &slides)?;
    one(on.binary_scalar("pow", &sums, 1.0 / p))
}

/// `x / (bias + alpha mean)^beta`, with the mean of the squares of neighbouring channels.
fn response_norm(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let (x, size) = (o.input(0)?, o.int("size", 1));
    let [n, channels] = x.shape[..2] else { return o.not_mapped("no channels") };
    let places = count(&x.shape[2..]);
    let squares = on.unary("square", x)?.shaped(&[n, 1, channels, places])?;
    let before = (size - 1) / 2;
    let neighbours = Slide::new(channels, [size, 1, 1], [before, size - 1 - before], "", false);
    let alone = Slide::new(places, [1, 1, 1], [0, 0], "", false);
    let zero = Scalar::I64(0);
    let slides = [neighbours, alone];
    let windows = windows(on, &squares, &slides, zero, zero)?;
    let sums = reduced(on, "sum", &windows, &slides)?.shaped(&x.shape)?;
    let scaled = on.binary_scalar("mul", &sums, o.float("alpha", 1e-4)? / size as f64)?;
    let shifted = on.binary_scalar("add", &scaled, o.float("bias", 1.0)?)?;
    let divisor = on.binary_scalar("pow", &shifted, o.float("beta", 0.75)?)?;
    one(on.binary("div", x, &divisor))
}

fn conv(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let result = convolved(on, o, o.input(0)?, o.input(1)?)?;
    let Some(bias) = o.optional(2) else { return Ok(vec![result]) };
    let mut shape = vec![1; result.rank() - 1];
    shape[0] = bias.count();
    one(on.binary("add", &result, &bias.shaped(&shape)?))
}

/// In 32-bit integers, less the zero points; so what is around the elements is 0.
fn conv_integer(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let mut operands = Vec::new();
    for i in [0, 1] {
        let mut x = on.cast(o.input(i)?, DType::I32)?;
        if let Some(zero) = o.optional(i + 2) {
            if zero.count() != 1 {
                return o.not_mapped("zero points of channels");
            }
            let zero = on.cast(&zero.shaped(&[])?, DType::I32)?;
            x = on.binary("sub", &x, &zero)?;
        }
        operands.push(x);
    }
    one(convolved(on, o, &operands[0], &operands[1]))
}

/// The windows of each group as columns, and the product of its filters with them.
fn convolved(on: &mut Machine<'_>, o: &Operator<'_>, x: &Value, filters: &Value) -> Mapped<Value> {
    let kernel = filters.shape.get(2..).unwrap_or_default();
    let slides = slides(o, x, kernel)?;
    let (groups, dims) = (o.int("group", 1), slides.len());
    let windows = windows(on, x, &slides, Scalar::I64(0), Scalar::I64(0))?;
    let order: Vec<usize> = [0, 1].into_iter().chain(2 + dims..2 + 2 * dims).chain(2..2 + dims).collect();
    let columns = on.permute(&windows, &order)?;
    let (n, made, of_each) = (x.shape[0], filters.shape[0], count(&filters.shape[1..]));
    let places: Vec<i64> = slides.iter().map(|s| s.count).collect();
    let columns = columns.shaped(&[n, groups, of_each, count(&places)])?;
    let product = on.matmul(&filters.shaped(&[groups, made / groups, of_each])?, &columns)?;
    let shape: Vec<i64> = [n, made].into_iter().chain(places).collect();
    product.shaped(&shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted() {
        let of = |size, kernel, pads, auto, ceil| {
            let s = Slide::new(size, kernel, pads, auto, ceil);
            (s.count, s.before, s.after, s.beyond)
        };
        assert_eq!(of(5, [3, 1, 1], [0, 0], "", false), (3, 0, 0, 0));
        assert_eq!(of(5, [3, 1, 1], [1, 1], "", false), (5, 1, 1, 0));
        assert_eq!(of(5, [3, 1, 2], [0, 0], "", false), (1, 0, 0, 0));
        assert_eq!(of(4, [2, 3, 1], [0, 0], "", false), (1, 0, 0, 0));
        assert_eq!(of(4, [3, 2, 1], [0, 0], "", true), (2, 0, 0, 1));
        // The second window would begin behind the last element.
        assert_eq!(of(2, [1, 3, 1], [0, 0], "", true), (1, 0, 0, 0));
        assert_eq!(of(5, [2, 1, 1], [9, 9], "SAME_UPPER", false), (5, 0, 1, 0));
        assert_eq!(of(5, [2, 1, 1], [9, 9], "SAME_LOWER", false), (5, 1, 0, 0));
        assert_eq!(of(5, [2, 1, 1], [9, 9], "VALID", false), (4, 0, 0, 0));
        assert_eq!(of(2, [3, 1, 1], [0, 0], "", false).0, 0);
    }
}
