//! What moves between lanes, and to and from memory: SSE2.

use super::super::vector::{MAX_LANES, Vector};
use super::{F32x4, F64x2};
use crate::kernels::real::Cell;
use ep_core::DType;
use std::arch::x86_64::*;

impl F32x4 {
    /// Halves the lanes of two vectors into one.
    #[allow(unused_unsafe, reason = "instructions of every x86-64 are safe")]
    #[inline(always)]
    fn within(self, other: Self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        let (low, high) = unsafe { (_mm_unpacklo_ps(self.0, other.0), _mm_unpackhi_ps(self.0, other.0)) };
        f(Self(low), Self(high))
    }
}

#[allow(unused_unsafe, reason = "instructions of every x86-64 are safe")]
impl Vector for F32x4 {
    #[inline(always)]
    fn fold(self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        unsafe {
            let x = f(self, Self(_mm_shuffle_ps::<0b01_00_11_10>(self.0, self.0)));
            f(x, Self(_mm_shuffle_ps::<0b10_11_00_01>(x.0, x.0)))
        }
    }

    #[inline(always)]
    fn fold_each(rows: &[Self; MAX_LANES], f: impl Fn(Self, Self) -> Self) -> Self {
        rows[0].within(rows[2], &f).within(rows[1].within(rows[3], &f), &f)
    }

    #[inline(always)]
    unsafe fn load<S: Cell<f32>>(at: *const S) -> Self {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match S::DTYPE {
                DType::F32 => Self(_mm_loadu_ps(at.cast())),
                DType::BF16 => {
                    let bits = _mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(at.cast()));
                    Self(_mm_castsi128_ps(bits))
                }
                _ => Self::load_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<D: Cell<f32>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F32 => _mm_storeu_ps(at.cast(), self.0),
                _ => self.store_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn stream<D: Cell<f32>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F32 => _mm_stream_ps(at.cast(), self.0),
                _ => self.store_each(at),
            }
        }
    }
}

#[allow(unused_unsafe, reason = "instructions of every x86-64 are safe")]
impl Vector for F64x2 {
    #[inline(always)]
    fn fold(self, f: impl Fn(Self, Self) -> Self) -> Self {
        // SAFETY: the level has the instructions.
        f(self, Self(unsafe { _mm_shuffle_pd::<0b01>(self.0, self.0) }))
    }

    #[inline(always)]
    fn fold_each(rows: &[Self; MAX_LANES], f: impl Fn(Self, Self) -> Self) -> Self {
        let (a, b) = (rows[0].0, rows[1].0);
        // SAFETY: the level has the instructions.
        unsafe { f(Self(_mm_unpacklo_pd(a, b)), Self(_mm_unpackhi_pd(a, b))) }
    }

    #[inline(always)]
    unsafe fn load<S: Cell<f64>>(at: *const S) -> Self {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match S::DTYPE {
                DType::F64 => Self(_mm_loadu_pd(at.cast())),
                _ => Self::load_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<D: Cell<f64>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F64 => _mm_storeu_pd(at.cast(), self.0),
                _ => self.store_each(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn stream<D: Cell<f64>>(self, at: *mut D) {
        // SAFETY: the caller's promise, and the level has the instructions.
        unsafe {
            match D::DTYPE {
                DType::F64 => _mm_stream_pd(at.cast(), self.0),
                _ => self.store_each(at),
            }
        }
    }
}
