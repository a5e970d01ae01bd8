// layer_norm and rms_norm of rows of any width: a block reads its row again for each thing it needs.
//
// EP_DATA  dtype     EP_RMS  1: rms_norm, which uses gamma as its weight, and rstd as its inv_rms     EP_THREADS,
// EP_PACK
#define EP_LANES 32
#define EP_BLOCKS 1
#define EP_ROWS 1
#define EP_PACKS 1
#define EP_ALIGNED 0
#include "rows.cuh"

using Data = EP_DATA;
using A = Compute<Data>;

struct Args {
    u64 rows, cols;
    f64 epsilon;
    u64 src, dst;
    u64 gamma, beta;   // 0 where there is none
    u64 mean, rstd;    // 0 where they are not wanted
};

EP_DEVICE A sum_of(A a, A b) { return a + b; }

// Calls `f(first, pack, whole)` for this thread's packs of a row; of a pack that is not whole only elements within the
// row are valid.
template <class F>
EP_DEVICE void for_each_pack(const Data* row, i64 cols, F f) {
    const i64 before = elements_past_pack(row), packs = (cols + before + Rows::pack - 1) / Rows::pack;
#pragma unroll 4
    for (i64 k = threadIdx.x; k < packs; k += Rows::threads) {
        const i64 at = k * Rows::pack - before;
        const bool whole = at >= 0 && at + Rows::pack <= cols;
        Pack<Data, Rows::pack> pack;
        if (whole) {
            load(pack, row + at);
        } else {
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i)
                if (at + i >= 0 && at + i < cols) pack.at[i] = row[at + i];
        }
        f(at, pack, whole);
    }
}

// The sum of `term` of each element of a row.
template <class F>
EP_DEVICE A total(Exchange<A>& exchange, const Data* row, i64 cols, F term) {
    A sums[Rows::pack] = {};
    for_each_pack(row, cols, [&](i64 at, const Pack<Data, Rows::pack>& pack, bool whole) {
#pragma unroll
        for (int i = 0; i < Rows::pack; ++i)
            if (whole || (at + i >= 0 && at + i < cols)) sums[i] += term(widen(pack.at[i]));
    });
    A sum = 0;
#pragma unroll
    for (int i = 0; i < Rows::pack; ++i) sum += sums[i];
    return exchange.all(over_lanes<warp_size>(sum, sum_of), sum_of);
}

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_norm_wide(const __grid_constant__ Args args) {
    await_stream();
    const i64 cols = i64(args.cols);
    __shared__ typename Exchange<A>::Shared shared;
    Exchange<A> exchange(shared, 0);
    for (u64 row = blockIdx.x; row < args.rows; row += gridDim.x) {
        const Data* const src = pointer<const Data>(args.src) + row * args.cols;
        Data* const dst = pointer<Data>(args.dst) + row * args.cols;
        const bool alike = elements_past_pack(src) == elements_past_pack(dst);
        A mean = 0;
        if constexpr (!EP_RMS) mean = total(exchange, src, cols, [](A x) { return x; }) / A(args.cols);
        const A squares = total(exchange, src, cols, [&](A x) { return (x - mean) * (x - mean); });
        const A rstd = 1 / sqrt(squares / A(args.cols) + A(args.epsilon));
        if (threadIdx.x == 0) {
            if (args.mean) pointer<A>(args.mean)[row] = mean;
            if (args.rstd) pointer<A>(args.rstd)[row] = rstd;
        }
        const Data* const gamma = pointer<const Data>(args.gamma);
        const Data* const beta = pointer<const Data>(args.beta);
        for_each_pack(src, cols, [&](i64 at, Pack<Data, Rows::pack>& pack, bool whole) {
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i) {
                if (!whole && (at + i < 0 || at + i >= cols)) continue;
                A y = (widen(pack.at[i]) - mean) * rstd;
                if (gamma) y *= widen(gamma[at + i]);
                if (beta) y += widen(beta[at + i]);
                pack.at[i] = convert<Data>(y);
                if (!whole || !alike) dst[at + i] = pack.at[i];
            }
            if (whole && alike) store(dst + at, pack);
        });
    }
}
