//! Values from parameters, and shapes as values.

use super::{Family, Operator, Rule, number, one, scalar_of};
use crate::onnx::machine::{Machine, Mapped, Value};
use crate::onnx::suite::Attribute;
use Rule::Launches;
use ep_core::{DType, Scalar};
use primitives::reference::{Data, Number};

pub(super) const RULES: Family = &[
    ("Constant", Launches(|on, o| one(constant(on, o)))),
    ("ConstantOfShape", Launches(constant_of_shape)),
    ("EyeLike", Launches(eye_like)),
    ("Range", Launches(range)),
    ("Shape", Launches(shape)),
    ("Size", Launches(|on, o| one(integer(on, o.input(0)?.count())))),
    ("Trilu", Launches(trilu)),
];

/// An integer without dimensions.
fn integer(on: &Machine<'_>, value: i64) -> Mapped<Value> {
    on.integers(&[value])?.shaped(&[])
}

fn constant(on: &Machine<'_>, o: &Operator<'_>) -> Mapped<Value> {
    let floats = |list: &[String]| -> Mapped<Data> {
        let numbers: Mapped<Vec<f64>> = list.iter().map(|f| number(f)).collect();
        Ok(Data::new(DType::F32, numbers?.into_iter().map(Number::Real)))
    };
    let Some((name, attribute)) = o.node.attrs.first_key_value() else { return o.not_mapped("no value") };
    Ok(match attribute {
        Attribute::Tensor(t) => on.upload(&t.shape, &o.suite.data(t)?)?,
        Attribute::Int(i) => integer(on, *i)?,
        Attribute::Ints(list) => on.integers(list)?,
        Attribute::Float(f) => on.upload(&[], &floats(std::slice::from_ref(f))?)?,
        Attribute::Floats(list) => on.upload(&[list.len() as i64], &floats(list)?)?,
        Attribute::Text(_) | Attribute::Graph(_) => return o.not_mapped(&format!("attribute `{name}`")),
    })
}

fn constant_of_shape(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let shape = o.list(0)?.unwrap_or_default();
    let (dtype, value) = scalar_of(o, "value")?.unwrap_or((DType::F32, Scalar::F64(0.0)));
    one(on.fill(dtype, &shape, value))
}

/// Row i has its one in column `i + k`.
fn eye_like(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let [rows, columns] = x.shape[..] else { return o.not_mapped("no matrix") };
    let dtype = o.dtype("dtype", x.dtype)?;
    let ones = on.sequence(DType::I64, rows, Scalar::I64(o.int("k", 0)), Scalar::I64(1))?;
    one(on.one_hot(&ones, columns, dtype, Scalar::I64(1), Scalar::I64(0)))
}

/// The number of elements is ceil((limit - start) / step), which the host has to know to allocate.
fn range(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let dtype = o.input(0)?.dtype;
    let mut numbers = [Scalar::None; 3];
    for (i, number) in numbers.iter_mut().enumerate() {
        *number = on.number(o.input(i)?)?;
    }
    let [start, limit, step] = numbers;
    let count = ((limit.as_f64() - start.as_f64()) / step.as_f64()).ceil().max(0.0);
    one(on.sequence(dtype, count as i64, start, step))
}

fn shape(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let dims = &o.input(0)?.shape;
    let rank = dims.len() as i64;
    let bound = |name, default| {
        let at = o.int(name, default);
        (if at < 0 { at + rank } else { at }).clamp(0, rank) as usize
    };
    let (start, end) = (bound("start", 0), bound("end", rank));
    Ok(vec![on.integers(&dims[start..end.max(start)])?])
}

/// Keeps what is on one side of diagonal k of each matrix.
fn trilu(on: &mut Machine<'_>, o: &Operator<'_>) -> Mapped<Vec<Value>> {
    let x = o.input(0)?;
    let [.., rows, columns] = x.shape[..] else { return o.not_mapped("no matrix") };
    let k = match o.number(on, 1)? {
        Some(Scalar::I64(k)) => k,
        _ => 0,
    };
    let above = on.sequence(DType::I64, rows, Scalar::I64(k), Scalar::I64(1))?.shaped(&[rows, 1])?;
    let column = on.sequence(DType::I64, columns, Scalar::I64(0), Scalar::I64(1))?;
    let op = if o.int("upper", 1) != 0 { "greater_equal" } else { "less_equal" };
    let kept = on.compare(op, &column, &above)?;
    let zero = on.fill(x.dtype, &[], 0)?;
    one(on.choose(&kept, x, &zero))
}
