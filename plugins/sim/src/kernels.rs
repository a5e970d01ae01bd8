//! All ops, by way of their references.
//!
//! A launch is copied into a [`Launched`]: every value of its arguments by the names of the op's schema, and a claim
//! on each buffer. When its turn comes, what it reads is copied out of the memory, the reference computes, or hooks do,
//! and what is to be written is copied back. Nothing here knows any single op.

use crate::hooks::{Call, DeviceMemory, Operand, Write};
use crate::memory::Claim;
use crate::queue::Pace;
use crate::{Instance, KIND, SimDevice, SimStream, prepack};
use ep_core::hob::{FactKind, Facts, Value};
use ep_core::op::{Growable, Op, OperandUse};
use ep_core::primitive::{
    Add, Arange, ArgReduce, BatchGather, BatchMatmul, BroadcastElementwiseBinary, BroadcastElementwiseUnary,
    BroadcastMatmul, Cast, ConstantPad, CopyNd, ElementwiseUnary, Fill, Gather, LayerNorm, LogSoftmax,
    LogSoftmaxBackward, Matmul, Memcpy, Memset, OneHot, Permute, Reduce, RmsNorm, ScatterAdd, Softmax,
    SoftmaxBackward, StridedCopy, TensorFill, Where,
};
use ep_core::provider::{Factory, Kernel, Packing, Provider, Registrar};
use ep_core::schema::{ArgKind, ArgsFacts, DescFacts, DescKind, Schema, core_schemas};
use ep_core::{Code, DType, Error, Result};
use primitives::reference::Launch;
use std::collections::BTreeMap;
use std::sync::LazyLock;

type Register<P> = fn(&mut Registrar<'_, P>) -> Result<()>;

/// Registers every op of the contract for these devices, with a provider of them.
///
/// # Errors
/// The host's.
pub fn register<P: Provider<Device = SimDevice>>(registrar: &mut Registrar<'_, P>) -> Result<()> {
    registrar.device_kind(KIND);
    let all: [Register<P>; 30] = [
        add::<Add, P>,
        add::<Arange, P>,
        add::<ArgReduce, P>,
        add::<BatchGather, P>,
        add::<BatchMatmul, P>,
        add::<BroadcastElementwiseBinary, P>,
        add::<BroadcastElementwiseUnary, P>,
        add::<BroadcastMatmul, P>,
        add::<Cast, P>,
        add::<ConstantPad, P>,
        add::<CopyNd, P>,
        add::<ElementwiseUnary, P>,
        add::<Fill, P>,
        add::<Gather, P>,
        add::<LayerNorm, P>,
        add::<LogSoftmax, P>,
        add::<LogSoftmaxBackward, P>,
        add::<Matmul, P>,
        add::<Memcpy, P>,
        add::<Memset, P>,
        add::<OneHot, P>,
        add::<Permute, P>,
        add::<Reduce, P>,
        add::<RmsNorm, P>,
        add::<ScatterAdd, P>,
        add::<Softmax, P>,
        add::<SoftmaxBackward, P>,
        add::<StridedCopy, P>,
        add::<TensorFill, P>,
        add::<Where, P>,
    ];
    all.iter().try_for_each(|register| register(registrar))
}

/// Registers an op with a factory for each group of its rows.
///
/// A launch keeps nothing of its arguments but copies and depends on nothing else, so it could be recorded.
fn add<O: Op, P: Provider<Device = SimDevice>>(registrar: &mut Registrar<'_, P>) -> Result<()> {
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

impl<O: Op> Reference<O> {
    /// Launches, with one operand packed somewhere else or none.
    ///
    /// # Safety
    /// The arguments have been checked, and their dims are readable during the call.
    unsafe fn queue(&self, stream: &SimStream, args: &O::Args, packed: Option<(usize, u64)>) -> Result<()> {
        // SAFETY: as the caller promises.
        let (uses, facts) =
            unsafe { (O::uses(&self.desc, args), ArgsFacts::new(O::schema(), bytes_of(args))) };
        let at = |(i, u): (usize, &OperandUse)| match packed {
            Some((operand, address)) if operand == i => OperandUse { address, ..*u },
            _ => *u,
        };
        let uses: Vec<_> = uses.as_ref().iter().enumerate().map(at).collect();
        let (instance, device) = stream.place();
        let (mut launched, claims) = Launched::new(O::schema(), bytes_of(&self.desc), &facts, &uses, stream)?;
        launched.call.primitive = std::ptr::from_ref(self).addr();
        launched.packed = packed.map(|(operand, _)| O::schema().operands[operand].name.as_str());
        stream.launch(O::NAME, claims, move |claims, pace| launched.compute(&instance, device, claims, pace))
    }

    /// # Safety
    /// As for [`Reference::queue`].
    unsafe fn used(&self, operand: usize, args: &O::Args) -> Result<OperandUse> {
        // SAFETY: as the caller promises.
        let uses = unsafe { O::uses(&self.desc, args) };
        uses.as_ref().get(operand).copied().ok_or_else(|| Error::internal("an operand that does not exist"))
    }
}

impl<O: Op> Kernel<O, SimDevice> for Reference<O> {
    unsafe fn launch(&self, stream: &SimStream, args: &O::Args) -> Result<()> {
        // SAFETY: as for a launch.
        unsafe { self.queue(stream, args, None) }
    }

    const PACKS: bool = true;

    unsafe fn packing(&self, operand: usize, args: &O::Args) -> Result<Option<Packing>> {
        let schema = O::schema();
        if !prepack::is_packed(O::NAME, &schema.operands[operand].name) {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let (facts, bytes) =
            unsafe { (ArgsFacts::new(schema, bytes_of(args)), self.used(operand, args)?.bytes) };
        let size = |name| schema.args.iter().position(|f| f.name == name).map_or(0, |i| facts.size(i));
        Ok((bytes > 0).then(|| Packing { bytes, sizes: [size("k"), size("n"), 0, 0] }))
    }

    unsafe fn pack(&self, stream: &SimStream, operand: usize, args: &O::Args, packed: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        let used = unsafe { self.used(operand, args) }?;
        let claims = vec![stream.claim(used.address, used.bytes)?, stream.claim(packed, used.bytes)?];
        stream.launch(O::NAME, claims, |claims, pace| {
            let form = prepack::turned(claims[0].read()?);
            pace.pause();
            claims[1].write(0, &form)
        })
    }

    unsafe fn launch_packed(
        &self,
        stream: &SimStream,
        operand: usize,
        packed: u64,
        args: &O::Args,
    ) -> Result<()> {
        // SAFETY: as for a launch.
        unsafe { self.queue(stream, args, Some((operand, packed))) }
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
    /// Without the content of its operands.
    call: Call,
    /// By operand: its number among the claims; `None` where nothing is accessed.
    claims: Vec<Option<usize>>,
    /// The operand that is [packed](crate::prepack).
    packed: Option<&'static str>,
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
        let mut call = Call { op: &schema.name, ..Call::default() };
        let key = schema.key(desc)?;
        for ((field, names), value) in schema.selectors().zip(&key.selectors) {
            call.selectors.push((&field.name, &names[*value as usize]));
        }
        call.dtypes.extend(schema.dtypes().zip(&key.dtypes).map(|(field, d)| (field.name.as_str(), *d)));
        for field in schema.desc.iter().filter(|f| matches!(f.kind, DescKind::Attr(_))) {
            match facts.fact(FactKind::Attr, &field.name) {
                Some(Value::Float(x)) => call.attrs.push((&field.name, x)),
                _ => return Err(missing(&field.name)),
            }
        }
        for (i, field) in schema.args.iter().enumerate() {
            match field.kind {
                ArgKind::Size => call.sizes.push((&field.name, args.size(i))),
                ArgKind::Dims { .. } | ArgKind::Ints { .. } => {
                    call.lists.push((&field.name, args.dims(i)?.to_vec()));
                }
                ArgKind::Scalar => call.scalars.push((&field.name, args.scalar(i)?)),
                ArgKind::Addresses { .. } => call.list = args.size(i) as u64,
                ArgKind::Address => {}
            }
        }
        let (mut claims, mut claim_of) = (Vec::new(), Vec::new());
        for (i, used) in uses.iter().enumerate() {
            let operand = &schema.operands[schema.operand_of(i)];
            if !used.present || (used.optional && used.address == 0) {
                continue;
            }
            if used.bytes > 0 {
                let claim = stream.claim(used.address, used.bytes);
                claims.push(claim.map_err(|e| e.context(&operand.name).context(&schema.name))?);
            }
            claim_of.push((used.bytes > 0).then(|| claims.len() - 1));
            call.operands.push(Operand {
                name: &operand.name,
                dtype: used.dtype.unwrap_or(DType::U8),
                reads: used.reads || operand.covers.is_some(),
                writes: used.writes,
                address: used.address,
                size: used.bytes as usize,
                old: Vec::new(),
            });
        }
        Ok((Launched { call, claims: claim_of, packed: None }, claims))
    }

    /// Reads, computes, writes. A graph does so more than once.
    fn compute(&self, instance: &Instance, device: u16, claims: &[Claim], pace: &mut Pace) -> Result<()> {
        let mut call = self.call.clone();
        for (operand, claim) in call.operands.iter_mut().zip(&self.claims) {
            if let (true, Some(claim)) = (operand.reads, claim) {
                let old = claims[*claim].read()?;
                operand.old = if self.packed == Some(operand.name) { prepack::turned(old) } else { old };
            }
        }
        pace.pause();
        match &instance.hooks {
            None => call.reference()?.iter().try_for_each(|w| {
                let at =
                    u64::try_from(w.at).map_err(|_| Error::internal("a write in front of an operand"))?;
                self.claim(w, claims)?.write(at, &w.bytes)
            }),
            Some(hooks) => {
                let writes = hooks.compute(&mut call, &DeviceMemory { instance, device })?;
                writes.iter().try_for_each(|w| self.claim(w, claims)?.stray(w.at, &w.bytes))
            }
        }
    }

    fn claim<'c>(&self, write: &Write, claims: &'c [Claim]) -> Result<&'c Claim> {
        let operand = &self.call.operands[write.operand];
        let claim = self.claims[write.operand].map(|i| &claims[i]);
        claim.ok_or_else(|| {
            Error::internal(format!("{} bytes for `{}`, which has none", write.bytes.len(), operand.name))
        })
    }
}
