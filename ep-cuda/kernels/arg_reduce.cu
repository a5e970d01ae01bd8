// The position of the greatest or smallest element along the middle dimension of [outer, reduced, inner]: the first of
// equals, and the first NaN before all.
//
// EP_SRC  dtype     EP_OP  argmax or argmin     EP_INNER  0: inner is 1, a block for each row; 1: 32
// neighbours of inner share a block, and its warps share the elements     EP_THREADS
// EP_STAGE  0: whole rows; 1: a part of each row to a partial result (16 bytes); 2: partial results, [outer, parts,
// inner], to dst
#include "common.cuh"

enum class ArgReduce { argmax, argmin };

using Src = EP_SRC;
using A = Select<is_half<Src>, f32, Select<is_bool<Src>, u8, Src>>;

struct Args {
    u64 outer, reduced, inner;
    u64 parts, per_part;   // as in reduce.cu
    u64 src, dst;
    u64 narrow;            // 1: dst is of i32, else of i64
};

struct alignas(16) Best {
    A value;
    u64 position;
};
constexpr u64 nowhere = ~u64(0);

EP_DEVICE bool beats(A a, A b) {
    return ArgReduce::EP_OP == ArgReduce::argmax ? a > b : a < b;
}
EP_DEVICE Best better(Best a, Best b) {
    if (a.position == nowhere || b.position == nowhere) return a.position == nowhere ? b : a;
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    if (a_is_nan != b_is_nan) return a_is_nan ? a : b;
    if (beats(a.value, b.value)) return a;
    if (beats(b.value, a.value)) return b;
    return a.position < b.position ? a : b;
}

template <class T>
EP_DEVICE A enter(T x) {
    if constexpr (is_bool<T>) return u8(x.byte != 0);
    else return convert<A>(x);
}

EP_DEVICE Best read(const Args& args, u64 at, u64 position) {
    if constexpr (EP_STAGE == 2) return pointer<const Best>(args.src)[at];
    else return {enter(pointer<const Src>(args.src)[at]), position};
}

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_arg_reduce(const __grid_constant__ Args args) {
    constexpr u32 warps = EP_THREADS / warp_size;
    __shared__ Best found[EP_THREADS];
    const u32 lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    // Threads that share an output: all of the block, or one of each warp.
    const u32 rank = EP_INNER ? warp : threadIdx.x, sharers = EP_INNER ? warps : EP_THREADS;
    const u64 columns = EP_INNER ? (args.inner + warp_size - 1) / warp_size : 1;

    for (u64 unit = blockIdx.x; unit < args.outer * args.parts * columns; unit += gridDim.x) {
        const u64 line = unit / columns, i = EP_INNER ? unit % columns * warp_size + lane : 0;
        const u64 row = line / args.parts, part = line % args.parts;
        const u64 begin = part * args.per_part, end = least(begin + args.per_part, args.reduced);
        Best best{A(), nowhere};
        if (i < args.inner) {
#pragma unroll 4
            for (u64 r = begin + rank; r < end; r += sharers)
                best = better(best, read(args, (row * args.reduced + r) * args.inner + i, r));
        }
        found[threadIdx.x] = best;
        __syncthreads();
        for (u32 half = sharers / 2; half > 0; half /= 2) {
            const u32 distance = half * (EP_INNER ? warp_size : 1);
            if (rank < half) found[threadIdx.x] = better(found[threadIdx.x], found[threadIdx.x + distance]);
            __syncthreads();
        }
        if (rank == 0 && i < args.inner) {
            const u64 at = line * args.inner + i;
            if constexpr (EP_STAGE == 1) pointer<Best>(args.dst)[at] = found[threadIdx.x];
            else if (args.narrow) pointer<i32>(args.dst)[at] = i32(found[threadIdx.x].position);
            else pointer<i64>(args.dst)[at] = i64(found[threadIdx.x].position);
        }
        __syncthreads();
    }
}
