//! What defects of launches ask of a call, and how they say what is written.

use ep_core::{DType, Error, Result, Scalar};
use ep_sim::{Call, Write};
use primitives::reference::{Data, Number, View};

fn find<T: Clone>(list: &[(&str, T)], name: &str) -> Option<T> {
    list.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone())
}

/// A size; 0 if the op has none of the name.
pub fn size(call: &Call, name: &str) -> usize {
    find(&call.sizes, name).map_or(0, |n| usize::try_from(n).unwrap_or(0))
}

/// Sets a size that the op has.
pub fn set_size(call: &mut Call, name: &str, value: i64) {
    call.sizes.iter_mut().filter(|(n, _)| *n == name).for_each(|(_, v)| *v = value);
}

/// A list; empty if the op has none of the name.
pub fn list(call: &Call, name: &str) -> Vec<i64> {
    find(&call.lists, name).unwrap_or_default()
}

/// Sets a list that the op has.
pub fn set_list(call: &mut Call, name: &str, values: Vec<i64>) {
    call.lists.iter_mut().filter(|(n, _)| *n == name).for_each(|(_, v)| v.clone_from(&values));
}

/// A scalar; NONE if the op has none of the name.
pub fn scalar(call: &Call, name: &str) -> Scalar {
    find(&call.scalars, name).unwrap_or(Scalar::None)
}

/// Sets a scalar that the op has.
pub fn set_scalar(call: &mut Call, name: &str, value: Scalar) {
    call.scalars.iter_mut().filter(|(n, _)| *n == name).for_each(|(_, v)| *v = value);
}

/// The value of a selector; empty if the op has none of the name.
pub fn selector(call: &Call, name: &str) -> &'static str {
    find(&call.selectors, name).unwrap_or("")
}

/// The dtype of a role.
pub fn dtype(call: &Call, role: &str) -> DType {
    find(&call.dtypes, role).unwrap_or(DType::INVALID)
}

/// Where an operand is among those that were given.
pub fn position(call: &Call, name: &str) -> Option<usize> {
    call.operands.iter().position(|x| x.name == name)
}

/// The same for an operand that the op always has.
///
/// # Errors
/// `Internal` if it has none.
pub fn operand(call: &Call, name: &str) -> Result<usize> {
    position(call, name).ok_or_else(|| Error::internal(format!("{} without `{name}`", call.op)))
}

/// The elements that an operand held.
///
/// # Errors
/// As [`operand`].
pub fn elements(call: &Call, name: &str) -> Result<Vec<Number>> {
    let x = &call.operands[operand(call, name)?];
    Ok(View::new(x.dtype, &x.old).iter().collect())
}

/// The same as real numbers.
///
/// # Errors
/// As [`operand`].
pub fn reals(call: &Call, name: &str) -> Result<Vec<f64>> {
    Ok(elements(call, name)?.into_iter().map(Number::re).collect())
}

/// Replaces what an operand held.
///
/// # Errors
/// As [`operand`].
pub fn set_elements(call: &mut Call, name: &str, values: impl IntoIterator<Item = Number>) -> Result<()> {
    let i = operand(call, name)?;
    let data = Data::new(call.operands[i].dtype, values);
    call.operands[i].size = data.bytes.len();
    call.operands[i].old = data.bytes;
    Ok(())
}

/// Bytes of an element of an operand.
pub fn width(call: &Call, operand: usize) -> usize {
    (call.operands[operand].dtype.bytes_for_bounds() as usize).max(1)
}

/// What an operand holds after some writes that cover it, or of which the rest is known.
pub fn after(call: &Call, operand: usize, writes: &[Write]) -> Vec<u8> {
    let mut bytes = call.operands[operand].old.clone();
    bytes.resize(call.operands[operand].size, 0);
    for write in writes.iter().filter(|w| w.operand == operand) {
        let at = usize::try_from(write.at).unwrap_or(0);
        bytes[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }
    bytes
}

/// What the reference leaves in an operand.
///
/// # Errors
/// The reference's.
pub fn honest(call: &Call, name: &str) -> Result<Vec<u8>> {
    Ok(after(call, operand(call, name)?, &call.reference()?))
}

/// The same as real numbers.
///
/// # Errors
/// As [`honest`].
pub fn honest_reals(call: &Call, name: &str) -> Result<Vec<f64>> {
    let dtype = call.operands[operand(call, name)?].dtype;
    Ok(View::new(dtype, &honest(call, name)?).iter().map(Number::re).collect())
}

/// Writes the elements of an operand that are wanted, and no others.
pub fn only(call: &Call, operand: usize, bytes: &[u8], wanted: impl Fn(usize) -> bool) -> Vec<Write> {
    let width = width(call, operand);
    let element = |i: usize| Write {
        operand,
        at: (i * width) as i64,
        bytes: bytes[i * width..(i + 1) * width].to_vec(),
    };
    (0..bytes.len() / width).filter(|i| wanted(*i)).map(element).collect()
}

/// Writes all of an operand.
///
/// # Errors
/// As [`operand`].
pub fn all(call: &Call, name: &str, values: impl IntoIterator<Item = Number>) -> Result<Vec<Write>> {
    let i = operand(call, name)?;
    let bytes = Data::new(call.operands[i].dtype, values).bytes;
    Ok(if bytes.is_empty() { Vec::new() } else { vec![Write { operand: i, at: 0, bytes }] })
}
