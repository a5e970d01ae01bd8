//! All ops, by way of their references.
//!
//! A launch is copied into a [`Launched`]: every value of its arguments by the names of the op's schema, and a claim
//! on each buffer. When its turn comes, what it reads is copied out of the memory, the reference computes, and what
//! it writes is copied back. Nothing here knows any single op.

use crate::memory::Claim;
use crate::queue::Pace;
use crate::{SimDevice, SimProvider, SimStream};
use ep_core::hob::{FactKind, Facts, Value};
use ep_core::op::{Growable, Op, OperandUse};
use ep_core::primitive::{
    Add, Arange, ArgReduce, BatchGather, BatchMatmul, BroadcastElementwiseBinary, BroadcastElementwiseUnary,
    BroadcastMatmul, Cast, ConstantPad, CopyNd, ElementwiseUnary, Fill, Gather, LayerNorm, LogSoftmax,
    LogSoftmaxBackward, Matmul, Memcpy, Memset, OneHot, Permute, Reduce, RmsNorm, ScatterAdd, Softmax,
    SoftmaxBackward, StridedCopy, TensorFill, Where,
};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::schema::{ArgKind, ArgsFacts, DescFacts, DescKind, Schema, core_schemas};
use ep_core::{Code, DType, Error, Result, Scalar};
use primitives::reference::{Launch, View};
use std::collections::BTreeMap;
use std::sync::LazyLock;

type Register = fn(&mut Registrar<'_, SimProvider>) -> Result<()>;

/// Every op of the contract.
const OPS: [Register; 30] = [
    add::<Add>,
    add::<Arange>,
    add::<ArgReduce>,
    add::<BatchGather>,
    add::<BatchMatmul>,
    add::<BroadcastElementwiseBinary>,
    add::<BroadcastElementwiseUnary>,
    add::<BroadcastMatmul>,
    add::<Cast>,
    add::<ConstantPad>,
    add::<CopyNd>,
    add::<ElementwiseUnary>,
    add::<Fill>,
    add::<Gather>,
    add::<LayerNorm>,
    add::<LogSoftmax>,
    add::<LogSoftmaxBackward>,
    add::<Matmul>,
    add::<Memcpy>,
    add::<Memset>,
    add::<OneHot>,
    add::<Permute>,
    add::<Reduce>,
    add::<RmsNorm>,
    add::<ScatterAdd>,
    add::<Softmax>,
    add::<SoftmaxBackward>,
    add::<StridedCopy>,
    add::<TensorFill>,
    add::<Where>,
];

pub(crate) fn register(registrar: &mut Registrar<'_, SimProvider>) -> Result<()> {
    OPS.iter().try_for_each(|register| register(registrar))
}

/// Registers an op with a factory for each group of its rows.
///
/// A launch keeps nothing of its arguments but copies and depends on nothing else, so it could be recorded.
fn add<O: Op>(registrar: &mut Registrar<'_, SimProvider>) -> Result<()> {
    let groups = ROWS.get(O::NAME).map_or(&[][..], Vec::as_slice);
    groups.iter().enumerate().try_for_each(|(i, group)| {
        let factory = Factory::<O, SimDevice, _>::new(format!("{}.{i}", O::NAME), |_, desc: &O::Desc| {
            Ok(Reference::<O> { desc: *desc })
        });
        let factory = factory.selectors(group.selectors.iter().cloned()).dtypes(group.dtypes.iter().cloned());
        registrar.add(factory.capturable())
    })
}

/// Selectors that all go with the same dtypes.
struct Group {
    selectors: Vec<Vec<u32>>,
    dtypes: Vec<Vec<DType>>,
}

/// By op: what its reference is defined for. Found by asking it, once in a process.
static ROWS: LazyLock<BTreeMap<String, Vec<Group>>> =
    LazyLock::new(|| core_schemas().map(|schema| (schema.name.clone(), groups(&schema))).collect());

fn groups(schema: &Schema) -> Vec<Group> {
    let choices = schema.selectors().map(|(_, names)| (0..names.len() as u32).collect());
    let roles = schema.dtypes().map(|_| DType::ALL.to_vec());
    let (selectors, dtypes) = (product(choices.collect()), product(roles.collect()));
    let mut groups: Vec<Group> = Vec::new();
    for selector in selectors {
        let defined: Vec<_> = dtypes.iter().filter(|d| is_defined(schema, &selector, d)).cloned().collect();
        match groups.iter_mut().find(|group| group.dtypes == defined) {
            _ if defined.is_empty() => {}
            Some(group) => group.selectors.push(selector),
            None => groups.push(Group { selectors: vec![selector], dtypes: defined }),
        }
    }
    // Ops without selectors, or without dtypes, have no rows of them.
    for group in &mut groups {
        group.selectors.retain(|row| !row.is_empty());
        group.dtypes.retain(|row| !row.is_empty());
    }
    groups
}

/// All ways to take one of each; of nothing, the one empty way.
fn product<T: Clone>(lists: Vec<Vec<T>>) -> Vec<Vec<T>> {
    lists.into_iter().fold(vec![Vec::new()], |rows, list| {
        let with = |row: &Vec<T>| {
            list.iter().map(|x| [row.as_slice(), std::slice::from_ref(x)].concat()).collect::<Vec<_>>()
        };
        rows.iter().flat_map(with).collect()
    })
}

/// Whether the reference knows a combination: a launch of nothing fails with `Unsupported` only if it does not.
fn is_defined(schema: &Schema, selectors: &[u32], dtypes: &[DType]) -> bool {
    let mut launch = Launch::new(&schema.name);
    for ((field, names), value) in schema.selectors().zip(selectors) {
        launch = launch.selector(&field.name, &names[*value as usize]);
    }
    for (field, dtype) in schema.dtypes().zip(dtypes) {
        launch = launch.dtype(&field.name, *dtype);
    }
    for field in &schema.args {
        if matches!(field.kind, ArgKind::Dims { .. } | ArgKind::Ints { .. }) {
            launch = launch.dims(&field.name, &[0, 0]);
        }
    }
    launch.run().err().is_none_or(|e| e.code() != Code::Unsupported)
}

/// A primitive: the reference of an op.
struct Reference<O: Op> {
    desc: O::Desc,
}

impl<O: Op> Kernel<O, SimDevice> for Reference<O> {
    unsafe fn launch(&self, stream: &SimStream, args: &O::Args) -> Result<()> {
        // SAFETY: the arguments have been checked, and their dims are readable during the launch.
        let (uses, facts) =
            unsafe { (O::uses(&self.desc, args), ArgsFacts::new(O::schema(), bytes_of(args))) };
        let (launched, claims) =
            Launched::new(O::schema(), bytes_of(&self.desc), &facts, uses.as_ref(), stream)?;
        stream.launch(O::NAME, claims, move |claims, pace| launched.compute(claims, pace))
    }

    fn describe(&self) -> &str {
        "reference, on the stream's thread"
    }
}

fn bytes_of<T: Growable>(value: &T) -> &[u8] {
    // SAFETY: structs that are `Growable` have no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A launch, with copies of all that it needs but its memory.
struct Launched {
    schema: &'static Schema,
    selectors: Vec<(&'static str, &'static str)>,
    dtypes: Vec<(&'static str, DType)>,
    attrs: Vec<(&'static str, f64)>,
    sizes: Vec<(&'static str, i64)>,
    lists: Vec<(&'static str, Vec<i64>)>,
    scalars: Vec<(&'static str, Scalar)>,
    operands: Vec<Operand>,
}

/// A buffer of a launch.
struct Operand {
    name: &'static str,
    dtype: DType,
    /// Whether the reference is given the old content.
    reads: bool,
    writes: bool,
    /// Its number among the claims; `None` where nothing is accessed.
    claim: Option<usize>,
}

impl Launched {
    /// A launch, and its claims on memory.
    fn new(
        schema: &'static Schema,
        desc: &[u8],
        args: &ArgsFacts<'_>,
        uses: &[OperandUse],
        stream: &SimStream,
    ) -> Result<(Launched, Vec<Claim>)> {
        let facts = DescFacts { schema, desc, device: &[] };
        let missing = |name: &str| Error::internal(format!("{}: no value of `{name}`", schema.name));
        let mut launched = Launched {
            schema,
            selectors: Vec::new(),
            dtypes: Vec::new(),
            attrs: Vec::new(),
            sizes: Vec::new(),
            lists: Vec::new(),
            scalars: Vec::new(),
            operands: Vec::new(),
        };
        let key = schema.key(desc)?;
        for ((field, names), value) in schema.selectors().zip(&key.selectors) {
            launched.selectors.push((&field.name, &names[*value as usize]));
        }
        launched.dtypes.extend(schema.dtypes().zip(&key.dtypes).map(|(field, d)| (field.name.as_str(), *d)));
        for field in schema.desc.iter().filter(|f| matches!(f.kind, DescKind::Attr(_))) {
            match facts.fact(FactKind::Attr, &field.name) {
                Some(Value::Float(x)) => launched.attrs.push((&field.name, x)),
                _ => return Err(missing(&field.name)),
            }
        }
        for (i, field) in schema.args.iter().enumerate() {
            match field.kind {
                ArgKind::Size => launched.sizes.push((&field.name, args.size(i))),
                ArgKind::Dims { .. } | ArgKind::Ints { .. } => {
                    launched.lists.push((&field.name, args.dims(i)?.to_vec()));
                }
                ArgKind::Scalar => launched.scalars.push((&field.name, args.scalar(i)?)),
                ArgKind::Address | ArgKind::Addresses { .. } => {}
            }
        }
        let mut claims = Vec::new();
        for (i, used) in uses.iter().enumerate() {
            let operand = &schema.operands[schema.operand_of(i)];
            if !used.present || (used.optional && used.address == 0) {
                continue;
            }
            if used.bytes > 0 {
                let claim = stream.claim(used.address, used.bytes);
                claims.push(claim.map_err(|e| e.context(&operand.name).context(&schema.name))?);
            }
            launched.operands.push(Operand {
                name: &operand.name,
                dtype: used.dtype.unwrap_or(DType::U8),
                reads: used.reads || operand.covers.is_some(),
                writes: used.writes,
                claim: (used.bytes > 0).then(|| claims.len() - 1),
            });
        }
        Ok((launched, claims))
    }

    /// Reads, computes, writes.
    fn compute(&self, claims: &[Claim], pace: &mut Pace) -> Result<()> {
        let claim_of = |operand: &Operand| operand.claim.map(|i| &claims[i]);
        let old = |operand: &Operand| match claim_of(operand) {
            Some(claim) if operand.reads => claim.read(),
            _ => Ok(Vec::new()),
        };
        let contents = self.operands.iter().map(old).collect::<Result<Vec<_>>>()?;
        pace.pause();
        let mut launch = Launch::new(&self.schema.name);
        launch = self.selectors.iter().fold(launch, |l, (name, value)| l.selector(name, value));
        launch = self.dtypes.iter().fold(launch, |l, (name, dtype)| l.dtype(name, *dtype));
        launch = self.attrs.iter().fold(launch, |l, (name, value)| l.attr(name, *value));
        launch = self.sizes.iter().fold(launch, |l, (name, value)| l.size(name, *value));
        launch = self.lists.iter().fold(launch, |l, (name, values)| l.dims(name, values));
        launch = self.scalars.iter().fold(launch, |l, (name, value)| l.scalar(name, *value));
        for (operand, content) in self.operands.iter().zip(&contents).filter(|(operand, _)| operand.reads) {
            launch = launch.read(operand.name, View::new(operand.dtype, content));
        }
        let outputs = launch.run()?;
        for (operand, content) in self.operands.iter().zip(&contents).filter(|(operand, _)| operand.writes) {
            let new = &outputs.get(operand.name)?.bytes;
            match claim_of(operand) {
                Some(claim) if operand.reads => write_changes(claim, content, new)?,
                Some(claim) => claim.write(0, new)?,
                None if new.is_empty() => {}
                None => return Err(Error::internal(format!("{} bytes for `{}`", new.len(), operand.name))),
            }
        }
        Ok(())
    }
}

/// Writes what differs from the old content: what a launch leaves as it was may belong to another one.
fn write_changes(claim: &Claim, old: &[u8], new: &[u8]) -> Result<()> {
    if old.len() != new.len() {
        return claim.write(0, new);
    }
    let mut at = 0;
    while let Some(skipped) = (at..new.len()).find(|i| old[*i] != new[*i]) {
        let end = (skipped..new.len()).find(|i| old[*i] == new[*i]).unwrap_or(new.len());
        claim.write(skipped as u64, &new[skipped..end])?;
        at = end;
    }
    Ok(())
}
