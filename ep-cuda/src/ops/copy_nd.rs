//! `copy_nd`: a box of one tensor into another.

use super::copy::{self, Move, Mover};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::{Op, view};
use ep_core::primitive::{CopyNd, CopyNdArgs, CopyNdDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Result};
use primitives::copy_nd::BoxCopy;

pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    [(CopyNd::NAME, copy::kernels())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let rows = DType::ALL.iter().map(|d| [*d]);
    registrar.add(Factory::<CopyNd, _, _>::new("copy_nd", build).dtypes(rows).capturable())
}

fn build(device: &CudaDevice, desc: &CopyNdDesc) -> Result<Copier> {
    let size = desc.data.bytes_for_bounds();
    Ok(Copier { mover: Mover::new(&device.loader()?, CopyNd::NAME, size), size })
}

struct Copier {
    mover: Mover,
    size: u64,
}

/// The box as a move.
fn plan(copy: &BoxCopy, size: u64, [dst, src]: [u64; 2]) -> Move {
    let mut steps = [size as i64; 2];
    let dims = copy.dims().iter().rev().map(|d| {
        let strides = steps;
        steps = [steps[0] * d.dst_dim as i64, steps[1] * d.src_dim as i64];
        (d.extent as u64, strides)
    });
    let (to, from) = copy.offsets();
    Move::new(dims, [dst.wrapping_add(to as u64 * size), src.wrapping_add(from as u64 * size)])
}

impl Kernel<CopyNd, CudaDevice> for Copier {
    unsafe fn launch(&self, stream: &CudaStream, args: &CopyNdArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let [dst_dims, dst_pos, src_dims, src_pos, extent] = unsafe {
            [args.dst_dims, args.dst_pos, args.src_dims, args.src_pos, args.extent]
                .map(|dims| view(dims, args.num_dims))
        };
        let copy = BoxCopy::simplify(dst_dims, dst_pos, src_dims, src_pos, extent, self.size as usize)?;
        if copy.count() == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises both operands, which do not overlap.
        unsafe { self.mover.run(stream, plan(&copy, self.size, [args.dst, args.src])) }
    }

    fn describe(&self) -> &str {
        "the largest pieces that stay together"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_becomes_strides_and_first_addresses() {
        let copy = BoxCopy::simplify(&[4, 6], &[1, 2], &[3, 5], &[0, 1], &[2, 3], 4).unwrap();
        let expected = Move::new([(3, [4, 4]), (2, [24, 20])], [0x100 + 8 * 4, 0x200 + 4]);
        assert_eq!(plan(&copy, 4, [0x100, 0x200]), expected);
    }
}
