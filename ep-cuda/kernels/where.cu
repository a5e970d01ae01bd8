// dst = cond ? x : y with broadcasting. EP_COND is the condition's dtype, or the integer of its size; EP_SIZE the bytes
// of an element; and what nd.cuh names.
#define EP_BROADCAST
#include "nd.cuh"

using Element = BitsOf<EP_SIZE>;

struct Args {
    NdArgs<4> nd;
};

extern "C" __global__ void __launch_bounds__(EP_THREADS + (is_broadcast ? 64 : 0)) ep_where(const __grid_constant__ Args args) {
    await_stream();
    map3<Element, EP_COND, Element, Element>(
        args.nd, [](EP_COND cond, Element x, Element y) { return convert<b8>(cond).byte ? x : y; });
}
