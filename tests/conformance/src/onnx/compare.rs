//! Results beside what has to come out, as ONNX's own runner compares them.

use super::machine::Value;
use super::suite::Case;
use ep_core::{DType, Result};
use primitives::reference::{Data, Number};

/// Two units in the last place of bf16: the runner's tolerance for it, where the case's is smaller.
const BF16_RELATIVE: f64 = 1.0 / 64.0;

/// What is wrong with a result, if anything. Shape and dtype are equal, integers and bools exact, floats within the
/// case's tolerances element by element; NaN equals NaN.
///
/// # Errors
/// When the result cannot be read.
pub fn difference(case: &Case, name: &str, wanted: (&[i64], &Data), found: &Value) -> Result<Option<String>> {
    let (shape, data) = wanted;
    if found.dtype != data.dtype || found.shape != shape {
        let (found, dtype) = (format!("{} {:?}", found.dtype, found.shape), data.dtype);
        return Ok(Some(format!("`{name}` is {found}, expected {dtype} {shape:?}")));
    }
    let relative = if data.dtype == DType::BF16 { case.rtol.max(BF16_RELATIVE) } else { case.rtol };
    let content = found.download()?;
    let pairs = content.view().iter().zip(data.view().iter()).enumerate();
    let wrong: Vec<_> = pairs.filter(|(_, (f, w))| !close(*f, *w, relative, case.atol)).collect();
    Ok(wrong.first().map(|(i, (f, w))| {
        let (count, all) = (wrong.len(), data.view().len());
        let bounds = match w {
            Number::Real(_) => format!(" within {relative} relative + {} absolute", case.atol),
            _ => String::new(),
        };
        format!("`{name}`[{i}] is {f}, expected {w}{bounds}; {count} of {all} elements are wrong")
    }))
}

fn close(found: Number, wanted: Number, relative: f64, absolute: f64) -> bool {
    match (found, wanted) {
        (Number::Real(f), Number::Real(w)) => {
            f == w
                || (f.is_nan() && w.is_nan())
                || (f - w).abs() <= absolute + relative * w.abs() && w.is_finite()
        }
        _ => found == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_close_and_integers_equal() {
        let real = |f, w| close(Number::Real(f), Number::Real(w), 0.01, 0.001);
        assert!(real(1.01, 1.0) && real(0.001, 0.0) && real(f64::NAN, f64::NAN));
        assert!(!real(1.02, 1.0) && !real(0.002, 0.0) && !real(f64::NAN, 1.0) && !real(1.0, f64::NAN));
        assert!(real(f64::INFINITY, f64::INFINITY) && !real(f64::INFINITY, f64::NEG_INFINITY));
        assert!(!real(1.0, f64::INFINITY) && !real(f64::INFINITY, 1.0));
        let int = |f, w| close(Number::Int(f), Number::Int(w), 0.5, 5.0);
        assert!(int(3, 3) && !int(3, 4) && !close(Number::Bool(true), Number::Bool(false), 1.0, 1.0));
    }
}
