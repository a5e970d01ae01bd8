// One row for each index, `on` at its class and `off` elsewhere.
//
// EP_MODE  wrap, zero or error     EP_INDICES  i32 or i64     EP_SIZE  bytes of an element     EP_PACK  elements that
// are stored together     EP_INDEX  u32 where dst has fewer than 2^31 elements, else u64     EP_THREADS
#include "indices.cuh"

using Element = BitsOf<EP_SIZE>;
using Index = EP_INDEX;
constexpr IndexMode mode = IndexMode::EP_MODE;
constexpr int pack_size = EP_PACK;

struct Args {
    u64 num_indices;
    FastDiv depth;     // 0 is passed as 1, with `count` 0
    u64 count;         // elements of dst; with 0 the indices are checked, a thread for each
    Window window;     // its length is the depth
    u64 indices, dst;
    u64 on[2], off[2];
    u64 error, launch;
};

EP_DEVICE i64 class_of(const Args& args, u64 row, bool reports) {
    bool refused;
    const EP_INDICES given = __ldg(pointer<const EP_INDICES>(args.indices) + row);
    const i64 place = place_in<mode>(args.window, given, refused);
    if (mode != IndexMode::zero && refused && reports) report(args.error, u32(args.launch), row, i64(given));
    return place;
}

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_one_hot(const __grid_constant__ Args args) {
    await_stream();
    const u64 thread = u64(blockIdx.x) * EP_THREADS + threadIdx.x;
    if (args.count == 0) {
        if (thread < args.num_indices) class_of(args, thread, true);
        return;
    }
    const Element on = from_bits<Element>(args.on[0], args.on[1]), off = from_bits<Element>(args.off[0], args.off[1]);
    using P = Pack<Element, pack_size>;
    const u64 at = thread * pack_size;
    if (at >= args.count) return;
    Index column;
    Index row = divide(args.depth, Index(at), column);
    i64 hot = class_of(args, row, column == 0);
    P pack;
#pragma unroll
    for (int i = 0; i < pack_size; ++i) {
        if (column == Index(args.depth.divisor)) {
            column = 0;
            if (++row < args.num_indices) hot = class_of(args, row, true);
        }
        pack.at[i] = i64(column) == hot ? on : off;
        ++column;
    }
    Element* to = pointer<Element>(args.dst) + at;
    if (at + pack_size <= args.count && aligned(args.dst, P::chunk)) return store(to, pack);
#pragma unroll
    for (int i = 0; i < pack_size; ++i)
        if (at + i < args.count) to[i] = pack.at[i];
}
