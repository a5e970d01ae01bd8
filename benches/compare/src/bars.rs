//! What a row has to reach beside the best peer, and the mean of a family.
//!
//! The table below is of kernels that were tuned by hand for one shape on the reference machine: the best peer's time
//! over theirs, with one thread and with two. A row has to reach nine tenths of that, and never less than 0.95: where
//! nobody can be faster, nobody may be much slower. Products of which both factors are given as they are stored have to
//! reach 0.97, and a few elements, where the launch is what counts, have to be faster than everybody, and not far above what
//! a plain loop takes.

use ep_benches::row::{Family, Group, Row};
use ep_core::DType;

/// Row, one thread, two threads.
const REFERENCE: &[(&str, f64, f64)] = &[
    ("add f32 16777216", 1.44, 1.54),
    ("add3_nary f32 16777216", 1.55, 1.29),
    ("add_bcast_row f32 4096x4096", 1.36, 1.59),
    ("relu f32 16777216", 1.28, 1.37),
    ("exp f32 16777216", 1.45, 1.52),
    ("tanh f32 16777216", 1.19, 1.87),
    ("sigmoid f32 16777216", 1.58, 1.95),
    ("gelu_erf f32 16777216", 1.49, 1.64),
    ("gelu_tanh f32 16777216", 2.53, 2.65),
    ("fill f32 16777216", 1.46, 0.97),
    ("copy_contig f32 16777216", 1.22, 1.41),
    ("cast_f32_to_f16 f32 16777216", 1.04, 1.05),
    ("cast_f32_to_bf16 f32 16777216", 2.41, 1.56),
    ("cast_f32_to_i8 f32 16777216", 0.84, 0.94),
    ("cast_f16_to_f32 f32 16777216", 1.73, 1.20),
    ("softmax f32 32768x32", 1.68, 1.62),
    ("softmax f32 32768x128", 1.14, 1.29),
    ("softmax f32 32768x1024", 1.70, 1.70),
    ("softmax f32 32768x4096", 2.36, 2.31),
    ("log_softmax f32 32768x32", 1.50, 1.52),
    ("log_softmax f32 32768x128", 1.21, 1.31),
    ("log_softmax f32 32768x1024", 2.29, 2.26),
    ("log_softmax f32 32768x4096", 2.66, 2.39),
    ("softmax_bwd f32 32768x32", 1.03, 0.98),
    ("softmax_bwd f32 32768x128", 1.03, 1.01),
    ("softmax_bwd f32 32768x1024", 1.41, 1.61),
    ("softmax_bwd f32 32768x4096", 1.53, 1.54),
    ("log_softmax_bwd f32 32768x32", 1.17, 1.20),
    ("log_softmax_bwd f32 32768x128", 1.18, 1.14),
    ("log_softmax_bwd f32 32768x1024", 1.77, 1.97),
    ("log_softmax_bwd f32 32768x4096", 1.67, 1.68),
    ("softmax_axis1 f32 32x1024x512", 4.52, 6.26),
    ("gather_rows f32 50000x512x32768", 1.90, 1.60),
    ("gather_rows_small f32 1000000x16x1048576", 2.12, 2.82),
    ("gather_axis1 f32 4096x4096x4096", 2.43, 6.89),
    ("transpose2d f32 4096x4096", 6.30, 7.90),
    ("permute_nchw_nhwc f32 64x128x56x56", 2.44, 2.98),
    ("permute_nhwc_nchw f32 64x56x56x128", 3.46, 3.64),
    ("permute_0213 f32 8x16x512x64", 1.04, 1.04),
    ("permute_rev f32 64x128x56x56", 16.91, 29.61),
    ("pad_hw1 f32 64x128x56x56", 1.25, 2.81),
    ("pad_2d64 f32 4096x4096", 1.60, 4.33),
    ("copy_nd_window f32 4096x4096", 1.10, 1.47),
    ("one_hot f32 32768x1000", 2.92, 2.50),
];

/// No row may be slower than the fastest peer by more than this.
const LEAST: f64 = 0.95;
/// Nor products of `MULTIPLIED` by more than this.
const PRODUCT: f64 = 0.97;
const MULTIPLIED: [DType; 3] = [DType::F32, DType::F64, DType::F16];

/// Nanoseconds by which a launch may take longer than a plain loop over as few elements.
pub const MOST_ABOVE_NS: f64 = 60.0;

fn reference(row: &Row) -> Option<&'static (&'static str, f64, f64)> {
    let id = row.id();
    REFERENCE.iter().find(|r| r.0 == id)
}

/// Whether kernels tuned for the row were measured, with one thread and with two, whose means over families are what
/// [`required_mean`] comes from.
pub fn is_recorded(row: &Row) -> bool {
    reference(row).is_some()
}

/// What the ratio to the fastest peer has to be.
pub fn required(row: &Row, threads: usize) -> f64 {
    let reference = reference(row).and_then(|r| match threads {
        1 => Some(r.1),
        2 => Some(r.2),
        _ => None,
    });
    let prepared = row.peer.name == "matmul_const_b";
    let least = match row.group {
        Group::Small => 1.0,
        _ if row.family == Family::Matmul && MULTIPLIED.contains(&row.dtype) && !prepared => PRODUCT,
        _ => LEAST,
    };
    reference.map_or(least, |r| (0.9 * r).max(least))
}

/// What the geometric mean over a family's recorded rows has to be, where something is asked: 0.89 to 0.97 of the reference's on
/// one thread. A mean over other rows says how these were chosen.
pub fn required_mean(family: Family) -> Option<f64> {
    match family {
        Family::Elementwise => Some(1.35),
        Family::Softmax => Some(1.55),
        Family::Gather => Some(1.9),
        Family::Permute => Some(3.5),
        Family::Matmul | Family::Reduce | Family::Small => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_benches::table::table;
    use std::collections::BTreeSet;

    #[test]
    fn every_bar_is_that_of_a_row() {
        let rows: BTreeSet<_> = table().iter().map(ep_benches::row::Row::id).collect();
        for (id, ..) in REFERENCE {
            assert!(rows.contains(*id), "no row is called `{id}`");
        }
    }

    #[test]
    fn means_that_are_asked_for_are_a_little_less_than_the_references() {
        let rows = table();
        let families = Family::ALL.into_iter().filter_map(|f| Some((f, required_mean(f)?)));
        for (family, asked) in families {
            let known = rows.iter().filter(|r| r.family == family).filter_map(reference);
            let logs: Vec<f64> = known.map(|(_, one_thread, _)| one_thread.ln()).collect();
            let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            assert!((0.88..0.98).contains(&(asked / mean)), "{}: {asked} of {mean}", family.name());
        }
    }

    #[test]
    fn bars_are_nine_tenths_and_at_least_the_least() {
        let rows = table();
        let bar = |id: &str, threads| required(rows.iter().find(|r| r.id() == id).unwrap(), threads);
        assert!((bar("add f32 16777216", 1) - 1.296).abs() < 1e-9);
        assert_eq!(bar("cast_f32_to_i8 f32 16777216", 1), LEAST);
        assert_eq!(bar("mul f32 16777216", 2), LEAST);
        assert_eq!(bar("permute_rev f32 64x128x56x56", 8), LEAST);
        assert_eq!(bar("matmul_f64 f64 1024x1024x1024", 2), PRODUCT);
        assert_eq!(bar("matmul_bf16 bf16 1024x1024x1024", 1), LEAST);
        assert_eq!(bar("matmul_constB f32 512x512x512", 1), LEAST);
        assert_eq!((bar("add f32 4", 1), bar("matmul_bf16 bf16 64x64x64", 2)), (1.0, 1.0));
    }
}
