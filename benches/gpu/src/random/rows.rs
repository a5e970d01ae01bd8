//! Launches that normalise rows of floats.

use super::compare::Within;
use super::draw::Draw;
use super::launch::{Launch, Operand};
use ep_core::DType;

/// f32 twice as often.
const FLOATS: [DType; 5] = [DType::F16, DType::BF16, DType::F32, DType::F32, DType::F64];
/// Where there is more than one element between those of a row, as many columns at most: rows lie far apart then.
const MOST_STRIDED: i64 = 300;
const MOST_ROWS: i64 = 5000;
/// One of so many numbers is infinite or none, where a launch has such numbers.
const ODD_ONE_IN: i64 = 3000;
const EPSILON: f64 = 1e-5;

/// Rounding of a result, and sums in another order.
fn rounding(dtype: DType) -> Within {
    let (relative, absolute) = match dtype {
        DType::F16 => (3e-3, 1e-6),
        DType::BF16 => (2e-2, 1e-30),
        DType::F32 => (2e-4, 1e-9),
        _ => (1e-9, 1e-30),
    };
    Within { relative, absolute }
}

/// What is not of f64 may be computed in f32.
fn computed(src: DType, dst: DType) -> Within {
    let (inside, result) = (rounding(if src == DType::F64 { src } else { DType::F32 }), rounding(dst));
    Within { relative: inside.relative.max(result.relative), absolute: inside.absolute.max(result.absolute) }
}

/// Rows, columns and what lies between the elements of a row; and whether some numbers are odd ones.
struct Rows {
    rows: i64,
    cols: i64,
    inner: i64,
    is_odd: bool,
}

impl Rows {
    fn new(draw: &mut Draw, may_be_strided: bool) -> Rows {
        let widest = if draw.one_in(3) { draw.most / 9 } else { draw.most / 50 };
        let cols = match draw.below(5) {
            0 => draw.up_to(40),
            1 => draw.up_to(1000),
            2 => draw.up_to(5000),
            3 => 8 * draw.up_to(600),
            _ => draw.up_to(widest),
        };
        let inner = if may_be_strided && draw.one_in(4) { draw.up_to(70) } else { 1 };
        let cols = cols.min(if inner > 1 { MOST_STRIDED } else { draw.most });
        let room = if draw.one_in(4) { draw.most } else { draw.most / 8 };
        let rows = draw.up_to((room / (cols * inner)).clamp(1, MOST_ROWS));
        Rows { rows, cols, inner, is_odd: draw.one_in(3) }
    }

    fn count(&self) -> i64 {
        self.rows * self.cols * self.inner
    }

    /// A number of either sign, up to `scale`, or now and then an odd one.
    fn number(&self, draw: &mut Draw, scale: f64) -> f64 {
        if self.is_odd && draw.one_in(ODD_ONE_IN) {
            return draw.pick(&[f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
        }
        draw.unit() * scale
    }

    fn numbers(&self, draw: &mut Draw, name: &'static str, dtype: DType, count: i64, scale: f64) -> Operand {
        draw.numbers(name, dtype, count, |draw, _| self.number(draw, scale))
    }

    /// As masks make them: some rows have nothing but -inf, or few other numbers.
    fn masked(&self, draw: &mut Draw, name: &'static str, dtype: DType) -> Operand {
        let of_row = self.cols * self.inner;
        draw.numbers(name, dtype, self.count(), |draw, i| match self.is_odd && i / of_row % 7 == 3 {
            true if draw.one_in(2 * self.cols) => 1.0,
            true => f64::NEG_INFINITY,
            false => self.number(draw, 8.0),
        })
    }

    fn sized(&self, launch: Launch) -> Launch {
        launch.size("rows", self.rows).size("cols", self.cols)
    }
}

fn dtypes(draw: &mut Draw) -> (DType, DType) {
    let src = draw.pick(&FLOATS);
    (src, if draw.one_in(4) { draw.pick(&FLOATS) } else { src })
}

fn forward(draw: &mut Draw, op: &'static str, within: impl Fn(DType, DType) -> Within) -> Launch {
    let ((src, dst), rows) = (dtypes(draw), Rows::new(draw, true));
    rows.sized(Launch::new(op).dtype("src", src).dtype("dst", dst))
        .size("inner", rows.inner)
        .source(rows.masked(draw, "src", src))
        .destination_within(draw.destination("dst", dst, rows.count()), within(src, dst))
}

pub fn softmax(draw: &mut Draw) -> Launch {
    forward(draw, "softmax", computed)
}

/// A difference of numbers that may be close.
pub fn log_softmax(draw: &mut Draw) -> Launch {
    forward(draw, "log_softmax", |src, dst| {
        let absolute = match dst {
            DType::F16 => 1e-2,
            DType::BF16 => 2e-2,
            _ => 1e-4,
        };
        Within { absolute, ..computed(src, dst) }
    })
}

/// Sums over a row of numbers of both signs: what they are off by grows with the row.
fn backward(draw: &mut Draw, op: &'static str) -> Launch {
    let ((src, dst), rows) = (dtypes(draw), Rows::new(draw, true));
    let each = if [src, dst] == [DType::F64; 2] { 1e-8 } else { 5e-3 };
    let within = Within { absolute: each * (rows.cols as f64).sqrt(), ..computed(src, dst) };
    rows.sized(Launch::new(op).dtype("src", src).dtype("dst", dst))
        .size("inner", rows.inner)
        .source(rows.numbers(draw, "y", src, rows.count(), 1.0))
        .source(rows.numbers(draw, "dy", src, rows.count(), 1.0))
        .destination_within(draw.destination("dx", dst, rows.count()), within)
}

pub fn softmax_backward(draw: &mut Draw) -> Launch {
    backward(draw, "softmax_backward")
}

pub fn log_softmax_backward(draw: &mut Draw) -> Launch {
    backward(draw, "log_softmax_backward")
}

/// A norm with any of its parameters, and with its statistics.
fn norm(
    draw: &mut Draw,
    op: &'static str,
    parameters: &[&'static str],
    statistics: &[&'static str],
) -> Launch {
    let (data, rows) = (draw.pick(&FLOATS), Rows::new(draw, false));
    let stats = if data == DType::F64 { data } else { DType::F32 };
    // Where a row's numbers are nearly equal, what their mean has lost in rounding counts 1 / sqrt(epsilon) times.
    let absolute = match data {
        DType::F64 => 1e-9,
        DType::F32 => 5e-4,
        _ => 3e-2,
    };
    let mut launch = rows
        .sized(Launch::new(op).dtype("data", data).dtype("stats", stats).attr("epsilon", EPSILON))
        .source(rows.numbers(draw, "src", data, rows.count(), 3.0));
    for name in parameters {
        if draw.one_in(2) {
            launch = launch.source(rows.numbers(draw, name, data, rows.cols, 1.0));
        }
    }
    let within = Within { absolute, ..rounding(data) };
    launch = launch.destination_within(draw.destination("dst", data, rows.count()), within);
    for name in statistics {
        let within = Within { relative: 1e-3, absolute: 1e-5 };
        launch = launch.destination_within(draw.destination(name, stats, rows.rows), within);
    }
    launch
}

pub fn layer_norm(draw: &mut Draw) -> Launch {
    norm(draw, "layer_norm", &["gamma", "beta"], &["mean", "rstd"])
}

pub fn rms_norm(draw: &mut Draw) -> Launch {
    norm(draw, "rms_norm", &["weight"], &["inv_rms"])
}
