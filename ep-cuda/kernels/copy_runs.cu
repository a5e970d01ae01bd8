// Copies runs into a destination without gaps: a thread writes whole packs of it, of which one may hold
// the end of a run and the begin of the next.
//
// EP_SIZE  bytes of an element, below 16     EP_INDEX  u32 where offsets and the number of elements are below 2^31, else u64
// EP_THREADS, EP_UNROLL
#include "common.cuh"

using Element = BitsOf<EP_SIZE>;
using Index = EP_INDEX;
using Offset = Select<sizeof(Index) == 4, i32, i64>;
constexpr int in_pack = 16 / EP_SIZE;

// Dimensions go from the innermost, along which runs of at least a pack are, outwards.
struct Args {
    u64 count;                // elements
    u32 rank, before;         // elements by which the first pack begins before dst, so that packs are aligned
    FastDiv dims[max_rank];   // that of the outermost dimension is not read
    i64 strides[max_rank];    // of src, in elements
    u64 src, dst;
    u64 ends[2];              // the lowest and the highest address of an element of src
};

// The 16 bytes at any address of an element, by two aligned loads.
struct Shifted {
    uint4 lower, upper;
    i32 offset;

    __device__ __forceinline__ void load(u64 address) {
        offset = i32(address % 16);
        auto source = pointer<const uint4>(address - offset);
        lower = __ldg(source);
        upper = __ldg(source + 1);
    }
    __device__ __forceinline__ Pack<Element, in_pack> get() const {
        u32 words[8] = {lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w};
        shift_words(words, offset);
        Pack<Element, in_pack> pack;
        pack.raw[0] = {words[0], words[1], words[2], words[3]};
        return pack;
    }
};
EP_DEVICE bool is_inside(const Args& args, u64 address) {
    const u64 begin = address / 16 * 16;
    return begin >= args.ends[0] && begin + 32 - EP_SIZE <= args.ends[1];
}

// The address of an element of src by its number.
EP_DEVICE u64 address_of(const Args& args, Index element, Index& in_run) {
    Index rest = divide(args.dims[0], element, in_run);
    Offset at = Offset(in_run);
#pragma unroll
    for (int d = 1; d < max_rank; ++d) {
        if (d >= args.rank) break;
        Index index = rest;
        if (d + 1 < args.rank) rest = divide(args.dims[d], rest, index);
        at += Offset(index) * Offset(args.strides[d]);
    }
    return args.src + i64(at) * EP_SIZE;
}

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_copy_runs(const __grid_constant__ Args args) {
    const u64 first = u64(blockIdx.x) * (EP_THREADS * EP_UNROLL) + threadIdx.x;
    Shifted here[EP_UNROLL], next[EP_UNROLL];
    // Elements before the next run, and whether the pack is whole and loaded.
    i32 left[EP_UNROLL];
    bool loaded[EP_UNROLL];
#pragma unroll
    for (int u = 0; u < EP_UNROLL; ++u) {
        const i64 at = i64(first + u * EP_THREADS) * in_pack - i64(args.before);
        loaded[u] = at >= 0 && at + in_pack <= i64(args.count);
        if (!loaded[u]) continue;
        Index in_run;
        const u64 address = address_of(args, Index(at), in_run);
        left[u] = least(i64(args.dims[0].divisor) - i64(in_run), i64(in_pack));
        u64 following = address;
        if (left[u] < in_pack) following = address_of(args, Index(at + left[u]), in_run) - u64(left[u]) * EP_SIZE;
        loaded[u] = is_inside(args, address) && is_inside(args, following);
        if (!loaded[u]) continue;
        here[u].load(address);
        if (left[u] < in_pack) next[u].load(following);
    }
#pragma unroll
    for (int u = 0; u < EP_UNROLL; ++u) {
        const i64 at = i64(first + u * EP_THREADS) * in_pack - i64(args.before);
        Element* const to = pointer<Element>(args.dst) + at;
        if (loaded[u]) {
            Pack<Element, in_pack> pack = here[u].get();
            if (left[u] < in_pack) {
                const Pack<Element, in_pack> rest = next[u].get();
#pragma unroll
                for (int i = 0; i < in_pack; ++i)
                    if (i >= left[u]) pack.at[i] = rest.at[i];
            }
            store(to, pack);
            continue;
        }
        // At the ends of either side.
#pragma unroll 1
        for (i32 i = 0; i < in_pack; ++i) {
            if (at + i < 0 || at + i >= i64(args.count)) continue;
            Index in_run;
            to[i] = *pointer<const Element>(address_of(args, Index(at + i), in_run));
        }
    }
}
