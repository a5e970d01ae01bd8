// Adds rows along an axis: dst[o, indices[i], :] += src[o, i, :], in the order of the indices.
//
// EP_DATA  dtype     EP_INDICES  i32 or i64     EP_THREADS
// EP_VOLUME  elements of dst that a block owns
//
// A block owns neighbours in dst and goes over all indices. So nobody adds to an element but its owner, the
// order is that of the indices whatever the device does, and no memory is needed beside the operands.
#include "indices.cuh"

using Data = EP_DATA;
using A = Compute<Data>;

struct Args {
    u64 outer, processed, inner, num_indices;
    Window window;        // its length is `processed`
    u64 indices, src, dst;
    u64 error, launch;
    u64 mode;             // a number of IndexMode
    u64 blocks_per_outer; // ceil(processed inner / EP_VOLUME); 0: the indices are only checked
};

constexpr u32 threads = EP_THREADS;
constexpr u32 warps = threads / warp_size;
constexpr u32 volume = EP_VOLUME;

template <class T>
EP_DEVICE T plus(T a, T b) {
    if constexpr (is_complex<T>) return {a.re + b.re, a.im + b.im};
    else if constexpr (is_int<T>) return T(u64(a) + u64(b));
    else return a + b;
}

EP_DEVICE i64 row_of(const Args& args, u64 i, bool reports) {
    const EP_INDICES given = __ldg(pointer<const EP_INDICES>(args.indices) + i);
    bool refused;
    i64 place;
    if (IndexMode(args.mode) == IndexMode::wrap) place = place_in<IndexMode::wrap>(args.window, given, refused);
    else if (IndexMode(args.mode) == IndexMode::zero) place = place_in<IndexMode::zero>(args.window, given, refused);
    else place = place_in<IndexMode::error>(args.window, given, refused);
    if (refused && reports) report(args.error, u32(args.launch), i, i64(given));
    return place;
}

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_scatter_add(const __grid_constant__ Args args) {
    await_stream();
    if (args.blocks_per_outer == 0) {
        for (u64 i = u64(blockIdx.x) * threads + threadIdx.x; i < args.num_indices; i += u64(gridDim.x) * threads)
            row_of(args, i, true);
        return;
    }
    __shared__ A sums[volume];
    // Of the indices at hand those that lead here, in their order: which one, and the first column in this block, of
    // how many, at which place in `sums`.
    __shared__ u64 column_of[threads];
    __shared__ u32 which[threads], counts[warps];
    __shared__ u32 width_of[threads], place_of[threads];
    const u32 lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    for (u64 unit = blockIdx.x; unit < args.outer * args.blocks_per_outer; unit += gridDim.x) {
        const u64 o = unit / args.blocks_per_outer, part = unit % args.blocks_per_outer;
        const u64 plane = args.processed * args.inner;
        const u64 begin = part * volume, end = least(begin + volume, plane);
        Data* const dst = pointer<Data>(args.dst) + o * plane + begin;
        const Data* const src = pointer<const Data>(args.src) + o * args.num_indices * args.inner;
        const bool reports = unit == 0;
        bool is_loaded = false;
        for (u64 first = 0; first < args.num_indices; first += threads) {
            const u64 i = first + threadIdx.x;
            const i64 row = i < args.num_indices ? row_of(args, i, reports) : -1;
            const u64 row_begin = u64(row) * args.inner, row_end = row_begin + args.inner;
            const bool is_here = row >= 0 && row_begin < end && row_end > begin;
            const u32 found = __ballot_sync(full_mask, is_here);
            if (lane == 0) counts[warp] = __popc(found);
            __syncthreads();
            u32 number = __popc(found & ((1u << lane) - 1)), all = 0;
            for (u32 w = 0; w < warps; ++w) {
                if (w < warp) number += counts[w];
                all += counts[w];
            }
            if (is_here) {
                const u64 from = row_begin > begin ? row_begin : begin, to = least(row_end, end);
                which[number] = threadIdx.x;
                column_of[number] = from - row_begin;
                width_of[number] = u32(to - from);
                place_of[number] = u32(from - begin);
            }
            if (all > 0 && !is_loaded) {
                for (u32 e = threadIdx.x; e < u32(end - begin); e += threads) sums[e] = widen(dst[e]);
                is_loaded = true;
            }
            __syncthreads();
            // Rows that are narrower than the block are loaded several at a time, and added one after the other.
            const u32 lanes = args.inner < threads ? u32(args.inner) : threads, groups = threads / lanes;
            const u32 group = threadIdx.x / lanes, column = threadIdx.x % lanes;
            for (u32 m = 0; m < all; m += groups) {
                if (groups == 1) {
                    // All threads are at one row, those behind its end too.
                    const Data* const from = src + (first + which[m]) * args.inner + column_of[m];
                    // An element has the same owner in every row: no thread waits for another.
                    const u32 skew = u32(column_of[m] % threads);
                    for (u32 c = (threadIdx.x + threads - skew) % threads; c < width_of[m]; c += threads)
                        sums[place_of[m] + c] = plus(sums[place_of[m] + c], widen(from[c]));
                    continue;
                }
                const u32 own = m + group;
                const bool has = group < groups && own < all;
                A x{};
                if (has && column < width_of[own])
                    x = widen(src[(first + which[own]) * args.inner + column_of[own] + column]);
                for (u32 turn = 0; turn < groups && m + turn < all; ++turn) {
                    if (has && group == turn && column < width_of[own])
                        sums[place_of[own] + column] = plus(sums[place_of[own] + column], x);
                    __syncthreads();
                }
            }
            __syncthreads();
        }
        if (is_loaded) {
            for (u32 e = threadIdx.x; e < u32(end - begin); e += threads) dst[e] = convert<Data>(sums[e]);
        }
        __syncthreads();
    }
}
