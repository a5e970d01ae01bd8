// The functions of two elements.
#pragma once
#include "math.cuh"

enum class Binary {
    add, sub, mul, div, max, min, pow, fmod, floor_div, trunc_div, floor_mod, scalar_base_power_grad,
    scalar_exp_power_grad, zeta, equal, not_equal, less_than, less_equal, greater_than, greater_equal, is_close,
    is_close_equal_nan, logical_and, logical_or, logical_xor, bitwise_and, bitwise_or, bitwise_xor,
    identity_backward_with_dy_x, elu_backward_with_dy_x, celu_backward_with_dy_y, gelu_backward_with_dy_x,
    hard_swish_backward_with_dy_x, hard_sigmoid_backward_with_dy_x, hard_shrink_backward_with_dy_y,
    hard_tanh_backward_with_dy_y, leaky_relu_backward_with_dy_x, mish_backward_with_dy_x, relu_backward_with_dy_y,
    relu_backward_with_dy_x, selu_backward_with_dy_x, silu_backward_with_dy_x, soft_sign_backward_with_dy_x,
    soft_plus_backward_with_dy_x, soft_shrink_backward_with_dy_y, tanh_backward_with_dy_y,
    threshold_backward_with_dy_x, sigmoid_backward_with_dy_y, sigmoid_backward_with_dy_x, abs_backward_with_dy_x,
    acos_backward_with_dy_x, acosh_backward_with_dy_x, asin_backward_with_dy_x, asinh_backward_with_dy_x,
    atan_backward_with_dy_x, atanh_backward_with_dy_x, cos_backward_with_dy_x, cosh_backward_with_dy_x,
    erf_backward_with_dy_x, erfc_backward_with_dy_x, exp_backward_with_dy_x, exp2_backward_with_dy_x,
    expm1_backward_with_dy_x, lgamma_backward_with_dy_x, digamma_backward_with_dy_x, log_backward_with_dy_x,
    log2_backward_with_dy_x, log10_backward_with_dy_x, log1p_backward_with_dy_x, log_sigmoid_backward_with_dy_x,
    reciprocal_backward_with_dy_x, reciprocal_no_nan_backward_with_dy_x, rsqrt_backward_with_dy_x,
    sin_backward_with_dy_x, sinh_backward_with_dy_x, sqrt_backward_with_dy_x, square_backward_with_dy_x,
    tan_backward_with_dy_x, fast_gelu_backward_with_dy_x, quick_gelu_backward_with_dy_x,
    square_relu_backward_with_dy_x,
};

// Of floats: what loops.
template <Binary Op>
constexpr bool is_long = Op == Binary::zeta || Op == Binary::lgamma_backward_with_dy_x ||
    Op == Binary::digamma_backward_with_dy_x;

constexpr f64 ln_2 = 0.69314718055994530942;
constexpr f64 ln_10 = 2.30258509299404568402;

// 2 / sqrt(pi) e^(-x^2), with the rounding of the square made good.
template <class T>
EP_DEVICE T erf_slope(T x) {
    const T square = x * x, rest = fma(x, x, -square), factor = T(1.12837916709551257390);
    return square > T(1e4) ? T(0) : times_exp(factor, -square, -rest);
}

// dy / x^2. Neither a square nor a first quotient that is below the normal range is divided by where the result is above it.
template <class T>
EP_DEVICE T over_square(T dy, T x) {
    constexpr T low = T(sizeof(T) == 4 ? 1e-18 : 1e-150), high = T(sizeof(T) == 4 ? 1e18 : 1e150);
    const bool near = fabs(x) > low && fabs(x) < high;
    return dy / (near ? x * x : x) / (near ? T(1) : x);
}

// From here up 1 is nothing beside a square, which may overflow.
template <class T>
constexpr T large = T(1e18);

// The quotient rounded down, as Python's `//`: of a divisor of 0 the quotient itself, a zero has the quotient's sign.
EP_DEVICE f64 floor_quotient(f64 a, f64 b) {
    if (b == 0) return a / b;
    const f64 r = fmod(a, b);
    const f64 truncated = rint((a - r) / b);
    const f64 quotient = r != 0 && (r < 0) != (b < 0) ? truncated - 1 : truncated;
    return quotient == 0 ? copysign(f64(0), a / b) : a - r != a - r ? a - r : quotient;
}

// The remainder with the divisor's sign, as Python's `%`.
template <class T>
EP_DEVICE T floor_remainder(T a, T b) {
    const T r = fmod(a, b);
    if (r == 0) return copysign(r, b);
    return (r < 0) != (b < 0) ? r + b : r;
}

// A gradient: dy times the derivative at x, or at the x that gave x as its result.
template <Binary Op, class T>
EP_DEVICE T gradient(T dy, T x, T a, T b) {
    using B = Binary;
    constexpr T selu_scale = T(1.0507009873554805);
    if constexpr (Op == B::identity_backward_with_dy_x) return dy;
    else if constexpr (Op == B::elu_backward_with_dy_x) return x > 0 ? dy : dy * (a * exp(x));
    else if constexpr (Op == B::celu_backward_with_dy_y) return x > 0 ? dy : dy * ((x + a) / a);
    else if constexpr (Op == B::gelu_backward_with_dy_x) {
        // Near 0 a complement of the error function would cancel.
        const T u = x * T(0.70710678118654752), tail = erfc(fabs(u)) / 2;
        const T cdf = fabs(x) < 1 ? fma(T(0.5), erf(u), T(0.5)) : x > 0 ? 1 - tail : tail;
        const T square = x * x, rest = fma(x, x, -square);
        // Further out the density is nothing.
        return dy * (cdf + (square > T(1e4) ? T(0) : times_exp(T(0.39894228040143268) * x, square / -2, rest / -2)));
    } else if constexpr (Op == B::hard_swish_backward_with_dy_x)
        return x >= 3 ? dy : x <= -3 ? T(0) : dy * ((2 * x + 3) / 6);
    else if constexpr (Op == B::hard_sigmoid_backward_with_dy_x) return x <= -3 || x >= 3 ? T(0) : dy / 6;
    else if constexpr (Op == B::hard_shrink_backward_with_dy_y || Op == B::soft_shrink_backward_with_dy_y)
        return x == 0 ? T(0) : dy;
    else if constexpr (Op == B::hard_tanh_backward_with_dy_y) return x == a || x == b ? T(0) : dy;
    else if constexpr (Op == B::leaky_relu_backward_with_dy_x) return x > 0 ? dy : dy * a;
    else if constexpr (Op == B::mish_backward_with_dy_x) {
        if (x > T(sizeof(T) == 4 ? 20 : 40)) return dy;
        // With p = e^x and d = p^2 + 2p + 2: p ((p + 2) d + 4x (p + 1)) / d^2. Minus infinity times 0 is to be 0.
        const T p = exp_near(x), d = fma(p, p + 2, T(2)), low = x < T(-1e3) ? T(-1e3) : x;
        return dy * (p * fma(4 * low, p + 1, (p + 2) * d) / (d * d));
    } else if constexpr (Op == B::relu_backward_with_dy_y || Op == B::relu_backward_with_dy_x)
        return x > 0 ? dy : T(0);
    else if constexpr (Op == B::selu_backward_with_dy_x)
        return dy * (x > 0 ? selu_scale : T(1.7580993408473766) * exp(x));
    else if constexpr (Op == B::silu_backward_with_dy_x) return dy * gated(x, Rounded<T>{x, T(0)}, T(1));
    else if constexpr (Op == B::soft_sign_backward_with_dy_x) {
        const T d = 1 + fabs(x);
        return dy / d / d;
    } else if constexpr (Op == B::soft_plus_backward_with_dy_x) {
        const T u = x * a, near = sigmoid(u), rest = fabs(u) < 1000 ? fma(x, a, -u) : T(0);
        return u > b ? dy : dy * fma(near, rest * (1 - near), near);
    } else if constexpr (Op == B::tanh_backward_with_dy_y) return dy * ((1 - x) * (1 + x));
    else if constexpr (Op == B::threshold_backward_with_dy_x) return x <= a ? T(0) : dy;
    else if constexpr (Op == B::sigmoid_backward_with_dy_y) return dy * (x * (1 - x));
    else if constexpr (Op == B::sigmoid_backward_with_dy_x) {
        const T s = sigmoid(-fabs(x));
        return dy * fma(-s, s, s);
    } else if constexpr (Op == B::abs_backward_with_dy_x) return x == 0 ? T(0) : x < 0 ? -dy : dy;
    else if constexpr (Op == B::acos_backward_with_dy_x) return -(dy / sqrt((1 - x) * (1 + x)));
    else if constexpr (Op == B::acosh_backward_with_dy_x) return dy / (fabs(x) < large<T> ? sqrt((x - 1) * (x + 1)) : fabs(x));
    else if constexpr (Op == B::asin_backward_with_dy_x) return dy / sqrt((1 - x) * (1 + x));
    else if constexpr (Op == B::asinh_backward_with_dy_x) return dy / (fabs(x) < large<T> ? sqrt(fma(x, x, T(1))) : fabs(x));
    else if constexpr (Op == B::atan_backward_with_dy_x) return dy / (1 + x * x);
    else if constexpr (Op == B::atanh_backward_with_dy_x) return dy / ((1 - x) * (1 + x));
    else if constexpr (Op == B::cos_backward_with_dy_x) return dy * -sin(x);
    else if constexpr (Op == B::cosh_backward_with_dy_x) return dy * sinh(x);
    else if constexpr (Op == B::erf_backward_with_dy_x) return dy * erf_slope(x);
    else if constexpr (Op == B::erfc_backward_with_dy_x) return dy * -erf_slope(x);
    else if constexpr (Op == B::exp_backward_with_dy_x || Op == B::expm1_backward_with_dy_x) return dy * exp(x);
    else if constexpr (Op == B::exp2_backward_with_dy_x) {
        // Half the power and twice the factor where only what is too large in the end is to overflow.
        const T shift = T(x > 64);
        return dy * (T(ln_2) * (1 + shift) * exp2(x - shift));
    } else if constexpr (Op == B::lgamma_backward_with_dy_x) return dy * T(digamma(f64(x)));
    else if constexpr (Op == B::digamma_backward_with_dy_x) return dy * T(trigamma(f64(x)));
    else if constexpr (Op == B::log_backward_with_dy_x) return dy / x;
    else if constexpr (Op == B::log2_backward_with_dy_x) return dy * (T(1 / ln_2) / x);
    else if constexpr (Op == B::log10_backward_with_dy_x) return dy * (T(1 / ln_10) / x);
    else if constexpr (Op == B::log1p_backward_with_dy_x) return dy / (x + 1);
    else if constexpr (Op == B::log_sigmoid_backward_with_dy_x) return dy * sigmoid(-x);
    else if constexpr (Op == B::reciprocal_backward_with_dy_x) return -over_square(dy, x);
    else if constexpr (Op == B::reciprocal_no_nan_backward_with_dy_x) return x == 0 ? T(0) : -over_square(dy, x);
    else if constexpr (Op == B::rsqrt_backward_with_dy_x)
        // The product may be below the normal range of f32 where the result is not above it.
        return T(-(f64(dy) / (2 * f64(x) * f64(sqrt(x)))));
    else if constexpr (Op == B::sin_backward_with_dy_x) return dy * cos(x);
    else if constexpr (Op == B::sinh_backward_with_dy_x) return dy * cosh(x);
    else if constexpr (Op == B::sqrt_backward_with_dy_x) return dy / (2 * sqrt(x));
    else if constexpr (Op == B::square_backward_with_dy_x) return dy * (2 * x);
    else if constexpr (Op == B::tan_backward_with_dy_x) {
        const T c = T(cos(f64(x)));
        return dy / (c * c);
    } else if constexpr (Op == B::fast_gelu_backward_with_dy_x) {
        const T slope = T(0.7978845608028654) * (1 + T(3 * 0.044714998453855515) * x * x);
        return dy * gated(x, fast_gelu_argument(x), 2 * slope);
    } else if constexpr (Op == B::quick_gelu_backward_with_dy_x) return dy * gated(x, quick_gelu_argument(x), T(1.702));
    else if constexpr (Op == B::square_relu_backward_with_dy_x) return x > 0 ? dy * (2 * x) : T(0);
    else static_assert(Op != Op, "no such function of floats");
}

// Of real numbers. T is f32 or f64; half types compute in f32.
template <Binary Op, class T>
EP_DEVICE T binary_real(T x, T y, f64 a, f64 b) {
    using B = Binary;
    if constexpr (Op == B::add) return x + y;
    else if constexpr (Op == B::sub) return x - y;
    else if constexpr (Op == B::mul) return x * y;
    else if constexpr (Op == B::div) return x / y;
    else if constexpr (Op == B::max) return x > y || x != x ? x : y;
    else if constexpr (Op == B::min) return x < y || x != x ? x : y;
    else if constexpr (Op == B::pow) return pow(x, y);
    else if constexpr (Op == B::fmod) return fmod(x, y);
    else if constexpr (Op == B::floor_div) return T(floor_quotient(f64(x), f64(y)));
    else if constexpr (Op == B::trunc_div) return trunc(x / y);
    else if constexpr (Op == B::floor_mod) return floor_remainder(x, y);
    else if constexpr (Op == B::scalar_base_power_grad) return T(pow(a, f64(x)) * log(a) * f64(y));
    else if constexpr (Op == B::scalar_exp_power_grad) return T(a * pow(f64(x), a - 1) * f64(y));
    else if constexpr (Op == B::zeta) return zeta(x, y);
    else return gradient<Op>(x, y, T(a), T(b));
}

template <class T>
EP_DEVICE T int_power(T base, T exponent) {
    if (negative(exponent)) {
        const bool is_odd = u64(exponent) & 1;
        return base == T(1) ? T(1) : base == T(-1) ? (is_odd ? T(-1) : T(1)) : T(0);
    }
    u64 power = 1, square = u64(base);
    for (u64 bits = u64(exponent); bits; bits >>= 1) {
        if (bits & 1) power *= square;
        square *= square;
    }
    return T(power);
}

// Of integers: arithmetic wraps, and dividing by zero gives 0.
template <Binary Op, class T>
EP_DEVICE T binary_int(T x, T y) {
    using B = Binary;
    constexpr bool is_signed = T(-1) < T(0);
    const u64 wide_x = u64(x), wide_y = u64(y);
    // The quotient of the least number and -1 wraps as its negative does.
    const bool by_minus_one = is_signed && y == T(-1);
    if constexpr (Op == B::add) return T(wide_x + wide_y);
    else if constexpr (Op == B::sub) return T(wide_x - wide_y);
    else if constexpr (Op == B::mul) return T(wide_x * wide_y);
    else if constexpr (Op == B::max) return x > y ? x : y;
    else if constexpr (Op == B::min) return x < y ? x : y;
    else if constexpr (Op == B::div || Op == B::trunc_div)
        return y == 0 ? T(0) : by_minus_one ? T(0 - wide_x) : T(x / y);
    else if constexpr (Op == B::fmod) return y == 0 || by_minus_one ? T(0) : T(x % y);
    else if constexpr (Op == B::floor_div) {
        if (y == 0) return T(0);
        if (by_minus_one) return T(0 - wide_x);
        const bool down = x % y != 0 && negative(x) != negative(y);
        return T(x / y - T(down));
    } else if constexpr (Op == B::floor_mod) {
        if (y == 0 || by_minus_one) return T(0);
        const T r = T(x % y);
        return r != 0 && negative(r) != negative(y) ? T(r + y) : r;
    } else if constexpr (Op == B::pow) return int_power(x, y);
    else if constexpr (Op == B::bitwise_and) return T(wide_x & wide_y);
    else if constexpr (Op == B::bitwise_or) return T(wide_x | wide_y);
    else if constexpr (Op == B::bitwise_xor) return T(wide_x ^ wide_y);
    else static_assert(Op != Op, "no such function of integers");
}

template <Binary Op, class Z>
EP_DEVICE Z binary_complex(Z x, Z y) {
    using B = Binary;
    if constexpr (Op == B::add) return {x.re + y.re, x.im + y.im};
    else if constexpr (Op == B::sub) return {x.re - y.re, x.im - y.im};
    else if constexpr (Op == B::mul) return complex<Z>(multiply(parts(x), parts(y)));
    else if constexpr (Op == B::div) return complex<Z>(divide(parts(x), parts(y)));
    else if constexpr (Op == B::sqrt_backward_with_dy_x) {
        const Parts r = root(parts(y));
        return complex<Z>(divide(parts(x), {2 * r.re, -2 * r.im}));
    } else static_assert(Op != Op, "no such function of complex numbers");
}

// |x - y| <= atol + |rtol y|, each step in f64, or equal. Infinities are close to themselves alone.
template <class T>
EP_DEVICE bool is_close(T x, T y, f64 atol, f64 rtol) {
    f64 distance;
    if constexpr (is_int<T>) distance = f64(x > y ? u64(x) - u64(y) : u64(y) - u64(x));
    else distance = fabs(f64(x) - f64(y));
    return x == y || (distance <= atol + fabs(rtol * f64(y)) && distance < inf_of(distance));
}

template <Binary Op>
constexpr bool is_logical = Op == Binary::logical_and || Op == Binary::logical_or || Op == Binary::logical_xor;
template <Binary Op>
constexpr bool is_test = Op >= Binary::equal && Op <= Binary::logical_xor;

// A test of two real numbers, truth values or integers. T compares as numbers do.
template <Binary Op, class T>
EP_DEVICE bool test(T x, T y, f64 a, f64 b) {
    using B = Binary;
    if constexpr (Op == B::equal) return x == y;
    else if constexpr (Op == B::not_equal) return x != y;
    else if constexpr (Op == B::less_than) return x < y;
    else if constexpr (Op == B::less_equal) return x <= y;
    else if constexpr (Op == B::greater_than) return x > y;
    else if constexpr (Op == B::greater_equal) return x >= y;
    else if constexpr (Op == B::is_close) return is_close(x, y, a, b);
    else if constexpr (Op == B::is_close_equal_nan) return is_close(x, y, a, b) || (x != x && y != y);
    else if constexpr (Op == B::logical_and) return x != 0 && y != 0;
    else if constexpr (Op == B::logical_or) return x != 0 || y != 0;
    else return (x != 0) != (y != 0);
}

// Sums or differences of the small integers in words: by their highest bits apart, so that nothing is carried into the next.
template <int Size, bool Sub>
EP_DEVICE u32 add_or_sub(u32 x, u32 y) {
    constexpr u32 high = Size == 1 ? 0x80808080u : 0x80008000u;
    if constexpr (Sub) return ((x | high) - (y & ~high)) ^ ((x ^ ~y) & high);
    else return ((x & ~high) + (y & ~high)) ^ ((x ^ y) & high);
}

// Of elements of any dtype. `a` and `b` are the attributes.
template <Binary Op, class Dst, class Src>
EP_DEVICE Dst binary(Src x, Src y, f64 a, f64 b) {
    if constexpr (is_complex<Src>) {
        if constexpr (is_test<Op>) {
            const bool equal = x.re == y.re && x.im == y.im;
            return convert<Dst>(u8(equal == (Op == Binary::equal)));
        } else return convert<Dst>(binary_complex<Op>(x, y));
    } else if constexpr (is_bool<Src>) {
        const u8 p = x.byte != 0, q = y.byte != 0;
        if constexpr (is_test<Op>) return convert<Dst>(u8(test<Op>(p, q, a, b)));
        // As an integer that is stored as "not zero": 1 + 1 is true, 0 - 1 too.
        else return convert<Dst>(binary_int<Op>(i32(p), i32(q)));
    } else if constexpr (is_test<Op>) {
        return convert<Dst>(u8(test<Op>(widen(x), widen(y), a, b)));
    } else if constexpr (is_int<Src>) return convert<Dst>(binary_int<Op>(x, y));
    else return convert<Dst>(binary_real<Op>(widen(x), widen(y), a, b));
}
