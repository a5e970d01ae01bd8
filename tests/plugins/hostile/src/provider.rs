//! The modes that vendor code can bring about: errors and panics, bad values, bad registrations.

use crate::Mode;
use ep_core::abi::{EpField, EpOpSchema, EpStr, text};
use ep_core::hob::{self, Expr};
use ep_core::op::Op;
use ep_core::primitive::{ElementwiseUnary, ElementwiseUnaryArgs, Softmax, UnaryOp};
use ep_core::provider::inline::{HOST_SPACE, HostAllocator, host_copy};
use ep_core::provider::{
    Allocator, CopyRequest, Device, DeviceInfo, Event, Factory, Host, Kernel, MemoryKind, MemoryStats,
    Options, Provider, Registrar, Stream, StreamOptions, Warm, cells,
};
use ep_core::{DType, Error, Result};

/// Where [`Mode::act`] is called. With each: `.panic`, `.error`, `.unavailable`, `.abort`, `.segv`, `.exit`, `.hang`.
const STAGES: &[&str] = &[
    "query",
    "create",
    "count",
    "open",
    "register",
    "stream",
    "event",
    "allocator",
    "alloc",
    "free",
    "build",
    "launch",
    "copy",
    "sync",
    "done",
    "record",
    "wait",
];
/// What panics when it is dropped: `drop.<object>`.
const DROPS: &[&str] =
    &["drop.provider", "drop.device", "drop.stream", "drop.event", "drop.allocator", "drop.primitive"];
/// Other modes.
const OTHERS: &[&str] = &[
    "count.none",
    "count.max",
    "open.first",
    "open.second",
    "alloc.null",
    "alloc.misaligned",
    "alloc.high",
    "register.nothing",
    "register.duplicate",
    "register.short_row",
    "register.long_row",
    "register.row_twice",
    "register.threads",
    "register.predicate_dtype",
    "register.predicate_device",
    "register.predicate_limit",
    "schema.size",
    "schema.overlap",
    "schema.conflict",
    "end.abort",
    "process.noise",
    "process.orphan",
    "process.stray",
    "process.lost",
    "process.pipe",
];

pub(crate) fn knows(mode: &str) -> bool {
    let acts = ["panic", "error", "unavailable", "abort", "segv", "exit", "hang"];
    let staged = mode.split_once('.').is_some_and(|(s, act)| STAGES.contains(&s) && acts.contains(&act));
    staged || DROPS.contains(&mode) || OTHERS.contains(&mode)
}

/// Panics when it is dropped, if the mode says so.
struct Bomb(Mode, &'static str);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0.is(self.1), "hostile {}", self.1);
    }
}

unsafe extern "C" {
    fn atexit(call: extern "C" fn()) -> i32;
}

/// As a library's destructor would that finds its state in disorder.
extern "C" fn abort_at_end() {
    std::process::abort();
}

/// An instance.
pub(crate) struct Hostile {
    mode: Mode,
    _bomb: Bomb,
}

// SAFETY: it keeps to nothing, which is what it is for: tests load it where they expect that.
unsafe impl Provider for Hostile {
    type Device = HostileDevice;
    const NAME: &'static str = "test-hostile";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const WARM: Option<Warm<Self>> = Some(Warm { count: |_, _, _| Ok(1), prepare: |_, _, _, _| Ok(false) });

    fn create(_: Host, options: &Options) -> Result<Self> {
        options.only(&["mode"])?;
        let mode = options.get("mode").map_or_else(Mode::current, Mode::new)?;
        mode.act("create")?;
        if mode.is("end.abort") {
            // SAFETY: the function is there until the process ends: plugins are not unloaded.
            unsafe { atexit(abort_at_end) };
        }
        crate::process::act(&mode)?;
        Ok(Hostile { _bomb: Bomb(mode.clone(), "drop.provider"), mode })
    }

    fn device_count(&self) -> Result<u32> {
        self.mode.act("count")?;
        Ok(match &*self.mode.0 {
            "count.none" => 0,
            "count.max" => u32::MAX,
            "open.first" | "open.second" => 2,
            _ => 1,
        })
    }

    fn open_device(&self, index: u32) -> Result<HostileDevice> {
        self.mode.act("open")?;
        if self.mode.is(["open.first", "open.second"][index as usize % 2]) {
            return Err(Error::unavailable(format!("hostile open: number {index} does not answer")));
        }
        Ok(HostileDevice {
            _bomb: Bomb(self.mode.clone(), "drop.device"),
            memory: HostAllocator::default(),
            mode: self.mode.clone(),
        })
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        self.mode.act("register")?;
        registrar.device_kind("hostile");
        match &*self.mode.0 {
            "register.nothing" => return Ok(()),
            // SAFETY: here and below, a schema of the core with other numbers and names; what it points to is static.
            "schema.size" => unsafe { registrar.add_schema(&EpOpSchema { desc_size: 7, ..vendor_op() }) }?,
            // SAFETY: as above.
            "schema.overlap" => unsafe { registrar.add_schema(overlapping()) }?,
            // SAFETY: as above.
            "schema.conflict" => unsafe { registrar.add_schema(conflicting()) }?,
            "register.duplicate" => registrar.add(relu(&self.mode))?,
            "register.short_row" => return registrar.add(relu(&self.mode).dtypes([[DType::F32]])),
            "register.long_row" => {
                return registrar.add(relu(&self.mode).selectors([[UnaryOp::RELU.0, UnaryOp::GELU.0]]));
            }
            "register.row_twice" => {
                return registrar.add(relu(&self.mode).selectors([[UnaryOp::RELU.0], [UnaryOp::RELU.0]]));
            }
            _ => {}
        }
        let predicate = match &*self.mode.0 {
            "register.predicate_dtype" => hob::dtype("sorce").eq(DType::F32),
            "register.predicate_device" => hob::device("antennas").ge(2),
            "register.predicate_limit" => hob::limit("colums").le(1024),
            _ => return registrar.add(relu(&self.mode)),
        };
        registrar.add(relu(&self.mode).when(predicate))
    }
}

type Build = Box<dyn Fn(&HostileDevice, &<ElementwiseUnary as Op>::Desc) -> Result<Relu> + Send + Sync>;

/// The factory. Its name tells the mode to [`crate::tables`], which only sees what crosses the boundary.
fn relu(mode: &Mode) -> Factory<ElementwiseUnary, HostileDevice, Build> {
    let kernel = mode.clone();
    let build: Build = Box::new(move |_, _| {
        kernel.act("build")?;
        Ok(Relu { _bomb: Bomb(kernel.clone(), "drop.primitive"), mode: kernel.clone() })
    });
    Factory::new(named(mode), build)
        .selectors([[UnaryOp::RELU.0]])
        .dtypes([[DType::F32, DType::F32]])
        .when(Expr::from(true))
}

/// A name with the mode in it, and the mode in such a name.
fn named(mode: &Mode) -> String {
    format!("hostile({})", mode.0)
}

/// The mode in a name that [`named`] made.
pub(crate) fn mode_in(name: &str) -> Option<&str> {
    name.strip_prefix("hostile(")?.strip_suffix(')')
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Softmax under a vendor's name.
fn vendor_op() -> EpOpSchema {
    EpOpSchema { name: text("hostile.op"), ..*Softmax::raw_schema() }
}

/// The argument fields of softmax: `rows` and `cols` first.
fn args() -> Vec<EpField> {
    let schema = Softmax::raw_schema();
    // SAFETY: a static schema of the core, whose arrays are as long as it says.
    unsafe { std::slice::from_raw_parts(schema.arg_fields, schema.num_arg_fields as usize) }.to_vec()
}

fn with_args(schema: EpOpSchema, args: Vec<EpField>) -> &'static EpOpSchema {
    let args = leak(args);
    leak(EpOpSchema { arg_fields: args.as_ptr(), num_arg_fields: args.len() as u64, ..schema })
}

/// Two arguments at one place.
fn overlapping() -> &'static EpOpSchema {
    let mut args = args();
    args[1].offset = args[0].offset;
    with_args(vendor_op(), args)
}

/// Softmax with rows and columns exchanged, under softmax's own name and version.
fn conflicting() -> &'static EpOpSchema {
    let mut args = args();
    let (rows, cols): (EpStr, EpStr) = (args[0].name, args[1].name);
    (args[0].name, args[1].name) = (cols, rows);
    with_args(*Softmax::raw_schema(), args)
}

/// A device.
pub(crate) struct HostileDevice {
    mode: Mode,
    memory: HostAllocator,
    _bomb: Bomb,
}

impl Device for HostileDevice {
    type Stream = HostileStream;
    type Event = HostileEvent;
    type Allocator = HostileAllocator;

    fn info(&self) -> DeviceInfo {
        // Neither inline nor in host memory, so that hosts use streams, events and copies.
        DeviceInfo {
            kind: "hostile".into(),
            name: named(&self.mode),
            uuid: *b"test-hostile    ",
            memory_space: "hostile".into(),
            reads: vec!["hostile".into()],
            writes: vec!["hostile".into()],
            ..DeviceInfo::default()
        }
    }

    fn create_stream(&self, _: StreamOptions) -> Result<HostileStream> {
        self.mode.act("stream")?;
        Ok(HostileStream { _bomb: Bomb(self.mode.clone(), "drop.stream"), mode: self.mode.clone() })
    }

    fn create_event(&self) -> Result<HostileEvent> {
        self.mode.act("event")?;
        Ok(HostileEvent { _bomb: Bomb(self.mode.clone(), "drop.event") })
    }

    fn open_allocator(&self, _: MemoryKind) -> Result<HostileAllocator> {
        self.mode.act("allocator")?;
        let (mode, memory) = (self.mode.clone(), self.memory.clone());
        Ok(HostileAllocator { _bomb: Bomb(mode.clone(), "drop.allocator"), mode, memory })
    }
}

/// A stream.
pub(crate) struct HostileStream {
    mode: Mode,
    _bomb: Bomb,
}

impl Stream for HostileStream {
    type Event = HostileEvent;

    fn sync(&self) -> Result<()> {
        self.mode.act("sync")
    }

    fn query(&self) -> Result<bool> {
        self.mode.act("done")?;
        Ok(true)
    }

    unsafe fn copy(&self, copy: CopyRequest<'_>) -> Result<()> {
        self.mode.act("copy")?;
        // SAFETY: as the caller promises; both sides are host memory, whatever they are called.
        unsafe { host_copy(CopyRequest { dst_space: HOST_SPACE, src_space: HOST_SPACE, ..copy }) }
    }

    fn record(&self, _: &HostileEvent) -> Result<()> {
        self.mode.act("record")
    }

    fn wait(&self, _: &HostileEvent) -> Result<()> {
        self.mode.act("wait")
    }
}

/// An event.
pub(crate) struct HostileEvent {
    _bomb: Bomb,
}

impl Event for HostileEvent {
    fn query(&self) -> Result<bool> {
        Ok(true)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// An allocator.
pub(crate) struct HostileAllocator {
    mode: Mode,
    memory: HostAllocator,
    _bomb: Bomb,
}

impl Allocator for HostileAllocator {
    type Stream = HostileStream;

    fn alloc(&self, bytes: u64, alignment: u64, _: Option<&HostileStream>) -> Result<u64> {
        self.mode.act("alloc")?;
        match &*self.mode.0 {
            "alloc.null" => Ok(0),
            "alloc.misaligned" => Ok(alignment + 1),
            "alloc.high" => Ok(u64::MAX - alignment + 1),
            _ => self.memory.allocate(bytes, alignment),
        }
    }

    fn free(&self, address: u64, bytes: u64) -> Result<()> {
        self.mode.act("free")?;
        self.memory.release(address, bytes)
    }

    fn stats(&self) -> MemoryStats {
        self.memory.stats()
    }
}

/// The kernel.
pub(crate) struct Relu {
    mode: Mode,
    _bomb: Bomb,
}

impl Kernel<ElementwiseUnary, HostileDevice> for Relu {
    unsafe fn launch(&self, _: &HostileStream, args: &ElementwiseUnaryArgs) -> Result<()> {
        self.mode.act("launch")?;
        // SAFETY: the caller promises both operands; they may be the same memory, hence cells.
        let (src, dst) = unsafe { (cells::<f32>(args.src, args.count), cells::<f32>(args.dst, args.count)) };
        for (d, s) in dst.iter().zip(src) {
            d.set(if s.get() < 0.0 { 0.0 } else { s.get() });
        }
        Ok(())
    }
}
