// Gradients of softmax and log-softmax for rows that fit the registers of the threads that share them.
//
// EP_SRC (y and dy), EP_DST  dtypes     EP_LOG  1: of log-softmax; where it is not given, one kernel computes both
// and what rows.cuh names.
#include "rows.cuh"
#include "normalizer.cuh"

using Src = EP_SRC;
using Dst = EP_DST;
using A = Between<Src, Dst>;

struct Args {
    u64 rows, cols, y, dy, dx;
    u64 log;   // 1: of log-softmax; not read where EP_LOG is given
};

extern "C" __global__ void EP_CLUSTER_DIMS __launch_bounds__(EP_THREADS, Rows::resident) ep_softmax_backward(
    const __grid_constant__ Args args) {
    await_stream();
    const i32 cols = i32(args.cols);
    const Src nothing = convert<Src>(A(0));
#ifdef EP_LOG
    constexpr bool log = EP_LOG;
#else
    const bool log = args.log;
#endif
    const u32 zero = u32(args.cols >> 32);
    __shared__ typename Exchange<A>::Shared shared;
    Exchange<A> exchange(shared, zero);
    cluster_arrive();
    bool cluster_is_here = false;

    // A warp goes on until none of its groups has a row: all of its lanes take part in shuffles.
    const Walk walk = walk_over_rows();
    for (u64 skipped = 0; walk.of_warp + skipped < args.rows; skipped += walk.step) {
        const u64 first_row = walk.row + skipped;
        Pack<Src, Rows::pack> y[Rows::rows][Rows::packs], dy[Rows::rows][Rows::packs];
        A total[Rows::rows];
        u32 late_zero = zero;
#pragma unroll
        for (u32 r = 0; r < Rows::rows; ++r) {
            const u64 row = least(first_row + r, args.rows - 1);
            const Span span = span_of(row, args.rows, args.cols);
            const Src* const from = pointer<const Src>(args.y) + row * args.cols;
            const Src* const gradient = pointer<const Src>(args.dy) + row * args.cols;
            const Cut cut = cut_of(from, cols);
            const bool alike = Rows::is_aligned || cut.before == elements_past_pack(gradient);
            RowLoad<Src> of_y(y[r], from, cut, span, nothing), of_dy(dy[r], gradient, cut, span, nothing, alike);
            of_y.finish(y[r]);
            if (alike) of_dy.finish(dy[r]);
            else load_row_apart(dy[r], gradient, cut, cols, span, nothing);
        }
#pragma unroll
        for (u32 r = 0; r < Rows::rows; ++r) {
            A sum = 0;
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j) {
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) {
                    const A dyi = convert<A>(dy[r][j].at[i]);
                    sum += (log ? A(1) : convert<A>(y[r][j].at[i])) * dyi;
                }
            }
            sum = over_lanes_of_row(sum, [](A a, A b) { return a + b; });
            if constexpr (!Rows::in_warp) {
                if (!cluster_is_here) {
                    cluster_wait();
                    cluster_is_here = true;
                }
                sum = exchange.all(sum, [](A a, A b) { return a + b; });
                late_zero = exchange.late_zero();
            }
            total[r] = sum;
        }
#pragma unroll
        for (u32 r = 0; r < Rows::rows; ++r) {
            const u64 row = first_row + r;
            if (row >= args.rows) break;
            const Src* like = pointer<const Src>(args.y) + row * args.cols;
            store_row(pointer<Dst>(args.dx) + row * args.cols, like, cols, [&](Pack<Dst, Rows::pack>& out, int j) {
                forget(y[r][j], late_zero);
                forget(dy[r][j], late_zero);
                A results[Rows::pack];
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) {
                    const A yi = convert<A>(y[r][j].at[i]), dyi = convert<A>(dy[r][j].at[i]);
                    results[i] = log ? dyi - exp_fast(yi) * total[r] : (dyi - total[r]) * yi;
                }
                narrow(out, results);
            });
        }
    }
    if (!cluster_is_here) cluster_wait();
}
