//! Rows that are all NaN by the contract of softmax, which oneDNN gives numbers: those with a NaN or an infinity above, or
//! with nothing but infinities below.

use ep_core::DType;

/// Elements as patterns of bits, whose sign is the highest one.
trait Pattern: Copy + PartialEq + PartialOrd {
    /// The pattern without the sign.
    fn magnitude(self) -> Self;
}

impl Pattern for u16 {
    fn magnitude(self) -> u16 {
        self & 0x7fff
    }
}

impl Pattern for u32 {
    fn magnitude(self) -> u32 {
        self & 0x7fff_ffff
    }
}

/// The rows of a tensor of [rows, cols, inner] that have to be NaN: each as the position of its first element.
///
/// # Safety
/// The tensor at `src` is readable and aligned.
pub(super) unsafe fn find(dtype: DType, src: u64, [rows, cols, inner]: [u64; 3]) -> Vec<u64> {
    let dims = [rows, cols, inner].map(|dim| dim as usize);
    let count = dims.iter().product();
    let start = src as usize;
    // SAFETY: as the caller promises, for either type of patterns.
    unsafe {
        let halves = || std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u16>(start), count);
        match dtype {
            DType::F16 => search(halves(), dims, 0x7c00, 0xfc00),
            DType::BF16 => search(halves(), dims, 0x7f80, 0xff80),
            _ => {
                let all = std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u32>(start), count);
                search(all, dims, 0x7f80_0000, 0xff80_0000)
            }
        }
    }
}

fn search<T: Pattern>(all: &[T], [_, cols, inner]: [usize; 3], above: T, below: T) -> Vec<u64> {
    let mut found = Vec::new();
    let mut state = vec![(false, true); if inner == 1 { 0 } else { inner }];
    for (row, block) in all.chunks_exact(cols * inner).enumerate() {
        let first = (row * cols * inner) as u64;
        if inner == 1 {
            let (mut bad, mut low) = (false, true);
            for x in block {
                bad |= (x.magnitude() >= above) & (*x != below);
                low &= *x == below;
            }
            found.extend((bad | low).then_some(first));
            continue;
        }
        state.fill((false, true));
        for line in block.chunks_exact(inner) {
            for (x, (bad, low)) in line.iter().zip(&mut state) {
                *bad |= (x.magnitude() >= above) & (*x != below);
                *low &= *x == below;
            }
        }
        let marked = state.iter().enumerate().filter(|(_, (bad, low))| bad | low);
        found.extend(marked.map(|(j, _)| first + j as u64));
    }
    found
}

/// Writes NaN into rows of a tensor with these cols and inner.
///
/// # Safety
/// The rows that begin at these positions of the tensor at `dst` are writable and aligned, and nobody else uses them.
pub(super) unsafe fn fill(dtype: DType, dst: u64, [cols, inner]: [u64; 2], rows: &[u64]) {
    for position in rows.iter().flat_map(|first| (0..cols).map(move |i| first + i * inner)) {
        let at = (dst + position * dtype.bytes_for_bounds()) as usize;
        // SAFETY: as the caller promises; all ones are a NaN in each of the types.
        unsafe {
            match dtype {
                DType::F32 => std::ptr::with_exposed_provenance_mut::<u32>(at).write(u32::MAX),
                _ => std::ptr::with_exposed_provenance_mut::<u16>(at).write(u16::MAX),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    const HIGH: f32 = f32::INFINITY;

    /// Rows found in these numbers, which each of the types holds.
    fn found(numbers: &[f32], dims: [u64; 3]) -> Vec<u64> {
        let halves: Vec<f16> = numbers.iter().map(|x| f16::from_f32(*x)).collect();
        let brains: Vec<bf16> = numbers.iter().map(|x| bf16::from_f32(*x)).collect();
        // SAFETY: the vectors' own memory.
        let all = unsafe {
            [
                find(DType::F32, numbers.as_ptr().expose_provenance() as u64, dims),
                find(DType::F16, halves.as_ptr().expose_provenance() as u64, dims),
                find(DType::BF16, brains.as_ptr().expose_provenance() as u64, dims),
            ]
        };
        assert!(all[0] == all[1] && all[0] == all[2], "{all:?}");
        all[0].clone()
    }

    #[test]
    fn rows_that_must_be_nan_are_found() {
        let numbers = [1.0, -HIGH, -2.0, 3.0, HIGH, 0.0, -HIGH, -HIGH, -HIGH, -f32::NAN, 1.0, 65504.0];
        assert_eq!(found(&numbers, [4, 3, 1]), [3, 6, 9]);
        assert_eq!(found(&numbers, [12, 1, 1]), [1, 4, 6, 7, 8, 9]);
        // In steps of 2: 1, -2 and -inf, 3; inf, -inf and 0, -inf; -inf, 1 and NaN, 65504.
        assert_eq!(found(&numbers, [3, 2, 2]), [4, 9]);
        assert_eq!(found(&[-HIGH, 1.0, -HIGH, 2.0], [1, 2, 2]), [0]);
    }
}
