//! `batch_matmul`: a product for each item of a batch.

use super::broadcast_matmul::Batches;
use super::launch::{Launch, Outputs};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let batch = [launch.get_size("batch")?];
    let [m, n, k] = [launch.get_size("m")?, launch.get_size("n")?, launch.get_size("k")?];
    Batches { m, n, k, a: &batch, b: &batch, c: &batch }.product(launch)
}
