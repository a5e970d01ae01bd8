// layer_norm and rms_norm of rows that fit the registers of the threads that share them.
//
// EP_DATA  dtype     EP_RMS  1: rms_norm, which uses gamma as its weight, and rstd as its inv_rms     and what
// rows.cuh names.
#include "rows.cuh"

using Data = EP_DATA;
using A = Compute<Data>;

struct Args {
    u64 rows, cols;
    f64 epsilon;
    u64 src, dst;
    u64 gamma, beta;   // 0 where there is none
    u64 mean, rstd;    // 0 where they are not wanted
};

// Elements of a row by their number, mean and squared deviations from it.
struct Moments {
    A count, mean, squares;
};

// Chan's formula; of nothing on both sides nothing.
EP_DEVICE Moments merge(Moments a, Moments b) {
    const A count = a.count + b.count, share = count > 0 ? b.count / count : A(0), distance = b.mean - a.mean;
    return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}
EP_DEVICE A sum_of(A a, A b) { return a + b; }

// The elements of a vector over the columns at the places of a row's packs.
template <class F>
EP_DEVICE void for_each_at(const Data* row, u64 vector, i32 cols, A absent, F f) {
    const Part part = part_of_row();
    const i32 before = elements_past_pack(row);
    const Data* from = pointer<const Data>(vector);
#pragma unroll
    for (int j = 0; j < Rows::packs; ++j) {
        const i32 start = i32(part.first + j * part.step) * Rows::pack - before;
        if (Rows::is_aligned && start >= cols) continue;
        if (vector != 0 && Rows::is_aligned && aligned(vector, Pack<Data, Rows::pack>::chunk)) {
            Pack<Data, Rows::pack> pack;
            load<Reuse::constant>(pack, from + start);
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i) f(j, i, widen(pack.at[i]));
        } else {
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i)
                if (start + i >= 0 && start + i < cols) f(j, i, vector ? widen(from[start + i]) : absent);
        }
    }
}

extern "C" __global__ void EP_CLUSTER_DIMS __launch_bounds__(EP_THREADS) ep_norm(const __grid_constant__ Args args) {
    const i32 cols = i32(args.cols);
    __shared__ typename Exchange<Moments>::Shared shared;
    Exchange<Moments> exchange(shared);
    cluster_arrive();
    bool cluster_is_here = false;

    // A warp goes on until none of its groups has a row: all of its lanes take part in shuffles.
    const Walk walk = walk_over_rows();
    static_assert(Rows::rows == 1, "a group takes one row at a time");
    for (u64 skipped = 0; walk.of_warp + skipped < args.rows; skipped += walk.step) {
        const u64 own = walk.row + skipped, row = least(own, args.rows - 1);
        const Data* const src = pointer<const Data>(args.src) + row * args.cols;
        A x[Rows::packs][Rows::pack];
        {
            Pack<Data, Rows::pack> packs[Rows::packs];
            load_row(packs, src, cols, convert<Data>(A(0)));
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j)
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) x[j][i] = widen(packs[j].at[i]);
        }
        // Within a warp first the mean, then the deviations from it, so that a large mean cancels nothing.
        const Part part = part_of_row();
        const i32 before = elements_past_pack(src);
        auto inside = [&](int j, int i) {
            const i32 at = i32(part.first + j * part.step) * Rows::pack - before + i;
            return at >= 0 && at < cols;
        };
        A mean = 0, number = 0;
        if constexpr (!EP_RMS) {
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j)
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) {
                    mean += x[j][i];
                    number += A(inside(j, i));
                }
            number = over_lanes<Rows::lanes>(number, sum_of);
            mean = over_lanes<Rows::lanes>(mean, sum_of) / (number > 0 ? number : A(1));
        }
        A squares = 0;
#pragma unroll
        for (int j = 0; j < Rows::packs; ++j)
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i) {
                const A deviation = EP_RMS || inside(j, i) ? x[j][i] - mean : A(0);
                squares += deviation * deviation;
            }
        squares = over_lanes<Rows::lanes>(squares, sum_of);
        if constexpr (!Rows::in_warp) {
            if (!cluster_is_here) cluster_wait();
            cluster_is_here = true;
            const Moments all = exchange.all(Moments{number, mean, squares}, [](Moments a, Moments b) {
                if constexpr (EP_RMS) return Moments{0, 0, a.squares + b.squares};
                else return merge(a, b);
            });
            mean = all.mean;
            squares = all.squares;
        }
        const A rstd = 1 / sqrt(squares / A(args.cols) + A(args.epsilon));
        if (own < args.rows) {
            if (part.first == 0) {
                if (args.mean) pointer<A>(args.mean)[row] = mean;
                if (args.rstd) pointer<A>(args.rstd)[row] = rstd;
            }
            for_each_at(src, args.gamma, cols, A(1), [&](int j, int i, A gamma) {
                x[j][i] = (x[j][i] - mean) * (rstd * gamma);
            });
            if constexpr (!EP_RMS) {
                if (args.beta)
                    for_each_at(src, args.beta, cols, A(0), [&](int j, int i, A beta) { x[j][i] += beta; });
            }
            store_row(pointer<Data>(args.dst) + row * args.cols, src, cols,
                [&](int j, int i) { return convert<Data>(x[j][i]); });
        }
    }
    if (!cluster_is_here) cluster_wait();
}
