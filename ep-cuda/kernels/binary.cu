// Functions of two elements with broadcasting, either of which may be a scalar.
//
// EP_SRC, EP_DST  dtypes     EP_OP  a name of `Binary`     and what nd.cuh names.
#include "nd.cuh"
#include "binary_ops.cuh"

struct Args {
    NdArgs<3> nd;
    f64 attr0, attr1;
};

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_binary(const __grid_constant__ Args args) {
    constexpr bool rolled = is_float<EP_SRC> && is_long<Binary::EP_OP>;
    map2<EP_DST, EP_SRC, EP_SRC, rolled>(args.nd, [&](EP_SRC x, EP_SRC y) {
        return binary<Binary::EP_OP, EP_DST>(x, y, args.attr0, args.attr1);
    });
}
