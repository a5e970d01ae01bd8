// Functions that the device's own library has for f32 with errors of more than two units of the last place. Of f32 without
// f64, of which some devices have little.
#pragma once
#include "math.cuh"

// An attribute as two f32.
EP_DEVICE Rounded<f32> as_f32(f64 x) {
    const f32 value = f32(x);
    return {value, isfinite(value) ? f32(x - f64(value)) : 0};
}
// 1 / x. Below the normal range it is infinite.
EP_DEVICE Rounded<f32> reciprocal_of(Rounded<f32> x) {
    const f32 value = near_reciprocal(x.value), rest = (fmaf(-x.value, value, 1) - x.rest * value) * value;
    return {value, isfinite(rest) ? rest : 0};
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
    const f32 y = size < 1 ? log1p_of(s, s_cut) : inf_of(x);
    return size <= 1 ? copysignf(0.5f * y, x) : nan_of(x);
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

// For an alpha of either sign whose reciprocal is in the normal range.
EP_DEVICE f64 celu_below(f64 x, f64 alpha) {
    const f64 u = x / alpha;
    if (!(alpha < 0)) return alpha * expm1(u);
    // The power multiplies the quotient's error, and may be infinite where the product with alpha is not: e^709 is a factor.
    const f64 missed = fma(-u, alpha, x) / alpha, power = expm1(u > 709 ? u - 709 : u);
    const bool usual = fabs(missed) < 1e-3;
    const f64 corrected = usual && isfinite(power) ? fma(power + 1, missed, power) : power;
    // A quotient below the normal range has lost digits.
    if (usual && u < 1e-20) return x;
    return u > 709 ? (corrected + 1) * (alpha * 8.218407461554972e307) : corrected * alpha;
}
EP_DEVICE f32 celu_below(f32 x, f64 alpha) {
    const Rounded<f32> factor = as_f32(alpha), inverse = reciprocal_of(factor), u = scaled(x, inverse);
    // The library's is for an alpha below 0, of which it may be infinite.
    const f32 y = u.value <= 0 ? expm1_below(u.value) : expm1(u.value);
    // For an alpha between -1 and 0 the product may be finite where the power is not: 127 ln 2 are taken off before.
    const f32 rest = fmaf(factor.rest, inverse.value, u.rest) - 1.81433060e-4f;
    const f32 high = times_exp(factor.value, fmaf(-127, 0.693145752f, u.value), rest) * 1.70141183e38f;
    const f32 beyond = u.value < 200 ? high : y * factor.value;
    const f32 whole = isfinite(y) ? fmaf(y, factor.value, fmaf(y, factor.rest, u.rest * (y + 1) * factor.value)) : beyond;
    // A quotient below the normal range has lost digits.
    return fabsf(u.value) < 1e-9f ? x : whole;
}

// ln(1 + e^(beta x)) / beta, and x where beta x is above the threshold. Of f32 for a beta of either sign between 1e-20 and 1e30.
EP_DEVICE f64 scaled_soft_plus(f64 x, f64 beta, f64 threshold) {
    const f64 product = x * beta, rest = fabs(product) < 1000 ? fma(x, beta, -product) : 0;
    return product > threshold ? x : soft_plus(product, rest) / beta;
}
EP_DEVICE f32 scaled_soft_plus(f32 x, f64 beta, f64 threshold) {
    const Rounded<f32> factor = as_f32(beta), u = scaled(x, factor), inverse = reciprocal_of(factor);
    const Rounded<f32> bound = as_f32(threshold);
    // Below the normal range the reciprocal would enlarge what rounding cuts off: there it is multiplied with the power, which
    // is e^32 times as large. No branches, which would keep elements from being computed side by side.
    const bool low = u.value < -80 && u.value > -1000, above = u.value > 0;
    const f32 power =
        times_exp(low ? inverse.value : 1, low ? u.value + 32 : -fabsf(u.value), above ? -u.rest : u.rest);
    const f32 tail = log1p(power), y = above ? u.value + (tail + u.rest) : tail;
    const f32 whole = low ? power * 1.26641655e-14f : fmaf(y, inverse.value, y * inverse.rest);
    // From e^100 on nothing is added to x, whatever the threshold is.
    return u.value > 100 || (u.value - bound.value) + (u.rest - bound.rest) > 0 ? x : x != x ? x : whole;
}

// With the power as 2^n (1 + p), and t = 1 / (1 + |x| / 2) of which e^(x^2) erfc |x| is a polynomial, fitted with a relative error of 6e-9
// before its coefficients were rounded. What t lacks is made good to first order, with the power.
EP_DEVICE f64 near_erfc(f64 x) { return erfc(x); }
EP_DEVICE f32 near_erfc(f32 x) {
    f32 size;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(size) : "f"(fabsf(x)), "f"(10.25f));
    const f32 t = near_reciprocal(fmaf(0.5f, size, 1));
    f32 y = 2.71551758e-2f;
    y = fmaf(y, t, -0.206472203f);
    y = fmaf(y, t, 0.632014811f);
    y = fmaf(y, t, -0.953923643f);
    y = fmaf(y, t, 0.672359824f);
    y = fmaf(y, t, -0.244720235f);
    y = fmaf(y, t, 0.282390803f);
    y = fmaf(y, t, 0.224162281f);
    y = fmaf(y, t, 0.285169214f);
    y = fmaf(y, t, 0.281855911f);
    y = fmaf(y, t, 8.054707e-6f);
    // Twice 1 / t less what it should be, relative to it, times how much the polynomial changes with t.
    const f32 missed = fmaf(-t, size, fmaf(-2.0f, t, 2.0f)), weight = fmaf(-0.67706685f, t, -0.490610495f);
    constexpr f32 rounder = 12582912 + 64;
    const f32 square = size * size, square_cut = fmaf(missed, weight, fmaf(size, size, -square));
    const f32 number = fmaf(square, -1.442695041f, rounder), n = number - rounder;
    const f32 r = fmaf(n, 0.693147182f, square) + square_cut;
    f32 p = 1.39012758e-3f;
    p = fmaf(p, r, -8.36314633e-3f);
    p = fmaf(p, r, 4.16668542e-2f);
    p = fmaf(p, r, -0.166665778f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r * r, -r);
    const f32 scale = __uint_as_float((__float_as_uint(number) << 23) + 0x3f800000u);
    const f32 above = fmaf(y, p, y) * scale * scaled_back;
    return x < 0 ? 2 - above : above;
}
