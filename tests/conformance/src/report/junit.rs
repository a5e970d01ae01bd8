//! JUnit's XML, which CI systems read.

use super::escaped;
use crate::summary::{Outcome, Summary};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The report: a suite for each group of the kit, and one for expectations that name no case.
pub fn junit(summary: &Summary) -> String {
    let mut suites: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, case) in summary.cases.iter().enumerate() {
        let suite = summary.unit(case).map_or("expectations".to_owned(), |u| u.group.to_string());
        suites.entry(suite).or_default().push(i);
    }
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let failures = summary.failed + summary.stale;
    // Writing to a string does not fail, here and below.
    let _infallible = writeln!(
        out,
        "<testsuites name=\"conformance\" tests=\"{}\" failures=\"{failures}\" skipped=\"{}\">",
        summary.cases.len(),
        summary.unsupported + summary.not_mapped + summary.expected_failures
    );
    for (suite, cases) in suites {
        let count = |outcomes: &[Outcome]| {
            cases.iter().filter(|i| outcomes.contains(&summary.cases[**i].outcome)).count()
        };
        let _infallible = writeln!(
            out,
            "  <testsuite name=\"{suite}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">",
            cases.len(),
            count(&[Outcome::Failed, Outcome::Stale]),
            count(&[Outcome::Unsupported, Outcome::NotMapped, Outcome::ExpectedFailure])
        );
        for i in &cases {
            let case = &summary.cases[*i];
            let (class, name) = case.name.rsplit_once('/').unwrap_or(("", &case.name));
            let (class, name, message) = (escaped(class), escaped(name), escaped(&case.message));
            let start = format!("    <testcase classname=\"{class}\" name=\"{name}\"");
            let _infallible = match case.outcome {
                Outcome::Passed => writeln!(out, "{start}/>"),
                Outcome::Failed | Outcome::Stale => writeln!(
                    out,
                    "{start}><failure message=\"{message}\">{message}\nrepeat: {}</failure></testcase>",
                    escaped(&case.repeat)
                ),
                Outcome::Unsupported | Outcome::NotMapped | Outcome::ExpectedFailure => {
                    writeln!(out, "{start}><skipped message=\"{message}\"/></testcase>")
                }
            };
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expect::Expectations;
    use crate::summary::tests::outcomes;

    #[test]
    fn every_case_is_there_once() {
        let summary = Summary::new(vec![outcomes()], &Expectations::default(), true, |c| format!("ep '{c}'"));
        let text = junit(&summary);
        assert_eq!(text.matches("<testcase ").count(), 4);
        assert!(text.contains("tests=\"4\" failures=\"1\" skipped=\"1\""), "{text}");
        assert!(
            text.contains("<testsuite name=\"primitives\" tests=\"3\" failures=\"1\" skipped=\"1\">"),
            "{text}"
        );
        assert!(text.contains("is &lt;1&gt;, expected &quot;2&quot; &amp; more\nrepeat: ep '"), "{text}");
        assert!(text.contains("<testcase classname=\"abi\" name=\"strings\"/>"), "{text}");
    }
}
