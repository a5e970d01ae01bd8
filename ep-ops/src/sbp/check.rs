//! Running signatures on parts, and comparing with the whole.

use super::{Sbp, Signature, part};
use crate::{Operator, Ops, Spec, Tensor};
use ep_core::primitive::{BinaryOp, UnaryOp};
use ep_core::{DType, Error, Result};
use std::fmt;

/// What came of one signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The signature.
    pub signature: Signature,
    /// Why it does not hold, if so.
    pub failure: Option<String>,
}

/// What came of the signatures of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The operator, with its attributes.
    pub operator: String,
    /// The inputs.
    pub inputs: Vec<Spec>,
    /// Into how many parts they were split.
    pub parts: usize,
    /// Each signature, in the operator's order.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// Whether all hold.
    pub fn passed(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.failure.is_none())
    }
}

/// A line for the operator and one for each signature.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<_> = self.inputs.iter().map(Spec::to_string).collect();
        write!(f, "{} of {} in {} parts", self.operator, inputs.join(", "), self.parts)?;
        for Outcome { signature, failure } in &self.outcomes {
            match failure {
                None => write!(f, "\n  ok    {signature}")?,
                Some(why) => write!(f, "\n  WRONG {signature}: {why}")?,
            }
        }
        Ok(())
    }
}

/// Runs all signatures of an operator in `parts` parts on one device, joins the outputs and compares with what the operator
/// gives for the whole inputs.
///
/// Inputs that are split are cut by [`part`]; addends of partial sums are random: any integers, which wrap, and for floats
/// small whole numbers, so that they are exact if the inputs are small whole numbers too. Outputs that are split are
/// concatenated and must have the sizes of [`part`], partial sums are added, and others are equal on all. Bool and integers
/// are compared exactly, floats with a tolerance of 16 units in the last place of the largest value, for each part.
///
/// # Errors
/// Those of the operator with the whole inputs, and of the operators that cut and join. What fails with the parts is a
/// failure in the report.
pub fn check(ops: &Ops<'_>, operator: &dyn Operator, inputs: &[&Tensor], parts: usize) -> Result<Report> {
    let specs = specs(inputs);
    let whole = ops.apply(operator, inputs)?;
    let outcomes = operator.signatures(&specs).into_iter().map(|signature| {
        let failure = compare(ops, operator, inputs, &whole, parts, &signature)?;
        Ok(Outcome { signature, failure })
    });
    let outcomes = outcomes.collect::<Result<_>>()?;
    Ok(Report { operator: format!("{operator:?}"), inputs: specs, parts, outcomes })
}

/// As [`check`], of one signature, which the operator need not list.
///
/// # Errors
/// As [`check`]; `InvalidArgument` for a signature of another number of inputs or outputs, or with a dimension that one
/// does not have.
pub fn check_signature(
    ops: &Ops<'_>,
    operator: &dyn Operator,
    inputs: &[&Tensor],
    parts: usize,
    signature: &Signature,
) -> Result<Outcome> {
    let whole = ops.apply(operator, inputs)?;
    let failure = compare(ops, operator, inputs, &whole, parts, signature)?;
    Ok(Outcome { signature: signature.clone(), failure })
}

fn specs<'t>(tensors: impl IntoIterator<Item = &'t &'t Tensor>) -> Vec<Spec> {
    tensors.into_iter().map(|tensor| tensor.spec().clone()).collect()
}

/// Why a signature does not hold.
fn compare(
    ops: &Ops<'_>,
    operator: &dyn Operator,
    inputs: &[&Tensor],
    whole: &[Tensor],
    parts: usize,
    signature: &Signature,
) -> Result<Option<String>> {
    fits(signature, inputs, whole, parts)?;
    let inputs_specs = specs(inputs);
    let mut random = Random(0x5b9);
    let mut shards: Vec<Vec<Tensor>> = (0..parts).map(|_| Vec::new()).collect();
    for (input, sbp) in inputs.iter().zip(&signature.inputs) {
        for (shard, tensor) in shards.iter_mut().zip(cut(ops, input, *sbp, parts, &mut random)?) {
            shard.push(tensor);
        }
    }
    ops.sync()?;
    let mut outputs: Vec<Vec<Tensor>> = whole.iter().map(|_| Vec::new()).collect();
    for (index, shard) in shards.iter().enumerate() {
        let own = operator.for_shard(&inputs_specs, signature, index, parts);
        let tensors: Vec<&Tensor> = shard.iter().collect();
        // Of work that is done later the error comes with the synchronisation.
        let made = ops.apply(own.as_deref().unwrap_or(operator), &tensors);
        match made.and_then(|made| ops.sync().map(|()| made)) {
            Ok(made) => outputs.iter_mut().zip(made).for_each(|(all, one)| all.push(one)),
            Err(e) => return Ok(Some(format!("part {index} fails: {e}"))),
        }
    }
    for (n, ((all, whole), sbp)) in outputs.iter().zip(whole).zip(&signature.outputs).enumerate() {
        if let Some(why) = joins(ops, all, whole, *sbp)? {
            return Ok(Some(format!("output {n}: {why}")));
        }
    }
    Ok(None)
}

/// Fails for a signature that has no meaning for these tensors.
fn fits(signature: &Signature, inputs: &[&Tensor], whole: &[Tensor], parts: usize) -> Result<()> {
    if parts == 0 {
        return Err(Error::invalid("a signature checked in 0 parts; give it one at least"));
    }
    let possible = |sbp: &Sbp, rank: usize| !matches!(sbp, Sbp::Split(dim) if *dim >= rank);
    let all = |sbps: &[Sbp], ranks: &[usize]| {
        sbps.len() == ranks.len() && sbps.iter().zip(ranks).all(|(sbp, rank)| possible(sbp, *rank))
    };
    let inputs: Vec<usize> = inputs.iter().map(|tensor| tensor.rank()).collect();
    let outputs: Vec<usize> = whole.iter().map(Tensor::rank).collect();
    if all(&signature.inputs, &inputs) && all(&signature.outputs, &outputs) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the signature {signature} for inputs of the ranks {inputs:?} and outputs of the ranks {outputs:?}: it has one entry \
         for each, with dimensions that they have"
    )))
}

/// What each device has of a tensor.
fn cut(ops: &Ops<'_>, x: &Tensor, sbp: Sbp, parts: usize, random: &mut Random) -> Result<Vec<Tensor>> {
    match sbp {
        Sbp::Broadcast => Ok((0..parts).map(|_| x.alias()).collect()),
        Sbp::Split(dim) => (0..parts)
            .map(|index| {
                let (start, len) = part(x.shape()[dim], index, parts);
                x.narrow(dim as i64, start, len)
            })
            .collect(),
        Sbp::PartialSum if x.dtype() == DType::BOOL => shares(ops, x, parts, random),
        Sbp::PartialSum => addends(ops, x, parts, random),
    }
}

/// Random addends, the last of which makes up for the others.
fn addends(ops: &Ops<'_>, x: &Tensor, parts: usize, random: &mut Random) -> Result<Vec<Tensor>> {
    let mut rest = x.alias();
    let mut all = Vec::new();
    for _ in 1..parts {
        let number = |_| if x.dtype().is_int() { random.next() as i64 } else { random.next() as i64 % 8 };
        let numbers: Vec<i64> = (0..x.numel()).map(number).collect();
        let addend = ops.cast(&ops.tensor(&numbers, x.shape())?, x.dtype())?;
        rest = ops.binary(BinaryOp::SUB, &rest, &addend)?;
        all.push(addend);
    }
    all.push(rest);
    Ok(all)
}

/// What is true is so on one device at least, and on others by chance.
fn shares(ops: &Ops<'_>, x: &Tensor, parts: usize, random: &mut Random) -> Result<Vec<Tensor>> {
    let owners: Vec<usize> = (0..x.numel()).map(|_| random.next() as usize % parts).collect();
    let share = |index: usize| {
        let mask: Vec<bool> =
            owners.iter().map(|owner| *owner == index || random.next().is_multiple_of(2)).collect();
        ops.binary(BinaryOp::LOGICAL_AND, x, &ops.tensor(&mask, x.shape())?)
    };
    (0..parts).map(share).collect()
}

/// Why parts of an output do not join to the whole.
fn joins(ops: &Ops<'_>, parts: &[Tensor], whole: &Tensor, sbp: Sbp) -> Result<Option<String>> {
    let n = parts.len();
    let all: Vec<&Tensor> = parts.iter().collect();
    for (index, tensor) in parts.iter().enumerate() {
        let mut shape = whole.shape().to_vec();
        if let Sbp::Split(dim) = sbp {
            shape[dim] = part(shape[dim], index, n).1;
        }
        if tensor.shape() != shape {
            return Ok(Some(format!(
                "part {index} has the shape {:?} in place of {shape:?}",
                tensor.shape()
            )));
        }
    }
    match sbp {
        Sbp::Split(dim) => differs(ops, &ops.concat(&all, dim as i64)?, whole, n),
        Sbp::PartialSum => differs(ops, &ops.add_n(&all)?, whole, n),
        Sbp::Broadcast => {
            for (index, tensor) in parts.iter().enumerate() {
                if let Some(why) = differs(ops, tensor, whole, n)? {
                    return Ok(Some(format!("part {index}: {why}")));
                }
            }
            Ok(None)
        }
    }
}

/// Where two tensors of one shape differ.
fn differs(ops: &Ops<'_>, found: &Tensor, whole: &Tensor, parts: usize) -> Result<Option<String>> {
    let dtype = whole.dtype();
    if dtype.is_complex() {
        for part in [UnaryOp::REAL, UnaryOp::IMAG] {
            let different = differs(ops, &ops.unary(part, found)?, &ops.unary(part, whole)?, parts)?;
            if different.is_some() {
                return Ok(different);
            }
        }
        return Ok(None);
    }
    let told = |i: usize, found: &dyn fmt::Display, whole: &dyn fmt::Display| {
        Some(format!("element {i} is {found} in place of {whole}"))
    };
    if !dtype.is_float() {
        let integers = |x: &Tensor| ops.to_vec::<i64>(&ops.cast(x, DType::I64)?);
        let (found, whole) = (integers(found)?, integers(whole)?);
        let different = found.iter().zip(&whole).position(|(a, b)| a != b);
        return Ok(different.and_then(|i| told(i, &found[i], &whole[i])));
    }
    let floats = |x: &Tensor| ops.to_vec::<f64>(&ops.cast(x, DType::F64)?);
    let (found, whole) = (floats(found)?, floats(whole)?);
    let epsilon = match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 1.0 / 1024.0,
        _ => 1.0 / 128.0,
    };
    // Addends are up to 8 larger than what they add up to.
    let largest = whole.iter().filter(|x| x.is_finite()).fold(8.0, |largest: f64, x| largest.max(x.abs()));
    let tolerance = 16.0 * epsilon * largest * parts as f64;
    let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance;
    let different = found.iter().zip(&whole).position(|(a, b)| !same(*a, *b));
    Ok(different.and_then(|i| told(i, &found[i], &whole[i])))
}

/// Numbers by chance, always the same.
struct Random(u64);

impl Random {
    /// The next one, by SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
