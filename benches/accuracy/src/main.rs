//! `accuracy`: prints the worst error of every float op of the CPU provider, and where it is.

use clap::Parser;
use ep_accuracy::{ATTR, DTYPES, Op, Plan, Worst, limit, measure};
use ep_core::DType;
use ep_cpu::isa::{Isa, Level};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures the accuracy of the CPU provider's float ops; exits with 1 if one exceeds its limit
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// A hundredth of the points
    #[arg(long)]
    quick: bool,
    /// Only this op (may be repeated)
    #[arg(long, value_name = "OP")]
    op: Vec<String>,
    /// Only this dtype (may be repeated): f16, bf16, f32, f64
    #[arg(long, value_name = "DTYPE")]
    dtype: Vec<String>,
    /// Only this instruction-set level (may be repeated) [default: each that this CPU has]
    #[arg(long, value_name = "LEVEL")]
    isa: Vec<Level>,
    /// Writes the table as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// One line of the table: an op in a dtype.
struct Row {
    op: Op,
    dtype: DType,
    worst: Worst,
    isa: Isa,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("accuracy: {message}");
            ExitCode::from(2)
        }
    }
}

/// Whether all limits hold.
fn run(cli: &Cli) -> Result<bool, String> {
    let ops: Vec<Op> = Op::all();
    if let Some(name) = cli.op.iter().find(|name| ops.iter().all(|op| op.name() != name.as_str())) {
        return Err(format!("unknown op `{name}`: no float op has that name"));
    }
    let dtypes: Vec<DType> = DTYPES.into_iter().filter(|d| matches(&cli.dtype, &d.to_string())).collect();
    if dtypes.is_empty() {
        return Err(format!("unknown dtypes {:?}; use f16, bf16, f32, f64", cli.dtype));
    }
    let isas = if cli.isa.is_empty() {
        // AMX has no code of its own.
        Isa::available().into_iter().filter(|isa| isa.level() != Level::Amx).collect()
    } else {
        cli.isa.iter().map(|&level| Isa::new(level)).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?
    };
    let plan = if cli.quick { Plan::QUICK } else { Plan::FULL };

    let mut rows: Vec<Row> = Vec::new();
    println!("{:<38} {:<5} {:>6} {:>9}  at", "op", "dtype", "limit", "worst ulp");
    for op in ops.into_iter().filter(|op| matches(&cli.op, op.name())) {
        for &dtype in &dtypes {
            let mut row: Option<Row> = None;
            for &isa in &isas {
                let label = format!("{} {dtype} {isa}", op.name());
                let Some(worst) = measure(op, dtype, isa, &plan, &mut |points| show(&label, points)) else { break };
                if row.as_ref().is_none_or(|row| worst.ulps > row.worst.ulps) {
                    row = Some(Row { op, dtype, worst, isa });
                }
            }
            show("", 0);
            if let Some(row) = row {
                println!("{}", line(&row));
                rows.push(row);
            }
        }
    }
    let failed = rows.iter().filter(|row| !holds(row)).count();
    println!("{} op and dtype pairs, {failed} past their limit", rows.len());
    if let Some(file) = &cli.markdown {
        std::fs::write(file, markdown(&rows)).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    }
    Ok(failed == 0)
}

fn matches(wanted: &[String], name: &str) -> bool {
    wanted.is_empty() || wanted.iter().any(|w| w == name)
}

fn holds(row: &Row) -> bool {
    row.worst.ulps <= limit(row.op, row.dtype).ulps
}

/// A line that the next one overwrites, where there is a terminal to see it.
fn show(label: &str, points: u64) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let text = if label.is_empty() { String::new() } else { format!("{label}: {points} points") };
        // Progress that cannot be shown is no reason to stop.
        drop(write!(out, "\r{text:<70}\r"));
    }
}

fn line(row: &Row) -> String {
    let Row { op, dtype, worst, isa } = row;
    let mut text =
        format!("{:<38} {:<5} {:>6} {:>9.3}", op.name(), dtype.to_string(), limit(*op, *dtype).ulps, worst.ulps);
    let _ = write!(text, "  {} ({isa})", worst.place(*op));
    if !holds(row) {
        let _ = write!(text, "  PAST THE LIMIT: {:e} is not {:e}", worst.got, worst.want);
    }
    text
}

/// The table of the documentation: an op per line.
fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "# Accuracy\n\n\
         Written by `cargo run --release -p ep-accuracy -- --markdown docs/accuracy.md`.\n\n\
         The worst error of each float op of the CPU provider, in ulps of the true value, over all instruction-set\n\
         levels: over all 65,536 values of f16 and bf16 for ops of one operand, else over 10,000,000 random bit\n\
         patterns or pairs and 100,000 numbers around each root, pole and edge of the range. 0.5 is a correct\n\
         rounding. Limits: 1 ulp in f16 and bf16, 2 in f32, 4 in f64; of `pow`, `tan`, `erfc`, `zeta` and the gamma\n\
         family 4 in f32 and 16 in f64, or near a root of that family 1e-6 in f32 and 1e-13 in f64.\n\n",
    );
    let _ = write!(
        text,
        "Attributes are {} and {}. A backward op is `dy` times a derivative. It may be off by more than its ulps\n\
         where the derivative is a sum of terms that cancel: by 3 epsilons of their magnitudes; and by half the least\n\
         number of the dtype, since the derivative may have been rounded there; both times `|dy|`. A derivative that\n\
         overflows or vanishes in the dtype counts as infinity or 0.\n\n\
         | op | f16 | bf16 | f32 | f64 |\n|---|---|---|---|---|\n",
        ATTR[0], ATTR[1]
    );
    let mut names: Vec<&str> = rows.iter().map(|row| row.op.name()).collect();
    names.dedup();
    for name in names {
        let _ = write!(text, "| `{name}` |");
        for dtype in DTYPES {
            let found = rows.iter().find(|row| row.op.name() == name && row.dtype == dtype);
            let _ = match found {
                Some(row) => write!(text, " {:.2} |", row.worst.ulps),
                None => write!(text, " |"),
            };
        }
        text.push('\n');
    }
    text
}
