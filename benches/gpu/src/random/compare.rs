//! What two devices have left in the buffers of a launch.

use super::launch::Operand;
use ep_core::DType;
use half::{bf16, f16};

/// What elements of a float dtype may be off by.
#[derive(Debug, Clone, Copy)]
pub struct Within {
    /// A part of themselves.
    pub relative: f64,
    /// In any case.
    pub absolute: f64,
}

/// An element of a float dtype.
fn number(dtype: DType, bytes: &[u8]) -> f64 {
    match (dtype, bytes) {
        (DType::F16, [a, b]) => f16::from_le_bytes([*a, *b]).to_f64(),
        (DType::BF16, [a, b]) => bf16::from_le_bytes([*a, *b]).to_f64(),
        (DType::F32, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]).into(),
        (DType::F64, bytes) => bytes.try_into().map_or(f64::NAN, f64::from_le_bytes),
        _ => f64::NAN,
    }
}

impl Within {
    /// Any NaN is as good as another one; an infinity is equal to itself only.
    fn holds(self, a: f64, b: f64) -> bool {
        let Within { relative, absolute } = self;
        let near = || a.is_finite() && (a - b).abs() <= absolute + relative * a.abs();
        a == b || (a.is_nan() && b.is_nan()) || near()
    }
}

/// What is wrong with a destination of which each device, by name, has left these bytes: one of them has written outside
/// of it, or it differs.
pub fn difference(operand: &Operand, within: Option<Within>, left: [(&str, &[u8]); 2]) -> Option<String> {
    let Operand { name, dtype, skip, size, .. } = operand;
    let own = *skip..skip + size;
    for (device, bytes) in left {
        let changed = |i: &usize| !own.contains(i) && bytes[*i] != operand.bytes[*i];
        if let Some(i) = (0..bytes.len()).find(changed) {
            let (at, found, old) = (i as i64 - *skip as i64, bytes[i], operand.bytes[i]);
            return Some(format!(
                "{device} writes outside of `{name}`, which has {size} bytes: its byte {at} is {found:#04x} and was \
                 {old:#04x}"
            ));
        }
    }
    let [(first, a), (second, b)] = left.map(|(device, bytes)| (device, &bytes[own.clone()]));
    let width = dtype.bytes_for_bounds() as usize;
    let elements = || a.chunks_exact(width).zip(b.chunks_exact(width));
    let Some(within) = within else {
        let count = elements().filter(|(a, b)| a != b).count();
        let (i, (a, b)) = elements().enumerate().find(|(_, (a, b))| a != b)?;
        // As numbers are written, the highest byte first.
        let digits = |bytes: &[u8]| bytes.iter().rev().map(|b| format!("{b:02x}")).collect::<String>();
        let (a, b) = (digits(a), digits(b));
        return Some(format!(
            "{count} elements of `{name}` differ, the first is [{i}]: 0x{a} on {first}, 0x{b} on {second}"
        ));
    };
    let mut numbers = elements().map(|(a, b)| (number(*dtype, a), number(*dtype, b))).enumerate();
    let (i, (a, b)) = numbers.find(|(_, (a, b))| !within.holds(*a, *b))?;
    Some(format!("{name}[{i}] is {a} on {first}, {b} on {second}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two elements behind two bytes, and three bytes behind them.
    fn operand(dtype: DType) -> Operand {
        let size = 2 * dtype.bytes_for_bounds() as usize;
        Operand { name: "dst", dtype, bytes: vec![0x5b; 2 + size + 3], skip: 2, size }
    }

    /// What is said where the second device has left `change` of what the first has.
    fn told(dtype: DType, within: Option<Within>, change: impl Fn(&mut [u8])) -> Option<String> {
        let operand = operand(dtype);
        let mut left = operand.bytes.clone();
        left[2..][..operand.size].fill(0);
        let mut other = left.clone();
        change(&mut other);
        difference(&operand, within, [("a:0", &left), ("b:0", &other)])
    }

    #[test]
    fn each_changed_byte_is_found() {
        assert_eq!(told(DType::U16, None, |_| {}), None);
        let found = told(DType::U16, None, |left| left[5] = 0x70);
        let wanted = "1 elements of `dst` differ, the first is [1]: 0x0000 on a:0, 0x7000 on b:0";
        assert_eq!(found.as_deref(), Some(wanted));
        for within in [None, Some(Within { relative: 1.0, absolute: 1e9 })] {
            for (i, at) in [(0, -2), (1, -1), (6, 4), (8, 6)] {
                let found = told(DType::F16, within, |left| left[i] = 1).unwrap();
                let wanted = format!(
                    "b:0 writes outside of `dst`, which has 4 bytes: its byte {at} is 0x01 and was 0x5b"
                );
                assert_eq!(found, wanted);
            }
        }
    }

    #[test]
    fn what_both_write_outside_is_found() {
        let operand = operand(DType::U8);
        let left = vec![0; operand.bytes.len()];
        let found = difference(&operand, None, [("a:0", &left), ("b:0", &left)]).unwrap();
        assert!(found.starts_with("a:0 writes outside of `dst`"), "{found}");
    }

    #[test]
    fn numbers_are_compared_within_what_they_may_be_off_by() {
        let within = Within { relative: 0.1, absolute: 0.5 };
        let inf = f64::INFINITY;
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            for (a, b, same) in [
                (10.0, 11.5, true),
                (-10.0, -11.5, true),
                (10.0, 11.75, false),
                (0.0, 0.5, true),
                (0.0, -0.625, false),
                (f64::NAN, -f64::NAN, true),
                (f64::NAN, 1.0, false),
                (1.0, f64::NAN, false),
                (inf, inf, true),
                (inf, -inf, false),
                (1.0, inf, false),
            ] {
                let operand = operand(dtype);
                let with = |x: f64| {
                    let mut element = Vec::new();
                    crate::operands::encode(dtype, x, &mut element);
                    let mut left = operand.bytes.clone();
                    let at = 2 + element.len();
                    left[at..at + element.len()].copy_from_slice(&element);
                    left
                };
                let found = difference(&operand, Some(within), [("a:0", &with(a)), ("b:0", &with(b))]);
                let wanted = format!("dst[1] is {a} on a:0, {b} on b:0");
                assert_eq!(found, (!same).then_some(wanted), "{dtype} {a} {b}");
            }
        }
    }
}
