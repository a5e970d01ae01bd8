//! `gather`: rows of an axis by indices; `[outer, processed, inner]` to `[outer, num_indices, inner]`.

use super::index::{Window, index_dtype};
use super::launch::{Launch, Outputs};
use super::number::{Data, size_of};
use super::shape::count;
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    rows(launch, 1)
}

/// The same for each item of a batch with indices of its own.
pub(super) fn rows(launch: &Launch<'_>, batch: usize) -> Result<Outputs> {
    let (index, dtype) = (index_dtype(launch)?, launch.get_dtype("data")?);
    let [outer, processed] = [launch.get_size("outer")?, launch.get_size("processed")?];
    let [inner, per_item] = [launch.get_size("inner")?, launch.get_size("num_indices")?];
    let window = Window::new(launch, "processed")?;
    let indices = launch.get_read("indices", index, count(launch, &[batch, per_item])?)?;
    let src = launch.get_read("src", dtype, count(launch, &[batch, outer, processed, inner])?)?;
    let places: Vec<_> = (0..indices.len()).map(|i| window.place(indices, i)).collect::<Result<_>>()?;
    let mut bytes = Vec::new();
    if count(launch, &[batch, outer, per_item, inner])? == 0 {
        // Other sizes may be too large to go through.
        return Ok(Outputs::one("dst", Data { dtype, bytes }));
    }
    let row = inner * size_of(dtype);
    for item in 0..batch {
        for o in 0..outer {
            for place in &places[item * per_item..][..per_item] {
                match place {
                    Some(place) => {
                        let start = ((item * outer + o) * processed + place) * row;
                        bytes.extend_from_slice(&src.bytes[start..start + row]);
                    }
                    None => bytes.resize(bytes.len() + row, 0),
                }
            }
        }
    }
    Ok(Outputs::one("dst", Data { dtype, bytes }))
}
