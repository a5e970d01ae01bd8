//! `arg_reduce`: where the greatest or smallest is; the first of equals, and the first NaN before all.

use super::launch::{Launch, Outputs};
use super::number::{Data, Number};
use super::shape::count;
use ep_core::{DType, Result};

pub(super) fn run(launch: &Launch<'_>) -> Result<Outputs> {
    let (op, src_dtype, dst_dtype) =
        (launch.get_selector("op")?, launch.get_dtype("src")?, launch.get_dtype("dst")?);
    let [outer, reduced, inner] =
        [launch.get_size("outer")?, launch.get_size("reduced")?, launch.get_size("inner")?];
    let better: fn(Number, Number) -> bool = match op {
        "argmax" => |new, old| new.wide() > old.wide(),
        "argmin" => |new, old| new.wide() < old.wide(),
        _ => return Err(launch.unsupported(format!("`{op}`"))),
    };
    if src_dtype.is_complex() || ![DType::I32, DType::I64].contains(&dst_dtype) {
        return Err(launch.unsupported(format!("indices of {src_dtype} as {dst_dtype}")));
    }
    if reduced == 0 && outer > 0 && inner > 0 {
        return Err(launch.invalid("nothing has no greatest or smallest element"));
    }
    if dst_dtype == DType::I32 && reduced > 1 << 31 {
        return Err(launch.invalid(format!("i32 cannot hold every index of {reduced} elements")));
    }
    let src = launch.get_read("src", src_dtype, count(launch, &[outer, reduced, inner])?)?;
    let mut dst = Data { dtype: dst_dtype, bytes: Vec::new() };
    for place in 0..count(launch, &[outer, inner])? {
        let (o, i) = (place / inner, place % inner);
        let at = |r: usize| src.get((o * reduced + r) * inner + i);
        let nan = (0..reduced).find(|r| at(*r).is_nan());
        let best = (1..reduced).fold(0, |best, r| if better(at(r), at(best)) { r } else { best });
        dst.push(Number::Int(nan.unwrap_or(best) as i128));
    }
    Ok(Outputs::one("dst", dst))
}
