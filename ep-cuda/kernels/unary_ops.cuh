// The functions of one element.
#pragma once
#include "f32_math.cuh"
#include "gamma_math.cuh"

enum class Unary {
    identity, elu, celu, relu, gelu, hard_swish, hard_sigmoid, hard_shrink, hard_tanh, leaky_relu, mish, selu, silu,
    soft_shrink, soft_sign, soft_plus, tanh, threshold, fast_gelu, quick_gelu, square_relu, abs, acos, acosh, asin,
    asinh, atan, atanh, ceil, cos, cosh, digamma, trigamma, erf, erfc, exp, exp2, expm1, floor, lgamma, log, log2,
    log10, log1p, log_sigmoid, negative, reciprocal, reciprocal_no_nan, rint, round, rsqrt, sigmoid, sign, sin, sinh,
    sqrt, square, tan, trunc, not_equal_zero, logical_not, cast, is_inf, is_nan, is_finite, nan_assign, bitwise_not,
    conj, real, imag, real_grad, imag_grad,
};

// What loops: hundreds of instructions for each element.
template <Unary Op, class T>
constexpr bool is_long =
    same<T, f64> && (Op == Unary::digamma || Op == Unary::trigamma || Op == Unary::lgamma);

// Of a real number. T is f32 or f64; half types compute in f32.
template <Unary Op, class T>
EP_DEVICE T unary_real(T x, f64 attr0, f64 attr1) {
    using U = Unary;
    const T a = T(attr0), b = T(attr1);
    // Scale and alpha of selu (Klambauer and others, 2017).
    constexpr T selu_scale = T(1.0507009873554805), selu_alpha = T(1.6732632423543772);
    if constexpr (Op == U::elu) return x > 0 ? x : T(attr0 * f64(expm1_below(x)));
    else if constexpr (Op == U::celu) return x > 0 ? x : celu_below(x, attr0);
    else if constexpr (Op == U::relu) return x <= 0 ? T(0) : x;
    else if constexpr (Op == U::gelu) return gelu(x);
    else if constexpr (Op == U::hard_swish) return x >= 3 ? x : x <= -3 ? T(0) : x * (x + 3) / 6;
    else if constexpr (Op == U::hard_sigmoid) return x >= 3 ? T(1) : x <= -3 ? T(0) : (x + 3) / 6;
    else if constexpr (Op == U::hard_shrink) return fabs(x) <= a ? T(0) : x;
    else if constexpr (Op == U::hard_tanh) return x >= b ? b : x <= a ? a : x;
    else if constexpr (Op == U::leaky_relu) return x > 0 ? x : x * a;
    else if constexpr (Op == U::mish) {
        // x tanh(ln(1 + e^x)) is x (p^2 + 2p) / (p^2 + 2p + 2), p = e^x. Far below 0 nearly x p, and a smaller product is
        // taken off; else x (1 - ratio), in two numbers with what roundings cut off, for little of x may be left.
        if (x > 20) return x;
        if (x < low_bound<T>) return low_power(x, T(0), x);
        const T p = exp_near(x), k = p + 2, over = fma(p, k, T(2));
        if (x < T(-8)) {
            const T y = times_exp(x, x, T(0));
            return fma(-y, p * (p + 1) / over, y);
        }
        const T over_cut = fma(p, k, 2 - over) + p * ((2 - k) + p);
        const T inverse = near_reciprocal(over), ratio = 2 * inverse;
        const T ratio_cut = fma(-ratio, over_cut, fma(-ratio, over, T(2))) * inverse;
        const T kept = 1 - ratio;
        // A zero keeps its sign.
        return copysign(fma(x, kept, x * (((1 - kept) - ratio) - ratio_cut)), x);
    } else if constexpr (Op == U::selu) {
        // The product of the two as two numbers, for its rounding would show.
        constexpr f64 product = 1.7580993408473766;
        constexpr T high = T(product), low = T(product - f64(high));
        const T below = expm1_below(x);
        return x > 0 ? selu_scale * x : fma(below, high, below * low);
    } else if constexpr (Op == U::silu) return times_sigmoid(x, fabs(x), T(0));
    else if constexpr (Op == U::soft_shrink) return x > a ? x - a : x < -a ? x + a : x != x ? x : T(0);
    else if constexpr (Op == U::soft_sign) return x / (1 + fabs(x));
    else if constexpr (Op == U::soft_plus) return scaled_soft_plus(x, attr0, attr1);
    else if constexpr (Op == U::tanh) return tanh(x);
    else if constexpr (Op == U::threshold) return x <= a ? b : x;
    else if constexpr (Op == U::fast_gelu || Op == U::quick_gelu) {
        const T size = fabs(x);
        const Rounded<T> u = Op == U::fast_gelu ? fast_gelu_argument(size) : quick_gelu_argument(size);
        return times_sigmoid(x, u.value, u.rest);
    } else if constexpr (Op == U::square_relu) return x > 0 ? x * x : T(0);
    else if constexpr (Op == U::abs) return fabs(x);
    else if constexpr (Op == U::acos) return acos(x);
    else if constexpr (Op == U::acosh) return near_acosh(x);
    else if constexpr (Op == U::asin) return asin(x);
    else if constexpr (Op == U::asinh) return near_asinh(x);
    else if constexpr (Op == U::atan) return atan(x);
    else if constexpr (Op == U::atanh) return near_atanh(x);
    else if constexpr (Op == U::ceil) return ceil(x);
    else if constexpr (Op == U::cos) return cos(x);
    else if constexpr (Op == U::cosh) return near_cosh(x);
    else if constexpr (Op == U::digamma) return digamma(x);
    else if constexpr (Op == U::trigamma) return trigamma(x);
    else if constexpr (Op == U::erf) return erf(x);
    else if constexpr (Op == U::erfc) return near_erfc(x);
    else if constexpr (Op == U::exp) return exp(x);
    else if constexpr (Op == U::exp2) return power_of_two(x);
    else if constexpr (Op == U::expm1) return expm1(x);
    else if constexpr (Op == U::floor) return floor(x);
    else if constexpr (Op == U::lgamma) return log_gamma(x);
    else if constexpr (Op == U::log) return log(x);
    else if constexpr (Op == U::log2) return log2(x);
    else if constexpr (Op == U::log10) return log10(x);
    else if constexpr (Op == U::log1p) return log1p(x);
    else if constexpr (Op == U::log_sigmoid) return -soft_plus(-x);
    else if constexpr (Op == U::negative) return -x;
    else if constexpr (Op == U::reciprocal) return 1 / x;
    else if constexpr (Op == U::reciprocal_no_nan) return x == 0 ? T(0) : 1 / x;
    else if constexpr (Op == U::rint || Op == U::round) return rint(x);
    else if constexpr (Op == U::rsqrt) return near_reciprocal_root(x);
    else if constexpr (Op == U::sigmoid) return sigmoid(x);
    else if constexpr (Op == U::sign) return x > 0 ? T(1) : x < 0 ? T(-1) : T(0);
    else if constexpr (Op == U::sin) return sin(x);
    else if constexpr (Op == U::sinh) return near_sinh(x);
    else if constexpr (Op == U::sqrt) return sqrt(x);
    else if constexpr (Op == U::square) return x * x;
    else if constexpr (Op == U::tan) return tan(x);
    else if constexpr (Op == U::trunc) return trunc(x);
    else if constexpr (Op == U::not_equal_zero) return x == 0 ? T(0) : T(1);
    else if constexpr (Op == U::nan_assign) return x != x ? T(0) : x;
    else static_assert(Op != Op, "no such function of a float");
}

#include "half_math.cuh"

// Of an integer or a truth value. What rounds leaves it alone; arithmetic wraps.
template <Unary Op, class T>
EP_DEVICE T unary_int(T x) {
    using U = Unary;
    // Unsigned arithmetic of at least the element's width has no overflow.
    const u64 wide = u64(x);
    if constexpr (Op == U::relu) return negative(x) ? T(0) : x;
    else if constexpr (Op == U::square_relu) return negative(x) ? T(0) : T(wide * wide);
    else if constexpr (Op == U::abs) return negative(x) ? T(0 - wide) : x;
    else if constexpr (Op == U::sign) return T((x > T(0)) - (negative(x)));
    else if constexpr (Op == U::square) return T(wide * wide);
    else if constexpr (Op == U::not_equal_zero) return T(x != 0);
    else if constexpr (Op == U::negative) return T(0 - wide);
    else if constexpr (Op == U::bitwise_not) return T(~wide);
    else return x;
}

template <Unary Op, class Z>
EP_DEVICE Z unary_complex(Z z) {
    using U = Unary;
    if constexpr (Op == U::conj) return {z.re, -z.im};
    else if constexpr (Op == U::negative) return {-z.re, -z.im};
    else if constexpr (Op == U::square) return complex<Z>(multiply(parts(z), parts(z)));
    else if constexpr (Op == U::reciprocal) return complex<Z>(divide({1, 0}, parts(z)));
    else if constexpr (Op == U::sqrt) return complex<Z>(root(parts(z)));
    else if constexpr (Op == U::exp) return complex<Z>(exponential(parts(z)));
    else static_assert(Op != Op, "no such function of a complex number");
}

template <class T>
EP_DEVICE bool any_part(T x, bool (*test)(f64)) {
    if constexpr (is_complex<T>) return test(x.re) || test(x.im);
    else if constexpr (is_float<T>) return test(f64(widen(x)));
    else return false;
}

// Of an element of any dtype. `a` and `b` are the attributes.
template <Unary Op, class Dst, class Src>
EP_DEVICE Dst unary(Src x, f64 a, f64 b) {
    using U = Unary;
    if constexpr (Op == U::cast || Op == U::identity) return convert<Dst>(x);
    else if constexpr (Op == U::logical_not) return convert<Dst>(u8(convert<b8>(x).byte == 0));
    else if constexpr (Op == U::is_inf) return convert<Dst>(u8(any_part(x, [](f64 p) { return bool(isinf(p)); })));
    else if constexpr (Op == U::is_nan) return convert<Dst>(u8(any_part(x, [](f64 p) { return p != p; })));
    else if constexpr (Op == U::is_finite)
        return convert<Dst>(u8(!any_part(x, [](f64 p) { return !isfinite(p); })));
    else if constexpr (Op == U::real) return convert<Dst>(x.re);
    else if constexpr (Op == U::imag) return convert<Dst>(x.im);
    else if constexpr (Op == U::real_grad) return convert<Dst>(x);
    else if constexpr (Op == U::imag_grad) {
        const Dst real = convert<Dst>(x);
        return {real.im, real.re};
    } else if constexpr (is_bool<Src>) {
        if constexpr (Op == U::bitwise_not) return Dst{u8(x.byte == 0)};
        else return convert<Dst>(unary_int<Op>(u8(x.byte != 0)));
    } else if constexpr (is_int<Src>) return convert<Dst>(unary_int<Op>(x));
    else if constexpr (is_complex<Src>) return convert<Dst>(unary_complex<Op>(x));
    else if constexpr (is_half<Src>) return convert<Dst>(unary_for_half<Op, same<Src, bf16>>(to_f32(x), a, b));
    else {
        using A = Compute<Src>;
        return convert<Dst>(unary_real<Op, A>(widen(x), a, b));
    }
}
