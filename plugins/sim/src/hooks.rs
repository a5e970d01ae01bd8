//! What a provider of these devices can do differently.

use crate::Instance;
use ep_core::{DType, Error, Result, Scalar};
use primitives::reference::{Launch, View};

/// What a provider does in its own way. What is not overridden is done as without hooks.
pub trait Hooks: Send + Sync + 'static {
    /// Computes a launch on its stream's thread, when its turn has come, and says what to write. Writes are done in
    /// order; they may lie outside of their operand, and are an error only outside of the device's memory.
    ///
    /// # Errors
    /// Told by the stream's next sync.
    fn compute(&self, call: &mut Call, memory: &DeviceMemory<'_>) -> Result<Vec<Write>> {
        let _ = memory;
        call.reference()
    }

    /// Where an allocation lies: so many bytes behind a multiple of an alignment.
    fn place(&self, bytes: u64, alignment: u64) -> Place {
        let _ = bytes;
        Place { alignment, skew: 0 }
    }

    /// What streams leave out.
    fn shortcuts(&self) -> Shortcuts {
        Shortcuts::default()
    }
}

/// Where an allocation lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// A power of two.
    pub alignment: u64,
    /// Bytes behind a multiple of it.
    pub skew: u64,
}

/// What streams leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortcuts {
    /// A stream is done as soon as nothing is queued, whatever still runs.
    pub query_skips_running: bool,
    /// A stream keeps the result of its latest work, not its first error.
    pub only_the_last_result: bool,
    /// A stream that is destroyed does not do what is still queued.
    pub destroy_drops_work: bool,
}

/// The memory that a launch's device reaches.
pub struct DeviceMemory<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) device: u16,
}

impl DeviceMemory<'_> {
    /// What some bytes hold now.
    ///
    /// # Errors
    /// `InvalidArgument` for what is not allocated, or out of reach.
    pub fn read(&self, address: u64, bytes: u64) -> Result<Vec<u8>> {
        let reaches = |arena| self.instance.reaches(self.device, arena);
        self.instance.memory.claim(address, bytes, reaches)?.read()
    }
}

/// A launch: its values by the names of the op's schema, and its operands.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The op.
    pub op: &'static str,
    /// Tells primitives apart that live at the same time.
    pub primitive: usize,
    /// Where the caller keeps the addresses of its list of buffers, as an address of the process; 0 if the op has no
    /// such list. Only good until the call that launches has returned.
    pub list: u64,
    /// Selectors and the names of their values.
    pub selectors: Vec<(&'static str, &'static str)>,
    /// Dtypes by role.
    pub dtypes: Vec<(&'static str, DType)>,
    /// Attributes.
    pub attrs: Vec<(&'static str, f64)>,
    /// Sizes.
    pub sizes: Vec<(&'static str, i64)>,
    /// Dims and other lists.
    pub lists: Vec<(&'static str, Vec<i64>)>,
    /// Scalars.
    pub scalars: Vec<(&'static str, Scalar)>,
    /// The buffers that were given, in the schema's order.
    pub operands: Vec<Operand>,
}

/// A buffer of a launch.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Its name.
    pub name: &'static str,
    /// The dtype of its elements; `u8` for bytes.
    pub dtype: DType,
    /// Whether `old` is known: it is read, or keeps some of its elements.
    pub reads: bool,
    /// Whether it is written.
    pub writes: bool,
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: usize,
    /// What it held when the launch began.
    pub old: Vec<u8>,
}

/// Bytes to write.
#[derive(Clone, Debug)]
pub struct Write {
    /// Into which operand of the call.
    pub operand: usize,
    /// From which of its bytes on.
    pub at: i64,
    /// What.
    pub bytes: Vec<u8>,
}

impl Call {
    /// What the reference writes. Of an operand whose old content is known, only what changes: what a launch leaves
    /// as it was may belong to another one.
    ///
    /// # Errors
    /// The reference's, for arguments that it refuses.
    pub fn reference(&self) -> Result<Vec<Write>> {
        let mut launch = Launch::new(self.op);
        launch = self.selectors.iter().fold(launch, |l, (name, value)| l.selector(name, value));
        launch = self.dtypes.iter().fold(launch, |l, (name, dtype)| l.dtype(name, *dtype));
        launch = self.attrs.iter().fold(launch, |l, (name, value)| l.attr(name, *value));
        launch = self.sizes.iter().fold(launch, |l, (name, value)| l.size(name, *value));
        launch = self.lists.iter().fold(launch, |l, (name, values)| l.dims(name, values));
        launch = self.scalars.iter().fold(launch, |l, (name, value)| l.scalar(name, *value));
        for operand in self.operands.iter().filter(|operand| operand.reads) {
            launch = launch.read(operand.name, View::new(operand.dtype, &operand.old));
        }
        let written = self.operands.iter().filter(|operand| operand.writes).map(|operand| operand.name);
        let outputs = launch.take(written).run()?;
        let mut writes = Vec::new();
        for (i, operand) in self.operands.iter().enumerate().filter(|(_, operand)| operand.writes) {
            let new = &outputs.get(operand.name)?.bytes;
            if new.len() != operand.size {
                return Err(Error::internal(format!(
                    "{} bytes for the {} of `{}`",
                    new.len(),
                    operand.size,
                    operand.name
                )));
            }
            if operand.reads {
                changes(i, &operand.old, new, &mut writes);
            } else if !new.is_empty() {
                writes.push(Write { operand: i, at: 0, bytes: new.clone() });
            }
        }
        Ok(writes)
    }
}

/// A write for each run of bytes that differ.
fn changes(operand: usize, old: &[u8], new: &[u8], writes: &mut Vec<Write>) {
    let mut at = 0;
    while let Some(begin) = (at..new.len()).find(|i| old[*i] != new[*i]) {
        let end = (begin..new.len()).find(|i| old[*i] == new[*i]).unwrap_or(new.len());
        writes.push(Write { operand, at: begin as i64, bytes: new[begin..end].to_vec() });
        at = end;
    }
}
