//! The state of the fake: objects, memory, queued work.

use crate::capture::{Point, Recording};
use crate::cublaslt::{self, Object, Product};
use crate::result::ILLEGAL_ADDRESS;
use std::alloc::Layout;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a call comes to: nothing, or the driver's number of an error.
pub(crate) type Outcome<T = ()> = Result<T, i32>;

pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const NOT_INITIALIZED: i32 = 3;
pub(crate) const NO_DEVICE: i32 = 100;
pub(crate) const INVALID_DEVICE: i32 = 101;
pub(crate) const INVALID_IMAGE: i32 = 200;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const NOT_FOUND: i32 = 500;
pub(crate) const NOT_READY: i32 = 600;
pub(crate) const PEER_ACCESS_UNSUPPORTED: i32 = 217;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
pub(crate) const NOT_SUPPORTED: i32 = 801;
pub(crate) const ILLEGAL_STATE: i32 = 401;
pub(crate) const GRAPH_EXEC_UPDATE_FAILURE: i32 = 910;

/// Device memory lies here: no address of a process does.
const DEVICE_BASE: u64 = 1 << 62;
/// Each device has its own range.
const DEVICE_STRIDE: u64 = 1 << 48;

/// Larger blocks stay untouched: of them the machine needs addresses only, until somebody uses them.
const MOST_TOUCHED: usize = 256 << 20;

/// How the fake is set up.
#[derive(Clone, Copy)]
pub(crate) struct Config {
    pub(crate) devices: i32,
    pub(crate) pools: bool,
    pub(crate) peers: bool,
    pub(crate) memory_bytes: u64,
    /// Queries that find a piece of work pending.
    pub(crate) delay: u32,
    /// Whether the environment chooses among the devices.
    pub(crate) environment: bool,
    pub(crate) version: i32,
}

/// A piece of queued work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Work {
    Copy {
        dst: u64,
        src: u64,
        bytes: usize,
    },
    Set {
        dst: u64,
        width: usize,
        value: u32,
        count: usize,
    },
    Kernel {
        function: u64,
        argument: Vec<u8>,
        grid: [u32; 3],
        block: [u32; 3],
    },
    Product(Box<Product>),
    Record {
        event: u64,
        number: u64,
    },
    Wait {
        stream: u64,
        event: u64,
        number: u64,
    },
    Free {
        address: u64,
    },
    /// Memory of a graph begins to be usable.
    Allocate {
        address: u64,
    },
    /// A graph that was launched into the recording of another.
    Child(Vec<Work>),
}

impl Work {
    /// Whether one can take the other's place in a graph.
    fn same_shape(&self, other: &Work) -> bool {
        match (self, other) {
            (Work::Kernel { function: a, .. }, Work::Kernel { function: b, .. }) => a == b,
            (Work::Child(a), Work::Child(b)) => same_shape(a, b),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

fn same_shape(one: &[Work], other: &[Work]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.same_shape(b))
}

#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) queue: VecDeque<Work>,
    /// Queries that the front of the queue still outlasts.
    pub(crate) patience: u32,
    pub(crate) capture: Option<Point>,
}

#[derive(Default)]
pub(crate) struct Event {
    /// Numbers of the latest record, and of the latest that was reached.
    pub(crate) recorded: u64,
    pub(crate) reached: u64,
    pub(crate) stream: u64,
    pub(crate) time: u64,
    /// The point of a recording for which it stands, where that is what it was recorded in last.
    pub(crate) captured: Option<Point>,
}

pub(crate) struct Block {
    device: Option<i32>,
    /// The pool that it is from, which says who may use it.
    pool: Option<u64>,
    /// It belongs to a graph and lives as long.
    pub(crate) of_graph: bool,
    bytes: usize,
    data: *mut u8,
    /// A free of it is queued: later work must not use it.
    pub(crate) doomed: bool,
}

impl Block {
    fn layout(bytes: usize) -> Outcome<Layout> {
        Layout::from_size_align(bytes.max(1), 512).map_err(|_| crate::result::OUT_OF_MEMORY)
    }
}

/// Also of what nobody freed, when the world begins anew.
impl Drop for Block {
    fn drop(&mut self) {
        let layout = Block::layout(self.bytes).expect("it was allocated with this layout");
        // SAFETY: allocated with this layout in `World::allocate`, and of this block alone.
        unsafe { std::alloc::dealloc(self.data, layout) };
    }
}

pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) name: String,
    pub(crate) argument_bytes: Option<usize>,
    /// Dynamic shared memory that a block may have.
    pub(crate) shared: u32,
}

/// Everything.
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) initialized: bool,
    /// Which of its devices it shows, in order: a place here is the number of a device for the caller.
    pub(crate) visible: Vec<i32>,
    pub(crate) log: Vec<String>,
    pub(crate) calls: u64,
    /// The call that fails, and with what.
    pub(crate) fail: Option<(u64, i32)>,
    /// After such an error every call gives it.
    pub(crate) sticky: Option<i32>,
    next: u64,
    clock: u64,
    /// How often each primary context is retained.
    pub(crate) contexts: HashMap<u64, u32>,
    /// The device of each context that was made beside the primary ones.
    pub(crate) made: HashMap<u64, i32>,
    /// Contexts that may use another's memory.
    pub(crate) peers: Vec<(u64, u64)>,
    /// Pools whose memory other devices may use.
    pub(crate) access: Vec<(u64, i32)>,
    pub(crate) recordings: HashMap<u64, Recording>,
    /// By handle; the default stream of a context by that of the context.
    pub(crate) streams: HashMap<u64, Stream>,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) blocks: BTreeMap<u64, Block>,
    pub(crate) pools: HashMap<u64, i32>,
    pub(crate) modules: HashMap<u64, Vec<(String, Option<usize>)>>,
    pub(crate) functions: HashMap<u64, Function>,
    pub(crate) graphs: HashMap<u64, Vec<Work>>,
    pub(crate) execs: HashMap<u64, Vec<Work>>,
    pub(crate) blas: HashMap<u64, Object>,
}

// SAFETY: the pointers in `blocks` are of memory that only the world uses, under its lock, or that the host owns.
unsafe impl Send for World {}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

thread_local! {
    pub(crate) static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// The world, made anew where there is none.
pub(crate) fn world(use_it: impl FnOnce(&mut World) -> i32) -> i32 {
    let mut guard: MutexGuard<'_, Option<World>> = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    use_it(guard.get_or_insert_with(|| World::new(Config::default())))
}

/// Devices of a program that does not know that its driver is a fake; one without the variable.
const DEVICES_ENV: &str = "FAKECUDA_DEVICES";

impl Default for Config {
    fn default() -> Config {
        let devices = std::env::var(DEVICES_ENV).ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        let (pools, peers, environment) = (true, true, true);
        Config { devices, pools, peers, memory_bytes: 1 << 30, delay: 2, environment, version: 13000 }
    }
}

/// The handle of a device's primary context.
pub(crate) fn context_of(device: i32) -> u64 {
    0x100 + device as u64
}

impl World {
    pub(crate) fn new(config: Config) -> World {
        World {
            config,
            initialized: false,
            visible: Vec::new(),
            log: Vec::new(),
            calls: 0,
            fail: None,
            sticky: None,
            next: 0x1000,
            clock: 0,
            contexts: HashMap::new(),
            made: HashMap::new(),
            peers: Vec::new(),
            access: Vec::new(),
            recordings: HashMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            blocks: BTreeMap::new(),
            pools: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            execs: HashMap::new(),
            blas: HashMap::new(),
        }
    }

    /// The device of a context.
    pub(crate) fn device_of(&self, context: u64) -> i32 {
        self.made.get(&context).copied().unwrap_or(context as i32 - 0x100)
    }

    /// Makes a context, as another library does.
    pub(crate) fn make_context(&mut self, device: i32) -> u64 {
        self.initialized = true;
        let handle = self.handle();
        self.made.insert(handle, device);
        self.contexts.insert(handle, 1);
        self.streams.insert(handle, Stream { context: handle, ..Stream::default() });
        handle
    }

    /// Ends a context that was made so; what is left in it counts as lost.
    pub(crate) fn end_context(&mut self, handle: u64) {
        self.made.remove(&handle);
        self.contexts.remove(&handle);
        self.streams.remove(&handle);
        self.peers.retain(|(a, b)| *a != handle && *b != handle);
    }

    /// A handle that no object had before.
    pub(crate) fn handle(&mut self) -> u64 {
        self.next += 0x10;
        self.next
    }

    /// Objects that nobody has given back, one line for each kind that has some.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let counts = [
            ("contexts", self.contexts.values().map(|n| *n as usize).sum()),
            ("streams", self.streams.iter().filter(|(key, stream)| **key != stream.context).count()),
            ("events", self.events.len()),
            ("blocks", self.blocks.len()),
            ("pools", self.pools.len()),
            ("modules", self.modules.len()),
            ("graphs", self.graphs.len()),
            ("graph execs", self.execs.len()),
            ("objects of cuBLASLt", self.blas.len()),
        ];
        counts.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}")).collect()
    }

    /// The current context.
    pub(crate) fn current(&self) -> Outcome<u64> {
        let context = CURRENT.get();
        if self.contexts.contains_key(&context) { Ok(context) } else { Err(INVALID_CONTEXT) }
    }

    /// What a stream is kept by: for 0, which is the default stream of the current context, that context's handle.
    pub(crate) fn stream_key(&self, handle: u64) -> Outcome<u64> {
        if handle == 0 { self.current() } else { Ok(handle) }
    }

    /// A live stream of the current context.
    pub(crate) fn stream(&mut self, handle: u64) -> Outcome<&mut Stream> {
        let context = self.current()?;
        let key = self.stream_key(handle)?;
        match self.streams.get_mut(&key) {
            Some(stream) if stream.context == context => Ok(stream),
            _ => Err(INVALID_HANDLE),
        }
    }

    pub(crate) fn event(&mut self, handle: u64) -> Outcome<&mut Event> {
        self.events.get_mut(&handle).ok_or(INVALID_HANDLE)
    }

    // ---- Memory

    /// Memory of a device, perhaps from a pool; without a device it is pinned.
    pub(crate) fn allocate(&mut self, bytes: usize, device: Option<i32>, pool: Option<u64>) -> Outcome<u64> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let used: u64 = self.blocks.values().filter(|b| b.device == device).map(|b| b.bytes as u64).sum();
        if device.is_some() && used.saturating_add(bytes as u64) > self.config.memory_bytes {
            return Err(crate::result::OUT_OF_MEMORY);
        }
        let layout = Block::layout(bytes)?;
        // SAFETY: the size is not 0.
        let data = unsafe { std::alloc::alloc(layout) };
        if data.is_null() {
            return Err(crate::result::OUT_OF_MEMORY);
        }
        if bytes <= MOST_TOUCHED {
            // SAFETY: just allocated. Fresh memory holds garbage that shows.
            unsafe { data.write_bytes(0xa5, bytes) };
        }
        let address = match device {
            None => data.expose_provenance() as u64,
            Some(device) => {
                let base = DEVICE_BASE + device as u64 * DEVICE_STRIDE;
                let blocks = self.blocks.range(base..base + DEVICE_STRIDE).next_back();
                let free = blocks.map_or(base + 512, |(at, b)| at + b.bytes as u64 + 1024);
                // Never reused while later blocks live, and with a gap, so that running over an end is noticed.
                free.next_multiple_of(512)
            }
        };
        self.blocks.insert(address, Block { device, pool, of_graph: false, bytes, data, doomed: false });
        Ok(address)
    }

    pub(crate) fn release(&mut self, address: u64) -> Outcome {
        self.blocks.remove(&address).map(drop).ok_or(INVALID_VALUE)
    }

    pub(crate) fn used(&self, device: i32) -> u64 {
        self.blocks.values().filter(|b| b.device == Some(device)).map(|b| b.bytes as u64).sum()
    }

    /// Where the bytes of an address are, for a copy; an error where it is a device's and not inside a live block. Host
    /// memory is the caller's word.
    pub(crate) fn locate(&self, address: u64, bytes: usize) -> Outcome<*mut u8> {
        if address < DEVICE_BASE {
            return if address == 0 {
                Err(INVALID_VALUE)
            } else {
                Ok(std::ptr::with_exposed_provenance_mut(address as usize))
            };
        }
        self.block(address, bytes).map(|(_, at)| at)
    }

    /// The live block that has these bytes, and where they are.
    fn block(&self, address: u64, bytes: usize) -> Outcome<(&Block, *mut u8)> {
        let (start, block) = self.blocks.range(..=address).next_back().ok_or(INVALID_VALUE)?;
        let offset = (address - start) as usize;
        if block.doomed || offset.saturating_add(bytes) > block.bytes {
            return Err(INVALID_VALUE);
        }
        // SAFETY: inside the block.
        Ok((block, unsafe { block.data.add(offset) }))
    }

    /// Where the bytes of an address are, for a kernel of a context: pinned memory, the device's own, and that of peers
    /// who have let it in.
    pub(crate) fn locate_for(&self, context: u64, address: u64, bytes: usize) -> Outcome<*mut u8> {
        let (block, at) = self.block(address, bytes)?;
        let own = self.device_of(context);
        let allowed = match (block.device, block.pool) {
            (None, _) => true,
            (Some(device), _) if device == own => true,
            (Some(_), Some(pool)) => self.access.contains(&(pool, own)),
            (Some(device), None) => self.peers.contains(&(context, context_of(device))),
        };
        if allowed { Ok(at) } else { Err(INVALID_VALUE) }
    }

    // ---- Work

    /// Queues work, or records it.
    pub(crate) fn enqueue(&mut self, stream: u64, work: Work) -> Outcome {
        let delay = self.config.delay;
        let Some(work) = self.record(stream, work)? else { return Ok(()) };
        let stream = self.stream(stream)?;
        if stream.queue.is_empty() {
            stream.patience = delay;
        }
        stream.queue.push_back(work);
        Ok(())
    }

    /// Whether the stream's queue is empty, after a query has let time pass.
    pub(crate) fn poll(&mut self, handle: u64) -> Outcome<bool> {
        let delay = self.config.delay;
        let Some(stream) = self.streams.get_mut(&handle) else { return Ok(true) };
        if stream.queue.is_empty() {
            return Ok(true);
        }
        if stream.patience > 0 {
            stream.patience -= 1;
            return Ok(false);
        }
        stream.patience = delay;
        self.step(handle)?;
        Ok(self.streams.get(&handle).is_none_or(|s| s.queue.is_empty()))
    }

    /// Does everything that is queued on a stream.
    pub(crate) fn drain(&mut self, handle: u64) -> Outcome {
        while self.streams.get(&handle).is_some_and(|s| !s.queue.is_empty()) {
            self.step(handle)?;
        }
        Ok(())
    }

    /// Does what a stream has up to a record, and no more: what comes behind it may have to wait for others.
    pub(crate) fn reach(&mut self, stream: u64, event: u64, number: u64) -> Outcome {
        let record = Work::Record { event, number };
        while self.streams.get(&stream).is_some_and(|s| s.queue.contains(&record)) {
            self.step(stream)?;
        }
        Ok(())
    }

    /// Frees in stream order.
    pub(crate) fn free_later(&mut self, address: u64, handle: u64) -> Outcome {
        let delay = self.config.delay;
        let key = self.stream_key(handle)?;
        let stream = self.streams.get_mut(&key).ok_or(INVALID_HANDLE)?;
        if stream.capture.is_some() {
            // A node that frees is for memory of the graph.
            self.blocks.get(&address).filter(|b| b.of_graph).ok_or(INVALID_VALUE)?;
            return self.record(handle, Work::Free { address }).map(drop);
        }
        let block = self.blocks.get_mut(&address).filter(|b| !b.doomed).ok_or(INVALID_VALUE)?;
        block.doomed = true;
        if stream.queue.is_empty() {
            stream.patience = delay;
        }
        stream.queue.push_back(Work::Free { address });
        Ok(())
    }

    /// Drops what is queued on a stream, frees excepted.
    pub(crate) fn abandon(&mut self, handle: u64) -> Outcome {
        let queue = self.streams.get_mut(&handle).map(|s| std::mem::take(&mut s.queue)).unwrap_or_default();
        queue.into_iter().try_for_each(|work| match work {
            Work::Free { address } => self.release(address),
            _ => Ok(()),
        })
    }

    /// Does everything.
    pub(crate) fn drain_all(&mut self) -> Outcome {
        let handles: Vec<u64> = self.streams.keys().copied().collect();
        handles.into_iter().try_for_each(|handle| self.drain(handle))
    }

    /// Does the first piece of work of a stream.
    fn step(&mut self, handle: u64) -> Outcome {
        let Some(work) = self.streams.get_mut(&handle).and_then(|s| s.queue.pop_front()) else {
            return Ok(());
        };
        self.clock += 1;
        let context = self.streams.get(&handle).map_or(0, |s| s.context);
        let done = self.perform(context, work);
        if let Err(code) = done {
            // What fails on the device is reported by every later call.
            self.sticky = Some(code);
        }
        done
    }

    fn perform(&mut self, context: u64, work: Work) -> Outcome {
        let fault = |_| ILLEGAL_ADDRESS;
        match work {
            Work::Copy { dst, src, bytes } => {
                let (from, to) =
                    (self.locate(src, bytes).map_err(fault)?, self.locate(dst, bytes).map_err(fault)?);
                // SAFETY: both ranges are inside live blocks, or the host's, which the caller keeps until now.
                unsafe { std::ptr::copy(from, to, bytes) };
            }
            Work::Set { dst, width, value, count } => {
                let to = self.locate(dst, width * count).map_err(fault)?;
                let value = value.to_le_bytes();
                for i in 0..count {
                    // SAFETY: inside a live block.
                    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to.add(i * width), width) };
                }
            }
            Work::Kernel { argument, .. } => {
                for word in argument.chunks_exact(8) {
                    let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                    // Whatever looks like an address of a device is one, and so is what is mapped in this process.
                    let of_device = (DEVICE_BASE..DEVICE_BASE + 64 * DEVICE_STRIDE).contains(&word);
                    if of_device || is_mapped(word) {
                        self.locate_for(context, word, 1).map_err(fault)?;
                    }
                }
            }
            Work::Product(product) => cublaslt::perform(self, context, &product).map_err(fault)?,
            Work::Record { event, number } => {
                let clock = self.clock;
                if let Some(event) = self.events.get_mut(&event) {
                    event.reached = event.reached.max(number);
                    event.time = clock;
                }
            }
            Work::Wait { stream, event, number } => self.reach(stream, event, number)?,
            Work::Free { address } => match self.blocks.get_mut(&address) {
                Some(block) if block.of_graph => block.doomed = true,
                _ => self.release(address).map_err(fault)?,
            },
            Work::Allocate { address } => {
                let block = self.blocks.get_mut(&address).ok_or(ILLEGAL_ADDRESS)?;
                block.doomed = false;
            }
            Work::Child(works) => works.into_iter().try_for_each(|work| self.perform(context, work))?,
        }
        Ok(())
    }

    /// Frees the memory of a graph's own that no graph has any more.
    pub(crate) fn forget_graph(&mut self, work: &[Work]) -> Outcome {
        for allocated in work.iter().filter(|w| matches!(w, Work::Allocate { .. })) {
            let Work::Allocate { address } = allocated else { continue };
            let kept = self.graphs.values().chain(self.execs.values()).any(|w| w.contains(allocated));
            if !kept && self.blocks.contains_key(address) {
                self.release(*address)?;
            }
        }
        Ok(())
    }

    /// Puts the work of one graph in another's place, if they have one shape.
    pub(crate) fn update(&mut self, exec: u64, graph: u64) -> Outcome {
        let new = self.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        let old = self.execs.get_mut(&exec).ok_or(INVALID_HANDLE)?;
        if !same_shape(old, &new) {
            return Err(GRAPH_EXEC_UPDATE_FAILURE);
        }
        *old = new;
        Ok(())
    }
}

unsafe extern "C" {
    /// Of libc: which pages of a range are in memory; an error where one is not mapped.
    fn mincore(from: *mut c_void, bytes: usize, out: *mut u8) -> i32;
}

/// Whether a number is an address of this process. Programs and their libraries, heaps and stacks lie above 2^40 and below
/// 2^47, where the numbers that kernels take hardly ever are.
fn is_mapped(word: u64) -> bool {
    const PAGE: u64 = 4096;
    if !(1 << 40..1 << 47).contains(&word) {
        return false;
    }
    let page = std::ptr::with_exposed_provenance_mut((word & !(PAGE - 1)) as usize);
    let mut resident = 0;
    // SAFETY: a range that need not be mapped, and room for the answer of one page.
    unsafe { mincore(page, 1, &mut resident) == 0 }
}
