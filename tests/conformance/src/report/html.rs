//! A page for people: one file, nothing loaded from elsewhere.

use super::escaped;
use super::matrix::{Cell, matrix};
use crate::summary::{CaseReport, Outcome, Summary};
use std::fmt::Write;

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem}\
table{border-collapse:collapse;margin:.8rem 0}\
th,td{padding:.2rem .5rem;border:1px solid #8884;text-align:left;vertical-align:top}\
td.n{text-align:right;font-variant-numeric:tabular-nums}\
.ok{background:#2a92}.bad{background:#d334}.known{background:#da13}.none{opacity:.35}\
code{font-size:.9em;overflow-wrap:anywhere}h2{margin-top:2rem}\
.scroll{overflow-x:auto}";

/// The page. `title` names the provider, `facts` are lines about it and the run.
pub fn html(title: &str, facts: &[String], summary: &Summary) -> String {
    let title = escaped(title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>Conformance of {title}</title>\n<style>{STYLE}</style>\n\
         <h1>Conformance of {title}</h1>\n"
    );
    for fact in facts {
        // Writing to a string does not fail, here and below.
        let _infallible = writeln!(out, "<p>{}</p>", escaped(fact));
    }
    out.push_str(
        "<table id=\"summary\"><tr><th>passed<th>failed<th>unsupported<th>expected failures<th>stale\n<tr>",
    );
    let counts =
        [summary.passed, summary.failed, summary.unsupported, summary.expected_failures, summary.stale];
    counts.iter().for_each(|n| {
        let _infallible = write!(out, "<td class=\"n\">{n}");
    });
    out.push_str("\n</table>\n");
    table_of_ops(&mut out, summary);
    list(&mut out, "Failures", summary, &[Outcome::Failed, Outcome::Stale]);
    list(&mut out, "Expected failures", summary, &[Outcome::ExpectedFailure]);
    list(&mut out, "Not offered", summary, &[Outcome::Unsupported]);
    list(&mut out, "Not mapped", summary, &[Outcome::NotMapped]);
    measured(&mut out, summary);
    out.push_str("</html>\n");
    out
}

fn table_of_ops(out: &mut String, summary: &Summary) {
    let matrix = matrix(summary);
    if matrix.rows.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Ops and dtypes</h2>\n<p>Cases that passed, of all that ran with the dtype in any role.</p>\n",
    );
    out.push_str("<div class=\"scroll\"><table id=\"matrix\"><tr><th>op");
    matrix.dtypes.iter().for_each(|d| {
        let _infallible = write!(out, "<th>{}", escaped(d));
    });
    for (op, cells) in &matrix.rows {
        let _infallible = write!(out, "\n<tr><th>{}", escaped(op));
        for cell in cells {
            let _infallible = match cell {
                None => write!(out, "<td class=\"none\">-"),
                Some(c) => write!(out, "<td class=\"n {}\">{}/{}", class(c), c.passed, ran(c)),
            };
        }
    }
    out.push_str("\n</table></div>\n");
}

fn ran(c: &Cell) -> usize {
    c.passed + c.failed + c.expected
}

fn class(c: &Cell) -> &'static str {
    match c {
        Cell { failed: 1.., .. } => "bad",
        Cell { expected: 1.., .. } => "known",
        Cell { passed: 0, .. } => "none",
        Cell { .. } => "ok",
    }
}

fn list(out: &mut String, heading: &str, summary: &Summary, outcomes: &[Outcome]) {
    let cases: Vec<&CaseReport> = summary.cases.iter().filter(|c| outcomes.contains(&c.outcome)).collect();
    if cases.is_empty() {
        return;
    }
    let _infallible =
        writeln!(out, "<h2>{heading} ({})</h2>\n<table><tr><th>case<th>why<th>repeat", cases.len());
    for c in cases {
        let [name, message, repeat] = [&c.name, &c.message, &c.repeat].map(|s| escaped(s));
        let _infallible = writeln!(out, "<tr><td><code>{name}</code><td>{message}<td><code>{repeat}</code>");
    }
    out.push_str("</table>\n");
}

fn measured(out: &mut String, summary: &Summary) {
    let cases: Vec<_> = summary.cases.iter().filter_map(|c| Some((c, c.median_us?))).collect();
    if cases.is_empty() {
        return;
    }
    out.push_str("<h2>Speed</h2>\n<table><tr><th>case<th>median &micro;s<th>GB/s<th>GFLOP/s\n");
    for (c, us) in cases {
        let number = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.2}"));
        let _infallible = writeln!(
            out,
            "<tr><td><code>{}</code><td class=\"n\">{us:.2}<td class=\"n\">{}<td class=\"n\">{}",
            escaped(&c.name),
            number(c.gbps),
            number(c.gflops)
        );
    }
    out.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expect::Expectations;
    use crate::summary::tests::outcomes;

    #[test]
    fn the_page_has_the_matrix_and_every_failure() {
        let summary = Summary::new(vec![outcomes()], &Expectations::default(), true, |c| format!("ep '{c}'"));
        let page = html("acme <1>", &["two devices".to_owned()], &summary);
        assert!(page.contains("<title>Conformance of acme &lt;1&gt;</title>"));
        assert!(page.contains("<tr><th>add<td class=\"n bad\">1/2"), "{page}");
        assert!(page.contains("<code>ep 'primitives/x:0/add/data=f32/01-odd'</code>"), "{page}");
        assert!(page.contains("<td class=\"n\">2.00<td class=\"n\">2.00<td class=\"n\">-"), "{page}");
        let loaded = ["http://", "https://", "src=\"", "href", "<script", "url("];
        assert!(loaded.iter().all(|x| !page.contains(x)), "something is loaded from elsewhere");
    }
}
