//! `where`: one of two elements by a condition.

use super::nd::{ByIndex, Index, Loops, Nd, Operand, pack_of, specialise};
use super::source::WHERE;
use super::{is_loose, pairs, with_loose, with_loose_sizes};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::Argument;
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::{Op, view};
use ep_core::primitive::{Where, WhereArgs, WhereDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result};
use primitives::broadcast::Plan;

/// Packs of a thread.
const UNROLL: u32 = 2;

/// Conditions by their size: whether one is 0 does not depend on more.
const CONDITIONS: [(u64, &str); 4] = [(1, "u8"), (2, "u16"), (4, "u32"), (8, "u64")];

fn spec(cond: u64, size: u64, index: Index, loose: bool) -> Spec {
    let name = CONDITIONS.iter().find(|(bytes, _)| *bytes == cond).map_or("", |(_, name)| name);
    let spec = Spec::new(&WHERE).with("EP_COND", name).with("EP_SIZE", size);
    with_loose(specialise(spec, pack_of(&[cond, size]), UNROLL, index), loose)
}

/// The kernels with indices of 32 bits; the others are compiled when they are needed.
pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    let of_condition = |(cond, _)| with_loose_sizes(|size, loose| spec(cond, size, Index::Narrow, loose));
    [(Where::NAME, CONDITIONS.into_iter().flat_map(of_condition).collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let dtypes = pairs(&[&[DType::BOOL], DType::INT].concat(), &DType::ALL);
    registrar.add(Factory::<Where, _, _>::new("where", build).dtypes(dtypes).capturable())
}

fn build(device: &CudaDevice, desc: &WhereDesc) -> Result<Chooser> {
    let [cond, size] = [desc.cond, desc.data].map(DType::bytes_for_bounds);
    let loader = device.loader()?;
    let kernels = |loose| ByIndex::new(&loader, Where::NAME, |index| spec(cond, size, index, loose));
    Ok(Chooser { kernels: kernels(false), loose: kernels(true), cond, size })
}

// SAFETY: as `Args` of where.cu.
unsafe impl Argument for Nd<4> {}

struct Chooser {
    kernels: ByIndex,
    loose: ByIndex,
    cond: u64,
    size: u64,
}

impl Kernel<Where, CudaDevice> for Chooser {
    unsafe fn launch(&self, stream: &CudaStream, args: &WhereArgs) -> Result<()> {
        // SAFETY: the launch has been checked, and its dims are readable during the call.
        let dims = unsafe {
            [
                view(args.cond_dims, args.num_cond_dims),
                view(args.x_dims, args.num_x_dims),
                view(args.y_dims, args.num_y_dims),
            ]
        };
        let plan = Plan::new(dims)?;
        if plan.count() == 0 {
            return Ok(());
        }
        let sources = [(args.cond, self.cond), (args.x, self.size), (args.y, self.size)];
        for (n, (address, size)) in sources.into_iter().enumerate() {
            if address == args.dst && (size != self.size || !plan.is_dense(n)) {
                return Err(Error::invalid(
                    "the destination is also an operand of `where`, but one of another shape or element size; select \
                     into a separate buffer instead",
                ));
            }
        }
        let [cond, x, y] = sources.map(|(address, size)| Operand::Memory(address, size));
        let operands = [Operand::Memory(args.dst, self.size), cond, x, y];
        let pack = pack_of(&[self.cond, self.size]);
        let (nd, index, geometry) = Nd::broadcast(&Loops::broadcast(&plan), operands, pack, UNROLL)?;
        let loose = is_loose(self.size, args.x | args.y | args.dst);
        let kernels = if loose { &self.loose } else { &self.kernels };
        // SAFETY: the operands are valid as the caller promises, and this is the kernel's argument.
        unsafe { kernels.get(index)?.launch(stream, geometry, &nd) }
    }

    fn describe(&self) -> &str {
        "packs of 16 bytes, by the sizes of the elements"
    }
}
