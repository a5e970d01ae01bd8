//! `broadcast_elementwise_binary`: one function of 81 on each pair of elements, with NumPy broadcasting.

mod backward;
mod real;

use super::Table;
use super::elementwise_unary::{Parts, divide, multiply, sqrt};
use super::launch::{Launch, Outputs};
use super::math::{Wide, format_of_parts};
use super::number::{Data, Number, View, format_of};
use super::shape::{broadcast, count, ravel, unravel};
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (op, src, dst) = (launch.get_selector("op")?, launch.get_dtype("src")?, launch.get_dtype("dst")?);
    let attr = ["attr0", "attr1"].map(|name| launch.get_attr(name));
    let unsupported = || launch.unsupported(format!("`{op}` of {src} to {dst}"));
    let function = Binary::new(op, src, dst, attr).ok_or_else(unsupported)?;
    let dims = [launch.get_dims("src0_dims")?, launch.get_dims("src1_dims")?];
    let out = broadcast(launch, &[&dims[0], &dims[1]])?;
    // A scalar stands in for an operand of one element.
    let scalars = ["scalar0", "scalar1"]
        .map(|name| launch.get_scalar(name).map_or(Data::new(src, []), |x| Data::new(src, [x])));
    let operand = |n: usize, name: &str| -> Result<View<'_>> {
        match scalars[n].view() {
            scalar if scalar.is_empty() => launch.get_read(name, src, count(launch, &dims[n])?),
            _ if !dims[n].is_empty() => {
                Err(launch.invalid(format!("a scalar stands in for a `{name}` with a rank")))
            }
            scalar => Ok(scalar),
        }
    };
    let (a, b) = (operand(0, "src0")?, operand(1, "src1")?);
    let element = |position: usize| {
        let index = unravel(position, &out);
        function.apply(a.get(ravel(&index, &dims[0])), b.get(ravel(&index, &dims[1])))
    };
    Ok(Outputs::one("dst", Data::new(dst, (0..count(launch, &out)?).map(element))))
}

/// A function from pairs of elements of one dtype to elements of another.
#[derive(Clone, Copy, Debug)]
pub struct Binary {
    rule: Rule,
    dst: DType,
    attr: [f64; 2],
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Int(fn(i128, i128) -> i128),
    /// With the source dtype, for what is computed in f32 or f64 on the way.
    Real(fn(f64, f64, [f64; 2], DType) -> Wide),
    Complex(fn(Parts, Parts) -> Parts),
    Test(Test),
}

impl Binary {
    /// The function with this name, one of [`ep_core::primitive::BinaryOp`]'s, between these dtypes and with
    /// these attributes; `None` where there is none.
    pub fn new(op: &str, src: DType, dst: DType, attr: [f64; 2]) -> Option<Binary> {
        let rule = rule(op, src, dst)?;
        let narrow = backward::ATTRIBUTE_IN_COMPUTE_TYPE.contains(&op) && src != DType::F64;
        let attr = attr.map(|a| if narrow { f64::from(a as f32) } else { a });
        Some(Binary { rule, dst, attr })
    }

    /// The function of two numbers of the source dtype, as a number of the destination's.
    pub fn apply(&self, a: Number, b: Number) -> Number {
        match self.rule {
            Rule::Int(f) => Number::Int(f(a.int(), b.int())).cast(self.dst),
            Rule::Real(f) => {
                Number::Real(f(a.re(), b.re(), self.attr, self.dst).to_format(format_of(self.dst)))
            }
            Rule::Complex(f) => {
                let parts = |z: Number| [Wide::from(z.re()), Wide::from(z.im())];
                format_of_parts(f(parts(a), parts(b)), format_of(self.dst))
            }
            Rule::Test(f) => Number::Bool(f(a, b, self.attr)),
        }
    }
}

const INTS: Table<fn(i128, i128) -> i128, 14> = [
    ("add", |a, b| a + b),
    ("sub", |a, b| a - b),
    ("mul", i128::wrapping_mul),
    ("div", |a, b| if b == 0 { 0 } else { a / b }),
    ("max", |a, b| a.max(b)),
    ("min", |a, b| a.min(b)),
    ("pow", pow),
    ("fmod", |a, b| if b == 0 { 0 } else { a % b }),
    ("floor_div", |a, b| if b == 0 { 0 } else { (a - floor_mod(a, b)) / b }),
    ("trunc_div", |a, b| if b == 0 { 0 } else { a / b }),
    ("floor_mod", floor_mod),
    ("bitwise_and", |a, b| a & b),
    ("bitwise_or", |a, b| a | b),
    ("bitwise_xor", |a, b| a ^ b),
];

/// The remainder with the divisor's sign, as Python's `%`; 0 for a divisor of 0.
fn floor_mod(a: i128, b: i128) -> i128 {
    if b == 0 { 0 } else { ((a % b) + b) % b }
}

/// Modulo 2^128. A negative exponent gives the reciprocal's integer part, and 0 to one gives 0.
fn pow(a: i128, b: i128) -> i128 {
    match (a, b) {
        (1, ..0) => 1,
        (-1, ..0) => 1 - 2 * (b & 1),
        (_, ..0) => 0,
        _ => (0..64).rev().fold(1i128, |power, bit| {
            let square = power.wrapping_mul(power);
            if b >> bit & 1 == 1 { square.wrapping_mul(a) } else { square }
        }),
    }
}

/// A test of two numbers with the attributes.
type Test = fn(Number, Number, [f64; 2]) -> bool;

const TESTS: Table<Test, 11> = [
    ("equal", |a, b, _| equal(a, b)),
    ("not_equal", |a, b, _| !equal(a, b)),
    ("less_than", |a, b, _| a.wide() < b.wide()),
    ("less_equal", |a, b, _| a.wide() <= b.wide()),
    ("greater_than", |a, b, _| a.wide() > b.wide()),
    ("greater_equal", |a, b, _| a.wide() >= b.wide()),
    ("is_close", is_close),
    ("is_close_equal_nan", |a, b, attr| is_close(a, b, attr) || a.is_nan() && b.is_nan()),
    ("logical_and", |a, b, _| a.truth() && b.truth()),
    ("logical_or", |a, b, _| a.truth() || b.truth()),
    ("logical_xor", |a, b, _| a.truth() != b.truth()),
];

fn equal(a: Number, b: Number) -> bool {
    a.wide() == b.wide() && a.im() == b.im()
}

/// `|a - b| <= atol + |rtol b|`, each step in f64, or equal. Infinities are close to themselves alone.
fn is_close(a: Number, b: Number, [atol, rtol]: [f64; 2]) -> bool {
    let distance = match (a, b) {
        (Number::Real(a), Number::Real(b)) => (a - b).abs(),
        _ => (a.int() - b.int()).abs() as f64,
    };
    equal(a, b) || distance <= atol + (rtol * b.re()).abs() && distance < f64::INFINITY
}

const COMPLEX: Table<fn(Parts, Parts) -> Parts, 5> = [
    ("add", |[a, b], [c, d]| [a + c, b + d]),
    ("sub", |[a, b], [c, d]| [a - c, b - d]),
    ("mul", multiply),
    ("div", divide),
    // dy conj(d sqrt(x) / dx)
    ("sqrt_backward_with_dy_x", |dy, x| {
        let [re, im] = sqrt(x);
        let two = Wide::from(2.0);
        divide(dy, [two * re, -(two * im)])
    }),
];

fn find<T: Copy>(table: &[(&str, T)], op: &str) -> Option<T> {
    table.iter().find(|(name, _)| *name == op).map(|(_, f)| *f)
}

fn rule(op: &str, src: DType, dst: DType) -> Option<Rule> {
    if let Some(f) = find(&TESTS, op) {
        let ordered = !src.is_complex() || ["equal", "not_equal"].contains(&op);
        return (ordered && dst == DType::BOOL).then_some(Rule::Test(f));
    }
    if src != dst {
        return None;
    }
    if src == DType::BOOL || src.is_int() {
        return find(&INTS, op).map(Rule::Int);
    }
    if src.is_complex() {
        return find(&COMPLEX, op).map(Rule::Complex);
    }
    find(&real::FUNCTIONS, op).or_else(|| find(&backward::FUNCTIONS, op)).map(Rule::Real)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_core::primitive::BinaryOp;

    #[test]
    fn every_op_has_a_function() {
        for op in BinaryOp::NAMES {
            let has = |src, dst| Binary::new(op, src, dst, [1.0; 2]).is_some();
            let any = DType::ALL.iter().any(|src| has(*src, *src) || has(*src, DType::BOOL));
            assert!(any, "{op}");
        }
        assert_eq!(
            real::FUNCTIONS.len() + backward::FUNCTIONS.len() + TESTS.len() + 3,
            BinaryOp::NAMES.len()
        );
        assert!(Binary::new("add", DType::I32, DType::I64, [0.0; 2]).is_none());
        assert!(Binary::new("less_than", DType::COMPLEX64, DType::BOOL, [0.0; 2]).is_none());
    }

    #[test]
    fn integers_follow_python_and_wrap() {
        let of = |op: &str, dtype, a, b| {
            Binary::new(op, dtype, dtype, [0.0; 2]).unwrap().apply(Number::Int(a), Number::Int(b)).int()
        };
        for (a, b, div, modulo) in
            [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, -3, -2, 0)]
        {
            assert_eq!((of("floor_div", DType::I32, a, b), of("floor_mod", DType::I32, a, b)), (div, modulo));
            assert_eq!((of("div", DType::I32, a, b), of("fmod", DType::I32, a, b)), (a / b, a % b));
        }
        for op in ["div", "fmod", "floor_div", "trunc_div", "floor_mod"] {
            assert_eq!(of(op, DType::I8, 5, 0), 0, "{op}");
        }
        assert_eq!(of("div", DType::I8, -128, -1), -128);
        assert_eq!(of("pow", DType::I64, 3, 100), 3i64.wrapping_pow(100).into());
        assert_eq!(
            (of("pow", DType::I8, -1, -3), of("pow", DType::I8, 0, -1), of("pow", DType::I8, 0, 0)),
            (-1, 0, 1)
        );
    }
}
