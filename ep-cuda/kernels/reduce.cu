// Combines the elements along the middle dimension of [outer, reduced, inner].
//
// EP_SRC, EP_DST  dtypes     EP_OP  a name of `Reduce`     EP_INNER  0: inner is 1, a block or a
// warp for each row or part of one; 1: 32 neighbours of inner share a block, and its warps share the reduced elements     EP_THREADS
// EP_PACK  elements that are loaded together where EP_INNER is 0     EP_SHARERS  threads that share a row there: those
// of a block or of a warp
// EP_STAGE  0: whole rows, src to dst; 1: a part of each row to a partial result; 2: partial results, which then are
// the elements [outer, reduced = parts, inner] of src, to dst. Partial results have the type that is computed in.
// EP_LONG  1: for sums of floats with many terms for each thread, which are added up in blocks
#include "common.cuh"

enum class Reduce { sum, mean, max, min, prod, any, all };

using Src = EP_SRC;
using Dst = EP_DST;
constexpr Reduce op = Reduce::EP_OP;
constexpr bool adds = op == Reduce::sum || op == Reduce::mean;
constexpr bool tests = op == Reduce::any || op == Reduce::all;
// Integers wrap, so that sums and products of any width are right in 64 bits.
using A = Select<tests, u32,
    Select<is_half<Src>, f32,
        Select<(adds || op == Reduce::prod) && (is_int<Src> || is_bool<Src>), u64, Select<is_bool<Src>, u8, Src>>>>;

struct Args {
    u64 outer, reduced, inner;
    u64 parts;          // of each row: 1 unless EP_STAGE is 1
    u64 per_part;       // elements of a part along the middle dimension
    f64 divisor;        // of a mean: all reduced elements
    u64 src, dst;
};

template <class T>
EP_DEVICE T lowest_of(T) {
    if constexpr (same<T, f32>) return __uint_as_float(0xff800000u);
    else if constexpr (same<T, f64>) return __longlong_as_double(i64(0xfff0000000000000ull));
    else if constexpr (is_complex<T>) return T{};
    else return T(-1) < T(0) ? T(T(1) << (8 * sizeof(T) - 1)) : T(0);
}
template <class T>
EP_DEVICE T highest_of(T low) {
    if constexpr (is_float<T>) return -low;
    else if constexpr (is_complex<T>) return low;
    else return T(~u64(low));
}

EP_DEVICE A neutral() {
    if constexpr (op == Reduce::max) return lowest_of(A());
    else if constexpr (op == Reduce::min) return is_bool<Src> ? convert<A>(u8(1)) : highest_of(lowest_of(A()));
    else return convert<A>(u8(op == Reduce::prod || op == Reduce::all));
}

template <class T>
EP_DEVICE T combine(T a, T b) {
    if constexpr (op == Reduce::any) return a | b;
    else if constexpr (op == Reduce::all) return a & b;
    else if constexpr (is_complex<T>) {
        if constexpr (adds) return {a.re + b.re, a.im + b.im};
        else return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    } else if constexpr (adds) return a + b;
    else if constexpr (op == Reduce::prod) return a * b;
    else if constexpr (op == Reduce::max) return a > b || a != a ? a : b;
    else return a < b || a != a ? a : b;
}

template <class T>
EP_DEVICE A enter(T x) {
    if constexpr (EP_STAGE == 2) return x;
    else if constexpr (tests) return convert<b8>(x).byte;
    else return convert<A>(x);
}

template <class T>
EP_DEVICE auto leave(T x, f64 divisor) {
    if constexpr (EP_STAGE == 1) return x;
    else if constexpr (op == Reduce::mean) {
        if constexpr (is_complex<T>) {
            using Part = Select<same<T, c64>, f32, f64>;
            return convert<Dst>(T{Part(x.re / divisor), Part(x.im / divisor)});
        } else return convert<Dst>(T(x / T(divisor)));
    } else if constexpr (is_bool<Dst>) return Dst{u8(x != 0)};
    else return convert<Dst>(x);
}

// Where partial results are read from or written to, they are of the type that is computed in.
using In = Select<EP_STAGE == 2, A, Src>;
using Out = Select<EP_STAGE == 1, A, Dst>;

template <class T>
EP_DEVICE T shuffle_down(T x, u32 distance) {
    constexpr u32 words = (sizeof(T) + 3) / 4;
    union {
        T value;
        u32 words[words];
    } from{x}, to{x};
#pragma unroll
    for (u32 i = 0; i < words; ++i) to.words[i] = __shfl_down_sync(full_mask, from.words[i], distance);
    return to.value;
}

constexpr u32 warps = EP_THREADS / warp_size;

// Of long rows the running sums of so many terms each are added up before the next: errors of longer ones would grow with the
// length of rows.
constexpr u64 block_terms = 256;
constexpr bool in_blocks = EP_LONG;

#if EP_INNER
// A block takes columns that follow each other, `Wide` for each lane; its warps share the rows.
template <int Wide>
EP_DEVICE void reduce_columns(const Args& args) {
    constexpr int together = 8 * Wide;
    constexpr u32 across = warp_size * Wide;
    __shared__ A found[warps][across];
    const u32 lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const u64 columns = (args.inner + across - 1) / across;
    for (u64 unit = blockIdx.x; unit < args.outer * args.parts * columns; unit += gridDim.x) {
        const u64 line = unit / columns, i = unit % columns * across + lane * Wide;
        const u64 row = line / args.parts, part = line % args.parts;
        const u64 begin = part * args.per_part, end = least(begin + args.per_part, args.reduced);
        const In* const from = pointer<const In>(args.src) + row * args.reduced * args.inner + i;
        A sums[8][Wide], whole[Wide];
        auto begin_sums = [&] {
#pragma unroll
            for (int j = 0; j < 8; ++j)
#pragma unroll
                for (int k = 0; k < Wide; ++k) sums[j][k] = neutral();
        };
        auto get = [&](Pack<In, Wide>& x, u64 r) {
            // Complex numbers may be aligned as their parts.
            if constexpr (Wide == 1) x.at[0] = from[r * args.inner];
            else load(x, from + r * args.inner);
        };
        auto add = [&](int j, const Pack<In, Wide>& x) {
#pragma unroll
            for (int k = 0; k < Wide; ++k) sums[j][k] = combine(sums[j][k], enter(x.at[k]));
        };
        auto run = [&](u64 from_row, u64 until) {
            u64 r = from_row + warp;
            for (; r + (together - 1) * warps < until; r += together * warps) {
                Pack<In, Wide> x[together];
#pragma unroll
                for (int j = 0; j < together; ++j) get(x[j], r + j * warps);
#pragma unroll
                for (int j = 0; j < together; ++j) add(j % 8, x[j]);
            }
            for (; r < until; r += warps) {
                Pack<In, Wide> x;
                get(x, r);
                add(0, x);
            }
        };
        auto fold = [&] {
#pragma unroll
            for (int width = 4; width > 0; width /= 2)
#pragma unroll
                for (int j = 0; j < width; ++j)
#pragma unroll
                    for (int k = 0; k < Wide; ++k) sums[j][k] = combine(sums[j][k], sums[j + width][k]);
        };
        begin_sums();
        if constexpr (in_blocks) {
            constexpr u64 block = block_terms * 8 * warps;
#pragma unroll
            for (int k = 0; k < Wide; ++k) whole[k] = neutral();
            for (u64 at = begin; at < end; at += block) {
                if (i < args.inner) run(at, least(at + block, end));
                fold();
#pragma unroll
                for (int k = 0; k < Wide; ++k) whole[k] = combine(whole[k], sums[0][k]);
                begin_sums();
            }
        } else {
            if (i < args.inner) run(begin, end);
            fold();
#pragma unroll
            for (int k = 0; k < Wide; ++k) whole[k] = sums[0][k];
        }
#pragma unroll
        for (int k = 0; k < Wide; ++k) found[warp][lane * Wide + k] = whole[k];
        __syncthreads();
        if (warp == 0 && i < args.inner) {
#pragma unroll
            for (int k = 0; k < Wide; ++k) {
                A sum = whole[k];
#pragma unroll
                for (u32 w = 1; w < warps; ++w) sum = combine(sum, found[w][lane * Wide + k]);
                pointer<Out>(args.dst)[line * args.inner + i + k] = leave(sum, args.divisor);
            }
        }
        __syncthreads();
    }
}
#endif

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_reduce(const __grid_constant__ Args args) {
    await_stream();
#if EP_INNER == 0
    const u32 lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const In* const src = pointer<const In>(args.src);
    Out* const dst = pointer<Out>(args.dst);
    using P = Pack<In, EP_PACK>;
    constexpr int together = 4;
    constexpr u32 lines = EP_THREADS / EP_SHARERS;
    __shared__ A found[warps];
    const u32 rank = threadIdx.x % EP_SHARERS;
    for (u64 unit = u64(blockIdx.x) * lines + threadIdx.x / EP_SHARERS; unit < args.outer * args.parts; unit += u64(gridDim.x) * lines) {
        const u64 row = unit / args.parts, part = unit % args.parts;
        const u64 begin = part * args.per_part;
        const i64 length = i64(begin >= args.reduced ? 0 : least(args.per_part, args.reduced - begin));
        const In* const from = src + row * args.reduced + begin;
        const i64 before = i64(reinterpret_cast<u64>(from) / sizeof(In) % EP_PACK);
        // Complex numbers may be aligned as their parts.
        const bool in_packs = !is_complex<In> || aligned(reinterpret_cast<u64>(from - before), P::chunk);
        // Sums of their own for each place in a pack: short chains, and small errors.
        A sums[EP_PACK];
        auto begin_sums = [&] {
#pragma unroll
            for (int i = 0; i < EP_PACK; ++i) sums[i] = neutral();
        };
        auto fold = [&] {
#pragma unroll
            for (int width = EP_PACK / 2; width > 0; width /= 2)
#pragma unroll
                for (int i = 0; i < width; ++i) sums[i] = combine(sums[i], sums[i + width]);
        };
        begin_sums();
        const i64 packs = (length + before + EP_PACK - 1) / EP_PACK;
        auto run = [&](i64 from_pack, i64 until) {
            for (i64 first = from_pack + rank; first < until; first += EP_SHARERS * together) {
                P pack[together];
                bool whole[together];
#pragma unroll
                for (int j = 0; j < together; ++j) {
                    const i64 at = (first + j * EP_SHARERS) * EP_PACK - before;
                    whole[j] = in_packs && at >= 0 && at + EP_PACK <= length;
                    if (whole[j]) load(pack[j], from + at);
                }
#pragma unroll
                for (int j = 0; j < together; ++j) {
                    if (whole[j]) {
#pragma unroll
                        for (int i = 0; i < EP_PACK; ++i) sums[i] = combine(sums[i], enter(pack[j].at[i]));
                        continue;
                    }
                    const i64 at = (first + j * EP_SHARERS) * EP_PACK - before, end = least(at + EP_PACK, length);
#pragma unroll 1
                    for (i64 i = at < 0 ? 0 : at; i < end; ++i) sums[0] = combine(sums[0], enter(from[i]));
                }
            }
        };
        A sum = neutral();
        if constexpr (in_blocks) {
            constexpr i64 block = i64(block_terms) * EP_SHARERS;
            for (i64 at = 0; at < packs; at += block) {
                run(at, least(at + block, packs));
                fold();
                sum = combine(sum, sums[0]);
                begin_sums();
            }
        } else {
            run(0, packs);
            fold();
            sum = sums[0];
        }
#pragma unroll
        for (u32 distance = warp_size / 2; distance > 0; distance /= 2) sum = combine(sum, shuffle_down(sum, distance));
        if constexpr (EP_SHARERS == warp_size) {
            if (lane == 0) dst[unit] = leave(sum, args.divisor);
        } else {
            if (lane == 0) found[warp] = sum;
            __syncthreads();
            if (threadIdx.x == 0) {
#pragma unroll
                for (u32 w = 1; w < warps; ++w) sum = combine(sum, found[w]);
                dst[unit] = leave(sum, args.divisor);
            }
            __syncthreads();
        }
    }
#else
    // Halves are loaded in pairs where that is possible.
    if constexpr (is_half<In>) {
        if (args.inner % 2 == 0 && aligned(args.src, 2 * sizeof(In))) return reduce_columns<2>(args);
    }
    reduce_columns<1>(args);
#endif
}
