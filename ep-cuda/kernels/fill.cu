// Sets every element of EP_SIZE bytes to one value, which the launch has or which is in memory.
//
// EP_SIZE  bytes of an element     EP_THREADS, EP_UNROLL (16-byte stores of a thread)
#include "common.cuh"

using Element = BitsOf<EP_SIZE>;
constexpr int pack_size = 16 / EP_SIZE;

struct Args {
    u64 count, dst;
    // The address of the value, or 0: then it is `value`.
    u64 src;
    u64 value[2];
};

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_fill(const __grid_constant__ Args args) {
    await_stream();
    const Element value = args.src ? *pointer<const Element>(args.src) : from_bits<Element>(args.value[0], args.value[1]);
    Pack<Element, pack_size> pack;
#pragma unroll
    for (int i = 0; i < pack_size; ++i) pack.at[i] = value;
    const i64 before = i64(args.dst % 16) / EP_SIZE, count = i64(args.count);
    const u64 first = u64(blockIdx.x) * (EP_THREADS * EP_UNROLL) + threadIdx.x;
#pragma unroll
    for (int u = 0; u < EP_UNROLL; ++u) {
        const i64 at = i64(first + u * EP_THREADS) * pack_size - before;
        Element* to = pointer<Element>(args.dst) + at;
        if (at >= 0 && at + pack_size <= count && args.dst % EP_SIZE == 0) {
            store(to, pack);
        } else {
#pragma unroll
            for (int i = 0; i < pack_size; ++i)
                if (at + i >= 0 && at + i < count) to[i] = value;
        }
    }
}
