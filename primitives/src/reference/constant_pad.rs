//! `constant_pad`: adds or, where the padding is negative, removes elements at both ends of each dimension.

use super::launch::{Launch, Outputs};
use super::number::{Data, Number};
use super::shape::{count, ravel, unravel};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let dtype = launch.get_dtype("data")?;
    let src_dims = launch.get_dims("src_dims")?;
    let before = launch.get_list_of("padding_before", src_dims.len())?;
    let after = launch.get_list_of("padding_after", src_dims.len())?;
    let value = launch.get_scalar("value").unwrap_or(Number::Int(0));
    let pad = Data::new(dtype, [value]);
    let padded = |((d, b), a): ((&usize, &i64), &i64)| {
        let front = i64::try_from(*d).ok().and_then(|d| d.checked_add(*b));
        let length = front.and_then(|front| usize::try_from(front.checked_add(*a)?).ok());
        length.ok_or_else(|| launch.invalid(format!("a dimension of {d} is padded by {b} and {a}")))
    };
    let dims: Vec<_> = src_dims.iter().zip(before).zip(after).map(padded).collect::<Result<_>>()?;
    let src = launch.get_read("src", dtype, count(launch, &src_dims)?)?;
    let mut bytes = Vec::new();
    for position in 0..count(launch, &dims)? {
        let index = unravel(position, &dims);
        let inside = |((i, b), d): ((&usize, &i64), &usize)| {
            usize::try_from(*i as i128 - i128::from(*b)).ok().filter(|i| i < d)
        };
        let source: Option<Vec<_>> = index.iter().zip(before).zip(&src_dims).map(inside).collect();
        let element = source.map_or(&pad.bytes[..], |index| src.element(ravel(&index, &src_dims)));
        bytes.extend_from_slice(element);
    }
    Ok(Outputs::one("dst", Data { dtype, bytes }))
}
