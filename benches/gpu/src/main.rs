//! `ep-gpu-bench`: times rows of `benches/peers/gpu_rows.py` through a provider, beside a device copy of as many bytes.

mod bare;
mod chains;
#[cfg(test)]
mod fake;
mod host;
mod large;
mod limits;
mod operands;
mod peers;
mod random;
mod repeats;
mod row;
mod timing;
mod turns;

use clap::Parser;
use ep_core::{Error, Result};
use ep_cuda::ops::softmax::Strategy;
use ep_cuda::settings::Settings;
use ep_registry::config::Config;
use ep_registry::{Device, Runtime, Stream};
use operands::{Copier, Launches};
use peers::{Pair, Side};
use row::Row;
use serde::Serialize;
use serde_json::json;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Times primitives on a GPU
///
/// Reads rows as benches/peers/gpu_rows.py prints them and writes a line of JSON for each when it is done: {peer, group, op,
/// dtype, shape, us, copy_us, share, tflops, by}, or with `error` in place of times. Times are medians of the device's
/// events over operands that rotate beyond the L2 cache. In place of that, what one of --host, --peer-copy, --limits,
/// --large, --chains, --repeats, --random, --first-result and --kernel asks for.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The config file [default: as for `ep`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The device
    #[arg(long, value_name = "NAME", default_value = "cuda:0")]
    device: String,
    /// The rows, `-` for standard input
    #[arg(long, value_name = "FILE", required_unless_present_any = ["host", "peer_copy", "limits", "large", "chains", "repeats", "random", "first_result", "kernel"])]
    rows: Option<PathBuf>,
    /// What a launch costs the host, by each way to launch
    #[arg(long)]
    host: bool,
    /// Answers each line of standard input, the number of a row from 0, with {us}: what its launch costs the host, so that
    /// another program can time its own in turns with it; --rows is a file then
    #[arg(long, requires = "rows")]
    launches: bool,
    /// Copies to this device beside `cuMemcpyPeerAsync`, back from it, and work of each that waits for the other's events
    #[arg(long, value_name = "NAME")]
    peer_copy: Option<String>,
    /// Bytes of the copies of --peer-copy
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [16 << 20, 256 << 20, 1 << 30])]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 36))]
    bytes: Vec<u64>,
    /// Compares this op of the softmax family with the reference on both sides of the limits of each strategy; a line for
    /// each strategy and dtype: {op, dtype, strategy, widths, cases, failed, messages}
    #[arg(long, value_name = "OP")]
    limits: Option<String>,
    /// Compares launches of many elements with their definition, at the ends and around powers of 2; a line for each:
    /// {op, dtype, elements, windows, failed, messages}
    #[arg(long)]
    large: bool,
    /// Bytes of each operand of --large, of which there are three
    #[arg(long, value_name = "N", default_value_t = (1 << 32) + 1_234_567)]
    #[arg(value_parser = clap::value_parser!(u64).range(1 << 20..=1 << 36))]
    large_bytes: u64,
    /// Compares so many random chains of launches, each on what others have just written, with the same steps on the host;
    /// prints {chains, recorded, failed, messages}
    #[arg(long, value_name = "N")]
    chains: Option<u64>,
    /// Compares products that are launched again and again with launches that are not kept, bit for bit; prints
    /// {products, launches, kept, failed, messages}
    #[arg(long)]
    repeats: bool,
    /// Compares random launches for so many seconds with what another device leaves of them, also around the destination;
    /// prints {seed, seconds, launches, refused, failed, messages}
    #[arg(long, value_name = "SECONDS", requires = "against")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    random: Option<u64>,
    /// The other device of --random
    #[arg(long, value_name = "NAME", requires = "random")]
    against: Option<String>,
    /// What --random draws from; the same seed has the same launches
    #[arg(long, value_name = "N", default_value_t = 0, requires = "random")]
    seed: u64,
    /// Ops of --random; may be given often [default: all that it can draw]
    #[arg(long, value_name = "NAME", requires = "random")]
    op: Vec<String>,
    /// Computes one thing and ends
    #[arg(long)]
    first_result: bool,
    /// Writes the code of the kernel that --first-result launches
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
}

/// A line of output. The keys are those of gpu_torch.py.
#[derive(Default, Serialize)]
struct Line<'a> {
    peer: &'static str,
    group: &'a str,
    op: &'a str,
    dtype: &'a str,
    shape: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copy_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tflops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    if let Some(file) = &cli.kernel {
        return std::fs::write(file, host::kernel()?)
            .map_err(|e| told(&format!("writing {}", file.display()), &e));
    }
    let config = Config::find(cli.config.as_deref(), true)?;
    let config = config.ok_or_else(|| {
        Error::not_found("there is no config; write one with `ep init`, or name it with --config")
    })?;
    let mut config = Config::from_file(&config)?;
    let runtime = Runtime::builder().config(config.clone()).build()?;
    let device = runtime.device(&cli.device)?;
    if cli.first_result {
        return host::first_result(&runtime, device, |result| print(&result));
    }
    if cli.host {
        let settings = bare::settings(bare::instance(&mut config, device)?);
        for (name, us) in host::measure(&runtime, device, &settings)? {
            let line = Line { op: name, dtype: "f32", shape: "4", us: Some(us), ..Line::of_group("host") };
            print(&line)?;
        }
        return Ok(());
    }
    if let Some(name) = &cli.peer_copy {
        let peer = runtime.device(name).map_err(|e| e.context("--peer-copy needs two devices"))?;
        let settings = bare::settings(bare::instance(&mut config, device)?);
        return two(&runtime, [device, peer], &settings, &cli.bytes);
    }
    if let Some(op) = &cli.limits {
        return at_limits(config, device, op);
    }
    if cli.large {
        return at_large(&runtime, device, cli.large_bytes);
    }
    if let Some(number) = cli.chains {
        let checked = chains::check(&runtime, device, chains::MOST, number)?;
        print(&checked)?;
        return chains::judge(&checked);
    }
    if cli.repeats {
        let checked = repeats::check(&runtime, device, &repeats::SIZES)?;
        print(&checked)?;
        return repeats::judge(&checked);
    }
    if let (Some(seconds), Some(other)) = (cli.random, &cli.against) {
        let devices = [device, runtime.device(other).map_err(|e| e.context("--against"))?];
        let asked = random::Asked { seed: cli.seed, ops: &cli.op, most: random::MOST };
        let checked = random::check(&runtime, devices, &asked, random::during(Duration::from_secs(seconds)))?;
        print(&checked)?;
        return random::judge(&checked);
    }
    if cli.launches && cli.rows.as_deref().is_some_and(|path| path.as_os_str() == "-") {
        return Err(Error::invalid("--launches reads requests from standard input; name a file with --rows"));
    }
    let rows = row::read(&text(cli.rows.as_deref())?)?;
    if cli.launches {
        return turns::serve(&runtime, device, &rows, std::io::stdin().lock(), |us| {
            print(&json!({ "us": us }))
        });
    }
    let (stream, copier) = (device.stream()?, Copier::new(&runtime, device)?);
    let mut copies = timing::Copies::default();
    for row in &rows {
        print(&measure(&runtime, device, &stream, &copier, &mut copies, row))?;
        device.trim()?;
    }
    Ok(())
}

/// Copies and waits in both directions.
fn two(runtime: &Runtime, devices: [&Device; 2], settings: &Settings, bytes: &[u64]) -> Result<()> {
    let [a, b] = devices;
    for [from, to] in [[a, b], [b, a]] {
        let between = format!("{} to {}", from.name(), to.name());
        let pair = Pair::new(runtime, Side::new(from, settings)?, Side::new(to, settings)?)?;
        for bytes in bytes {
            let copied = pair.copies(*bytes)?;
            let shape = format!("{bytes} bytes, {between}");
            let (us, bare) = (copied.us, copied.bare_us);
            let line = Line { op: "copy", dtype: "u8", shape: &shape, ..Line::of_group("peer_copy") };
            print(&Line { us: Some(us), copy_us: Some(bare), share: Some(bare / us), ..line })?;
        }
        if let Some(least) = bytes.iter().min() {
            let shape = format!("{} times {least} bytes, {between}", pair.waits(*least)?);
            print(&Line { op: "wait", dtype: "u8", shape: &shape, ..Line::of_group("peer_event") })?;
        }
    }
    Ok(())
}

/// Each strategy in a runtime of its own: an option forces it.
fn at_limits(mut config: Config, device: &Device, op: &str) -> Result<()> {
    let settings = bare::settings(bare::instance(&mut config, device)?);
    let (mut failed, mut cases) = (0, 0);
    for strategy in Strategy::ALL {
        let options = &mut bare::instance(&mut config, device)?.options;
        options.insert("softmax".to_owned(), strategy.to_string());
        let runtime = Runtime::builder().config(config.clone()).build()?;
        let forced = runtime.device(device.name())?;
        limits::check(&runtime, forced, &settings, (op, strategy), &[], |checked| {
            (failed, cases) = (failed + checked.failed, cases + checked.cases);
            print(checked)
        })?;
    }
    if failed > 0 {
        return Err(Error::internal(format!("{failed} of {cases} cases at the limits of {op} are wrong")));
    }
    Ok(())
}

fn at_large(runtime: &Runtime, device: &Device, bytes: u64) -> Result<()> {
    let (mut failed, mut cases) = (0, 0);
    large::check(runtime, device, bytes, |checked| {
        (failed, cases) = (failed + u64::from(checked.failed > 0), cases + 1);
        print(checked)
    })?;
    if failed > 0 {
        return Err(Error::internal(format!(
            "{failed} of {cases} launches on operands of {bytes} bytes are wrong"
        )));
    }
    Ok(())
}

fn told(what: &str, error: &std::io::Error) -> Error {
    Error::invalid(format!("{what}: {error}"))
}

fn text(file: Option<&std::path::Path>) -> Result<String> {
    match file {
        Some(path) if path.as_os_str() != "-" => {
            std::fs::read_to_string(path).map_err(|e| told(&format!("reading {}", path.display()), &e))
        }
        _ => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(|e| told("reading rows", &e))?;
            Ok(text)
        }
    }
}

impl<'a> Line<'a> {
    fn of_group(group: &'a str) -> Line<'a> {
        Line { peer: "ours", group, ..Line::default() }
    }
}

/// A row that fails is a line with the error; the others go on.
fn measure<'a>(
    runtime: &Runtime,
    device: &Device,
    stream: &Stream,
    copier: &Copier,
    copies: &mut timing::Copies,
    row: &'a Row,
) -> Line<'a> {
    let mut line = Line { op: &row.op, dtype: &row.dtype, shape: &row.shape, ..Line::of_group(&row.group) };
    let mut lists = Vec::new();
    let timed = Launches::new(runtime, device, stream, copier, row, &mut lists).and_then(|launches| {
        let us = timing::row(stream, &launches, row.flops)?;
        Ok((us, launches.by()))
    });
    let timed = timed.and_then(|(us, by)| Ok((us, by, copies.time(device, stream, copier, row.bytes)?)));
    match timed {
        Ok((us, by, copy_us)) => {
            (line.us, line.copy_us, line.share) = (Some(us), Some(copy_us), Some(copy_us / us));
            line.tflops = (row.flops > 0).then(|| row.flops as f64 / us / 1e6);
            line.by = Some(by);
        }
        Err(e) => line.error = Some(e.context(row.name()).to_string()),
    }
    line
}

fn print(line: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(line).map_err(|e| Error::internal(e.to_string()))?;
    writeln!(std::io::stdout(), "{text}").map_err(|e| told("writing", &e))
}
