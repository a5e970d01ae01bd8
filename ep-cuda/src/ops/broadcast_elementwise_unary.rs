//! `broadcast_elementwise_unary`: functions of one element between strided layouts.

use super::nd::{ByIndex, Loops, Nd, Operand, pack_of};
use super::strided::{sizes, starts, steps, walk};
use super::unary::{Args, choices_of, class_kernels, classes, name_of, spec, unroll};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::{MAX_DIMS, Op, view};
use ep_core::primitive::{
    BroadcastElementwiseUnary, BroadcastElementwiseUnaryArgs, BroadcastElementwiseUnaryDesc,
};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result};

pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    [(BroadcastElementwiseUnary::NAME, class_kernels())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    for class in classes() {
        let factory =
            Factory::<BroadcastElementwiseUnary, _, _>::new(format!("strided_{}", class.name), build);
        registrar.add(factory.selectors(choices_of(&class)).dtypes(class.dtypes).capturable())?;
    }
    Ok(())
}

fn build(device: &CudaDevice, desc: &BroadcastElementwiseUnaryDesc) -> Result<Strided> {
    let BroadcastElementwiseUnaryDesc { src, dst, attr0, attr1, .. } = *desc;
    let op = name_of(desc.op)?;
    let name = BroadcastElementwiseUnary::NAME;
    let bytes = [dst, src].map(DType::bytes_for_bounds);
    Ok(Strided {
        kernels: ByIndex::new(&device.loader()?, name, |index| spec(op, src, dst, index)),
        bytes,
        unroll: unroll(op, bytes),
        attr: [attr0, attr1],
    })
}

struct Strided {
    kernels: ByIndex,
    /// Of the elements, those of the destination first.
    bytes: [u64; 2],
    unroll: u32,
    attr: [f64; 2],
}

impl Kernel<BroadcastElementwiseUnary, CudaDevice> for Strided {
    unsafe fn launch(&self, stream: &CudaStream, args: &BroadcastElementwiseUnaryArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let (src_dims, src_strides, dst_dims, dst_strides) = unsafe {
            (
                sizes(view(args.src_dims, args.num_src_dims)),
                steps(view(args.src_strides, args.num_src_dims)),
                sizes(view(args.dst_dims, args.num_dst_dims)),
                steps(view(args.dst_strides, args.num_dst_dims)),
            )
        };
        let spread = spread(&src_dims, &src_strides, &dst_dims)?;
        let walk = walk(&dst_dims, [&dst_strides, &spread[..dst_dims.len()]], self.bytes)?;
        if walk.count() == 0 {
            return Ok(());
        }
        let [dst, src] = starts(&walk, [args.dst, args.src]);
        let operands = [Operand::Memory(dst, self.bytes[0]), Operand::Memory(src, self.bytes[1])];
        let (nd, index) = Nd::new(&Loops::walk(&walk, self.bytes), operands, pack_of(&self.bytes));
        // SAFETY: the operands are valid as the caller promises, no element of the destination is reached twice, as was
        // checked, and this is the kernel's argument.
        unsafe {
            let function = self.kernels.get(index)?;
            function.launch(stream, nd.geometry(self.unroll)?, &Args { nd, attr: self.attr })
        }
    }

    fn describe(&self) -> &str {
        "packs along the destination's innermost dimension"
    }
}

/// The source's strides over the destination's dimensions: 0 where it repeats.
fn spread(src_dims: &[usize], src_strides: &[isize], dst_dims: &[usize]) -> Result<[isize; MAX_DIMS]> {
    let fits = src_dims.len() <= dst_dims.len()
        && src_dims.iter().rev().zip(dst_dims.iter().rev()).all(|(s, d)| *s == 1 || s == d);
    if !fits {
        return Err(Error::invalid(format!(
            "a source of shape {src_dims:?} with strides {src_strides:?} does not broadcast to {dst_dims:?}: aligned \
             at the last dimension, each of its sizes must be 1 or the destination's"
        )));
    }
    let mut strides = [0; MAX_DIMS];
    let skip = dst_dims.len() - src_dims.len();
    for (to, (dim, stride)) in strides[skip..].iter_mut().zip(src_dims.iter().zip(src_strides)) {
        *to = if *dim == 1 { 0 } else { *stride };
    }
    Ok(strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_repeat_where_they_have_one_element_or_no_dimension() {
        assert_eq!(spread(&[3, 1], &[5, 9], &[2, 3, 4]).unwrap()[..3], [0, 5, 0]);
        assert!(spread(&[2], &[1], &[3]).unwrap_err().message().contains("does not broadcast"));
        assert!(spread(&[1, 3], &[1, 1], &[3]).is_err());
    }
}
