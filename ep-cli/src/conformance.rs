//! `ep conformance`: proves that a provider keeps the contract and computes what the references compute.

mod show;

use crate::failure::{Exit, Failure};
use crate::output::Out;
use clap::Args;
use ep_conformance::expect::Expectations;
use ep_conformance::onnx::not_run;
use ep_conformance::onnx::suite::Suite;
use ep_conformance::plan::{Filter, SAMPLE, Setup, Unit};
use ep_conformance::protocol::Listing;
use ep_conformance::report::{html, junit};
use ep_conformance::runner::{self, Launcher};
use ep_conformance::summary::{Summary, Verdict};
use ep_conformance::support::{Requirements, table};
use ep_conformance::worker;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ep conformance libmine.so                       everything, on every device
  ep conformance libmine.so --quick               a sample, while developing
  ep conformance libmine.so --op softmax --dtype f16
  ep conformance ep.toml --html report.html       each provider of a config, with its options
  ep conformance libmine.so --case 'abi/*'        only the checks of the binary contract
  ep conformance libmine.so --require support.csv what it has to have
  ep conformance libmine.so --onnx suite          ONNX's own node tests

docs/conformance.md explains the checks and the reports.";

/// Tests a provider: its binary contract, its streams and memory, and everything it claims to compute
///
/// The provider runs in processes of its own, so that a crash or a hang is a failed case. Each failure comes with a
/// command that repeats it alone.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Conformance {
    /// A provider's file, or a config (`*.toml`) whose providers are tested with their options
    target: PathBuf,
    /// Only this device: `cpu:0`, or `cpu` for all of its kind
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Only the primitives of this op
    #[arg(long)]
    op: Option<String>,
    /// Only primitives with this dtype in any role
    #[arg(long)]
    dtype: Option<String>,
    /// Only this case; `*` stands for any text
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// The seed of all content
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A sample: at least two cases of every combination, and more of ops with few
    #[arg(long)]
    quick: bool,
    /// Measures the large cases too
    #[arg(long)]
    perf: bool,
    /// Writes JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Writes JSON: {passed, failed, unsupported, not_mapped, expected_failures, stale, cases: [{name, outcome,
    /// message, repeat}]}
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes a page with the matrix of ops and dtypes
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Writes what the provider claims as a table, `yes` or `failed`
    #[arg(long, value_name = "FILE")]
    support: Option<PathBuf>,
    /// Failures that are expected: in each line the name of a case, and why it fails
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// What the provider has to claim: a table as --support or `ep support` writes it
    #[arg(long, value_name = "FILE.csv")]
    require: Option<PathBuf>,
    /// Runs ONNX's own node tests instead of everything else: a folder that tests/conformance/onnx/generate.py wrote
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dtype", "quick", "perf", "support", "require"])]
    onnx: Option<PathBuf>,
    /// How many of ONNX's tests have to pass
    #[arg(long, value_name = "N", requires = "onnx")]
    onnx_min: Option<usize>,
    /// Which of ONNX's tests are not run: in each line the name of one, and why
    #[arg(long, value_name = "FILE", requires = "onnx", conflicts_with_all = ["case", "op", "device"])]
    onnx_not_run: Option<PathBuf>,
    /// Succeeds although no primitive was launched
    #[arg(long)]
    allow_empty: bool,
    /// How many seconds a case may take
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_s: u64,
    /// Processes at a time [default: 2, or 1 on one CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: Option<u32>,
}

impl Conformance {
    /// Runs it.
    pub fn run(&self, out: &mut Out) -> Result<(), Failure> {
        // Whatever is wrong with these is told before anything is run.
        let expectations = match &self.expect {
            Some(path) => Expectations::from_file(path)?,
            None => Expectations::default(),
        };
        let required = self.require.as_deref().map(Requirements::from_file).transpose()?;
        let not_run = self.onnx_not_run.as_deref().map(Expectations::from_file).transpose()?;
        self.onnx.as_deref().map(Suite::read).transpose()?;
        if !self.target.is_file() {
            return Err(Failure::new(
                Exit::NoProvider,
                format!("{}: no such file; give a provider's library or a config", self.target.display()),
            ));
        }
        let (providers, _) = worker::providers(&self.target)?;
        if providers.is_empty() {
            return Err(Failure::new(
                Exit::NoProvider,
                format!(
                    "{} names no [[provider]] that is enabled; what only its [search] finds is not tested",
                    self.target.display()
                ),
            ));
        }
        self.check_reports()?;
        let launcher = self.launcher()?;
        let mut all = Vec::new();
        for (i, provider) in providers.iter().enumerate() {
            let prefix = if providers.len() > 1 { format!("{}/", provider.name) } else { String::new() };
            let setup = self.setup(i, prefix);
            let bar = show::Bar::new(&provider.name);
            all.push(runner::run(&launcher, &setup, &bar)?);
            bar.finish();
        }
        let listings: Vec<Listing> = all.iter().map(|o| o.listing.clone()).collect();
        self.check_device(&listings)?;
        check_names(&listings)?;
        let whole = self.filter() == Filter::default() && !self.quick;
        let mut summary = Summary::new(all, &expectations, whole, |case| self.repeat(case));
        // Told when what was run has been shown.
        let mut unfit = Ok(());
        match required.map(|required| missing(&required, &listings)) {
            Some(Ok(missing)) => summary.add_missing(missing, |_| self.repeat_requirements()),
            Some(Err(e)) => unfit = Err(e),
            None => {}
        }
        if let Some(list) = not_run {
            let wrong = not_run::differences(&list, &summary);
            summary.add_stale(wrong, |name| self.repeat(&format!("onnx/*/{name}")));
        }
        show::summary(out, &listings, &summary)?;
        self.write_reports(&listings, &summary)?;
        unfit?;
        self.judge(&summary)?;
        match self.onnx_min {
            Some(least) if summary.passed < least => Err(Failure::new(
                Exit::NotConforming,
                format!("{} of ONNX's tests passed, {least} have to", summary.passed),
            )),
            _ => Ok(()),
        }
    }

    fn filter(&self) -> Filter {
        Filter {
            device: self.device.clone(),
            op: self.op.clone(),
            dtype: self.dtype.clone(),
            case: self.case.clone(),
        }
    }

    fn setup(&self, provider: usize, prefix: String) -> Setup {
        Setup {
            target: self.target.clone(),
            provider,
            prefix,
            seed: self.seed,
            quick: self.quick,
            sample: SAMPLE,
            perf: self.perf,
            onnx: self.onnx.clone(),
            filter: self.filter(),
        }
    }

    fn launcher(&self) -> Result<Launcher, Failure> {
        let own = std::env::current_exe()
            .map_err(|e| Failure::general(format!("cannot find this program to start it again: {e}")))?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = self.jobs.map_or(cpus.min(2), |n| n as usize);
        let command = vec![own.into_os_string(), "conformance-worker".into()];
        Ok(Launcher { command, jobs, timeout: Duration::from_secs(self.timeout_s), stop_at_failure: false })
    }

    /// A report that has no place is told before minutes of work are done for it.
    fn check_reports(&self) -> Result<(), Failure> {
        for path in [&self.junit, &self.json, &self.html, &self.support].into_iter().flatten() {
            let cannot = |why: &str| Err(Failure::general(format!("cannot write {}: {why}", path.display())));
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if !folder.is_dir() {
                return cannot("there is no such folder; nothing was run");
            }
            if path.is_dir() {
                return cannot("it is a folder; nothing was run");
            }
        }
        Ok(())
    }

    /// A device that no provider has is a mistake on the command line, not an empty run.
    fn check_device(&self, listings: &[Listing]) -> Result<(), Failure> {
        let Some(wanted) = &self.device else { return Ok(()) };
        let names: Vec<&str> = listings.iter().flat_map(|l| &l.devices).map(|d| d.name.as_str()).collect();
        if names.is_empty() || names.iter().any(|n| n == wanted || n.split(':').next() == Some(wanted)) {
            return Ok(());
        }
        let names = names.join(", ");
        Err(Failure::new(Exit::NoProvider, format!("no device `{wanted}`; there are {names}")))
    }

    /// The command that runs one case again.
    fn repeat(&self, case: &str) -> String {
        let mut line = format!("ep conformance {}", quoted(&self.target.to_string_lossy()));
        if self.seed != 1 {
            line.push_str(&format!(" --seed {}", self.seed));
        }
        if let Some(suite) = &self.onnx {
            line.push_str(&format!(" --onnx {}", quoted(&suite.to_string_lossy())));
        }
        line.push_str(&format!(" --case {}", quoted(case)));
        line
    }

    fn repeat_requirements(&self) -> String {
        let require = self.require.as_deref().unwrap_or(Path::new(""));
        let [target, require] = [&*self.target, require].map(|p| quoted(&p.to_string_lossy()));
        format!("ep conformance {target} --require {require} --quick")
    }

    fn write_reports(&self, listings: &[Listing], summary: &Summary) -> Result<(), Failure> {
        let write = |path: &Option<PathBuf>, text: &dyn Fn() -> Result<String, Failure>| match path {
            Some(path) => std::fs::write(path, text()?)
                .map_err(|e| Failure::general(format!("cannot write {}: {e}", path.display()))),
            None => Ok(()),
        };
        write(&self.junit, &|| Ok(junit(summary)))?;
        write(&self.json, &|| {
            serde_json::to_string_pretty(summary)
                .map(|text| text + "\n")
                .map_err(|e| Failure::general(format!("cannot write the result as JSON: {e}")))
        })?;
        write(&self.html, &|| {
            let names: Vec<_> =
                listings.iter().map(|l| l.provider.as_str()).filter(|p| !p.is_empty()).collect();
            let file = self.target.file_name().map(|f| f.to_string_lossy().into_owned());
            let title = if names.is_empty() { file.unwrap_or_default() } else { names.join(", ") };
            Ok(html(&title, &self.facts(listings), summary))
        })?;
        let claims: Vec<Unit> = listings.iter().flat_map(|l| l.claims.clone()).collect();
        write(&self.support, &|| Ok(table(&claims, summary)))
    }

    /// About the run, for the page.
    fn facts(&self, listings: &[Listing]) -> Vec<String> {
        let devices = listings.iter().flat_map(|l| &l.devices);
        let mut facts: Vec<_> =
            devices.map(|d| format!("{}: {}, memory `{}`", d.name, d.product, d.space)).collect();
        let sample = if self.quick { ", a sample of the cases" } else { "" };
        facts.push(format!("Seed {}{sample}; ep {}", self.seed, env!("CARGO_PKG_VERSION")));
        facts
    }

    fn judge(&self, summary: &Summary) -> Result<(), Failure> {
        match summary.verdict() {
            Verdict::Conforms => Ok(()),
            Verdict::Fails => Err(Failure::new(Exit::NotConforming, "")),
            // Who asks for one check gets it; who asks for a case that is not there does not.
            Verdict::NothingRan if self.case.is_some() && !summary.cases.is_empty() => Ok(()),
            Verdict::NothingRan if self.allow_empty => Ok(()),
            Verdict::NothingRan => Err(Failure::new(
                Exit::NothingRan,
                "no primitive was launched: the provider claims none that the filters let through; --allow-empty \
                 accepts that",
            )),
        }
    }
}

/// An op or a dtype that no provider knows is one as well.
fn check_names(listings: &[Listing]) -> Result<(), Failure> {
    let mut loaded = listings.iter().filter(|l| l.failed.is_none()).peekable();
    let Some(why) = loaded.peek().and_then(|l| l.unknown.clone()) else { return Ok(()) };
    if loaded.all(|l| l.unknown.is_some()) { Err(Failure::new(Exit::Usage, why)) } else { Ok(()) }
}

/// What devices have to claim, and do not.
fn missing(required: &Requirements, listings: &[Listing]) -> Result<Vec<(Unit, String)>, Failure> {
    let mut missing = Vec::new();
    for listing in listings {
        for device in &listing.devices {
            missing.extend(required.missing(&device.name, &listing.claims)?);
        }
    }
    Ok(missing)
}

/// A word for a POSIX shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        conformance: Conformance,
    }

    fn parse(line: &[&str]) -> Result<Conformance, clap::Error> {
        Line::try_parse_from(std::iter::once("conformance").chain(line.iter().copied()))
            .map(|l| l.conformance)
    }

    #[test]
    fn a_case_is_repeated_by_one_command() {
        let plain = parse(&["lib/x.so"]).unwrap();
        assert_eq!(plain.repeat("abi/strings"), "ep conformance lib/x.so --case abi/strings");
        let other = parse(&["it's x.so", "--seed", "7"]).unwrap();
        assert_eq!(other.repeat("a/*"), "ep conformance 'it'\\''s x.so' --seed 7 --case 'a/*'");
        assert!(parse(&[]).is_err() && parse(&["x", "--timeout-s", "0"]).is_err());
    }

    #[test]
    fn what_did_not_run_is_a_failure_of_its_own() {
        let empty = Summary::default();
        let exit = |args: &[&str]| parse(args).unwrap().judge(&empty).map_err(|f| f.exit);
        assert_eq!(exit(&["x"]), Err(Exit::NothingRan));
        assert_eq!(exit(&["x", "--case", "abi/none"]), Err(Exit::NothingRan));
        assert_eq!(exit(&["x", "--allow-empty"]), Ok(()));
        let failed = Summary { failed: 1, ..Summary::default() };
        assert_eq!(
            parse(&["x", "--allow-empty"]).unwrap().judge(&failed).map_err(|f| f.exit),
            Err(Exit::NotConforming)
        );
    }
}
