//! `matmul`, `batch_matmul` and `broadcast_matmul`.

use super::split::{grid, part};
use super::{FLOATS, add, is_offered, size};
use crate::compiled::{Compiled, Kept, Layout, Quality, Task};
use crate::device::OnednnDevice;
use crate::engine::Engine;
use crate::provider::OnednnProvider;
use ep_core::abi::EpScalar;
use ep_core::op::{MAX_DIMS, view};
use ep_core::parallel::Parallel;
use ep_core::primitive::{
    BatchMatmul, BatchMatmulArgs, BatchMatmulDesc, BroadcastMatmul, BroadcastMatmulArgs, BroadcastMatmulDesc,
    Matmul, MatmulArgs, MatmulDesc, Transpose,
};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Host, Kernel, Registrar};
use ep_core::{Code, DType, Error, Result, Scalar};
use half::{bf16, f16};
use primitives::matmul::{Loop, Problem};
use std::ops::Range;
use std::sync::Arc;

/// Multiplications and additions that are worth another thread.
const LEAST_FLOPS: u64 = 1 << 21;
/// Rows and columns of a part are multiples of these, which the library's blocks divide.
const UNITS: [u64; 2] = [16, 64];
/// Elements of a result that are worth another thread where they are only scaled.
const GRAIN: usize = 32 << 10;

pub(super) fn register(registrar: &mut Registrar<'_, OnednnProvider>, engine: &Arc<Engine>) -> Result<()> {
    let dtypes: Vec<[DType; 1]> =
        FLOATS.into_iter().filter(|d| multiplies(engine, *d)).map(|d| [d]).collect();
    let build = |device: &OnednnDevice, d: &MatmulDesc| {
        Ok(Product::new(device, d.data, [d.transpose_a, d.transpose_b]))
    };
    let factory = Factory::<Matmul, _, _>::new("matmul", build);
    add(registrar, factory.selectors(transposes()), dtypes.iter().copied())?;
    let build = |device: &OnednnDevice, d: &BatchMatmulDesc| {
        Ok(Product::new(device, d.data, [d.transpose_a, d.transpose_b]))
    };
    let factory = Factory::<BatchMatmul, _, _>::new("batch_matmul", build);
    add(registrar, factory.selectors(transposes()), dtypes.iter().copied())?;
    let build = |device: &OnednnDevice, d: &BroadcastMatmulDesc| {
        Ok(Product::new(device, d.data, [d.transpose_a, d.transpose_b]))
    };
    let factory = Factory::<BroadcastMatmul, _, _>::new("broadcast_matmul", build);
    add(registrar, factory.selectors(transposes()), dtypes.iter().copied())
}

/// Both transposes in all combinations.
fn transposes() -> [[u32; 2]; 4] {
    let (none, transpose) = (Transpose::NONE.0, Transpose::TRANSPOSE.0);
    [[none, none], [none, transpose], [transpose, none], [transpose, transpose]]
}

/// Whether oneDNN multiplies matrices of a dtype, with results of it and of f32.
fn multiplies(engine: &Arc<Engine>, data: DType) -> bool {
    [data, DType::F32].into_iter().all(|result| {
        is_offered(engine, || {
            let shape = Shape {
                batch: 1,
                sizes: [256; 3],
                a: [0, 256, 1],
                b: [0, 256, 1],
                c: [0, 256],
                adds: false,
                wide: result != data,
            };
            shape.task(engine, data)
        })
    })
}

/// All that decides which primitive of the library a part is computed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    batch: u64,
    /// m, n and k
    sizes: [u64; 3],
    /// Steps in elements between matrices (0: all share one), rows and columns of op(a).
    a: [u64; 3],
    /// Likewise of op(b).
    b: [u64; 3],
    /// Steps between results, and between their rows.
    c: [u64; 2],
    /// Whether the product is added to the result.
    adds: bool,
    /// Whether the result is f32 for factors of a shorter type.
    wide: bool,
}

impl Shape {
    fn task(&self, engine: &Engine, data: DType) -> Result<Task> {
        let [m, n, k] = self.sizes;
        // The library takes the step of a single row or column for a distance between rows all the same. A result has
        // steps of rows alone: for others there are only plain loops.
        let factor = |rows: u64, cols: u64, [batch, row, col]: [u64; 3]| {
            let row = if rows > 1 { row } else { alone(col, cols) };
            [batch, row, if cols > 1 { col } else { alone(row, rows) }]
        };
        let layout = |dtype, rows: u64, cols: u64, [batch, row, col]: [u64; 3]| {
            if self.batch == 1 {
                return Layout::new(engine, dtype, &[rows, cols], &[row, col]);
            }
            let (dim, step) = if batch == 0 { (1, rows.saturating_mul(cols)) } else { (self.batch, batch) };
            Layout::new(engine, dtype, &[dim, rows, cols], &[step, row, col])
        };
        let result = if self.wide { DType::F32 } else { data };
        let layouts = [
            layout(data, m, k, factor(m, k, self.a))?,
            layout(data, k, n, factor(k, n, self.b))?,
            layout(result, m, n, [self.c[0], self.c[1], 1])?,
        ];
        Ok(Task::Matmul { layouts, adds: self.adds })
    }
}

/// The step of a dimension of one, where the other one of a matrix has this step and this size.
fn alone(step: u64, size: u64) -> u64 {
    if step == 1 { size } else { 1 }
}

/// A primitive of the family.
struct Product {
    engine: Arc<Engine>,
    host: Host,
    data: DType,
    transposed: [bool; 2],
    kept: Kept<Shape>,
    about: String,
}

/// What a launch is told, beside sizes.
#[derive(Clone, Copy)]
struct Call {
    /// a, b and c.
    addresses: [u64; 3],
    alpha: f32,
    beta: f32,
}

/// What one thread computes: rows and columns of the results of some of a batch.
struct Part {
    /// Of a, b and c, in elements.
    from: [u64; 3],
    batch: Range<u64>,
    rows: Range<u64>,
    cols: Range<u64>,
}

impl Product {
    fn new(device: &OnednnDevice, data: DType, transposes: [Transpose; 2]) -> Product {
        let engine = device.engine().clone();
        let about = format!("oneDNN {}, compiled for each shape", engine.library().version());
        Product {
            engine,
            host: device.host().clone(),
            data,
            transposed: transposes.map(|t| t == Transpose::TRANSPOSE),
            kept: Kept::default(),
            about,
        }
    }

    fn call(&self, addresses: [u64; 3], alpha: EpScalar, beta: EpScalar) -> Result<Call> {
        let factor = |name, scalar: EpScalar, default| {
            let scalar = Scalar::try_from(scalar)?;
            if scalar.im() != 0.0 {
                return Err(Error::invalid(format!(
                    "`{name}` is {scalar}, but {} is real; leave the imaginary part 0",
                    self.data
                )));
            }
            Ok(if scalar == Scalar::None { default } else { scalar.as_f64() as f32 })
        };
        Ok(Call { addresses, alpha: factor("alpha", alpha, 1.0)?, beta: factor("beta", beta, 0.0)? })
    }

    /// # Safety
    /// The operands are valid for the problem, and used by nobody else in conflict.
    unsafe fn run(&self, problem: &Problem, call: &Call) -> Result<()> {
        if problem.is_empty() {
            return Ok(());
        }
        if call.alpha == 0.0 || problem.sums_nothing() {
            let count = problem.outer.count() * problem.m * problem.n;
            // SAFETY: the results are dense, and valid as the caller promises.
            return unsafe { self.scale(call.addresses[2], count as usize, call.beta) };
        }
        let Problem { m, n, k, mut outer, inner, .. } = *problem;
        let longest = outer.as_slice().iter().map(|l| l.length).max().unwrap_or(1);
        let single = Loop { length: 1, ..Loop::default() };
        // What is not one product after the other into its place is computed for one result at a time.
        let batch = match inner.count() {
            1 if !self.goes_apart(problem, call) => outer.take(|l| l.length == longest).unwrap_or(single),
            _ => single,
        };
        let results = outer.count().saturating_mul(batch.length);
        let flops = [2, m, n, k, results, inner.count()].into_iter().fold(1, u64::saturating_mul);
        let want = self.engine.parts(&self.host, flops / LEAST_FLOPS);
        // Whole matrices for each thread where that is even; else all threads share each.
        let whole = results.is_multiple_of(want) || results >= 8 * want;
        let batches = if whole { want.div_ceil(outer.count()).min(batch.length) } else { 1 };
        let [rows, cols] = if whole { [1, 1] } else { self.grid(problem, &batch, call, want)? };
        let parts = outer.count() * batches * rows * cols;
        self.host.parallel_for(parts as usize, 1, want as usize, &|range| {
            for index in range {
                let index = index as u64;
                let (rest, col) = (index / cols, index % cols);
                let (rest, row) = (rest / rows, rest % rows);
                let (turn, i) = (rest / batches, rest % batches);
                let task = Part {
                    from: outer.offset(turn),
                    batch: part(batch.length, batches, 1, i),
                    rows: part(m, rows, UNITS[0], row),
                    cols: part(n, cols, UNITS[1], col),
                };
                // SAFETY: the caller's promise; results of parts are apart.
                unsafe { self.part(problem, &batch, call, &task) }?;
            }
            Ok(())
        })
    }

    /// Into how many parts of rows and of columns each result is split for this many threads. Some releases of the
    /// library have nothing but plain loops for a part of a matrix, so what it has for each way is looked at.
    fn grid(&self, problem: &Problem, batch: &Loop, call: &Call, parts: u64) -> Result<[u64; 2]> {
        let Problem { m, n, .. } = *problem;
        let mut best = ([1, 1], Quality::Plain);
        let ways = [UNITS, [UNITS[0], n], [m, UNITS[1]]].map(|units| grid(m, n, units, parts));
        for way in ways {
            if way == [1, 1] || way == best.0 {
                continue;
            }
            // The last part may be of other sizes than those before.
            let quality = [0, way[0] * way[1] - 1].map(|index| {
                let rows = part(m, way[0], UNITS[0], index / way[1]);
                let cols = part(n, way[1], UNITS[1], index % way[1]);
                let one = Part { from: [0; 3], batch: 0..batch.length, rows, cols };
                self.compiled(self.shape(problem, batch, call, &one, 0)).map(|compiled| compiled.quality())
            });
            for quality in &quality {
                match quality {
                    // A way that there is nothing for; the whole may still be.
                    Err(e) if e.code() != Code::Unsupported => return Err(e.clone()),
                    _ => {}
                }
            }
            let [first, last] = quality.map(|quality| quality.unwrap_or(Quality::Plain));
            if first.min(last) > best.1 {
                best = (way, first.min(last));
            }
        }
        Ok(best.0)
    }

    /// What the product at a turn of the sum is for the library.
    fn shape(&self, problem: &Problem, batch: &Loop, call: &Call, part: &Part, turn: u64) -> Shape {
        let Problem { n, k, a, b, .. } = *problem;
        let cols = part.cols.end - part.cols.start;
        let apart = self.goes_apart(problem, call);
        Shape {
            batch: part.batch.end - part.batch.start,
            sizes: [part.rows.end - part.rows.start, cols, k],
            a: [batch.a, a.row, a.col],
            b: [batch.b, b.row, b.col],
            c: if apart { [0, cols] } else { [batch.c, n] },
            adds: turn > 0 || !apart && call.beta == 1.0,
            wide: apart,
        }
    }

    /// Whether products are added up in f32 elsewhere, and then go to their place: those of short types, which are
    /// rounded once; and those with factors, which the library would compile anew for each value.
    fn goes_apart(&self, problem: &Problem, call: &Call) -> bool {
        let sums = problem.inner.count() > 1 && self.data != DType::F32;
        sums || call.alpha != 1.0 || !(call.beta == 0.0 || call.beta == 1.0)
    }

    fn compiled(&self, shape: Shape) -> Result<Arc<Compiled>> {
        self.kept.get(shape, || Compiled::new(&self.engine, shape.task(&self.engine, self.data)?))
    }

    /// # Safety
    /// As for [`Product::run`], of the part alone.
    unsafe fn part(&self, problem: &Problem, batch: &Loop, call: &Call, part: &Part) -> Result<()> {
        let Problem { n, a, b, inner, .. } = *problem;
        let bytes = self.data.bytes_for_bounds();
        let at = |x: usize, further: u64, batch: u64, inside: u64| {
            call.addresses[x] + (part.from[x] + further + part.batch.start * batch + inside) * bytes
        };
        let (rows, cols) = (part.rows.end - part.rows.start, part.cols.end - part.cols.start);
        let c = at(2, 0, batch.c, part.rows.start * n + part.cols.start);
        let apart = self.goes_apart(problem, call);
        let sum = self.engine.scratch(if apart { (rows * cols) as usize * size_of::<f32>() } else { 0 })?;
        for (turn, further) in inner.offsets().enumerate() {
            let compiled = self.compiled(self.shape(problem, batch, call, part, turn as u64))?;
            let addresses = [
                at(0, further[0], batch.a, part.rows.start * a.row),
                at(1, further[1], batch.b, part.cols.start * b.col),
                if apart { sum.start().expose_provenance() as u64 } else { c },
            ];
            // SAFETY: parts of the operands, or scratch memory for a result in f32.
            unsafe { compiled.run(&addresses) }?;
        }
        if apart {
            // SAFETY: the sum was written; rows of c are valid as the caller promises.
            unsafe {
                match self.data {
                    DType::F32 => finish::<f32>(sum.start().cast(), c, [rows, cols, n], call),
                    DType::F16 => finish::<f16>(sum.start().cast(), c, [rows, cols, n], call),
                    _ => finish::<bf16>(sum.start().cast(), c, [rows, cols, n], call),
                }
            }
        }
        Ok(())
    }

    /// c = beta * c for a product of nothing.
    ///
    /// # Safety
    /// `count` elements at `c` are valid, and used by nobody else; they are read unless beta is 0.
    unsafe fn scale(&self, c: u64, count: usize, beta: f32) -> Result<()> {
        if beta == 1.0 {
            return Ok(());
        }
        let bytes = self.data.bytes_for_bounds();
        self.host.parallel_for(count, GRAIN, 0, &|range| {
            let at = c + range.start as u64 * bytes;
            // SAFETY: the caller's promise; this range belongs to this thread alone.
            unsafe {
                match self.data {
                    DType::F32 => scale::<f32>(at, range.len(), beta),
                    DType::F16 => scale::<f16>(at, range.len(), beta),
                    _ => scale::<bf16>(at, range.len(), beta),
                }
            }
            Ok(())
        })
    }
}

/// An element that is computed with in f32.
pub(super) trait Float: Copy {
    fn wide(self) -> f32;
    fn rounded(x: f32) -> Self;
}

impl Float for f32 {
    fn wide(self) -> f32 {
        self
    }
    fn rounded(x: f32) -> f32 {
        x
    }
}

impl Float for f16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn rounded(x: f32) -> f16 {
        f16::from_f32(x)
    }
}

impl Float for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn rounded(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
}

/// # Safety
/// `count` elements at `c` may be written, and read unless beta is 0.
unsafe fn scale<T: Float>(c: u64, count: usize, beta: f32) {
    let c = std::ptr::with_exposed_provenance_mut::<T>(c as usize);
    for i in 0..count {
        // SAFETY: as the caller promises.
        unsafe {
            let c = c.add(i);
            c.write(T::rounded(if beta == 0.0 { 0.0 } else { beta * c.read().wide() }));
        }
    }
}

/// c = alpha * sum + beta * c for `rows` by `cols` elements of c, whose rows are `step` apart; those of the sum are dense.
///
/// # Safety
/// Both are valid, and c is read unless beta is 0.
unsafe fn finish<T: Float>(sum: *const f32, c: u64, [rows, cols, step]: [u64; 3], call: &Call) {
    let c = std::ptr::with_exposed_provenance_mut::<T>(c as usize);
    for row in 0..rows as usize {
        for col in 0..cols as usize {
            // SAFETY: as the caller promises.
            unsafe {
                let new = call.alpha * sum.add(row * cols as usize + col).read();
                let c = c.add(row * step as usize + col);
                let old = if call.beta == 0.0 { 0.0 } else { call.beta * c.read().wide() };
                c.write(T::rounded(new + old));
            }
        }
    }
}

impl Kernel<Matmul, OnednnDevice> for Product {
    unsafe fn launch(&self, _: &InlineStream, args: &MatmulArgs) -> Result<()> {
        let problem = Problem::one([args.m, args.n, args.k].map(size), self.transposed);
        let call = self.call([args.a, args.b, args.c], args.alpha, args.beta)?;
        // SAFETY: the caller's promise.
        unsafe { self.run(&problem, &call) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

impl Kernel<BatchMatmul, OnednnDevice> for Product {
    unsafe fn launch(&self, _: &InlineStream, args: &BatchMatmulArgs) -> Result<()> {
        let one = Problem::one([args.m, args.n, args.k].map(size), self.transposed);
        let call = self.call([args.a, args.b, args.c], args.alpha, args.beta)?;
        // SAFETY: the caller's promise.
        unsafe { self.run(&one.batch(size(args.batch)), &call) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

impl Kernel<BroadcastMatmul, OnednnDevice> for Product {
    unsafe fn launch(&self, _: &InlineStream, args: &BroadcastMatmulArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let dims = unsafe {
            [
                view(args.a_dims, args.num_a_dims),
                view(args.b_dims, args.num_b_dims),
                view(args.c_dims, args.num_c_dims),
            ]
        };
        let sizes = dims.map(|dims| dims.iter().map(|dim| size(*dim)).collect::<Vec<u64>>());
        let problem = Problem::broadcast([&sizes[0], &sizes[1], &sizes[2]], self.transposed);
        let problem = problem.ok_or_else(|| {
            Error::invalid(format!(
                "shapes {:?} and {:?} do not multiply into {:?}, transposed {:?}; give ranks 2 to {MAX_DIMS} whose \
                 batches broadcast",
                dims[0], dims[1], dims[2], self.transposed
            ))
        })?;
        let call = self.call([args.a, args.b, args.c], args.alpha, args.beta)?;
        // SAFETY: the caller's promise.
        unsafe { self.run(&problem, &call) }
    }

    fn describe(&self) -> &str {
        &self.about
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Library;

    /// Matrices of one row or column, in a process whose library has not met them before, are more than plain loops.
    #[test]
    fn single_rows_and_columns_are_fast() {
        let library = match Library::open(None) {
            Ok(library) => Arc::new(library),
            Err(e) => return println!("skipped: {e}"),
        };
        let engine = Engine::new(library).unwrap();
        for [m, n, k] in [[300, 1, 200], [1, 300, 200], [300, 200, 1], [1, 1, 300], [300, 1, 1], [1, 1, 1]] {
            for [turned_a, turned_b] in [[false, false], [false, true], [true, false], [true, true]] {
                let a = if turned_a { [0, 1, m] } else { [0, k, 1] };
                let b = if turned_b { [0, 1, k] } else { [0, n, 1] };
                let shape = Shape { batch: 1, sizes: [m, n, k], a, b, c: [0, n], adds: false, wide: false };
                let compiled = Compiled::new(&engine, shape.task(&engine, DType::F32).unwrap()).unwrap();
                assert!(compiled.quality() > Quality::Plain, "{shape:?}: {compiled:?}");
            }
        }
    }
}
