//! What packing weights gains: `ep-prepack`, which `ep bench --prepack` runs.
//!
//! Products of few and many rows by the same weights, with these as they are and packed, in turns, so that both see the same
//! clock speed and neighbours.

use clap::Parser;
use ep_benches::content;
use ep_benches::row::Content;
use ep_benches::samples::{Samples, in_turns};
use ep_core::primitive::{Matmul, MatmulCall, MatmulDesc, Transpose};
use ep_core::{Code, DType, Error, Result, Scalar};
use ep_registry::config::Config;
use ep_registry::{Buffer, Device, NoMemory, Packed, Primitive, Read, Runtime, Stream};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Rows and columns of the weights: a layer that caches do not hold, and one that they do.
const WEIGHTS: [[i64; 2]; 2] = [[4096, 4096], [1024, 1000]];
/// Rows of what is multiplied by them.
const ROWS: [i64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const DTYPES: [DType; 4] = [DType::BF16, DType::F16, DType::F32, DType::F64];

/// Measures what packing the weights of matrix products gains; `ep bench --prepack` runs this
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The config file [default: as for `ep`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The device: `cpu:0`, or `cpu` for the first of its kind
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    device: String,
    /// Threads that providers may use, such as 1 or 1,2 [default: one for each CPU]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    threads: Vec<usize>,
    /// A short look: fewer runs of each row
    #[arg(long)]
    quick: bool,
    /// Prints a line of JSON for each row: {dtype, transposed, m, n, k, threads, device, pack_us, plain_us, packed_us, ratio}
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    dtype: String,
    transposed: bool,
    m: i64,
    n: i64,
    k: i64,
    threads: usize,
    device: String,
    pack_us: f64,
    plain_us: f64,
    packed_us: f64,
    ratio: f64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let found = Config::find(cli.config.as_deref(), true).and_then(|path| {
        path.ok_or_else(|| {
            Error::not_found("there is no config; write one with `ep init`, or name it with --config")
        })
    });
    match found.and_then(|path| run(&cli, &path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            // As `ep`: 3 where no provider can be used.
            let absent = matches!(e.code(), Code::NotFound | Code::Unavailable);
            ExitCode::from(if absent { 3 } else { 1 })
        }
    }
}

/// Prints; a reader who has seen enough is no error.
fn print(text: &str) -> Result<bool> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::internal(format!("cannot write to standard output: {e}"))),
    }
}

fn run(cli: &Cli, config: &Path) -> Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("a debug build: these figures mean nothing; build with --release");
    }
    let all = if cli.threads.is_empty() { vec![0] } else { cli.threads.clone() };
    for threads in all {
        let runtime = Runtime::builder().config(Config::from_file(config)?).threads(threads).build()?;
        let (device, threads) = (runtime.device(&cli.device)?, runtime.parallel().threads());
        for dtype in DTYPES {
            for shape in WEIGHTS {
                for transposed in [false, true] {
                    let weights = match Weights::new(&runtime, device, dtype, shape, transposed) {
                        Err(e) if e.code() == Code::Unsupported => {
                            eprintln!("{}: no products of {dtype}: {}", device.name(), e.message());
                            continue;
                        }
                        made => made?,
                    };
                    if !weights.measure(cli, threads)? {
                        return Ok(());
                    }
                }
            }
        }
    }
    Ok(())
}

/// Weights `[k, n]`, or `[n, k]` where they are transposed.
struct Weights {
    primitive: Primitive<Matmul>,
    stream: Stream,
    device: Device,
    dtype: DType,
    shape: [i64; 2],
    transposed: bool,
    plain: Buffer,
}

impl Weights {
    /// `Unsupported` where the device has no such products.
    fn new(
        runtime: &Runtime,
        device: &Device,
        dtype: DType,
        shape: [i64; 2],
        transposed: bool,
    ) -> Result<Weights> {
        let transpose = if transposed { Transpose::TRANSPOSE } else { Transpose::NONE };
        let desc = MatmulDesc::new(Transpose::NONE, transpose, dtype);
        let primitive = runtime.primitive::<Matmul>(device, desc)?;
        let plain = numbers(device, dtype, shape[0] * shape[1], 1)?;
        let (stream, device) = (device.stream()?, device.clone());
        Ok(Weights { primitive, stream, device, dtype, shape, transposed, plain })
    }

    fn pack(&self) -> Result<Option<Packed>> {
        let [k, n] = self.shape;
        let (m, alpha, beta) = (1, Scalar::None, Scalar::None);
        let call = MatmulCall { m, n, k, alpha, beta, a: NoMemory, b: &self.plain, c: NoMemory };
        let packed = self.primitive.prepack(&self.stream, call)?;
        self.stream.sync()?;
        Ok(packed)
    }

    /// Whether somebody still reads.
    fn measure(&self, cli: &Cli, threads: usize) -> Result<bool> {
        let [k, n] = self.shape;
        let what = format!(
            "{} [{k}, {n}]{}, {threads} threads on {}",
            self.dtype,
            if self.transposed { " stored as its transpose" } else { "" },
            self.device.name()
        );
        // The first time the memory is new.
        self.pack()?;
        let mut packing = Samples::new();
        for _ in 0..4 {
            packing.time(1, || self.pack())?;
        }
        let Some(packed) = packing.time(1, || self.pack())? else {
            return if cli.json {
                Ok(true)
            } else {
                print(&format!("{what}: nothing is gained by packing\n"))
            };
        };
        if !cli.json {
            let (ms, mib) = (packing.min() / 1e6, packed.bytes() as f64 / f64::from(1 << 20));
            let head = format!("{:>6}{:>14}{:>14}{:>9}\n", "m", "plain", "packed", "ratio");
            if !print(&format!("{what}: packed in {ms:.2} ms, {mib:.1} MiB\n{head}"))? {
                return Ok(false);
            }
        }
        for m in ROWS {
            let x = numbers(&self.device, self.dtype, m * k, 2)?;
            let mut outputs = [
                self.device.alloc(self.dtype, (m * n) as usize)?,
                self.device.alloc(self.dtype, (m * n) as usize)?,
            ];
            let [first, second] = &mut outputs;
            let launch = |b: Read<'_>, c: &mut Buffer, times: usize| -> Result<()> {
                let (alpha, beta) = (Scalar::None, Scalar::None);
                for _ in 0..times {
                    let call = MatmulCall { m, n, k, alpha, beta, a: &x, b, c: &mut *c };
                    self.primitive.launch(&self.stream, call)?;
                }
                self.stream.sync()
            };
            launch(Read::from(&self.plain), first, 1)?;
            let mut once = Samples::new();
            once.time(1, || launch(Read::from(&self.plain), first, 1))?;
            // Batches of 20 us at least, so that reading the clock does not count.
            let calls = (2e4 / once.min()).clamp(1.0, 1000.0) as usize;
            let budget_ns = if cli.quick { 5e7 } else { 4e8 };
            let rounds = (budget_ns / (once.min() * 2.0 * calls as f64)).clamp(9.0, 201.0) as usize;
            let [plain, fast] = in_turns(
                rounds,
                calls,
                [&mut |times| launch(Read::from(&self.plain), first, times), &mut |times| {
                    launch(Read::from(&packed), second, times)
                }],
            )?;
            let (plain_us, packed_us) = (plain.median() / 1e3, fast.median() / 1e3);
            let row = Row {
                dtype: self.dtype.to_string(),
                transposed: self.transposed,
                m,
                n,
                k,
                threads,
                device: self.device.name().to_owned(),
                pack_us: packing.min() / 1e3,
                plain_us,
                packed_us,
                ratio: plain_us / packed_us,
            };
            let line = match cli.json {
                true => serde_json::to_string(&row).map_err(|e| Error::internal(e.to_string()))? + "\n",
                false => format!("{m:>6}{plain_us:>11.1} us{packed_us:>11.1} us{:>9.2}\n", row.ratio),
            };
            if !print(&line)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn numbers(device: &Device, dtype: DType, count: i64, seed: u64) -> Result<Buffer> {
    let bytes = content::bytes(dtype, Content::Normal(1.0), count as usize, seed);
    device.upload::<u8>(&bytes)?.reinterpret(dtype)
}
