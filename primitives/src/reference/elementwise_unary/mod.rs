//! `elementwise_unary`: one function of 72 on each element.

mod complex;
mod real;

use super::Table;
use super::launch::{Launch, Outputs};
use super::math::{Wide, format_of_parts};
use super::number::{Data, Number, format_of, part_of};
use ep_core::{DType, Result};

pub(super) use complex::{Parts, divide, multiply, sqrt};
pub(super) use real::{SIGMOID_1_702, damped, fast_gelu_argument, mish_quotient, selu, sigmoid};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (function, count) = (of(launch)?, launch.get_size("count")?);
    let src = launch.get_read("src", function.src, count)?;
    let elements = (0..count).map(|i| function.element(src.element(i)));
    let bytes = elements.flatten().collect();
    Ok(Outputs::one("dst", Data { dtype: function.dst, bytes }))
}

/// The function that a launch names.
pub(super) fn of(launch: &Launch<'_>) -> Result<Unary> {
    let (op, src, dst) = (launch.get_selector("op")?, launch.get_dtype("src")?, launch.get_dtype("dst")?);
    let attr = ["attr0", "attr1"].map(|name| launch.get_attr(name));
    Unary::new(op, src, dst, attr).ok_or_else(|| launch.unsupported(format!("`{op}` of {src} to {dst}")))
}

/// A function from elements of one dtype to elements of another.
#[derive(Clone, Copy, Debug)]
pub struct Unary {
    rule: Rule,
    src: DType,
    dst: DType,
    attr: [Wide; 2],
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Copy,
    Cast,
    Int(fn(i128) -> i128),
    Real(fn(Wide, [Wide; 2]) -> Wide),
    Complex(fn(Parts) -> Parts),
    Test(fn(Number) -> bool),
    /// From a complex number to one of its parts.
    Part(fn(Number) -> f64),
    /// From one part to a complex number.
    OfPart(fn(f64) -> Number),
}

impl Unary {
    /// The function with this name, one of [`ep_core::primitive::UnaryOp`]'s, between these dtypes and with
    /// these attributes; `None` where there is none.
    pub fn new(op: &str, src: DType, dst: DType, attr: [f64; 2]) -> Option<Unary> {
        let rule = rule(op, src, dst)?;
        // What compares with an attribute or multiplies by it alone has it in the type computed in.
        let narrow = real::ATTRIBUTE_IN_COMPUTE_TYPE.contains(&op) && src != DType::F64;
        let attr = attr.map(|a| Wide::from(if narrow { f64::from(a as f32) } else { a }));
        Some(Unary { rule, src, dst, attr })
    }

    /// The function of one number of the source dtype, as a number of the destination's.
    pub fn apply(&self, x: Number) -> Number {
        let format = format_of(self.dst);
        match self.rule {
            Rule::Copy => x,
            Rule::Cast => x.cast(self.dst),
            Rule::Int(f) => Number::Int(f(x.int())).cast(self.dst),
            Rule::Real(f) => Number::Real(f(x.wide(), self.attr).to_format(format)),
            Rule::Complex(f) => format_of_parts(f([Wide::from(x.re()), Wide::from(x.im())]), format),
            Rule::Test(f) => Number::Bool(f(x)),
            Rule::Part(f) => Number::Real(f(x)).cast(self.dst),
            Rule::OfPart(f) => f(x.re()).cast(self.dst),
        }
    }

    /// The same on the bytes of elements. What only copies keeps every bit.
    pub(super) fn element(&self, x: &[u8]) -> Vec<u8> {
        match self.rule {
            Rule::Copy => x.to_vec(),
            _ => Data::new(self.dst, [self.apply(Number::load(self.src, x))]).bytes,
        }
    }
}

const TESTS: Table<fn(Number) -> bool, 4> = [
    ("is_inf", |x| x.re().is_infinite() || x.im().is_infinite()),
    ("is_nan", Number::is_nan),
    ("is_finite", |x| x.re().is_finite() && x.im().is_finite()),
    ("logical_not", |x| !x.truth()),
];

const INTS: Table<fn(i128) -> i128, 8> = [
    ("relu", |x| x.max(0)),
    // The square of a u64 may be beyond i128, but its lower half is the same.
    ("square_relu", |x| x.max(0).wrapping_mul(x.max(0))),
    ("abs", i128::abs),
    ("sign", i128::signum),
    ("square", |x| x.wrapping_mul(x)),
    ("not_equal_zero", |x| i128::from(x != 0)),
    ("negative", |x| -x),
    ("bitwise_not", |x| !x),
];

/// What whole and finite numbers are left alone by.
const NOTHING_TO_ROUND: [&str; 6] = ["ceil", "floor", "trunc", "round", "rint", "nan_assign"];

fn find<T: Copy>(table: &[(&str, T)], op: &str) -> Option<T> {
    table.iter().find(|(name, _)| *name == op).map(|(_, f)| *f)
}

fn rule(op: &str, src: DType, dst: DType) -> Option<Rule> {
    let whole = src == DType::BOOL || src.is_int();
    if op == "cast" {
        return Some(if src == dst { Rule::Copy } else { Rule::Cast });
    }
    if let Some(f) = find(&TESTS, op) {
        return (dst == DType::BOOL).then_some(Rule::Test(f));
    }
    let float = |dtype: DType| dtype.is_float();
    match op {
        "identity" => return (src == dst).then_some(Rule::Copy),
        "real" => return (src.is_complex() && float(dst)).then_some(Rule::Part(Number::re)),
        "imag" => return (src.is_complex() && float(dst)).then_some(Rule::Part(Number::im)),
        "real_grad" => {
            return (float(src) && dst.is_complex()).then_some(Rule::OfPart(|x| Number::Complex(x, 0.0)));
        }
        "imag_grad" => {
            return (float(src) && dst.is_complex()).then_some(Rule::OfPart(|x| Number::Complex(0.0, x)));
        }
        _ if src != dst => return None,
        _ => {}
    }
    match part_of(src) {
        DType::BOOL if op == "bitwise_not" => Some(Rule::Int(|x| 1 - x)),
        DType::BOOL if op == "negative" => None,
        _ if whole && NOTHING_TO_ROUND.contains(&op) => Some(Rule::Copy),
        _ if whole => find(&INTS, op).map(Rule::Int),
        _ if src.is_complex() => find(&complex::FUNCTIONS, op).map(Rule::Complex),
        _ => find(&real::FUNCTIONS, op).map(Rule::Real),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::primitive::UnaryOp;

    #[test]
    fn every_op_has_a_function() {
        for op in UnaryOp::NAMES {
            let has = |src, dst| Unary::new(op, src, dst, [1.0; 2]).is_some();
            let any = DType::ALL.iter().any(|src| DType::ALL.iter().any(|dst| has(*src, *dst)));
            assert!(any, "{op}");
        }
        assert_eq!(real::FUNCTIONS.len() + TESTS.len() + 8, UnaryOp::NAMES.len());
        assert!(Unary::new("exp", DType::I32, DType::I32, [0.0; 2]).is_none());
        assert!(Unary::new("exp", DType::F32, DType::F64, [0.0; 2]).is_none());
        assert!(Unary::new("nonsense", DType::F32, DType::F32, [0.0; 2]).is_none());
    }

    #[test]
    fn integers_wrap() {
        let of = |op, dtype, x| Unary::new(op, dtype, dtype, [0.0; 2]).unwrap().apply(Number::Int(x)).int();
        assert_eq!(of("abs", DType::I8, -128), -128);
        assert_eq!(of("negative", DType::U16, 1), 65535);
        assert_eq!(of("square", DType::U64, u64::MAX.into()), 1);
        assert_eq!(of("square_relu", DType::I64, i64::MAX.into()), 1);
        assert_eq!(of("bitwise_not", DType::U8, 5), 250);
    }

    #[test]
    fn identity_keeps_the_bits_of_a_nan() {
        let nan = f32::from_bits(0x7f80_0123).to_ne_bytes();
        for op in ["identity", "cast"] {
            let f = Unary::new(op, DType::F32, DType::F32, [0.0; 2]).unwrap();
            assert_eq!(f.element(&nan), nan);
        }
    }
}
