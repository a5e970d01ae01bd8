//! The results for people and for programs: tables, JSON, the page in the docs, and the dated record.

use crate::bars::{MOST_ABOVE_NS, required_mean};
use crate::charts;
use crate::judge::{Mean, Verdict, means};
use crate::record::{Header, Measured};
use ep_benches::page::{self, Setting, time};
use ep_benches::row::Group;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// A line of JSON; the keys are stable.
#[derive(Serialize)]
struct Line<'a> {
    op: &'a str,
    dtype: String,
    shape: &'a [i64],
    threads: usize,
    ours_us: Option<f64>,
    /// The fastest one.
    peer: Option<&'a str>,
    peer_us: Option<f64>,
    /// `peer_us / ours_us`: above 1 we are faster.
    ratio: Option<f64>,
    /// The smallest and the largest ratio of any process.
    range: Option<[f64; 2]>,
    required: f64,
    /// The ratio that the machine's limit has: nobody exceeds it there. Only of what is past the caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_limit: Option<f64>,
    /// Of a few elements: nanoseconds above a plain loop.
    above_loop_ns: Option<f64>,
    ok: Option<bool>,
    processes: usize,
    foreign: f64,
    peers: &'a std::collections::BTreeMap<String, crate::judge::Against>,
    group: &'static str,
    family: &'static str,
    reason: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn of(v: &'a Verdict<'_>) -> Line<'a> {
        let fastest = v.fastest();
        Line {
            op: &v.row.op,
            dtype: v.row.dtype.to_string(),
            shape: &v.row.shape,
            threads: v.threads,
            ours_us: v.ours_us,
            peer: fastest.map(|f| f.0),
            peer_us: fastest.map(|f| f.1.us),
            ratio: v.ratio(),
            range: fastest.map(|f| f.1.range),
            required: v.required,
            at_limit: v.at_limit(),
            above_loop_ns: v.above_ns,
            ok: v.ok(),
            processes: v.processes,
            foreign: v.foreign,
            peers: &v.peers,
            group: v.row.group.name(),
            family: v.row.family.name(),
            reason: v.reason.as_deref(),
        }
    }
}

/// One line for each row.
pub fn json(verdicts: &[Verdict<'_>]) -> Result<String, String> {
    let mut text = String::new();
    for v in verdicts {
        text += &serde_json::to_string(&Line::of(v)).map_err(|e| e.to_string())?;
        text.push('\n');
    }
    Ok(text)
}

fn verdict_word(v: &Verdict<'_>) -> &'static str {
    match v.ok() {
        Some(true) => "ok",
        Some(false) if v.beyond_limit() => "MISSED (beyond the limit)",
        Some(false) => "MISSED",
        None => "",
    }
}

/// How many rows miss what is required of them, and of how many the machine's limit does, too.
fn missed(verdicts: &[Verdict<'_>]) -> (usize, usize) {
    let missed: Vec<_> = verdicts.iter().filter(|v| v.ok() == Some(false)).collect();
    (missed.len(), missed.iter().filter(|v| v.beyond_limit()).count())
}

/// The table for a terminal.
pub fn text(verdicts: &[Verdict<'_>]) -> String {
    let mut out = String::new();
    let mut head = None;
    for v in verdicts {
        if head != Some((v.threads, v.row.group)) {
            head = Some((v.threads, v.row.group));
            let threads = if v.threads == 1 { "thread" } else { "threads" };
            let _ = writeln!(
                out,
                "\n{}, {} {threads}\n{:<24}{:>11}  {:<22}{:>11}{:>11}  {:<12}{:>7}  {:<13}{:>6}{:>7}",
                v.row.group.name(),
                v.threads,
                "op",
                "dtype",
                "shape",
                "ours",
                "peer",
                "",
                "ratio",
                "range",
                "bar",
                "limit"
            );
        }
        let _ = write!(out, "{:<24}{:>11}  {:<22}", v.row.op, v.row.dtype, v.row.shape_text());
        let Some(ours) = v.ours_us else {
            let _ = writeln!(out, "unsupported: {}", v.reason.as_deref().unwrap_or(""));
            continue;
        };
        match v.fastest() {
            Some((name, a)) => {
                let range = format!("{:.2}..{:.2}", a.range[0], a.range[1]);
                let _ = write!(
                    out,
                    "{:>11}{:>11}  {name:<12}{:>7.2}  {range:<13}{:>6.2}{:>7}  {}",
                    time(ours),
                    time(a.us),
                    a.ratio,
                    v.required,
                    at_limit(v),
                    verdict_word(v)
                );
            }
            None => {
                let _ = write!(out, "{:>11}{:>11}", time(ours), "-");
            }
        }
        if let Some(ns) = v.above_ns {
            let _ = write!(out, "  {ns:+.0} ns to a loop");
        }
        for (name, why) in &v.differs {
            let _ = write!(out, "  ({name} has another result: {why})");
        }
        out.push('\n');
    }
    let (short, beyond) = missed(verdicts);
    let _ =
        writeln!(out, "\n{short} rows miss their bars; {beyond} of these are beyond the machine's limit\n");
    for m in means(verdicts) {
        let _ = writeln!(
            out,
            "{} {}: {:<30} {:>6.2} times as fast as the fastest peer over {} rows, {} of them ok{}",
            m.threads,
            if m.threads == 1 { "thread" } else { "threads" },
            m.family.name(),
            m.mean,
            m.rows,
            m.ok,
            match (m.recorded, mean_judged(&m)) {
                (Some((rows, mean)), (bar, word)) if !bar.is_empty() =>
                    format!("; {mean:.2} over the {rows} with a recorded ratio (required {bar}: {word})"),
                _ => String::new(),
            }
        );
    }
    out
}

/// What is required of the mean of a family's recorded rows, and whether it is reached.
fn mean_judged(m: &Mean) -> (String, &'static str) {
    match (required_mean(m.family), m.recorded) {
        (Some(bar), Some((_, mean))) => (format!("{bar:.2}"), if mean >= bar { "ok" } else { "MISSED" }),
        _ => (String::new(), ""),
    }
}

fn markdown(verdicts: &[Verdict<'_>], header: &Header, setting: &Setting) -> String {
    let versions: Vec<_> = header.versions.iter().map(|(n, v)| format!("{n} {v}")).collect();
    let mut out = format!(
        "Measured on {} on {} ({} cores), against {}.{}\n\n",
        setting.date,
        setting.cpu,
        setting.cores,
        versions.join(", "),
        if header.quick { " This was a short look, not the full comparison." } else { "" }
    );
    let all = means(verdicts);
    out += "### By family\n\nThe geometric mean of the ratio to the *fastest* peer of each row; above 1 is faster. *Recorded* are \
            rows with a bar of their own, *of these* is their mean, and what is *required* is required of that.\n\n";
    out += "| family | threads | rows | mean ratio | recorded | of these | required | | rows as fast as required |\n";
    out += "|---|---|---|---|---|---|---|---|---|\n";
    for m in &all {
        let Mean { family, threads, rows, mean, recorded, ok } = m;
        let (bar, word) = mean_judged(m);
        let name = family.name();
        let of_these =
            recorded.map_or_else(|| " | ".to_owned(), |(rows, mean)| format!("{rows} | {mean:.2}"));
        let _ = writeln!(
            out,
            "| {name} | {threads} | {rows} | {mean:.2} | {of_these} | {bar} | {word} | {ok} of {rows} |"
        );
    }
    out += "\n![Mean ratio by family](performance/families.svg)\n";
    let (short, beyond) = missed(verdicts);
    let _ = writeln!(
        out,
        "\n{short} rows miss what is required of them. Of {beyond} of these the machine's limit misses it, too: moving their \
         bytes alone, or multiplying alone, has the ratio *at the limit* here."
    );
    let groups = [Group::Large, Group::Medium, Group::Small, Group::Chain, Group::Grid];
    for group in groups {
        let of_group: Vec<_> = verdicts.iter().filter(|v| v.row.group == group).collect();
        if of_group.is_empty() {
            continue;
        }
        let _ = write!(out, "\n### {}\n\n", title(group));
        for threads in charts::thread_counts(&of_group) {
            let _ = writeln!(
                out,
                "![Ratio to the fastest peer](performance/{})\n",
                charts::file_name(group, threads)
            );
        }
        let few = group == Group::Small;
        let limits = of_group.iter().any(|v| v.at_limit().is_some());
        if few {
            let _ = writeln!(
                out,
                "The last column is how much longer a launch takes than a plain loop: at most {MOST_ABOVE_NS:.0} ns.\n"
            );
        }
        out += "| op | dtype | shape | threads | ours | fastest peer | ratio | range | required | |";
        out += match (few, limits) {
            (true, _) => " above a loop |\n",
            (false, true) => " at the limit |\n",
            (false, false) => "\n",
        };
        out += "|---|---|---|---|---|---|---|---|---|---|";
        out += if few || limits { "---|\n" } else { "\n" };
        for v in of_group {
            out += markdown_row(v).trim_end();
            out += &match (few, limits) {
                (true, _) => format!(" {} |\n", above(v)),
                (false, true) => format!(" {} |\n", at_limit(v)),
                (false, false) => "\n".into(),
            };
        }
    }
    out
}

fn title(group: Group) -> &'static str {
    match group {
        Group::Large => "Past the caches",
        Group::Medium => "In the caches",
        Group::Small => "A few elements",
        Group::Chain => "An op and a read of its output",
        Group::Grid => "More dtypes and odd sizes",
    }
}

fn above(v: &Verdict<'_>) -> String {
    v.above_ns.map_or_else(String::new, |ns| format!("{ns:+.0} ns"))
}

fn at_limit(v: &Verdict<'_>) -> String {
    v.at_limit().map_or_else(String::new, |ratio| format!("{ratio:.2}"))
}

fn markdown_row(v: &Verdict<'_>) -> String {
    let start = format!("| {} | {} | {} | {} |", v.row.op, v.row.dtype, v.row.shape_text(), v.threads);
    let Some(ours) = v.ours_us else { return format!("{start} unsupported | | | | | |\n") };
    match v.fastest() {
        None => format!("{start} {} | | | | | |\n", time(ours)),
        Some((name, a)) => format!(
            "{start} {} | {name} {} | {:.2} | {:.2} to {:.2} | {:.2} | {} |\n",
            time(ours),
            time(a.us),
            a.ratio,
            a.range[0],
            a.range[1],
            v.required,
            verdict_word(v)
        ),
    }
}

/// Everything measured, for later comparisons.
#[derive(Serialize)]
struct Dated<'a> {
    date: &'a str,
    cpu: &'a str,
    cores: usize,
    versions: &'a std::collections::BTreeMap<String, String>,
    quick: bool,
    rows: Vec<Line<'a>>,
    processes: &'a [Measured],
}

/// Writes the page, the charts and the record below the repository's root.
pub fn write_docs(
    root: &Path,
    verdicts: &[Verdict<'_>],
    header: &Header,
    lines: &[Measured],
) -> Result<(), String> {
    let setting = Setting::here();
    let fail = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let put = |path: &Path, text: &str| {
        let dir = path.parent().unwrap_or(root);
        std::fs::create_dir_all(dir).and_then(|()| std::fs::write(path, text)).map_err(|e| fail(path, e))
    };
    let path = root.join("docs/performance.md");
    let old = std::fs::read_to_string(&path).map_err(|e| fail(&path, e))?;
    put(&path, &page::insert(&old, "benches/compare", &markdown(verdicts, header, &setting))?)?;
    for (name, svg) in charts::all(verdicts) {
        put(&root.join("docs/performance").join(name), &svg)?;
    }
    let dated = Dated {
        date: &setting.date,
        cpu: &setting.cpu,
        cores: setting.cores,
        versions: &header.versions,
        quick: header.quick,
        rows: verdicts.iter().map(Line::of).collect(),
        processes: lines,
    };
    let mut text = serde_json::to_string(&dated).map_err(|e| e.to_string())?;
    // A line for each row, so that two records can be compared as text.
    text = text.replace("},{\"op\"", "},\n{\"op\"").replace("},{\"id\"", "},\n{\"id\"");
    put(&root.join("benches/record").join(format!("{}.json", setting.date)), &(text + "\n"))
}
