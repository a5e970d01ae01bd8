//! `copy_nd`: a box of one dense tensor into a box of another; the rest of the destination stays.

use super::launch::{Launch, Outputs};
use super::number::{Data, size_of};
use super::shape::{count, ravel, unravel};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let dtype = launch.get_dtype("data")?;
    let lists = ["dst_dims", "dst_pos", "src_dims", "src_pos", "extent"].map(|name| launch.get_dims(name));
    let [dst_dims, dst_pos, src_dims, src_pos, extent] = lists;
    let (dst_dims, dst_pos, src_dims, src_pos, extent) = (dst_dims?, dst_pos?, src_dims?, src_pos?, extent?);
    for (dims, pos) in [(&dst_dims, &dst_pos), (&src_dims, &src_pos)] {
        let inside =
            dims.iter().zip(pos).zip(&extent).all(|((d, p), e)| p.checked_add(*e).is_some_and(|n| n <= *d));
        if !inside || [dims.len(), pos.len()] != [extent.len(); 2] {
            return Err(launch.invalid(format!("a box of {extent:?} at {pos:?} is not inside {dims:?}")));
        }
    }
    let src = launch.get_read("src", dtype, count(launch, &src_dims)?)?;
    let mut bytes = launch.get_read("dst", dtype, count(launch, &dst_dims)?)?.bytes.to_vec();
    for position in 0..count(launch, &extent)? {
        let index = unravel(position, &extent);
        let at = |pos: &[usize], dims: &[usize]| {
            let index: Vec<_> = index.iter().zip(pos).map(|(i, p)| i + p).collect();
            ravel(&index, dims)
        };
        let to = at(&dst_pos, &dst_dims) * size_of(dtype);
        bytes[to..to + size_of(dtype)].copy_from_slice(src.element(at(&src_pos, &src_dims)));
    }
    Ok(Outputs::one("dst", Data { dtype, bytes }))
}
