// Functions that the device's own library has for f32 with errors of more than two units of the last place. Of f32 without
// f64, of which some devices have little.
#pragma once
#include "math.cuh"

// An attribute as two f32.
EP_DEVICE Rounded<f32> as_f32(f64 x) {
    const f32 value = f32(x);
    return {value, isfinite(value) ? f32(x - f64(value)) : 0};
}
// x factor, and what its rounding cuts off.
EP_DEVICE Rounded<f32> scaled(f32 x, Rounded<f32> factor) {
    const f32 value = __fmul_rn(x, factor.value), rest = fmaf(x, factor.value, -value) + x * factor.rest;
    // Far out it would be large itself, or no number.
    return {value, fabsf(value) < 1000 ? rest : 0};
}
EP_DEVICE f32 near_root(f32 x) {
    f32 y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// ln(1 + s + rest), for a rest that is small beside s.
EP_DEVICE f32 log1p_of(f32 s, f32 rest) { return log1p(s) + rest * near_reciprocal(1 + s); }
// ln(2 x)
EP_DEVICE f32 log_of_twice(f32 x) { return log(x) + 0.693147181f; }
// From here up what roots differ from their argument by is nothing beside a logarithm.
constexpr f32 far_out = 8192;

EP_DEVICE f64 near_asinh(f64 x) { return asinh(x); }
EP_DEVICE f32 near_asinh(f32 x) {
    const f32 size = fabsf(x);
    if (size > far_out) return copysignf(log_of_twice(size), x);
    // ln(1 + s), s = |x| + x^2 / (1 + sqrt(1 + x^2)).
    const f32 square = __fmul_rn(size, size), square_cut = fmaf(size, size, -square);
    const f32 root = near_root(fmaf(size, size, 1));
    const f32 root_cut = ((fmaf(-root, root, square) + 1) + square_cut) * 0.5f * near_reciprocal(root);
    const f32 over = root + 1, over_cut = (1 - (over - root)) + root_cut, inverse = near_reciprocal(over);
    const f32 part = square * inverse;
    const f32 part_cut = (fmaf(-part, over, square) + square_cut - part * over_cut) * inverse;
    const f32 s = size + part;
    return copysignf(log1p_of(s, (size - s) + part + part_cut), x);
}

EP_DEVICE f64 near_acosh(f64 x) { return acosh(x); }
EP_DEVICE f32 near_acosh(f32 x) {
    if (x > far_out) return log_of_twice(x);
    // ln(1 + s), s = x - 1 + sqrt(x^2 - 1).
    const f32 square = __fmul_rn(x, x), below = square - 1;
    const f32 below_cut = ((square - below) - 1) + fmaf(x, x, -square);
    const f32 root = near_root(below);
    const f32 root_cut = root > 0 ? (fmaf(-root, root, below) + below_cut) * 0.5f * near_reciprocal(root) : 0;
    const f32 rest = x - 1, s = root + rest;
    return x < 1 ? nan_of(x) : log1p_of(s, (root - s) + rest + root_cut);
}

EP_DEVICE f64 near_atanh(f64 x) { return atanh(x); }
EP_DEVICE f32 near_atanh(f32 x) {
    // Half of ln(1 + s), s = 2 |x| / (1 - |x|).
    const f32 size = fabsf(x), over = 1 - size, over_cut = (1 - over) - size, inverse = near_reciprocal(over);
    const f32 s = 2 * size * inverse, s_cut = (fmaf(-s, over, 2 * size) - s * over_cut) * inverse;
    // At 1 it is infinite, and past that no number.
    return copysignf(0.5f * (size < 1 ? log1p_of(s, s_cut) : log1p(s)), x);
}

// A quarter of e^|x|, which does not overflow where half of it does not.
EP_DEVICE f32 quarter_of_exp(f32 x) {
    const f32 size = fabsf(x), bound = size > 95 ? 95 : size;
    return exp_near(bound - 1.386291504f, -2.85721354e-6f);
}
EP_DEVICE f64 near_cosh(f64 x) { return cosh(x); }
EP_DEVICE f32 near_cosh(f32 x) {
    const f32 quarter = quarter_of_exp(x);
    return fmaf(2, quarter, 0.125f / quarter);
}
EP_DEVICE f64 near_sinh(f64 x) { return sinh(x); }
EP_DEVICE f32 near_sinh(f32 x) {
    const f32 quarter = quarter_of_exp(x), far = fmaf(2, quarter, -0.125f * near_reciprocal(quarter));
    const f32 square = x * x;
    f32 y = 2.50521084e-8f;
    y = fmaf(y, square, 2.75573192e-6f);
    y = fmaf(y, square, 1.98412698e-4f);
    y = fmaf(y, square, 8.33333333e-3f);
    y = fmaf(y, square, 0.166666667f);
    return fabsf(x) < 1 ? fmaf(x * square, y, x) : copysignf(far, x);
}

EP_DEVICE f64 near_reciprocal_root(f64 x) { return 1 / sqrt(x); }
EP_DEVICE f32 near_reciprocal_root(f32 x) {
    const f32 y = rsqrtf(x), missed = fmaf(-(x * y), y, 1), better = fmaf(0.5f * y, missed, y);
    // Of 0 and infinity nothing is missed that could be told.
    return missed == missed ? better : y;
}

EP_DEVICE f64 celu_below(f64 x, f64 alpha) { return alpha * expm1(x / alpha); }
EP_DEVICE f32 celu_below(f32 x, f64 alpha) {
    const Rounded<f32> u = scaled(x, as_f32(1 / alpha)), factor = as_f32(alpha);
    const f32 y = expm1(u.value), whole = fmaf(u.rest, y + 1, y);
    return fmaf(whole, factor.value, whole * factor.rest);
}

// ln(1 + e^(beta x)) / beta, and x where beta x is above the threshold.
EP_DEVICE f64 scaled_soft_plus(f64 x, f64 beta, f64 threshold) {
    const f64 product = x * beta, rest = fabs(product) < 1000 ? fma(x, beta, -product) : 0;
    return product > threshold ? x : soft_plus(product, rest) / beta;
}
EP_DEVICE f32 scaled_soft_plus(f32 x, f64 beta, f64 threshold) {
    const Rounded<f32> u = scaled(x, as_f32(beta)), inverse = as_f32(1 / beta), bound = as_f32(threshold);
    if ((u.value - bound.value) + (u.rest - bound.rest) > 0) return x;
    // Below the normal range the reciprocal would enlarge what rounding cuts off.
    if (u.value < -80 && u.value > -1000) return low_power(u.value, u.rest, inverse.value);
    const f32 y = soft_plus(u.value, u.rest);
    return fmaf(y, inverse.value, y * inverse.rest);
}
