//! Primitives and launching them, safely and raw.

use crate::buffer::{Buffer, Read, ViewMut};
use crate::device::{Device, Member};
use crate::graph::Access;
use crate::prepack::Packed;
use crate::shared::{Gates, Met};
use crate::stream::{Stream, StreamCore, recording_ended};
use ep_core::handle::{PrimitiveHandle, StreamHandle};
use ep_core::op::{Call, MAX_INLINE_OPERANDS, Op, OperandUse, Slot};
use ep_core::schema::{ArgsFacts, Schema};
use ep_core::{DType, Error, Result};
use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// What a launch costs: the figures that bandwidth and throughput are computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Bytes read and written.
    pub bytes: u64,
    /// Arithmetic operations; 0 where the op has none worth counting.
    pub flops: u64,
}

/// What every kind of primitive handle shares.
pub(crate) struct Core {
    pub(crate) handle: PrimitiveHandle,
    pub(crate) device: Device,
    pub(crate) member: usize,
    pub(crate) inline: bool,
    pub(crate) schema: Arc<Schema>,
    pub(crate) instance: String,
    /// The descriptor that it was made for.
    pub(crate) desc: Box<[u64]>,
    /// The address of the schema of the types that were last found to fit `schema`.
    pub(crate) types: AtomicUsize,
}

impl Core {
    pub(crate) fn member(&self) -> &Member {
        &self.device.members()[self.member]
    }

    #[cold]
    pub(crate) fn wrong_stream(&self, stream: &Stream) -> Error {
        Error::invalid(format!(
            "a primitive of {} launched on a stream of {}; make the stream with that device's stream()",
            self.device.name(),
            stream.device().name()
        ))
    }

    /// Fails where a launch may not be recorded.
    fn check_capturable(&self) -> Result<()> {
        let factory = self.handle.factory();
        if factory.capturable {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "launches of {} by {}/{} cannot be recorded into a graph; launch it between two graphs",
            self.schema.name, self.instance, factory.name
        )))
    }

    pub(crate) fn desc_bytes(&self) -> &[u8] {
        // SAFETY: u64 values are readable as bytes.
        unsafe { std::slice::from_raw_parts(self.desc.as_ptr().cast(), size_of_val(&*self.desc)) }
    }

    /// # Safety
    /// `args` is an argument struct of the op with readable dims.
    pub(crate) unsafe fn cost(&self, args: &[u8]) -> Result<Cost> {
        // SAFETY: as the caller promises.
        let facts = unsafe { ArgsFacts::new(&self.schema, args) };
        Ok(Cost { bytes: self.schema.bytes(self.desc_bytes(), &facts)?, flops: self.schema.flops(&facts)? })
    }

    /// # Safety
    /// As [`PrimitiveHandle::launch`], but for the stream.
    #[inline]
    pub(crate) unsafe fn launch(&self, stream: &Stream, args: *const c_void) -> Result<()> {
        if *stream.device() != self.device {
            return Err(self.wrong_stream(stream));
        }
        // SAFETY: the lane is of this primitive's provider and device, and locked; the rest is the caller's.
        let launch = |lane: &StreamHandle| unsafe { self.handle.launch(lane, args) };
        if stream.core.is_recording() {
            self.check_capturable()?;
            return stream.core.record_on(self.member, None, std::iter::empty(), launch);
        }
        stream.core.on_lane(self.member, launch)
    }
}

/// A primitive of op `O`. Cheap to clone; may be launched on several streams at once.
pub struct Primitive<O> {
    pub(crate) core: Arc<Core>,
    pub(crate) op: PhantomData<fn() -> O>,
}

impl<O> Clone for Primitive<O> {
    fn clone(&self) -> Self {
        Primitive { core: self.core.clone(), op: PhantomData }
    }
}

impl<O: Op> std::fmt::Debug for Primitive<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Primitive({} by {}/{})", O::NAME, self.core.instance, self.factory())
    }
}

impl<O: Op> Primitive<O> {
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

    /// What a launch costs, by the op's schema. The buffers of `call` are not looked at.
    ///
    /// # Errors
    /// `InvalidArgument` for sizes that cannot be launched.
    pub fn cost<'a, C>(&self, call: C) -> Result<Cost>
    where
        C: Call<Read<'a>, ViewMut<'a>, Op = O>,
    {
        let (args, _slots) = call.split();
        // SAFETY: `Growable` structs have no padding; the dims in `args` point into slices that the call borrows
        // for longer than this function.
        unsafe {
            O::check(self.desc(), &args)?;
            let bytes = std::slice::from_raw_parts(std::ptr::from_ref(&args).cast(), size_of::<O::Args>());
            self.core.cost(bytes)
        }
    }

    pub(crate) fn desc(&self) -> &O::Desc {
        debug_assert_eq!(size_of_val(&*self.core.desc), size_of::<O::Desc>());
        // SAFETY: the runtime makes a `Primitive<O>` only with the bytes of an `O::Desc`, at this alignment.
        unsafe { &*self.core.desc.as_ptr().cast() }
    }

    /// Queues a launch with addresses: for frameworks that own their memory and their ordering.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another device, impossible sizes, null or misaligned addresses.
    ///
    /// # Safety
    /// - The memory that the op touches for these arguments is valid until the work is done, and nobody else
    ///   writes what it reads or touches what it writes in that time.
    /// - `workspace` in `args`, where it is not 0, is `workspace_bytes` of memory of the device, and nobody else uses it in
    ///   that time.
    /// - On a stream that records a graph this holds for each launch of the graph.
    /// - Dims pointers in `args` are readable during the call.
    #[inline]
    pub unsafe fn launch_raw(&self, stream: &Stream, args: &O::Args) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.core.launch(stream, std::ptr::from_ref(args).cast()) }
    }

    /// Bytes of workspace that a launch wants, to be passed in the arguments of raw launches.
    ///
    /// # Errors
    /// For arguments that cannot be launched.
    ///
    /// # Safety
    /// Dims pointers in `args` are readable.
    pub unsafe fn workspace_size(&self, args: &O::Args) -> Result<u64> {
        // SAFETY: as the caller promises.
        unsafe { self.core.handle.workspace_size(std::ptr::from_ref(args).cast()) }
    }

    /// Queues a launch. Checks devices, dtypes, sizes, overlap, and that what is read was written; orders it
    /// behind the work that other streams still do on these buffers.
    ///
    /// # Errors
    /// `InvalidArgument` that names the operand and what is wrong with it; else the provider's.
    pub fn launch<'a, C>(&self, stream: &Stream, call: C) -> Result<()>
    where
        C: Call<Read<'a>, ViewMut<'a>, Op = O>,
    {
        let (mut args, slots) = call.split();
        // SAFETY: the dims in `args` point into slices that the call borrows for longer than this function.
        let uses = unsafe {
            O::check(self.desc(), &args)?;
            O::uses(self.desc(), &args)
        };
        let mut room = Room::default();
        let mut operands = Operands::new(&self.core, uses.as_ref(), stream, &mut room);
        for (i, slot) in slots.into_iter().enumerate() {
            operands.add(i, slot)?;
        }
        operands.place_in_place(O::in_place)?;
        operands.check_overlap(O::in_place)?;
        let addresses = operands.take_addresses();
        O::bind(&mut args, addresses);
        // SAFETY: `operands` has checked that every address covers a live buffer's memory of the right device,
        // without forbidden overlap; `addresses` outlives the call, and `run` orders conflicting work and keeps the
        // buffers alive.
        unsafe { operands.run(std::ptr::from_ref(&args).cast()) }
    }
}

/// The memory of one operand.
enum Place<'a> {
    /// Not given, or nothing is accessed.
    None,
    /// That of an output.
    Shared,
    /// A buffer that is read.
    Read(&'a Buffer),
    /// A buffer that is written from this offset on.
    Write(&'a mut Buffer, u64),
    /// An operand that was packed, whose memory nothing else has.
    Packed(&'a Packed),
}

/// Room for what is known of each operand: in place for all but long lists of buffers.
pub(crate) struct Room<'a> {
    places: [Place<'a>; MAX_INLINE_OPERANDS],
    addresses: [u64; MAX_INLINE_OPERANDS],
    more_places: Vec<Place<'a>>,
    more_addresses: Vec<u64>,
}

impl Default for Room<'_> {
    #[inline(always)]
    fn default() -> Self {
        Room {
            places: [const { Place::None }; MAX_INLINE_OPERANDS],
            addresses: [0; MAX_INLINE_OPERANDS],
            more_places: Vec::new(),
            more_addresses: Vec::new(),
        }
    }
}

impl<'a> Room<'a> {
    #[inline(always)]
    fn of(&mut self, operands: usize) -> (&mut [Place<'a>], &mut [u64]) {
        if let (Some(places), Some(addresses)) =
            (self.places.get_mut(..operands), self.addresses.get_mut(..operands))
        {
            return (places, addresses);
        }
        self.more_places.resize_with(operands, || Place::None);
        self.more_addresses.resize(operands, 0);
        (&mut self.more_places, &mut self.more_addresses)
    }
}

/// The operands of a safe launch on their way through the checks.
pub(crate) struct Operands<'a, 'b> {
    core: &'b Core,
    stream: &'b Stream,
    uses: &'b [OperandUse],
    places: &'b mut [Place<'a>],
    addresses: &'b mut [u64],
    /// Operands that have been given a slot.
    given: usize,
    /// The recording of the stream that writes what was not written before.
    within: Cell<Option<u64>>,
    /// The operand that was packed, which the launch is told of.
    packed: Option<&'a Packed>,
}

impl<'a, 'b> Operands<'a, 'b> {
    // These are inlined by force because calls of them are most of what a small launch costs.
    #[inline(always)]
    pub(crate) fn new(
        core: &'b Core,
        uses: &'b [OperandUse],
        stream: &'b Stream,
        room: &'b mut Room<'a>,
    ) -> Self {
        let (places, addresses) = room.of(uses.len());
        Operands { core, stream, uses, places, addresses, given: 0, within: Cell::new(None), packed: None }
    }

    /// The address of each, apart from `self`: arguments may point to them while `self` is still borrowed anew.
    #[inline(always)]
    pub(crate) fn take_addresses(&mut self) -> &'b [u64] {
        let addresses: &'b mut [u64] = std::mem::take(&mut self.addresses);
        addresses
    }

    #[cold]
    fn error(&self, i: usize, what: String) -> Error {
        let schema = &self.core.schema;
        let at = schema.operand_of(i);
        let (op, name) = (&schema.name, &schema.operands[at].name);
        match schema.list_length() {
            Some(_) if at + 1 == schema.operands.len() => {
                Error::invalid(format!("{op}: operand `{name}[{}]` {what}", i - at))
            }
            _ => Error::invalid(format!("{op}: operand `{name}` {what}")),
        }
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, i: usize, slot: Slot<Read<'a>, ViewMut<'a>>) -> Result<()> {
        let Some(wanted) = self.uses.get(i) else {
            return Err(Error::internal(format!(
                "{}: a slot for operand {i} of {}",
                self.core.schema.name,
                self.uses.len()
            )));
        };
        self.given = i + 1;
        match slot {
            Slot::Read(Read::View(v)) => {
                self.check(i, v.buffer, v.bytes)?;
                if wanted.reads {
                    self.check_written(i, v.buffer, v.offset, wanted.bytes)?;
                }
                self.set_address(i, v.buffer.address() + v.offset)?;
                self.places[i] = Place::Read(v.buffer);
            }
            Slot::Read(Read::InPlace) => self.places[i] = Place::Shared,
            Slot::Read(Read::Packed(packed)) => self.add_packed(i, packed)?,
            Slot::Read(Read::None) | Slot::None => {
                if wanted.bytes != 0 && !wanted.optional {
                    return Err(
                        self.error(i, format!("needs a buffer of {} bytes and has none", wanted.bytes))
                    );
                }
            }
            Slot::Write(v) => {
                self.check(i, v.buffer, v.bytes)?;
                if wanted.reads {
                    self.check_written(i, v.buffer, v.offset, wanted.bytes)?;
                }
                self.set_address(i, v.buffer.address() + v.offset)?;
                self.places[i] = Place::Write(v.buffer, v.offset);
            }
        }
        Ok(())
    }

    /// Gives an operand in its packed form. Whether it is of the right size is known to the provider.
    #[cold]
    fn add_packed(&mut self, i: usize, packed: &'a Packed) -> Result<()> {
        packed.check(self.core, i).map_err(|why| self.error(i, why))?;
        if self.packed.is_some() {
            return Err(
                self.error(i, "is packed, and another one too; a launch takes one packed operand".into())
            );
        }
        self.packed = Some(packed);
        self.places[i] = Place::Packed(packed);
        Ok(())
    }

    /// Gives the last operand memory that nobody else has.
    pub(crate) fn add_fresh(&mut self, memory: &'a mut Buffer) {
        let last = self.uses.len() - 1;
        self.addresses[last] = memory.address();
        self.places[last] = Place::Write(memory, 0);
        self.given = self.uses.len();
    }

    /// Checks the alignment, which the descriptor promises to the kernel.
    #[inline(always)]
    fn set_address(&mut self, i: usize, address: u64) -> Result<()> {
        // `struct_size` and `alignment` come first in every descriptor.
        let alignment = self.core.desc[1];
        self.uses[i].check_address(address, alignment, i, || {
            let schema = &self.core.schema;
            schema.operands[schema.operand_of(i)].name.clone()
        })?;
        self.addresses[i] = address;
        Ok(())
    }

    /// Fails where something would be read that was not written, nor is by what the stream records.
    #[inline(always)]
    fn check_written(&self, i: usize, buffer: &Buffer, offset: u64, bytes: u64) -> Result<()> {
        buffer.check_written(offset, bytes).or_else(|e| self.check_recorded(i, buffer, offset + bytes, &e))
    }

    #[cold]
    fn check_recorded(&self, i: usize, buffer: &Buffer, end: u64, unwritten: &Error) -> Result<()> {
        let Some(number) = self.stream.core.recording_that_wrote(buffer.shared(), end)? else {
            return Err(self.error(i, unwritten.to_string()));
        };
        match self.within.replace(Some(number)) {
            Some(other) if other != number => Err(recording_ended()),
            _ => Ok(()),
        }
    }

    /// Device, memory space, dtype and size.
    #[inline(always)]
    fn check(&self, i: usize, buffer: &Buffer, bytes: u64) -> Result<()> {
        let (wanted, core, memory) = (&self.uses[i], self.core, buffer.memory());
        let (reads, writes) = core.member().reaches_primary();
        let reachable = memory.primary
            && memory.device == core.device
            && (!wanted.reads || reads)
            && (!wanted.writes || writes);
        if !reachable {
            self.check_space(i, buffer)?;
        }
        if wanted.dtype.is_some_and(|d| d != buffer.dtype()) {
            let want = wanted.dtype.unwrap_or_default();
            return Err(
                self.error(i, format!("is {}, and the primitive was made for {want}", buffer.dtype()))
            );
        }
        if wanted.bytes > bytes {
            return Err(self.error(i, format!("has {bytes} bytes, and these sizes need {}", wanted.bytes)));
        }
        Ok(())
    }

    /// Memory that is not the device's own, such as pinned host memory, if the provider reaches it.
    #[cold]
    fn check_space(&self, i: usize, buffer: &Buffer) -> Result<()> {
        let (wanted, member, space) = (&self.uses[i], self.core.member(), buffer.space());
        if (!wanted.reads || member.reads(space)) && (!wanted.writes || member.writes(space)) {
            return Ok(());
        }
        Err(self.error(
            i,
            format!(
                "is in `{space}` of {}, which provider `{}` of {} does not reach; copy it to a buffer of {} first",
                buffer.device().name(),
                self.core.instance,
                self.core.device.name(),
                self.core.device.name()
            ),
        ))
    }

    /// Gives in-place operands the memory of the output that they may share.
    #[inline]
    pub(crate) fn place_in_place(&mut self, in_place: impl Fn(usize) -> u64) -> Result<()> {
        for i in 0..self.uses.len() {
            if !matches!(self.places[i], Place::Shared) {
                continue;
            }
            let of = |i: usize| self.core.schema.operand_of(i);
            let allowed =
                |o: usize| (in_place(of(o)) >> of(i) & 1 != 0) || (in_place(of(i)) >> of(o) & 1 != 0);
            let output =
                (0..self.uses.len()).find(|o| matches!(self.places[*o], Place::Write(..)) && allowed(*o));
            let Some(o) = output else {
                return Err(self.error(i, "cannot be in place: the op does not allow it".into()));
            };
            let Place::Write(buffer, offset) = &self.places[o] else { unreachable!("just found") };
            if self.uses[i].bytes != self.uses[o].bytes {
                return Err(self.error(
                    i,
                    format!(
                        "cannot be in place: it has {} bytes and the output {}",
                        self.uses[i].bytes, self.uses[o].bytes
                    ),
                ));
            }
            let same_size = |a: &OperandUse, b: &OperandUse| {
                a.dtype.map(|d| d.bytes_for_bounds()) == b.dtype.map(|d| d.bytes_for_bounds())
            };
            if !same_size(&self.uses[i], &self.uses[o]) {
                return Err(self.error(i, "cannot be in place: the element sizes differ".into()));
            }
            // The old content is read as the operand's dtype. Any bytes are valid for all of them but bool.
            if self.uses[i].dtype == Some(DType::BOOL) && buffer.dtype() != DType::BOOL {
                return Err(self.error(
                    i,
                    format!("cannot be in place: {} bytes need not be valid bool", buffer.dtype()),
                ));
            }
            self.check_written(i, buffer, *offset, self.uses[i].bytes)?;
            // That the output may be written there does not say that it may be read.
            let (reads, _) = self.core.member().reaches_primary();
            if !(buffer.memory().primary && buffer.memory().device == self.core.device && reads) {
                self.check_space(i, buffer)?;
            }
            self.set_address(i, self.addresses[o])?;
        }
        Ok(())
    }

    /// What is written overlaps nothing else, unless it is exactly the same memory and the op allows it.
    #[inline(always)]
    pub(crate) fn check_overlap(&self, in_place: impl Fn(usize) -> u64) -> Result<()> {
        for (w, written) in self.uses.iter().enumerate().filter(|(_, u)| u.writes && u.bytes != 0) {
            for (i, other) in self.uses.iter().enumerate() {
                let (a, b) = (self.addresses[w], self.addresses[i]);
                let absent = other.bytes == 0 || (other.optional && b == 0) || (written.optional && a == 0);
                let apart = i == w || absent || a + written.bytes <= b || b + other.bytes <= a;
                // What was packed is nobody else's memory; its address here is 0.
                if apart || self.different_space(w, i) || matches!(self.places[i], Place::Packed(_)) {
                    continue;
                }
                let (ow, oi) = (self.core.schema.operand_of(w), self.core.schema.operand_of(i));
                let allowed = in_place(ow) >> oi & 1 != 0 || in_place(oi) >> ow & 1 != 0;
                if !(allowed && a == b && written.bytes == other.bytes) {
                    return Err(self
                        .error(i, format!("overlaps the output at {a:#x} in a way the op does not allow")));
                }
            }
        }
        Ok(())
    }

    /// Equal addresses in two spaces are two places.
    fn different_space(&self, a: usize, b: usize) -> bool {
        let space = |p: &Place<'a>| match p {
            Place::Read(buffer) => Some(buffer.memory().space.clone()),
            Place::Write(buffer, _) => Some(buffer.memory().space.clone()),
            Place::None | Place::Shared | Place::Packed(_) => None,
        };
        matches!((space(&self.places[a]), space(&self.places[b])), (Some(x), Some(y)) if x != y)
    }

    fn buffers(&self) -> impl Iterator<Item = (&Buffer, bool)> {
        self.places.iter().filter_map(|p| match p {
            Place::Read(b) => Some((*b, false)),
            Place::Write(b, _) => Some((&**b, true)),
            Place::Packed(p) => Some((p.memory(), false)),
            Place::None | Place::Shared => None,
        })
    }

    /// Launches, ordered behind the work of other streams on these buffers.
    ///
    /// # Safety
    /// `args` is the op's argument struct with these operands' addresses, and its dims are readable.
    #[inline]
    pub(crate) unsafe fn run(&mut self, args: *const c_void) -> Result<()> {
        let (core, packed) = (self.core, self.packed);
        // SAFETY: as the caller promises, on a lane of the primitive's provider and device, which is locked.
        self.run_as(|lane| unsafe {
            match packed {
                None => core.handle.launch(lane, args),
                Some(packed) => packed.handle().launch(lane, args),
            }
        })
    }

    /// Does `work`, which uses the operands and nothing else, ordered behind the work of other streams on these buffers.
    ///
    /// # Errors
    /// As [`Primitive::launch`].
    #[inline(always)]
    pub(crate) fn run_as(&mut self, work: impl Fn(&StreamHandle) -> Result<()>) -> Result<()> {
        let (core, stream) = (self.core, self.stream);
        if self.given != self.uses.len() {
            return Err(Error::internal(format!(
                "{}: {} slots for {} operands",
                core.schema.name,
                self.given,
                self.uses.len()
            )));
        }
        if *stream.device() != core.device {
            return Err(core.wrong_stream(stream));
        }
        if stream.core.is_recording() {
            return self.record(work);
        }
        if self.within.get().is_some() {
            return Err(recording_ended());
        }
        if core.inline && !self.buffers().any(|(b, _)| b.users().maybe_busy()) {
            stream.core.on_lane(core.member, work)?;
        } else {
            self.run_behind(work)?;
        }
        for (place, u) in self.places.iter_mut().zip(self.uses) {
            if let Place::Write(buffer, offset) = place {
                buffer.mark_written(*offset, u.bytes_written());
            }
        }
        Ok(())
    }

    /// Launches where other streams, or graphs, may be at work on the buffers, or the launch returns before its work
    /// is done: the buffers stay alive until then, because it has been noted in them.
    #[inline(never)]
    fn run_behind(&self, work: impl Fn(&StreamHandle) -> Result<()>) -> Result<()> {
        let (core, stream) = (self.core, self.stream);
        stream.core.tidy(core.member)?;
        let mut met = Met::default();
        let _gates = Gates::enter(self.buffers().map(|(b, _)| &**b.shared()));
        self.order(&stream.core, core.inline, &mut met)?;
        stream.core.on_lane_locked(core.member, |lane| {
            if !core.inline {
                for (buffer, write) in self.buffers() {
                    buffer.users().note(&stream.core, write, &mut met);
                }
            }
            work(lane)
        })
    }

    /// Records the launch into the graph of its stream, which orders its own launches and keeps the buffers alive.
    #[cold]
    fn record(&self, work: impl Fn(&StreamHandle) -> Result<()>) -> Result<()> {
        let core = self.core;
        core.check_capturable()?;
        let buffers = self.places.iter().zip(self.uses).filter_map(|(place, u)| match place {
            Place::Read(b) => Some(Access { shared: b.shared(), written: None }),
            Place::Write(b, offset) => {
                Some(Access { shared: b.shared(), written: Some((*offset, u.bytes_written())) })
            }
            Place::Packed(p) => Some(Access { shared: p.memory().shared(), written: None }),
            Place::None | Place::Shared => None,
        });
        self.stream.core.record_on(core.member, self.within.get(), buffers, work)
    }

    fn order(&self, stream: &Arc<StreamCore>, inline: bool, met: &mut Met) -> Result<()> {
        let own = (!inline).then_some(stream);
        for (buffer, write) in self.buffers() {
            for other in buffer.users().before(own, write, met) {
                stream.order_behind(self.core.member, other)?;
            }
        }
        Ok(())
    }
}
