// layer_norm and rms_norm of rows that fit the registers of the threads that share them.
//
// EP_DATA  dtype     EP_RMS  1: rms_norm, which uses gamma as its weight, and rstd as its inv_rms     and what
// rows.cuh names.
#define EP_ENDS_APART   // gamma and beta would have to be loaded for both ends of a joined pack
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

EP_DEVICE f32 quick_ratio(f32 a, f32 b) { return __fdividef(a, b); }
EP_DEVICE f64 quick_ratio(f64 a, f64 b) { return a / b; }

// Chan's formula; of nothing on both sides nothing.
EP_DEVICE Moments merge(Moments a, Moments b) {
    const A count = a.count + b.count, share = count > 0 ? quick_ratio(b.count, count) : A(0);
    const A distance = b.mean - a.mean;
    return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}
EP_DEVICE A sum_of(A a, A b) { return a + b; }

// Elements of a row that this thread's warp holds.
EP_DEVICE i32 held_by_warp(i32 before, i32 cols) {
    if constexpr (Rows::in_warp) return cols;
    const Part part = part_of_row();
    const i32 first = i32(part.first / warp_size * warp_size);
    i32 held = 0;
#pragma unroll
    for (int j = 0; j < Rows::packs; ++j) {
        const i32 begin = (first + j * i32(part.step)) * Rows::pack - before, end = begin + i32(warp_size) * Rows::pack;
        held += max(0, min(end, cols) - max(begin, 0));
    }
    return held;
}

// Packs of gamma and beta that are loaded together: more need registers that other blocks could use.
constexpr int together = is_half<Data> && Rows::is_aligned && Rows::packs >= 4 ? 2 : 1;
static_assert(Rows::packs % together == 0, "all packs are in a group");
// The same for the registers of layer_norm's warps.
constexpr u32 resident = Rows::in_warp && !EP_RMS ? 768 / Rows::threads : Rows::resident;

// Elements of gamma or beta at this thread's packs; `absent` where there is none.
EP_DEVICE void load_vector(Pack<Data, Rows::pack> (&packs)[together], u64 vector, i32 start, i32 step, i32 cols, A absent) {
#pragma unroll
    for (int k = 0; k < together; ++k) {
        if (vector == 0) {
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i) packs[k].at[i] = convert<Data>(absent);
        } else if (start + k * step < cols) {
            if (Rows::is_aligned && aligned(vector, Pack<Data, Rows::pack>::chunk))
                load<Reuse::constant>(packs[k], pointer<const Data>(vector) + start + k * step);
            else load_anywhere(packs[k], pointer<const Data>(vector), start + k * step, 0, cols, cols);
        }
    }
}

extern "C" __global__ void EP_CLUSTER_DIMS __launch_bounds__(EP_THREADS, resident) ep_norm(
    const __grid_constant__ Args args) {
    const i32 cols = i32(args.cols);
    const u32 zero = u32(args.cols >> 32);
    __shared__ typename Exchange<Moments>::Shared shared;
    Exchange<Moments> exchange(shared, zero);
    cluster_arrive();
    bool cluster_is_here = false;

    // A warp goes on until none of its groups has a row: all of its lanes take part in shuffles.
    const Walk walk = walk_over_rows();
    static_assert(Rows::rows == 1, "a group takes one row at a time");
    for (u64 skipped = 0; walk.of_warp + skipped < args.rows; skipped += walk.step) {
        const u64 own = walk.row + skipped, row = least(own, args.rows - 1);
        const Data* const src = pointer<const Data>(args.src) + row * args.cols;
        Pack<Data, Rows::pack> x[Rows::packs];
        load_row(x, src, cols, span_of(row, args.rows, args.cols), convert<Data>(A(0)));
        // Within a warp first the mean, then the deviations from it, so that a large mean cancels nothing.
        const Part part = part_of_row();
        const i32 before = elements_past_pack(src), step = i32(part.step) * Rows::pack;
        const i32 first = i32(part.first) * Rows::pack - before;
        A mean = 0, number = 0;
        if constexpr (!EP_RMS) {
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j) {
                A sum = 0;
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) sum += widen(x[j].at[i]);
                mean += sum;
            }
            number = A(held_by_warp(before, cols));
            mean = over_lanes<Rows::lanes>(mean, sum_of) / (number > 0 ? number : A(1));
        }
        A squares = 0;
        u32 late_zero = zero;
#pragma unroll
        for (int j = 0; j < Rows::packs; ++j) {
            const i32 start = first + j * step;
            A sum = 0;
            forget(x[j], zero);
            if (EP_RMS || (Rows::is_aligned ? start < cols : start >= 0 && start + Rows::pack <= cols)) {
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) {
                    const A deviation = widen(x[j].at[i]) - mean;
                    sum += deviation * deviation;
                }
            } else if (start < cols) {
                // What is outside of the row has no deviation.
                Pack<Data, Rows::pack> rest = x[j];
#pragma unroll 1
                for (int i = 0; i < Rows::pack; ++i) {
                    const A deviation = start + i >= 0 && start + i < cols ? widen(rest.at[0]) - mean : A(0);
                    sum += deviation * deviation;
#pragma unroll
                    for (int k = 0; k + 1 < Rows::pack; ++k) rest.at[k] = rest.at[k + 1];
                }
            }
            squares += sum;
        }
        squares = over_lanes<Rows::lanes>(squares, sum_of);
        if constexpr (!Rows::in_warp) {
            if (!cluster_is_here) cluster_wait();
            cluster_is_here = true;
            const Moments all = exchange.all(Moments{number, mean, squares}, [](Moments a, Moments b) {
                if constexpr (EP_RMS) return Moments{0, 0, a.squares + b.squares};
                else return merge(a, b);
            });
            late_zero = exchange.late_zero();
            mean = all.mean;
            squares = all.squares;
        }
        const A rstd = 1 / sqrt(squares / A(args.cols) + A(args.epsilon));
        if (own >= args.rows) continue;
        [[maybe_unused]] const A shift = -mean * rstd;
        if (part.first == 0) {
            if (args.mean) pointer<A>(args.mean)[row] = mean;
            if (args.rstd) pointer<A>(args.rstd)[row] = rstd;
        }
        Data* const dst = pointer<Data>(args.dst) + row * args.cols;
        const Cut cut = cut_of(src, cols);
        const bool alike = before == elements_past_pack(dst);
#pragma unroll
        for (int j = 0; j < Rows::packs; j += together) {
            Pack<Data, Rows::pack> gamma[together], beta[together];
            load_vector(gamma, args.gamma, first + j * step, step, cols, A(1));
            if constexpr (!EP_RMS) load_vector(beta, args.beta, first + j * step, step, cols, A(0));
#pragma unroll
            for (int k = 0; k < together; ++k) {
                const i32 start = first + (j + k) * step;
                if (start >= cols) continue;
                Pack<Data, Rows::pack> out;
                forget(x[j + k], late_zero);
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) {
                    // Of half types the difference may be rounded relative to the mean.
                    const A value = widen(x[j + k].at[i]);
                    const A scaled = (is_half<Data> ? value * rstd + shift : (value - mean) * rstd) * widen(gamma[k].at[i]);
                    if constexpr (EP_RMS) out.at[i] = convert<Data>(scaled);
                    else out.at[i] = convert<Data>(scaled + widen(beta[k].at[i]));
                }
                store_pack(dst, j + k, start, cut, alike, out);
            }
        }
    }
    if (!cluster_is_here) cluster_wait();
}
