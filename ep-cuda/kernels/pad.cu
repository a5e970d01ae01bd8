// Pads with a value, or crops: each thread writes a pack of dst's innermost dimension.
//
// EP_SIZE  bytes of an element     EP_PACK  elements of a pack; dst's innermost dimension need not be a multiple
// EP_INDEX  u32 where both sides have fewer than 2^31 elements, else u64     EP_THREADS, EP_UNROLL
#include "common.cuh"

using Element = BitsOf<EP_SIZE>;
using Index = EP_INDEX;
constexpr int pack_size = EP_PACK;

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
};

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_pad(const __grid_constant__ Args args) {
    using P = Pack<Element, pack_size>;
    const Element value = from_bits<Element>(args.value[0], args.value[1]);
    const u64 first = u64(blockIdx.x) * (EP_THREADS * EP_UNROLL) + threadIdx.x;
    P packs[EP_UNROLL];
    u64 to[EP_UNROLL];
    int length[EP_UNROLL];
#pragma unroll
    for (int u = 0; u < EP_UNROLL; ++u) {
        const u64 pack = first + u * EP_THREADS;
        if (pack >= args.packs) break;
        Index rest = 0, column = Index(pack);
        if (args.rank > 1) rest = divide(args.dims[0], Index(pack), column);
        const i64 inner = i64(column) * pack_size, left = args.dst_inner - inner;
        to[u] = u64(rest) * u64(args.dst_inner) + u64(inner);
        length[u] = left < pack_size ? int(left) : pack_size;
        bool inside = true;
        i64 from = 0;
#pragma unroll
        for (int d = 1; d < max_rank; ++d) {
            if (d >= args.rank) break;
            Index index = rest;
            if (d + 1 < args.rank) rest = divide(args.dims[d], rest, index);
            const i64 at = i64(index) - args.before[d];
            inside = inside && at >= 0 && at < args.src_dims[d];
            from += at * args.src_strides[d];
        }
        const i64 at = inner - args.before[0];
        const Element* src = pointer<const Element>(args.src) + from + at;
        if ((args.vector & 2) && inside && at >= 0 && at + pack_size <= args.src_dims[0]) {
            load(packs[u], src);
        } else {
#pragma unroll
            for (int i = 0; i < pack_size; ++i)
                packs[u].at[i] = inside && at + i >= 0 && at + i < args.src_dims[0] ? src[i] : value;
        }
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
