//! What came of a run: every case with its outcome, and the counts.

use crate::expect::Expectations;
use crate::plan::{Group, Unit};
use crate::protocol::End;
use crate::runner::Outcomes;
use serde::{Deserialize, Serialize};

/// How a case ended, with expectations taken into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it should.
    Passed,
    /// Not so.
    Failed,
    /// The provider does not offer it.
    Unsupported,
    /// The kit cannot put it to the provider: an ONNX test that the primitives do not express.
    NotMapped,
    /// It fails, as a line of the list says.
    ExpectedFailure,
    /// A line of the list says that it fails, and it does not.
    Stale,
}

/// A case of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why not better; may be empty.
    pub message: String,
    /// A command that runs it alone.
    pub repeat: String,
    /// Median of a launch, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub median_us: Option<f64>,
    /// Bytes that a launch has to move, over its time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gbps: Option<f64>,
    /// Arithmetic operations of a launch, over its time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gflops: Option<f64>,
    /// Its unit, an index into [`Summary::units`]; none of a line that no case matches.
    #[serde(skip)]
    pub unit: Option<usize>,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases of what the provider does not offer.
    pub unsupported: usize,
    /// Cases that the kit cannot put to the provider.
    pub not_mapped: usize,
    /// Cases that failed as expected.
    pub expected_failures: usize,
    /// Expectations that do not hold.
    pub stale: usize,
    /// All cases.
    pub cases: Vec<CaseReport>,
    /// What they belong to.
    #[serde(skip)]
    pub units: Vec<Unit>,
}

/// Of a run as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every case passed, is not offered, or failed as expected.
    Conforms,
    /// A case failed, or an expectation is stale.
    Fails,
    /// No primitive was launched.
    NothingRan,
}

impl Summary {
    /// Puts the outcomes of providers together. `whole` says that no case was left out, so that an expectation
    /// without a case is stale; `repeat` makes the command for a case or pattern.
    pub fn new(
        all: Vec<Outcomes>,
        expectations: &Expectations,
        whole: bool,
        repeat: impl Fn(&str) -> String,
    ) -> Summary {
        let mut summary = Summary::default();
        let mut lines = vec![Line::Unmatched; expectations.0.len()];
        for outcomes in all {
            let first = summary.units.len();
            for ran in outcomes.cases {
                let (mut outcome, mut message) = match ran.end {
                    End::Passed => (Outcome::Passed, ran.message),
                    End::Failed => (Outcome::Failed, ran.message),
                    End::Unsupported => (Outcome::Unsupported, ran.message),
                    End::NotMapped => (Outcome::NotMapped, ran.message),
                };
                if let Some(at) = expectations.of(&ran.name) {
                    let line = &expectations.0[at];
                    let exact = line.pattern == ran.name;
                    if outcome == Outcome::Failed {
                        (outcome, message) =
                            (Outcome::ExpectedFailure, format!("{} ({message})", line.reason));
                        lines[at] = Line::Holds;
                    } else if exact {
                        (outcome, message) =
                            (Outcome::Stale, format!("expected to fail ({}), but it does not", line.reason));
                        lines[at] = Line::Holds;
                    } else if lines[at] == Line::Unmatched {
                        lines[at] = Line::NoneFails;
                    }
                }
                let unit = &outcomes.units[ran.unit];
                // What ended outside of a case is repeated by the whole unit.
                let of_key = unit.group == Group::Primitives && ran.name == unit.name;
                let pattern = if of_key { format!("{}/*", ran.name) } else { ran.name.clone() };
                let per_second = |n: u64| {
                    ran.speed.filter(|s| s.median_us > 0.0 && n > 0).map(|s| n as f64 / s.median_us / 1e3)
                };
                summary.cases.push(CaseReport {
                    repeat: repeat(&pattern),
                    name: ran.name,
                    outcome,
                    message,
                    median_us: ran.speed.map(|s| s.median_us),
                    gbps: ran.speed.and_then(|s| per_second(s.bytes)),
                    gflops: ran.speed.and_then(|s| per_second(s.flops)),
                    unit: Some(first + ran.unit),
                });
            }
            summary.units.extend(outcomes.units);
        }
        for (line, state) in expectations.0.iter().zip(lines) {
            let message = match state {
                Line::Holds => continue,
                Line::NoneFails => format!("no case that it names fails ({})", line.reason),
                Line::Unmatched if whole => format!("it names no case ({})", line.reason),
                Line::Unmatched => continue,
            };
            summary.cases.push(stale(&line.pattern, message, &repeat));
        }
        summary.count();
        summary
    }

    /// Adds lines of a list that do not hold: name and message.
    pub fn add_stale(&mut self, lines: Vec<(String, String)>, repeat: impl Fn(&str) -> String) {
        self.cases.extend(lines.into_iter().map(|(name, message)| stale(&name, message, &repeat)));
        self.count();
    }

    /// Adds failed cases that were not run: what a provider has to have and does not.
    pub fn add_missing(&mut self, missing: Vec<(Unit, String)>, repeat: impl Fn(&str) -> String) {
        for (unit, message) in missing {
            self.cases.push(CaseReport {
                repeat: repeat(&unit.name),
                name: unit.name.clone(),
                outcome: Outcome::Failed,
                message,
                median_us: None,
                gbps: None,
                gflops: None,
                unit: Some(self.units.len()),
            });
            self.units.push(unit);
        }
        self.count();
    }

    fn count(&mut self) {
        let of = |o: Outcome| self.cases.iter().filter(|c| c.outcome == o).count();
        (self.passed, self.failed, self.unsupported) =
            (of(Outcome::Passed), of(Outcome::Failed), of(Outcome::Unsupported));
        (self.expected_failures, self.stale) = (of(Outcome::ExpectedFailure), of(Outcome::Stale));
        self.not_mapped = of(Outcome::NotMapped);
    }

    /// The unit of a case.
    pub fn unit(&self, case: &CaseReport) -> Option<&Unit> {
        case.unit.map(|u| &self.units[u])
    }

    /// Cases that launched, or were to launch, a primitive.
    pub fn launched(&self) -> usize {
        let launches = |c: &&CaseReport| {
            let of_launches = |u: &Unit| match u.group {
                Group::Primitives => !u.name.ends_with("/refusals"),
                group => group == Group::Onnx,
            };
            self.unit(c).is_some_and(of_launches)
                && !matches!(c.outcome, Outcome::Unsupported | Outcome::NotMapped)
        };
        self.cases.iter().filter(launches).count()
    }

    /// What to make of it all.
    pub fn verdict(&self) -> Verdict {
        match (self.failed + self.stale, self.launched()) {
            (0, 0) => Verdict::NothingRan,
            (0, _) => Verdict::Conforms,
            _ => Verdict::Fails,
        }
    }
}

/// A line that does not hold.
fn stale(name: &str, message: String, repeat: impl Fn(&str) -> String) -> CaseReport {
    CaseReport {
        name: name.to_owned(),
        outcome: Outcome::Stale,
        message,
        repeat: repeat(name),
        median_us: None,
        gbps: None,
        gflops: None,
        unit: None,
    }
}

/// What became of a line of the list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// No case matches it.
    Unmatched,
    /// Cases match it, and none fails.
    NoneFails,
    /// One fails, or was reported as stale itself.
    Holds,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::expect::Expectation;
    use crate::protocol::{Listing, Measured};
    use crate::runner::Ran;

    pub(crate) fn unit(name: &str, group: Group, op: &str, dtypes: &[(&str, &str)]) -> Unit {
        let dtypes = dtypes.iter().map(|(r, d)| ((*r).to_owned(), (*d).to_owned())).collect();
        Unit { name: name.into(), group, device: "x:0".into(), op: op.into(), selectors: Vec::new(), dtypes }
    }

    /// A passing check, and a key with a case of each kind.
    pub(crate) fn outcomes() -> Outcomes {
        let units = vec![
            unit("abi/strings", Group::Abi, "", &[]),
            unit("primitives/x:0/add/data=f32", Group::Primitives, "add", &[("data", "f32")]),
        ];
        let ran = |name: &str, unit, end, message: &str| Ran {
            name: name.into(),
            unit,
            end,
            message: message.into(),
            speed: None,
        };
        let mut cases = vec![
            ran("abi/strings", 0, End::Passed, ""),
            ran("primitives/x:0/add/data=f32/00-empty", 1, End::Passed, ""),
            ran(
                "primitives/x:0/add/data=f32/01-odd",
                1,
                End::Failed,
                "`dst`[3] is <1>, expected \"2\" & more",
            ),
            ran("primitives/x:0/add/data=f32/02-large", 1, End::Unsupported, "too large"),
        ];
        cases[1].speed = Some(Measured { median_us: 2.0, bytes: 4000, flops: 0 });
        Outcomes { listing: Listing { claims: vec![units[1].clone()], ..Listing::default() }, units, cases }
    }

    fn expecting(list: &[(&str, &str)]) -> Expectations {
        let line = |(p, r): &(&str, &str)| Expectation { pattern: (*p).into(), reason: (*r).into() };
        Expectations(list.iter().map(line).collect())
    }

    fn summary(list: &[(&str, &str)], whole: bool) -> Summary {
        Summary::new(vec![outcomes()], &expecting(list), whole, |case| format!("again {case}"))
    }

    #[test]
    fn outcomes_are_counted_and_can_be_repeated() {
        let s = summary(&[], true);
        assert_eq!((s.passed, s.failed, s.unsupported, s.expected_failures, s.stale), (2, 1, 1, 0, 0));
        assert_eq!(s.cases[2].repeat, "again primitives/x:0/add/data=f32/01-odd");
        assert_eq!((s.cases[1].gbps, s.cases[1].gflops), (Some(2.0), None));
        assert_eq!((s.verdict(), s.launched()), (Verdict::Fails, 2));
        assert_eq!(Summary::default().verdict(), Verdict::NothingRan);
    }

    #[test]
    fn expected_failures_do_not_count_and_stale_ones_do() {
        let failing = "primitives/x:0/add/data=f32/01-odd";
        let s = summary(&[(failing, "known")], true);
        assert_eq!((s.failed, s.expected_failures, s.stale), (0, 1, 0));
        assert_eq!(s.verdict(), Verdict::Conforms);
        assert!(s.cases[2].message.starts_with("known ("));
        let s = summary(&[("primitives/*", "known"), ("abi/strings", "old")], true);
        assert_eq!((s.failed, s.expected_failures, s.stale), (0, 1, 1));
        assert_eq!((s.cases[0].outcome, s.verdict()), (Outcome::Stale, Verdict::Fails));
        let s = summary(&[("abi/*", "old"), ("nothing/like/it", "gone")], true);
        assert_eq!((s.stale, s.failed), (2, 1));
        assert!(s.cases[5].message.contains("names no case"));
        // Where cases are left out, nobody knows about those.
        assert_eq!(summary(&[("nothing/like/it", "gone")], false).stale, 0);
    }

    #[test]
    fn a_death_between_cases_is_repeated_by_its_unit() {
        let mut all = outcomes();
        all.cases[1].name = "primitives/x:0/add/data=f32".into();
        let s = Summary::new(vec![all], &Expectations::default(), true, str::to_owned);
        assert_eq!(s.cases[1].repeat, "primitives/x:0/add/data=f32/*");
        assert_eq!(s.cases[0].repeat, "abi/strings");
    }

    #[test]
    fn what_is_missing_fails() {
        let mut s = summary(&[], true);
        let unit = unit("require/x:0/sub/data=f32", Group::Require, "sub", &[("data", "f32")]);
        s.add_missing(vec![(unit, "not claimed".into())], str::to_owned);
        assert_eq!((s.failed, s.cases[4].outcome), (2, Outcome::Failed));
    }
}
