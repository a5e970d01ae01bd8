//! Indices into a window of an axis, as the gather family and `one_hot` read them.

use super::launch::Launch;
use super::number::View;
use ep_core::{DType, Result};

/// The part of an axis of `size` that is there: `offset .. offset + len`.
pub(super) struct Window<'a> {
    launch: &'a Launch<'a>,
    mode: &'a str,
    offset: i128,
    len: i128,
    size: i128,
}

impl<'a> Window<'a> {
    /// The window of a launch, whose length is the size called `len`.
    pub(super) fn new(launch: &'a Launch<'a>, len: &str) -> Result<Window<'a>> {
        let mode = launch.get_selector("mode")?;
        if !["wrap", "zero", "error"].contains(&mode) {
            return Err(launch.unsupported(format!("index mode `{mode}`")));
        }
        let [offset, len, size] = ["offset", len, "size"].map(|name| launch.get_size(name));
        let (offset, len, size) = (offset? as i128, len? as i128, size? as i128);
        let size = if size == 0 { offset + len } else { size };
        if offset + len > size {
            return Err(
                launch.invalid(format!("{offset} to {} is not within an axis of {size}", offset + len))
            );
        }
        Ok(Window { launch, mode, offset, len, size })
    }

    /// The place within the window that an index means; `None` where it leads to zeros or nothing.
    pub(super) fn place(&self, indices: View<'_>, position: usize) -> Result<Option<usize>> {
        let given = indices.get(position).int();
        let negative = self.mode == "wrap" && given < 0;
        let index = if negative { given + self.size } else { given };
        if !(0..self.size).contains(&index) {
            if self.mode == "zero" {
                return Ok(None);
            }
            let about = format!("index {given} at position {position} is outside an axis of {}", self.size);
            return Err(self.launch.invalid(about));
        }
        let place = index - self.offset;
        Ok((0..self.len).contains(&place).then_some(place as usize))
    }
}

/// The dtype of a launch's indices.
pub(super) fn index_dtype(launch: &Launch<'_>) -> Result<DType> {
    let dtype = launch.get_dtype("indices")?;
    if [DType::I32, DType::I64].contains(&dtype) {
        return Ok(dtype);
    }
    Err(launch.unsupported(format!("indices of {dtype}")))
}
