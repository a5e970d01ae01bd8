//! Launching rows through the public interface of the runtime.

use crate::content;
use crate::row::Row;
use ep_core::{DType, Error, Result};
use ep_registry::{Buffer, Device, DynArgs, DynPrimitive, Runtime, Stream};

/// The operands of a row in the device's own memory.
#[derive(Debug)]
pub struct Operands {
    /// What is read, in the row's order.
    pub inputs: Vec<Buffer>,
    /// The addresses of `inputs`, for ops that take a list.
    addresses: Vec<u64>,
    /// What is written.
    pub output: Buffer,
}

impl Operands {
    /// Allocates and fills the operands; the output is zeros.
    ///
    /// # Errors
    /// `OutOfMemory`, or the provider's.
    pub fn new(device: &Device, row: &Row) -> Result<Operands> {
        let made = |bytes: Vec<u8>| device.upload::<u8>(&bytes);
        let mut inputs = Vec::new();
        for (i, x) in row.inputs.iter().enumerate() {
            let count = x.dims.iter().product::<i64>() as usize;
            inputs.push(made(content::bytes(x.dtype, x.content, count, i as u64 + 1))?);
        }
        let addresses = inputs.iter().map(Buffer::address).collect();
        Ok(Operands { inputs, addresses, output: made(vec![0; row.output.bytes() as usize])? })
    }

    /// Forgets what the output held.
    ///
    /// # Errors
    /// The provider's.
    pub fn poison(&mut self, byte: u8) -> Result<()> {
        let bytes = vec![byte; self.output.len()];
        self.output.upload(&bytes)
    }
}

/// Whether a row cannot run here, or failed.
pub enum Refusal {
    /// The device, or this build, does not have it. Why.
    Unsupported(String),
    /// It should have worked.
    Failed(Error),
}

/// A row that is ready to be launched on its operands.
pub struct Launcher<'a> {
    primitive: DynPrimitive,
    args: DynArgs<'a>,
    stream: Stream,
}

impl<'a> Launcher<'a> {
    /// Finds the primitive and builds the arguments; the first launch tells whether the sizes are accepted.
    ///
    /// # Errors
    /// When the device lacks it, or a launch fails.
    pub fn new(
        runtime: &Runtime,
        device: &Device,
        row: &'a Row,
        operands: &'a Operands,
    ) -> std::result::Result<Launcher<'a>, Refusal> {
        let unsupported = |e: Error| Refusal::Unsupported(e.to_string());
        let primitive = primitive(runtime, device, row).map_err(unsupported)?;
        let args = arguments(&primitive, row, operands).map_err(unsupported)?;
        let stream = device.stream().map_err(Refusal::Failed)?;
        let launcher = Launcher { primitive, args, stream };
        launcher.run(1).map_err(Refusal::Failed)?;
        Ok(launcher)
    }

    /// Whether the device has the primitive, before operands are made for it.
    ///
    /// # Errors
    /// When it has not.
    pub fn supported(runtime: &Runtime, device: &Device, row: &Row) -> std::result::Result<(), Refusal> {
        let checked = primitive(runtime, device, row).and_then(|p| sizes(&p, row).map(drop));
        checked.map_err(|e| Refusal::Unsupported(e.to_string()))
    }

    /// Launches so often, and waits.
    ///
    /// # Errors
    /// The provider's.
    #[inline]
    pub fn run(&self, times: usize) -> Result<()> {
        for _ in 0..times {
            // SAFETY: the addresses are those of `operands`, which `'a` keeps alive and whose sizes are the row's;
            // they are used on this stream only, and the call returns when the work is done.
            unsafe { self.primitive.launch_raw(&self.stream, &self.args) }?;
        }
        self.stream.sync()
    }

    /// Who computes it: provider and factory.
    pub fn by(&self) -> String {
        format!("{}/{}", self.primitive.instance(), self.primitive.factory())
    }
}

fn primitive(runtime: &Runtime, device: &Device, row: &Row) -> Result<DynPrimitive> {
    let mut request = runtime.request(row.primitive)?;
    for (name, value) in &row.selectors {
        request = request.selector(name, value)?;
    }
    for (role, dtype) in &row.roles {
        request = request.dtype(role, &dtype.to_string())?;
    }
    for (name, value) in &row.attrs {
        request = request.attr(name, *value)?;
    }
    runtime.primitive_dyn(device, &request)
}

/// The arguments without addresses.
fn sizes<'a>(primitive: &DynPrimitive, row: &'a Row) -> Result<DynArgs<'a>> {
    let mut args = primitive.args();
    for (name, value) in &row.sizes {
        args = args.size(name, *value)?;
    }
    for (name, dims) in &row.dims {
        args = args.dims(name, dims)?;
    }
    for (name, value) in &row.scalars {
        args = args.scalar(name, *value)?;
    }
    Ok(args)
}

fn arguments<'a>(primitive: &DynPrimitive, row: &'a Row, operands: &'a Operands) -> Result<DynArgs<'a>> {
    let mut args = sizes(primitive, row)?.address(row.output.name, operands.output.address())?;
    if let [first, second, ..] = &*row.inputs
        && first.name == second.name
    {
        return args.addresses(first.name, &operands.addresses);
    }
    for (x, buffer) in row.inputs.iter().zip(&operands.inputs) {
        args = args.address(x.name, buffer.address())?;
    }
    Ok(args)
}

/// Whether two results of a row agree, roughly: the first element that differs by more than the dtype's precision
/// explains. It is there to see that a peer computes the same thing, not how well.
///
/// # Errors
/// The element's position and both values.
pub fn agree(dtype: DType, a: &[f64], b: &[f64], scale: f64) -> std::result::Result<(), String> {
    let relative = match dtype {
        DType::F16 => 5e-3,
        DType::BF16 => 3e-2,
        DType::F32 | DType::COMPLEX64 => 1e-4,
        DType::F64 | DType::COMPLEX128 => 1e-9,
        _ => 0.0,
    };
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        let close = (x - y).abs() <= relative * x.abs().max(y.abs()).max(scale);
        if !(close || x == y || (x.is_nan() && y.is_nan())) {
            return Err(format!("sample {i} is {x} here and {y} there"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::number;
    use crate::table::table;

    fn values(dtype: DType, buffer: &Buffer) -> Vec<f64> {
        let bytes = buffer.download::<u8>().unwrap();
        bytes.chunks(dtype.bytes_for_bounds() as usize).map(|b| number(dtype, b)).collect()
    }

    /// Rows of a moderate size launch, or are unsupported; and what is launched is what the row says.
    #[test]
    fn rows_launch_through_the_public_interface() {
        let runtime =
            Runtime::builder().linked::<ep_cpu::provider::CpuProvider>("cpu").threads(2).build().unwrap();
        let device = runtime.device("cpu").unwrap();
        let mut launched = 0;
        for row in table().iter().filter(|r| r.footprint() < 1 << 20) {
            let mut operands = Operands::new(device, row).unwrap();
            if !row.output.accumulates {
                operands.poison(0x5b).unwrap();
            }
            match Launcher::new(&runtime, device, row, &operands) {
                Ok(_) => launched += 1,
                Err(Refusal::Unsupported(_)) => continue,
                Err(Refusal::Failed(e)) => panic!("{}: {e}", row.id()),
            }
            let got = values(row.output.dtype, &operands.output);
            let x = |i: usize| values(row.inputs[i].dtype, &operands.inputs[i]);
            let want: Vec<f64> = match row.peer.name {
                "relu" => x(0).iter().map(|v| v.max(0.0)).collect(),
                "copy" => x(0),
                "add" => x(0).iter().zip(x(1)).map(|(a, b)| a + b).collect(),
                "fill" => vec![1.5; got.len()],
                _ => continue,
            };
            agree(row.output.dtype, &want, &got, 1.0).unwrap_or_else(|e| panic!("{}: {e}", row.id()));
        }
        assert!(launched > 20, "only {launched} rows were launched");
    }

    #[test]
    fn lists_of_buffers_are_passed_as_addresses() {
        let runtime = Runtime::builder().linked::<ep_cpu::provider::CpuProvider>("cpu").build().unwrap();
        let device = runtime.device("cpu").unwrap();
        let row = table().into_iter().find(|r| r.primitive == "add" && r.footprint() < 32 << 20).unwrap();
        let operands = Operands::new(device, &row).unwrap();
        match Launcher::new(&runtime, device, &row, &operands) {
            Ok(_) => {}
            Err(Refusal::Unsupported(_)) => return,
            Err(Refusal::Failed(e)) => panic!("{}: {e}", row.id()),
        }
        let [a, b, c] = [0, 1, 2].map(|i| values(row.dtype, &operands.inputs[i]));
        let sums: Vec<f64> = (0..a.len()).map(|i| a[i] + b[i] + c[i]).collect();
        agree(row.dtype, &sums, &values(row.dtype, &operands.output), 1.0).unwrap();
    }

    #[test]
    fn agreement_is_as_strict_as_the_dtype() {
        let nan = f64::NAN;
        assert!(agree(DType::F32, &[1.0, nan, f64::INFINITY], &[1.000_01, nan, f64::INFINITY], 1.0).is_ok());
        assert!(agree(DType::F32, &[1.0], &[1.01], 1.0).is_err());
        assert!(agree(DType::BF16, &[1.0], &[1.01], 1.0).is_ok());
        assert!(agree(DType::I32, &[7.0], &[8.0], 1.0).is_err());
        assert!(agree(DType::F32, &[nan], &[1.0], 1.0).unwrap_err().contains("sample 0"));
    }
}
