// The sum of exponentials of a row, relative to its maximum so that none overflows.
#pragma once
#include "common.cuh"

EP_DEVICE f32 infinity(f32) { return __uint_as_float(0x7f800000u); }
EP_DEVICE f64 infinity(f64) { return __longlong_as_double(0x7ff0000000000000ll); }

// e^x, meant for x <= 0. In f32 to a few units of the last place of values that matter in a sum of such.
EP_DEVICE f32 exp_fast(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.442695041f));
    return y;
}
EP_DEVICE f64 exp_fast(f64 x) { return exp(x); }

// The same, only for x <= 0, with what the multiplication rounds away, which matters where sums are merged often.
EP_DEVICE f32 exp_close(f32 x) {
    // Lower powers are 0, and minus infinity would make the rest no number.
    x = x < -150 ? -150 : x;
    const f32 product = x * 1.442695041f, rest = fmaf(x, 1.442695041f, -product);
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(product));
    return fmaf(y, rest * 0.693147181f, y);
}
EP_DEVICE f64 exp_close(f64 x) { return exp(x); }

EP_DEVICE f32 greatest(f32 a, f32 b) { return fmaxf(a, b); }
EP_DEVICE f64 greatest(f64 a, f64 b) { return fmax(a, b); }
EP_DEVICE f32 logarithm(f32 x) { return logf(x); }
EP_DEVICE f64 logarithm(f64 x) { return log(x); }

// The greatest of some elements and the sum of e^(x - max). Of none, or of -infinity alone: (-infinity, 0).
template <class A>
struct Normalizer {
    A max, sum;
};

// What to subtract from elements with this maximum: an infinite one would make NaN of -infinity.
template <class A>
EP_DEVICE A base_of(A max) {
    return max == -infinity(max) ? A(0) : max;
}

template <class A>
EP_DEVICE Normalizer<A> merge(Normalizer<A> a, Normalizer<A> b) {
    const bool swap = b.max > a.max;
    const Normalizer<A> high = swap ? b : a, low = swap ? a : b;
    const A factor = low.max == -infinity(low.max) ? A(0) : exp_fast(low.max - high.max);
    return {high.max, low.sum * factor + high.sum};
}
