//! Requests, primitives and launches by name, driven by schemas: for vendor ops, tools and other languages.

use crate::buffer::{Read, ViewMut};
use crate::device::Device;
use crate::prepack::{self, Packed};
use crate::primitive::{Core, Cost, Operands, Room};
use crate::stream::Stream;
use ep_core::op::{OperandUse, Slot};
use ep_core::schema::{ArgKind, ArgsFacts, DescKind, Schema};
use ep_core::{DType, Error, Result, Scalar};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::sync::Arc;

/// A descriptor in the making.
///
/// ```no_run
/// # fn main() -> ep_core::Result<()> {
/// # let runtime = ep_registry::Runtime::from_config("ep.toml")?;
/// # let device = runtime.device("cpu")?;
/// let request = runtime.request("softmax")?.dtype("src", "f16")?.dtype("dst", "f32")?.limit("cols", 1024)?;
/// println!("{}", runtime.explain(device, &request)?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Request {
    schema: Arc<Schema>,
    words: Vec<u64>,
}

impl Request {
    pub(crate) fn new(schema: Arc<Schema>) -> Request {
        let mut request = Request { words: vec![0; schema.desc_size / 8], schema };
        request.words[0] = request.schema.desc_size as u64;
        let schema = request.schema.clone();
        for f in &schema.desc {
            if let DescKind::Attr(default) = f.kind {
                request.put(f.offset, &default.to_bits().to_ne_bytes());
            }
        }
        request
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        // SAFETY: u64 values may be written as bytes; `decode_schema` has checked that fields are inside.
        let all = unsafe {
            std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast::<u8>(), self.words.len() * 8)
        };
        all[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// The op.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn field(&self, name: &str, kind: &str, fits: impl Fn(&DescKind) -> bool) -> Result<(usize, DescKind)> {
        if let Some(f) = self.schema.desc_field(name).filter(|f| fits(&f.kind)) {
            return Ok((f.offset, f.kind.clone()));
        }
        let names: Vec<_> =
            self.schema.desc.iter().filter(|f| fits(&f.kind)).map(|f| f.name.as_str()).collect();
        Err(Error::not_found(format!("op `{}` has no {kind} `{name}`; it has {names:?}", self.schema.name)))
    }

    /// Sets a dtype by its name.
    ///
    /// # Errors
    /// An unknown role or dtype, with the known ones.
    pub fn dtype(mut self, role: &str, dtype: &str) -> Result<Request> {
        let dtype = DType::by_name(dtype)?;
        let (at, _) = self.field(role, "dtype", |k| *k == DescKind::DType)?;
        self.put(at, &dtype.0.to_ne_bytes());
        Ok(self)
    }

    /// Sets a selector by the name of its value.
    ///
    /// # Errors
    /// An unknown selector or value, with the most similar ones.
    pub fn selector(mut self, name: &str, value: &str) -> Result<Request> {
        let (at, kind) = self.field(name, "selector", |k| matches!(k, DescKind::Selector(_)))?;
        let DescKind::Selector(choices) = kind else { unreachable!("just filtered") };
        let Some(v) = choices.iter().position(|c| c == value) else {
            let message = crate::names::unknown_value(&self.schema.name, name, value, &choices);
            return Err(Error::not_found(message));
        };
        self.put(at, &(v as u32).to_ne_bytes());
        Ok(self)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// An unknown attribute, with the known ones.
    pub fn attr(mut self, name: &str, value: f64) -> Result<Request> {
        let (at, _) = self.field(name, "attribute", |k| matches!(k, DescKind::Attr(_)))?;
        self.put(at, &value.to_bits().to_ne_bytes());
        Ok(self)
    }

    /// Bounds what launches will ask for; `alignment` is one for every op.
    ///
    /// # Errors
    /// An unknown limit, with the known ones.
    pub fn limit(mut self, name: &str, value: u64) -> Result<Request> {
        let at = match name {
            "alignment" => 8,
            _ => self.field(name, "limit", |k| matches!(k, DescKind::Limit(_)))?.0,
        };
        self.put(at, &value.to_ne_bytes());
        Ok(self)
    }

    /// Takes a descriptor struct of the op, as `ep_plugin.h` has it: of this version, or of one with fewer fields, those that
    /// are missing meaning their defaults.
    pub(crate) fn of_desc(schema: Arc<Schema>, desc: &[u8]) -> Result<Request> {
        let wrong = |why: &str| {
            Error::invalid(format!(
                "a descriptor of {} bytes for op `{}`, whose descriptor has {}: {why}",
                desc.len(),
                schema.name,
                schema.desc_size
            ))
        };
        if desc.len() < 16 || !desc.len().is_multiple_of(8) {
            return Err(wrong("it begins with struct_size and alignment, and consists of words of 8 bytes"));
        }
        let known = desc.len().min(schema.desc_size);
        if desc[known..].iter().any(|b| *b != 0) {
            return Err(Error::unsupported(
                wrong("it sets fields that this version does not know").message(),
            ));
        }
        let mut request = Request::new(schema);
        request.put(0, &desc[..known]);
        request.words[0] = request.schema.desc_size as u64;
        Ok(request)
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }
}

/// A primitive of any op.
#[derive(Clone)]
pub struct DynPrimitive {
    pub(crate) core: Arc<Core>,
    /// The arguments that every launch has to give, [`Schema::needs`].
    needed: Arc<[usize]>,
}

impl std::fmt::Debug for DynPrimitive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DynPrimitive({} by {}/{})", self.core.schema.name, self.core.instance, self.factory())
    }
}

/// The word of every argument struct with the address of scratch memory; the next one has its bytes.
const WORKSPACE: usize = 2;

/// Bytes of what all argument structs begin with: `struct_size`, `flags`, `workspace`, `workspace_bytes`.
const ARGS_HEAD: u64 = 32;

/// The arguments of a launch by names.
#[derive(Debug)]
pub struct DynArgs<'a> {
    schema: Arc<Schema>,
    words: Vec<u64>,
    /// The arguments that have to be given, and are not yet.
    missing: SmallVec<[usize; 6]>,
    /// Of each operand; of a list, one for each of its buffers.
    slots: Vec<Vec<Slot<Read<'a>, ViewMut<'a>>>>,
}

impl<'a> DynArgs<'a> {
    fn put(&mut self, offset: usize, word: u64) {
        self.words[offset / 8] = word;
    }

    fn arg(&self, name: &str, kind: &str, fits: impl Fn(ArgKind) -> bool) -> Result<usize> {
        let found = self.schema.args.iter().position(|f| f.name == name && fits(f.kind));
        found.ok_or_else(|| {
            let names: Vec<_> =
                self.schema.args.iter().filter(|f| fits(f.kind)).map(|f| f.name.as_str()).collect();
            Error::not_found(format!("op `{}` has no {kind} `{name}`; it has {names:?}", self.schema.name))
        })
    }

    /// Sets a size.
    ///
    /// # Errors
    /// An unknown name, with the known ones; a rank, which [`DynArgs::dims`] sets.
    pub fn size(mut self, name: &str, value: i64) -> Result<Self> {
        let i = self.arg(name, "size", |k| k == ArgKind::Size)?;
        let length_of = |f: &ep_core::schema::ArgField| match f.kind {
            ArgKind::Dims { length } | ArgKind::Ints { length } => (length == i).then_some("dims"),
            ArgKind::Addresses { length } => (length == i).then_some("read"),
            _ => None,
        };
        if let Some((list, by)) = self.schema.args.iter().find_map(|f| Some((f, length_of(f)?))) {
            return Err(Error::invalid(format!(
                "`{name}` is the length of `{}`; set that with {by}()",
                list.name
            )));
        }
        let at = self.schema.args[i].offset;
        self.put(at, value as u64);
        self.missing.retain(|m| *m != i);
        Ok(self)
    }

    /// Sets a shape, or another list of numbers, and the field with its length.
    ///
    /// # Errors
    /// An unknown name, with the known ones; shapes that share a rank and differ in it.
    pub fn dims(mut self, name: &str, dims: &'a [i64]) -> Result<Self> {
        let i = self.arg(name, "dims", |k| matches!(k, ArgKind::Dims { .. } | ArgKind::Ints { .. }))?;
        let (at, kind) = (self.schema.args[i].offset, self.schema.args[i].kind);
        let (ArgKind::Dims { length } | ArgKind::Ints { length }) = kind else {
            unreachable!("just filtered")
        };
        let same = |k: ArgKind| k == (ArgKind::Dims { length }) || k == (ArgKind::Ints { length });
        let length_at = self.schema.args[length].offset;
        let shared = self.schema.args.iter().filter(|a| same(a.kind) && a.offset != at);
        for other in shared {
            if self.words[other.offset / 8] != 0 && self.words[length_at / 8] != dims.len() as u64 {
                return Err(Error::invalid(format!(
                    "`{name}` and `{}` have one rank, but differ in it",
                    other.name
                )));
            }
        }
        self.put(length_at, dims.len() as u64);
        self.put(at, dims.as_ptr().expose_provenance() as u64);
        self.missing.retain(|m| *m != i);
        Ok(self)
    }

    /// Sets a scalar.
    ///
    /// # Errors
    /// An unknown name, with the known ones.
    pub fn scalar(mut self, name: &str, value: impl Into<Scalar>) -> Result<Self> {
        let i = self.arg(name, "scalar", |k| k == ArgKind::Scalar)?;
        let at = self.schema.args[i].offset;
        let raw = ep_core::abi::EpScalar::from(value.into());
        // Two u32 share the first word, `kind` first in memory.
        let mut first = [0u8; 8];
        first[..4].copy_from_slice(&raw.kind.to_ne_bytes());
        self.put(at, u64::from_ne_bytes(first));
        self.put(at + 8, raw.re);
        self.put(at + 16, raw.im);
        Ok(self)
    }

    fn operand(&self, name: &str) -> Result<usize> {
        self.schema.operands.iter().position(|x| x.name == name).ok_or_else(|| {
            let names: Vec<_> = self.schema.operands.iter().map(|x| x.name.as_str()).collect();
            Error::not_found(format!("op `{}` has no operand `{name}`; it has {names:?}", self.schema.name))
        })
    }

    /// Gives an operand that is only read; of a list of buffers, the next one.
    ///
    /// # Errors
    /// An unknown name, or an operand that is written.
    pub fn read(mut self, name: &str, memory: impl Into<Read<'a>>) -> Result<Self> {
        let i = self.operand(name)?;
        if self.schema.operands[i].writes {
            return Err(Error::invalid(format!("operand `{name}` is written; pass it with write()")));
        }
        self.set(i, Slot::Read(memory.into()));
        Ok(self)
    }

    /// Gives an operand that is written.
    ///
    /// # Errors
    /// An unknown name, or an operand that is only read.
    pub fn write(mut self, name: &str, memory: impl Into<ViewMut<'a>>) -> Result<Self> {
        let i = self.operand(name)?;
        if !self.schema.operands[i].writes {
            return Err(Error::invalid(format!("operand `{name}` is only read; pass it with read()")));
        }
        self.set(i, Slot::Write(memory.into()));
        Ok(self)
    }

    fn set(&mut self, i: usize, slot: Slot<Read<'a>, ViewMut<'a>>) {
        let list = self.schema.list_length().filter(|_| i + 1 == self.schema.operands.len());
        if list.is_none() {
            self.slots[i].clear();
        }
        self.slots[i].push(slot);
        if let Some(length) = list {
            let count = self.slots[i].len() as u64;
            self.put(self.schema.args[length].offset, count);
        }
    }

    /// Sets the address of an operand, for [`DynPrimitive::launch_raw`]. [`DynPrimitive::launch`] takes addresses
    /// from buffers and ignores this one.
    ///
    /// # Errors
    /// An unknown operand, with the known ones; a list of buffers, which [`DynArgs::addresses`] sets.
    pub fn address(mut self, operand: &str, address: u64) -> Result<Self> {
        let arg = self.schema.operands[self.operand(operand)?].arg;
        if matches!(self.schema.args[arg].kind, ArgKind::Addresses { .. }) {
            return Err(Error::invalid(format!("operand `{operand}` is a list; set it with addresses()")));
        }
        let at = self.schema.args[arg].offset;
        self.put(at, address);
        Ok(self)
    }

    /// Gives scratch memory, for [`DynPrimitive::launch_raw`]; [`DynPrimitive::workspace_size`] says how much a launch
    /// wants. [`DynPrimitive::launch`] leaves scratch to the provider, and ignores this.
    #[must_use]
    pub fn workspace(mut self, address: u64, bytes: u64) -> Self {
        (self.words[WORKSPACE], self.words[WORKSPACE + 1]) = (address, bytes);
        self
    }

    /// As [`DynArgs::address`], for an operand that is a list of buffers.
    ///
    /// # Errors
    /// An unknown operand, with the known ones, or one that is no list.
    pub fn addresses(mut self, operand: &str, addresses: &'a [u64]) -> Result<Self> {
        let arg = self.schema.operands[self.operand(operand)?].arg;
        let ArgKind::Addresses { length } = self.schema.args[arg].kind else {
            return Err(Error::invalid(format!("operand `{operand}` is one buffer; set it with address()")));
        };
        let (at, length_at) = (self.schema.args[arg].offset, self.schema.args[length].offset);
        self.put(length_at, addresses.len() as u64);
        self.put(at, addresses.as_ptr().expose_provenance() as u64);
        Ok(self)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: u64 values are readable as bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len() * 8) }
    }
}

impl DynPrimitive {
    pub(crate) fn new(core: Arc<Core>) -> DynPrimitive {
        let needed = (0..core.schema.args.len()).filter(|i| core.schema.needs(*i)).collect();
        DynPrimitive { core, needed }
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.core.device
    }

    /// The provider instance that made it.
    pub fn instance(&self) -> &str {
        &self.core.instance
    }

    /// The factory that made it.
    pub fn factory(&self) -> &str {
        &self.core.handle.factory().name
    }

    /// What the provider chose, for people; may be empty.
    pub fn describe(&self) -> String {
        self.core.handle.describe()
    }

    /// Whether its launches may be recorded into a graph.
    pub fn capturable(&self) -> bool {
        self.core.handle.factory().capturable
    }

    /// What a launch costs, by the op's schema. Operands are not looked at.
    ///
    /// # Errors
    /// `InvalidArgument` for sizes that cannot be launched.
    pub fn cost(&self, args: &DynArgs<'_>) -> Result<Cost> {
        self.check_args(args)?;
        self.uses(args)?;
        // SAFETY: dims are null with rank 0, or slices that `args` borrows.
        unsafe { self.core.cost(args.bytes()) }
    }

    /// Bytes of scratch memory that a launch wants, for [`DynArgs::workspace`]; 0 where the provider does not say.
    ///
    /// # Errors
    /// As [`DynPrimitive::cost`], and the provider's.
    pub fn workspace_size(&self, args: &DynArgs<'_>) -> Result<u64> {
        self.check_args(args)?;
        self.uses(args)?;
        // SAFETY: the argument struct of this op, with dims and lists that `args` borrows; nothing is launched.
        unsafe { self.core.handle.workspace_size(args.words.as_ptr().cast()) }
    }

    /// Starts the arguments of a launch.
    pub fn args<'a>(&self) -> DynArgs<'a> {
        let schema = self.core.schema.clone();
        let mut words = vec![0; schema.args_size / 8];
        words[0] = schema.args_size as u64;
        let slots = schema.operands.iter().map(|_| Vec::new()).collect();
        DynArgs { slots, words, missing: SmallVec::from_slice(&self.needed), schema }
    }

    #[inline]
    fn check_args(&self, args: &DynArgs<'_>) -> Result<()> {
        if !Arc::ptr_eq(&args.schema, &self.core.schema) {
            return Err(Error::invalid("the arguments were started on a primitive of another op"));
        }
        if args.missing.is_empty() { Ok(()) } else { Err(incomplete(args)) }
    }

    /// Queues a launch, with the checks of [`crate::Primitive::launch`].
    ///
    /// # Errors
    /// As there, and when an operand, a shape, or a size without which an operand would be empty is not given.
    pub fn launch(&self, stream: &Stream, mut args: DynArgs<'_>) -> Result<()> {
        self.check_args(&args)?;
        let uses = self.uses(&args)?;
        let mut room = Room::default();
        let mut operands = Operands::new(&self.core, &uses, stream, &mut room);
        let schema = &self.core.schema;
        let list = schema.list_length().map(|_| schema.operands.len() - 1);
        if let Some(l) = list.filter(|l| l + args.slots[*l].len() != uses.len()) {
            return Err(Error::invalid(format!(
                "operand `{}` is given {} buffers and {} addresses; a launch with buffers takes no addresses",
                schema.operands[l].name,
                args.slots[l].len(),
                uses.len() - l
            )));
        }
        for (i, slots) in std::mem::take(&mut args.slots).into_iter().enumerate() {
            if slots.is_empty() && list != Some(i) {
                let x = &schema.operands[i];
                let absent = match (x.writes, x.optional) {
                    (false, _) => Slot::Read(Read::None),
                    (true, true) => Slot::None,
                    (true, false) => {
                        return Err(Error::invalid(format!("operand `{}` is not given", x.name)));
                    }
                };
                operands.add(i, absent)?;
            }
            for (at, slot) in slots.into_iter().enumerate() {
                operands.add(i + at, slot)?;
            }
        }
        let in_place = |i: usize| self.core.schema.operands[i].in_place;
        operands.place_in_place(in_place)?;
        operands.check_overlap(in_place)?;
        (args.words[WORKSPACE], args.words[WORKSPACE + 1]) = (0, 0);
        let addresses = operands.take_addresses();
        for (i, x) in schema.operands.iter().enumerate() {
            args.words[schema.args[x.arg].offset / 8] = match list {
                Some(l) if l == i => addresses[i..].as_ptr().expose_provenance() as u64,
                _ => addresses[i],
            };
        }
        // SAFETY: `operands` has checked every address, and a list of them outlives the call; dims point into slices
        // that `args` borrows.
        unsafe { operands.run(args.words.as_ptr().cast()) }
    }

    /// Packs an operand that many launches read, with the checks of [`crate::Primitive::prepack`]: the one that `args` give a
    /// buffer for. The others need not be given.
    ///
    /// # Errors
    /// As there.
    pub fn prepack(&self, stream: &Stream, mut args: DynArgs<'_>) -> Result<Option<Packed>> {
        self.check_args(&args)?;
        let uses = self.uses(&args)?;
        let slots = std::mem::take(&mut args.slots);
        let given = slots.into_iter().enumerate().flat_map(|(i, s)| s.into_iter().map(move |s| (i, s)));
        let (i, view) = prepack::one_given(&self.core, given)?;
        (args.words[WORKSPACE], args.words[WORKSPACE + 1]) = (0, 0);
        let schema = &self.core.schema;
        args.words[schema.args[schema.operands[schema.operand_of(i)].arg].offset / 8] = view.address();
        // SAFETY: the argument struct of this op with the operand's address, with dims and lists that `args` borrows.
        unsafe { self.core.prepack(stream, &uses, i, view, args.words.as_ptr().cast()) }
    }

    /// Queues a launch with the addresses that [`DynArgs::address`] has set, at the cost of
    /// [`crate::Primitive::launch_raw`]: `args` can be used again for the next launch.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn launch_raw(&self, stream: &Stream, args: &DynArgs<'_>) -> Result<()> {
        self.check_args(args)?;
        // SAFETY: the argument struct of this op, with dims and lists that `args` borrows; the rest is the caller's promise.
        unsafe { self.core.launch(stream, args.words.as_ptr().cast()) }
    }

    /// Queues a launch with an argument struct of the op, as `ep_plugin.h` has it, for hosts in other languages.
    ///
    /// # Errors
    /// As [`DynPrimitive::launch_raw`]; `InvalidArgument` for an address that is null or misaligned, and for a `struct_size` that no
    /// argument struct has.
    ///
    /// # Safety
    /// As there; `args` is null, or such a struct of as many bytes as its `struct_size` says.
    pub unsafe fn launch_struct(&self, stream: &Stream, args: *const c_void) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            self.check_struct(args)?;
            self.core.launch(stream, args)
        }
    }

    /// Bytes of scratch memory that a launch with such a struct wants; 0 where the provider does not say. No address in it is used.
    ///
    /// # Errors
    /// As [`DynPrimitive::launch_struct`].
    ///
    /// # Safety
    /// `args` is null, or such a struct of as many bytes as its `struct_size` says, whose lists can be read.
    pub unsafe fn workspace_of_struct(&self, args: *const c_void) -> Result<u64> {
        // SAFETY: as the caller promises.
        unsafe {
            self.check_struct(args)?;
            self.core.handle.workspace_size(args)
        }
    }

    /// # Safety
    /// `args` is null, or begins with a word that can be read where it is aligned.
    unsafe fn check_struct(&self, args: *const c_void) -> Result<()> {
        let wrong = |why: String| Error::invalid(format!("{}: the arguments {why}", self.core.schema.name));
        if args.is_null() || !args.cast::<u64>().is_aligned() {
            return Err(wrong(format!("at {args:p} are null or misaligned")));
        }
        // SAFETY: aligned and not null.
        let bytes = unsafe { args.cast::<u64>().read() };
        if !(ARGS_HEAD..=1 << 16).contains(&bytes) || bytes % 8 != 0 {
            let size = self.core.schema.args_size;
            return Err(wrong(format!(
                "have struct_size {bytes}; set it to sizeof of their type, here {size}"
            )));
        }
        Ok(())
    }

    /// The op.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.core.schema
    }

    /// What a launch does with each operand, in order, the buffers of a list one by one; the addresses are 0.
    ///
    /// # Errors
    /// `InvalidArgument` for sizes, shapes or scalars that cannot be launched, or that exceed a limit.
    pub fn uses(&self, args: &DynArgs<'_>) -> Result<Vec<OperandUse>> {
        let schema = &self.core.schema;
        // SAFETY: dims are null with rank 0, or slices that `args` borrows.
        let facts = unsafe { ArgsFacts::new(schema, args.bytes()) };
        for (i, f) in schema.args.iter().enumerate() {
            match f.kind {
                ArgKind::Size => ep_core::op::size(&f.name, facts.size(i))?,
                ArgKind::Dims { .. } | ArgKind::Ints { .. } => drop(facts.dims(i)?),
                ArgKind::Scalar => drop(facts.scalar(i)?),
                // Counted by `Schema::uses`, and set when the addresses are known.
                ArgKind::Address | ArgKind::Addresses { .. } => {}
            }
        }
        let desc = &self.core.desc;
        for f in &schema.desc {
            if let DescKind::Limit(bounds) = &f.kind {
                ep_core::op::limit(&f.name, desc[f.offset / 8], bounds.amount(&facts)?)?;
            }
        }
        schema.uses(self.core.desc_bytes(), &facts)
    }
}

#[cold]
fn incomplete(args: &DynArgs<'_>) -> Error {
    let names = |mut which: Vec<usize>| {
        which.sort_unstable();
        which.iter().map(|i| format!("`{}`", args.schema.args[*i].name)).collect::<Vec<_>>().join(", ")
    };
    Error::invalid(format!(
        "{}: {} not given; set every size with size() and every shape with dims(), also where it is 0 or empty",
        args.schema.name,
        names(args.missing.to_vec())
    ))
}
