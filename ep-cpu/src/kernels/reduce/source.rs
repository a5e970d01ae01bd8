//! Floating-point numbers in memory as vectors of what they are computed in.

use crate::kernels::simd::{Single, Vector};
use half::{bf16, f16};

/// Elements in memory that become lanes of `V`.
pub(super) trait Source<V: Vector>: Copy {
    /// # Safety
    /// `p` is readable for a vector of elements.
    unsafe fn vector(p: *const Self) -> V;
}

impl<V: Single> Source<V> for f32 {
    #[inline(always)]
    unsafe fn vector(p: *const f32) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(p) }
    }
}

impl<V: Single> Source<V> for f16 {
    #[inline(always)]
    unsafe fn vector(p: *const f16) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(p) }
    }
}

impl<V: Single> Source<V> for bf16 {
    #[inline(always)]
    unsafe fn vector(p: *const bf16) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_bf16(p) }
    }
}

impl<V: Vector<Elem = f64>> Source<V> for f64 {
    #[inline(always)]
    unsafe fn vector(p: *const f64) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(p) }
    }
}
