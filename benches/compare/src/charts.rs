//! Bar charts of ratios as SVG. The scale is logarithmic: twice as fast and half as fast are equally far from 1.

use crate::judge::{Verdict, means};
use ep_benches::row::Group;
use std::collections::BTreeSet;
use std::fmt::Write as _;

const LEFT: f64 = 250.0;
const WIDTH: f64 = 560.0;
const BAR: f64 = 14.0;
const GAP: f64 = 5.0;
const TOP: f64 = 44.0;

/// One bar.
struct Bar {
    label: String,
    value: f64,
    /// A mark to reach.
    required: Option<f64>,
    /// Whether something beside the mark was missed.
    missed: bool,
}

/// The thread counts of some rows.
pub fn thread_counts(verdicts: &[&Verdict<'_>]) -> BTreeSet<usize> {
    verdicts.iter().filter(|v| v.ratio().is_some()).map(|v| v.threads).collect()
}

/// The file of a group's chart.
pub fn file_name(group: Group, threads: usize) -> String {
    format!("{}-{threads}.svg", group.name())
}

/// All charts: file names and contents.
pub fn all(verdicts: &[Verdict<'_>]) -> Vec<(String, String)> {
    let bars = means(verdicts).into_iter().map(|m| Bar {
        label: format!("{}, {}", m.family.name(), threads(m.threads)),
        value: m.mean,
        required: None,
        missed: false,
    });
    let title = "Mean ratio to the fastest peer of each row, by family";
    let mut files = vec![("families.svg".to_owned(), chart(title, &bars.collect::<Vec<_>>()))];
    for group in [Group::Large, Group::Medium, Group::Small, Group::Chain, Group::Grid] {
        let of_group: Vec<_> = verdicts.iter().filter(|v| v.row.group == group).collect();
        for count in thread_counts(&of_group) {
            let bars = of_group.iter().filter(|v| v.threads == count).filter_map(|v| {
                let label = format!("{} {} {}", v.row.op, v.row.dtype, v.row.shape_text());
                Some(Bar { label, value: v.ratio()?, required: Some(v.required), missed: v.far_above() })
            });
            let title =
                format!("Time of the fastest peer over ours, {} rows, {}", group.name(), threads(count));
            files.push((file_name(group, count), chart(&title, &bars.collect::<Vec<_>>())));
        }
    }
    files
}

fn threads(count: usize) -> String {
    format!("{count} thread{}", if count == 1 { "" } else { "s" })
}

fn chart(title: &str, bars: &[Bar]) -> String {
    let values = || bars.iter().flat_map(|b| [Some(b.value), b.required]).flatten();
    let low = values().fold(0.5, f64::min).log2().floor();
    let high = values().fold(2.0, f64::max).log2().ceil();
    let x = |value: f64| LEFT + WIDTH * (value.log2() - low) / (high - low);
    let height = TOP + bars.len() as f64 * (BAR + GAP) + 16.0;
    let total = LEFT + WIDTH + 60.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{total}\" height=\"{height}\" viewBox=\"0 0 {total} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"10\" y=\"18\" font-size=\"14\">{}</text>\n",
        escape(title)
    );
    let mut power = low;
    while power <= high {
        let (at, value) = (x(power.exp2()), power.exp2());
        let colour = if power == 0.0 { "#444444" } else { "#dddddd" };
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"{colour}\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{value}</text>",
            TOP - 6.0,
            height - 12.0,
            TOP - 10.0
        );
        power += 1.0;
    }
    for (i, bar) in bars.iter().enumerate() {
        svg += &one(bar, TOP + i as f64 * (BAR + GAP), &x);
    }
    svg + "</svg>\n"
}

fn one(bar: &Bar, top: f64, x: &dyn Fn(f64) -> f64) -> String {
    let (one, end) = (x(1.0), x(bar.value));
    let missed = bar.missed || bar.required.is_some_and(|r| bar.value < r);
    let colour = if missed { "#c0504d" } else { "#4f81bd" };
    let middle = top + BAR - 3.0;
    let mut svg = format!(
        "<text x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>\
         <rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>",
        LEFT - 8.0,
        escape(&bar.label),
        one.min(end),
        (end - one).abs().max(1.0)
    );
    if let Some(required) = bar.required {
        let at = x(required);
        let _ = write!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#000000\" stroke-width=\"2\"/>",
            top - 1.0,
            top + BAR + 1.0
        );
    }
    let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{middle:.1}\">{:.2}</text>", one.max(end) + 5.0, bar.value);
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_bar_for_each_value_within_its_frame() {
        let bar = |value, required, missed| Bar { label: "a<b".into(), value, required, missed };
        let bars = [
            bar(4.0, Some(2.0), false),
            bar(0.25, Some(0.95), false),
            bar(1.0, None, false),
            bar(4.0, Some(2.0), true),
        ];
        let svg = chart("t & u", &bars);
        assert_eq!(svg.matches("<rect").count(), 1 + 4);
        assert_eq!(svg.matches("#c0504d").count(), 2);
        assert!(svg.contains("a&lt;b") && svg.contains("t &amp; u"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.contains(">0.25</text>") && svg.contains(">4</text>"));
    }

    #[test]
    fn an_empty_chart_is_a_chart() {
        assert!(chart("none", &[]).ends_with("</svg>\n"));
    }
}
