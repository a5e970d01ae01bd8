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

// Whether it would replace another that comes before it.
EP_DEVICE bool surpasses(A a, A b) { return beats(a, b) || (a != a && b == b); }

// The greatest or smallest, or NaN if there is one.
template <class T>
EP_DEVICE T extreme(T a, T b) {
    return surpasses(a, b) ? a : b;
}
#if __CUDA_ARCH__ >= 800
template <class T = f32>
EP_DEVICE f32 extreme(f32 a, f32 b) {
    f32 y;
    if constexpr (ArgReduce::EP_OP == ArgReduce::argmax) asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    else asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#endif

using In = Select<EP_STAGE == 2, Best, Src>;
template <class T>
EP_DEVICE Best entry(T x, u64 position) {
    if constexpr (same<T, Best>) return x;
    else return {enter(x), position};
}

// Neighbouring elements that one thread compares by their values alone: where the best of a row is among them is found
// out at the end, and once.
struct Part {
    static constexpr int pack = 16 / sizeof(Src), together = 4;
    const Src* from;
    i64 before, length;

    __device__ __forceinline__ Part(const Src* begin, i64 length)
        : from(begin), before(i64(reinterpret_cast<u64>(begin) / sizeof(Src) % pack)), length(length) {}
    __device__ __forceinline__ i64 start(i64 number) const { return number * pack - before; }

    // The best of a pack by its elements, at positions from the part's begin.
    __device__ __forceinline__ Best best_of(i64 number) const {
        Best best{A(), nowhere};
        const i64 at = start(number), end = least(at + pack, length);
#pragma unroll 1
        for (i64 i = at < 0 ? 0 : at; i < end; ++i) best = better(best, entry(from[i], u64(i)));
        return best;
    }

    // The best value of this thread's packs, and which pack has it first.
    __device__ __forceinline__ Best search() const {
        Best best{A(), nowhere};
        for (i64 first = threadIdx.x; start(first) < length; first += EP_THREADS * together) {
            Pack<Src, pack> x[together];
#pragma unroll
            for (int j = 0; j < together; ++j) {
                const i64 at = start(first + j * EP_THREADS);
                if (at >= 0 && at + pack <= length) load(x[j], from + at);
            }
#pragma unroll
            for (int j = 0; j < together; ++j) {
                const i64 number = first + j * EP_THREADS, at = start(number);
                if (at >= length) break;
                A top;
                if (at >= 0 && at + pack <= length) {
                    top = enter(x[j].at[0]);
#pragma unroll
                    for (int i = 1; i < pack; ++i) top = extreme(top, enter(x[j].at[i]));
                } else top = best_of(number).value;
                if (best.position == nowhere || surpasses(top, best.value)) best = {top, u64(number)};
            }
        }
        return best;
    }
};

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_arg_reduce(const __grid_constant__ Args args) {
    await_stream();
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
        const In* const src = pointer<const In>(args.src) + row * args.reduced * args.inner;
        constexpr bool by_packs = EP_INNER == 0 && EP_STAGE != 2;
        const Part part_of_row(pointer<const Src>(args.src) + row * args.reduced + begin, i64(end) - i64(begin));
        if constexpr (by_packs) {
            if (begin < end) best = part_of_row.search();
        } else if (i < args.inner) {
#pragma unroll 4
            for (u64 r = begin + rank; r < end; r += sharers)
                best = better(best, entry(src[r * args.inner + i], r));
        }
        found[threadIdx.x] = best;
        __syncthreads();
        for (u32 half = sharers / 2; half > 0; half /= 2) {
            const u32 distance = half * (EP_INNER ? warp_size : 1);
            if (rank < half) found[threadIdx.x] = better(found[threadIdx.x], found[threadIdx.x + distance]);
            __syncthreads();
        }
        if (rank == 0 && i < args.inner) {
            if constexpr (by_packs) {
                Best& whole = found[threadIdx.x];
                if (whole.position != nowhere) {
                    whole = part_of_row.best_of(i64(whole.position));
                    whole.position += begin;
                }
            }
            const u64 at = line * args.inner + i;
            if constexpr (EP_STAGE == 1) pointer<Best>(args.dst)[at] = found[threadIdx.x];
            else if (args.narrow) pointer<i32>(args.dst)[at] = i32(found[threadIdx.x].position);
            else pointer<i64>(args.dst)[at] = i64(found[threadIdx.x].position);
        }
        __syncthreads();
    }
}
