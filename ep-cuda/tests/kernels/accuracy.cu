// How far the functions of an element are from the same functions in f64: of all bits of one element, or of random pairs.
//
// EP_BINARY  0 or 1     EP_OP  a name of `Unary` or `Binary`     EP_DATA  f16, bf16 or f32
#if EP_BINARY
#include "binary_ops.cuh"
#else
#include "unary_ops.cuh"
#endif

struct Args {
    // Elements, the worst error (an f32) with the number of its element below, and how pairs are drawn.
    u64 count, worst;
    f64 attr0, attr1;
    // 0: any bits. 1 to 3: the second within 1.2, 8 or 100, and a first that is near 1 in size.
    u64 way;
};

using T = EP_DATA;
constexpr int bits = same<T, f16> ? 10 : same<T, bf16> ? 7 : 23, least_exponent = same<T, f16> ? -14 : -126;
constexpr f64 beyond = same<T, f16> ? 65536.0 : 3.4028236692093846e38;

EP_DEVICE f64 ulps(f64 found, f64 truth) {
    if (truth != truth || found != found) return truth != truth && found != found ? 0 : 1e9;
    if (truth == 0 && found == 0) return signbit(truth) == signbit(found) ? 0 : 1e8;
    found = fmin(fmax(found, -beyond), beyond);
    truth = fmin(fmax(truth, -beyond), beyond);
    const int exponent = truth == 0 ? least_exponent : max(ilogb(truth), least_exponent);
    return fabs(found - truth) / scalbn(1.0, exponent - bits);
}

// Near a root of these, where values are below 2, an absolute error is allowed in f32.
[[maybe_unused]] EP_DEVICE bool near_a_root(f64 found, f64 truth) {
    return same<T, f32> && fabs(truth) < 2 && fabs(found - truth) <= 1e-6;
}

EP_DEVICE T element(u64 random) { return from_bits<T>(random, 0); }

[[maybe_unused]] EP_DEVICE u64 mixed(u64 x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

EP_DEVICE f64 error_at(const Args& args, u64 i) {
    f64 found, truth;
#if EP_BINARY
    constexpr Binary op = Binary::EP_OP;
    const u64 random = mixed(i), more = mixed(~i);
    T a = element(random), b = element(random >> 32);
    if (args.way) {
        const f64 reach = args.way == 1 ? 1.2 : args.way == 2 ? 8 : 100;
        b = convert<T>((f64(more >> 11) * 0x1p-52 - 1) * reach);
        a = convert<T>((1 + f64(random >> 12 & 0xffffff) * 0x1p-24) * scalbn(random & 1 ? 1.0 : -1.0, int(random >> 1 & 7) - 4));
    }
    const f64 x = f64(widen(a)), y = f64(widen(b));
    found = f64(widen(binary<op, T, T>(a, b, args.attr0, args.attr1)));
    truth = binary_real<op, f64>(x, y, args.attr0, args.attr1);
    if constexpr (op >= Binary::identity_backward_with_dy_x) {
        // What is below 1024 times the least normal number of f32, or above the largest, is lost; and where terms cancel, three
        // epsilons of their sizes are allowed.
        const f64 slope = fabs(binary_real<op, f64>(1, y, args.attr0, args.attr1));
        if (slope < 1.2e-35 || slope > 3.4e38) return 0;
        const f64 s = sigmoid(y), density = 0.3989422804014327 * exp(-y * y / 2);
        f64 sizes = 0;
        if (op == Binary::silu_backward_with_dy_x) sizes = s + fabs(y) * s * sigmoid(-y);
        if (op == Binary::gelu_backward_with_dy_x) sizes = normcdf(y) + fabs(y) * density;
        if (op == Binary::fast_gelu_backward_with_dy_x || op == Binary::quick_gelu_backward_with_dy_x) {
            const bool fast = op == Binary::fast_gelu_backward_with_dy_x;
            const f64 u = fast ? fast_gelu_argument(y).value : quick_gelu_argument(y).value;
            const f64 slope_of_u = fast ? 1.5957691216057308 * (1 + 3 * 0.044714998453855515 * y * y) : 1.702;
            sizes = sigmoid(u) * (1 + fabs(y * slope_of_u) * sigmoid(-u));
        }
        if (op == Binary::hard_swish_backward_with_dy_x) sizes = 0.5 + fabs(y) / 3;
        if (op == Binary::mish_backward_with_dy_x) sizes = fmin(1.0, exp(y)) * (1 + fabs(y));
        if (op == Binary::celu_backward_with_dy_y) sizes = 1 + fabs(y / args.attr0);
        if (fabs(found - truth) <= 3 * 0x1p-23 * sizes * fabs(x) + 0x1p-149 * fabs(x)) return 0;
    }
#else
    const T a = element(i);
    found = f64(widen(unary<Unary::EP_OP, T, T>(a, args.attr0, args.attr1)));
    truth = unary_real<Unary::EP_OP, f64>(f64(widen(a)), args.attr0, args.attr1);
    constexpr bool has_roots = Unary::EP_OP == Unary::lgamma || Unary::EP_OP == Unary::digamma;
    if (has_roots && near_a_root(found, truth)) return 0;
#endif
    return ulps(found, truth);
}

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_accuracy(const Args args) {
    u64 worst = 0;
    for (u64 i = u64(blockIdx.x) * EP_THREADS + threadIdx.x; i < args.count; i += u64(gridDim.x) * EP_THREADS) {
        const u64 here = u64(__float_as_uint(f32(error_at(args, i)))) << 32 | u32(i);
        worst = here > worst ? here : worst;
    }
    atomicMax(pointer<u64>(args.worst), worst);
}
