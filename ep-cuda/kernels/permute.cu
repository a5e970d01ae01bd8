// Any permutation by blocks in shared memory, which are read in long runs of src and written in long runs of dst.
// Made for dimensions too small for the tiles of transpose.cu.
//
// EP_SIZE  bytes of an element     EP_THREADS     EP_EACH  elements of a block for each thread
#include "common.cuh"

using Element = BitsOf<EP_SIZE>;
constexpr int block_rank = max_rank;

// A block covers `size` indices of up to 8 dimensions, all of them except for at most two, which are cut. Unused
// entries have the size 1. Offsets within a block are below 2^31, as is the number of blocks.
struct Args {
    FastDiv src_size[block_rank];      // from src's innermost dimension outwards
    FastDiv dst_size[block_rank];      // the same sizes from dst's innermost dimension outwards
    i64 src_strides[block_rank];       // in src, in its order
    i64 dst_strides[block_rank];       // in dst, in its order
    u32 dst_to_shared[block_rank];     // in a block that is laid out as src, in dst's order
    u32 src_cut[block_rank];           // 1 or 2: the first or second dimension that is cut; else 0
    u32 dst_cut[block_rank];
    u64 cut_size[2], cut_extent[2];    // indices of a cut dimension in a block, and in all; 1 and 1 without
    // How blocks follow each other, from any first dimension: how many there are, and how far they are apart.
    u32 rank, elements;                // dimensions of these lists; elements of a block
    FastDiv count[max_rank];           // that of the last one is not read
    i64 src_step[max_rank], dst_step[max_rank];
    u32 cut_of[max_rank];              // 1 or 2: blocks along a dimension that is cut; else 0
    u64 blocks;
    u64 src, dst;
};

extern "C" __global__ void __launch_bounds__(EP_THREADS, 2) ep_permute(const __grid_constant__ Args args) {
    __shared__ Element shared[EP_THREADS * EP_EACH];
    // What depends on the thread alone is the same for all blocks. Indices of cut dimensions share a word.
    i32 from[EP_EACH], to[EP_EACH];
    u32 place[EP_EACH], src_at[EP_EACH], dst_at[EP_EACH];
#pragma unroll
    for (int e = 0; e < EP_EACH; ++e) {
        const u32 element = e * EP_THREADS + threadIdx.x;
        u32 rest = element;
        from[e] = to[e] = 0;
        place[e] = src_at[e] = dst_at[e] = 0;
#pragma unroll
        for (int d = 0; d < block_rank; ++d) {
            u32 index;
            rest = divide(args.src_size[d], rest, index);
            from[e] += i32(index) * i32(args.src_strides[d]);
            if (args.src_cut[d]) src_at[e] |= index << (16 * (args.src_cut[d] - 1));
        }
        rest = element;
#pragma unroll
        for (int d = 0; d < block_rank; ++d) {
            u32 index;
            rest = divide(args.dst_size[d], rest, index);
            to[e] += i32(index) * i32(args.dst_strides[d]);
            place[e] += index * args.dst_to_shared[d];
            if (args.dst_cut[d]) dst_at[e] |= index << (16 * (args.dst_cut[d] - 1));
        }
    }
    for (u64 t = blockIdx.x; t < args.blocks; t += gridDim.x) {
        u32 rest = u32(t);
        const Element* src = pointer<const Element>(args.src);
        Element* dst = pointer<Element>(args.dst);
        u64 left[2] = {args.cut_extent[0], args.cut_extent[1]};
#pragma unroll
        for (int d = 0; d < max_rank; ++d) {
            if (d >= args.rank) break;
            u32 index = rest;
            if (d + 1 < args.rank) rest = divide(args.count[d], rest, index);
            src += i64(index) * args.src_step[d];
            dst += i64(index) * args.dst_step[d];
            if (args.cut_of[d] == 1) left[0] -= index * args.cut_size[0];
            if (args.cut_of[d] == 2) left[1] -= index * args.cut_size[1];
        }
        const u32 limit0 = u32(least(left[0], u64(0xffff))), limit1 = u32(least(left[1], u64(0xffff)));
        auto inside = [&](int e, u32 at) {
            return e * EP_THREADS + threadIdx.x < args.elements && (at & 0xffff) < limit0 && at >> 16 < limit1;
        };
        Element moved[EP_EACH];
#pragma unroll
        for (int e = 0; e < EP_EACH; ++e)
            if (inside(e, src_at[e])) moved[e] = src[from[e]];
#pragma unroll
        for (int e = 0; e < EP_EACH; ++e) shared[e * EP_THREADS + threadIdx.x] = moved[e];
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EP_EACH; ++e)
            if (inside(e, dst_at[e])) dst[to[e]] = shared[place[e]];
        __syncthreads();
    }
}
