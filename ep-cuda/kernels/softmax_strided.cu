// Softmax, log-softmax and their gradients along the middle dimension of [rows, cols, inner]. 32 neighbours in the
// last dimension share a block; its warps share their columns.
//
// EP_SRC, EP_DST  dtypes     EP_LOG  none: as the launch says, or 1: log-softmax, 0: softmax     EP_BACKWARD  1: the gradient     EP_THREADS  of a block
#include "common.cuh"
#include "normalizer.cuh"

using Src = EP_SRC;
using Dst = EP_DST;
using A = Between<Src, Dst>;

struct Args {
    u64 rows, cols, inner, src, dst;   // forward
    u64 dy;                            // backward: src is y, dst is dx
    u64 log;                           // 1: log-softmax; not read where EP_LOG is given
};

constexpr u32 warps = EP_THREADS / warp_size;

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_softmax_strided(const __grid_constant__ Args args) {
    await_stream();
#ifdef EP_LOG
    constexpr bool log = EP_LOG;
#else
    const bool log = args.log;
#endif
    const u32 lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const u64 per_row = (args.inner + warp_size - 1) / warp_size;
    __shared__ Normalizer<A> found[warps][warp_size];

    for (u64 tile = blockIdx.x; tile < args.rows * per_row; tile += gridDim.x) {
        const u64 row = tile / per_row, i = tile % per_row * warp_size + lane;
        const bool inside = i < args.inner;
        const u64 start = row * args.cols * args.inner + i;
        const Src* const src = pointer<const Src>(args.src) + start;
        const Src* const gradient = pointer<const Src>(args.dy) + start;
        Dst* const dst = pointer<Dst>(args.dst) + start;
        Normalizer<A> own{EP_BACKWARD ? A(0) : -infinity(A(0)), 0};
        if (inside) {
#pragma unroll 4
            for (u64 c = warp; c < args.cols; c += warps) {
                const u64 at = c * args.inner;
                if constexpr (EP_BACKWARD) {
                    const A dy = convert<A>(gradient[at]);
                    own.sum += log ? dy : convert<A>(src[at]) * dy;
                } else {
                    const A x = convert<A>(src[at]), max = greatest(own.max, x), base = base_of(max);
                    own.sum = own.sum * exp_close(own.max - base) + exp_close(x - base);
                    own.max = max;
                }
            }
        }
        found[warp][lane] = own;
        __syncthreads();
        Normalizer<A> all = found[0][lane];
        for (u32 w = 1; w < warps; ++w) {
            if constexpr (EP_BACKWARD) all.sum += found[w][lane].sum;
            else all = merge(all, found[w][lane]);
        }
        const A factor = log ? logarithm(all.sum) : A(1) / all.sum;
        if (inside) {
#pragma unroll 4
            for (u64 c = warp; c < args.cols; c += warps) {
                const u64 at = c * args.inner;
                const A x = convert<A>(src[at]);
                if constexpr (EP_BACKWARD) {
                    const A dy = convert<A>(gradient[at]);
                    dst[at] = convert<Dst>(log ? dy - exp_fast(x) * all.sum : (dy - all.sum) * x);
                } else {
                    const A d = x - all.max;
                    dst[at] = convert<Dst>(log ? d - factor : exp_close(d) * factor);
                }
            }
        }
        __syncthreads();
    }
}
