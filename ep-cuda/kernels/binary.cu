// Functions of two elements with broadcasting, either of which may be a scalar.
//
// EP_SRC, EP_DST  dtypes     EP_OP  a name of `Binary`     and what nd.cuh names.
#define EP_BROADCAST
#include "nd.cuh"
#include "binary_ops.cuh"

struct Args {
    NdArgs<3> nd;
    f64 attr0, attr1;
};

extern "C" __global__ void __launch_bounds__(EP_THREADS + (is_broadcast ? 64 : 0)) ep_binary(const __grid_constant__ Args args) {
    await_stream();
    constexpr Binary op = Binary::EP_OP;
    const auto f = [&](EP_SRC x, EP_SRC y) { return binary<op, EP_DST>(x, y, args.attr0, args.attr1); };
    if constexpr (sizeof(EP_SRC) <= 2 && is_int<EP_SRC> && (op == Binary::add || op == Binary::sub))
        map2<EP_DST, EP_SRC, EP_SRC>(args.nd, f, [](u32 x, u32 y) { return add_or_sub<sizeof(EP_SRC), op == Binary::sub>(x, y); });
    else map2<EP_DST, EP_SRC, EP_SRC, is_float<EP_SRC> && is_long<op>>(args.nd, f);
}
