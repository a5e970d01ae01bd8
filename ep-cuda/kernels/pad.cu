// Pads with a value, or crops: each thread writes a pack of dst's innermost dimension.
//
// EP_SIZE  bytes of an element     EP_PACK  elements of a pack; dst's innermost dimension need not be a multiple
// EP_INDEX  u32 where both sides have fewer than 2^31 elements, else u64     EP_THREADS, EP_UNROLL
#include "common.cuh"

using Element = BitsOf<EP_SIZE>;
using Index = EP_INDEX;
using Offset = Select<sizeof(Index) == 4, i32, i64>;
constexpr int pack_size = EP_PACK;
using P = Pack<Element, pack_size>;

// Dimensions go from the innermost outwards.
struct Args {
    u64 packs;              // of dst: ceil(innermost / EP_PACK) times the sizes of the other dimensions
    u32 rank;
    u32 vector;             // bit 0: dst's packs are whole and aligned; bit 1: src's, too, wherever they are inside
    FastDiv dims[max_rank]; // of dst, the innermost one counted in packs; the outermost is not read
    i64 dst_inner;          // elements of dst's innermost dimension
    i64 src_dims[max_rank];
    i64 src_strides[max_rank];
    i64 before[max_rank];   // padding, negative to crop
    u64 value[2];
    u64 src, dst;
    u64 end;                // the address behind src's last element
};

#if EP_SIZE <= 2
// Elements from `first` up to `last` of a pack at any address, the value elsewhere: out of the aligned words that have them,
// where all of those are src's. False if they are not.
EP_DEVICE bool load_words(P& pack, const Args& args, u64 address, i32 first, i32 last) {
    const u64 begin = address & ~u64(3);
    if (begin < args.src || begin + 20 > args.end) return false;
    u32 words[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = __ldg(pointer<const u32>(begin) + i);
    shift_bytes<4>(words, u32(address));
    const u32 value = repeated(from_bits<Element>(args.value[0], args.value[1]));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 inside = bits_from(first * (8 * EP_SIZE), i) & ~bits_from(last * (8 * EP_SIZE), i);
        pack.words[i] = choose(inside, words[i], value);
    }
    return true;
}
#endif

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_pad(const __grid_constant__ Args args) {
    await_stream();
    const Element value = from_bits<Element>(args.value[0], args.value[1]);
    const u64 first = u64(blockIdx.x) * (EP_THREADS * EP_UNROLL) + threadIdx.x;
    P packs[EP_UNROLL];
    Index to[EP_UNROLL];
    int length[EP_UNROLL];
#pragma unroll
    for (int u = 0; u < EP_UNROLL; ++u) {
        const u64 pack = first + u * EP_THREADS;
        if (pack >= args.packs) break;
        Index rest = 0, column = Index(pack);
        if (args.rank > 1) rest = divide(args.dims[0], Index(pack), column);
        const Index inner = column * pack_size, left = Index(args.dst_inner) - inner;
        to[u] = rest * Index(args.dst_inner) + inner;
        length[u] = left < pack_size ? int(left) : pack_size;
        bool inside = true;
        Index from = 0;
#pragma unroll
        for (int d = 1; d < max_rank; ++d) {
            if (d >= args.rank) break;
            Index index = rest;
            if (d + 1 < args.rank) rest = divide(args.dims[d], rest, index);
            // Below 0 it is no index.
            const Index at = index - Index(args.before[d]);
            inside = inside && at < Index(args.src_dims[d]);
            from += at * Index(args.src_strides[d]);
        }
        const Offset at = Offset(inner) - Offset(args.before[0]), behind = Offset(args.src_dims[0]) - at;
        const u64 address = args.src + (i64(Offset(from)) + i64(at)) * EP_SIZE;
        // Those that are inside.
        const i32 begin = at < 0 ? i32(least(-at, Offset(pack_size))) : 0;
        const i32 end = inside && behind > 0 ? i32(least(behind, Offset(pack_size))) : 0;
        if ((args.vector & 2) && begin == 0 && end == pack_size) {
            load(packs[u], pointer<const Element>(address));
            continue;
        }
#if EP_SIZE <= 2
        if (begin < end && load_words(packs[u], args, address, begin, end)) continue;
#endif
#pragma unroll
        for (int i = 0; i < pack_size; ++i)
            packs[u].at[i] = i >= begin && i < end ? pointer<const Element>(address)[i] : value;
    }
#pragma unroll
    for (int u = 0; u < EP_UNROLL; ++u) {
        if (first + u * EP_THREADS >= args.packs) break;
        Element* dst = pointer<Element>(args.dst) + to[u];
        if (args.vector & 1) {
            store(dst, packs[u]);
        } else {
#pragma unroll
            for (int i = 0; i < pack_size; ++i)
                if (i < length[u]) dst[i] = packs[u].at[i];
        }
    }
}
