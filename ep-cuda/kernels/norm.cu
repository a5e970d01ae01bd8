// layer_norm and rms_norm of rows that fit the registers of the threads that share them.
//
// EP_DATA  dtype     EP_RMS  1: rms_norm, which uses gamma as its weight, and rstd as its inv_rms     and what
// rows.cuh names. With EP_KEPT (any value; rows are aligned, and shared by blocks) blocks take several rows, and keep
// gamma and beta of their columns in dynamic shared memory.
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

// What one element repeated so many times adds is taken out again.
EP_DEVICE Moments without(Moments all, A element, A times, A rest) {
    const A distance = all.mean - element, share = times / rest;
    const A squares = all.squares - distance * distance * all.count * share;
    return {rest, all.mean + distance * share, squares < 0 ? A(0) : squares};
}

// Elements of this thread's warp, of which a row's packs have so many.
EP_DEVICE i32 held_by_warp(i32 count) {
    if constexpr (Rows::in_warp) return count;
    const Part part = part_of_row();
    const i32 first = i32(part.first / warp_size * warp_size);
    i32 held = 0;
#pragma unroll
    for (int j = 0; j < Rows::packs; ++j) {
        const i32 begin = (first + j * i32(part.step)) * Rows::pack, end = begin + i32(warp_size) * Rows::pack;
        // The same number; the order of instructions that follows is what was measured to be fast.
        held += max(0, Rows::is_aligned ? min(end, count) - max(begin, 0) : min(end - begin, count - begin));
    }
    return held;
}

// Packs of gamma and beta that are loaded together: more need registers that other blocks could use.
constexpr int together = is_half<Data> && Rows::is_aligned && Rows::packs >= 4 ? 2 : 1;
static_assert(Rows::packs % together == 0, "all packs are in a group");
// The same for the registers of layer_norm's warps.
constexpr u32 resident = Rows::in_warp && !EP_RMS ? 768 / Rows::threads : Rows::resident;

// Gamma and beta of half types are shifted into place out of two aligned packs where rows are not aligned. The packs at
// their ends, of which a part may be outside, each warp has in shared memory. The most packs of a thread leave no registers
// for this.
constexpr bool shifts = is_half<Data> && !Rows::is_aligned && Rows::packs < 8;
struct Ends {
    uint4 head, tail;
};
EP_DEVICE i32 past_pack(u64 weights) { return i32(weights / sizeof(Data) % Rows::pack); }
// The element of the ends that a lane puts there: four packs of 8.
EP_DEVICE Data element_of_ends(u64 gamma, u64 beta, i32 cols) {
    const u32 lane = threadIdx.x % warp_size;
    const u64 weights = lane < 16 ? gamma : beta;
    const i32 past = past_pack(weights), begin = lane / 8 % 2 ? (cols - 1 + past) / Rows::pack * Rows::pack : 0;
    const i32 at = begin - past + i32(lane % 8);
    return weights != 0 && at >= 0 && at < cols ? pointer<const Data>(weights)[at] : Data{0};
}
EP_DEVICE void load_shifted(Pack<Data, Rows::pack>& pack, u64 weights, const Ends& ends, i32 start, i32 cols) {
    const i32 past = (start + past_pack(weights) + Rows::pack) % Rows::pack;
    auto aligned_at = [&](i32 at) {
        const uint4* place = pointer<const uint4>(weights + i64(at) * i64(sizeof(Data)));
        if (at + Rows::pack > cols) place = &ends.tail;
        if (at < 0) place = &ends.head;
        return *place;
    };
    const uint4 lower = aligned_at(start - past), upper = aligned_at(start - past + Rows::pack);
    u32 words[8] = {lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w};
    shift_words(words, past * i32(sizeof(Data)));
    pack.raw[0] = {words[0], words[1], words[2], words[3]};
}

// Of aligned rows few have weights that are not. Code for those would take the registers of half types with the most packs.
constexpr bool seldom_apart = is_half<Data> && Rows::is_aligned && Rows::packs == 8 && Rows::blocks == 1;

// Elements of gamma or beta at packs of this thread; `absent` where there is none.
EP_DEVICE void load_weights(
    Pack<Data, Rows::pack> (&packs)[together], u64 weights, const Ends& ends, i32 start, i32 step, i32 cols, A absent) {
#pragma unroll
    for (int k = 0; k < together; ++k) {
        const i32 at = start + k * step;
        const Data* const from = pointer<const Data>(weights);
        if (weights == 0) {
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i) packs[k].at[i] = convert<Data>(absent);
        } else if (at < cols) {
            if constexpr (shifts) load_shifted(packs[k], weights, ends, at, cols);
            else if (Rows::is_aligned && aligned(weights, Pack<Data, Rows::pack>::chunk))
                load<Source::constant>(packs[k], from + start + k * step);
            else if constexpr (seldom_apart) load_some(packs[k], from + at, 0, Rows::pack);
            else load_anywhere(packs[k], from, at, 0, cols, cols);
        }
    }
}

#ifdef EP_KEPT
// Wide gamma and beta would come from the second-level cache for each row: two more reads for each of the row. The next
// row is loaded before blocks wait for each other.
constexpr bool keeps = true;
static_assert(Rows::is_aligned && !Rows::in_warp && !EP_RMS, "a thread reads what it wrote, and nobody else's");
#else
constexpr bool keeps = false;
#endif
EP_DEVICE Pack<Data, Rows::pack>* kept_weights() {
    extern __shared__ uint4 memory[];
    return reinterpret_cast<Pack<Data, Rows::pack>*>(memory) + threadIdx.x;
}
// Where pack j of this thread's gamma is, and of its beta.
EP_DEVICE i32 kept_at(i32 j, i32 of_beta) { return (2 * j + of_beta) * i32(Rows::threads); }
EP_DEVICE void keep_weights(const Args& args, const Ends& none, i32 first, i32 step, i32 cols) {
#pragma unroll
    for (int j = 0; j < Rows::packs; j += together) {
        Pack<Data, Rows::pack> gamma[together], beta[together];
        load_weights(gamma, args.gamma, none, first + j * step, step, cols, A(1));
        load_weights(beta, args.beta, none, first + j * step, step, cols, A(0));
#pragma unroll
        for (int k = 0; k < together; ++k) {
            kept_weights()[kept_at(j + k, 0)].raw[0] = gamma[k].raw[0];
            kept_weights()[kept_at(j + k, 1)].raw[0] = beta[k].raw[0];
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
    __shared__ Ends ends_of_warps[shifts ? Rows::threads / warp_size : 1][2];
    Ends* const ends = ends_of_warps[shifts ? threadIdx.x / warp_size : 0];
    [[maybe_unused]] Data of_ends;
    if constexpr (shifts) of_ends = element_of_ends(args.gamma, EP_RMS ? 0 : args.beta, cols);

    // A warp goes on until none of its groups has a row: all of its lanes take part in shuffles.
    const Walk walk = walk_over_rows();
    static_assert(Rows::rows == 1, "a group takes one row at a time");
    Pack<Data, Rows::pack> next[Rows::packs];
    auto begin = [&](u64 row) {
        const Data* const src = pointer<const Data>(args.src) + row * args.cols;
        return RowLoad<Data>(next, src, cut_of(src, cols), span_of(row, args.rows, args.cols), convert<Data>(A(0)));
    };
    if constexpr (keeps) {
        begin(least(walk.row, args.rows - 1));
        const Part part = part_of_row();
        keep_weights(args, ends[0], i32(part.first) * Rows::pack, i32(part.step) * Rows::pack, cols);
    }
    for (u64 skipped = 0; walk.of_warp + skipped < args.rows; skipped += walk.step) {
        const u64 own = walk.row + skipped, row = least(own, args.rows - 1);
        const Data* const src = pointer<const Data>(args.src) + row * args.cols;
        Pack<Data, Rows::pack> x[Rows::packs];
        RowLoad<Data> loads(
            x, src, cut_of(src, cols), span_of(row, args.rows, args.cols), convert<Data>(A(0)), !keeps);
        if constexpr (keeps) {
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j) x[j] = next[j];
        }
        if constexpr (shifts) {
            if (skipped == 0) reinterpret_cast<Data*>(ends)[threadIdx.x % warp_size] = of_ends;
            __syncwarp();
        }
        // Packs that are not all the row's are filled with an element of it, which is taken out of the statistics: with
        // a question for each element they would take much longer.
        if (!Rows::is_aligned && !EP_RMS) loads.outside = *src;
        loads.finish(x);
        // Within a warp first the mean, then the deviations from it, so that a large mean cancels nothing.
        const Part part = part_of_row();
        const i32 before = elements_past_pack(src), step = i32(part.step) * Rows::pack;
        const i32 first = i32(part.first) * Rows::pack - before;
        const i32 count = Rows::is_aligned ? cols : (before + cols + Rows::pack - 1) / Rows::pack * Rows::pack;
        A mean = 0, number = 0;
        if constexpr (!EP_RMS) {
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j) {
                A sum = 0;
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) sum += widen(x[j].at[i]);
                mean += sum;
            }
            number = A(held_by_warp(count));
            mean = over_lanes<Rows::lanes>(mean, sum_of) / (number > 0 ? number : A(1));
        }
        A squares = 0;
        u32 late_zero = zero;
#pragma unroll
        for (int j = 0; j < Rows::packs; ++j) {
            const i32 start = first + j * step;
            A sum = 0;
            forget(x[j], zero);
            if (EP_RMS || start < cols) {
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) {
                    const A deviation = widen(x[j].at[i]) - mean;
                    sum += deviation * deviation;
                }
            }
            squares += sum;
        }
        squares = over_lanes<Rows::lanes>(squares, sum_of);
        if (keeps && row + walk.step < args.rows) begin(row + walk.step);
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
        if (!Rows::is_aligned && !EP_RMS) {
            const Moments own_alone = without({A(count), mean, squares}, widen(loads.outside), A(count - cols), A(cols));
            mean = own_alone.mean;
            squares = own_alone.squares;
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
            if constexpr (!keeps) {
                load_weights(gamma, args.gamma, ends[0], first + j * step, step, cols, A(1));
                if constexpr (!EP_RMS) load_weights(beta, args.beta, ends[1], first + j * step, step, cols, A(0));
            }
#pragma unroll
            for (int k = 0; k < together; ++k) {
                const i32 start = first + (j + k) * step;
                if (start >= cols) continue;
                if constexpr (keeps) {
                    gamma[k] = kept_weights()[kept_at(j + k, 0)];
                    beta[k] = kept_weights()[kept_at(j + k, 1)];
                }
                A results[Rows::pack];
                forget(x[j + k], late_zero);
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) {
                    // Of half types the difference may be rounded relative to the mean.
                    const A value = widen(x[j + k].at[i]);
                    const A scaled = (is_half<Data> ? value * rstd + shift : (value - mean) * rstd) * widen(gamma[k].at[i]);
                    if constexpr (EP_RMS) results[i] = scaled;
                    else results[i] = scaled + widen(beta[k].at[i]);
                }
                Pack<Data, Rows::pack> out;
                narrow(out, results);
                store_pack(dst, j + k, start, cut, alike, out);
            }
        }
    }
    if (!cluster_is_here) cluster_wait();
}
