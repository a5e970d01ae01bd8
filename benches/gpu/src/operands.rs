//! Operands of a row on the device, and its launches on them.

use crate::row::{Content, Row, Tensor};
use ep_core::primitive::{Memcpy, MemcpyArgs, MemcpyDesc, MemcpyKind};
use ep_core::{DType, Error, Result, Scalar};
use ep_registry::{Buffer, Device, DynArgs, DynPrimitive, Primitive, Runtime, Stream};
use half::{bf16, f16};

/// Bytes over which launches rotate, so that nothing is left in the L2 cache when its turn comes again.
const ROTATION: u64 = 512 << 20;
/// Launches of a rotation at most.
const MOST_SETS: u64 = 16;
/// Elements that are made here; longer operands repeat them.
const FRESH: usize = 1 << 22;

/// How many launches a rotation has when each moves so many bytes.
pub fn sets(bytes: u64) -> usize {
    ROTATION.div_ceil(bytes.max(1)).clamp(1, MOST_SETS) as usize
}

/// Queues work, and waits for it also where only part of it could be queued: what it uses may be dropped then.
///
/// # Errors
/// Those of `queue`, else those of the work.
pub fn settled<T>(stream: &Stream, queue: impl FnOnce() -> Result<T>) -> Result<T> {
    let queued = queue();
    let done = stream.sync();
    let value = queued?;
    done.map(|()| value)
}

/// Copies within a device.
pub struct Copier {
    memcpy: Primitive<Memcpy>,
}

impl Copier {
    /// Of a device.
    ///
    /// # Errors
    /// Where it has no such copy.
    pub fn new(runtime: &Runtime, device: &Device) -> Result<Copier> {
        Ok(Copier { memcpy: runtime.primitive(device, MemcpyDesc::new(MemcpyKind::DEVICE_TO_DEVICE))? })
    }

    /// Queues a copy.
    ///
    /// # Safety
    /// Both ranges are valid and apart, and used by nobody else in conflict, until the work is done.
    ///
    /// # Errors
    /// The provider's.
    pub unsafe fn queue(&self, stream: &Stream, src: u64, dst: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.memcpy.launch_raw(stream, &MemcpyArgs::new(bytes as i64, src, dst)) }
    }
}

/// A generator of numbers for content (Marsaglia's xorshift).
pub struct Random(u64);

impl Random {
    /// The same numbers each time.
    pub fn new() -> Random {
        Random(0x9e37_79b9_7f4a_7c15)
    }

    /// Numbers of one of many turns, which any other turn or seed has others of (SplitMix64's output function).
    pub fn of_turn(seed: u64, turn: u64) -> Random {
        let x = seed.wrapping_mul(0xd134_2543_de82_ef95) ^ turn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // Of 0 come zeros only.
        Random((x ^ (x >> 31)).max(1))
    }

    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Appends a number as an element of a dtype.
pub fn encode(dtype: DType, x: f64, bytes: &mut Vec<u8>) {
    match dtype {
        DType::F16 => bytes.extend(f16::from_f64(x).to_le_bytes()),
        DType::BF16 => bytes.extend(bf16::from_f64(x).to_le_bytes()),
        DType::F32 => bytes.extend((x as f32).to_le_bytes()),
        DType::F64 => bytes.extend(x.to_le_bytes()),
        _ => bytes.extend(&(x as i64).to_le_bytes()[..dtype.bytes_for_bounds() as usize]),
    }
}

/// Elements of an operand.
fn content(tensor: &Tensor, count: usize) -> Result<Vec<u8>> {
    let dtype = tensor.dtype()?;
    let mut random = Random::new();
    let mut number = || match &tensor.content {
        Content::Below(limit) => (random.next() % limit) as f64,
        Content::Named(name) if name == "unit" => random.unit(),
        // The sum of twelve has the variance 1.
        Content::Named(_) if DType::FLOAT.contains(&dtype) => {
            (0..12).map(|_| random.unit()).sum::<f64>() - 6.0
        }
        Content::Named(_) => (random.next() % 200) as f64 - 100.0,
    };
    let size = dtype.bytes_for_bounds() as usize;
    let mut bytes = Vec::with_capacity(count * size);
    for _ in 0..count {
        encode(dtype, number(), &mut bytes);
    }
    Ok(bytes)
}

/// An operand in memory of its own.
struct Operand {
    buffer: Buffer,
    address: u64,
}

impl Operand {
    fn new(
        device: &Device,
        stream: &Stream,
        copier: &Copier,
        tensor: &Tensor,
        shift: usize,
    ) -> Result<Operand> {
        let size = tensor.dtype()?.bytes_for_bounds();
        let bytes = tensor.count() as u64 * size;
        let skipped = shift as u64 * size;
        let buffer = device.alloc(DType::U8, (bytes + skipped) as usize)?;
        let address = buffer.address() + skipped;
        let fresh = content(tensor, tensor.count().min(FRESH))?;
        let first = device.upload::<u8>(&fresh)?;
        let mut done = fresh.len() as u64;
        // SAFETY: inside the buffers, which are apart and live until `settled` has waited.
        settled(stream, || unsafe {
            copier.queue(stream, first.address(), address, done)?;
            while done < bytes {
                let next = done.min(bytes - done);
                copier.queue(stream, address, address + done, next)?;
                done += next;
            }
            Ok(())
        })?;
        Ok(Operand { buffer, address })
    }
}

/// A row that is ready: as many sets of operands as a rotation has.
pub struct Launches<'a> {
    primitive: DynPrimitive,
    args: Vec<DynArgs<'a>>,
    memory: Vec<Buffer>,
}

impl<'a> Launches<'a> {
    /// Finds the primitive and makes operands.
    ///
    /// # Errors
    /// Where the device lacks the primitive or the memory.
    pub fn new(
        runtime: &Runtime,
        device: &Device,
        stream: &Stream,
        copier: &Copier,
        row: &'a Row,
        lists: &'a mut Vec<Vec<u64>>,
    ) -> Result<Launches<'a>> {
        let primitive = primitive(runtime, device, row)?;
        let mut memory = Vec::new();
        let mut make = |tensor: &Tensor| -> Result<u64> {
            let operand = Operand::new(device, stream, copier, tensor, row.shift)?;
            memory.push(operand.buffer);
            Ok(operand.address)
        };
        let shared = row.inputs.iter().map(|t| if t.shared { make(t).map(Some) } else { Ok(None) });
        let shared = shared.collect::<Result<Vec<_>>>()?;
        let count = sets(row.bytes);
        let mut outputs = Vec::new();
        for _ in 0..count {
            let inputs = row.inputs.iter().zip(&shared).map(|(t, s)| s.map_or_else(|| make(t), Ok));
            lists.push(inputs.collect::<Result<Vec<_>>>()?);
            outputs.push(make(&row.output)?);
        }
        let mut args = Vec::new();
        for (inputs, output) in lists.iter().zip(outputs) {
            args.push(arguments(&primitive, row, inputs)?.address(&row.output.name, output)?);
        }
        Ok(Launches { primitive, args, memory })
    }

    /// Launches of a rotation.
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// Who computes it, and how.
    pub fn by(&self) -> String {
        format!("{}/{}: {}", self.primitive.instance(), self.primitive.factory(), self.primitive.describe())
    }

    /// Queues one launch on each set of operands.
    ///
    /// # Errors
    /// The provider's.
    pub fn queue(&self, stream: &Stream) -> Result<()> {
        for args in &self.args {
            // SAFETY: the addresses are those of `memory`, whose sizes are the row's; nothing else uses it.
            unsafe { self.primitive.launch_raw(stream, args) }?;
        }
        Ok(())
    }
}

impl Drop for Launches<'_> {
    fn drop(&mut self) {
        // Arguments hold addresses only: whoever times them has waited for the work by now.
        self.memory.clear();
    }
}

/// The primitive of a row.
///
/// # Errors
/// Where the device lacks it.
pub fn primitive(runtime: &Runtime, device: &Device, row: &Row) -> Result<DynPrimitive> {
    let mut request = runtime.request(&row.primitive)?;
    for (name, value) in &row.selectors {
        request = request.selector(name, value)?;
    }
    for (role, dtype) in &row.roles {
        request = request.dtype(role, dtype)?;
    }
    for (name, value) in &row.attrs {
        request = request.attr(name, *value)?;
    }
    for (name, value) in &row.limits {
        request = request.limit(name, *value)?;
    }
    runtime.primitive_dyn(device, &request)
}

/// A launch of it, with the addresses of its inputs; that of the output is left out.
///
/// # Errors
/// Where the primitive has no such arguments.
pub fn arguments<'a>(primitive: &DynPrimitive, row: &'a Row, inputs: &'a [u64]) -> Result<DynArgs<'a>> {
    let mut args = primitive.args();
    for (name, value) in &row.sizes {
        args = args.size(name, *value)?;
    }
    for (name, dims) in &row.dims {
        args = args.dims(name, dims)?;
    }
    for (name, value) in &row.scalars {
        args = args.scalar(name, Scalar::F64(*value))?;
    }
    if let [first, second, ..] = &row.inputs[..]
        && first.name == second.name
    {
        return args.addresses(&first.name, inputs);
    }
    if row.inputs.len() != inputs.len() {
        return Err(Error::internal("an input without an address"));
    }
    for (tensor, address) in row.inputs.iter().zip(inputs) {
        args = args.address(&tensor.name, *address)?;
    }
    Ok(args)
}
