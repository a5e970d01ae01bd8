// layer_norm and rms_norm of rows that fit the registers of the threads that share them.
//
// EP_DATA  dtype     EP_RMS  1: rms_norm, which uses gamma as its weight, and rstd as its inv_rms     and what
// rows.cuh names. With EP_KEPT (any value; rows are shared by a warp or more) warps or blocks take several rows, and keep
// gamma and beta of their columns in dynamic shared memory, as the packs of their rows have them: a thread reads what it
// wrote, and nobody else's. So all rows of a warp or block must begin at the same place of a pack: of rows that are not
// aligned the grid takes a multiple of EP_PACK at once, or all.
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

#ifdef EP_KEPT
constexpr bool keeps = true;
static_assert(Rows::lanes == warp_size, "all groups of a warp would need a row");
#else
constexpr bool keeps = false;
#endif

// Elements of a row by their number, mean and squared deviations from it.
struct Moments {
    A count, mean, squares;
};

EP_DEVICE A sum_of(A a, A b) { return a + b; }
[[maybe_unused]] EP_DEVICE f32 reciprocal_root(f32 x) { return rsqrtf(x); }
[[maybe_unused]] EP_DEVICE f64 reciprocal_root(f64 x) { return 1 / sqrt(x); }

// Squares of all warps' elements.
[[maybe_unused]] EP_DEVICE Moments over_row(Exchange<A>& exchange, Moments own, i32) { return {0, 0, exchange.all(own.squares, sum_of)}; }

// Moments of all warps' elements, so many: first their mean, which is exact where all are equal, then deviations from it.
[[maybe_unused]] EP_DEVICE Moments over_row(Exchange<Moments>& exchange, Moments own, i32 count) {
    const Moments* const found = exchange.gather(own);
    // Where this is for one row alone it is computed only now, for registers are few before.
    const A per_element = 1 / A(keeps ? count : count ^ i32(exchange.late_zero()));
    constexpr u32 places = Exchange<Moments>::places, lanes = least(places, warp_size);
    const u32 lane = threadIdx.x % lanes;
    // A mean that is not finite is no distance from itself.
    const A first = found[0].mean, some = first - first == 0 ? first : A(0);
    Moments all{0, 0, 0};
#pragma unroll
    for (u32 i = 0; i < places; i += warp_size)
        all.mean += (found[lane + i].mean - some) * (found[lane + i].count * per_element);
    all.mean = some + over_lanes<lanes>(all.mean, sum_of);
#pragma unroll
    for (u32 i = 0; i < places; i += warp_size) {
        // Of many places they are read again, for registers are few.
        const volatile Moments* const again = found + lane + i;
        const Moments part =
            places > 2 * warp_size ? Moments{again->count, again->mean, again->squares} : found[lane + i];
        const A distance = part.mean - all.mean;
        // Nothing where there are no elements.
        all.squares += part.squares + distance * (distance * part.count);
    }
    all.squares = over_lanes<lanes>(all.squares, sum_of);
    return all;
}

// What one element repeated so many times adds is taken out again: `share` is how often for each of the rest.
EP_DEVICE Moments without(Moments all, A element, A share) {
    const A distance = all.mean - element;
    const A squares = all.squares - distance * distance * all.count * share;
    // One that is infinite stays, whatever the share is.
    const A mean = all.mean - all.mean == 0 ? all.mean + distance * share : all.mean;
    return {all.count, mean, squares < 0 ? A(0) : squares};
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
// Blocks of 256 threads with more than four packs are as large as three for each multiprocessor leave registers for.
constexpr bool is_deep = !Rows::in_warp && Rows::threads == 256 && Rows::packs > 4;
// The same for the registers of layer_norm's warps.
constexpr u32 resident = is_deep ? 3 : Rows::in_warp && !EP_RMS ? (keeps ? 640 : 768) / Rows::threads : Rows::resident;

// Gamma and beta of half types are shifted into place out of two aligned packs where rows are not aligned. The packs at
// their ends, of which a part may be outside, each warp has in shared memory. The most packs of a thread leave no registers
// for this.
constexpr bool shifts = is_half<Data> && !Rows::is_aligned && Rows::packs < 8 && !keeps;
struct Ends {
    uint4 head, tail;
};
EP_DEVICE i32 past_pack(u64 weights) { return i32(weights / sizeof(Data) % Rows::pack); }
// The element of the ends that a lane puts there: four packs of 8.
EP_DEVICE Data element_of_ends(u64 gamma, u64 beta, i32 cols) {
    const u32 lane = thread_of_block() % warp_size;
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

EP_DEVICE Pack<Data, Rows::pack>* kept_weights() {
    extern __shared__ uint4 memory[];
    return reinterpret_cast<Pack<Data, Rows::pack>*>(memory) + threadIdx.x;
}
// Where pack j of this thread's gamma is, and of its beta.
EP_DEVICE i32 kept_at(i32 j, i32 of_beta) { return ((EP_RMS ? 1 : 2) * j + of_beta) * i32(threads_of_block()); }
EP_DEVICE void keep_weights(const Args& args, const Ends& none, i32 first, i32 step, i32 cols) {
#pragma unroll
    for (int j = 0; j < Rows::packs; j += together) {
        Pack<Data, Rows::pack> gamma[together], beta[together];
        load_weights(gamma, args.gamma, none, first + j * step, step, cols, A(1));
        if constexpr (!EP_RMS) load_weights(beta, args.beta, none, first + j * step, step, cols, A(0));
#pragma unroll
        for (int k = 0; k < together; ++k) {
            kept_weights()[kept_at(j + k, 0)].raw[0] = gamma[k].raw[0];
            if constexpr (!EP_RMS) kept_weights()[kept_at(j + k, 1)].raw[0] = beta[k].raw[0];
        }
    }
}

extern "C" __global__ void EP_CLUSTER_DIMS __launch_bounds__(EP_THREADS, resident) ep_norm(
    const __grid_constant__ Args args) {
    await_stream();
    const i32 cols = i32(args.cols);
    const u32 zero = u32(args.cols >> 32);
    using Found = Select<EP_RMS, A, Moments>;
    __shared__ typename Exchange<Found>::Shared shared;
    Exchange<Found> exchange(shared, zero);
    cluster_arrive();
    bool cluster_is_here = false;
    __shared__ Ends ends_of_warps[shifts ? Rows::threads / warp_size : 1][2];
    Ends* const ends = ends_of_warps[shifts ? thread_of_block() / warp_size : 0];
    [[maybe_unused]] Data of_ends;
    if constexpr (shifts) of_ends = element_of_ends(args.gamma, EP_RMS ? 0 : args.beta, cols);

    // A warp goes on until none of its groups has a row: all of its lanes take part in shuffles.
    const Walk walk = walk_over_rows();
    static_assert(Rows::rows == 1, "a group takes one row at a time");
    // Packs that are not all the row's are filled with an element of it, which is taken out of the statistics: with a
    // question for each element they would take much longer.
    constexpr bool fills_ends = !Rows::is_aligned && !EP_RMS;
    auto src_of = [&](u64 row) { return pointer<const Data>(args.src) + row * args.cols; };
    Pack<Data, Rows::pack> next[Rows::packs];
    [[maybe_unused]] Data filling;
    auto begin = [&](u64 row) {
        const Data* const src = src_of(row);
        RowLoad<Data>(next, src, cut_of(src, cols), span_of(row, args.rows, args.cols), convert<Data>(A(0)));
        if constexpr (fills_ends) filling = *src;
    };
    // Elements of this thread's warp.
    A number = 0;
    auto count_of = [&](i32 before) {
        return Rows::is_aligned ? cols : (before + cols + Rows::pack - 1) / Rows::pack * Rows::pack;
    };
    // Where all rows of a block begin alike, so do their packs.
    const u64 first_row = least(walk.row, args.rows - 1);
    u32 alike_all = 0;
    if constexpr (keeps) {
        const Data* const first_dst = pointer<const Data>(args.dst) + first_row * args.cols;
        alike_all = elements_past_pack(src_of(first_row)) == elements_past_pack(first_dst);
        // Held, where it would be found again for each pack.
        asm volatile("" : "+r"(alike_all));
        begin(first_row);
        if constexpr (!EP_RMS) number = A(held_by_warp(count_of(elements_past_pack(src_of(first_row)))));
        const Part part = part_of_row();
        const i32 first = i32(part.first) * Rows::pack - elements_past_pack(src_of(first_row));
        keep_weights(args, ends[0], first, i32(part.step) * Rows::pack, cols);
    }
    for (u64 skipped = 0; walk.of_warp + skipped < args.rows; skipped += walk.step) {
        const u64 own = walk.row + skipped, row = keeps ? own : least(own, args.rows - 1);
        const Data *const src = src_of(row), *const like = keeps ? src_of(first_row) : src;
        const Cut cut = cut_of(like, cols);
        Pack<Data, Rows::pack> x[Rows::packs];
        auto loads = [&] {
            const Span span = span_of(row, args.rows, args.cols);
            if constexpr (keeps) return RowLoad<Data>(src, cut, span, convert<Data>(A(0)));
            else return RowLoad<Data>(x, src, cut, span, convert<Data>(A(0)));
        }();
        if constexpr (keeps) {
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j) x[j] = next[j];
            if constexpr (fills_ends) loads.outside = filling;
            if (Rows::in_warp && row + walk.step < args.rows) begin(row + walk.step);
        }
        if constexpr (shifts) {
            if (skipped == 0) reinterpret_cast<Data*>(ends)[thread_of_block() % warp_size] = of_ends;
            __syncwarp();
        }
        if constexpr (fills_ends && !keeps) loads.outside = *src;
        loads.finish(x);
        // Within a warp first the mean, then the deviations from it, so that a large mean cancels nothing.
        const Part part = part_of_row();
        const i32 before = cut.before, step = i32(part.step) * Rows::pack;
        const i32 first = i32(part.first) * Rows::pack - before;
        const i32 count = count_of(before);
        A mean = 0;
        if constexpr (!EP_RMS) {
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j) {
                A values[Rows::pack];
                spread(values, x[j]);
                A sum = values[0];
#pragma unroll
                for (int i = 1; i < Rows::pack; ++i) sum += values[i];
                mean = j == 0 ? sum : mean + sum;
            }
            if constexpr (!keeps) number = A(held_by_warp(count));
            mean = over_lanes_of_row(mean, sum_of) / (number > 0 ? number : A(1));
        }
        A squares = 0;
        u32 late_zero = zero;
#pragma unroll
        for (int j = 0; j < Rows::packs; ++j) {
            const i32 start = first + j * step;
            A sum = 0;
            forget(x[j], zero);
            if (EP_RMS || start < cols) {
                A values[Rows::pack];
                spread(values, x[j]);
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i) sum += (values[i] - mean) * (values[i] - mean);
            }
            squares += sum;
        }
        squares = over_lanes_of_row(squares, sum_of);
        // The next row is on its way while blocks wait for each other.
        if (keeps && !Rows::in_warp && row + walk.step < args.rows) begin(row + walk.step);
        if constexpr (!Rows::in_warp) {
            if (!cluster_is_here) cluster_wait();
            cluster_is_here = true;
            const Moments all = over_row(exchange, {number, mean, squares}, count);
            mean = all.mean;
            squares = all.squares;
            late_zero = exchange.late_zero();
        }
        if constexpr (fills_ends) {
            const Moments own_alone = without({A(count), mean, squares}, widen(loads.outside), A(count - cols) / A(cols));
            mean = own_alone.mean;
            squares = own_alone.squares;
        }
        const A rstd = reciprocal_root(squares * (1 / A(keeps ? cols : cols ^ i32(late_zero))) + A(args.epsilon));
        if (!keeps && own >= args.rows) continue;
        [[maybe_unused]] const A shift = -mean * rstd;
        if (part.first == 0) {
            if (args.mean) pointer<A>(args.mean)[row] = mean;
            if (args.rstd) pointer<A>(args.rstd)[row] = rstd;
        }
        Data* const dst = pointer<Data>(args.dst) + row * args.cols;
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
                    if constexpr (!EP_RMS) beta[k] = kept_weights()[kept_at(j + k, 1)];
                }
                A results[Rows::pack], factors[Rows::pack];
                forget(x[j + k], late_zero);
                spread(results, x[j + k]);
                spread(factors, gamma[k]);
                // Of half types the difference may be rounded relative to the mean.
#pragma unroll
                for (int i = 0; i < Rows::pack; ++i)
                    results[i] = (is_half<Data> ? results[i] * rstd + shift : (results[i] - mean) * rstd) * factors[i];
                if constexpr (!EP_RMS) {
                    spread(factors, beta[k]);
#pragma unroll
                    for (int i = 0; i < Rows::pack; ++i) results[i] += factors[i];
                }
                Pack<Data, Rows::pack> out;
                narrow(out, results);
                if constexpr (keeps && !Rows::is_aligned && is_half<Data>) {
                    if (alike_all && (j + k > 0 || start >= 0) && start + Rows::pack <= cols) {
                        store(dst + start, out);
                        continue;
                    }
                    // Words that are stored whole are not taken apart before.
                    forget(out, zero);
                }
                store_pack(dst, j + k, start, cut, keeps ? bool(alike_all) : alike, out);
            }
        }
    }
    if (!cluster_is_here) cluster_wait();
}
