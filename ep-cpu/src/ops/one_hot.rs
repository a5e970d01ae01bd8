//! `one_hot`.

use super::index::{self, Reading};
use super::scalar::{Converter, Element, or_default};
use super::{Bound, destination, size, unclaimed};
use crate::device::CpuDevice;
use crate::kernels::one_hot::{self, OneHotFn};
use crate::provider::CpuProvider;
use ep_core::primitive::{OneHot, OneHotArgs, OneHotDesc};
use ep_core::provider::inline::InlineStream;
use ep_core::provider::{Factory, Kernel, Registrar};
use ep_core::{Result, Scalar};

pub(super) fn register(registrar: &mut Registrar<'_, CpuProvider>) -> Result<()> {
    let dtypes =
        index::DTYPES.into_iter().flat_map(|indices| one_hot::rows().map(move |data| [indices, data]));
    registrar.add(Factory::<OneHot, _, _>::new("one_hot", build).selectors(index::selectors()).dtypes(dtypes))
}

fn build(device: &CpuDevice, desc: &OneHotDesc) -> Result<Marker> {
    let kernel = one_hot::lookup(desc.data).ok_or_else(|| unclaimed::<OneHot>(&[desc.indices, desc.data]))?;
    let convert = Converter::new(desc.data)?;
    Ok(Marker {
        bound: Bound::new(device, kernel, "one pass of fills between the elements that are on"),
        reading: Reading::new(desc.mode, desc.indices)?,
        on: convert.element("on", Scalar::Bool(true).into())?,
        off: convert.element("off", Scalar::Bool(false).into())?,
        convert,
    })
}

struct Marker {
    bound: Bound<OneHotFn>,
    reading: Reading,
    convert: Converter,
    /// Where the launch gives no values.
    on: Element,
    off: Element,
}

impl Kernel<OneHot, CpuDevice> for Marker {
    unsafe fn launch(&self, _: &InlineStream, args: &OneHotArgs) -> Result<()> {
        let launch = one_hot::OneHotArgs {
            num_indices: size(args.num_indices),
            depth: size(args.depth),
            offset: size(args.offset),
            size: size(args.size),
            mode: self.reading.mode,
            indices: self.reading.at(args.indices),
            on: or_default(&self.convert, "on", args.on, self.on)?.0,
            off: or_default(&self.convert, "off", args.off, self.off)?.0,
            dst: destination(args.dst),
        };
        // SAFETY: the caller promises the operands, which do not overlap.
        unsafe { (self.bound.kernel)(self.bound.isa, &self.bound.host, &launch) }
    }

    fn describe(&self) -> &str {
        &self.bound.about
    }
}
