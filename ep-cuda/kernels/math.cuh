// Functions of numbers that the device's own library lacks, or has with too large an error.
#pragma once
#include "common.cuh"

EP_DEVICE f32 nan_of(f32) { return __uint_as_float(0x7fffffffu); }
EP_DEVICE f64 nan_of(f64) { return __longlong_as_double(0x7fffffffffffffffll); }
EP_DEVICE f32 inf_of(f32) { return __uint_as_float(0x7f800000u); }
EP_DEVICE f64 inf_of(f64) { return __longlong_as_double(0x7ff0000000000000ll); }

// Below zero; never so for unsigned types.
template <class T>
EP_DEVICE bool negative(T x) {
    if constexpr (T(-1) < T(0)) return x < 0;
    else return false;
}

// factor e^(x + rest) for x up to 88 and a rest that is small beside 1, with little more than one rounding, which the
// library's power has not.
EP_DEVICE f32 times_exp(f32 factor, f32 x, f32 rest) {
    x = x < -104 ? -104 : x;
    const f32 n = rintf(x * 1.442695041f);
    const f32 r = fmaf(n, -1.42860677e-6f, fmaf(n, -0.693145752f, x)) + rest;
    f32 y = 1.98412698e-4f;
    y = fmaf(y, r, 1.3888889e-3f);
    y = fmaf(y, r, 8.3333334e-3f);
    y = fmaf(y, r, 4.1666668e-2f);
    y = fmaf(y, r, 1.6666667e-1f);
    y = fmaf(y, r, 0.5f);
    y = fmaf(y, r * r, r);
    f32 scale;
    asm("ex2.approx.f32 %0, %1;" : "=f"(scale) : "f"(n));
    return fmaf(factor, y, factor) * scale;
}
EP_DEVICE f64 times_exp(f64 factor, f64 x, f64 rest) {
    const f64 y = factor * exp(x);
    return rest == 0 ? y : fma(y, rest, y);
}
template <class T>
EP_DEVICE T exp_near(T x, T rest = 0) {
    return times_exp(T(1), x, rest);
}

// e^x as 2^n (1 + p), for -1000 <= x <= 0, where x is `exact` beside n ln 2: what that leaves out is given back, and has
// a part of e^x that is left to be added. 2^n is scaled by 2^64, so that it is a normal number where products with it are
// not; below e^-131 it is 0. The lowest bits of `number` are n.
struct Power {
    f32 scale, p, left_out, number;
};
constexpr f32 scaled_back = 5.421010862e-20f;
EP_DEVICE Power power_of(f32 x) {
    // Adding 1.5 2^23 rounds to a whole number.
    constexpr f32 rounder = 12582912;
    Power power;
    power.number = fmaf(x, 1.442695041f, rounder);
    const f32 n = power.number - rounder, r = fmaf(n, -0.693145752f, x);
    f32 y = 1.3814515e-3f;
    y = fmaf(y, r, 8.368756e-3f);
    y = fmaf(y, r, 4.1668393e-2f);
    y = fmaf(y, r, 0.1666652f);
    y = fmaf(y, r, 0.49999994f);
    power.p = fmaf(y, r * r, r);
    power.left_out = n * -1.42860677e-6f;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power.scale) : "f"(n + 64));
    return power;
}
// The scale of e^x for x >= -130, put together from bits: it takes no turn of the unit for special functions.
EP_DEVICE f32 scale_of(Power e) { return __uint_as_float((__float_as_uint(e.number) << 23) + 0x5f800000u); }
EP_DEVICE f32 near_reciprocal(f32 x) {
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
EP_DEVICE f64 near_reciprocal(f64 x) { return 1 / x; }

// e^x - 1 for x <= 0, with little more than one rounding.
EP_DEVICE f64 expm1_below(f64 x) { return expm1(x); }
EP_DEVICE f32 expm1_below(f32 x) {
    // Below, the result is -1.
    const Power e = power_of(fmaxf(x, -60));
    // Put together from bits: what the power's scale were off by would be all that is left where it is near 1.
    const f32 scale = __uint_as_float((__float_as_uint(e.number) << 23) + 0x3f800000u);
    const f32 p = e.p + fmaf(e.p, e.left_out, e.left_out);
    return x != x ? x : copysignf(fmaf(scale, p, scale - 1), x);
}

// 1 / (1 + e^-x), without overflow on the way.
template <class T>
EP_DEVICE T sigmoid(T x) {
    const T e = exp_near(-fabs(x));
    return (x < 0 ? e : T(1)) / (1 + e);
}

EP_DEVICE f32 sigmoid(f32 x) {
    f32 below;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(below) : "f"(-fabsf(x)), "f"(-130.0f));
    const Power e = power_of(below);
    const f32 p = e.p + fmaf(e.p, e.left_out, e.left_out);
    const f32 scale = scale_of(e), over = fmaf(fmaf(scale, p, scale), scaled_back, 1);
    // (1 + part) / over with one step of Newton's, in which the sum is not rounded: the power may be just above a power of two
    // and the result just below.
    const f32 part = x < 0 ? p : 0, inverse = near_reciprocal(over), near = fmaf(part, inverse, inverse);
    const f32 quotient = fmaf(fmaf(-near, over, 1) + part, inverse, near);
    return x < 0 ? quotient * (scale * scaled_back) : quotient;
}

// ln(1 + e^(x + rest))
template <class T>
EP_DEVICE T soft_plus(T x, T rest = 0) {
    const T tail = log1p(exp_near(-fabs(x), x > 0 ? -rest : rest));
    return x > 0 ? x + (tail + rest) : (x != x ? x : tail);
}

// x factor, where a factor of zero outweighs an infinite x: it vanishes faster than x grows.
template <class T>
EP_DEVICE T damped(T x, T factor) {
    return factor == 0 ? T(0) : x * factor;
}

// e^(x + rest) times a factor, for x so low that the power may be below the normal range where the product is not.
EP_DEVICE f32 low_power(f32 x, f32 rest, f32 factor) {
    // 32 is added without rounding: x is below -64. The last factor is e^-32.
    return times_exp(factor, x + 32, rest) * 1.26641655e-14f;
}
EP_DEVICE f64 low_power(f64 x, f64 rest, f64 factor) {
    return times_exp(factor, x + 256, rest) * 6.6162610567094852e-112;
}
template <class T>
constexpr T low_bound = T(sizeof(T) == 4 ? -80 : -690);

// x sigmoid(u) for u of x's sign and size + rest in size.
EP_DEVICE f64 times_sigmoid(f64 x, f64 size, f64 rest) {
    const f64 u = copysign(size, x);
    if (u < low_bound<f64>) return low_power(u, -rest, x);
    const f64 e = exp_near(-size, -rest);
    return (x < 0 ? times_exp(x, u, -rest) : x) / (1 + e);
}
EP_DEVICE f32 times_sigmoid(f32 x, f32 size, f32 rest) {
    // Where these bounds are met, the result is x or 0.
    const Power e = power_of(fmaxf(-size, -130));
    const f32 left_out = e.left_out - rest, p = e.p + fmaf(e.p, left_out, left_out);
    const f32 scale = scale_of(e), over = fmaf(fmaf(scale, p, scale), scaled_back, 1);
    const f32 low = fmaxf(x, -200), part = x < 0 ? fmaf(low, p, low) * scale : x;
    // One step of Newton's makes the quotient as good as a division. With these signs a zero keeps its own.
    const f32 inverse = near_reciprocal(over), near = part * inverse;
    const f32 quotient = fmaf(-fmaf(near, over, -part), inverse, near);
    // Of minus infinity it is no number, like infinity times 0.
    return x > 100 ? x : x < 0 ? fmaf(quotient, scaled_back, x * 0) : quotient;
}

// x times the normal distribution function of x.
EP_DEVICE f64 gelu(f64 x) {
    const f64 square = x * x, rest = fma(x, x, -square) / -2, power = square / -2;
    // Above, the tail is nothing beside 1; below, nothing at all.
    if (!(power > -750)) return x < 0 ? x * 0 : x;
    const f64 tail = erfcx(fabs(x) * 0.70710678118654752440) / 2;
    if (x <= 0) {
        const f64 product = x * tail;
        return power < low_bound<f64> ? low_power(power, rest, product) : times_exp(product, power, rest);
    }
    return fma(-x, tail * exp_near(power, rest), x);
}
// With |x| times the upper tail, e^(-x^2 / 2) u y: u = |x| / (1 + 0.3 |x|), y a polynomial of u - 1 that is fitted to a
// relative error of 4e-9, before its coefficients were rounded. What roundings cut off is carried along, for this is the result below 0.
EP_DEVICE f32 gelu(f32 x) {
    f32 size;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(size) : "f"(fabsf(x)), "f"(14.5f));
    const f32 over = fmaf(0.3f, size, 1), t = near_reciprocal(over), u = size * t, v = u - 1;
    f32 y = 4.05156328e-7f;
    y = fmaf(y, v, -1.14634736e-6f);
    y = fmaf(y, v, -8.22805396e-6f);
    y = fmaf(y, v, 1.59993051e-5f);
    y = fmaf(y, v, 2.10186161e-4f);
    y = fmaf(y, v, -4.77473339e-4f);
    y = fmaf(y, v, -5.68959722e-3f);
    y = fmaf(y, v, 4.31648865e-2f);
    y = fmaf(y, v, -0.148363635f);
    const f32 whole = fmaf(y, v, 0.303446859f), whole_cut = fmaf(y, v, 0.303446859f - whole);
    const f32 factor = u * whole;
    // What u lacks, times about how much the factor changes with it.
    const f32 missed = fmaf(-u, over, size) * t;
    const f32 cut = fmaf(missed, fmaf(-0.13785657f, u, 0.34642846f), fmaf(u, whole_cut, fmaf(u, whole, -factor)));
    // e^(-x^2 / 2) as 2^n (1 + p). Adding `rounder` rounds to a whole number, of which the lowest bits are n + 64: so that
    // 2^n is a normal number where products with it are not. What n ln 2 lacks for the f32 of ln 2 is in y.
    constexpr f32 rounder = 12582912 + 64;
    const f32 half = -0.5f * size, power = size * half;
    const f32 number = fmaf(power, 1.442695041f, rounder), n = number - rounder;
    const f32 r = fmaf(n, -0.693147182f, power) + fmaf(size, half, -power);
    f32 p = 1.3814515e-3f;
    p = fmaf(p, r, 8.368756e-3f);
    p = fmaf(p, r, 4.1668393e-2f);
    p = fmaf(p, r, 0.1666652f);
    p = fmaf(p, r, 0.49999994f);
    p = fmaf(p, r * r, r);
    const f32 scale = __uint_as_float((__float_as_uint(number) << 23) + 0x3f800000u);
    const f32 below = (factor + fmaf(factor, p, fmaf(cut, p, cut))) * scale;
    // The larger of x and 0: of minus infinity it is no number, and what is rounded downwards leaves a zero of x its sign.
    return fmaf(-below, scaled_back, __fmaf_rd(0.5f, fabsf(x), 0.5f * x));
}

// The upper tail of the normal distribution at x >= 0 to the 11 bits of half types, scaled by 2^64 as in `power_of`: a shorter
// polynomial (relative error 3e-5) and the fast power of two.
EP_DEVICE f32 upper_tail_for_half(f32 x) {
    f32 size;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(size) : "f"(x), "f"(14.5f));
    const f32 t = near_reciprocal(fmaf(0.35f, size, 1));
    f32 power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fmaf(size * size, -0.7213475204f, 64)));
    f32 y = -0.0334488168f;
    y = fmaf(y, t, 0.0098447152f);
    y = fmaf(y, t, 0.1429492305f);
    y = fmaf(y, t, 0.0965614448f);
    y = fmaf(y, t, 0.1448221298f);
    y = fmaf(y, t, 0.1392587379f);
    return y * t * power;
}
EP_DEVICE f32 gelu_for_half(f32 x) {
    const f32 size = fminf(fabsf(x), 14.5f);
    return (x < 0 ? x * 0 : x) - upper_tail_for_half(size) * size * scaled_back;
}

// 1 / (1 + e^-x) to the bits of half types.
EP_DEVICE f32 sigmoid_for_half(f32 x) {
    f32 power, inverse;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(fabsf(x) * -1.442695041f));
    asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(1 + power));
    return (x < 0 ? power : 1) * inverse;
}

// tanh x to the bits of half types: near 0 it is x.
EP_DEVICE f32 tanh_for_half(f32 x) {
    const f32 size = fabsf(x);
    f32 power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(size * -2.885390082f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + power));
    return size < 0.00390625f ? x : copysignf((1 - power) * inverse, x);
}

// A number and what its rounding has cut off.
template <class T>
struct Rounded {
    T value, rest;
};

// Twice sqrt(2 / pi) (x + 0.044715 x^3), with the cubic's factor as f32 has it, and 1.702 x: their sigmoids turn errors of
// large arguments into large ones of results.
EP_DEVICE Rounded<f64> fast_gelu_argument(f64 x) {
    return {1.5957691216057308 * x * fma(0.044714998453855515 * x, x, 1.0), 0};
}
EP_DEVICE Rounded<f32> fast_gelu_argument(f32 x) {
    constexpr f32 factor = 0.0447149985f, outer = 1.59576917f, outer_cut = f32(1.5957691216057308 - f64(outer));
    // Not to be joined with the sums: what these products' rounding cuts off is found again.
    const f32 square = __fmul_rn(x, x), cubic = __fmul_rn(factor, square);
    const f32 cubic_cut = fmaf(factor, square, -cubic) + factor * fmaf(x, x, -square);
    const f32 sum = 1 + cubic, added = sum - 1, sum_cut = (1 - (sum - added)) + (cubic - added) + cubic_cut;
    const f32 line = __fmul_rn(outer, x), line_cut = fmaf(outer, x, -line) + outer_cut * x;
    const f32 value = __fmul_rn(line, sum), rest = fmaf(line, sum, -value) + fmaf(line, sum_cut, line_cut * sum);
    // Far out it would be large itself, or no number.
    return {value, fabsf(value) < 1000 ? rest : 0};
}
EP_DEVICE Rounded<f64> quick_gelu_argument(f64 x) { return {1.702 * x, 0}; }
EP_DEVICE Rounded<f32> quick_gelu_argument(f32 x) {
    constexpr f32 factor = 1.702f, factor_cut = f32(1.702 - f64(factor));
    const f32 value = __fmul_rn(factor, x), rest = fmaf(factor, x, -value) + factor_cut * x;
    return {value, fabsf(value) < 1000 ? rest : 0};
}
EP_DEVICE f32 fast_gelu_argument_for_half(f32 x) {
    return 1.5957691216f * x * fmaf(0.0447149985f * x, x, 1);
}

constexpr f32 ln_of_2 = 0.693147181f, log2_of_e = 1.442695041f;
EP_DEVICE f32 quick_log2(f32 x) {
    f32 y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Logarithms to the bits of half types: near 1 by their series.
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

// The derivative of x sigmoid(u), given u and its derivative.
template <class T>
EP_DEVICE T gated(T x, Rounded<T> u, T slope) {
    const T other = sigmoid(-u.value), near = sigmoid(u.value), s = fma(near, u.rest * other, near);
    return damped(1 + damped(x * slope, other), s);
}

EP_DEVICE bool is_pole(f64 x) { return x <= 0 && isfinite(x) && floor(x) == x; }

// B(2k) / 2k: the series of digamma. DLMF 5.11.2.
__device__ constexpr f64 digamma_series[] = {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760,
    1.0 / 12, -3617.0 / 8160};
// B(2k): the series of trigamma.
__device__ constexpr f64 trigamma_series[] = {1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66, -691.0 / 2730,
    7.0 / 6, -3617.0 / 510};
constexpr f64 pi = 3.14159265358979323846;
// From here up the asymptotic series are as good as f64.
constexpr f64 asymptotic = 12;

EP_DEVICE f64 digamma_above_zero(f64 x) {
    f64 below = 0;
    for (; x < asymptotic; x += 1) below += 1 / x;
    const f64 r = 1 / (x * x);
    f64 series = 0;
#pragma unroll
    for (int k = 7; k >= 0; --k) series = (series + digamma_series[k]) * r;
    return log(x) - 0.5 / x - series - below;
}

// The logarithmic derivative of gamma: -infinity at +0, infinity at -0, NaN at the other poles.
EP_DEVICE f64 digamma(f64 x) {
    if (x == 0) return copysign(inf_of(x), -x);
    if (x != x || is_pole(x) || x == -inf_of(x)) return nan_of(x);
    if (x == inf_of(x)) return x;
    if (x > 0) return digamma_above_zero(x);
    const f64 past = x - rint(x);
    return digamma_above_zero(1 - x) - pi * cospi(past) / sinpi(past);
}

EP_DEVICE f64 trigamma_above_zero(f64 x) {
    f64 below = 0;
    for (; x < asymptotic; x += 1) below += 1 / (x * x);
    const f64 r = 1 / (x * x);
    f64 series = 0;
#pragma unroll
    for (int k = 7; k >= 0; --k) series = (series + trigamma_series[k]) * r;
    return below + 1 / x + r / 2 + series / x;
}

EP_DEVICE f64 trigamma(f64 x) {
    if (x != x || x == -inf_of(x)) return nan_of(x);
    if (is_pole(x)) return inf_of(x);
    if (x == inf_of(x)) return 0;
    if (x > 0) return trigamma_above_zero(x);
    const f64 ratio = pi / sinpi(x - rint(x));
    return ratio * ratio - trigamma_above_zero(1 - x);
}

EP_DEVICE f64 log_gamma(f64 x) { return lgamma(x); }

// The device's own squares a root below the normal range, with twice the error.
EP_DEVICE f64 power_of_two(f64 x) { return exp2(x); }
EP_DEVICE f32 power_of_two(f32 x) {
    const bool low = x < -125;
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(low ? x + 64 : x));
    return y * (low ? scaled_back : 1);
}

// The sum of (q + k)^-s over k = 0, 1, ... for q > 0, s > 1: single terms, then Euler and Maclaurin's integral and
// corrections (DLMF 25.11.28).
EP_DEVICE f64 zeta_above_zero(f64 s, f64 q) {
    // Below, numbers may have lost digits, and terms that vanish may have a sum that does not.
    constexpr f64 small = 1.1e-292;
    const f64 end = 10 + (s < 40 ? s : 40);
    f64 sum = 0, a = q;
    while (a < end) {
        const f64 term = pow(a, -s);
        sum += term;
        if (term <= sum * 1e-18 && sum > small) return sum;
        a += 1;
    }
    const f64 term = pow(a, -s);
    const f64 root = pow(a, s / -2);
    sum += (term > small ? term * a : root * (root * a)) / (s - 1) + term / 2;
    // The factors of the corrections overflow for large s.
    if (term == 0) return sum;
    f64 factor = s * term / (2 * a);
#pragma unroll
    for (int k = 1; k <= 8; ++k) {
        sum += factor * trigamma_series[k - 1];
        factor *= (s + (2 * k - 1)) * (s + 2 * k) / (a * a * ((2 * k + 1) * (2 * k + 2)));
    }
    return sum;
}

EP_DEVICE f64 zeta(f64 s, f64 q) {
    if (s != s || q != q || s < 1 || q == -inf_of(q)) return nan_of(s);
    if (s == 1) return inf_of(s);
    // Powers of infinity: the least base decides.
    if (isinf(s)) return q < 0 ? nan_of(s) : q < 1 ? inf_of(s) : f64(q == 1);
    if (isinf(q)) return 0;
    if (is_pole(q)) return inf_of(s);
    if (q > 0) return zeta_above_zero(s, q);
    if (floor(s) != s) return nan_of(s);
    // The bases below zero are 1 - f, 2 - f, ... with a sign, those above it f, f + 1, ...
    const f64 whole = floor(q), above = q - whole, below = (whole + 1) - q;
    if (fmod(s, 2.0) == 0)
        return zeta_above_zero(s, above) + (zeta_above_zero(s, below) - zeta_above_zero(s, below - whole));
    // With opposite signs they nearly cancel, so the first ones are added in pairs.
    const int pairs = -whole < 64 ? int(-whole) : 64;
    f64 paired = 0;
    for (int k = 0; k < pairs && above != below; ++k) {
        const f64 first = pow(above + k, -s), second = pow(below + k, -s);
        // Where both overflow, they are so far apart that the larger one's sign is the result's.
        paired += isinf(first) && isinf(second) ? copysign(inf_of(s), below - above) : first - second;
    }
    const f64 rest = zeta_above_zero(s, below + pairs) - zeta_above_zero(s, below - whole);
    return paired + (zeta_above_zero(s, above + pairs) - rest);
}
EP_DEVICE f32 zeta(f32 s, f32 q) { return f32(zeta(f64(s), f64(q))); }

// ---- Complex numbers -----------------------------------------------------------------------------------------------

template <class Z>
using PartOf = Select<same<Z, c64>, f32, f64>;

// Parts are computed in f64 for complex64: it leaves room for squares.
struct Parts {
    f64 re, im;
};
template <class Z>
EP_DEVICE Parts parts(Z z) {
    return {f64(z.re), f64(z.im)};
}
template <class Z>
EP_DEVICE Z complex(Parts z) {
    return {PartOf<Z>(z.re), PartOf<Z>(z.im)};
}

EP_DEVICE Parts multiply(Parts a, Parts b) {
    // Each difference of products with the rounding of one of them made good (Kahan).
    const f64 bd = a.im * b.im, bc = a.im * b.re;
    return {fma(a.re, b.re, -bd) + fma(-a.im, b.im, bd), fma(a.re, b.im, bc) + fma(a.im, b.re, -bc)};
}

// By zero: each part divided by zero.
EP_DEVICE Parts divide(Parts a, Parts b) {
    if (b.re == 0 && b.im == 0) return {a.re / b.re, a.im / b.re};
    // A power of two out of the divisor keeps its square within range.
    const int scale = -ilogb(fmax(fabs(b.re), fabs(b.im)));
    const bool finite = isfinite(b.re) && isfinite(b.im);
    const Parts d = finite ? Parts{scalbn(b.re, scale), scalbn(b.im, scale)} : b;
    const f64 norm = d.re * d.re + d.im * d.im;
    const Parts n = multiply(a, {d.re, -d.im});
    const int back = finite ? scale : 0;
    return {scalbn(n.re / norm, back), scalbn(n.im / norm, back)};
}

// The root with a real part that is not negative and an imaginary part of the argument's sign.
EP_DEVICE Parts root(Parts z) {
    if (z.re == 0 && z.im == 0) return {0, z.im};
    if (isinf(z.im)) return {inf_of(z.re), z.im};
    if (isinf(z.re)) {
        const f64 zero = 0 * z.im;
        return z.re < 0 ? Parts{fabs(zero), copysign(z.re, z.im)} : Parts{z.re, zero};
    }
    // Out of the ends of the range, where the sum of sizes would overflow or lose bits.
    const bool huge = fabs(z.re) > 1e300 || fabs(z.im) > 1e300;
    const bool tiny = fabs(z.re) < 1e-290 && fabs(z.im) < 1e-290;
    const int even = huge ? -4 : tiny ? 120 : 0;
    const f64 re = scalbn(z.re, even), im = scalbn(z.im, even);
    const f64 long_part = sqrt((fabs(re) + hypot(re, im)) / 2);
    const f64 longer = scalbn(long_part, -even / 2), shorter = scalbn(fabs(im) / long_part / 2, -even / 2);
    return z.re < 0 ? Parts{shorter, copysign(longer, z.im)} : Parts{longer, copysign(shorter, z.im)};
}

EP_DEVICE Parts exponential(Parts z) {
    const f64 scale = exp(z.re);
    if (z.im == 0) return {scale, z.im};
    f64 sine, cosine;
    sincos(z.im, &sine, &cosine);
    if (isinf(scale) && isfinite(z.re)) {
        const f64 half_scale = exp(z.re / 2);
        return {half_scale * cosine * half_scale, half_scale * sine * half_scale};
    }
    return {scale * cosine, scale * sine};
}
