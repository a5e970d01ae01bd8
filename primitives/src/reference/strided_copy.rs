//! `strided_copy`: any strides on both sides, casting; what no stride leads to stays.

use super::cast::convert;
use super::launch::{Launch, Outputs};
use super::number::{Data, View, size_of};
use super::shape::{count, may_repeat, strided, unravel};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (from, to) = (launch.get_dtype("src")?, launch.get_dtype("dst")?);
    let dims = launch.get_dims("dims")?;
    let src_strides = launch.get_list_of("src_strides", dims.len())?;
    let dst_strides = launch.get_list_of("dst_strides", dims.len())?;
    let (src_offset, dst_offset) = (launch.get_signed("src_offset"), launch.get_signed("dst_offset"));
    let (src, dst) = (launch.get_whole("src", from)?, launch.get_whole("dst", to)?);
    let n = count(launch, &dims)?;
    let mut bytes = dst.bytes.to_vec();
    if may_repeat(&dims, dst_strides) && n > 0 {
        return Err(
            launch.invalid(format!("strides {dst_strides:?} of {dims:?} may address an element twice"))
        );
    }
    for position in 0..n {
        let index = unravel(position, &dims);
        let outside = || launch.invalid(format!("element {index:?} is outside its buffer"));
        let read = strided(&index, src_strides, src_offset, src.len()).ok_or_else(outside)?;
        let write = strided(&index, dst_strides, dst_offset, dst.len()).ok_or_else(outside)?;
        let element = convert(View::new(from, src.element(read)), to);
        bytes[write * size_of(to)..][..size_of(to)].copy_from_slice(&element.bytes);
    }
    Ok(Outputs::one("dst", Data { dtype: to, bytes }))
}
