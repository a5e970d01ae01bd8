//! `constant_pad`: a tensor with a border, or without a part of it.

use super::nd::{ByIndex, FastDiv, Index, RANK};
use super::source::PAD;
use super::{is_loose, scalar, with_loose, with_loose_sizes};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::{Op, view};
use ep_core::primitive::{ConstantPad, ConstantPadArgs, ConstantPadDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result, Scalar};
use primitives::pad::Padding;

const THREADS: u32 = 256;
/// Packs of a thread.
const UNROLL: u32 = 1;

fn spec(size: u64, index: Index, loose: bool) -> Spec {
    let spec = Spec::new(&PAD)
        .with("EP_SIZE", size)
        .with("EP_PACK", 16 / size)
        .with("EP_INDEX", index.name())
        .with("EP_THREADS", THREADS)
        .with("EP_UNROLL", UNROLL);
    with_loose(spec, loose)
}

/// The kernels with indices of 32 bits; the others are compiled when they are needed.
pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    [(ConstantPad::NAME, with_loose_sizes(|size, loose| spec(size, Index::Narrow, loose)))]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let rows = DType::ALL.iter().map(|d| [*d]);
    registrar.add(Factory::<ConstantPad, _, _>::new("constant_pad", build).dtypes(rows).capturable())
}

fn build(device: &CudaDevice, desc: &ConstantPadDesc) -> Result<Padder> {
    let (loader, size) = (device.loader()?, desc.data.bytes_for_bounds());
    let kernels = |loose| ByIndex::new(&loader, ConstantPad::NAME, |index| spec(size, index, loose));
    Ok(Padder { kernels: kernels(false), loose: kernels(true), data: desc.data })
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Args {
    packs: u64,
    rank: u32,
    vector: u32,
    dims: [FastDiv; RANK],
    dst_inner: i64,
    src_dims: [i64; RANK],
    src_strides: [i64; RANK],
    before: [i64; RANK],
    value: [u64; 2],
    src: u64,
    dst: u64,
    end: u64,
}

// SAFETY: as `Args` of pad.cu.
unsafe impl Argument for Args {}

impl Args {
    /// For a destination that is not empty, with elements of `size` bytes.
    fn new(padding: &Padding, size: u64, value: [u64; 2], src: u64, dst: u64) -> (Args, Index) {
        let (dims, pack) = (padding.dims(), 16 / size);
        let inner = dims[dims.len() - 1];
        let row = (inner.dst_dim as u64).div_ceil(pack);
        let outer: u64 = dims[..dims.len() - 1].iter().map(|d| d.dst_dim as u64).product();
        let whole = |elements: u64| elements.is_multiple_of(pack);
        let to = whole(inner.dst_dim as u64) && dst.is_multiple_of(16);
        let from = whole(inner.src_dim as u64)
            && whole(inner.before.unsigned_abs() as u64)
            && src.is_multiple_of(16);
        let mut args = Args {
            packs: row * outer,
            rank: dims.len() as u32,
            vector: u32::from(to) | u32::from(from) << 1,
            dims: [FastDiv::default(); RANK],
            dst_inner: inner.dst_dim as i64,
            src_dims: [0; RANK],
            src_strides: [0; RANK],
            before: [0; RANK],
            value,
            src,
            dst,
            end: 0,
        };
        let mut step = 1;
        for (k, dim) in dims.iter().rev().enumerate() {
            args.dims[k] = FastDiv::new(if k == 0 { row } else { dim.dst_dim as u64 });
            args.src_dims[k] = dim.src_dim as i64;
            args.src_strides[k] = step;
            args.before[k] = dim.before as i64;
            step *= dim.src_dim as i64;
        }
        args.end = src + step as u64 * size;
        // What is looked for may begin a pack before the source, and the source end as far behind that.
        (args, Index::of((padding.count() as u64).max(step as u64).saturating_add(pack)))
    }
}

struct Padder {
    kernels: ByIndex,
    loose: ByIndex,
    data: DType,
}

impl Kernel<ConstantPad, CudaDevice> for Padder {
    unsafe fn launch(&self, stream: &CudaStream, args: &ConstantPadArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its lists are readable during the call.
        let [src_dims, before, after] = unsafe {
            [args.src_dims, args.padding_before, args.padding_after].map(|list| view(list, args.num_dims))
        };
        let value = match Scalar::try_from(args.value)? {
            Scalar::None => Scalar::Bool(false),
            value => value,
        };
        let value = scalar::words(scalar::element("value", value, self.data)?);
        let padding = Padding::simplify(src_dims, before, after)?;
        let size = self.data.bytes_for_bounds();
        let count = padding.count() as u64;
        if count == 0 {
            return Ok(());
        }
        if count.checked_mul(size).is_none_or(|n| n > i64::MAX as u64) {
            return Err(Error::invalid(format!(
                "constant_pad of {src_dims:?} by {before:?} before and {after:?} after: no address space holds that"
            )));
        }
        let (argument, index) = Args::new(&padding, size, value, args.src, args.dst);
        let loose = is_loose(size, args.src | args.dst);
        let kernels = if loose { &self.loose } else { &self.kernels };
        let geometry = Geometry::covering(argument.packs, THREADS, UNROLL)?;
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { kernels.get(index)?.launch(stream, geometry, &argument) }
    }

    fn describe(&self) -> &str {
        "packs of the destination, 16 bytes each"
    }
}

#[cfg(test)]
mod tests {
    use super::super::SIZES;
    use super::super::nd::tests::divide;
    use super::*;

    /// For each element of the destination its source, or none where it is padding, as pad.cu finds it.
    fn emulate(args: &Args, pack: u64) -> Vec<Option<i64>> {
        let mut found = Vec::new();
        for p in 0..args.packs {
            let (mut rest, column) = if args.rank > 1 { divide(args.dims[0], p) } else { (0, p) };
            let (mut inside, mut from) = (true, 0);
            for d in 1..args.rank as usize {
                let mut index = rest;
                if d + 1 < args.rank as usize {
                    (rest, index) = divide(args.dims[d], rest);
                }
                let at = index as i64 - args.before[d];
                inside &= at >= 0 && at < args.src_dims[d];
                from += at * args.src_strides[d];
            }
            let inner = (column * pack) as i64;
            for i in inner..(inner + pack as i64).min(args.dst_inner) {
                let at = i - args.before[0];
                found.push((inside && at >= 0 && at < args.src_dims[0]).then_some(from + at));
            }
        }
        found
    }

    #[test]
    fn every_element_of_the_destination_has_its_source_or_none() {
        let cases: [(&[i64], &[i64], &[i64]); 6] = [
            (&[3, 5], &[1, 2], &[0, 1]),
            (&[4, 6, 8], &[0, -1, 0], &[0, 2, 0]),
            (&[7], &[3], &[-2]),
            (&[], &[], &[]),
            (&[0, 3], &[2, 1], &[0, 0]),
            (&[2, 3, 4], &[1, 0, -2], &[-1, 1, 5]),
        ];
        for (dims, before, after) in cases {
            for size in SIZES {
                let padding = Padding::simplify(dims, before, after).unwrap();
                let (args, _) = Args::new(&padding, size, [0; 2], 0x1000, 0x2000);
                let out: Vec<i64> = (0..dims.len()).map(|d| dims[d] + before[d] + after[d]).collect();
                let count: i64 = out.iter().product();
                let expected = (0..count).map(|element| {
                    let (mut rest, mut from, mut step) = (element, 0, 1);
                    for d in (0..dims.len()).rev() {
                        let at = rest % out[d] - before[d];
                        rest /= out[d];
                        if at < 0 || at >= dims[d] {
                            return None;
                        }
                        from += at * step;
                        step *= dims[d];
                    }
                    Some(from)
                });
                let expected: Vec<_> = expected.collect();
                assert_eq!(emulate(&args, 16 / size), expected, "{dims:?} {before:?} {after:?} of {size}");
            }
        }
    }

    #[test]
    fn indices_have_room_for_the_pack_before_the_source() {
        let index = |dim: i64| {
            let padding = Padding::simplify(&[dim], &[1], &[-1]).unwrap();
            Args::new(&padding, 1, [0; 2], 0x1000, 0x2000).1
        };
        let most = i64::from(i32::MAX);
        assert_eq!(
            (index(most - 16), index(most - 15), index(most)),
            (Index::Narrow, Index::Wide, Index::Wide)
        );
    }

    #[test]
    fn packs_need_whole_rows_and_aligned_addresses() {
        let vector = |dims: &[i64], before: &[i64], src, dst| {
            let padding = Padding::simplify(dims, before, &vec![0; dims.len()]).unwrap();
            Args::new(&padding, 4, [0; 2], src, dst).0.vector
        };
        assert_eq!(vector(&[3, 8], &[1, 4], 0x100, 0x200), 0b11);
        assert_eq!(vector(&[3, 8], &[1, 2], 0x100, 0x200), 0b00);
        assert_eq!(vector(&[3, 8], &[1, 4], 0x104, 0x200), 0b01);
        assert_eq!(vector(&[3, 8], &[1, 4], 0x100, 0x208), 0b10);
    }
}
