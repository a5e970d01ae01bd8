//! `log_softmax_backward`: `dx = dy - exp(y) * sum(dy)`.

use super::launch::{Launch, Outputs};
use super::math::exp;
use super::softmax::{along_cols, total};
use ep_core::Result;

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    along_cols(launch, ["y", "dy"], "dx", |[y, dy]| {
        let sum = total(dy);
        y.iter().zip(dy).map(|(y, dy)| *dy - exp(*y) * sum).collect()
    })
}
