// Functions to the 11 bits of half types, in f32: with relative errors of about 2^-15 before the result is rounded.
#pragma once
#include "f32_math.cuh"


// These keep numbers below the normal range, which bf16 has.
EP_DEVICE f32 quick_exp2(f32 x) {
    f32 y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
EP_DEVICE f32 quick_exp(f32 x) { return quick_exp2(x * log2_of_e); }
EP_DEVICE f32 quick_root(f32 x) {
    f32 y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Near 0 by its series: the difference would cancel.
EP_DEVICE f32 expm1_for_half(f32 x) {
    f32 y = 4.16666667e-2f;
    y = fmaf(y, x, 0.166666667f);
    y = fmaf(y, x, 0.5f);
    // The sum is with 1, so that a zero keeps its sign.
    return fabsf(x) < 0.2f ? x * fmaf(x, y, 1) : quick_exp(x) - 1;
}

EP_DEVICE f32 soft_plus_for_half(f32 x) { return fmaxf(x, 0) + log1p_for_half(quick_exp(-fabsf(x))); }
EP_DEVICE f32 scaled_soft_plus_for_half(f32 x, f64 beta, f64 threshold) {
    const Rounded<f32> factor = as_f32(beta), u = scaled(x, factor), bound = as_f32(threshold);
    // As of f32: a power below the normal range is made e^32 times as large before it is divided.
    const f32 inverse = near_reciprocal(factor.value);
    const bool low = u.value < -80;
    const f32 power = quick_exp(low ? u.value + 32 : -fabsf(u.value));
    const f32 y = low ? power * inverse * 1.26641655e-14f : (fmaxf(u.value, 0) + log1p_for_half(power)) * inverse;
    return u.value > 100 || (u.value - bound.value) + (u.rest - bound.rest) > 0 ? x : y;
}
// A quotient below the normal range has lost digits.
EP_DEVICE f32 celu_for_half(f32 x, f32 alpha) {
    const f32 u = x * near_reciprocal(alpha);
    // As of f32: the product may be finite where the power is not.
    const f32 root = quick_exp(0.5f * u), whole = u > 80 ? alpha * root * root : alpha * expm1_for_half(u);
    return x > 0 || fabsf(u) < 1e-6f ? x : whole;
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
    const bool far = size > far_for_half;
    const f32 y = fmaf(quick_log2(far ? size : size + near_root(1 + square)), ln_of_2, far ? ln_of_2 : 0);
    const f32 near = x * fmaf(square, fmaf(square, fmaf(square, -4.46428571e-2f, 0.075f), -0.166666667f), 1);
    return size < 0.25f ? near : copysignf(y, x);
}
EP_DEVICE f32 acosh_for_half(f32 x) {
    const f32 rest = x - 1;
    const bool far = x > far_for_half;
    const f32 y = fmaf(quick_log2(far ? x : x + near_root(rest * (rest + 2))), ln_of_2, far ? ln_of_2 : 0);
    return x < 1 ? nan_of(x) : y;
}
EP_DEVICE f32 atanh_for_half(f32 x) {
    const f32 size = fabsf(x);
    const f32 y = 0.5f * log1p_for_half(2 * size * near_reciprocal(1 - size));
    return size > 1 ? nan_of(x) : copysignf(y, x);
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
EP_DEVICE f32 erfc_for_half(f32 x) {
    const f32 y = 2 * upper_tail_for_half(fabsf(x) * 1.41421356f) * scaled_back;
    return x < 0 ? 2 - y : y;
}
// Fitted to erf x / x with a relative error of 8e-6; from there on it is 1 to half types.
EP_DEVICE f32 erf_for_half(f32 x) {
    constexpr f32 bound = 2.75f;
    const f32 square = x * x;
    f32 y = 7.53037455e-8f;
    y = fmaf(y, square, -3.07097866e-6f);
    y = fmaf(y, square, 5.6147368e-5f);
    y = fmaf(y, square, -6.18081016e-4f);
    y = fmaf(y, square, 4.66702692e-3f);
    y = fmaf(y, square, -2.6087651e-2f);
    y = fmaf(y, square, 0.112268344f);
    y = fmaf(y, square, -0.375958949f);
    y = fmaf(y, square, 1.12837052f);
    return fabsf(x) > bound ? copysignf(1, x) : x * y;
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
    return {fmaf(n, -7.54979013e-8f, fmaf(n, -1.57079625f, x)), __float_as_uint(number)};
}
EP_DEVICE f32 sine_near_zero(f32 r, f32 square) {
    return r * fmaf(square, fmaf(square, fmaf(square, -1.98412698e-4f, 8.33333333e-3f), -0.166666667f), 1);
}
EP_DEVICE f32 cosine_near_zero(f32 square) {
    return fmaf(square, fmaf(square, fmaf(square, -1.38888889e-3f, 4.16666667e-2f), -0.5f), 1);
}
EP_DEVICE f32 sine_of(Turned t) {
    const f32 square = t.rest * t.rest;
    const f32 y = t.quarter & 1 ? cosine_near_zero(square) : sine_near_zero(t.rest, square);
    return t.quarter & 2 ? -y : y;
}
// `Large`: whether the type has numbers that are not turned so. Infinity becomes no number.
template <bool Large>
EP_DEVICE f32 sin_for_half(f32 x) {
    return Large && !(fabsf(x) < turns_exactly) ? sin(x) : sine_of(turned(x));
}
template <bool Large>
EP_DEVICE f32 cos_for_half(f32 x) {
    if (Large && !(fabsf(x) < turns_exactly)) return cos(x);
    const Turned t = turned(x);
    return sine_of({t.rest, t.quarter + 1});
}
template <bool Large>
EP_DEVICE f32 tan_for_half(f32 x) {
    if (Large && !(fabsf(x) < turns_exactly)) return tan(x);
    const Turned t = turned(x);
    const bool odd = t.quarter & 1;
    const f32 square = t.rest * t.rest, sine = sine_near_zero(t.rest, square), cosine = cosine_near_zero(square);
    return (odd ? -cosine : sine) * near_reciprocal(odd ? sine : cosine);
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
// By sqrt(1 - |x|) and a polynomial that is fitted to the quotient with a relative error of 8e-7.
EP_DEVICE f32 acos_for_half(f32 x) {
    const f32 size = fabsf(x);
    f32 y = -4.30705398e-3f;
    y = fmaf(y, size, 1.927335e-2f);
    y = fmaf(y, size, -4.48921174e-2f);
    y = fmaf(y, size, 8.78526047e-2f);
    y = fmaf(y, size, -0.214509428f);
    y = fmaf(y, size, 1.57079518f) * near_root(1 - size);
    return x < 0 ? 3.14159265f - y : y;
}

// Of a half type, given as f32; what is not here is computed as f32 is.
template <Unary Op, bool Large>
EP_DEVICE f32 unary_for_half(f32 x, f64 attr0, f64 attr1) {
    using U = Unary;
    if constexpr (Op == U::gelu) return gelu_for_half(x);
    else if constexpr (Op == U::sigmoid) return sigmoid_for_half(x);
    else if constexpr (Op == U::tanh) return tanh_for_half(x);
    else if constexpr (Op == U::silu) return x * sigmoid_for_half(x);
    else if constexpr (Op == U::fast_gelu) return x * sigmoid_for_half(fast_gelu_argument_for_half(x));
    else if constexpr (Op == U::quick_gelu) return x * sigmoid_for_half(1.702f * x);
    else if constexpr (Op == U::elu) return x > 0 ? x : f32(attr0) * expm1_for_half(x);
    else if constexpr (Op == U::celu) return celu_for_half(x, f32(attr0));
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
    else if constexpr (Op == U::sin) return sin_for_half<Large>(x);
    else if constexpr (Op == U::cos) return cos_for_half<Large>(x);
    else if constexpr (Op == U::tan) return tan_for_half<Large>(x);
    else if constexpr (Op == U::asin) return asin_for_half(x);
    else if constexpr (Op == U::acos) return acos_for_half(x);
    else if constexpr (Op == U::sqrt) return quick_root(x);
    else if constexpr (Op == U::rsqrt) return rsqrtf(x);
    else if constexpr (Op == U::digamma) return digamma_for_half(x);
    else if constexpr (Op == U::trigamma) return trigamma_for_half(x);
    else if constexpr (Op == U::lgamma) return log_gamma_for_half(x);
    else return unary_real<Op, f32>(x, attr0, attr1);
}
