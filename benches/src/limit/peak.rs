//! How many multiplications and additions the CPU does when nothing else holds it up.

use crate::samples::{Budget, time};
use ep_core::parallel::Parallel;
use ep_core::{DType, Result};
use std::time::Duration;

/// Steps of one call on each thread.
const STEPS: usize = 20_000;

/// Floating-point operations per nanosecond with all of the pool's threads, in the arithmetic that a product of this
/// dtype uses; `None` where no kernel here tells.
///
/// # Errors
/// Those of the thread pool.
pub fn operations_per_ns(dtype: DType, parallel: &dyn Parallel) -> Result<Option<f64>> {
    let Some(kernel) = kernel(dtype) else { return Ok(None) };
    let budget = Budget { time: Duration::from_millis(40), min: 5, max: 1000 };
    let threads = parallel.threads();
    let mut run = |times| {
        for _ in 0..times {
            parallel.parallel_for(threads, 1, 0, &|range| {
                range.for_each(|_| (kernel.run)(STEPS));
                Ok(())
            })?;
        }
        Ok(())
    };
    let ns = time(budget, &mut run)?.median();
    Ok(Some((kernel.operations * STEPS * threads) as f64 / ns))
}

struct Kernel {
    /// Operations of a step.
    operations: usize,
    run: fn(usize),
}

#[cfg(not(target_arch = "x86_64"))]
fn kernel(_: DType) -> Option<Kernel> {
    None
}

#[cfg(target_arch = "x86_64")]
fn kernel(dtype: DType) -> Option<Kernel> {
    let avx512 = is_x86_feature_detected!("avx512f");
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    match dtype {
        // Other numbers are sums of two or three of bf16, of whose products four or six are added up.
        DType::BF16 | DType::F16 | DType::F32 if x86::tiles_allowed() => {
            let products = match dtype {
                DType::BF16 => 1,
                DType::F16 => 4,
                _ => 6,
            };
            Some(Kernel { operations: 4 * 2 * 16 * 16 * 32 / products, run: x86::tiles })
        }
        // Halves are multiplied as f32 where there is nothing better.
        DType::F32 | DType::F16 | DType::BF16 if avx512 => {
            Some(Kernel { operations: 24 * 2 * 16, run: x86::f32x16 })
        }
        DType::F32 | DType::F16 | DType::BF16 if avx2 => {
            Some(Kernel { operations: 12 * 2 * 8, run: x86::f32x8 })
        }
        DType::F64 if avx512 => Some(Kernel { operations: 24 * 2 * 8, run: x86::f64x8 }),
        DType::F64 if avx2 => Some(Kernel { operations: 12 * 2 * 4, run: x86::f64x4 }),
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    macro_rules! multiply_add {
        ($name:ident, $feature:literal, $vector:ty, $accumulators:literal, $set:ident, $fma:ident) => {
            pub fn $name(steps: usize) {
                #[target_feature(enable = $feature)]
                fn inner(steps: usize) {
                    let (a, b) = (black_box($set(0.999)), black_box($set(1e-9)));
                    // Each depends on itself only, and there are enough to fill the latency of two units.
                    let mut sums: [$vector; $accumulators] = [b; $accumulators];
                    for _ in 0..steps {
                        for s in &mut sums {
                            *s = $fma(*s, a, b);
                        }
                    }
                    black_box(sums);
                }
                // SAFETY: `kernel` hands this out only where the CPU has the feature.
                unsafe { inner(steps) }
            }
        };
    }
    multiply_add!(f32x16, "avx512f", __m512, 24, _mm512_set1_ps, _mm512_fmadd_ps);
    multiply_add!(f64x8, "avx512f", __m512d, 24, _mm512_set1_pd, _mm512_fmadd_pd);
    multiply_add!(f32x8, "avx2,fma", __m256, 12, _mm256_set1_ps, _mm256_fmadd_ps);
    multiply_add!(f64x4, "avx2,fma", __m256d, 12, _mm256_set1_pd, _mm256_fmadd_pd);

    /// What `ldtilecfg` reads.
    #[repr(C, align(64))]
    struct TileConfig {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    /// Whether the CPU has bf16 tiles and the system lets this process use them, which has to be asked for.
    pub fn tiles_allowed() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        let leaves = __cpuid(0).eax;
        let edx = if leaves >= 7 { __cpuid_count(7, 0).edx } else { 0 };
        if edx >> 24 & 1 == 0 || edx >> 22 & 1 == 0 {
            return false;
        }
        // SAFETY: this asks the kernel for a permission and touches no memory.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    /// Four products of tiles in each step, on four accumulators.
    pub fn tiles(steps: usize) {
        let mut config =
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(64);
        config.rows[..8].fill(16);
        // SAFETY: `tiles_allowed` has said that the process may use tiles; the block loads a valid configuration,
        // works in tile registers alone, and releases them before it ends.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tilezero tmm4",
                "tilezero tmm5",
                "tilezero tmm6",
                "tilezero tmm7",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {steps}",
                "jnz 2b",
                "tilerelease",
                config = in(reg) &raw const config,
                steps = inout(reg) steps.max(1) => _,
                options(nostack, readonly),
            );
        }
    }
}
