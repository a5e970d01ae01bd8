//! `strided_copy`: between two strided views, of different dtypes too.

use super::copy::{Move, Mover};
use super::nd::{ByIndex, Loops, Nd, Operand, pack_of};
use super::strided::{sizes, starts, steps, walk};
use super::unary::{Args, spec, unroll};
use super::{copy, pairs, size};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::{Op, view};
use ep_core::primitive::{StridedCopy, StridedCopyArgs, StridedCopyDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result};

/// Those of `cast`, and those that copy.
pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    let casts = pairs(&DType::ALL, &DType::ALL).into_iter().filter(|[src, dst]| src != dst);
    let casts = casts.map(|[src, dst]| spec("cast", src, dst, super::nd::Index::Narrow));
    [(StridedCopy::NAME, copy::kernels().into_iter().chain(casts).collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let rows = pairs(&DType::ALL, &DType::ALL);
    registrar.add(Factory::<StridedCopy, _, _>::new("strided_copy", build).dtypes(rows).capturable())
}

fn build(device: &CudaDevice, desc: &StridedCopyDesc) -> Result<Copier> {
    let StridedCopyDesc { src, dst, .. } = *desc;
    let (loader, name) = (device.loader()?, StridedCopy::NAME);
    let bytes = [dst, src].map(DType::bytes_for_bounds);
    let way = if src == dst {
        Way::Move(Box::new(Mover::new(&loader, name, bytes[0])))
    } else {
        Way::Cast(Box::new(ByIndex::new(&loader, name, |index| spec("cast", src, dst, index))))
    };
    Ok(Copier { way, bytes })
}

enum Way {
    Move(Box<Mover>),
    Cast(Box<ByIndex>),
}

struct Copier {
    way: Way,
    /// Of the elements, those of the destination first.
    bytes: [u64; 2],
}

/// Checks that a view which is not empty does not lead below the start of its buffer.
fn stays_inside(side: &str, dims: &[usize], strides: &[isize], offset: usize) -> Result<()> {
    // The walk has been planned, so neither a product nor the sum overflows.
    let down = dims.iter().zip(strides).filter(|(_, s)| **s < 0);
    let below: usize = down.map(|(d, s)| (d - 1) * s.unsigned_abs()).sum();
    if below > offset {
        return Err(Error::invalid(format!(
            "the {side}'s strides {strides:?} for dimensions {dims:?} lead {below} elements down from offset {offset}, \
             below its start; give an offset of at least {below}"
        )));
    }
    Ok(())
}

impl Kernel<StridedCopy, CudaDevice> for Copier {
    unsafe fn launch(&self, stream: &CudaStream, args: &StridedCopyArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let (dims, src_strides, dst_strides) = unsafe {
            (
                sizes(view(args.dims, args.num_dims)),
                steps(view(args.src_strides, args.num_dims)),
                steps(view(args.dst_strides, args.num_dims)),
            )
        };
        let walk = walk(&dims, [&dst_strides, &src_strides], self.bytes)?;
        if walk.count() == 0 {
            return Ok(());
        }
        let offsets = [size(args.dst_offset), size(args.src_offset)];
        stays_inside("source", &dims, &src_strides, offsets[1])?;
        stays_inside("destination", &dims, &dst_strides, offsets[0])?;
        let first = |address: u64, k: usize| address.wrapping_add(offsets[k] as u64 * self.bytes[k]);
        let [dst, src] = starts(&walk, [first(args.dst, 0), first(args.src, 1)]);
        // SAFETY: the operands are valid as the caller promises, no element of the destination is reached twice, as was
        // checked, and this is the kernel's argument.
        unsafe {
            match &self.way {
                Way::Move(mover) => {
                    let dims = walk.sizes().iter().zip(walk.strides());
                    let dims = dims.map(|(size, strides)| (*size as u64, strides.map(|s| s as i64)));
                    mover.run(stream, Move::new(dims, [dst, src]))
                }
                Way::Cast(kernels) => {
                    let operands = [Operand::Memory(dst, self.bytes[0]), Operand::Memory(src, self.bytes[1])];
                    let loops = Loops::walk(&walk, self.bytes);
                    let (nd, index) = Nd::new(&loops, operands, pack_of(&self.bytes));
                    let function = kernels.get(index)?;
                    let geometry = nd.geometry(unroll("cast", self.bytes))?;
                    function.launch(stream, geometry, &Args { nd, attr: [0.0; 2] })
                }
            }
        }
    }

    fn describe(&self) -> &str {
        match self.way {
            Way::Move(_) => "the largest pieces that stay together",
            Way::Cast(_) => "packs along the destination's innermost dimension",
        }
    }
}
