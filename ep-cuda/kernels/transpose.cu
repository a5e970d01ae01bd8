// Exchanges two dimensions by tiles in shared memory: dst[n, b, a] = src[n, a, b] for any order of the dimensions n.
// `b` is contiguous in src and `a` in dst.
//
// EP_SIZE  bytes of an element: 1, 2, 4, 8 or 16     EP_VECTOR  1: all rows of both sides begin at a multiple of 16
// bytes and have a multiple of them     EP_THREADS  256
#include "common.cuh"

using Element = BitsOf<EP_SIZE>;

// A tile has TILE x TILE elements. Elements below 4 bytes are moved within it as words of `group` elements that are
// neighbours along `a`, put together from as many rows of src.
constexpr u32 group = EP_SIZE < 4 ? 4 / EP_SIZE : 1;
constexpr u32 tile = EP_SIZE == 1 ? 128 : EP_SIZE <= 4 ? 64 : 32;
using Word = Select<(EP_SIZE < 4), u32, Element>;
constexpr u32 words = tile / group;
constexpr int wide = EP_VECTOR ? 16 / EP_SIZE : 1;

// Neighbours along `a` as one word.
template <class W, class E>
EP_DEVICE W join(const Pack<E, wide> (&rows)[group], int i) {
    if constexpr (group == 1) return rows[0].at[i];
    else {
        u32 joined = 0;
#pragma unroll
        for (u32 g = 0; g < group; ++g) joined |= u32(rows[g].at[i]) << (8 * EP_SIZE * g);
        return W(joined);
    }
}

// Dimensions go from the innermost outwards.
struct Args {
    u64 a, b;               // sizes
    u64 src_stride;         // of a in src, in elements; that of b is 1
    u64 dst_stride;         // of b in dst; that of a is 1
    FastDiv tiles_a, tiles_b;
    u32 rank, pad;          // of the other dimensions
    FastDiv dims[max_rank]; // the outermost is not read
    i64 src_strides[max_rank], dst_strides[max_rank];
    u64 tiles;              // in all
    u64 src, dst;
};


extern "C" __global__ void __launch_bounds__(EP_THREADS, EP_VECTOR ? 4 : 2) ep_transpose(const __grid_constant__ Args args) {
    await_stream();
    // One word of padding spreads a column over the banks.
    __shared__ Word shared[tile][words + (sizeof(Word) < 16)];
    constexpr u32 per_row = tile / wide;   // threads along a row

    for (u64 t = blockIdx.x; t < args.tiles; t += gridDim.x) {
        u64 rest = t, of_a, of_b;
        if (args.tiles < (u64(1) << 31)) {
            u32 index_a, index_b;
            rest = divide(args.tiles_b, divide(args.tiles_a, u32(t), index_a), index_b);
            of_a = index_a, of_b = index_b;
        } else rest = divide(args.tiles_b, divide(args.tiles_a, t, of_a), of_b);
        i64 from = 0, to = 0;
#pragma unroll
        for (int d = 0; d < max_rank; ++d) {
            if (d >= args.rank) break;
            u64 index = rest;
            if (d + 1 < args.rank) rest = divide(args.dims[d], rest, index);
            from += i64(index) * args.src_strides[d];
            to += i64(index) * args.dst_strides[d];
        }
        const u64 first_a = of_a * tile, first_b = of_b * tile;
        const u32 size_a = u32(least(args.a - first_a, u64(tile))), size_b = u32(least(args.b - first_b, u64(tile)));
        const Element* src = pointer<const Element>(args.src) + from + first_a * args.src_stride + first_b;
        Element* dst = pointer<Element>(args.dst) + to + first_b * args.dst_stride + first_a;

        // Several rows of src at a time: `group` of them become words.
        constexpr u32 steps = words * per_row / EP_THREADS;
        static_assert(words * per_row % EP_THREADS == 0, "threads share the tile evenly");
        Pack<Element, wide> rows[steps][group];
#pragma unroll
        for (u32 s = 0; s < steps; ++s) {
            const u32 unit = s * EP_THREADS + threadIdx.x;
            const u32 column = unit / per_row, b = unit % per_row * wide;
#pragma unroll
            for (u32 g = 0; g < group; ++g) {
                const u32 a = column * group + g;
                if (a < size_a && b < size_b) load(rows[s][g], src + u64(a) * args.src_stride + b);
            }
        }
#pragma unroll
        for (u32 s = 0; s < steps; ++s) {
            const u32 unit = s * EP_THREADS + threadIdx.x;
            const u32 column = unit / per_row, b = unit % per_row * wide;
#pragma unroll
            for (int i = 0; i < wide; ++i) shared[b + i][column] = join<Word>(rows[s], i);
        }
        __syncthreads();
        constexpr u32 wide_words = wide / group > 0 ? wide / group : 1;
        constexpr u32 elements = EP_VECTOR ? wide : group;
        constexpr u32 per_line = words / wide_words;
#pragma unroll
        for (u32 s = 0; s < tile * per_line / EP_THREADS; ++s) {
            const u32 unit = s * EP_THREADS + threadIdx.x;
            const u32 b = unit / per_line, column = unit % per_line * wide_words, a = column * group;
            if (b >= size_b || a >= size_a) continue;
            Element* line = dst + u64(b) * args.dst_stride + a;
            if constexpr (EP_VECTOR) {
                Pack<Word, int(wide_words)> out;
#pragma unroll
                for (u32 i = 0; i < wide_words; ++i) out.at[i] = shared[b][column + i];
                store(reinterpret_cast<Word*>(line), out);
            } else {
                union {
                    Word word;
                    Element at[elements];
                } out{shared[b][column]};
#pragma unroll
                for (u32 g = 0; g < elements; ++g)
                    if (a + g < size_a) line[g] = out.at[g];
            }
        }
        __syncthreads();
    }
}
