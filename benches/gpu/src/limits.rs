//! Softmax on both sides of the limits of each strategy, compared with the reference.

use crate::bare::Bare;
use ep_conformance::{Case, Key, Outcome, Rig};
use ep_core::{Error, Result};
use ep_cuda::device::Properties;
use ep_cuda::ops::softmax::Strategy;
use ep_cuda::settings::Settings;
use ep_registry::{Device, Runtime};
use serde::Serialize;
use std::collections::BTreeSet;

/// Rows of a launch: enough for one that begins within a pack, and no more, as wide ones take long to compare.
const ROWS: i64 = 3;
/// Where the article's strategies meet.
const MEETING: u64 = 1024;
/// Messages that are kept of a strategy and dtype.
const KEPT: usize = 5;

/// What became of a strategy with a dtype.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    /// The op.
    pub op: String,
    /// Of sources and results.
    pub dtype: String,
    /// The strategy that was forced.
    pub strategy: String,
    /// The columns of the rows.
    pub widths: Vec<u64>,
    /// Launches that were compared, each twice: on aligned and on misaligned operands.
    pub cases: usize,
    /// How many were wrong.
    pub failed: usize,
    /// What was wrong with the first of them.
    pub messages: Vec<String>,
}

/// Checks the primitives of `op` whose dtypes are all one, on a device whose provider is told to use `strategy`, and calls
/// `each` with what became of each dtype.
///
/// # Errors
/// `InvalidArgument` for another op; `OutOfMemory`; the provider's.
pub fn check(
    runtime: &Runtime,
    device: &Device,
    settings: &Settings,
    (op, strategy): (&str, Strategy),
    dtypes: &[&str],
    mut each: impl FnMut(&Checked) -> Result<()>,
) -> Result<()> {
    let properties = Bare::of(settings, device)?.device.properties().clone();
    let mut rig = Rig::new(runtime, device)?;
    let wanted = |key: &Key| {
        let names: BTreeSet<_> = key.dtypes.iter().map(|(_, d)| d.to_string()).collect();
        key.op == op && names.len() == 1 && names.iter().all(|n| dtypes.is_empty() || dtypes.contains(&&**n))
    };
    let keys: Vec<Key> = rig.keys().into_iter().filter(wanted).collect();
    if keys.is_empty() || !op.contains("softmax") {
        return Err(Error::invalid(format!(
            "{} has no limits of `{op}`; there are those of softmax, log_softmax, softmax_backward and \
             log_softmax_backward",
            device.name()
        )));
    }
    for key in keys {
        each(&key_at_limits(runtime, &mut rig, &properties, &key, strategy)?)?;
    }
    Ok(())
}

fn key_at_limits(
    runtime: &Runtime,
    rig: &mut Rig<'_>,
    properties: &Properties,
    key: &Key,
    strategy: Strategy,
) -> Result<Checked> {
    let dtype = key.dtype("src");
    let backward = key.op.ends_with("backward");
    let widest = |s: Strategy| s.widest(properties, backward, dtype);
    // What takes rows of any width is looked at where the last of the others ends.
    let own = match widest(strategy) {
        Some(own) => Some(own),
        None => Strategy::ALL.into_iter().filter_map(widest).max_by_key(|w| w.aligned),
    };
    let limits = [MEETING].into_iter().chain(own.into_iter().flat_map(|w| [w.aligned, w.misaligned]));
    let widths: BTreeSet<u64> = limits.flat_map(|w| w - 1..=w + 1).collect();
    let mut messages = Vec::new();
    let mut cases = 0;
    if let Some(own) = widest(strategy) {
        cases += 2;
        for (cols, held) in [(own.aligned, true), (own.aligned + 1, false)] {
            let about = describe(runtime, rig.device(), key, cols)?;
            if about.starts_with(&strategy.to_string()) != held {
                let not = if held { "" } else { "not " };
                messages.push(format!("{key} cols={cols}: {not}`{strategy}` is expected, found `{about}`"));
            }
        }
    }
    for (cols, shift) in widths.iter().flat_map(|w| [(*w, 0), (*w, 1)]) {
        let sizes = [("rows", ROWS), ("cols", cols as i64), ("inner", 1)];
        let mut case = Case::new(key, "limit").sizes(&sizes).shifted(shift);
        case.set_seed(cols);
        let expected = rig.expect(&case)?;
        cases += 1;
        match rig.run_on_device(&case, &expected)? {
            Outcome::Pass => {}
            Outcome::Fail(why) | Outcome::Unsupported(why) => messages.push(format!("{case}: {why}")),
        }
    }
    let failed = messages.len();
    messages.truncate(KEPT);
    Ok(Checked {
        op: key.op.clone(),
        dtype: dtype.to_string(),
        strategy: strategy.to_string(),
        widths: widths.into_iter().collect(),
        cases,
        failed,
        messages,
    })
}

/// What the provider says of rows of a width.
fn describe(runtime: &Runtime, device: &Device, key: &Key, cols: u64) -> Result<String> {
    let mut request = runtime.request(&key.op)?;
    for (role, dtype) in &key.dtypes {
        request = request.dtype(role, &dtype.to_string())?;
    }
    Ok(runtime.primitive_dyn(device, &request.limit("cols", cols)?)?.describe())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Alone, Setup};

    /// Checks f32 with `strategy` where the provider is told to use `forced`; what became of it, and the kernels that ran.
    fn check_f32(strategy: Strategy, forced: &str) -> (Checked, BTreeSet<String>) {
        let alone = Alone::new(Setup::default());
        let runtime = alone.runtime(&[("softmax", forced)]);
        let device = runtime.device("cuda:0").unwrap();
        let mut found = None;
        let keep = |checked: &Checked| {
            found = Some(checked.clone());
            Ok(())
        };
        check(&runtime, device, &alone.settings(), ("softmax", strategy), &["f32"], keep).unwrap();
        let log = alone.fake.log();
        let launches = log.iter().filter(|l| l.starts_with("cuLaunchKernel"));
        let kernels =
            launches.map(|l| l[l.find('(').unwrap() + 1..l.find(',').unwrap()].to_owned()).collect();
        (found.unwrap(), kernels)
    }

    #[test]
    fn each_side_of_a_limit_is_launched_and_compared() {
        let (checked, kernels) = check_f32(Strategy::Warp, "warp");
        assert_eq!(checked.widths, [511, 512, 513, 1023, 1024, 1025]);
        // Both sides of the limit are as they should be; the fake's kernels compute nothing.
        assert_eq!((checked.cases, checked.failed, checked.messages.len()), (14, 12, KEPT));
        assert!(checked.messages.iter().all(|m| m.contains("`dst`[0] is")), "{:?}", checked.messages);
        assert_eq!(kernels.into_iter().collect::<Vec<_>>(), ["ep_softmax"]);
    }

    #[test]
    fn another_strategy_than_the_forced_one_is_noticed() {
        let (checked, kernels) = check_f32(Strategy::Warp, "wide");
        let wrong = "`warp` is expected, found `wide for rows of 512`";
        assert!(checked.messages[0].contains(wrong), "{:?}", checked.messages);
        assert_eq!(
            (checked.failed, kernels.into_iter().collect::<Vec<_>>()),
            (13, vec!["ep_softmax_wide".into()])
        );
    }

    #[test]
    fn other_ops_have_no_limits() {
        let alone = Alone::new(Setup::default());
        let runtime = alone.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let asked = |op| check(&runtime, device, &alone.settings(), (op, Strategy::Warp), &[], |_| Ok(()));
        for op in ["reduce", "softmin"] {
            assert!(asked(op).unwrap_err().message().contains("log_softmax_backward"));
        }
    }
}
