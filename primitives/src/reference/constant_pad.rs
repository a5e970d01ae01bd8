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
        // Sizes and what is before them have to fit an i64, also where what is behind takes it away again.
        let length = (*d as i64).checked_add(*b).and_then(|begun| begun.checked_add(*a));
        let length = length.and_then(|length| usize::try_from(length).ok());
        length.ok_or_else(|| launch.invalid(format!("{d} padded by {b} and {a} is no size")))
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
