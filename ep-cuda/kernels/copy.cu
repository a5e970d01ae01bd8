// Copies between any two strided layouts of elements of EP_SIZE bytes: copy_nd, strided_copy within a dtype, permute
// where the innermost dimension stays. What nd.cuh names applies; pieces of up to 16 bytes that stay together count as
// one element.
#define EP_SHIFTED_LOADS
#include "nd.cuh"

using Element = BitsOf<EP_SIZE>;

struct Args {
    NdArgs<2> nd;
};

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_copy(const __grid_constant__ Args args) {
    await_stream();
    map1<Element, Element>(args.nd, [](Element x) { return x; });
}
