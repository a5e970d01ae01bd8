// The logarithm of gamma and its first two derivatives of f32, without f64 and without loops but for products. Polynomials are
// fitted to the functions themselves, with errors that f32 does not show.
#pragma once
#include "math.cuh"

// 1 / x, also below the normal range, with an error of one unit of the last place.
EP_DEVICE f32 any_reciprocal(f32 x) {
    f32 y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// What is left of a number that is not negative beside the nearest whole one; no number of infinity.
EP_DEVICE f32 past_whole(f32 size) {
    // Sums with this have no fractions, and larger numbers have none either.
    constexpr f32 whole = 8388608;
    return size < whole ? size - ((size + whole) - whole) : size * 0;
}

// Three steps from digamma(1 + size) the asymptotic series is good enough: with z = size + 3 and t = 1 / z^2 it is
// ln z - 1 / 2z - t P(t) - 1 / (size + 1) - 1 / (size + 2). Below zero digamma(x) - digamma(1 - x) is
// -pi cot(pi x) = 1 / rest - rest h(rest^2), with what |x| is past a whole number; above zero 1 / x is taken off instead. Where
// all this cancels it is large logarithms and reciprocals that do, so these have two numbers each.
EP_DEVICE f32 digamma(f32 x) {
    const f32 size = fabsf(x), rest = x < 0 ? past_whole(size) : 0, pole = x < 0 ? rest : -x;
    const f32 bound = fminf(size, 1e9f), z = bound + 3, steps = fmaf(bound, z, 2);
    const f32 inverse = near_reciprocal(steps * z), over_z = steps * inverse, t = over_z * over_z;
    f32 series = 3.26490169e-3f;
    series = fmaf(series, t, -8.29166453e-3f);
    series = fmaf(series, t, 8.33326057e-2f);
    f32 h = 5.71768141f;
    const f32 square = rest * rest;
    h = fmaf(h, square, 0.306481719f);
    h = fmaf(h, square, 2.35989475f);
    h = fmaf(h, square, 1.96907377f);
    h = fmaf(h, square, 2.0368402f);
    h = fmaf(h, square, 2.16459465f);
    h = fmaf(h, square, 3.28986859f);
    // ln z by its exponent and its fraction.
    const u32 bits = __float_as_uint(size + 3);
    const f32 exponent = f32(i32(bits >> 23) - 127);
    const f32 fraction = quick_log2(__uint_as_float((bits & 0x7fffff) | 0x3f800000)) * ln_of_2;
    // What is large, then the rest, and what roundings cut off.
    const f32 of_step = z * inverse, over = fmaf(2, bound, 3), stepped = over * of_step;
    const f32 step_cut = fmaf(-stepped, steps, over) * of_step;
    const f32 reciprocal = any_reciprocal(pole), missed = fmaf(-reciprocal, pole, 1);
    const f32 sum = fmaf(exponent, 0.693145752f, reciprocal), sum_cut = fmaf(exponent, 0.693145752f, reciprocal - sum);
    f32 cut = fmaf(exponent, 1.42860677e-6f, fraction) - step_cut - fmaf(0.5f, over_z, t * series);
    // Of 0 and infinity nothing is missed that could be told.
    if (fabsf(missed) < 1) cut += fmaf(missed, reciprocal, sum_cut);
    const f32 y = sum + (fmaf(-rest, h, -stepped) + cut);
    return x < 0 && rest == 0 ? nan_of(x) : x == inf_of(x) ? x : y;
}
// To the bits of half types.
EP_DEVICE f32 digamma_for_half(f32 x) {
    const f32 size = fabsf(x), rest = x < 0 ? past_whole(size) : 0, pole = x < 0 ? rest : -x;
    const f32 bound = fminf(size, 1e9f), z = bound + 3, steps = fmaf(bound, z, 2);
    const f32 inverse = near_reciprocal(steps * z), over_z = steps * inverse, t = over_z * over_z;
    const f32 series = fmaf(t, -7.7883522e-3f, 8.33154023e-2f);
    f32 h = 4.33504868f;
    const f32 square = rest * rest;
    h = fmaf(h, square, 1.32312727f);
    h = fmaf(h, square, 2.11641192f);
    h = fmaf(h, square, 2.16077113f);
    h = fmaf(h, square, 3.28991914f);
    const f32 rests = fmaf(0.5f, over_z, t * series) + fmaf(2, bound, 3) * (z * inverse) + rest * h;
    const f32 y = any_reciprocal(pole) + (quick_log2(size + 3) * ln_of_2 - rests);
    // Near a root more of it is left.
    if (fabsf(y) < 0.008f) return digamma(x);
    return x < 0 && rest == 0 ? nan_of(x) : y;
}

// As digamma: trigamma(1 + size) is 1 / z + 1 / 2z^2 + Q(t) / z^3 + 1 / (size + 1)^2 + 1 / (size + 2)^2, and below zero
// pi^2 / sin^2(pi x) = 1 / rest^2 + m(rest^2), which is never near it.
template <bool Half>
EP_DEVICE f32 trigamma_of(f32 x) {
    const f32 size = fabsf(x), rest = x < 0 ? past_whole(size) : 0, pole = x < 0 ? rest : x;
    const f32 z = size + 3, over_z = any_reciprocal(z), over_steps = near_reciprocal(fmaf(size, z, 2)), t = over_z * over_z;
    const f32 series = Half ? fmaf(t, -3.01792789e-2f, 0.166564301f)
                            : fmaf(t, fmaf(t, 1.8462697e-2f, -3.30225304e-2f), 0.166661292f);
    f32 above = fmaf(t, fmaf(over_z, series, 0.5f), over_z);
    above = fmaf(over_steps, over_steps, above) + 2 * over_steps;
    const f32 square = rest * rest;
    f32 m;
    if constexpr (Half) {
        m = 47.9356804f;
        m = fmaf(m, square, 4.58561277f);
        m = fmaf(m, square, 11.4051647f);
        m = fmaf(m, square, 6.42732239f);
        m = fmaf(m, square, 3.29099631f);
    } else {
        m = 119.805992f;
        m = fmaf(m, square, -25.3194256f);
        m = fmaf(m, square, 35.9969788f);
        m = fmaf(m, square, 15.910634f);
        m = fmaf(m, square, 14.2370157f);
        m = fmaf(m, square, 10.1650934f);
        m = fmaf(m, square, 6.49412298f);
        m = fmaf(m, square, 3.28986669f);
    }
    f32 reciprocal = any_reciprocal(pole);
    if constexpr (!Half) {
        const f32 missed = fmaf(-reciprocal, pole, 1);
        if (fabsf(missed) < 1) reciprocal = fmaf(missed, reciprocal, reciprocal);
    }
    return fmaf(reciprocal, reciprocal, x < 0 ? m - above : above);
}
EP_DEVICE f32 trigamma(f32 x) { return trigamma_of<false>(x); }
EP_DEVICE f32 trigamma_for_half(f32 x) { return trigamma_of<true>(x); }

template <bool Half>
EP_DEVICE f32 log_to(f32 x) {
    return Half ? log_for_half(x, 1) : log(x);
}
// ln gamma far from zero, by Stirling's series and reflection.
template <bool Half>
EP_DEVICE f32 log_gamma_far(f32 x) {
    // The logarithm less 1 as that of a quarter and a smaller number.
    const f32 size = fabsf(x), r = any_reciprocal(size), less = log_to<Half>(0.25f * size) + 0.386294361f;
    const f32 above = fmaf(size - 0.5f, less, fmaf(r, fmaf(r * r, -2.77777778e-3f, 8.33333333e-2f), 0.418938533f));
    if (x > 0) return above;
    const f32 rest = past_whole(size);
    // Every number is whole from 2^23 on.
    if (!(fabsf(rest) > 0)) return inf_of(x);
    return -(log_to<Half>(fabsf(sinpif(rest)) * 0.865255979f) + less) - above;
}

// From 1 up gamma(x) is gamma(1 + f) (x - 1) (x - 2) ... with the fraction f of x, and else gamma(1 + f) over x (x + 1) ...,
// whose last factor is f: no large numbers cancel, and factors have no error. ln gamma(1 + f) is f (f - 1) K(f).
template <bool Half>
EP_DEVICE f32 log_gamma_of(f32 x) {
    constexpr f32 lowest = -20, highest = 7;
    if (x >= highest || x <= lowest) return log_gamma_far<Half>(x);
    const bool above = x >= 1;
    // A factor that is not taken is -1 or 1.
    const f32 first = above ? 1 - x : x, none = above ? -1 : 1, fraction = x - floorf(x);
    f32 product = fminf(first, none);
#pragma unroll
    for (i32 k = 1; k < 5; ++k) product *= fminf(first + f32(k), none);
    if (x < -4) {
#pragma unroll 1
        for (f32 factor = x + 5; factor < 1; factor += 1) product *= factor;
    }
    f32 k;
    if constexpr (Half) {
        k = -1.12688066e-2f;
        k = fmaf(k, fraction, 4.72451188e-2f);
        k = fmaf(k, fraction, -9.73405242e-2f);
        k = fmaf(k, fraction, 0.151919439f);
        k = fmaf(k, fraction, -0.244986564f);
        k = fmaf(k, fraction, 0.577212393f);
    } else {
        k = 2.50971317e-3f;
        k = fmaf(k, fraction, -1.40133733e-2f);
        k = fmaf(k, fraction, 3.6773324e-2f);
        k = fmaf(k, fraction, -6.35932535e-2f);
        k = fmaf(k, fraction, 8.82246941e-2f);
        k = fmaf(k, fraction, -0.114456482f);
        k = fmaf(k, fraction, 0.15537335f);
        k = fmaf(k, fraction, -0.245249271f);
        k = fmaf(k, fraction, 0.577215672f);
    }
    const f32 of_fraction = fraction * (fraction - 1) * k, of_product = log_to<Half>(fabsf(product));
    const f32 y = above ? of_fraction + of_product : of_fraction - of_product;
    if (Half && x < -2 && fabsf(y) < 0.001f) {
        // Next to a root, between -3 and -2: to those of others half types do not come so near.
        const bool upper = x > -2.6f;
        const f32 past = upper ? (x + 2.4570248f) - 7.44775636e-8f : (x + 2.7476826f) + 7.53162798e-8f;
        return past * (upper ? fmaf(past, 4.85832095f, 1.51560345f) : fmaf(past, 9.57518947f, -1.91435019f));
    }
    return y;
}
EP_DEVICE f32 log_gamma(f32 x) { return log_gamma_of<false>(x); }
EP_DEVICE f32 log_gamma_for_half(f32 x) { return log_gamma_of<true>(x); }
