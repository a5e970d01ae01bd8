// Softmax and log-softmax of rows that fit the registers of the threads that share them. One kernel computes both: what
// differs is little beside the rest, and there are many of these kernels. But with EP_LOG it computes one: of half types and
// in clusters both would cost 3 to 9 %, which counts where the dtypes are one.
//
// EP_SRC, EP_DST  dtypes     EP_LOG  none, or 1: log-softmax, 0: softmax     and what rows.cuh names.
#include "rows.cuh"
#include "normalizer.cuh"

using Src = EP_SRC;
using Dst = EP_DST;
using A = Between<Src, Dst>;

// Half types stay packed in registers, at the price of another power for each element; the others hold the powers.
constexpr bool holds_powers = !is_half<Src>;
// More rows at a time are worth it where rows are not aligned: of half types the compiler would keep them converted.
constexpr u32 resident =
    Rows::in_warp && is_half<Src> && !Rows::is_aligned ? 1024 / Rows::threads : Rows::resident;

struct Args {
    u64 rows, cols, src, dst;
    u64 log;   // 1: log-softmax; not read where EP_LOG is given
};

extern "C" __global__ void EP_CLUSTER_DIMS __launch_bounds__(EP_THREADS, resident) ep_softmax(
    const __grid_constant__ Args args) {
    await_stream();
    const i32 cols = i32(args.cols);
    const u32 zero = u32(args.cols >> 32);
    const A lowest = -infinity(A(0));
#ifdef EP_LOG
    constexpr bool log = EP_LOG;
#else
    const bool log = args.log;
#endif
    __shared__ typename Exchange<Normalizer<A>>::Shared shared;
    Exchange<Normalizer<A>> exchange(shared, zero, {lowest, 0});
    cluster_arrive();
    bool cluster_is_here = false;

    // A warp goes on until none of its groups has a row: all of its lanes take part in shuffles.
    const Walk walk = walk_over_rows();
    for (u64 skipped = 0; walk.of_warp + skipped < args.rows; skipped += walk.step) {
        const u64 first_row = walk.row + skipped;
        using Held = Select<is_half<Src>, Src, A>;
        Select<is_half<Src>, Pack<Src, Rows::pack>, Values<A, Rows::pack>> x[Rows::rows][Rows::packs];
        // The result is (x - shift) times factor less rest, but a power of x - shift where half types are held.
        A factor[Rows::rows], shift[Rows::rows], rest[Rows::rows];
        u32 late_zero = zero;
        {
            Pack<Src, Rows::pack> packs[Rows::rows][Rows::packs];
#pragma unroll
            for (u32 r = 0; r < Rows::rows; ++r) {
                const u64 row = least(first_row + r, args.rows - 1);
                load_row(packs[r], pointer<const Src>(args.src) + row * args.cols, cols,
                    span_of(row, args.rows, args.cols), convert<Src>(lowest));
            }
#pragma unroll
            for (u32 r = 0; r < Rows::rows; ++r)
#pragma unroll
                for (int j = 0; j < Rows::packs; ++j)
#pragma unroll
                    for (int i = 0; i < Rows::pack; ++i) x[r][j].at[i] = convert<Held>(packs[r][j].at[i]);
        }
#pragma unroll
        for (u32 r = 0; r < Rows::rows; ++r) {
            A max = lowest, sum = 0;
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j)
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) max = greatest(max, convert<A>(x[r][j].at[i]));
            max = over_lanes_of_row(max, [](A a, A b) { return greatest(a, b); });
            const A base = Rows::in_warp ? max : base_of(max);
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j) {
                forget(x[r][j], zero);
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) {
                    const A e = exp_fast(convert<A>(x[r][j].at[i]) - base);
                    sum += e;
                    if constexpr (holds_powers) x[r][j].at[i] = convert<Held>(log ? convert<A>(x[r][j].at[i]) : e);
                }
            }
            sum = over_lanes_of_row(sum, [](A a, A b) { return a + b; });
            Normalizer<A> all{max, sum};
            if constexpr (!Rows::in_warp) {
                if (!cluster_is_here) {
                    cluster_wait();
                    cluster_is_here = true;
                }
                all = exchange.all(all, [](Normalizer<A> a, Normalizer<A> b) { return merge(a, b); });
                late_zero = exchange.late_zero();
            }
            shift[r] = holds_powers && !log ? A(0) : all.max;
            factor[r] = log ? A(1) : (Rows::in_warp || !holds_powers ? A(1) : exp_fast(max - all.max)) / all.sum;
            rest[r] = log ? logarithm(all.sum) : A(0);
        }
#pragma unroll
        for (u32 r = 0; r < Rows::rows; ++r) {
            const u64 row = first_row + r;
            if (row >= args.rows) break;
            const Src* like = pointer<const Src>(args.src) + row * args.cols;
            store_row(pointer<Dst>(args.dst) + row * args.cols, like, cols, [&](Pack<Dst, Rows::pack>& out, int j) {
                forget(x[r][j], late_zero);
                A results[Rows::pack];
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) {
                    const A past = convert<A>(x[r][j].at[i]) - shift[r];
                    results[i] = holds_powers || log ? past * factor[r] - rest[r] : exp_fast(past) * factor[r];
                }
                narrow(out, results);
            });
        }
    }
    if (!cluster_is_here) cluster_wait();
}
