//! `scatter_add`: adds rows to the rows that indices name; exact sums, rounded once. Integers wrap.

use super::add::sum;
use super::index::{Window, index_dtype};
use super::launch::{Launch, Outputs};
use super::number::{Data, size_of};
use super::shape::count;
use ep_core::{DType, Result};
use std::collections::BTreeMap;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (index, dtype) = (index_dtype(launch)?, launch.get_dtype("data")?);
    if dtype == DType::BOOL {
        return Err(launch.unsupported(dtype));
    }
    let [outer, processed] = [launch.get_size("outer")?, launch.get_size("processed")?];
    let [inner, num_indices] = [launch.get_size("inner")?, launch.get_size("num_indices")?];
    let window = Window::new(launch, "processed")?;
    let indices = launch.get_read("indices", index, num_indices)?;
    let src = launch.get_read("src", dtype, count(launch, &[outer, num_indices, inner])?)?;
    let old = launch.get_read("dst", dtype, count(launch, &[outer, processed, inner])?)?;
    // By place: an axis may be long where other sizes are 0.
    let mut positions = BTreeMap::<usize, Vec<usize>>::new();
    for position in 0..num_indices {
        if let Some(place) = window.place(indices, position)? {
            positions.entry(place).or_default().push(position);
        }
    }
    let mut new = Data { dtype, bytes: Vec::with_capacity(old.len() * size_of(dtype)) };
    for element in 0..old.len() {
        let (row, i) = (element / inner, element % inner);
        let (o, place) = (row / processed, row % processed);
        let Some(positions) = positions.get(&place) else {
            new.bytes.extend_from_slice(old.element(element));
            continue;
        };
        let terms = positions.iter().map(|p| src.get((o * num_indices + p) * inner + i));
        new.push(sum(dtype, std::iter::once(old.get(element)).chain(terms)));
    }
    Ok(Outputs::one("dst", new))
}
