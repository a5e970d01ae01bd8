//! `add`: the sum of any number of sources.

use super::source::ADD;
use super::{dtype_name, size, unsigned};
use crate::compiler::Spec;
use crate::device::CudaDevice;
use crate::kernel::{Argument, Geometry, Lazy};
use crate::provider::CudaProvider;
use crate::stream::CudaStream;
use ep_core::op::{MAX_LIST, Op, address_list};
use ep_core::primitive::{Add, AddArgs, AddDesc};
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{DType, Error, Result};

const THREADS: u32 = 256;
/// Places for sources where there are few.
const FEW: usize = 8;

fn spec(dtype: DType, places: usize) -> Spec {
    Spec::new(&ADD)
        .with("EP_DATA", dtype_name(unsigned(dtype)))
        .with("EP_ARITY", places)
        .with("EP_PACK", 16 / dtype.bytes_for_bounds())
        .with("EP_THREADS", THREADS)
}

pub(super) fn kernels() -> [(&'static str, Vec<Spec>); 1] {
    let of_dtype = |dtype: DType| [FEW, MAX_LIST].map(|places| spec(dtype, places));
    [(Add::NAME, DType::ALL.into_iter().flat_map(of_dtype).collect())]
}

pub(super) fn register(registrar: &mut Registrar<'_, CudaProvider>) -> Result<()> {
    let rows = DType::ALL.iter().map(|d| [*d]);
    registrar.add(Factory::<Add, _, _>::new("add", build).dtypes(rows).capturable())
}

fn build(device: &CudaDevice, desc: &AddDesc) -> Result<Sum> {
    let loader = device.loader()?;
    let lazy = |places| Lazy::new(&loader, Add::NAME, spec(desc.data, places));
    Ok(Sum { few: lazy(FEW), many: lazy(MAX_LIST), bytes: desc.data.bytes_for_bounds() })
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args<const N: usize> {
    count: u64,
    arity: u64,
    dst: u64,
    head: u64,
    srcs: [u64; N],
}

// SAFETY: as `Args` of add.cu where `EP_ARITY` is `N`.
unsafe impl<const N: usize> Argument for Args<N> {}

struct Sum {
    few: Lazy,
    many: Lazy,
    bytes: u64,
}

impl Sum {
    fn args<const N: usize>(&self, count: u64, dst: u64, srcs: &[u64]) -> (Args<N>, u64) {
        let pack = 16 / self.bytes;
        let before = dst / self.bytes % pack;
        let mut args =
            Args { count, arity: srcs.len() as u64, dst, head: (pack - before) % pack, srcs: [0; N] };
        args.srcs.iter_mut().zip(srcs).for_each(|(to, from)| *to = *from);
        (args, (count + before).div_ceil(pack))
    }
}

impl Kernel<Add, CudaDevice> for Sum {
    unsafe fn launch(&self, stream: &CudaStream, args: &AddArgs) -> Result<()> {
        let (count, dst) = (size(args.count) as u64, args.dst);
        if count == 0 {
            return Ok(());
        }
        let Some(bytes) = count.checked_mul(self.bytes).filter(|n| *n <= i64::MAX as u64) else {
            return Err(Error::invalid(format!("add of {count} elements: no address space holds that")));
        };
        // SAFETY: the launch has been checked, and its addresses are readable during the call.
        let srcs = unsafe { address_list(args.srcs, args.arity) };
        if let [src] = *srcs {
            if src == dst {
                return Ok(());
            }
            // SAFETY: the caller promises both operands. A copy keeps every bit.
            return stream.queue(Add::NAME, |c| unsafe {
                c.driver().cuMemcpyAsync(dst, src, bytes as usize, stream.raw())
            });
        }
        // SAFETY: the operands are valid as the caller promises, and each is the argument of its kernel.
        unsafe {
            if srcs.len() <= FEW {
                let (argument, packs) = self.args::<FEW>(count, dst, srcs);
                self.few.get()?.launch(stream, Geometry::covering(packs, THREADS, 1)?, &argument)
            } else {
                let (argument, packs) = self.args::<MAX_LIST>(count, dst, srcs);
                self.many.get()?.launch(stream, Geometry::covering(packs, THREADS, 1)?, &argument)
            }
        }
    }

    fn describe(&self) -> &str {
        "one pass over all sources, by packs of 16 bytes"
    }
}
