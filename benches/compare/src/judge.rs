//! From what was measured to what is reported: medians over processes, ratios, and means over families.

use crate::bars::{MOST_ABOVE_NS, is_recorded, required};
use crate::peers::plain;
use crate::record::Measured;
use ep_benches::row::{Family, Row};
use ep_benches::samples::median;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A peer on a row.
#[derive(Clone, Debug, Serialize)]
pub struct Against {
    /// The median over the processes.
    pub us: f64,
    /// The median over the processes of its time over ours in the same process.
    pub ratio: f64,
    /// The smallest and the largest of these.
    pub range: [f64; 2],
    /// The median over the processes of its time over the machine's limit for the row: the ratio that nobody exceeds there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_limit: Option<f64>,
}

/// A row with some number of threads.
#[derive(Clone, Debug)]
pub struct Verdict<'a> {
    pub row: &'a Row,
    pub threads: usize,
    pub processes: usize,
    /// Our median over the processes; without it the op is not there.
    pub ours_us: Option<f64>,
    pub peers: BTreeMap<String, Against>,
    /// The most that others used of the CPUs in any of the processes.
    pub foreign: f64,
    /// The ratio that the row has to reach.
    pub required: f64,
    /// Nanoseconds that a launch takes longer than a plain loop in the same process, the median over the processes.
    pub above_ns: Option<f64>,
    /// The least and the most of these.
    pub above_range: Option<[f64; 2]>,
    /// Peers that computed something else.
    pub differs: BTreeMap<String, String>,
    /// Why there is no figure of ours.
    pub reason: Option<String>,
}

impl Verdict<'_> {
    /// The peer with the shortest time, and how it does.
    pub fn fastest(&self) -> Option<(&str, &Against)> {
        let peers = self.peers.iter().map(|(name, a)| (name.as_str(), a));
        peers.min_by(|a, b| a.1.us.total_cmp(&b.1.us))
    }

    /// The ratio to the fastest peer.
    pub fn ratio(&self) -> Option<f64> {
        self.fastest().map(|(_, a)| a.ratio)
    }

    /// Whether the row is as fast as it has to be; `None` where nobody else computes it.
    pub fn ok(&self) -> Option<bool> {
        self.ratio().map(|r| r >= self.required && !self.far_above())
    }

    /// Whether a launch takes longer than a plain loop by more than it may.
    pub fn far_above(&self) -> bool {
        self.above_ns.is_some_and(|ns| ns > MOST_ABOVE_NS)
    }

    /// The ratio to the fastest peer that the machine's limit has, where that is known.
    pub fn at_limit(&self) -> Option<f64> {
        self.fastest().and_then(|(_, a)| a.at_limit)
    }

    /// Whether more is required than moving the row's bytes, or its multiplications alone, would reach here.
    pub fn beyond_limit(&self) -> bool {
        self.at_limit().is_some_and(|most| most < self.required)
    }

    /// Whether some processes found it as fast as it has to be, and others not.
    pub fn disputed(&self) -> bool {
        let by_peers = |(_, a): (&str, &Against)| a.range[0] < self.required && a.range[1] >= self.required;
        let by_loop = |[low, high]: [f64; 2]| low <= MOST_ABOVE_NS && high > MOST_ABOVE_NS;
        self.fastest().is_some_and(by_peers) || self.above_range.is_some_and(by_loop)
    }
}

/// All rows that were measured, in the table's order, those with fewer threads first.
///
/// Peers in `without` do not count.
pub fn verdicts<'a>(rows: &'a [Row], lines: &[Measured], without: &[String]) -> Vec<Verdict<'a>> {
    let threads: BTreeSet<usize> = lines.iter().map(|l| l.threads).collect();
    let mut all = Vec::new();
    for threads in threads {
        for row in rows {
            let id = row.id();
            let of_row: Vec<_> = lines.iter().filter(|l| l.threads == threads && l.id == id).collect();
            if !of_row.is_empty() {
                all.push(verdict(row, threads, &of_row, without));
            }
        }
    }
    all
}

fn verdict<'a>(row: &'a Row, threads: usize, lines: &[&Measured], without: &[String]) -> Verdict<'a> {
    let ours: Vec<f64> = lines.iter().filter_map(|l| l.ours.as_ref()).map(|f| f.median_us).collect();
    let range = |values: &[f64]| {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        [low, values.iter().copied().fold(f64::NEG_INFINITY, f64::max)]
    };
    let counts = |name: &&String| *name != plain::NAME && !without.contains(name);
    let names: BTreeSet<&String> = lines.iter().flat_map(|l| l.peers.keys()).filter(counts).collect();
    let above =
        |l: &&Measured| Some(1e3 * (l.ours.as_ref()?.median_us - l.peers.get(plain::NAME)?.median_us));
    let shown = !without.iter().any(|name| name == plain::NAME);
    let above: Vec<f64> = lines.iter().filter(|_| shown).filter_map(above).collect();
    let mut peers = BTreeMap::new();
    for name in names {
        let both = lines.iter().filter_map(|l| Some((l.ours.as_ref()?, l.peers.get(name)?)));
        let (us, ratios): (Vec<f64>, Vec<f64>) =
            both.map(|(o, p)| (p.median_us, p.median_us / o.median_us)).unzip();
        if !us.is_empty() {
            let beside_limit = |l: &&Measured| Some(l.peers.get(name)?.median_us / l.limit_us?);
            let at_limit: Vec<f64> = lines.iter().copied().filter_map(|l| beside_limit(&l)).collect();
            let against = Against {
                us: median(&us),
                ratio: median(&ratios),
                range: range(&ratios),
                at_limit: (!at_limit.is_empty()).then(|| median(&at_limit)),
            };
            peers.insert(name.clone(), against);
        }
    }
    Verdict {
        row,
        threads,
        processes: lines.len(),
        ours_us: (!ours.is_empty()).then(|| median(&ours)),
        peers,
        foreign: lines.iter().map(|l| l.foreign).fold(0.0, f64::max),
        required: required(row, threads),
        above_ns: (!above.is_empty()).then(|| median(&above)),
        above_range: (!above.is_empty()).then(|| range(&above)),
        differs: lines.iter().flat_map(|l| l.differs.clone()).collect(),
        reason: lines.iter().find_map(|l| l.absent.get("ours").cloned()),
    }
}

/// How a family does: the geometric mean of its ratios to the fastest peer.
#[derive(Clone, Debug)]
pub struct Mean {
    pub family: Family,
    pub threads: usize,
    pub rows: usize,
    pub mean: f64,
    /// How many of the rows have a recorded ratio to be compared with, and the mean of those.
    pub recorded: Option<(usize, f64)>,
    /// Rows that are as fast as they have to be.
    pub ok: usize,
}

fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logs: f64 = ratios.iter().map(|r| r.ln()).sum();
    (!ratios.is_empty()).then(|| (logs / ratios.len() as f64).exp())
}

/// Means over all families that have rows with peers.
pub fn means(verdicts: &[Verdict<'_>]) -> Vec<Mean> {
    let threads: BTreeSet<usize> = verdicts.iter().map(|v| v.threads).collect();
    let mut all = Vec::new();
    for threads in threads {
        for family in Family::ALL {
            let of_family = verdicts.iter().filter(|v| v.threads == threads && v.row.family == family);
            let judged: Vec<_> = of_family.filter(|v| v.ratio().is_some()).collect();
            let ratios: Vec<f64> = judged.iter().filter_map(|v| v.ratio()).collect();
            let recorded: Vec<f64> =
                judged.iter().filter(|v| is_recorded(v.row)).filter_map(|v| v.ratio()).collect();
            let Some(mean) = geometric_mean(&ratios) else { continue };
            all.push(Mean {
                family,
                threads,
                rows: judged.len(),
                mean,
                recorded: geometric_mean(&recorded).map(|mean| (recorded.len(), mean)),
                ok: judged.iter().filter(|v| v.ok() == Some(true)).count(),
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Figure;
    use ep_benches::table::table;

    fn line(id: &str, process: usize, ours: f64, torch: f64, numpy: f64) -> Measured {
        let figure = |us: f64| Figure { median_us: us, min_us: us, runs: 3 };
        Measured {
            id: id.into(),
            threads: 1,
            process,
            ours: Some(figure(ours)),
            peers: [("torch".into(), figure(torch)), ("numpy".into(), figure(numpy))].into(),
            ..Measured::default()
        }
    }

    #[test]
    fn ratios_are_taken_within_a_process_and_to_the_fastest() {
        let rows = table();
        let id = "add f32 16777216";
        let lines =
            [line(id, 0, 10.0, 20.0, 40.0), line(id, 1, 20.0, 30.0, 60.0), line(id, 2, 10.0, 12.0, 30.0)];
        let all = verdicts(&rows, &lines, &[]);
        let [v] = &*all else { panic!("{} rows", all.len()) };
        let (name, against) = v.fastest().unwrap();
        assert_eq!((name, against.us, against.ratio, against.range), ("torch", 20.0, 1.5, [1.2, 2.0]));
        assert_eq!((v.ours_us, v.ok()), (Some(10.0), Some(true)));
        let disputed = |required| Verdict { required, ..v.clone() }.disputed();
        assert_eq!([1.1, 1.2, 1.3, 2.0, 2.1].map(disputed), [false, false, true, true, false]);
        let slower = verdicts(&rows, &lines, &["torch".to_owned()]);
        assert_eq!(slower[0].fastest().map(|f| f.0), Some("numpy"));
        let means = means(&all);
        assert_eq!((means.len(), means[0].rows, means[0].ok), (1, 1, 1));
        assert!((means[0].mean - 1.5).abs() < 1e-12);
        let more = [&lines[..], &[line("mul f32 16777216", 0, 10.0, 60.0, 70.0)]].concat();
        let of_two = &super::means(&verdicts(&rows, &more, &[]))[0];
        assert!(of_two.rows == 2 && (of_two.mean - 3.0).abs() < 1e-12);
        assert!(of_two.recorded.is_some_and(|(rows, mean)| rows == 1 && (mean - 1.5).abs() < 1e-12));
    }

    #[test]
    fn what_the_limit_would_reach_is_told_of_the_fastest_peer() {
        let rows = table();
        let with_limit =
            |process, limit_us| Measured { limit_us, ..line("fill f32 16777216", process, 10.0, 11.0, 20.0) };
        let of = |limits: [Option<f64>; 3]| {
            let lines = [0, 1, 2].map(|i| with_limit(i, limits[i]));
            let v = verdicts(&rows, &lines, &[]).remove(0);
            (v.at_limit(), v.beyond_limit(), v.ok())
        };
        // What is required of a fill is 1.31.
        assert_eq!(of([Some(10.0), Some(11.0), Some(8.8)]), (Some(1.1), true, Some(false)));
        assert_eq!(of([Some(5.5), None, None]), (Some(2.0), false, Some(false)));
        assert_eq!(of([None; 3]), (None, false, Some(false)));
    }

    #[test]
    fn a_plain_loop_is_no_peer_and_tells_what_a_launch_adds() {
        let rows = table();
        let with_loop = |process, ours: f64, plain: f64| {
            let mut line = line("relu f32 4", process, ours, 1.0, 2.0);
            let figure = Figure { median_us: plain, min_us: plain, runs: 3 };
            line.peers.insert(plain::NAME.into(), figure);
            line
        };
        let above = |ours: [f64; 3]| {
            let lines = [0, 1, 2].map(|i| with_loop(i, ours[i], 0.01));
            let all = verdicts(&rows, &lines, &[]);
            assert_eq!(all[0].fastest().map(|f| f.0), Some("torch"));
            (all[0].above_ns.unwrap().round(), all[0].ok(), all[0].disputed())
        };
        assert_eq!(above([0.03, 0.05, 0.04]), (30.0, Some(true), false));
        assert_eq!(above([0.03, 0.08, 0.09]), (70.0, Some(false), true));
        assert_eq!(above([0.08, 0.08, 0.09]), (70.0, Some(false), false));
        let slow = [with_loop(0, 0.09, 0.01)];
        assert_eq!(verdicts(&rows, &slow, &[plain::NAME.to_owned()])[0].ok(), Some(true));
    }

    #[test]
    fn a_row_without_peers_or_without_us_is_not_judged() {
        let rows = table();
        let mut alone = line("add f32 16777216", 0, 10.0, 1.0, 1.0);
        alone.peers.clear();
        let mut absent = line("exp f32 16777216", 0, 1.0, 1.0, 1.0);
        absent.ours = None;
        absent.absent.insert("ours".into(), "no op".into());
        let all = verdicts(&rows, &[alone, absent], &[]);
        assert!(all.iter().all(|v| v.ok().is_none()));
        assert_eq!(all[1].reason.as_deref(), Some("no op"));
        assert!(means(&all).is_empty());
    }
}
