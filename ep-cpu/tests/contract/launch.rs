//! A launch of any op by the names of its schema, on memory at chosen addresses.

use ep_core::op::OperandUse;
use ep_core::{Code, DType, Error, Result, Scalar};
use ep_cpu::provider::CpuProvider;
use ep_registry::config::ProviderConfig;
use ep_registry::{Buffer, Device, DynArgs, DynPrimitive, Runtime, Stream};
use primitives::reference::{Data, Number};

/// What an output holds before a launch.
pub const POISON: u8 = 0xa5;

/// An op with its arguments, and what its operands hold.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    pub op: &'static str,
    pub selectors: Vec<(&'static str, &'static str)>,
    pub dtypes: Vec<(&'static str, DType)>,
    pub attrs: Vec<(&'static str, f64)>,
    pub sizes: Vec<(&'static str, i64)>,
    pub lists: Vec<(&'static str, Vec<i64>)>,
    pub scalars: Vec<(&'static str, Scalar)>,
    /// Buffers of the list operand.
    pub arity: usize,
    /// What operands hold, in their order; of the others small numbers.
    pub inputs: Vec<(&'static str, Vec<Number>)>,
}

impl Launch {
    pub fn of(op: &'static str) -> Launch {
        Launch { op, ..Launch::default() }
    }

    pub fn selector(mut self, name: &'static str, value: &'static str) -> Launch {
        self.selectors.push((name, value));
        self
    }

    pub fn dtype(mut self, role: &'static str, dtype: DType) -> Launch {
        self.dtypes.push((role, dtype));
        self
    }

    pub fn attr(mut self, name: &'static str, value: f64) -> Launch {
        self.attrs.push((name, value));
        self
    }

    pub fn sizes<const N: usize>(mut self, names: [&'static str; N], values: [i64; N]) -> Launch {
        self.sizes.extend(names.into_iter().zip(values));
        self
    }

    pub fn list(mut self, name: &'static str, values: &[i64]) -> Launch {
        self.lists.push((name, values.to_vec()));
        self
    }

    pub fn scalar(mut self, name: &'static str, value: impl Into<Scalar>) -> Launch {
        self.scalars.push((name, value.into()));
        self
    }

    pub fn arity(mut self, buffers: usize) -> Launch {
        self.arity = buffers;
        self
    }

    /// What the next operand of this name holds.
    pub fn reals(self, name: &'static str, values: &[f64]) -> Launch {
        self.numbers(name, values.iter().map(|x| Number::Real(*x)))
    }

    pub fn ints(self, name: &'static str, values: &[i64]) -> Launch {
        self.numbers(name, values.iter().map(|x| Number::Int((*x).into())))
    }

    pub fn numbers(mut self, name: &'static str, values: impl IntoIterator<Item = Number>) -> Launch {
        self.inputs.push((name, values.into_iter().collect()));
        self
    }
}

/// A runtime of the CPU provider, its device and a stream.
pub struct Rig {
    runtime: Runtime,
    pub stream: Stream,
}

/// A launch whose primitive is made.
pub struct Ready<'a> {
    pub launch: &'a Launch,
    pub primitive: DynPrimitive,
    pub uses: Vec<OperandUse>,
}

impl Rig {
    pub fn new(threads: usize) -> Rig {
        let settings = ProviderConfig::new("cpu", "");
        let runtime =
            Runtime::builder().threads(threads).linked_with::<CpuProvider>(settings).build().unwrap();
        let stream = runtime.devices()[0].stream().unwrap();
        Rig { runtime, stream }
    }

    pub fn device(&self) -> &Device {
        &self.runtime.devices()[0]
    }

    pub fn primitive(&self, launch: &Launch) -> DynPrimitive {
        let mut request = self.runtime.request(launch.op).unwrap();
        for (name, value) in &launch.selectors {
            request = request.selector(name, value).unwrap();
        }
        for (role, dtype) in &launch.dtypes {
            request = request.dtype(role, &dtype.to_string()).unwrap();
        }
        for (name, value) in &launch.attrs {
            request = request.attr(name, *value).unwrap();
        }
        self.runtime.primitive_dyn(self.device(), &request).unwrap_or_else(|e| panic!("{launch:?}: {e}"))
    }

    /// # Panics
    /// If the arguments are refused before the addresses are known.
    pub fn ready<'a>(&self, launch: &'a Launch) -> Ready<'a> {
        let primitive = self.primitive(launch);
        let none = vec![0; launch.arity];
        let uses = primitive.uses(&arguments(&primitive, launch, &none)).unwrap();
        Ready { launch, primitive, uses }
    }

    /// Launches with every operand in memory of its own, and returns what the operands then hold.
    pub fn run(&self, launch: &Launch) -> Result<Outputs> {
        let ready = self.ready(launch);
        let mut memory: Vec<Memory> = (0..ready.uses.len()).map(|i| Memory::of(&ready.before(i))).collect();
        let addresses: Vec<u64> = memory.iter_mut().map(|m| m.address(0)).collect();
        ready.launch_at(&self.stream, &addresses)?;
        let after = ready.uses.iter().zip(&memory);
        let data =
            after.map(|(u, m)| Data { dtype: u.dtype.unwrap_or(DType::U8), bytes: m.bytes().to_vec() });
        let names = (0..ready.uses.len()).map(|i| ready.name(i).to_owned());
        Ok(Outputs(names.zip(data).collect()))
    }

    /// What an operand holds after a launch that succeeds.
    #[track_caller]
    pub fn output(&self, launch: &Launch, operand: &str) -> Vec<Number> {
        match self.run(launch) {
            Ok(outputs) => outputs.get(operand),
            Err(e) => panic!("{launch:?}: {e}"),
        }
    }

    /// Checks what a launch writes: numbers are equal that are the same value, zeros only with the same sign.
    #[track_caller]
    pub fn gives(&self, launch: &Launch, operand: &str, want: &[f64]) {
        let got = self.output(launch, operand);
        let same = |(g, w): (&Number, &f64)| match g {
            Number::Bool(_) | Number::Int(_) => g.int() == *w as i128,
            _ => g.im() == 0.0 && Number::Real(g.re()).same(Number::Real(*w)),
        };
        let all = got.len() == want.len() && got.iter().zip(want).all(same);
        assert!(all, "{launch:?}\n `{operand}` is {got:?}\n expected {want:?}");
    }

    /// Checks that a launch is refused, and that the message has all of `words`.
    #[track_caller]
    pub fn refuses(&self, launch: &Launch, words: &[&str]) {
        refused(self.run(launch).map(drop), launch, words);
    }
}

#[track_caller]
pub fn refused(result: Result<()>, launch: &Launch, words: &[&str]) -> Error {
    let Err(e) = result else { panic!("accepted: {launch:?}") };
    assert_eq!(e.code(), Code::InvalidArgument, "{launch:?}: {e}");
    for word in words {
        assert!(e.message().contains(word), "{launch:?}: `{word}` is missing in: {e}");
    }
    e
}

/// Operands by name, those of a list several times.
pub struct Outputs(Vec<(String, Data)>);

impl Outputs {
    pub fn data(&self, operand: &str) -> &Data {
        &self.0.iter().find(|(name, _)| name == operand).unwrap_or_else(|| panic!("no operand {operand}")).1
    }

    pub fn get(&self, operand: &str) -> Vec<Number> {
        self.data(operand).view().iter().collect()
    }
}

/// All arguments but the addresses; of a list of those, their number.
pub fn arguments<'a>(primitive: &DynPrimitive, launch: &'a Launch, list: &'a [u64]) -> DynArgs<'a> {
    let mut args = primitive.args();
    for (name, value) in &launch.sizes {
        args = args.size(name, *value).unwrap();
    }
    for (name, values) in &launch.lists {
        args = args.dims(name, values).unwrap();
    }
    for (name, value) in &launch.scalars {
        args = args.scalar(name, *value).unwrap();
    }
    if let Some(last) =
        primitive.schema().operands.last().filter(|_| primitive.schema().list_length().is_some())
    {
        args = args.addresses(&last.name, list).unwrap();
    }
    args
}

impl Ready<'_> {
    /// The name of the operand that a buffer is of.
    pub fn name(&self, i: usize) -> &str {
        let schema = self.primitive.schema();
        &schema.operands[schema.operand_of(i)].name
    }

    /// What buffer `i` holds before the launch.
    pub fn before(&self, i: usize) -> Vec<u8> {
        let (u, name) = (&self.uses[i], self.name(i));
        let dtype = u.dtype.unwrap_or(DType::U8);
        let first = (0..i).rev().take_while(|j| self.name(*j) == name).count();
        if let Some((_, values)) = self.launch.inputs.iter().filter(|(n, _)| *n == name).nth(first) {
            let data = Data::new(dtype, values.iter().copied());
            assert_eq!(data.bytes.len() as u64, u.bytes, "{:?}: `{name}`", self.launch);
            return data.bytes;
        }
        if u.writes && !u.reads {
            return vec![POISON; u.bytes as usize];
        }
        let count = u.bytes as usize / dtype.size().unwrap();
        // The first element of every axis is one that an index may name.
        let small = |at: usize| if name == "indices" { 0 } else { 1 + ((at * 5 + i) % 7) as i128 };
        Data::new(dtype, (0..count).map(|at| Number::Int(small(at)))).bytes
    }

    /// Launches on memory at these addresses.
    pub fn launch_at(&self, stream: &Stream, addresses: &[u64]) -> Result<()> {
        let schema = self.primitive.schema();
        let fixed = schema.operands.len() - usize::from(schema.list_length().is_some());
        let mut args = arguments(&self.primitive, self.launch, &addresses[fixed..]);
        for (x, address) in schema.operands.iter().zip(addresses).take(fixed) {
            args = args.address(&x.name, *address)?;
        }
        // SAFETY: the tests give memory of the sizes that the schema says, or addresses that must be refused.
        unsafe { self.primitive.launch_raw(stream, &args) }?;
        stream.sync()
    }

    /// Launches with buffers, with all of a safe launch's checks.
    pub fn launch_safely(&self, stream: &Stream, buffers: &mut [Buffer]) -> Result<()> {
        let schema = self.primitive.schema().clone();
        let mut args = self.primitive.args();
        for (name, value) in &self.launch.sizes {
            args = args.size(name, *value)?;
        }
        for (name, values) in &self.launch.lists {
            args = args.dims(name, values)?;
        }
        for (name, value) in &self.launch.scalars {
            args = args.scalar(name, *value)?;
        }
        for (i, buffer) in buffers.iter_mut().enumerate() {
            let x = &schema.operands[schema.operand_of(i)];
            if !self.uses[i].present {
                continue;
            }
            args = if x.writes { args.write(&x.name, buffer)? } else { args.read(&x.name, &*buffer)? };
        }
        self.primitive.launch(stream, args)?;
        stream.sync()
    }
}

/// Bytes at an address that every alignment divides.
pub struct Memory {
    words: Vec<u128>,
    len: usize,
}

impl Memory {
    pub fn of(bytes: &[u8]) -> Memory {
        // A word more, for addresses that are off by a few bytes.
        let mut memory = Memory { words: vec![0; bytes.len() / 16 + 2], len: bytes.len() };
        memory.bytes_mut().copy_from_slice(bytes);
        memory
    }

    pub fn bytes(&self) -> &[u8] {
        &all(&self.words)[..self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: words are plain bytes.
        let all = unsafe {
            std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast::<u8>(), self.words.len() * 16)
        };
        &mut all[..self.len]
    }

    pub fn address(&mut self, offset: usize) -> u64 {
        self.words.as_mut_ptr().expose_provenance() as u64 + offset as u64
    }
}

fn all(words: &[u128]) -> &[u8] {
    // SAFETY: words are plain bytes.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 16) }
}
