//! `reduce`: one value for each `[outer, inner]` from `[outer, reduced, inner]`; sums and products exact and
//! rounded once.

use super::add::Exact;
use super::launch::{Launch, Outputs};
use super::math::Wide;
use super::number::{Data, Number, format_of, int_range};
use super::shape::count;
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (op, src_dtype, dst_dtype) =
        (launch.get_selector("op")?, launch.get_dtype("src")?, launch.get_dtype("dst")?);
    let [outer, reduced, inner] =
        [launch.get_size("outer")?, launch.get_size("reduced")?, launch.get_size("inner")?];
    let reducer = reducer(launch, op, src_dtype, dst_dtype)?;
    let src = launch.get_read("src", src_dtype, count(launch, &[outer, reduced, inner])?)?;
    let mut dst = Data { dtype: dst_dtype, bytes: Vec::new() };
    // Not a loop of each: one may be long beside the other's 0.
    for place in 0..count(launch, &[outer, inner])? {
        let (o, i) = (place / inner, place % inner);
        let terms: Vec<_> = (0..reduced).map(|r| src.get((o * reduced + r) * inner + i)).collect();
        dst.push(reducer(&terms, dst_dtype));
    }
    Ok(Outputs::one("dst", dst))
}

type Reducer = fn(&[Number], DType) -> Number;

fn reducer(launch: &Launch<'_>, op: &str, src: DType, dst: DType) -> Result<Reducer> {
    let whole = src == DType::BOOL || src.is_int();
    let fits = match op {
        "sum" | "prod" if src == dst => src != DType::BOOL,
        "sum" | "prod" if whole => dst == DType::I64 && src != DType::U64,
        "sum" | "prod" | "mean" if [DType::F16, DType::BF16].contains(&src) => {
            dst == src || dst == DType::F32
        }
        "mean" => !whole && src == dst,
        "max" | "min" => !src.is_complex() && src == dst,
        "any" | "all" => dst == DType::BOOL,
        _ => false,
    };
    if !fits {
        return Err(launch.unsupported(format!("`{op}` of {src} to {dst}")));
    }
    Ok(match op {
        "sum" if whole => |x, _| Number::Int(x.iter().map(|x| x.int()).sum()),
        "prod" if whole => |x, _| Number::Int(x.iter().fold(1, |p, x| p.wrapping_mul(x.int()))),
        "sum" => |x, dst| total(x, 1, dst),
        "mean" => |x, dst| total(x, x.len() as i128, dst),
        "prod" => product,
        "max" => |x, dst| extreme(x, dst, |new, old| new > old, true),
        "min" => |x, dst| extreme(x, dst, |new, old| new < old, false),
        "any" => |x, _| Number::Bool(x.iter().any(|x| x.truth())),
        _ => |x, _| Number::Bool(x.iter().all(|x| x.truth())),
    })
}

/// The sum over a divisor. A mean of nothing is NaN.
fn total(x: &[Number], divisor: i128, dst: DType) -> Number {
    let part = |part: fn(Number) -> f64| {
        let mut sum = Exact::default();
        x.iter().for_each(|x| sum.add(Wide::from(part(*x))));
        (sum.value() / Wide::from(divisor)).to_format(format_of(dst))
    };
    complete(part(Number::re), part(Number::im), dst)
}

fn complete(re: f64, im: f64, dtype: DType) -> Number {
    if dtype.is_complex() { Number::Complex(re, im) } else { Number::Real(re) }
}

fn product(x: &[Number], dst: DType) -> Number {
    if !dst.is_complex() {
        let product = x.iter().fold(Wide::ONE, |p, x| p * x.wide());
        return Number::Real(product.to_format(format_of(dst)));
    }
    let (re, im) = x.iter().fold((Wide::ONE, Wide::ZERO), |(re, im), x| {
        let (a, b) = (Wide::from(x.re()), Wide::from(x.im()));
        (re * a - im * b, re * b + im * a)
    });
    complete(re.to_format(format_of(dst)), im.to_format(format_of(dst)), dst)
}

/// The greatest or smallest, the first NaN if there is one, and of nothing the end of the dtype's range.
fn extreme(x: &[Number], dtype: DType, better: fn(Wide, Wide) -> bool, lowest: bool) -> Number {
    if let Some(nan) = x.iter().find(|x| x.is_nan()) {
        return *nan;
    }
    let best = x.iter().copied().reduce(|old, new| if better(new.wide(), old.wide()) { new } else { old });
    best.unwrap_or_else(|| match (dtype.is_float(), lowest) {
        (true, true) => Number::Real(f64::NEG_INFINITY),
        (true, false) => Number::Real(f64::INFINITY),
        (false, true) => Number::Int(int_range(dtype).0),
        (false, false) => Number::Int(int_range(dtype).1),
    })
}
