//! Primitives of oneDNN: descriptors of operands, primitives compiled for them, and their execution.
//!
//! A primitive of the library is for one shape. Each of ours keeps those of the shapes that it has met ([`Kept`]).

use crate::engine::Engine;
use crate::library::{ExecArg, Handle, constant, text};
use ep_core::{DType, Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

/// Shapes that a primitive keeps.
const MOST_KEPT: usize = 512;
/// Operands of a primitive at most, scratch memory included.
const MOST_OPERANDS: usize = 8;

/// A handle of the library, with the function that ends it.
struct Owned {
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> i32,
}

impl Owned {
    /// What `create` makes.
    fn new(
        engine: &Engine,
        call: &str,
        destroy: unsafe extern "C" fn(Handle) -> i32,
        create: impl FnOnce(*mut Handle) -> i32,
    ) -> Result<Owned> {
        let mut handle = std::ptr::null_mut();
        engine.library().check(call, create(&mut handle))?;
        Ok(Owned { handle, destroy })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: its own, destroyed once, with the function for its kind.
        unsafe { (self.destroy)(self.handle) };
    }
}

/// The library's number of a dtype that it has for the CPU.
pub(crate) fn data_type(dtype: DType) -> Option<i32> {
    match dtype {
        DType::F16 => Some(constant::F16),
        DType::BF16 => Some(constant::BF16),
        DType::F32 => Some(constant::F32),
        _ => None,
    }
}

/// The layout of an operand.
pub(crate) struct Layout(Owned);

impl Layout {
    /// Sizes and steps in elements, outermost first.
    ///
    /// # Errors
    /// `Unsupported` for what the library does not take.
    pub(crate) fn new(engine: &Engine, dtype: DType, dims: &[u64], steps: &[u64]) -> Result<Layout> {
        let unknown =
            || Error::unsupported(format!("oneDNN has no elements of {dtype}; use another provider"));
        let data = data_type(dtype).ok_or_else(unknown)?;
        let large = || Error::unsupported(format!("a tensor of {dims:?} elements is too large for oneDNN"));
        let signed =
            |list: &[u64]| list.iter().map(|x| i64::try_from(*x)).collect::<std::result::Result<Vec<_>, _>>();
        let (dims_, steps_) = (signed(dims).map_err(|_| large())?, signed(steps).map_err(|_| large())?);
        assert_eq!(dims_.len(), steps_.len(), "a step for each size");
        let f = &engine.library().functions;
        let create = |out| {
            // SAFETY: a valid out-pointer, and as many sizes and steps as said.
            unsafe { (f.memory_desc_create)(out, dims_.len() as i32, dims_.as_ptr(), data, steps_.as_ptr()) }
        };
        Owned::new(engine, "dnnl_memory_desc_create_with_strides", f.memory_desc_destroy, create).map(Layout)
    }

    /// Without gaps, the last dimension innermost.
    pub(crate) fn dense(engine: &Engine, dtype: DType, dims: &[u64]) -> Result<Layout> {
        let mut steps = vec![1; dims.len()];
        for i in (1..dims.len()).rev() {
            steps[i - 1] = dims[i].saturating_mul(steps[i]);
        }
        Layout::new(engine, dtype, dims, &steps)
    }
}

/// What a primitive computes.
pub(crate) enum Task {
    /// src, weights, dst, which is added to or overwritten
    Matmul { layouts: [Layout; 3], adds: bool },
    /// src, dst, statistics; scale and shift, which are those of a layout
    LayerNorm { layouts: [Layout; 3], vector: Layout, epsilon: f32, scale: bool, shift: bool },
}

impl Task {
    /// The library's numbers and the layouts of the operands, in order.
    fn operands(&self) -> Vec<(i32, Handle)> {
        use constant::*;
        match self {
            Task::Matmul { layouts: [a, b, c], .. } => vec![(ARG_SRC, a), (ARG_WEIGHTS, b), (ARG_DST, c)],
            Task::LayerNorm { layouts: [src, dst, stats], vector, scale, shift, .. } => {
                let mut all = vec![(ARG_SRC, src), (ARG_DST, dst), (ARG_MEAN, stats), (ARG_VARIANCE, stats)];
                all.extend(scale.then_some((ARG_SCALE, vector)));
                all.extend(shift.then_some((ARG_SHIFT, vector)));
                all
            }
        }
        .into_iter()
        .map(|(arg, layout)| (arg, layout.0.handle))
        .collect()
    }

    /// The layouts, to be kept alive.
    fn into_layouts(self) -> Vec<Layout> {
        match self {
            Task::Matmul { layouts, .. } => layouts.into(),
            Task::LayerNorm { layouts, vector, .. } => layouts.into_iter().chain([vector]).collect(),
        }
    }
}

/// Scratch memory is the caller's, numbers are not shortened, and a product may be added to its result.
fn attributes(engine: &Engine, adds: bool) -> Result<Owned> {
    let library = engine.library();
    let f = &library.functions;
    // SAFETY: valid out-pointers.
    let create_attributes = |out| unsafe { (f.attr_create)(out) };
    let attributes = Owned::new(engine, "dnnl_primitive_attr_create", f.attr_destroy, create_attributes)?;
    // SAFETY: a live object.
    let status = unsafe { (f.attr_set_scratchpad_mode)(attributes.handle, constant::SCRATCHPAD_MODE_USER) };
    library.check("dnnl_primitive_attr_set_scratchpad_mode", status)?;
    // The library's variables, and the application, may have made another one the default.
    // SAFETY: a live object.
    let status = unsafe { (f.attr_set_fpmath_mode)(attributes.handle, constant::FPMATH_MODE_STRICT) };
    library.check("dnnl_primitive_attr_set_fpmath_mode", status)?;
    if !adds {
        return Ok(attributes);
    }
    // SAFETY: a valid out-pointer.
    let create_list = |out| unsafe { (f.post_ops_create)(out) };
    let list = Owned::new(engine, "dnnl_post_ops_create", f.post_ops_destroy, create_list)?;
    // SAFETY: a live object.
    let status = unsafe { (f.post_ops_append_sum)(list.handle, 1.0, 0, constant::DATA_TYPE_UNDEF) };
    library.check("dnnl_post_ops_append_sum", status)?;
    // SAFETY: live objects; the list is copied.
    let status = unsafe { (f.attr_set_post_ops)(attributes.handle, list.handle) };
    library.check("dnnl_primitive_attr_set_post_ops", status)?;
    Ok(attributes)
}

/// The library's descriptor of a task.
fn describe(engine: &Engine, task: &Task, attributes: &Owned) -> Result<Owned> {
    let f = &engine.library().functions;
    let (on, attributes) = (engine.handle(), attributes.handle);
    match task {
        Task::Matmul { layouts: [a, b, c], .. } => {
            Owned::new(engine, "dnnl_matmul_primitive_desc_create", f.desc_destroy, |out| {
                let no_bias = std::ptr::null_mut();
                // SAFETY: a valid out-pointer and live objects; a null bias is none.
                unsafe { (f.matmul)(out, on, a.0.handle, b.0.handle, no_bias, c.0.handle, attributes) }
            })
        }
        Task::LayerNorm { layouts: [src, dst, stats], epsilon, scale, shift, .. } => {
            let flags =
                if *scale { constant::USE_SCALE } else { 0 } | if *shift { constant::USE_SHIFT } else { 0 };
            let call = "dnnl_layer_normalization_forward_primitive_desc_create";
            Owned::new(engine, call, f.desc_destroy, |out| {
                let [src, dst, stats] = [src, dst, stats].map(|layout| layout.0.handle);
                // Training, as that writes the statistics.
                let prop = constant::FORWARD_TRAINING;
                // SAFETY: a valid out-pointer and live objects.
                unsafe {
                    (f.layer_normalization)(out, on, prop, src, dst, stats, *epsilon, flags, attributes)
                }
            })
        }
    }
}

/// Kinds of the library's implementations, the slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Quality {
    /// Loops that are there for completeness: they take a thousand times as long.
    Plain,
    /// What is neither of the others.
    Other,
    /// Code generated for blocks of matrices (`brgemm`).
    Blocked,
}

/// A primitive for one shape. Any thread may run it, several at once.
pub(crate) struct Compiled {
    idle: Mutex<Vec<Execution>>,
    primitive: Owned,
    /// The library's number and the layout of each operand, in the order in which [`Compiled::run`] takes addresses;
    /// scratch memory last, where it is needed. The layouts are of what follows.
    operands: Vec<(i32, Handle)>,
    _layouts: Vec<Layout>,
    _desc: Owned,
    scratch_bytes: usize,
    name: String,
    // Last: it outlives all above.
    engine: Arc<Engine>,
}

// SAFETY: the library's primitives and layouts are immutable; what a run writes beside its operands, a stream, objects of
// memory and scratch memory of the mode `user`, it has for itself.
unsafe impl Send for Compiled {}
// SAFETY: likewise.
unsafe impl Sync for Compiled {}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// What one run at a time needs: a stream, and an object for each operand.
struct Execution {
    operands: Vec<Owned>,
    stream: Owned,
}

impl Compiled {
    /// Compiles it, for the calling thread alone to run.
    ///
    /// # Errors
    /// `Unsupported` where the library has no implementation, `OutOfMemory`.
    pub(crate) fn new(engine: &Arc<Engine>, task: Task) -> Result<Compiled> {
        let compiled = engine.library().on_this_thread(|| Compiled::build(engine, task))?;
        tracing::debug!("compiled {compiled:?}, with {} bytes of scratch memory", compiled.scratch_bytes);
        Ok(compiled)
    }

    fn build(engine: &Arc<Engine>, task: Task) -> Result<Compiled> {
        let f = &engine.library().functions;
        let attributes = attributes(engine, matches!(task, Task::Matmul { adds: true, .. }))?;
        let desc = describe(engine, &task, &attributes)?;
        // SAFETY: a live descriptor; the layout belongs to it, and null would have no bytes.
        let (scratch, scratch_bytes) = unsafe {
            let layout = (f.desc_query_md)(desc.handle, constant::QUERY_SCRATCHPAD_MD, 0);
            (layout, if layout.is_null() { 0 } else { (f.memory_desc_size)(layout) })
        };
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: a live descriptor and a place for the pointer that this query gives, to a text that lives as long.
        let name = unsafe {
            let place = (&raw mut name).cast::<c_void>();
            (f.desc_query)(desc.handle, constant::QUERY_IMPL_INFO_STR, 0, place);
            text(name)
        };
        let primitive = Owned::new(engine, "dnnl_primitive_create", f.primitive_destroy, |out| {
            // SAFETY: a valid out-pointer and a live descriptor.
            unsafe { (f.primitive_create)(out, desc.handle) }
        })?;
        let mut operands = task.operands();
        if scratch_bytes > 0 {
            operands.push((constant::ARG_SCRATCHPAD, scratch));
        }
        assert!(operands.len() <= MOST_OPERANDS, "{name} has {} operands", operands.len());
        Ok(Compiled {
            idle: Mutex::default(),
            primitive,
            operands,
            _layouts: task.into_layouts(),
            _desc: desc,
            scratch_bytes,
            name,
            engine: engine.clone(),
        })
    }

    /// How fast an implementation it is.
    pub(crate) fn quality(&self) -> Quality {
        match &self.name {
            name if name.starts_with("ref") => Quality::Plain,
            name if name.starts_with("brg") => Quality::Blocked,
            _ => Quality::Other,
        }
    }

    /// Runs it on the calling thread; `addresses` are those of the operands of its [`Task`], in that order.
    ///
    /// # Safety
    /// Each is of memory for the layout of the operand, that the task reads or writes, and that nobody else uses in
    /// conflict.
    ///
    /// # Errors
    /// The library's.
    pub(crate) unsafe fn run(&self, addresses: &[u64]) -> Result<()> {
        let library = self.engine.library();
        let f = &library.functions;
        let own = usize::from(self.scratch_bytes > 0);
        assert_eq!(addresses.len() + own, self.operands.len(), "addresses of the operands of {}", self.name);
        let scratch = self.engine.scratch(self.scratch_bytes)?;
        let idle = self.idle.lock().pop();
        let execution = match idle {
            Some(execution) => execution,
            None => self.execution()?,
        };
        let given = addresses.iter().map(|address| std::ptr::with_exposed_provenance_mut(*address as usize));
        let pointers = given.chain((own == 1).then_some(scratch.start().cast()));
        let mut args = [ExecArg { arg: 0, memory: std::ptr::null_mut() }; MOST_OPERANDS];
        let mut count = 0;
        for (((arg, _), memory), pointer) in self.operands.iter().zip(&execution.operands).zip(pointers) {
            // SAFETY: a live object of this execution, which nobody else has now.
            let status = unsafe { (f.memory_set_data)(memory.handle, pointer) };
            library.check("dnnl_memory_set_data_handle", status)?;
            args[count] = ExecArg { arg: *arg, memory: memory.handle };
            count += 1;
        }
        let status = library.on_this_thread(|| {
            // SAFETY: live objects, with memory for their layouts as the caller promises, and as many as said.
            let executed = unsafe {
                (f.primitive_execute)(
                    self.primitive.handle,
                    execution.stream.handle,
                    count as i32,
                    args.as_ptr(),
                )
            };
            // SAFETY: a live stream. It waits also after a failure, as other work could be behind it.
            let waited = unsafe { (f.stream_wait)(execution.stream.handle) };
            if executed == 0 { waited } else { executed }
        });
        self.idle.lock().push(execution);
        library.check(&self.name, status)
    }

    fn execution(&self) -> Result<Execution> {
        let engine = &*self.engine;
        let f = &engine.library().functions;
        let memory = |(_, layout): &(i32, Handle)| {
            Owned::new(engine, "dnnl_memory_create", f.memory_destroy, |out| {
                // SAFETY: a valid out-pointer, live objects, and no memory yet.
                unsafe { (f.memory_create)(out, *layout, engine.handle(), std::ptr::null_mut()) }
            })
        };
        let operands = self.operands.iter().map(memory).collect::<Result<_>>()?;
        let stream = Owned::new(engine, "dnnl_stream_create", f.stream_destroy, |out| {
            // SAFETY: a valid out-pointer and a live engine.
            unsafe { (f.stream_create)(out, engine.handle(), constant::STREAM_DEFAULT_FLAGS) }
        })?;
        Ok(Execution { operands, stream })
    }
}

/// The compiled primitives of the shapes that were met, up to a number; then it begins anew.
#[derive(Debug)]
pub(crate) struct Kept<K> {
    all: Mutex<HashMap<K, Arc<Compiled>>>,
}

impl<K> Default for Kept<K> {
    fn default() -> Self {
        Kept { all: Mutex::default() }
    }
}

impl<K: Copy + Eq + Hash> Kept<K> {
    /// The one for `key`, compiled by `make` where it is not there.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn get(&self, key: K, make: impl FnOnce() -> Result<Compiled>) -> Result<Arc<Compiled>> {
        if let Some(found) = self.all.lock().get(&key) {
            return Ok(found.clone());
        }
        // Without the lock: compiling takes milliseconds. Of two at once, the first stays.
        let made = Arc::new(make()?);
        // They end behind the lock.
        let mut ended = HashMap::new();
        let mut all = self.all.lock();
        if all.len() >= MOST_KEPT && !all.contains_key(&key) {
            ended = std::mem::take(&mut *all);
        }
        let kept = all.entry(key).or_insert_with(|| made.clone()).clone();
        drop(all);
        drop((ended, made));
        Ok(kept)
    }
}
