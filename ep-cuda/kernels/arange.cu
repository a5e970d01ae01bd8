// dst[i] = start + i step. EP_DATA is the dtype, EP_PACK elements are stored together; EP_THREADS.
#include "common.cuh"

using Data = EP_DATA;
constexpr int pack_size = EP_PACK;

struct Args {
    u64 count, dst;
    // Bits of an i64 each, or of an f64 each where the dtype is a float.
    u64 start, step;
};

template <class T>
EP_DEVICE T element(const Args& args, i64 i) {
    if constexpr (is_float<T>) {
        const f64 start = __longlong_as_double(i64(args.start)), step = __longlong_as_double(i64(args.step));
        return convert<T>(fma(f64(i), step, start));
    } else return T(args.start + u64(i) * args.step);
}

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_arange(const __grid_constant__ Args args) {
    await_stream();
    using P = Pack<Data, pack_size>;
    const i64 before = i64(args.dst % P::bytes / sizeof(Data)), count = i64(args.count);
    const i64 at = (i64(blockIdx.x) * EP_THREADS + threadIdx.x) * pack_size - before;
    Data* to = pointer<Data>(args.dst) + at;
    if (at >= 0 && at + pack_size <= count) {
        P pack;
#pragma unroll
        for (int i = 0; i < pack_size; ++i) pack.at[i] = element<Data>(args, at + i);
        store(to, pack);
    } else {
#pragma unroll
        for (int i = 0; i < pack_size; ++i)
            if (at + i >= 0 && at + i < count) to[i] = element<Data>(args, at + i);
    }
}
