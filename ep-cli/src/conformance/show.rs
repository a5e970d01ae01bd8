//! What a person sees: a bar while it runs, a matrix and the failures at the end.

use crate::failure::Failure;
use crate::output::{Cell, Out, Style, thousands};
use ep_conformance::plan::{Group, Unit};
use ep_conformance::protocol::{End, Listing};
use ep_conformance::report::matrix::{Cell as Counts, matrix};
use ep_conformance::runner::{Progress, Ran};
use ep_conformance::summary::{Outcome, Summary};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Failures that are printed; the reports have all.
const SHOWN: usize = 20;

/// Progress on standard error, where that is a terminal.
pub struct Bar {
    bar: ProgressBar,
    failed: AtomicUsize,
    cases: AtomicUsize,
}

impl Bar {
    /// A bar for a provider.
    pub fn new(provider: &str) -> Bar {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {percent:>3}% {msg} {elapsed_precise}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(provider.to_owned());
        Bar { bar, failed: AtomicUsize::new(0), cases: AtomicUsize::new(0) }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar {
    fn units(&self, count: usize) {
        self.bar.set_length(count as u64);
    }

    fn case(&self, case: &Ran) {
        let failed = self.failed.fetch_add(usize::from(case.end == End::Failed), Ordering::Relaxed);
        let failed = failed + usize::from(case.end == End::Failed);
        let cases = self.cases.fetch_add(1, Ordering::Relaxed) + 1;
        self.bar.set_message(format!("{} cases, {failed} failed", thousands(cases as u64)));
    }

    fn unit(&self, _: &Unit) {
        self.bar.inc(1);
    }
}

/// Prints what came of it.
pub fn summary(out: &mut Out, listings: &[Listing], summary: &Summary) -> Result<(), Failure> {
    for listing in listings {
        if !listing.provider.is_empty() {
            out.line(out.paint(Style::Bold, &listing.provider))?;
        }
        for device in &listing.devices {
            out.line(format!("  {}  {}, memory {}", device.name, device.product, device.space))?;
        }
        if let Some(why) = &listing.absent {
            out.line(format!("  absent: {why}"))?;
        }
    }
    groups(out, summary)?;
    ops(out, summary)?;
    measured(out, summary)?;
    failures(out, summary)?;
    let counts = [
        (summary.passed, "passed"),
        (summary.failed, "failed"),
        (summary.unsupported, "unsupported"),
        (summary.not_mapped, "not mapped"),
        (summary.expected_failures, "expected failures"),
        (summary.stale, "stale"),
    ];
    let shown = counts.iter().filter(|(n, what)| *n > 0 || *what != "not mapped");
    let text: Vec<_> = shown.map(|(n, what)| format!("{} {what}", thousands(*n as u64))).collect();
    let style = if summary.failed + summary.stale == 0 { Style::Good } else { Style::Bad };
    out.line(out.paint(style, &text.join(", ")))
}

fn number(n: usize, style: Style) -> Cell {
    Cell::styled(if n == 0 { Style::Dim } else { style }, thousands(n as u64)).right()
}

/// A line for each part of the kit.
fn groups(out: &mut Out, summary: &Summary) -> Result<(), Failure> {
    let head = ["", "passed", "failed", "unsupported", "not mapped", "expected"];
    let mut rows = vec![head.map(|h| Cell::styled(Style::Dim, h).right()).to_vec()];
    for group in [Group::Load, Group::Abi, Group::Objects, Group::Primitives, Group::Onnx, Group::Require] {
        let of = |outcome: Outcome| {
            let fits = |c: &&ep_conformance::summary::CaseReport| {
                c.outcome == outcome && summary.unit(c).is_some_and(|u| u.group == group)
            };
            summary.cases.iter().filter(fits).count()
        };
        let (passed, failed) = (of(Outcome::Passed), of(Outcome::Failed) + of(Outcome::Stale));
        let (unsupported, expected) = (of(Outcome::Unsupported), of(Outcome::ExpectedFailure));
        let not_mapped = of(Outcome::NotMapped);
        if passed + failed + unsupported + not_mapped + expected > 0 {
            rows.push(vec![
                Cell::from(group.to_string()),
                number(passed, Style::Good),
                number(failed, Style::Bad),
                number(unsupported, Style::Plain),
                number(not_mapped, Style::Plain),
                number(expected, Style::Plain),
            ]);
        }
    }
    out.table(0, &rows)
}

/// The matrix of ops and dtypes.
fn ops(out: &mut Out, summary: &Summary) -> Result<(), Failure> {
    let matrix = matrix(summary);
    if matrix.rows.is_empty() {
        return Ok(());
    }
    let short = |d: &String| match d.as_str() {
        "complex64" => "c64".to_owned(),
        "complex128" => "c128".to_owned(),
        other => other.to_owned(),
    };
    let mut head = vec![Cell::styled(Style::Dim, "op")];
    head.extend(matrix.dtypes.iter().map(|d| Cell::styled(Style::Dim, short(d)).right()));
    let mut rows = vec![head];
    for (op, cells) in &matrix.rows {
        let mut row = vec![Cell::from(op.as_str())];
        row.extend(cells.iter().map(|c| cell(c.as_ref())));
        rows.push(row);
    }
    out.line("")?;
    out.table(0, &rows)?;
    out.line(out.paint(Style::Dim, "cases that passed; `!` failed, `~` failed as expected, `-` not claimed"))
}

fn cell(counts: Option<&Counts>) -> Cell {
    match counts {
        None => Cell::styled(Style::Dim, "-").right(),
        Some(c) if c.failed > 0 => Cell::styled(Style::Bad, format!("{}!", c.failed)).right(),
        Some(c) if c.expected > 0 => Cell::from(format!("{}~", c.expected)).right(),
        Some(c) => Cell::styled(Style::Good, thousands(c.passed as u64)).right(),
    }
}

/// The speed of the cases that were measured.
fn measured(out: &mut Out, summary: &Summary) -> Result<(), Failure> {
    let mut rows =
        vec![["case", "median us", "GB/s", "GFLOP/s"].map(|h| Cell::styled(Style::Dim, h)).to_vec()];
    let text = |x: Option<f64>| Cell::from(x.map_or("-".to_owned(), |x| format!("{x:.2}"))).right();
    for case in summary.cases.iter().filter(|c| c.median_us.is_some()) {
        rows.push(vec![case.name.as_str().into(), text(case.median_us), text(case.gbps), text(case.gflops)]);
    }
    if rows.len() == 1 {
        return Ok(());
    }
    out.line("")?;
    out.table(0, &rows)
}

fn failures(out: &mut Out, summary: &Summary) -> Result<(), Failure> {
    let bad =
        |c: &&ep_conformance::summary::CaseReport| matches!(c.outcome, Outcome::Failed | Outcome::Stale);
    let bad: Vec<_> = summary.cases.iter().filter(bad).collect();
    for case in bad.iter().take(SHOWN) {
        let what = if case.outcome == Outcome::Stale { "stale" } else { "FAILED" };
        out.line(format!("\n{} {}", out.paint(Style::Bad, what), case.name))?;
        out.line(format!("  {}", case.message))?;
        out.line(format!("  repeat: {}", case.repeat))?;
    }
    if bad.len() > SHOWN {
        out.line(format!("\n... and {} more; --json, --junit and --html have all", bad.len() - SHOWN))?;
    }
    out.line("")
}
