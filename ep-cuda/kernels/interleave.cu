// Exchanges two dimensions of which one has few indices, as channels have: planes of elements are interleaved, or taken
// apart. Both sides begin at a multiple of 16 bytes, and so does every plane.
//
// EP_SIZE  bytes of an element: 1, 2 or 4     EP_PLANES  2 to 4     EP_APART  1: dst has the planes, 0: src has them
// EP_THREADS
#include "common.cuh"

struct Args {
    u64 packs;          // of 16 bytes of each of a set's planes, over all sets
    FastDiv per_plane;  // in a plane
    u64 src, dst;
};

constexpr u32 planes = EP_PLANES, in_word = 4 / EP_SIZE, words = 4 * planes, in_plane = 16 / EP_SIZE;

// Where element `to` of a thread's result is among its operands: planes follow each other on their side.
EP_DEVICE constexpr u32 source_of(u32 to) {
    return EP_APART ? to % in_plane * planes + to / in_plane : to % planes * in_plane + to / planes;
}

// Two elements, of words a and b, as the lower half of a word, or as all of it.
EP_DEVICE u32 join(const u32 (&from)[words], u32 a, u32 b) {
    const u32 low = a % in_word * EP_SIZE, high = 4 + b % in_word * EP_SIZE;
    const u32 pattern = EP_SIZE == 1 ? low | high << 4 : low | (low + 1) << 4 | high << 8 | (high + 1) << 12;
    return __byte_perm(from[a / in_word], from[b / in_word], pattern);
}

// In shared memory a pack in 9 is left out where steps of a thread's packs would meet the same banks.
EP_DEVICE u32 place_of(u32 pack) { return planes % 2 == 0 ? pack + pack / 8 : pack; }

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_interleave(const __grid_constant__ Args args) {
    await_stream();
    // What is interleaved goes through shared memory, so that neighbours in a warp move neighbours in memory.
    __shared__ uint4 exchanged[EP_THREADS / warp_size][warp_size * planes * 9 / 8];
    uint4* const shared = exchanged[threadIdx.x / warp_size];
    const u32 lane = threadIdx.x % warp_size;
    const u64 pack = u64(blockIdx.x) * EP_THREADS + threadIdx.x, first = pack - lane;
    if (first >= args.packs) return;
    const u32 mixed = u32(least((args.packs - first) * planes, u64(warp_size * planes)));
    u32 index;
    const u64 set = divide(args.per_plane, u32(pack), index), plane = args.per_plane.divisor;
    const u64 split = set * planes * plane + index;
    const bool inside = pack < args.packs;

    union {
        uint4 packs[planes];
        u32 at[words];
    } from, to;
    if constexpr (EP_APART) {
        const uint4* const src = pointer<const uint4>(args.src) + first * planes;
#pragma unroll
        for (u32 i = lane; i < warp_size * planes; i += warp_size)
            if (i < mixed) shared[place_of(i)] = __ldcs(src + i);
        __syncwarp();
#pragma unroll
        for (u32 k = 0; k < planes; ++k) from.packs[k] = shared[place_of(lane * planes + k)];
    } else {
#pragma unroll
        for (u32 k = 0; k < planes; ++k)
            if (inside) from.packs[k] = __ldcs(pointer<const uint4>(args.src) + split + k * plane);
    }
#pragma unroll
    for (u32 i = 0; i < words; ++i) {
        const u32 begin = i * in_word;
        if constexpr (EP_SIZE == 4) to.at[i] = from.at[source_of(i)];
        else to.at[i] = join(from.at, source_of(begin), source_of(begin + 1));
        if constexpr (EP_SIZE == 1)
            to.at[i] = __byte_perm(to.at[i], join(from.at, source_of(begin + 2), source_of(begin + 3)), 0x5410);
    }
    if constexpr (EP_APART) {
#pragma unroll
        for (u32 k = 0; k < planes; ++k)
            if (inside) __stcs(pointer<uint4>(args.dst) + split + k * plane, to.packs[k]);
    } else {
#pragma unroll
        for (u32 k = 0; k < planes; ++k) shared[place_of(lane * planes + k)] = to.packs[k];
        __syncwarp();
        uint4* const dst = pointer<uint4>(args.dst) + first * planes;
#pragma unroll
        for (u32 i = lane; i < warp_size * planes; i += warp_size)
            if (i < mixed) __stcs(dst + i, shared[place_of(i)]);
    }
}
