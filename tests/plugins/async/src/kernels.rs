//! The kernels: simple loops that run later, on a stream's thread. Nothing of the arguments is kept but copies.

use crate::{AsyncDevice, AsyncProvider, AsyncStream};
use ep_core::op::{self, Op};
use ep_core::primitive::{
    BinaryOp, BroadcastElementwiseBinary, BroadcastElementwiseBinaryArgs, BroadcastElementwiseBinaryDesc,
    Cast, CastArgs, CastDesc, ElementwiseUnary, ElementwiseUnaryArgs, ElementwiseUnaryDesc, Fill, FillArgs,
    FillDesc, Matmul, MatmulArgs, MatmulDesc, Memcpy, MemcpyArgs, MemcpyDesc, MemcpyKind, Memset, MemsetArgs,
    MemsetDesc, Permute, PermuteArgs, PermuteDesc, Softmax, SoftmaxArgs, SoftmaxDesc, Transpose, UnaryOp,
};
use ep_core::provider::{Factory, Kernel, Registrar, cells, slice, slice_mut};
use ep_core::{DType, Element, Error, Result, Scalar};

const F32: DType = DType::F32;

pub(crate) fn register(r: &mut Registrar<'_, AsyncProvider>) -> Result<()> {
    let casts =
        [(F32, DType::F64), (DType::F64, F32), (F32, DType::I32), (DType::I32, F32), (DType::U8, F32)];
    let unary = [UnaryOp::RELU, UnaryOp::NEGATIVE, UnaryOp::IDENTITY];
    let transposes = [Transpose::NONE, Transpose::TRANSPOSE];
    let both = transposes.iter().flat_map(|a| transposes.iter().map(|b| [a.0, b.0]));
    let fills = [F32, DType::F64, DType::I32, DType::I64, DType::U8];

    r.add(later::<Memcpy>(memcpy).selectors([[MemcpyKind::AUTO.0], [MemcpyKind::DEVICE_TO_DEVICE.0]]))?;
    r.add(later::<Memset>(memset))?;
    r.add(later::<Fill>(fill).dtypes(fills.map(|d| [d])))?;
    r.add(
        later::<ElementwiseUnary>(elementwise_unary)
            .selectors(unary.map(|u| [u.0]))
            .dtypes([F32, DType::I32].map(|d| [d, d])),
    )?;
    r.add(
        later::<BroadcastElementwiseBinary>(binary)
            .selectors([[BinaryOp::ADD.0], [BinaryOp::MUL.0]])
            .dtypes([[F32, F32]]),
    )?;
    r.add(later::<Softmax>(softmax).dtypes([[F32, F32]]))?;
    r.add(later::<Matmul>(matmul).selectors(both).dtypes([[F32]]))?;
    r.add(later::<Permute>(permute).dtypes([[F32]]))?;
    r.add(later::<Cast>(cast).dtypes(casts.map(|(src, dst)| [src, dst])))
}

/// Work that runs later.
type Work = Box<dyn FnOnce() + Send>;

/// Copies out of a launch's arguments what its work needs.
///
/// # Safety
/// As [`Kernel::launch`]; the work runs while the memory of the launch is valid.
type Plan<O> = unsafe fn(&<O as Op>::Desc, &<O as Op>::Args) -> Result<Work>;

/// A primitive whose launches are queued.
struct Later<O: Op> {
    desc: O::Desc,
    plan: Plan<O>,
}

type Build<O> = Box<dyn Fn(&AsyncDevice, &<O as Op>::Desc) -> Result<Later<O>> + Send + Sync>;

/// A factory named like its op.
fn later<O: Op>(plan: Plan<O>) -> Factory<O, AsyncDevice, Build<O>> {
    Factory::new(O::NAME, Box::new(move |_, desc| Ok(Later { desc: *desc, plan })))
}

impl<O: Op> Kernel<O, AsyncDevice> for Later<O> {
    unsafe fn launch(&self, stream: &AsyncStream, args: &O::Args) -> Result<()> {
        // SAFETY: as the caller promises; the memory stays valid until the work, queued here, is done.
        let (uses, work) = unsafe { (O::uses(&self.desc, args), (self.plan)(&self.desc, args)?) };
        stream.launch(uses.as_ref().iter().map(|u| (u.address, u.bytes)), work)
    }

    fn describe(&self) -> &str {
        "scalar loop on the stream's thread"
    }
}

/// `dst[i] = f(src[i])`, in place too.
///
/// # Safety
/// Both operands stay valid until the work is done.
unsafe fn map<S: Element, D: Element>(src: u64, dst: u64, count: i64, f: fn(S) -> D) -> Work {
    Box::new(move || {
        // SAFETY: as the caller promises.
        let (src, dst) = unsafe { (cells::<S>(src, count), cells::<D>(dst, count)) };
        dst.iter().zip(src).for_each(|(d, s)| d.set(f(s.get())));
    })
}

/// # Safety
/// As [`Plan`].
unsafe fn memcpy(_: &MemcpyDesc, args: &MemcpyArgs) -> Result<Work> {
    // SAFETY: as the caller promises.
    Ok(unsafe { map::<u8, u8>(args.src, args.dst, args.bytes, |byte| byte) })
}

/// Sets every element of `dst`.
///
/// # Safety
/// `dst` stays valid until the work is done.
unsafe fn set<T: Element>(dst: u64, count: i64, value: T) -> Work {
    // SAFETY: as the caller promises.
    Box::new(move || unsafe { slice_mut(dst, count) }.fill(value))
}

/// # Safety
/// As [`Plan`].
unsafe fn memset(_: &MemsetDesc, args: &MemsetArgs) -> Result<Work> {
    let value = u8::convert(args.value.try_into()?);
    // SAFETY: as the caller promises.
    Ok(unsafe { set(args.dst, args.bytes, value) })
}

/// Elements that scalars convert to as `cast` converts.
trait Number: Element {
    fn convert(scalar: Scalar) -> Self;
}

macro_rules! numbers {
    ($($t:ty),*) => { $(
        impl Number for $t {
            fn convert(scalar: Scalar) -> $t {
                match scalar {
                    Scalar::None => 0 as $t,
                    Scalar::Bool(b) => u8::from(b) as $t,
                    Scalar::I64(i) => i as $t,
                    Scalar::U64(u) => u as $t,
                    Scalar::F64(f) | Scalar::Complex(f, _) => f as $t,
                }
            }
        }
    )* };
}
numbers!(f32, f64, i32, i64, u8);

/// # Safety
/// As [`Plan`].
unsafe fn fill(desc: &FillDesc, args: &FillArgs) -> Result<Work> {
    let (dst, count, value) = (args.dst, args.count, Scalar::try_from(args.value)?);
    // SAFETY: as the caller promises.
    unsafe {
        Ok(match desc.data {
            DType::F32 => set(dst, count, f32::convert(value)),
            DType::F64 => set(dst, count, f64::convert(value)),
            DType::I32 => set(dst, count, i32::convert(value)),
            DType::I64 => set(dst, count, i64::convert(value)),
            DType::U8 => set(dst, count, u8::convert(value)),
            other => return Err(unregistered(other)),
        })
    }
}

/// The host asked for what no factory covers.
fn unregistered(what: impl std::fmt::Debug) -> Error {
    Error::internal(format!("{what:?} is not in a registered row"))
}

/// # Safety
/// As [`Plan`].
unsafe fn elementwise_unary(desc: &ElementwiseUnaryDesc, args: &ElementwiseUnaryArgs) -> Result<Work> {
    let (src, dst, count) = (args.src, args.dst, args.count);
    // SAFETY: as the caller promises.
    unsafe {
        Ok(match (desc.src, desc.op) {
            // A comparison that lets a NaN through.
            (DType::F32, UnaryOp::RELU) => {
                map::<f32, f32>(src, dst, count, |x| if x < 0.0 { 0.0 } else { x })
            }
            (DType::F32, UnaryOp::NEGATIVE) => map::<f32, f32>(src, dst, count, |x| -x),
            (DType::F32, UnaryOp::IDENTITY) => map::<f32, f32>(src, dst, count, |x| x),
            (DType::I32, UnaryOp::RELU) => map::<i32, i32>(src, dst, count, |x| x.max(0)),
            (DType::I32, UnaryOp::NEGATIVE) => map::<i32, i32>(src, dst, count, i32::wrapping_neg),
            (DType::I32, UnaryOp::IDENTITY) => map::<i32, i32>(src, dst, count, |x| x),
            other => return Err(unregistered(other)),
        })
    }
}

/// # Safety
/// As [`Plan`].
unsafe fn cast(desc: &CastDesc, args: &CastArgs) -> Result<Work> {
    let (src, dst, count) = (args.src, args.dst, args.count);
    // SAFETY: as the caller promises.
    unsafe {
        Ok(match (desc.src, desc.dst) {
            (DType::F32, DType::F64) => map::<f32, f64>(src, dst, count, f64::from),
            (DType::F64, DType::F32) => map::<f64, f32>(src, dst, count, |x| x as f32),
            (DType::F32, DType::I32) => map::<f32, i32>(src, dst, count, |x| x as i32),
            (DType::I32, DType::F32) => map::<i32, f32>(src, dst, count, |x| x as f32),
            (DType::U8, DType::F32) => map::<u8, f32>(src, dst, count, f32::from),
            other => return Err(unregistered(other)),
        })
    }
}

/// Element strides of a contiguous tensor, in a shape of `rank` dimensions that it broadcasts to (stride 0).
fn broadcast_strides(dims: &[i64], rank: usize) -> Vec<i64> {
    let mut strides = vec![0; rank];
    let mut step = 1;
    for (i, d) in dims.iter().enumerate().rev() {
        strides[rank - dims.len() + i] = if *d == 1 { 0 } else { step };
        step *= d;
    }
    strides
}

/// The offsets of all elements of a shape in order, for each of two lists of strides.
fn offsets(dims: &[i64], strides: [&[i64]; 2]) -> impl Iterator<Item = [usize; 2]> {
    let count = dims.iter().product::<i64>();
    (0..count).map(move |linear| {
        let mut rest = linear;
        let mut offsets = [0; 2];
        for (i, d) in dims.iter().enumerate().rev() {
            let index = rest % d;
            rest /= d;
            for (offset, strides) in offsets.iter_mut().zip(strides) {
                *offset += (index * strides[i]) as usize;
            }
        }
        offsets
    })
}

/// # Safety
/// As [`Plan`].
unsafe fn binary(
    desc: &BroadcastElementwiseBinaryDesc,
    args: &BroadcastElementwiseBinaryArgs,
) -> Result<Work> {
    let f: fn(f32, f32) -> f32 = match desc.op {
        BinaryOp::ADD => |x, y| x + y,
        BinaryOp::MUL => |x, y| x * y,
        other => return Err(unregistered(other)),
    };
    // SAFETY: the dims have been checked, and are readable during the launch.
    let dims = unsafe {
        [op::view(args.src0_dims, args.num_src0_dims), op::view(args.src1_dims, args.num_src1_dims)]
    };
    let rank = dims[0].len().max(dims[1].len());
    let padded = dims.map(|d| [vec![1; rank - d.len()], d.to_vec()].concat());
    let shape: Vec<i64> = padded[0].iter().zip(&padded[1]).map(|(x, y)| op::broadcast_dim(*x, *y)).collect();
    if padded.iter().flat_map(|p| p.iter().zip(&shape)).any(|(d, s)| *d != 1 && d != s) {
        return Err(Error::invalid(format!("shapes {:?} and {:?} do not broadcast", dims[0], dims[1])));
    }
    let strides = dims.map(|d| broadcast_strides(d, rank));
    let lens = dims.map(|d| d.iter().product::<i64>());
    let scalars: [Scalar; 2] = [args.scalar0.try_into()?, args.scalar1.try_into()?];
    let (addresses, dst) = ([args.src0, args.src1], args.dst);
    Ok(Box::new(move || {
        let count = shape.iter().product();
        // SAFETY: as the caller promises. A source that a scalar stands in for has no memory: it is not looked at.
        let (dst, sources) = unsafe {
            let source =
                |i: usize| cells::<f32>(addresses[i], if scalars[i] == Scalar::None { lens[i] } else { 0 });
            (cells::<f32>(dst, count), [source(0), source(1)])
        };
        let value = |i: usize, at: usize| match scalars[i] {
            Scalar::None => sources[i][at].get(),
            scalar => f32::convert(scalar),
        };
        for (d, [x, y]) in dst.iter().zip(offsets(&shape, [&strides[0], &strides[1]])) {
            d.set(f(value(0, x), value(1, y)));
        }
    }))
}

/// # Safety
/// As [`Plan`].
unsafe fn softmax(_: &SoftmaxDesc, args: &SoftmaxArgs) -> Result<Work> {
    let (cols, inner, src, dst) = (args.cols as usize, args.inner.max(1) as usize, args.src, args.dst);
    let count = args.rows * args.cols * args.inner.max(1);
    Ok(Box::new(move || {
        // SAFETY: as the caller promises.
        let (src, dst) = unsafe { (cells::<f32>(src, count), cells::<f32>(dst, count)) };
        let block = (cols * inner).max(1);
        for (src, dst) in src.chunks(block).zip(dst.chunks(block)) {
            for lane in 0..inner.min(src.len()) {
                let row = || (lane..block).step_by(inner);
                let max = row().fold(f32::NEG_INFINITY, |m, i| m.max(src[i].get()));
                let mut sum = 0.0;
                for i in row() {
                    dst[i].set((src[i].get() - max).exp());
                    sum += dst[i].get();
                }
                row().for_each(|i| dst[i].set(dst[i].get() / sum));
            }
        }
    }))
}

/// # Safety
/// As [`Plan`].
unsafe fn matmul(desc: &MatmulDesc, args: &MatmulArgs) -> Result<Work> {
    let (m, n, k) = (args.m as usize, args.n as usize, args.k as usize);
    let transposed = |t: Transpose| t == Transpose::TRANSPOSE;
    let (ta, tb) = (transposed(desc.transpose_a), transposed(desc.transpose_b));
    let alpha = f32::convert(Scalar::try_from(args.alpha)?.or(Scalar::F64(1.0)));
    let beta = f32::convert(args.beta.try_into()?);
    let (a, b, c) = (args.a, args.b, args.c);
    Ok(Box::new(move || {
        let count = |rows: usize, cols: usize| (rows * cols) as i64;
        // SAFETY: as the caller promises; c overlaps neither a nor b.
        let (a, b, c) = unsafe {
            (slice::<f32>(a, count(m, k)), slice::<f32>(b, count(k, n)), slice_mut::<f32>(c, count(m, n)))
        };
        for i in 0..m {
            for j in 0..n {
                let at = |p: usize| if ta { a[p * m + i] } else { a[i * k + p] };
                let bt = |p: usize| if tb { b[j * k + p] } else { b[p * n + j] };
                // With alpha 0 the operands do not matter, whatever they hold.
                let product =
                    if alpha == 0.0 { 0.0 } else { alpha * (0..k).map(|p| at(p) * bt(p)).sum::<f32>() };
                let c = &mut c[i * n + j];
                *c = if beta == 0.0 { product } else { product + beta * *c };
            }
        }
    }))
}

/// # Safety
/// As [`Plan`].
unsafe fn permute(_: &PermuteDesc, args: &PermuteArgs) -> Result<Work> {
    // SAFETY: the dims have been checked, and are readable during the launch.
    let (dims, permutation) =
        unsafe { (op::view(args.src_dims, args.num_dims), op::view(args.permutation, args.num_dims)) };
    let mut sorted = permutation.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..args.num_dims) {
        return Err(Error::invalid(format!(
            "permutation {permutation:?}: each of 0..{} must be there once",
            args.num_dims
        )));
    }
    let src_strides = broadcast_strides(dims, dims.len());
    let shape: Vec<i64> = permutation.iter().map(|p| dims[*p as usize]).collect();
    let strides: Vec<i64> = permutation.iter().map(|p| src_strides[*p as usize]).collect();
    let (src, dst) = (args.src, args.dst);
    Ok(Box::new(move || {
        let count = shape.iter().product();
        // SAFETY: as the caller promises; the operands do not overlap. Bits move as integers, so that no NaN
        // changes.
        let (src, dst) = unsafe { (slice::<u32>(src, count), slice_mut::<u32>(dst, count)) };
        for (d, [from, _]) in dst.iter_mut().zip(offsets(&shape, [&strides, &strides])) {
            *d = src[from];
        }
    }))
}
