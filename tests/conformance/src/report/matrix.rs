//! What happened to each op with each dtype.

use crate::plan::Group;
use crate::summary::{Outcome, Summary};
use std::collections::BTreeMap;

/// Counts of cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Those that passed.
    pub passed: usize,
    /// Those that failed, and stale expectations.
    pub failed: usize,
    /// Those that failed as expected.
    pub expected: usize,
    /// Those of what is not offered.
    pub unsupported: usize,
}

impl Cell {
    fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Passed => &mut self.passed,
            Outcome::Failed | Outcome::Stale => &mut self.failed,
            Outcome::ExpectedFailure => &mut self.expected,
            Outcome::Unsupported | Outcome::NotMapped => &mut self.unsupported,
        } += 1;
    }
}

/// Ops, dtypes, and a cell for each pair that has cases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    /// The dtypes that occur, those of the core first and in its order.
    pub dtypes: Vec<String>,
    /// Ops and their cells, one for each dtype. A case counts for every dtype of its key, in whatever role; `None`:
    /// there is none.
    pub rows: Vec<(String, Vec<Option<Cell>>)>,
}

/// Ops without a dtype count here.
pub const NO_DTYPE: &str = "bytes";

/// The matrix of the primitives of a run.
pub fn matrix(summary: &Summary) -> Matrix {
    let mut cells: BTreeMap<String, BTreeMap<String, Cell>> = BTreeMap::new();
    for case in &summary.cases {
        let Some(unit) =
            summary.unit(case).filter(|u| u.group == Group::Primitives && !u.name.ends_with("/refusals"))
        else {
            continue;
        };
        let mut dtypes: Vec<&str> = unit.dtypes.iter().map(|(_, d)| d.as_str()).collect();
        dtypes.sort_unstable();
        dtypes.dedup();
        if dtypes.is_empty() {
            dtypes.push(NO_DTYPE);
        }
        let row = cells.entry(unit.op.clone()).or_default();
        dtypes.into_iter().for_each(|d| row.entry(d.to_owned()).or_default().add(case.outcome));
    }
    let mut dtypes: Vec<String> = cells.values().flat_map(|r| r.keys().cloned()).collect();
    let place = |d: &String| ep_core::DType::parse(d).map_or(u32::MAX, |d| d.0);
    dtypes.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.cmp(b)));
    dtypes.dedup();
    let rows = cells.into_iter().map(|(op, row)| (op, dtypes.iter().map(|d| row.get(d).copied()).collect()));
    Matrix { rows: rows.collect(), dtypes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expect::Expectations;
    use crate::summary::tests::outcomes;

    #[test]
    fn cases_are_counted_by_op_and_dtype() {
        let summary = Summary::new(vec![outcomes()], &Expectations::default(), true, str::to_owned);
        let cell = Cell { passed: 1, failed: 1, expected: 0, unsupported: 1 };
        let wanted = Matrix { dtypes: vec!["f32".into()], rows: vec![("add".into(), vec![Some(cell)])] };
        assert_eq!(matrix(&summary), wanted);
        assert_eq!(matrix(&Summary::default()), Matrix::default());
    }
}
