// Functions of one element between any two strided layouts: elementwise_unary, broadcast_elementwise_unary, cast, and
// strided_copy between different dtypes.
//
// EP_SRC, EP_DST  dtypes     EP_OP  a name of `Unary`     and what nd.cuh names.
#include "nd.cuh"
#include "unary_ops.cuh"

struct Args {
    NdArgs<2> nd;
    f64 attr0, attr1;
};

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_unary(const __grid_constant__ Args args) {
    await_stream();
    map1<EP_DST, EP_SRC, is_long<Unary::EP_OP, EP_SRC>>(
        args.nd, [&](EP_SRC x) { return unary<Unary::EP_OP, EP_DST>(x, args.attr0, args.attr1); });
}
