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

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_permute(const __grid_constant__ Args args) {
    constexpr u32 volume = EP_THREADS * EP_EACH;
    __shared__ Element shared[volume];
    // What depends on the place in a block alone is the same for all blocks: offsets, and the indices of cut
    // dimensions in the halves of a word. In shared memory, for registers would leave room for few threads.
    __shared__ uint2 reads[volume], writes[volume];
    __shared__ u16 places[volume];
    for (u32 element = threadIdx.x; element < args.elements; element += EP_THREADS) {
        u32 rest = element, offset = 0, cut = 0, place = 0;
        for (int d = 0; d < block_rank; ++d) {
            u32 index;
            rest = divide(args.src_size[d], rest, index);
            offset += index * u32(args.src_strides[d]);
            if (args.src_cut[d]) cut |= index << (16 * (args.src_cut[d] - 1));
        }
        reads[element] = {offset, cut};
        rest = element, offset = 0, cut = 0;
        for (int d = 0; d < block_rank; ++d) {
            u32 index;
            rest = divide(args.dst_size[d], rest, index);
            offset += index * u32(args.dst_strides[d]);
            place += index * args.dst_to_shared[d];
            if (args.dst_cut[d]) cut |= index << (16 * (args.dst_cut[d] - 1));
        }
        writes[element] = {offset, cut};
        places[element] = u16(place);
    }
    __syncthreads();
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
        auto inside = [&](u32 cut) { return (cut & 0xffff) < limit0 && cut >> 16 < limit1; };
        Element moved[EP_EACH];
#pragma unroll
        for (int e = 0; e < EP_EACH; ++e) {
            const u32 element = e * EP_THREADS + threadIdx.x;
            if (element >= args.elements) break;
            const uint2 read = reads[element];
            if (inside(read.y)) moved[e] = src[i32(read.x)];
        }
#pragma unroll
        for (int e = 0; e < EP_EACH; ++e) shared[e * EP_THREADS + threadIdx.x] = moved[e];
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EP_EACH; ++e) {
            const u32 element = e * EP_THREADS + threadIdx.x;
            if (element >= args.elements) break;
            const uint2 write = writes[element];
            if (inside(write.y)) dst[i32(write.x)] = shared[places[element]];
        }
        __syncthreads();
    }
}
