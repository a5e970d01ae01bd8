//! A launch as data: made without a device, told in full, and run on any.

use super::compare::Within;
use crate::operands::settled;
use ep_core::{DType, Error, Result, Scalar};
use ep_registry::{Buffer, Device, DynPrimitive, Request, Runtime, Stream};
use std::fmt;

/// An operand, with memory before it and behind it.
#[derive(Debug, Clone)]
pub struct Operand {
    /// Its name in the schema; all of a list have the same one.
    pub name: &'static str,
    /// Of its elements.
    pub dtype: DType,
    /// What its buffer holds before the launch.
    pub bytes: Vec<u8>,
    /// Where in the buffer it begins.
    pub skip: usize,
    /// How many of the bytes from there on are its own.
    pub size: usize,
}

/// What a launch has, by the names of the op's schema.
#[derive(Debug, Default)]
pub struct Launch {
    /// The op.
    pub op: &'static str,
    selectors: Vec<(&'static str, &'static str)>,
    dtypes: Vec<(&'static str, DType)>,
    attrs: Vec<(&'static str, f64)>,
    sizes: Vec<(&'static str, i64)>,
    dims: Vec<(&'static str, Vec<i64>)>,
    scalars: Vec<(&'static str, Scalar)>,
    sources: Vec<Operand>,
    /// The sources are one list, which may be empty.
    list: Option<&'static str>,
    /// What is written, with what its elements may be off by; `None`: no bit.
    pub destinations: Vec<(Operand, Option<Within>)>,
}

/// What a launch came to: of each destination all bytes of its buffer, or the device's error.
pub type Outcome = Result<Vec<Vec<u8>>>;

impl Launch {
    pub fn new(op: &'static str) -> Launch {
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

    pub fn size(mut self, name: &'static str, value: i64) -> Launch {
        self.sizes.push((name, value));
        self
    }

    pub fn dims(mut self, name: &'static str, dims: &[i64]) -> Launch {
        self.dims.push((name, dims.to_vec()));
        self
    }

    pub fn scalar(mut self, name: &'static str, value: Scalar) -> Launch {
        self.scalars.push((name, value));
        self
    }

    pub fn source(mut self, source: Operand) -> Launch {
        self.sources.push(source);
        self
    }

    /// All sources of an op that takes any number of them.
    pub fn list(mut self, name: &'static str, sources: Vec<Operand>) -> Launch {
        (self.list, self.sources) = (Some(name), sources);
        self
    }

    pub fn destination(mut self, destination: Operand) -> Launch {
        self.destinations.push((destination, None));
        self
    }

    pub fn destination_within(mut self, destination: Operand, within: Within) -> Launch {
        self.destinations.push((destination, Some(within)));
        self
    }

    fn operands(&self) -> impl Iterator<Item = &Operand> {
        self.sources.iter().chain(self.destinations.iter().map(|(operand, _)| operand))
    }

    fn request(&self, runtime: &Runtime) -> Result<Request> {
        let mut request = runtime.request(self.op)?;
        for (name, value) in &self.selectors {
            request = request.selector(name, value)?;
        }
        for (role, dtype) in &self.dtypes {
            request = request.dtype(role, &dtype.to_string())?;
        }
        for (name, value) in &self.attrs {
            request = request.attr(name, *value)?;
        }
        Ok(request)
    }

    /// Runs it on a device, on buffers of its own.
    ///
    /// # Errors
    /// Where it is no launch of the op, or its buffers are too small for it. What the device says of it is an outcome.
    pub fn run(&self, runtime: &Runtime, device: &Device, stream: &Stream) -> Result<Outcome> {
        let primitive = match runtime.primitive_dyn(device, &self.request(runtime)?) {
            Ok(primitive) => primitive,
            Err(e) => return Ok(Err(e)),
        };
        let upload = |operand: &Operand| device.upload(&operand.bytes);
        let uploaded = self.operands().map(upload).collect::<Result<Vec<Buffer>>>();
        let memory = match uploaded {
            Ok(memory) => memory,
            Err(e) => return Ok(Err(e)),
        };
        let address = |(buffer, operand): (&Buffer, &Operand)| buffer.address() + operand.skip as u64;
        let addresses: Vec<u64> = memory.iter().zip(self.operands()).map(address).collect();
        let (read, written) = addresses.split_at(self.sources.len());
        let mut args = primitive.args();
        for (name, value) in &self.sizes {
            args = args.size(name, *value)?;
        }
        for (name, dims) in &self.dims {
            args = args.dims(name, dims)?;
        }
        for (name, value) in &self.scalars {
            args = args.scalar(name, *value)?;
        }
        if let Some(name) = self.list {
            args = args.addresses(name, read)?;
        } else {
            for (source, address) in self.sources.iter().zip(read) {
                args = args.address(source.name, *address)?;
            }
        }
        for ((destination, _), address) in self.destinations.iter().zip(written) {
            args = args.address(destination.name, *address)?;
        }
        // The device has to refuse by itself what the schema refuses, and to touch nothing then.
        if let Ok(uses) = primitive.uses(&args) {
            let uses: Vec<u64> = uses.iter().map(|used| if used.present { used.bytes } else { 0 }).collect();
            self.fits(&primitive, &uses)?;
        }
        // The buffers are freed here, so it is waited for after an error too.
        let done = settled(stream, || {
            // SAFETY: each operand has at least the bytes that the schema says the arguments use, in a buffer that nobody
            // else uses, and arguments that the schema refuses are refused before memory is touched; buffers, dims and
            // lists live until `settled` has waited.
            unsafe { primitive.launch_raw(stream, &args) }
        });
        let (_, results) = memory.split_at(self.sources.len());
        Ok(done.and_then(|()| results.iter().map(Buffer::download::<u8>).collect()))
    }

    /// An error where an operand has fewer bytes than are used: what is made wrongly here must not look like a fault of a
    /// device.
    fn fits(&self, primitive: &DynPrimitive, uses: &[u64]) -> Result<()> {
        let schema = &primitive.schema().operands;
        let last = schema.len() - 1;
        for (i, used) in uses.iter().enumerate() {
            // A list is the last operand, and its buffers follow each other.
            let (name, at) = (&schema[i.min(last)].name, i.saturating_sub(last));
            let given = self.operands().filter(|operand| operand.name == *name).nth(at);
            let optional = schema[i.min(last)].optional;
            match given {
                Some(operand) if operand.size as u64 >= *used => {}
                None if optional || *used == 0 => {}
                _ => {
                    let has = given.map_or(0, |operand| operand.size);
                    return Err(Error::internal(format!(
                        "`{name}` has {has} bytes, and uses {used}: {self}"
                    )));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op)?;
        self.selectors.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))?;
        self.dtypes.iter().try_for_each(|(role, dtype)| write!(f, " {role}={dtype}"))?;
        self.attrs.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))?;
        self.sizes.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))?;
        self.dims.iter().try_for_each(|(name, dims)| write!(f, " {name}={dims:?}"))?;
        self.scalars.iter().try_for_each(|(name, value)| write!(f, " {name}={value:?}"))?;
        if let Some(name) = self.list {
            write!(f, " {} {name}", self.sources.len())?;
        }
        write!(f, ", with")?;
        self.operands().try_for_each(|operand| write!(f, " {}+{}", operand.name, operand.skip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Alone, Setup};

    /// An addition of two sources, and what is asked of `count` elements where buffers have 4.
    fn add(count: i64) -> Launch {
        let operand = |name| Operand { name, dtype: DType::I32, bytes: vec![0; 20], skip: 4, size: 16 };
        let sources = vec![operand("srcs"), operand("srcs")];
        let launch = Launch::new("add").dtype("data", DType::I32).size("count", count).list("srcs", sources);
        launch.destination(operand("dst"))
    }

    #[test]
    fn buffers_that_are_too_small_are_no_refusal_of_the_device() {
        let alone = Alone::new(Setup::default());
        {
            let runtime = alone.runtime(&[]);
            let device = runtime.device("cuda:0").unwrap();
            let stream = device.stream().unwrap();
            let run = |launch: &Launch| launch.run(&runtime, device, &stream);
            // The fake's kernels compute nothing.
            assert_eq!(run(&add(4)).unwrap(), Ok(vec![vec![0; 20]]));
            let before = alone.calls("cuLaunchKernelEx") + alone.calls("cuLaunchKernel");
            let small = run(&add(5)).unwrap_err();
            let wanted =
                "`dst` has 16 bytes, and uses 20: add data=i32 count=5 2 srcs, with srcs+4 srcs+4 dst+4";
            assert_eq!(small.message(), wanted);
            let mut short = add(4);
            short.sources[1].size = 12;
            let short = run(&short).unwrap_err();
            assert!(short.message().starts_with("`srcs` has 12 bytes, and uses 16"), "{short}");
            let mut none = add(4);
            none.destinations.clear();
            assert!(run(&none).unwrap_err().message().starts_with("`dst` has 0 bytes"));
            assert_eq!(alone.calls("cuLaunchKernelEx") + alone.calls("cuLaunchKernel"), before);
            // A mistake in a name is none either.
            assert!(run(&add(4).size("length", 1)).unwrap_err().message().contains("no size `length`"));
            // What the schema refuses is for the device to refuse.
            assert!(run(&add(-1)).unwrap().is_err());
            assert!(!alone.leaves_work());
        }
        assert_eq!(alone.fake.leaks(), [""; 0]);
    }
}
