//! `matmul`, `batch_matmul` and `broadcast_matmul`: by cuBLASLt, and by a kernel of our own for what that does not take.

mod factors;
mod repeats;

use super::{dtype_name, size};
use crate::compiler::{Source, Spec};
use crate::cublaslt::{self, Handle, MOST_ALIGNMENT, Matrix, Operands, Plan, Repeat, Shape, Task};
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::abi::EpScalar;
use ep_core::op::{MAX_DIMS, Op, view};
use ep_core::primitive::{
    BatchMatmul, BatchMatmulArgs, BatchMatmulDesc, BroadcastMatmul, BroadcastMatmulArgs, BroadcastMatmulDesc,
    Matmul, MatmulArgs, MatmulDesc, Transpose,
};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{Code, DType, Error, Result, Scalar};
use factors::Factor;
use parking_lot::Mutex;
use primitives::matmul::{Loop, Loops, MAX_LOOPS, Problem};
use repeats::{Asked, Recorded, Repeats};
use std::collections::HashMap;
use std::sync::Arc;

static MATMUL: Source =
    Source { name: "matmul.cu", text: include_str!("../../kernels/matmul.cu"), entry: "ep_matmul" };

/// Rows and columns of a block of the kernel, and its threads.
const TILE: u64 = 64;
const THREADS: u32 = 256;
/// Blocks of a grid in y at most; what is beyond is looped over.
const MOST_BLOCKS_Y: u64 = 65_535;

/// Workspace that algorithms of cuBLASLt may use: what NVIDIA recommends for Hopper.
const WORKSPACE_BYTES: u64 = 32 << 20;

/// Shapes whose algorithms a primitive remembers.
const MOST_PLANS: usize = 512;

/// The first size of a dimension, or of a batch, that cuBLASLt is not asked for. It takes sizes from here up to 2^31 for possible
/// and then computes something else, or writes elsewhere (13.1 on an H200); the kernel counts in 64 bits.
const LEAST_REFUSED: u64 = 1 << 30;

/// Calls of cuBLASLt for one launch beyond which the kernel does all at once.
const MOST_CALLS: u64 = 64;

fn dtypes() -> impl Iterator<Item = [DType; 1]> {
    [DType::INT, DType::FLOAT, DType::COMPLEX].into_iter().flatten().map(|d| [*d])
}

/// Both transposes in all combinations.
fn transposes() -> [[u32; 2]; 4] {
    let (none, transpose) = (Transpose::NONE.0, Transpose::TRANSPOSE.0);
    [[none, none], [none, transpose], [transpose, none], [transpose, transpose]]
}

/// The kernel for a dtype. Sums of integers are the same with and without a sign.
fn spec(dtype: DType) -> Spec {
    let data = match (dtype.is_int(), dtype.bytes_for_bounds()) {
        (true, 1) => DType::U8,
        (true, 2) => DType::U16,
        (true, 4) => DType::U32,
        (true, _) => DType::U64,
        (false, _) => dtype,
    };
    Spec::new(&MATMUL).with("EP_DATA", dtype_name(data))
}

/// The kernels of all three ops.
pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 3] {
    [Matmul::NAME, BatchMatmul::NAME, BroadcastMatmul::NAME]
        .map(|name| (name, dtypes().map(|[dtype]| spec(dtype)).collect()))
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let build = |device: &CudaDevice, d: &MatmulDesc| {
        Product::new(device, Matmul::NAME, d.data, [d.transpose_a, d.transpose_b])
    };
    let factory = Factory::<Matmul, _, _>::new("matmul", build);
    registrar.add(factory.selectors(transposes()).dtypes(dtypes()).capturable())?;
    let build = |device: &CudaDevice, d: &BatchMatmulDesc| {
        Product::new(device, BatchMatmul::NAME, d.data, [d.transpose_a, d.transpose_b])
    };
    let factory = Factory::<BatchMatmul, _, _>::new("batch_matmul", build);
    registrar.add(factory.selectors(transposes()).dtypes(dtypes()).capturable())?;
    let build = |device: &CudaDevice, d: &BroadcastMatmulDesc| {
        Product::new(device, BroadcastMatmul::NAME, d.data, [d.transpose_a, d.transpose_b])
    };
    let factory = Factory::<BroadcastMatmul, _, _>::new("broadcast_matmul", build);
    registrar.add(factory.selectors(transposes()).dtypes(dtypes()).capturable())
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    addresses: [u64; 3],
    sizes: [u64; 3],
    a: [u64; 2],
    b: [u64; 2],
    outer_count: u64,
    inner_count: u64,
    outer_rank: u64,
    inner_rank: u64,
    outer: [Loop; MAX_LOOPS],
    inner: [Loop; MAX_LOOPS],
    alpha: [u64; 2],
    beta: [u64; 2],
    read_c: u64,
    conjugate: u64,
}

// SAFETY: as `Args` of matmul.cu.
unsafe impl Argument for Args {}

/// A primitive of the family.
struct Product {
    name: &'static str,
    data: DType,
    transposed: [bool; 2],
    library: Option<Library>,
    kernel: Lazy,
    about: String,
}

/// cuBLASLt, for a dtype that it has.
struct Library {
    handle: Arc<Handle>,
    task: Task,
    /// Shapes that were launched; none where the library has no algorithm.
    plans: Mutex<HashMap<Shape, Option<Arc<Plan>>>>,
    /// Launches that are kept, where the options let them be.
    repeats: Option<Repeats<Repeat>>,
}

/// What a launch is told, beside sizes.
#[derive(Clone, Copy)]
struct Call {
    /// a, b and c.
    addresses: [u64; 3],
    alpha: EpScalar,
    beta: EpScalar,
    workspace: (u64, u64),
}

impl Product {
    fn new(
        device: &CudaDevice,
        name: &'static str,
        data: DType,
        transposes: [Transpose; 2],
    ) -> Result<Product> {
        let transposed = transposes.map(|t| t == Transpose::TRANSPOSE);
        let loader = device.loader()?;
        let library = match cublaslt::multiplies(data) {
            true => Some(Library {
                handle: device.cublaslt().map_err(|e| e.context(name))?,
                task: Task { data, transposed, tf32: device.tf32() },
                plans: Mutex::default(),
                repeats: device.repeats_products().then(Repeats::default),
            }),
            false => None,
        };
        let about = match &library {
            Some(library) => format!("{:?}", library.handle),
            None => "tiles of 64 by 64 in shared memory".to_owned(),
        };
        let kernel = Lazy::new(&loader, name, spec(data));
        Ok(Product { name, data, transposed, library, kernel, about })
    }

    /// # Safety
    /// The operands are valid for the problem, and used by nobody else in conflict until the work is done.
    unsafe fn run(&self, stream: &CudaStream, problem: &Problem, call: &Call) -> Result<()> {
        // Factors are judged also where nothing is done.
        let mut alpha = Factor::of("alpha", Scalar::try_from(call.alpha)?, 1, self.data)?;
        let beta = Factor::of("beta", Scalar::try_from(call.beta)?, 0, self.data)?;
        if problem.is_empty() {
            return Ok(());
        }
        let nothing = alpha.is_zero || problem.sums_nothing();
        if nothing {
            if beta.is_one {
                return Ok(());
            }
            // A product over nothing is 0 also where the factor is infinite.
            alpha = Factor::ZERO;
        } else if let Some(library) = &self.library {
            // SAFETY: the caller's promise.
            if unsafe { library.run(self.name, stream, problem, call, [alpha, beta]) }? {
                return Ok(());
            }
        }
        let Problem { m, n, k, a, b, outer, inner } = *problem;
        let conjugate = if self.data.is_complex() { self.transposed } else { [false; 2] };
        let args = Args {
            addresses: call.addresses,
            sizes: [m, n, k],
            a: [a.row, a.col],
            b: [b.row, b.col],
            outer_count: outer.count(),
            inner_count: if nothing { 0 } else { inner.count() },
            outer_rank: outer.as_slice().len() as u64,
            inner_rank: inner.as_slice().len() as u64,
            outer: outer.outermost_first(),
            inner: inner.outermost_first(),
            alpha: alpha.words,
            beta: beta.words,
            read_c: u64::from(!beta.is_zero),
            conjugate: u64::from(conjugate[0]) | u64::from(conjugate[1]) << 1,
        };
        let geometry = geometry(m, n, outer.count())?;
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { self.kernel.get()?.launch(stream, geometry, &args) }
    }
}

/// A block for each tile of each result.
fn geometry(m: u64, n: u64, results: u64) -> Result<Geometry> {
    let tiles = m.div_ceil(TILE).saturating_mul(n.div_ceil(TILE));
    let blocks = i32::try_from(tiles).map_err(|_| {
        Error::unsupported(format!(
            "a result of {m} by {n} needs {tiles} blocks; a grid has at most 2^31 - 1"
        ))
    })?;
    let y = results.min(MOST_BLOCKS_Y) as u32;
    Ok(Geometry { grid: [blocks as u32, y, 1], block: [THREADS, 1, 1], shared_bytes: 0 })
}

/// The largest power of two that divides an address, as far as it matters.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(MOST_ALIGNMENT.trailing_zeros())
}

/// How a problem is given to cuBLASLt: one strided batch, and loops around it.
struct Calls {
    shape: Shape,
    /// What is left to the host.
    outer: Loops,
    inner: Loops,
}

impl Calls {
    /// None for what cuBLASLt does not compute as the contract has it.
    fn of(problem: &Problem, data: DType, transposed: [bool; 2], addresses: [u64; 3]) -> Option<Calls> {
        let Problem { m, n, k, a, b, mut outer, inner } = *problem;
        let bytes = data.bytes_for_bounds();
        let half = [DType::F16, DType::BF16].contains(&data);
        // Half types are rounded once, after all products are summed.
        let refused = half && inner.count() > 1
            || addresses.iter().any(|address| address % bytes != 0)
            || [m, n, k]
                .into_iter()
                .chain(outer.as_slice().iter().map(|l| l.length))
                .any(|size| size >= LEAST_REFUSED);
        if refused {
            return None;
        }
        let longest = outer.as_slice().iter().map(|l| l.length).max().unwrap_or(1);
        let batch = outer.take(|l| l.length == longest);
        let batch = batch.unwrap_or(Loop { length: 1, ..Loop::default() });
        let calls = outer.count().saturating_mul(inner.count());
        // Matrices that follow each other in a loop begin at multiples of all its steps.
        let aligned = |address: u64, step: fn(&Loop) -> u64| {
            let loops = outer.as_slice().iter().chain(inner.as_slice());
            let steps = loops.fold(step(&batch), |all, l| all | step(l));
            alignment(address | steps.wrapping_mul(bytes))
        };
        let alignments =
            [aligned(addresses[0], |l| l.a), aligned(addresses[1], |l| l.b), aligned(addresses[2], |l| l.c)];
        let matrix = |rows, cols, row_step: u64, batch_step, alignment| Matrix {
            rows,
            cols,
            // A single row may have any step, but not less than its length.
            row_step: if rows == 1 { cols } else { row_step },
            batch_step,
            alignment,
        };
        let [turned_a, turned_b] = transposed;
        let [at_a, at_b, at_c] = alignments;
        let matrices = [
            if turned_a { matrix(k, m, a.col, batch.a, at_a) } else { matrix(m, k, a.row, batch.a, at_a) },
            if turned_b { matrix(n, k, b.col, batch.b, at_b) } else { matrix(k, n, b.row, batch.b, at_b) },
            matrix(m, n, n, batch.c, at_c),
        ];
        let shape = Shape { matrices, batch: batch.length as i32, workspace_bytes: WORKSPACE_BYTES };
        (calls <= MOST_CALLS).then_some(Calls { shape, outer, inner })
    }
}

impl Library {
    /// Whether it was done here.
    ///
    /// # Safety
    /// As for [`Product::run`].
    unsafe fn run(
        &self,
        name: &'static str,
        stream: &CudaStream,
        problem: &Problem,
        call: &Call,
        [alpha, beta]: [Factor; 2],
    ) -> Result<bool> {
        let Task { data, transposed, .. } = self.task;
        let repeats = self.repeats.as_ref().zip(Asked::of(problem, call.addresses, [alpha, beta]));
        if let Some((repeats, asked)) = &repeats
            && let Some(repeat) = repeats.kept(asked)
        {
            let mut launched = false;
            let queued = stream.queue_foreign(name, || {
                // SAFETY: the operands are those that were recorded, and valid as the caller promises; the stream's context
                // is the handle's.
                unsafe { repeat.launch(stream.raw()) }?;
                launched = true;
                Ok(())
            });
            match queued {
                Err(e) if !launched && e.code() != Code::DeviceLost => {
                    tracing::debug!("{name}: a launch that was kept failed, and is left to cuBLASLt: {e}");
                    repeats.settle(asked, Recorded::Never);
                }
                done => return done.map(|()| true),
            }
        }
        let Some(Calls { mut shape, outer, inner }) = Calls::of(problem, data, transposed, call.addresses)
        else {
            return Ok(false);
        };
        // Entered once for all that follows.
        let _current = stream.context().enter()?;
        let Some(mut plan) = self.plan(&shape)? else { return Ok(false) };
        let mut workspace = 0;
        if plan.workspace_bytes() > 0 {
            let (address, bytes) = call.workspace;
            let is_given = address != 0 && address % u64::from(MOST_ALIGNMENT) == 0;
            if is_given && bytes >= plan.workspace_bytes() {
                workspace = address;
            } else if let Some(address) = stream.scratch(plan.workspace_bytes())? {
                workspace = address;
            } else {
                shape.workspace_bytes = 0;
                let Some(other) = self.plan(&shape)? else { return Ok(false) };
                plan = other;
            }
        }
        let bytes = data.bytes_for_bounds();
        // The factor 1 of what was added up before.
        let one = Factor::of("beta", Scalar::I64(1), 1, data)?;
        for from in outer.offsets() {
            for (i, further) in inner.offsets().enumerate() {
                let at = |x: usize| call.addresses[x] + (from[x] + further[x]) * bytes;
                let beta = if i == 0 { beta } else { one };
                let operands = Operands {
                    addresses: [at(0), at(1), at(2)],
                    factors: [alpha.words, beta.words],
                    workspace,
                };
                // SAFETY: the operands are valid as the caller promises, of the plan's shape and alignment at each
                // turn; the stream's context is the handle's, and its work uses the workspace one after the other.
                stream.queue_with(name, |_| unsafe { plan.launch(stream.raw(), &operands) })?;
                // What is only made do with while a graph is recorded is not kept, nor what uses workspace, which moves.
                let keeps = shape.workspace_bytes == WORKSPACE_BYTES && plan.workspace_bytes() == 0;
                if let Some((repeats, asked)) = repeats.as_ref().filter(|_| keeps)
                    && repeats.is_due(asked)
                {
                    repeats.settle(asked, record(name, stream, &plan, &operands)?);
                }
            }
        }
        Ok(true)
    }

    /// The plan of a shape, made at its first launch.
    fn plan(&self, shape: &Shape) -> Result<Option<Arc<Plan>>> {
        if let Some(plan) = self.plans.lock().get(shape) {
            return Ok(plan.clone());
        }
        let plan = Plan::new(&self.handle, self.task, shape)?.map(Arc::new);
        // They end behind the lock: that may log.
        let mut ended = HashMap::new();
        let mut plans = self.plans.lock();
        if plans.len() >= MOST_PLANS {
            ended = std::mem::take(&mut *plans);
        }
        let replaced = plans.insert(*shape, plan.clone());
        drop(plans);
        drop((ended, replaced));
        Ok(plan)
    }
}

/// Records the launch of operands that come again and again. It has been done: where this fails, the library goes on doing it.
///
/// # Errors
/// `DeviceLost`.
fn record(name: &str, stream: &CudaStream, plan: &Plan, operands: &Operands) -> Result<Recorded<Repeat>> {
    // Beside a capture nothing is begun that it might not allow.
    if stream.is_capturing()? {
        return Ok(Recorded::Later);
    }
    match plan.repeat(operands) {
        Ok(Some(repeat)) => {
            tracing::debug!("{name}: operands that came again are multiplied without cuBLASLt from now on");
            Ok(Recorded::Kept(repeat))
        }
        Ok(None) => Ok(Recorded::Never),
        Err(e) if e.code() == Code::DeviceLost => Err(e),
        Err(e) => {
            tracing::debug!("{name}: a launch that comes again cannot be recorded: {e}");
            Ok(if e.code() == Code::OutOfMemory { Recorded::Later } else { Recorded::Never })
        }
    }
}

/// Sizes of a launch, which have been checked not to be negative.
fn sizes<const N: usize>(values: [i64; N]) -> [u64; N] {
    values.map(|value| size(value) as u64)
}

impl Kernel<Matmul, CudaDevice> for Product {
    unsafe fn launch(&self, stream: &CudaStream, args: &MatmulArgs) -> Result<()> {
        let problem = Problem::one(sizes([args.m, args.n, args.k]), self.transposed);
        let call = Call {
            addresses: [args.a, args.b, args.c],
            alpha: args.alpha,
            beta: args.beta,
            workspace: (args.workspace, args.workspace_bytes),
        };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &problem, &call) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

impl Kernel<BatchMatmul, CudaDevice> for Product {
    unsafe fn launch(&self, stream: &CudaStream, args: &BatchMatmulArgs) -> Result<()> {
        let [batch, m, n, k] = sizes([args.batch, args.m, args.n, args.k]);
        let problem = Problem::one([m, n, k], self.transposed).batch(batch);
        let call = Call {
            addresses: [args.a, args.b, args.c],
            alpha: args.alpha,
            beta: args.beta,
            workspace: (args.workspace, args.workspace_bytes),
        };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &problem, &call) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

impl Kernel<BroadcastMatmul, CudaDevice> for Product {
    unsafe fn launch(&self, stream: &CudaStream, args: &BroadcastMatmulArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let dims = unsafe {
            [
                view(args.a_dims, args.num_a_dims),
                view(args.b_dims, args.num_b_dims),
                view(args.c_dims, args.num_c_dims),
            ]
        };
        let mut sizes = [[0u64; MAX_DIMS]; 3];
        for (to, from) in sizes.iter_mut().zip(dims) {
            to.iter_mut().zip(from).for_each(|(to, dim)| *to = size(*dim) as u64);
        }
        let fits = dims.iter().all(|d| d.len() <= MAX_DIMS);
        let shapes = [0, 1, 2].map(|x| &sizes[x][..dims[x].len().min(MAX_DIMS)]);
        let problem = if fits { Problem::broadcast(shapes, self.transposed) } else { None };
        let problem = problem.ok_or_else(|| misfit(dims, self.transposed))?;
        let call = Call {
            addresses: [args.a, args.b, args.c],
            alpha: args.alpha,
            beta: args.beta,
            workspace: (args.workspace, args.workspace_bytes),
        };
        // SAFETY: the caller's promise.
        unsafe { self.run(stream, &problem, &call) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

#[cold]
fn misfit([a, b, c]: [&[i64]; 3], transposed: [bool; 2]) -> Error {
    let stored = |on: bool| if on { " (transposed)" } else { "" };
    Error::invalid(format!(
        "broadcast_matmul of {a:?}{} and {b:?}{} into {c:?}: each needs 2 to {MAX_DIMS} dimensions, the matrices must \
         fit, and batch dimensions be equal or 1",
        stored(transposed[0]),
        stored(transposed[1])
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(problem: &Problem, data: DType, transposed: [bool; 2], addresses: [u64; 3]) -> Option<Calls> {
        Calls::of(problem, data, transposed, addresses)
    }

    #[test]
    fn matrices_are_described_as_they_are_stored() {
        let problem = Problem::one([3, 5, 7], [false, true]);
        let shape = calls(&problem, DType::F32, [false, true], [256, 512 + 4, 768]).unwrap().shape;
        let stored = shape.matrices.map(|m| (m.rows, m.cols, m.row_step, m.alignment));
        assert_eq!(stored, [(3, 7, 7, 256), (5, 7, 7, 4), (3, 5, 5, 256)]);
        let row = Problem::one([1, 5, 7], [true, false]);
        let shape = calls(&row, DType::F32, [true, false], [0; 3]).unwrap().shape;
        assert_eq!((shape.matrices[0].rows, shape.matrices[0].row_step), (7, 1));
    }

    #[test]
    fn the_longest_loop_is_the_batch_and_alignment_holds_at_every_turn() {
        let dims: [&[u64]; 3] = [&[2, 1, 3, 4], &[1, 9, 4, 5], &[2, 9, 3, 5]];
        let problem = Problem::broadcast(dims, [false; 2]).unwrap();
        let Calls { shape, outer, .. } = calls(&problem, DType::F32, [false; 2], [0; 3]).unwrap();
        assert_eq!((shape.batch, outer.count()), (9, 2));
        let steps = shape.matrices.map(|m| m.batch_step);
        assert_eq!(steps, [0, 20, 15]);
        // a steps by 12 elements, b by 20, c by 15 and by 135.
        assert_eq!(shape.matrices.map(|m| m.alignment), [16, 16, 4]);
    }

    #[test]
    fn what_the_library_rounds_otherwise_or_cannot_reach_is_the_kernels() {
        let dims: [&[u64]; 3] = [&[9, 3, 4], &[9, 4, 5], &[3, 5]];
        let summed = Problem::broadcast(dims, [false; 2]).unwrap();
        assert!(calls(&summed, DType::F16, [false; 2], [0; 3]).is_none(), "rounded at each turn");
        assert!(calls(&summed, DType::F32, [false; 2], [0; 3]).is_some());
        let plain = Problem::one([3, 5, 7], [false; 2]);
        assert!(calls(&plain, DType::COMPLEX64, [false; 2], [4, 0, 0]).is_none(), "aligned to a part only");
        assert!(calls(&plain, DType::F16, [false; 2], [2, 0, 0]).is_some());
        for at in 0..3 {
            let sized = |size| {
                let mut sizes = [3, 5, 7];
                sizes[at] = size;
                calls(&Problem::one(sizes, [false; 2]), DType::F16, [false; 2], [0; 3]).is_some()
            };
            assert_eq!([(1 << 30) - 1, 1 << 30, 1 << 40].map(sized), [true, false, false]);
        }
        let batches: [&[u64]; 3] = [&[1 << 30, 3, 4], &[1 << 30, 4, 5], &[1 << 30, 3, 5]];
        let batches = Problem::broadcast(batches, [false; 2]).unwrap();
        assert!(calls(&batches, DType::F32, [false; 2], [0; 3]).is_none());
        let many: [&[u64]; 3] = [&[65, 1, 3, 4], &[1, 66, 4, 5], &[65, 66, 3, 5]];
        let many = Problem::broadcast(many, [true, true].map(|_| false)).unwrap();
        assert!(calls(&many, DType::F32, [false; 2], [0; 3]).is_none(), "65 calls");
    }

    #[test]
    fn rows_are_those_of_the_support_table() {
        for op in [Matmul::NAME, BatchMatmul::NAME, BroadcastMatmul::NAME] {
            let mut expected: Vec<String> = Vec::new();
            for line in include_str!("../../../docs/support.csv").lines() {
                let fields: Vec<_> = line.split(',').collect();
                if fields[0] == op && fields[2] == "yes" {
                    expected.push(fields[1].to_owned());
                }
            }
            let mut claimed: Vec<_> = dtypes().map(|[d]| format!("data={d}")).collect();
            expected.sort();
            claimed.sort();
            assert_eq!(claimed, expected, "{op}");
        }
    }

    #[test]
    fn grids_cover_the_result() {
        let grid = |m, n, results| geometry(m, n, results).unwrap().grid;
        assert_eq!(
            (grid(1, 1, 1), grid(65, 128, 3), grid(64, 64, 1 << 20)),
            ([1, 1, 1], [4, 3, 1], [1, 65_535, 1])
        );
        assert!(geometry(1 << 30, 1 << 30, 1).unwrap_err().message().contains("blocks"));
    }
}
