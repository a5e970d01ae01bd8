//! `broadcast_elementwise_unary`: a function from strided elements to strided elements, the source's shape
//! broadcast to the destination's; what no stride leads to stays.

use super::elementwise_unary::of;
use super::launch::{Launch, Outputs};
use super::number::{Data, size_of};
use super::shape::{broadcast, count, may_repeat, strided, unravel};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let function = of(launch)?;
    let (from, to) = (launch.get_dtype("src")?, launch.get_dtype("dst")?);
    let (src_dims, dims) = (launch.get_dims("src_dims")?, launch.get_dims("dst_dims")?);
    let src_strides = launch.get_list_of("src_strides", src_dims.len())?;
    let dst_strides = launch.get_list_of("dst_strides", dims.len())?;
    if broadcast(launch, &[&src_dims, &dims])? != dims {
        return Err(launch.invalid(format!("{src_dims:?} does not broadcast to {dims:?}")));
    }
    let n = count(launch, &dims)?;
    if n > 0 && may_repeat(&dims, dst_strides) {
        return Err(
            launch.invalid(format!("strides {dst_strides:?} of {dims:?} may address an element twice"))
        );
    }
    let (src, dst) = (launch.get_whole("src", from)?, launch.get_whole("dst", to)?);
    let mut bytes = dst.bytes.to_vec();
    for position in 0..n {
        let index = unravel(position, &dims);
        let outside = || launch.invalid(format!("element {index:?} is outside its buffer"));
        let aligned = index[dims.len() - src_dims.len()..].iter().zip(&src_dims);
        let src_index: Vec<_> = aligned.map(|(i, d)| if *d == 1 { 0 } else { *i }).collect();
        let read = strided(&src_index, src_strides, 0, src.len()).ok_or_else(outside)?;
        let write = strided(&index, dst_strides, 0, dst.len()).ok_or_else(outside)?;
        bytes[write * size_of(to)..][..size_of(to)].copy_from_slice(&function.element(src.element(read)));
    }
    Ok(Outputs::one("dst", Data { dtype: to, bytes }))
}
