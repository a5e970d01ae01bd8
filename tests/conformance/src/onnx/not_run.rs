//! The list of cases that are not run: the suite and the rules change, and nobody shall lose a case unnoticed.
//!
//! A text file as that of expected failures, with the name of a case in each line and the reason behind it.

use crate::expect::Expectations;
use crate::plan::Group;
use crate::summary::{Outcome, Summary};
use std::collections::BTreeMap;

/// What is wrong with the list, in view of a run of all cases: name and message.
pub fn differences(list: &Expectations, summary: &Summary) -> Vec<(String, String)> {
    let mut outcomes: BTreeMap<&str, Vec<Outcome>> = BTreeMap::new();
    for case in &summary.cases {
        let of_onnx = summary.unit(case).is_some_and(|u| u.group == Group::Onnx);
        if let (true, Some((_, name))) = (of_onnx, case.name.rsplit_once('/')) {
            outcomes.entry(name).or_default().push(case.outcome);
        }
    }
    let left_out = |o: &Outcome| matches!(o, Outcome::NotMapped | Outcome::Unsupported);
    let mut wrong = Vec::new();
    for line in &list.0 {
        match outcomes.get(&*line.pattern) {
            None => {
                wrong.push((line.pattern.clone(), "it is listed as not run, and is no case of the suite"))
            }
            Some(found) if !found.iter().any(left_out) => {
                wrong.push((line.pattern.clone(), "it is listed as not run, and runs; take it off the list"));
            }
            Some(_) => {}
        }
    }
    let listed = |name: &str| list.0.iter().any(|l| l.pattern == name);
    for (name, found) in &outcomes {
        if found.iter().any(left_out) && !listed(name) {
            wrong.push(((*name).to_owned(), "it is not run, and the list does not say why"));
        }
    }
    wrong.into_iter().map(|(name, what)| (name, what.to_owned())).collect()
}
