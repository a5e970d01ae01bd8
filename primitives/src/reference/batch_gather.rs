//! `batch_gather`: `gather` for each item of a batch, with indices of its own.

use super::gather::rows;
use super::launch::{Launch, Outputs};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    rows(launch, launch.get_size("batch")?)
}
