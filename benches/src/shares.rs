//! How near rows past the caches come to the machine's limits, beside what the project asks of them: the table that
//! `ep bench --write-docs` puts into `docs/performance.md`.

use crate::page::{Setting, time};
use crate::row::{Group, Row};
use std::fmt::Write as _;

/// The program's name in the marks of the page.
pub const PROGRAM: &str = "ep bench";

/// Rows that move less are not asked for a share.
const LEAST_BYTES: u64 = 64 << 20;

/// The least share of the limit that a row must reach, by its name in tables. What is not listed computes more than
/// memory takes, or is judged beside the other libraries alone.
const GOALS: [(&str, f64); 28] = [
    ("relu", 0.9),
    ("fill", 0.9),
    ("fill_zero", 0.9),
    ("copy_contig", 0.9),
    ("expand_row", 0.9),
    ("cast_f32_to_f16", 0.9),
    ("cast_f32_to_bf16", 0.9),
    ("cast_f32_to_i8", 0.9),
    ("cast_f16_to_f32", 0.9),
    ("cast_bf16_to_f32", 0.9),
    ("cast_i8_to_f32", 0.9),
    ("add3_nary", 0.75),
    ("gelu_erf", 0.75),
    ("softmax", 0.75),
    ("log_softmax", 0.75),
    ("softmax_bwd", 0.75),
    ("log_softmax_bwd", 0.75),
    ("softmax_bf16", 0.75),
    ("softmax_axis1", 0.45),
    ("gather_rows", 0.8),
    ("gather_rows_small", 0.8),
    ("batch_gather", 0.8),
    ("transpose2d", 0.8),
    ("transpose2d_bf16", 0.8),
    ("permute_nchw_nhwc", 0.65),
    ("permute_nhwc_nchw", 0.65),
    ("permute_rev", 0.65),
    ("pad_hw1", 0.55),
];

/// What was measured of a row.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The median time.
    pub us: f64,
    /// Bytes that the row has to move, by nanosecond.
    pub gbps: f64,
    /// The limit's time over the row's.
    pub share: f64,
}

/// A row of the table: with how many threads, and what was measured, if it could be.
pub type Line<'a> = (&'a Row, usize, Option<Measured>);

/// The least share that a row must reach; none where nothing is asked.
pub fn goal(row: &Row) -> Option<f64> {
    let asked = row.group == Group::Large && row.bytes_moved() >= LEAST_BYTES;
    GOALS.iter().find(|(name, _)| asked && *name == row.op).map(|(_, share)| *share)
}

/// Whether a row belongs in the table: it is past the caches, and bytes are what counts.
pub fn counts(row: &Row) -> bool {
    row.group == Group::Large && row.flops == 0 && row.bytes_moved() >= LEAST_BYTES
}

/// The table, in Markdown.
pub fn markdown(rows: &[Line<'_>], device: &str, setting: &Setting, quick: bool) -> String {
    let reached = |row: &Row, m: &Option<Measured>| m.as_ref().is_some_and(|m| Some(m.share) >= goal(row));
    let asked = || rows.iter().filter(|(row, ..)| goal(row).is_some());
    let met = asked().filter(|(row, _, m)| reached(row, m)).count();
    let mut out = format!(
        "Measured on {} on {}, device {device}.{} {met} of {} shares that are asked for are reached.\n\n",
        setting.date,
        setting.cpu,
        if quick { " This was a short look." } else { "" },
        asked().count()
    );
    out += "| op | dtype | shape | threads | time | GB/s | share | asked | |\n|---|---|---|---|---|---|---|---|---|\n";
    for (row, threads, m) in rows {
        let (asked, word) = match goal(row) {
            Some(goal) => (format!("{goal:.2}"), if reached(row, m) { "ok" } else { "MISSED" }),
            None => (String::new(), ""),
        };
        let figures = match m {
            Some(m) => format!("{} | {:.1} | {:.2}", time(m.us), m.gbps, m.share),
            None => "not measured | |".into(),
        };
        let shape = row.shape_text();
        let _ = writeln!(
            out,
            "| {} | {} | {shape} | {threads} | {figures} | {asked} | {word} |",
            row.op, row.dtype
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::table;

    #[test]
    fn each_goal_is_that_of_rows_in_the_table() {
        let table = table();
        for (name, _) in GOALS {
            assert!(
                table.iter().any(|row| row.op == name && goal(row).is_some()),
                "no row `{name}` is large enough"
            );
        }
        assert!(table.iter().all(|row| goal(row).is_none() || counts(row)));
        assert!(
            table.iter().any(|row| row.op == "softmax" && row.group == Group::Small && goal(row).is_none())
        );
    }

    #[test]
    fn the_page_says_what_is_reached() {
        let table = table();
        let find = |name: &str| table.iter().find(|row| row.op == name && counts(row)).expect("a large row");
        let with = |name, share| (find(name), 2, Some(Measured { us: 1500.0, gbps: 20.0, share }));
        let rows = [with("relu", 0.9), with("softmax", 0.74), with("exp", 0.5), (find("fill"), 2, None)];
        let setting = Setting { date: "2026-01-31".into(), cpu: "CPU".into(), cores: 2 };
        let page = markdown(&rows, "cpu:0", &setting, false);
        assert!(page.contains("1 of 3 shares"), "{page}");
        assert!(page.contains("| 1.50 ms | 20.0 | 0.90 | 0.90 | ok |"), "{page}");
        assert!(page.contains("| 0.74 | 0.75 | MISSED |"), "{page}");
        assert!(page.contains("| 0.50 |  |  |"), "{page}");
        assert!(page.contains("| not measured | | | 0.90 | MISSED |"), "{page}");
    }
}
