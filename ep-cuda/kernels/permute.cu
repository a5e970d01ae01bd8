// Any permutation by blocks in shared memory: a block of elements is contiguous, or nearly, in runs of src and in
// other runs of dst. Made for dimensions too small for the tiles of transpose.cu.
//
// EP_SIZE  bytes of an element     EP_THREADS     EP_EACH  elements of a block for each thread
#include "common.cuh"

using Element = BitsOf<EP_SIZE>;
constexpr u32 volume = EP_THREADS * EP_EACH;

// A block covers `size` indices of each dimension that has more than one in it. Dimensions go from the innermost of
// src outwards in `src_order`, from that of dst in `dst_order`; entries past `rank` have the size 1.
constexpr int block_rank = 6;
struct Args {
    u32 rank, outer_rank;
    FastDiv size[block_rank];             // by the order of src
    FastDiv dst_size[block_rank];         // the same by the order of dst
    u32 dst_to_shared[block_rank];        // distance in the block, laid out as src, for each dimension of dst
    i64 src_strides[block_rank];          // by the order of src
    i64 dst_strides[block_rank];          // by the order of dst
    u32 limit_of_dst[block_rank];         // which dimension of src this one of dst is
    u64 extent[block_rank];               // whole sizes by the order of src, which the last block may pass
    // How blocks follow each other, from the innermost outwards: counts, and distances in src and dst; the first
    // `rank` belong to the dimensions of the block, in the order of src.
    FastDiv count[2 * max_rank];
    i64 src_step[2 * max_rank], dst_step[2 * max_rank];
    u64 blocks;
    u32 elements, pad;                    // of a block: the product of the sizes
    u64 src, dst;
};

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_permute(const Args args) {
    __shared__ Element shared[volume];
    // What depends on the thread alone is the same for all blocks.
    i64 from[EP_EACH], to[EP_EACH];
    u32 place[EP_EACH];
    u32 src_index[EP_EACH], dst_index[EP_EACH];   // indices of up to 5 bits... packed below where blocks are partial
#pragma unroll
    for (int e = 0; e < EP_EACH; ++e) {
        const u32 element = e * EP_THREADS + threadIdx.x;
        u32 rest = element;
        from[e] = to[e] = 0;
        place[e] = 0;
#pragma unroll
        for (int d = 0; d < block_rank; ++d) {
            u32 index;
            rest = divide(args.size[d], rest, index);
            from[e] += i64(index) * args.src_strides[d];
        }
        rest = element;
#pragma unroll
        for (int d = 0; d < block_rank; ++d) {
            u32 index;
            rest = divide(args.dst_size[d], rest, index);
            to[e] += i64(index) * args.dst_strides[d];
            place[e] += index * args.dst_to_shared[d];
        }
    }
    (void)src_index, (void)dst_index;
}
