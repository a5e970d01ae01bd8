//! Operands that many launches read, in the form that a primitive reads fastest.

use crate::buffer::{Buffer, NoMemory, Read, View};
use crate::device::Device;
use crate::primitive::{Core, Operands, Primitive, Room};
use crate::stream::Stream;
use ep_core::handle::PackedHandle;
use ep_core::op::{Call, Op, OperandUse, Slot};
use ep_core::{DType, Error, Result};
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// An operand, such as the weights of a layer, in the form that its primitive reads fastest: made once by
/// [`Primitive::prepack`], and given to launches of that primitive in place of the buffer. It keeps a copy of its own, so that
/// the buffer may go, and may be used by several streams at once.
pub struct Packed {
    // Before the primitive that made it, which `core` keeps.
    handle: PackedHandle,
    core: Arc<Core>,
    memory: Buffer,
    operand: usize,
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Core { schema, instance, device, .. } = &*self.core;
        let name = &schema.operands[self.operand].name;
        write!(
            f,
            "Packed({name} of {} by {instance}, {} bytes on {})",
            schema.name,
            self.bytes(),
            device.name()
        )
    }
}

impl Packed {
    /// Bytes that it takes on its device.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.core.device
    }

    /// The operand, by its name.
    pub fn operand(&self) -> &str {
        &self.core.schema.operands[self.operand].name
    }

    /// Waits until it has been packed, and for all launches with it.
    ///
    /// # Errors
    /// The error of that work.
    pub fn wait(&self) -> Result<()> {
        self.memory.wait()
    }

    pub(crate) fn handle(&self) -> &PackedHandle {
        &self.handle
    }

    pub(crate) fn memory(&self) -> &Buffer {
        &self.memory
    }

    /// Whether it may stand for operand `i` of a launch of a primitive; if not, why.
    pub(crate) fn check(&self, core: &Core, i: usize) -> std::result::Result<(), String> {
        if !std::ptr::eq(&*self.core, core) {
            return Err(format!(
                "was packed by another primitive, as {self:?}; launch it with the one that packed it"
            ));
        }
        if i != self.operand {
            return Err(format!("is given what `{}` was packed into", self.operand()));
        }
        Ok(())
    }
}

/// What an operand that launches write is given where nothing is launched: [`Primitive::prepack`].
#[derive(Clone, Copy, Debug)]
pub struct Unwritten(());

impl From<NoMemory> for Unwritten {
    #[inline]
    fn from(_: NoMemory) -> Self {
        Unwritten(())
    }
}

impl From<NoMemory> for Option<Unwritten> {
    #[inline]
    fn from(_: NoMemory) -> Self {
        None
    }
}

/// The one operand that is given memory, and this.
pub(crate) fn one_given<'a, W>(
    core: &Core,
    slots: impl Iterator<Item = (usize, Slot<Read<'a>, W>)>,
) -> Result<(usize, View<'a>)> {
    let mut given = None;
    for (i, slot) in slots {
        match slot {
            Slot::Read(Read::View(view)) if given.is_none() => given = Some((i, view)),
            Slot::Read(Read::None) | Slot::Write(_) | Slot::None => {}
            Slot::Read(_) => {
                given = None;
                break;
            }
        }
    }
    given.ok_or_else(|| {
        Error::invalid(format!(
            "{}: packing takes one operand at a time; give that one a buffer, and NoMemory to the others",
            core.schema.name
        ))
    })
}

impl Core {
    /// Packs an operand.
    ///
    /// # Safety
    /// `args` is the op's argument struct with the operand's address, its dims are readable, and `uses` is what it uses.
    pub(crate) unsafe fn prepack(
        self: &Arc<Core>,
        stream: &Stream,
        uses: &[OperandUse],
        operand: usize,
        view: View<'_>,
        args: *const c_void,
    ) -> Result<Option<Packed>> {
        if *stream.device() != self.device {
            return Err(self.wrong_stream(stream));
        }
        if stream.core.is_recording() {
            return Err(Error::invalid(format!(
                "{}: packing is not recorded into a graph; pack before the recording",
                self.schema.name
            )));
        }
        // Whose pointer to a list may be anything here.
        if self.schema.list_length().is_some() || uses[operand].bytes == 0 {
            return Ok(None);
        }
        // The others are not looked at, and behind them comes what is packed.
        let mut own: Vec<_> = uses.iter().map(|u| OperandUse { bytes: 0, ..*u }).collect();
        own[operand] = uses[operand];
        own.push(OperandUse::new(0, None, 0, false, true, true));
        let mut room = Room::default();
        let mut operands = Operands::new(self, &own, stream, &mut room);
        operands.add(operand, Slot::Read(Read::View(view)))?;
        // SAFETY: as the caller promises.
        let bytes = unsafe { self.handle.packed_size(operand, args) }?;
        if bytes == 0 || self.member().reaches_primary() != (true, true) {
            return Ok(None);
        }
        let len = usize::try_from(bytes)
            .map_err(|_| Error::internal(format!("{}: {bytes} packed bytes", self.schema.name)))?;
        let mut memory = self.device.alloc(DType::U8, len)?;
        let address = memory.address();
        let packed = Cell::new(None);
        operands.add_fresh(&mut memory);
        operands.run_as(|lane| {
            // SAFETY: the operand was checked and its buffer is kept alive, as is the fresh memory, until the work is done;
            // the lane is of the primitive's provider and device, and locked. `Packed` drops the handle before the primitive.
            packed.set(Some(unsafe { self.handle.pack(lane, operand, args, address) }?));
            Ok(())
        })?;
        let handle = packed.take().ok_or_else(|| Error::internal("nothing was packed"))?;
        memory.mark_written(0, bytes);
        Ok(Some(Packed { handle, core: self.clone(), memory, operand }))
    }
}

impl<O: Op> Primitive<O> {
    /// Packs an operand that many launches read, for launches of this primitive: the one that `call` gives a buffer for, in
    /// the sizes of `call`; the others get [`NoMemory`]. What only the other operands depend on may differ
    /// in the launches. `None` where nothing is gained, and launches should read the buffer as it is.
    ///
    /// ```no_run
    /// use ep_core::primitive::{Matmul, MatmulCall, MatmulDesc, Transpose};
    /// use ep_core::{DType, Scalar};
    /// use ep_registry::{NoMemory, Read, Runtime};
    ///
    /// # fn main() -> ep_core::Result<()> {
    /// let runtime = Runtime::from_config("ep.toml")?;
    /// let device = runtime.device("cpu")?;
    /// let stream = device.stream()?;
    /// let (m, n, k) = (16, 4096, 4096);
    /// let (alpha, beta) = (Scalar::None, Scalar::None);
    /// let desc = MatmulDesc::new(Transpose::NONE, Transpose::NONE, DType::BF16);
    /// let matmul = runtime.primitive::<Matmul>(device, desc)?;
    /// let weights = device.upload(&vec![0x3f80_u16; 4096 * 4096])?.reinterpret(DType::BF16)?;
    /// let (a, b, c) = (NoMemory, &weights, NoMemory);
    /// let packed = matmul.prepack(&stream, MatmulCall { m, n, k, alpha, beta, a, b, c })?;
    ///
    /// let x = device.upload(&vec![0x3f80_u16; 16 * 4096])?.reinterpret(DType::BF16)?;
    /// let mut y = device.alloc(DType::BF16, 16 * 4096)?;
    /// let b = packed.as_ref().map_or(Read::from(&weights), Read::from);
    /// matmul.launch(&stream, MatmulCall { m, n, k, alpha, beta, a: &x, b, c: &mut y })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for none or several operands with memory, a stream that records a graph, and what
    /// [`Primitive::launch`] refuses about the operand; `OutOfMemory`; the provider's.
    pub fn prepack<'a, C>(&self, stream: &Stream, call: C) -> Result<Option<Packed>>
    where
        C: Call<Read<'a>, Unwritten, Op = O>,
    {
        let (mut args, slots) = call.split();
        let (i, view) = one_given(&self.core, slots.into_iter().enumerate())?;
        // SAFETY: the dims in `args` point into slices that the call borrows for longer than this function.
        let uses = unsafe {
            O::check(self.desc(), &args)?;
            O::uses(self.desc(), &args)
        };
        let mut addresses = vec![0; uses.as_ref().len()];
        addresses[i] = view.address();
        O::bind(&mut args, &addresses);
        // SAFETY: the op's argument struct with the operand's address, and what it uses; `addresses` outlives the call.
        unsafe { self.core.prepack(stream, uses.as_ref(), i, view, std::ptr::from_ref(&args).cast()) }
    }
}
