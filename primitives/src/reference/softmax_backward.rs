//! `softmax_backward`: `dx = (dy - sum(y * dy)) * y`.

use super::launch::{Launch, Outputs};
use super::softmax::{along_cols, total};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    along_cols(launch, ["y", "dy"], "dx", |[y, dy]| {
        let products: Vec<_> = y.iter().zip(dy).map(|(y, dy)| *y * *dy).collect();
        let sum = total(&products);
        y.iter().zip(dy).map(|(y, dy)| (*dy - sum) * *y).collect()
    })
}
