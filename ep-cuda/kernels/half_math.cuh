// Functions to the 11 bits of half types, in f32: with relative errors of about 2^-15 before the result is rounded.
#pragma once
#include "f32_math.cuh"

constexpr f32 ln_of_2 = 0.693147181f, log2_of_e = 1.442695041f;

// These keep numbers below the normal range, which bf16 has.
EP_DEVICE f32 quick_exp2(f32 x) {
    f32 y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
EP_DEVICE f32 quick_exp(f32 x) { return quick_exp2(x * log2_of_e); }
EP_DEVICE f32 quick_log2(f32 x) {
    f32 y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
EP_DEVICE f32 quick_root(f32 x) {
    f32 y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Near 0 by their series: the differences would cancel.
EP_DEVICE f32 expm1_for_half(f32 x) {
    f32 y = 4.16666667e-2f;
    y = fmaf(y, x, 0.166666667f);
    y = fmaf(y, x, 0.5f);
    return fabsf(x) < 0.2f ? fmaf(x * x, y, x) : quick_exp(x) - 1;
}
EP_DEVICE f32 log1p_for_half(f32 x) {
    f32 y = -0.25f;
    y = fmaf(y, x, 0.333333333f);
    y = fmaf(y, x, -0.5f);
    return fabsf(x) < 0.0625f ? fmaf(x * x, y, x) : quick_log2(1 + x) * ln_of_2;
}
EP_DEVICE f32 log_for_half(f32 x, f32 of_base) {
    const f32 past = x - 1;
    return (fabsf(past) < 0.0625f ? log1p_for_half(past) : quick_log2(x) * ln_of_2) * of_base;
}

EP_DEVICE f32 soft_plus_for_half(f32 x) { return fmaxf(x, 0) + log1p_for_half(quick_exp(-fabsf(x))); }
EP_DEVICE f32 scaled_soft_plus_for_half(f32 x, f64 beta, f64 threshold) {
    const Rounded<f32> u = scaled(x, as_f32(beta)), bound = as_f32(threshold);
    if ((u.value - bound.value) + (u.rest - bound.rest) > 0) return x;
    return soft_plus_for_half(u.value) * f32(1 / beta);
}
// x tanh(ln(1 + e^x))
EP_DEVICE f32 mish_for_half(f32 x) {
    const f32 power = quick_exp(fminf(x, 20)), up = power * (power + 2);
    return x * (up * near_reciprocal(up + 2));
}

// The logarithm of a sum that is 2 |x| from here up, as far as half types tell.
constexpr f32 far_for_half = 1024;
EP_DEVICE f32 asinh_for_half(f32 x) {
    const f32 size = fabsf(x), square = size * size;
    const f32 s = size + square * near_reciprocal(1 + quick_root(1 + square));
    return copysignf(size > far_for_half ? fmaf(quick_log2(size), ln_of_2, ln_of_2) : log1p_for_half(s), x);
}
EP_DEVICE f32 acosh_for_half(f32 x) {
    const f32 rest = x - 1, s = rest + quick_root(rest * (rest + 2));
    const f32 y = x > far_for_half ? fmaf(quick_log2(x), ln_of_2, ln_of_2) : log1p_for_half(s);
    return x < 1 ? nan_of(x) : y;
}
EP_DEVICE f32 atanh_for_half(f32 x) {
    const f32 size = fabsf(x);
    return copysignf(0.5f * log1p_for_half(2 * size * near_reciprocal(1 - size)), x);
}
EP_DEVICE f32 sinh_for_half(f32 x) {
    const f32 half = quick_exp2(fmaf(fabsf(x), log2_of_e, -1)), square = x * x;
    const f32 near = fmaf(x * square, fmaf(square, 8.33333333e-3f, 0.166666667f), x);
    return fabsf(x) < 0.5f ? near : copysignf(fmaf(-0.25f, near_reciprocal(half), half), x);
}
EP_DEVICE f32 cosh_for_half(f32 x) {
    const f32 half = quick_exp2(fmaf(fabsf(x), log2_of_e, -1));
    return fmaf(0.25f, near_reciprocal(half), half);
}

// Twice the upper tail of the normal distribution, as in `gelu_for_half`.
EP_DEVICE f32 erfc_above_zero_for_half(f32 x) { return 2 * upper_tail_for_half(x * 1.41421356f) * scaled_back; }
EP_DEVICE f32 erfc_for_half(f32 x) {
    const f32 y = erfc_above_zero_for_half(fabsf(x));
    return x < 0 ? 2 - y : y;
}
EP_DEVICE f32 erf_for_half(f32 x) {
    const f32 square = x * x;
    f32 y = 5.22397763e-3f;
    y = fmaf(y, square, -2.68661706e-2f);
    y = fmaf(y, square, 0.112837917f);
    y = fmaf(y, square, -0.376126389f);
    y = fmaf(y, square, 1.12837917f);
    return fabsf(x) < 0.5f ? x * y : copysignf(1 - erfc_above_zero_for_half(fabsf(x)), x);
}

// x less the nearest multiple of pi / 2, and the lowest bits of that multiple, for |x| of up to 2^17.
struct Turned {
    f32 rest;
    u32 quarter;
};
constexpr f32 turns_exactly = 1e5f;
EP_DEVICE Turned turned(f32 x) {
    constexpr f32 rounder = 12582912;
    const f32 number = fmaf(x, 0.636619772f, rounder), n = number - rounder;
    // The parts of pi / 2 are all positive, so that a zero keeps its sign.
    return {fmaf(n, -5.39030254e-15f, fmaf(n, -7.54978942e-8f, fmaf(n, -1.57079625f, x))), __float_as_uint(number)};
}
EP_DEVICE f32 sine_near_zero(f32 r, f32 square) {
    return fmaf(r * square, fmaf(square, fmaf(square, -1.98412698e-4f, 8.33333333e-3f), -0.166666667f), r);
}
EP_DEVICE f32 cosine_near_zero(f32 square) {
    return fmaf(square, fmaf(square, fmaf(square, -1.38888889e-3f, 4.16666667e-2f), -0.5f), 1);
}
EP_DEVICE f32 sine_of(Turned t) {
    const f32 square = t.rest * t.rest;
    const f32 y = t.quarter & 1 ? cosine_near_zero(square) : sine_near_zero(t.rest, square);
    return t.quarter & 2 ? -y : y;
}
EP_DEVICE f32 sin_for_half(f32 x) { return fabsf(x) < turns_exactly ? sine_of(turned(x)) : sin(x); }
EP_DEVICE f32 cos_for_half(f32 x) {
    const Turned t = turned(x);
    return fabsf(x) < turns_exactly ? sine_of({t.rest, t.quarter + 1}) : cos(x);
}
EP_DEVICE f32 tan_for_half(f32 x) {
    if (!(fabsf(x) < turns_exactly)) return tan(x);
    const Turned t = turned(x);
    const f32 square = t.rest * t.rest, sine = sine_near_zero(t.rest, square), cosine = cosine_near_zero(square);
    return t.quarter & 1 ? -cosine * near_reciprocal(sine) : sine * near_reciprocal(cosine);
}

// asin(sqrt(square)) for a root, of which this is the square, of up to 0.5.
EP_DEVICE f32 arcsine_of_root(f32 root, f32 square) {
    f32 y = 2.23721591e-2f;
    y = fmaf(y, square, 3.03819444e-2f);
    y = fmaf(y, square, 4.46428571e-2f);
    y = fmaf(y, square, 0.075f);
    y = fmaf(y, square, 0.166666667f);
    return fmaf(root * square, y, root);
}
EP_DEVICE f32 asin_for_half(f32 x) {
    const f32 size = fabsf(x), from_one = fmaf(size, -0.5f, 0.5f);
    const bool outer = size > 0.5f;
    const f32 y = arcsine_of_root(outer ? quick_root(from_one) : size, outer ? from_one : x * x);
    return copysignf(outer ? fmaf(-2, y, 1.57079633f) : y, x);
}
EP_DEVICE f32 acos_for_half(f32 x) {
    const f32 size = fabsf(x), from_one = fmaf(size, -0.5f, 0.5f);
    const bool outer = size > 0.5f;
    const f32 y = arcsine_of_root(outer ? quick_root(from_one) : size, outer ? from_one : x * x);
    if (!outer) return 1.57079633f - copysignf(y, x);
    return x < 0 ? fmaf(-2, y, 3.14159265f) : 2 * y;
}

// Of a half type, given as f32; what is not here is computed as f32 is.
template <Unary Op>
EP_DEVICE f32 unary_for_half(f32 x, f64 attr0, f64 attr1) {
    using U = Unary;
    if constexpr (Op == U::gelu) return gelu_for_half(x);
    else if constexpr (Op == U::sigmoid) return sigmoid_for_half(x);
    else if constexpr (Op == U::tanh) return tanh_for_half(x);
    else if constexpr (Op == U::silu) return x * sigmoid_for_half(x);
    else if constexpr (Op == U::fast_gelu) return x * sigmoid_for_half(fast_gelu_argument_for_half(x));
    else if constexpr (Op == U::quick_gelu) return x * sigmoid_for_half(1.702f * x);
    else if constexpr (Op == U::elu) return x > 0 ? x : f32(attr0) * expm1_for_half(x);
    else if constexpr (Op == U::celu) return x > 0 ? x : f32(attr0) * expm1_for_half(x * f32(1 / attr0));
    else if constexpr (Op == U::selu) return x > 0 ? 1.05070099f * x : 1.75809934f * expm1_for_half(x);
    else if constexpr (Op == U::hard_swish) return x >= 3 ? x : x <= -3 ? 0 : x * (x + 3) * 0.166666667f;
    else if constexpr (Op == U::hard_sigmoid) return x >= 3 ? 1 : x <= -3 ? 0 : (x + 3) * 0.166666667f;
    else if constexpr (Op == U::mish) return mish_for_half(x);
    else if constexpr (Op == U::soft_plus) return scaled_soft_plus_for_half(x, attr0, attr1);
    else if constexpr (Op == U::log_sigmoid) return -soft_plus_for_half(-x);
    else if constexpr (Op == U::expm1) return expm1_for_half(x);
    else if constexpr (Op == U::log1p) return log1p_for_half(x);
    else if constexpr (Op == U::log) return log_for_half(x, 1);
    else if constexpr (Op == U::log2) return log_for_half(x, log2_of_e);
    else if constexpr (Op == U::log10) return log_for_half(x, 0.434294482f);
    else if constexpr (Op == U::asinh) return asinh_for_half(x);
    else if constexpr (Op == U::acosh) return acosh_for_half(x);
    else if constexpr (Op == U::atanh) return atanh_for_half(x);
    else if constexpr (Op == U::sinh) return sinh_for_half(x);
    else if constexpr (Op == U::cosh) return cosh_for_half(x);
    else if constexpr (Op == U::erf) return erf_for_half(x);
    else if constexpr (Op == U::erfc) return erfc_for_half(x);
    else if constexpr (Op == U::sin) return sin_for_half(x);
    else if constexpr (Op == U::cos) return cos_for_half(x);
    else if constexpr (Op == U::tan) return tan_for_half(x);
    else if constexpr (Op == U::asin) return asin_for_half(x);
    else if constexpr (Op == U::acos) return acos_for_half(x);
    else if constexpr (Op == U::sqrt) return quick_root(x);
    else if constexpr (Op == U::rsqrt) return rsqrtf(x);
    else return unary_real<Op, f32>(x, attr0, attr1);
}
