//! What the framework itself costs: `ep-boundary`, which `ep bench --boundary` runs.
//!
//! | name | one call is |
//! |---|---|
//! | `launch.plugin` | a raw launch of a relu over 4 f32 by the provider's library, loaded from the config |
//! | `launch.static` | the same on the same provider, linked into this program |
//! | `launch.fn_pointer` | the same relu as a plain C function behind a pointer |
//! | `launch.safe` | as `launch.plugin`, with buffers and all checks |
//! | `lookup.cached` | `Runtime::primitive` for one of 1,000 known requests, in random order |
//! | `lookup.cold` | `Runtime::primitive` for a request that was never made: choosing and creating |
//! | `load` | building a runtime with one provider and 2 threads: reading and checking the file, `dlopen` of a library that the process knows, negotiation, devices, registration, starting threads |
//! | `parallel_for.warm` | a loop of two chunks that wait for each other, so that both threads are in it |
//! | `parallel_for.idle` | the same after 1 ms without work |
//!
//! The launches are timed in turns in batches, so that all see the same clock speed and neighbours.

use clap::Parser;
use ep_benches::samples::{Samples, in_turns};
use ep_core::op::Op;
use ep_core::primitive::{
    ElementwiseUnary, ElementwiseUnaryArgs, ElementwiseUnaryCall, ElementwiseUnaryDesc, Softmax, SoftmaxDesc,
    UnaryOp,
};
use ep_core::{Code, DType, Error, Result};
use ep_registry::config::Config;
use ep_registry::{Buffer, Device, Primitive, Runtime, Stream};
use serde::Serialize;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Batches, and calls in each, of the launches.
const ROUNDS: usize = 400;
const CALLS: usize = 1000;
/// Distinct requests that are looked up.
const REQUESTS: u64 = 1000;
/// How long one chunk waits for the other before it counts as alone.
const PATIENCE: Duration = Duration::from_millis(1);
/// What is launched on: all kinds of signs.
const INPUT: [f32; 4] = [-1.5, 0.25, f32::NEG_INFINITY, 3.0];
const OUTPUT: [f32; 4] = [0.0, 0.25, 0.0, 3.0];

/// Measures what calling through the plugin boundary costs; `ep bench --boundary` runs this
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The config file [default: as for `ep`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Prints JSON: [{name, median_ns, min_ns, runs}]; a run is a batch of calls, or one call that is long enough
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    median_ns: f64,
    min_ns: f64,
    runs: usize,
}

/// A figure and what it must not exceed, in nanoseconds.
struct Check {
    what: &'static str,
    value: f64,
    limit: f64,
}

/// Everything measured.
#[derive(Default)]
struct Report {
    rows: Vec<Row>,
    checks: Vec<Check>,
    remarks: Vec<String>,
}

impl Report {
    fn add(&mut self, name: &'static str, samples: &Samples) {
        let (median_ns, min_ns) = (samples.median(), samples.min());
        self.rows.push(Row { name, median_ns, min_ns, runs: samples.len() });
    }

    fn check(&mut self, what: &'static str, value: f64, limit: f64) {
        self.checks.push(Check { what, value, limit });
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let found = Config::find(cli.config.as_deref(), true).and_then(|path| {
        path.ok_or_else(|| {
            Error::not_found("there is no config; write one with `ep init`, or name it with --config")
        })
    });
    let report = match found.and_then(|path| measure(&path)) {
        Ok(report) => report,
        Err(e) => {
            eprintln!("error: {e}");
            // As `ep`: 3 where no provider can be used.
            let absent = matches!(e.code(), Code::NotFound | Code::Unavailable);
            return ExitCode::from(if absent { 3 } else { 1 });
        }
    };
    let text = if cli.json {
        serde_json::to_string_pretty(&report.rows).map_or_else(|e| e.to_string(), |t| t + "\n")
    } else {
        for_people(&report)
    };
    match std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("error: cannot write to standard output: {e}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn for_people(report: &Report) -> String {
    let mut text = format!("{:<20}{:>14}{:>14}{:>8}\n", "", "median ns", "min ns", "runs");
    for r in &report.rows {
        text += &format!("{:<20}{:>14.1}{:>14.1}{:>8}\n", r.name, r.median_ns, r.min_ns, r.runs);
    }
    text.push('\n');
    for c in &report.checks {
        let verdict = if c.value <= c.limit { "ok" } else { "MISSED" };
        text += &format!("{:<46}{:>12.1} ns, at most {:>9} ns: {verdict}\n", c.what, c.value, c.limit);
    }
    for remark in &report.remarks {
        text += &format!("{remark}\n");
    }
    text
}

fn measure(config: &Path) -> Result<Report> {
    let mut report = Report::default();
    if cfg!(debug_assertions) {
        report.remarks.push("a debug build: these figures mean nothing; build with --release".into());
    }
    let start = Instant::now();
    let plugin = Runtime::builder().config(Config::from_file(config)?).threads(2).build()?;
    let first = start.elapsed();
    report.remarks.push(format!(
        "the first load in this process, reading the config and the library from the disk's cache: {:.2} ms",
        first.as_secs_f64() * 1e3
    ));
    let linked = Runtime::builder().linked::<ep_cpu::provider::CpuProvider>("static").threads(2).build()?;
    let path = launches(&plugin, &linked, &mut report)?;
    lookups(&plugin, &mut report)?;
    loads(&path, &mut report)?;
    loops(&plugin, &mut report)?;
    Ok(report)
}

/// A relu on a device, with what it works on.
struct Relu {
    primitive: Primitive<ElementwiseUnary>,
    stream: Stream,
    src: Buffer,
    dst: Buffer,
}

impl Relu {
    fn new(runtime: &Runtime, device: &Device) -> Result<Relu> {
        let desc = ElementwiseUnaryDesc::new(UnaryOp::RELU, DType::F32, DType::F32);
        Ok(Relu {
            primitive: runtime.primitive(device, desc)?,
            stream: device.stream()?,
            src: device.upload(&INPUT)?,
            dst: device.upload(&[f32::NAN; 4])?,
        })
    }

    fn args(&self) -> ElementwiseUnaryArgs {
        ElementwiseUnaryArgs::new(4, self.src.address(), self.dst.address())
    }

    /// The same machine code for the plugin and the linked provider.
    #[inline(never)]
    fn launch_raw(&self, args: &ElementwiseUnaryArgs, calls: usize) -> Result<()> {
        for _ in 0..calls {
            // SAFETY: `args` has the addresses of the two live buffers of 4 f32, which only this stream uses.
            unsafe { self.primitive.launch_raw(&self.stream, black_box(args)) }?;
        }
        self.stream.sync()
    }

    #[inline(never)]
    fn launch(&mut self, calls: usize) -> Result<()> {
        for _ in 0..calls {
            let call = ElementwiseUnaryCall { count: black_box(4), src: &self.src, dst: &mut self.dst };
            self.primitive.launch(&self.stream, call)?;
        }
        self.stream.sync()
    }

    /// Fails unless the launches have computed something.
    fn verify(&self) -> Result<()> {
        let dst = self.dst.download::<f32>()?;
        if dst == OUTPUT {
            return Ok(());
        }
        Err(Error::internal(format!("relu of {INPUT:?} by {:?} is {dst:?}", self.primitive)))
    }
}

type Plain = unsafe extern "C" fn(*const ElementwiseUnaryArgs);

/// The same relu without any framework.
///
/// # Safety
/// `args` is valid, with the addresses of `count` f32 each.
unsafe extern "C" fn plain_relu(args: *const ElementwiseUnaryArgs) {
    // SAFETY: as the caller promises.
    let args = unsafe { &*args };
    let (src, dst) = (args.src as *const f32, args.dst as *mut f32);
    for i in 0..args.count as usize {
        // SAFETY: as the caller promises.
        unsafe { *dst.add(i) = (*src.add(i)).max(0.0) }
    }
}

/// Launches; returns the plugin's file.
fn launches(plugin: &Runtime, linked: &Runtime, report: &mut Report) -> Result<PathBuf> {
    let mut a = Relu::new(plugin, plugin.device("cpu")?)?;
    let b = Relu::new(linked, linked.device("cpu")?)?;
    let path = file_of(plugin, linked, a.primitive.instance())?;
    let (args, linked_args) = (a.args(), b.args());
    let (plain_src, mut plain_dst) = (INPUT, [f32::NAN; 4]);
    let plain_args = ElementwiseUnaryArgs::new(4, plain_src.as_ptr() as u64, plain_dst.as_mut_ptr() as u64);
    let function: Plain = black_box(plain_relu);
    let a_cell = std::cell::RefCell::new(&mut a);
    let [raw, fixed, plain, safe] = in_turns(
        ROUNDS,
        CALLS,
        [
            &mut |n| a_cell.borrow().launch_raw(&args, n),
            &mut |n| b.launch_raw(&linked_args, n),
            &mut |n| {
                for _ in 0..n {
                    // SAFETY: the addresses of two live arrays of 4 f32.
                    unsafe { function(black_box(&plain_args)) }
                }
                Ok(())
            },
            &mut |n| a_cell.borrow_mut().launch(n),
        ],
    )?;
    a.verify()?;
    b.verify()?;
    if black_box(plain_dst) != OUTPUT {
        return Err(Error::internal(format!("the plain relu gives {plain_dst:?}")));
    }
    report.add("launch.plugin", &raw);
    report.add("launch.static", &fixed);
    report.add("launch.fn_pointer", &plain);
    report.add("launch.safe", &safe);
    report.check("the boundary adds (plugin - static)", raw.median_above(&fixed), 5.0);
    report.check("buffers and checks add (safe - plugin)", safe.median_above(&raw), 40.0);
    Ok(path)
}

/// The file of an instance, which must be the provider that is also linked.
fn file_of(plugin: &Runtime, linked: &Runtime, instance: &str) -> Result<PathBuf> {
    let id = |r: &Runtime, name: &str| {
        let entry = r.report().entries.iter().find(|e| e.instance == name).cloned();
        entry.and_then(|e| Some((e.provider?, e.path)))
    };
    match (id(plugin, instance), id(linked, "static")) {
        (Some((provider, Some(path))), Some((own, _))) if provider == own => Ok(path),
        (found, own) => Err(Error::invalid(format!(
            "`{instance}` computes relu on cpu:0 and is {:?}, but this program has {:?} linked to compare with; use \
             a config in which that provider comes first, in the same version",
            found.map(|(p, _)| p),
            own.map(|(p, _)| p)
        ))),
    }
}

/// Numbers that look random (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

fn softmax(max_cols: u64) -> <Softmax as Op>::Desc {
    SoftmaxDesc::new(DType::F32, DType::F32).with_max_cols(max_cols)
}

fn lookups(runtime: &Runtime, report: &mut Report) -> Result<()> {
    const PASSES: usize = 200;
    const COLD: u64 = 20;
    let device = runtime.device("cpu")?;
    let mut requests: Vec<_> = (1..=REQUESTS).map(softmax).collect();
    let look_up_all = |requests: &[SoftmaxDesc]| {
        for desc in requests {
            black_box(runtime.primitive::<Softmax>(device, *black_box(desc))?);
        }
        Ok(())
    };
    look_up_all(&requests)?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut cached = Samples::new();
    for _ in 0..PASSES {
        random.shuffle(&mut requests);
        cached.time(requests.len(), || look_up_all(&requests))?;
    }
    let mut cold = Samples::new();
    let mut next = REQUESTS + 1;
    for _ in 0..PASSES {
        let fresh: Vec<_> = (next..next + COLD).map(softmax).collect();
        next += COLD;
        cold.time(fresh.len(), || look_up_all(&fresh))?;
    }
    report.add("lookup.cached", &cached);
    report.add("lookup.cold", &cold);
    report.check("a cached lookup", cached.median(), 100.0);
    Ok(())
}

fn loads(path: &Path, report: &mut Report) -> Result<()> {
    let mut load = Samples::new();
    for _ in 0..100 {
        let runtime = load.time(1, || Runtime::builder().provider("cpu", path).threads(2).build())?;
        runtime.device("cpu")?;
    }
    report.add("load", &load);
    report.check("loading", load.median(), 2e6);
    Ok(())
}

fn loops(runtime: &Runtime, report: &mut Report) -> Result<()> {
    let parallel = runtime.parallel();
    let mut alone = 0;
    let mut call = |samples: &mut Samples| {
        let (arrived, met) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let meet = |_| {
            let start = Instant::now();
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < 2 {
                if start.elapsed() > PATIENCE {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            met.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        samples.time(1, || parallel.parallel_for(2, 1, 2, &meet))?;
        alone += usize::from(met.load(Ordering::Relaxed) < 2);
        Ok::<(), Error>(())
    };
    let (mut warm, mut idle) = (Samples::new(), Samples::new());
    for _ in 0..4000 {
        call(&mut warm)?;
    }
    for _ in 0..400 {
        std::thread::sleep(Duration::from_millis(1));
        call(&mut idle)?;
    }
    report.add("parallel_for.warm", &warm);
    report.add("parallel_for.idle", &idle);
    report.check("parallel_for on 2 threads", warm.median(), 3e3);
    report.check("parallel_for on 2 threads after 1 ms idle", idle.median(), 2e4);
    if alone != 0 {
        let all = warm.len() + idle.len();
        report
            .remarks
            .push(format!("in {alone} of {all} loops the second thread came too late to take part"));
    }
    Ok(())
}
