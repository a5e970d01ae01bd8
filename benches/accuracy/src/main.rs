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
///
/// Each op is tried on all 16-bit patterns, or on 10,000,000 random bit patterns or pairs of them and on 100,000
/// numbers around each root, pole and edge of its range; at levels below the best one on a twentieth of those.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// A hundredth of the points
    #[arg(long, conflicts_with = "points")]
    quick: bool,
    /// How many random points; around each root, pole and edge there are a hundredth of that
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    points: u64,
    /// Only this op (may be repeated)
    #[arg(long, value_name = "OP")]
    op: Vec<String>,
    /// Only this dtype (may be repeated): f16, bf16, f32, f64
    #[arg(long, value_name = "DTYPE")]
    dtype: Vec<String>,
    /// Only this instruction-set level (may be repeated) [default: each that this CPU has]
    #[arg(long, value_name = "LEVEL")]
    isa: Vec<Level>,
    /// Writes the page of the documentation
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/accuracy.md")]
    write_docs: Option<PathBuf>,
}

/// The share of the points that levels below the best one get: one in so many.
const FEWER: u64 = 20;

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
    if cli.write_docs.is_some() && (cli.quick || !cli.op.is_empty() || !cli.dtype.is_empty()) {
        return Err("the page has all ops and dtypes in full; leave out --quick, --op and --dtype".into());
    }
    // AMX has no code of its own here.
    let mut isas: Vec<Isa> = if cli.isa.is_empty() {
        Isa::available().into_iter().filter(|isa| isa.level() != Level::Amx).collect()
    } else {
        cli.isa.iter().map(|&level| Isa::new(level)).collect::<Result<_, _>>().map_err(|e| e.to_string())?
    };
    // The best one first, which gets all points, however they were asked for.
    isas.sort_by_key(|isa| std::cmp::Reverse(isa.level()));
    isas.dedup();

    let points = if cli.quick { cli.points / 100 } else { cli.points };
    let mut rows: Vec<Row> = Vec::new();
    println!("{:<38} {:<5} {:>6} {:>9}  at", "op", "dtype", "limit", "worst ulp");
    let chosen: Vec<Op> = ops.into_iter().filter(|op| matches(&cli.op, op.name())).collect();
    let total = chosen.len() * dtypes.len();
    for (i, &op) in chosen.iter().enumerate() {
        for (j, &dtype) in dtypes.iter().enumerate() {
            let mut row: Option<Row> = None;
            for (n, &isa) in isas.iter().enumerate() {
                let label = format!("{}/{total} {} {dtype} {isa}", i * dtypes.len() + j + 1, op.name());
                let plan = Plan::of(if n == 0 { points } else { points / FEWER });
                let Some(worst) = measure(op, dtype, isa, &plan, &mut |points| show(&label, points)) else {
                    break;
                };
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
    if let Some(file) = &cli.write_docs {
        std::fs::write(file, page(&rows, &isas, points))
            .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
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
    let mut text = format!(
        "{:<38} {:<5} {:>6} {:>9.3}",
        op.name(),
        dtype.to_string(),
        limit(*op, *dtype).ulps,
        worst.ulps
    );
    let _ = write!(text, "  {} ({isa})", worst.place(*op));
    if !holds(row) {
        let _ = write!(text, "  PAST THE LIMIT: {:e} is not {:e}", worst.got, worst.want);
    }
    text
}

/// With a comma after every three digits.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The page of the documentation: the rules, and an op per line.
fn page(rows: &[Row], isas: &[Isa], points: u64) -> String {
    let levels: Vec<String> = isas.iter().map(|isa| format!("`{isa}`")).collect();
    let mut text = include_str!("page.md")
        .replace("{attr0}", &ATTR[0].to_string())
        .replace("{attr1}", &ATTR[1].to_string())
        .replace("{random}", &grouped(points))
        .replace("{slow}", &grouped(points / 100))
        .replace("{fewer}", &FEWER.to_string())
        .replace("{best}", &levels[0])
        .replace("{others}", &levels[1..].join(", "));
    text.push_str("\n| op | f16 | bf16 | f32 | f64 |\n|---|---|---|---|---|\n");
    let mut names: Vec<&str> = rows.iter().map(|row| row.op.name()).collect();
    names.dedup();
    for name in names {
        let _ = write!(text, "| `{name}` |");
        for dtype in DTYPES {
            let found = rows.iter().find(|row| row.op.name() == name && row.dtype == dtype);
            let _ = match found {
                Some(Row { worst, .. }) if worst.ulps == 0.0 => write!(text, " 0 |"),
                Some(row) => {
                    let past = if holds(row) { "" } else { ", past the limit" };
                    write!(text, " {:.2} at {}{past} |", row.worst.ulps, row.worst.place(row.op))
                }
                None => write!(text, " |"),
            };
        }
        text.push('\n');
    }
    text
}
