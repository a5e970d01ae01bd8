// Softmax, log-softmax and their gradients for rows of any width: a block goes over its row twice.
//
// EP_SRC, EP_DST  dtypes          EP_LOG       none: as the launch says, or 1: log-softmax, 0: softmax
// EP_BACKWARD     1: the gradient
// EP_THREADS      of a block      EP_PACK      elements that are loaded together
// EP_FEWER        where given, a launch may have fewer threads, in whole warps
// EP_SHARED       1: forward only, the row is kept in dynamic shared memory between the passes:
//                 (cols + EP_PACK) elements rounded up to whole packs
#define EP_LANES 32
#define EP_BLOCKS 1
#define EP_ROWS 1
#define EP_PACKS 4
#define EP_ALIGNED 0
#include "rows.cuh"
#include "normalizer.cuh"

using Src = EP_SRC;
using Dst = EP_DST;
using A = Between<Src, Dst>;
using SrcPack = Pack<Src, Rows::pack>;

struct Args {
    u64 rows, cols, src, dst;   // forward
    u64 dy;                     // backward: src is y, dst is dx
    u64 log;                    // 1: log-softmax; not read where EP_LOG is given
};

// The packs of a row, the first and last of which may begin and end outside.
struct Row {
    const Src* start;
    i64 cols, packs;
    i32 before;

    __device__ __forceinline__ Row(const Src* row, u64 width)
        : start(row), cols(i64(width)), before(elements_past_pack(row)) {
        packs = (cols + before + Rows::pack - 1) / Rows::pack;
    }
    __device__ __forceinline__ i64 element(i64 pack) const { return pack * Rows::pack - before; }
    __device__ __forceinline__ bool whole(i64 at) const { return at >= 0 && at + Rows::pack <= cols; }

    // The elements of a pack that is the row's, from this row or another that begins the same way or not.
    __device__ __forceinline__ void get(SrcPack& pack, const Src* from, i64 at, bool alike, Src outside) const {
        if (alike && whole(at)) return load(pack, from + at);
#pragma unroll
        for (int i = 0; i < Rows::pack; ++i)
            pack.at[i] = at + i >= 0 && at + i < cols ? from[at + i] : outside;
    }
    __device__ __forceinline__ void put(Dst* to, i64 at, bool alike, const Pack<Dst, Rows::pack>& pack) const {
        if (alike && whole(at)) return store(to + at, pack);
#pragma unroll
        for (int i = 0; i < Rows::pack; ++i)
            if (at + i >= 0 && at + i < cols) to[at + i] = pack.at[i];
    }
};

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_softmax_wide(const __grid_constant__ Args args) {
    await_stream();
    const u32 threads = threads_of_block();
    const i64 step = i64(threads) * Rows::packs;
#ifdef EP_LOG
    constexpr bool log = EP_LOG;
#else
    const bool log = args.log;
#endif

    for (u64 r = blockIdx.x; r < args.rows; r += gridDim.x) {
        const Row row(pointer<const Src>(args.src) + r * args.cols, args.cols);
        Dst* const dst = pointer<Dst>(args.dst) + r * args.cols;
        const bool dst_alike = row.before == elements_past_pack(dst);
        // Neighbouring threads take neighbouring packs, several at once to have enough loads in flight.
#if EP_BACKWARD
        const Src* const gradient = pointer<const Src>(args.dy) + r * args.cols;
        const bool dy_alike = row.before == elements_past_pack(gradient);
        const Src zero = convert<Src>(A(0));
        auto sum_of = [](A a, A b) { return a + b; };
        A sum = 0;
        for (i64 first = threadIdx.x; first < row.packs; first += step) {
            SrcPack y[Rows::packs], dy[Rows::packs];
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j) {
                const i64 at = row.element(first + j * threads);
                if (!log) row.get(y[j], row.start, at, true, zero);
                row.get(dy[j], gradient, at, dy_alike, zero);
            }
            A part = 0;
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j)
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i)
                    part += (log ? A(1) : convert<A>(y[j].at[i])) * convert<A>(dy[j].at[i]);
            sum += part;
        }
        __shared__ typename Exchange<A>::Shared shared;
        Exchange<A> exchange(shared, 0);
        const A total = exchange.all(over_lanes<warp_size>(sum, sum_of), sum_of);
        for (i64 pack = row.packs - 1 - threadIdx.x; pack >= 0; pack -= threads) {
            const i64 at = row.element(pack);
            SrcPack y, dy;
            row.get(y, row.start, at, true, zero);
            row.get(dy, gradient, at, dy_alike, zero);
            Pack<Dst, Rows::pack> out;
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i) {
                const A yi = convert<A>(y.at[i]), dyi = convert<A>(dy.at[i]);
                out.at[i] = convert<Dst>(log ? dyi - exp_fast(yi) * total : (dyi - total) * yi);
            }
            row.put(dst, at, dst_alike, out);
        }
#else
        extern __shared__ uint4 kept[];
        [[maybe_unused]] SrcPack* const row_in_shared = reinterpret_cast<SrcPack*>(kept);
        const A lowest = -infinity(A(0));
        Normalizer<A> own{lowest, 0};
        for (i64 first = threadIdx.x; first < row.packs; first += step) {
            SrcPack x[Rows::packs];
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j) {
                const i64 pack = first + j * threads;
                row.get(x[j], row.start, row.element(pack), true, convert<Src>(lowest));
                if constexpr (EP_SHARED) {
                    if (pack < row.packs) row_in_shared[pack] = x[j];
                }
            }
            A max = lowest, sum = 0;
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j)
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) max = greatest(max, convert<A>(x[j].at[i]));
            const A base = base_of(max);
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j)
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) sum += exp_fast(convert<A>(x[j].at[i]) - base);
            own = merge(own, Normalizer<A>{max, sum});
        }
        auto merged = [](Normalizer<A> a, Normalizer<A> b) { return merge(a, b); };
        __shared__ typename Exchange<Normalizer<A>>::Shared shared;
        Exchange<Normalizer<A>> exchange(shared, 0, Normalizer<A>{lowest, 0});
        const Normalizer<A> all = exchange.all(over_lanes<warp_size>(own, merged), merged);
        const A factor = log ? logarithm(all.sum) : A(1) / all.sum;
        // Backwards: what was read last is still in the caches.
        for (i64 pack = row.packs - 1 - threadIdx.x; pack >= 0; pack -= threads) {
            const i64 at = row.element(pack);
            SrcPack x;
            if constexpr (EP_SHARED) x = row_in_shared[pack];
            else row.get(x, row.start, at, true, convert<Src>(lowest));
            Pack<Dst, Rows::pack> out;
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i) {
                const A difference = convert<A>(x.at[i]) - all.max;
                out.at[i] = convert<Dst>(log ? difference - factor : exp_fast(difference) * factor);
            }
            row.put(dst, at, dst_alike, out);
        }
#endif
        __syncthreads();
    }
}
