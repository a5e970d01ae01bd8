// The sum of up to EP_ARITY sources, from left to right; the memory is contiguous.
//
// EP_DATA  dtype     EP_ARITY  places for sources     EP_THREADS, EP_PACK
#include "common.cuh"

using Data = EP_DATA;
using A = Compute<Data>;

struct Args {
    u64 count, arity, dst;
    // Elements before dst's first multiple of a pack.
    u64 head;
    u64 srcs[EP_ARITY];
};

constexpr int pack_size = EP_PACK;
constexpr u32 together = EP_ARITY < 4 ? EP_ARITY : 4;
using DataPack = Pack<Data, pack_size>;

template <class T>
EP_DEVICE T plus(T a, T b) {
    if constexpr (is_bool<T>) return b8{u8((a.byte | b.byte) != 0)};
    else if constexpr (is_complex<T>) return {a.re + b.re, a.im + b.im};
    else if constexpr (is_int<T>) return T(u64(a) + u64(b));
    else return a + b;
}

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_add(const __grid_constant__ Args args) {
    await_stream();
    const u64 pack = u64(blockIdx.x) * EP_THREADS + threadIdx.x;
    const i64 before = args.head ? pack_size - i64(args.head) : 0;
    const i64 at = i64(pack) * pack_size - before, count = i64(args.count);
    if (at >= count) return;
    const bool whole = at >= 0 && at + pack_size <= count;
    A sum[pack_size];
    for (u64 first = 0; first < args.arity; first += together) {
        DataPack src[together];
#pragma unroll
        for (u32 k = 0; k < together; ++k) {
            if (first + k >= args.arity) break;
            const Data* from = pointer<const Data>(args.srcs[first + k]) + at;
            if (whole && aligned(reinterpret_cast<u64>(from), DataPack::chunk)) {
                load(src[k], from);
            } else {
#pragma unroll
                for (int i = 0; i < pack_size; ++i)
                    if (at + i >= 0 && at + i < count) src[k].at[i] = from[i];
            }
        }
#pragma unroll
        for (u32 k = 0; k < together; ++k) {
            if (first + k >= args.arity) break;
#pragma unroll
            for (int i = 0; i < pack_size; ++i) {
                const A x = widen(src[k].at[i]);
                sum[i] = first + k == 0 ? x : plus(sum[i], x);
            }
        }
    }
    DataPack out;
#pragma unroll
    for (int i = 0; i < pack_size; ++i) out.at[i] = args.arity == 0 ? convert<Data>(u8(0)) : convert<Data>(sum[i]);
    Data* to = pointer<Data>(args.dst) + at;
    if (whole && aligned(reinterpret_cast<u64>(to), DataPack::chunk)) return store(to, out);
#pragma unroll
    for (int i = 0; i < pack_size; ++i)
        if (at + i >= 0 && at + i < count) to[i] = out.at[i];
}
