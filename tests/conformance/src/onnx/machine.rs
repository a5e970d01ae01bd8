//! Values on a device, and launches on them through the dynamic API.

use crate::case::{Case, Key};
use crate::predicates::{Advertised, advertised, attempts};
use ep_core::{Code, DType, Element, Error, Result, Scalar};
use ep_registry::{Buffer, Device, DynPrimitive, Runtime, Stream};
use half::{bf16, f16};
use primitives::reference::Data;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Why a case does not get to its end.
#[derive(Debug)]
pub enum Stop {
    /// The primitives cannot express it, or this mapping does not.
    NotMapped(String),
    /// The provider does not claim a primitive that it needs.
    Unsupported(String),
    /// Something went wrong.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Failed(e)
    }
}

/// What mapping gives.
pub type Mapped<T> = std::result::Result<T, Stop>;

/// An operator, or a use of it, that is not mapped.
pub fn not_mapped<T>(why: impl Into<String>) -> Mapped<T> {
    Err(Stop::NotMapped(why.into()))
}

/// A tensor in memory of the device: contiguous, row-major. Cheap to clone; content is never changed.
#[derive(Clone)]
pub struct Value {
    /// Of the elements.
    pub dtype: DType,
    /// Its dimensions; none of a scalar.
    pub shape: Vec<i64>,
    memory: Rc<Buffer>,
}

/// The number of elements of a shape.
pub fn count(dims: &[i64]) -> i64 {
    dims.iter().product()
}

impl Value {
    /// Its number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Its number of elements.
    pub fn count(&self) -> i64 {
        count(&self.shape)
    }

    /// The same elements in other dimensions.
    ///
    /// # Errors
    /// When they are not as many.
    pub fn shaped(&self, shape: &[i64]) -> Mapped<Value> {
        if count(shape) != self.count() {
            return Err(Error::invalid(format!("{:?} in the shape {shape:?}", self.shape)).into());
        }
        Ok(Value { shape: shape.to_vec(), ..self.clone() })
    }

    /// A dimension, which may count from the end.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn axis(&self, axis: i64) -> Mapped<usize> {
        let rank = self.rank() as i64;
        let from_start = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&from_start) {
            return Ok(from_start as usize);
        }
        Err(Error::invalid(format!("axis {axis} of {:?}", self.shape)).into())
    }

    /// Elements before an axis, along it, and behind it.
    pub fn around(&self, axis: usize) -> [i64; 3] {
        [count(&self.shape[..axis]), self.shape[axis], count(&self.shape[axis + 1..])]
    }

    /// A copy of the content.
    ///
    /// # Errors
    /// The provider's; `InvalidArgument` for bytes that are no bool.
    pub fn download(&self) -> Result<Data> {
        fn bytes<T: Element, const N: usize>(buffer: &Buffer, f: fn(T) -> [u8; N]) -> Result<Vec<u8>> {
            Ok(buffer.download::<T>()?.into_iter().flat_map(f).collect())
        }
        let from = &*self.memory;
        let bytes = match self.dtype {
            DType::BOOL => bytes(from, |b: bool| [u8::from(b)]),
            DType::I8 => bytes(from, i8::to_ne_bytes),
            DType::U8 => bytes(from, u8::to_ne_bytes),
            DType::I16 => bytes(from, i16::to_ne_bytes),
            DType::U16 => bytes(from, u16::to_ne_bytes),
            DType::I32 => bytes(from, i32::to_ne_bytes),
            DType::U32 => bytes(from, u32::to_ne_bytes),
            DType::I64 => bytes(from, i64::to_ne_bytes),
            DType::U64 => bytes(from, u64::to_ne_bytes),
            DType::F16 => bytes(from, f16::to_ne_bytes),
            DType::BF16 => bytes(from, bf16::to_ne_bytes),
            DType::F32 => bytes(from, f32::to_ne_bytes),
            DType::F64 => bytes(from, f64::to_ne_bytes),
            other => Err(Error::unsupported(format!("values of {other}"))),
        }?;
        Ok(Data { dtype: self.dtype, bytes })
    }
}

/// A device, and what its provider claims.
pub struct Machine<'r> {
    runtime: &'r Runtime,
    device: &'r Device,
    stream: Stream,
    advertised: BTreeMap<Key, Advertised>,
    launches: usize,
}

impl<'r> Machine<'r> {
    /// A machine on one device.
    ///
    /// # Errors
    /// When there is no stream.
    pub fn new(runtime: &'r Runtime, device: &'r Device) -> Result<Machine<'r>> {
        let advertised = advertised(runtime, device);
        Ok(Machine { runtime, device, stream: device.stream()?, advertised, launches: 0 })
    }

    /// How many launches there were since the last call.
    pub fn take_launches(&mut self) -> usize {
        std::mem::take(&mut self.launches)
    }

    /// A value with some content.
    ///
    /// # Errors
    /// When there is no memory, or the copy fails.
    pub fn upload(&self, shape: &[i64], data: &Data) -> Result<Value> {
        let memory = if data.dtype == DType::BOOL {
            let truth: Vec<bool> = data.bytes.iter().map(|b| *b != 0).collect();
            self.device.upload(&truth)?
        } else {
            self.device.upload(&data.bytes)?.reinterpret(data.dtype)?
        };
        Ok(Value { dtype: data.dtype, shape: shape.to_vec(), memory: Rc::new(memory) })
    }

    /// A list of integers.
    ///
    /// # Errors
    /// As [`Machine::upload`].
    pub fn integers(&self, values: &[i64]) -> Result<Value> {
        let bytes = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        self.upload(&[values.len() as i64], &Data { dtype: DType::I64, bytes })
    }

    /// Memory for a result, with bytes in it that no result has by chance.
    fn poisoned(&self, dtype: DType, shape: &[i64]) -> Result<Value> {
        let bytes = count(shape) as usize * dtype.bytes_for_bounds() as usize;
        let poison = |i: usize| if dtype == DType::BOOL { (i % 3 == 1) as u8 } else { 0xa5 ^ (i as u8) };
        self.upload(shape, &Data { dtype, bytes: (0..bytes).map(poison).collect() })
    }

    fn build(&self, case: &Case) -> Mapped<DynPrimitive> {
        let Some(claimed) = self.advertised.get(&case.key) else {
            return Err(Stop::Unsupported(format!("the provider does not claim {}", case.key)));
        };
        let schema = self.runtime.schema(&case.key.op)?;
        let mut refused = Error::unsupported("no request was made");
        for attempt in attempts(case, &schema, claimed)? {
            let mut request = self.runtime.request(&case.key.op)?;
            for (name, value) in &case.key.selectors {
                request = request.selector(name, value)?;
            }
            for (role, dtype) in &case.key.dtypes {
                request = request.dtype(role, &dtype.to_string())?;
            }
            for (name, bits) in &attempt.attrs {
                request = request.attr(name, f64::from_bits(*bits))?;
            }
            for (name, value) in &attempt.limits {
                request = request.limit(name, *value)?;
            }
            match self.runtime.primitive_dyn(self.device, &request) {
                Ok(primitive) => return Ok(primitive),
                Err(e) if e.code() == Code::Unsupported => refused = e,
                Err(e) => return Err(e.into()),
            }
        }
        if claimed.conditional() {
            return Err(Stop::Unsupported(refused.to_string()));
        }
        Err(refused.context("claimed, and refused").into())
    }
}

/// A launch in the making.
pub struct Launch<'v> {
    case: Case,
    reads: Vec<(&'static str, &'v Value)>,
}

impl<'v> Launch<'v> {
    /// Of an op.
    pub fn new(op: &str) -> Launch<'v> {
        let key = Key { op: op.to_owned(), selectors: Vec::new(), dtypes: Vec::new() };
        Launch { case: Case::new(&key, "onnx"), reads: Vec::new() }
    }

    /// Sets a selector; in the order of the schema.
    pub fn select(mut self, name: &str, value: &str) -> Self {
        self.case.key.selectors.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a dtype; in the order of the schema.
    pub fn dtype(mut self, role: &str, dtype: DType) -> Self {
        self.case.key.dtypes.push((role.to_owned(), dtype));
        self
    }

    /// Sets an attribute.
    pub fn attr(mut self, name: &'static str, value: f64) -> Self {
        self.case = self.case.attr(name, value);
        self
    }

    /// Sets sizes.
    pub fn sizes(mut self, sizes: &[(&'static str, i64)]) -> Self {
        self.case = self.case.sizes(sizes);
        self
    }

    /// Sets a list of numbers.
    pub fn list(mut self, name: &'static str, values: &[i64]) -> Self {
        self.case = self.case.list(name, values);
        self
    }

    /// Sets a scalar.
    pub fn scalar(mut self, name: &'static str, value: Scalar) -> Self {
        self.case = self.case.scalar(name, value);
        self
    }

    /// Gives an operand; of a list, the next one.
    pub fn read(mut self, name: &'static str, value: &'v Value) -> Self {
        self.reads.push((name, value));
        self
    }

    /// Launches, and gives what it writes to an operand.
    ///
    /// # Errors
    /// When the provider does not claim it, or it fails.
    pub fn make(self, on: &mut Machine<'_>, output: &str, dtype: DType, shape: &[i64]) -> Mapped<Value> {
        let mut made = self.make_all(on, &[(output, dtype, shape)])?;
        made.pop().ok_or_else(|| Error::internal("a launch without an output").into())
    }

    /// Launches, and gives what it writes to each of some operands.
    ///
    /// # Errors
    /// As [`Launch::make`].
    pub fn make_all(self, on: &mut Machine<'_>, outputs: &[(&str, DType, &[i64])]) -> Mapped<Vec<Value>> {
        let mut made = Vec::new();
        for (_, dtype, shape) in outputs {
            made.push(on.poisoned(*dtype, shape)?);
        }
        let names = outputs.iter().map(|(name, ..)| *name);
        self.run(on, names.zip(made.iter_mut()).collect())?;
        Ok(made)
    }

    /// Launches into a value that only this caller has.
    ///
    /// # Errors
    /// As [`Launch::make`].
    pub fn into(self, on: &mut Machine<'_>, output: &str, value: &mut Value) -> Mapped<()> {
        self.run(on, vec![(output, value)])
    }

    fn run(mut self, on: &mut Machine<'_>, outputs: Vec<(&str, &mut Value)>) -> Mapped<()> {
        let sources = self.reads.iter().filter(|(name, _)| *name == "srcs").count();
        self.case.arity = sources;
        let primitive = on.build(&self.case)?;
        let mut args = primitive.args();
        for (name, value) in &self.case.sizes {
            args = args.size(name, *value)?;
        }
        for (name, values) in &self.case.lists {
            args = args.dims(name, values)?;
        }
        for (name, value) in &self.case.scalars {
            args = args.scalar(name, *value)?;
        }
        for (name, value) in &self.reads {
            args = args.read(name, &*value.memory)?;
        }
        for (name, value) in outputs {
            let shared = || Error::internal(format!("`{name}` is shared, and would be written"));
            args = args.write(name, Rc::get_mut(&mut value.memory).ok_or_else(shared)?)?;
        }
        on.launches += 1;
        let failed = |e: Error| Stop::Failed(e.context(&self.case.key));
        primitive.launch(&on.stream, args).map_err(failed)?;
        on.stream.sync().map_err(failed)
    }
}
