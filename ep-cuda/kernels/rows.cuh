// Rows held in the registers of a group of threads: part of a warp, a block, or a cluster of blocks.
//
// Specialised by
//   EP_THREADS  threads of a block
//   EP_LANES    threads that share a row within a warp: a power of two up to 32; 32 where a block or more does; 0: as many as a
//               launch has in x, a power of two up to 32, with its groups in y
//   EP_BLOCKS   blocks that share a row: 0 where a warp or less does, 1 for a block, 2 to 8 for a cluster (sm_90)
//   EP_ROWS     rows that a group holds at once; 1 unless EP_BLOCKS is 0
//   EP_PACK     elements that are loaded together
//   EP_PACKS    packs of a row that a thread holds
//   EP_ALIGNED  1: every row begins at a multiple of a pack and has whole packs; 0: it may begin and end within one
// and, before the include, EP_ENDS_APART where the ends of a row do not share a pack. With EP_FEWER (any value; blocks and
// clusters) a launch may have fewer threads in a block, in whole warps: as many as the packs of its rows fill.
#pragma once
#include "common.cuh"

struct Rows {
    static constexpr u32 threads = EP_THREADS;
    static constexpr u32 lanes = EP_LANES;
    static constexpr u32 blocks = EP_BLOCKS;
    static constexpr u32 rows = EP_ROWS;
    static constexpr int pack = EP_PACK;
    static constexpr int packs = EP_PACKS;
    static constexpr bool is_aligned = EP_ALIGNED;
    static constexpr bool in_warp = blocks == 0;
    static constexpr bool any_lanes = lanes == 0;
#ifdef EP_ENDS_APART
    static constexpr bool joins_ends = false;
#else
    static constexpr bool joins_ends = true;
#endif
    // Blocks for each multiprocessor, for which registers are left: without, some blocks of 512 threads would be alone.
    static constexpr u32 resident = in_warp || threads > 512 ? 1 : 1024 / threads;
    static_assert(in_warp || (lanes == warp_size && rows == 1), "a block shares one row at a time");
#ifdef EP_FEWER
    static constexpr bool fewer = true;
    static_assert(!in_warp, "a warp is never less than one");
#else
    static constexpr bool fewer = false;
#endif
};

EP_DEVICE u32 threads_of_block() { return Rows::fewer ? blockDim.x : Rows::threads; }
EP_DEVICE u32 thread_of_block() { return Rows::any_lanes ? threadIdx.y * blockDim.x + threadIdx.x : threadIdx.x; }
// Threads that share a row within a warp.
EP_DEVICE u32 lanes_of_row() { return Rows::any_lanes ? blockDim.x : Rows::lanes; }
EP_DEVICE u32 sharers_of_row() { return Rows::in_warp ? lanes_of_row() : threads_of_block() * Rows::blocks; }

#if EP_BLOCKS > 1
#define EP_CLUSTER_DIMS __cluster_dims__(EP_BLOCKS, 1, 1)
EP_DEVICE u32 block_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
EP_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
EP_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

EP_DEVICE u32 shared_address(const void* place) { return u32(__cvta_generic_to_shared(place)); }
// The same place in the shared memory of another block of the cluster.
EP_DEVICE u32 remote_address(const void* place, u32 rank) {
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(place)), "r"(rank));
    return remote;
}

// A barrier in shared memory that is passed when so many bytes were sent to its block: without the fence over all memory
// that a barrier of the cluster is.
struct Arrival {
    u64 state;

    __device__ __forceinline__ void init() {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&state)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __device__ __forceinline__ void expect(u32 bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state)), "r"(bytes)
                     : "memory");
    }
    // Sends a word to the same place of another block.
    __device__ __forceinline__ void send(const void* place, u32 rank, u32 word) {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                         remote_address(place, rank)),
                     "r"(word), "r"(remote_address(&state, rank))
                     : "memory");
    }
    __device__ __forceinline__ void wait(u32 parity) {
        u32 passed;
        do {
            asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                         : "=r"(passed)
                         : "r"(shared_address(&state)), "r"(parity)
                         : "memory");
        } while (!passed);
    }
};
#else
#define EP_CLUSTER_DIMS
EP_DEVICE u32 block_rank() { return 0; }
EP_DEVICE void cluster_arrive() {}
EP_DEVICE void cluster_wait() {}
#endif

// ---- What the threads of a group tell each other -------------------------------------------------------------------

template <class A>
EP_DEVICE A shuffle_xor(A x, u32 distance) {
    static_assert(sizeof(A) % 4 == 0, "moved by words");
    union {
        A value;
        u32 words[sizeof(A) / 4];
    } from, to;
    from.value = x;
#pragma unroll
    for (u32 i = 0; i < sizeof(A) / 4; ++i) to.words[i] = __shfl_xor_sync(full_mask, from.words[i], distance);
    return to.value;
}

// Combines over each group of `Lanes` neighbours in a warp; all of them get the result.
template <u32 Lanes, class A, class F>
EP_DEVICE A over_lanes(A x, F combine) {
#pragma unroll
    for (u32 distance = Lanes / 2; distance > 0; distance /= 2) x = combine(x, shuffle_xor(x, distance));
    return x;
}

// Combines over the threads of a warp that share a row.
template <class A, class F>
EP_DEVICE A over_lanes_of_row(A x, F combine) {
    if constexpr (Rows::any_lanes) {
#pragma unroll
        for (u32 distance = 1; distance < warp_size; distance *= 2)
            if (distance < lanes_of_row()) x = combine(x, shuffle_xor(x, distance));
        return x;
    } else return over_lanes<Rows::lanes>(x, combine);
}

// Combines what the warps of a block, or of a cluster of blocks, found. Two sets of places make one barrier enough
// for each use: a warp cannot be two barriers ahead of another.
template <class A>
struct Exchange {
    static constexpr u32 warps = Rows::threads / warp_size;
    static constexpr u32 blocks = Rows::in_warp ? 1 : Rows::blocks;
    // Where some stay empty, as many as the lanes of a warp read.
    static constexpr u32 places = Rows::fewer && warps * blocks > warp_size
        ? (warps * blocks + warp_size - 1) / warp_size * warp_size
        : warps * blocks;
    static_assert(Rows::in_warp || places % warp_size == 0 || warp_size % places == 0, "lanes read as many each");

    struct Shared {
#if EP_BLOCKS > 1
        Arrival arrivals[2];
#endif
        A found[2][places];
        u32 zero;
    };
    Shared& shared;
    u32 uses = 0;

    // `zero` is one that the compiler does not know; `nothing` changes no result. A cluster meets between this and the first
    // use.
    __device__ __forceinline__ Exchange(Shared& memory, u32 zero, A nothing = A{}) : shared(memory) {
        if constexpr (Rows::fewer) {
            // Places of warps that are not there. The block meets before the first use, alone at the barrier of `gather`; a
            // cluster's barriers order no memory.
            for (u32 i = threadIdx.x + threads_of_block() / warp_size * blocks; i < places; i += threads_of_block())
                shared.found[0][i] = shared.found[1][i] = nothing;
            if (blocks > 1) __syncthreads();
        }
        if (Rows::in_warp || threadIdx.x != 0) return;
        shared.zero = zero;
#if EP_BLOCKS > 1
        shared.arrivals[0].init();
        shared.arrivals[1].init();
#endif
    }

    // A zero that is known only after the first use. What depends on it cannot be computed earlier, and kept.
    __device__ __forceinline__ u32 late_zero() const { return *static_cast<volatile u32*>(&shared.zero); }

    // What the warps found, each in its place.
    __device__ __forceinline__ const A* gather(A x) {
        const u32 lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
        const u32 set = uses % 2;
        [[maybe_unused]] const u32 parity = uses / 2 % 2;
        A* found = shared.found[set];
        ++uses;
        if constexpr (blocks == 1) {
            if (lane == 0) found[warp] = x;
            __syncthreads();
        } else {
#if EP_BLOCKS > 1
            union {
                A value;
                u32 words[sizeof(A) / 4];
            } u;
            u.value = x;
            const u32 warps_here = threads_of_block() / warp_size;
            A* place = found + block_rank() * warps_here + warp;
            Arrival& arrival = shared.arrivals[set];
            if (threadIdx.x == 0) arrival.expect(warps_here * blocks * u32(sizeof(A)));
            if (lane < blocks) {
#pragma unroll
                for (u32 i = 0; i < sizeof(A) / 4; ++i)
                    arrival.send(reinterpret_cast<u32*>(place) + i, lane, u.words[i]);
            }
            arrival.wait(parity);
#endif
        }
        return found;
    }
    template <class F>
    __device__ __forceinline__ A all(A x, F combine) {
        const u32 lane = threadIdx.x % warp_size;
        const A* const found = gather(x);
        A result = found[lane % places];
#pragma unroll
        for (u32 i = warp_size; i < places; i += warp_size) result = combine(result, found[lane + i]);
        return over_lanes<least(places, warp_size)>(result, combine);
    }
};

// ---- Rows between memory and registers -----------------------------------------------------------------------------

// Which part of its row a thread holds: packs first, first + step, ...
struct Part {
    u32 first, step;
};
EP_DEVICE Part part_of_row() {
    if constexpr (Rows::any_lanes) return {threadIdx.x, lanes_of_row()};
    else if constexpr (Rows::in_warp) return {threadIdx.x % lanes_of_row(), lanes_of_row()};
    else return {block_rank() * threads_of_block() + threadIdx.x, sharers_of_row()};
}

template <class T>
EP_DEVICE i32 elements_past_pack(const T* row) {
    return Rows::is_aligned ? 0 : i32((reinterpret_cast<u64>(row) / sizeof(T)) % Rows::pack);
}

// How the packs of memory cut a row. The first one holds its elements from `before` on. The last elements, where they do
// not fill a pack and fit in front of these, are held there: `tail` of them, from element `end` on. So no row takes more
// packs than its elements fill, and those of one that is only shifted are full.
struct Cut {
    i32 before, tail, end;
};
template <class T>
EP_DEVICE Cut cut_of(const T* row, i32 cols) {
    if constexpr (Rows::is_aligned) return {0, 0, cols};
    const i32 before = elements_past_pack(row), past = i32(u32(before + cols) % Rows::pack);
    const i32 tail = Rows::joins_ends && past <= before && before + cols > Rows::pack ? past : 0;
    return {before, tail, cols - tail};
}

// How far around a row's begin its tensor goes, as far as packs that touch the row can reach: a pack that is partly of
// neighbouring rows is read as a whole, but nothing outside of the tensor is.
struct Span {
    i32 before, after;
};
EP_DEVICE Span span_of(u64 row, u64 rows, u64 cols) {
    return {i32(least(row * cols, u64(Rows::pack))), i32(least((rows - row) * cols, cols + Rows::pack))};
}

// Whether all elements of the pack that begins at element `start` are the row's.
EP_DEVICE bool is_whole(Cut cut, i32 start) {
    return start + Rows::pack <= cut.end && (start >= 0 || cut.tail == cut.before);
}
// Whether element i of this pack is.
EP_DEVICE bool is_held(Cut cut, i32 start, int i) { return start + i < 0 ? i < cut.tail : start + i < cut.end; }
// Whether the last pack is filled, or is the first one.
EP_DEVICE bool ends_with_pack(Cut cut) { return u32(cut.before + cut.end) % Rows::pack == 0; }

// Puts the row's tail in front of the first pack's elements.
template <class T>
EP_DEVICE void put_tail(Pack<T, Rows::pack>& first, const Pack<T, Rows::pack>& tail, Cut cut) {
#pragma unroll
    for (int i = 0; i < Rows::pack; ++i)
        if (i < cut.tail) first.at[i] = tail.at[i];
}

// Puts the row's tail in front of the first pack's elements, and gives those of this thread's elements that are not the
// row's the value `outside`.
template <class T>
EP_DEVICE void finish_ends(
    Pack<T, Rows::pack> (&packs)[Rows::packs], const Pack<T, Rows::pack>& tail, i32 first, Cut cut, T outside) {
    // Of a thread's packs only the first can begin before the row.
    if (first < 0) {
        put_tail(packs[0], tail, cut);
        if (!is_whole(cut, first)) {
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i)
                if (!is_held(cut, first, i)) packs[0].at[i] = outside;
        }
    }
    if (ends_with_pack(cut)) return;
#pragma unroll
    for (int j = 0; j < Rows::packs; ++j) {
        const i32 left = cut.end - (first + j * i32(sharers_of_row()) * Rows::pack);
        if (u32(left - 1) >= u32(Rows::pack - 1)) continue;
#pragma unroll
        for (int i = 1; i < Rows::pack; ++i)
            if (i >= left) packs[j].at[i] = outside;
    }
}

// This thread's packs of a row; what is past the row's ends gets `outside`. Pack 0 begins at or before the row, at a
// multiple of its size in memory. The first step only loads: all that a thread needs before it waits for any.
template <class T>
struct RowLoad {
    const T* row;
    Cut cut;
    Span span;
    T outside;
    i32 first, last;
    Pack<T, Rows::pack> tail;

    // Of packs that are loaded already.
    __device__ __forceinline__ RowLoad(const T* from, Cut of_row, Span around, T nothing)
        : row(from), cut(of_row), span(around), outside(nothing) {
        first = i32(part_of_row().first) * Rows::pack - cut.before;
        last = Rows::is_aligned ? cut.end - 1 : least(cut.end - 1, span.after - Rows::pack);
    }
    __device__ __forceinline__ RowLoad(
        Pack<T, Rows::pack> (&packs)[Rows::packs], const T* from, Cut of_row, Span around, T nothing, bool loads = true)
        : RowLoad(from, of_row, around, nothing) {
        if (!loads) last = -Rows::pack;
#pragma unroll
        for (int j = 0; j < Rows::packs; ++j) {
            const i32 start = first + j * i32(sharers_of_row()) * Rows::pack;
#pragma unroll
            for (int i = 0; i < Rows::pack; ++i) packs[j].at[i] = outside;
            if (start <= last && (Rows::is_aligned || j > 0 || start >= -span.before)) load(packs[j], row + start);
        }
        if (!Rows::is_aligned && loads && first < 0 && cut.tail > 0 && tail_is_inside()) load(tail, row + cut.end);
    }
    __device__ __forceinline__ bool tail_is_inside() const { return cut.end <= span.after - Rows::pack; }

    __device__ __forceinline__ void finish(Pack<T, Rows::pack> (&packs)[Rows::packs]) {
        if constexpr (Rows::is_aligned) return;
        // The tensor's first and last elements are loaded alone.
        if (first < 0 && (first < -span.before || first > last)) load_some(packs[0], row + first, -first, cut.end - first);
        if (first < 0 && cut.tail > 0 && !tail_is_inside()) load_some(tail, row + cut.end, 0, cut.tail);
        if (last < cut.end - 1 && !ends_with_pack(cut)) {
            const i32 start = cut.end - i32(u32(cut.before + cut.end) % Rows::pack);
            Pack<T, Rows::pack> pack;
            load_some(pack, row + start, 0, cut.end - start);
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j)
                if (start >= 0 && start == first + j * i32(sharers_of_row()) * Rows::pack) packs[j] = pack;
        }
        finish_ends(packs, tail, first, cut, outside);
    }
};
template <class T>
EP_DEVICE void load_row(Pack<T, Rows::pack> (&packs)[Rows::packs], const T* row, i32 cols, Span span, T outside) {
    RowLoad<T>(packs, row, cut_of(row, cols), span, outside).finish(packs);
}

// Loads a row by the positions of the packs of another with this cut, of which it does not have the alignment.
template <class T>
EP_DEVICE void load_row_apart(
    Pack<T, Rows::pack> (&packs)[Rows::packs], const T* row, Cut cut, i32 cols, Span span, T outside) {
    const i32 first = i32(part_of_row().first) * Rows::pack - cut.before;
    auto get = [&](Pack<T, Rows::pack>& pack, i32 start) {
        load_anywhere(pack, row, start, -span.before, span.after, cols);
    };
#pragma unroll
    for (int j = 0; j < Rows::packs; ++j) {
        const i32 start = first + j * i32(sharers_of_row()) * Rows::pack;
#pragma unroll
        for (int i = 0; i < Rows::pack; ++i) packs[j].at[i] = outside;
        if (start < cut.end) get(packs[j], start);
    }
    Pack<T, Rows::pack> tail;
    if (first < 0 && cut.tail > 0) get(tail, cut.end);
    finish_ends(packs, tail, first, cut, outside);
}

// A pack to any address of an element: those of 2 bytes by words.
template <class T, int N>
EP_DEVICE void store_anywhere(T* to, const Pack<T, N>& pack) {
    if constexpr (sizeof(T) == 2 && N > 2) {
        const bool odd = reinterpret_cast<u64>(to) & 2;
        if (odd) {
            to[0] = pack.at[0];
            to[N - 1] = pack.at[N - 1];
        }
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            if (odd && i == N / 2 - 1) break;
            Pack<T, 2> pair;
            pair.at[0] = odd ? pack.at[2 * i + 1] : pack.at[2 * i];
            pair.at[1] = odd ? pack.at[(2 * i + 2) % N] : pack.at[2 * i + 1];
            store(to + 2 * i + odd, pair);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = pack.at[i];
    }
}

// Stores pack j of this thread, which begins at element `start` of a row, by the cut of another. `together`: they are
// packs of this one's memory, too.
template <class To>
EP_DEVICE void store_pack(To* row, int j, i32 start, Cut cut, bool together, const Pack<To, Rows::pack>& pack) {
    constexpr int size = Rows::pack;
    if constexpr (Rows::is_aligned) return store(row + start, pack);
    if ((j > 0 || start >= 0) && start + size <= cut.end) {
        if (together) store(row + start, pack);
        else store_anywhere(row + start, pack);
        return;
    }
#pragma unroll
    for (int i = 0; i < size; ++i) {
        if ((j > 0 || start + i >= 0) && start + i < cut.end) row[start + i] = pack.at[i];
        if (j == 0 && start < 0 && i < cut.tail) row[cut.end + i] = pack.at[i];
    }
}

// Stores a pack for each that `load_row` loaded from `like`: `fill(pack, j)` gives pack j its elements.
template <class To, class From, class F>
EP_DEVICE void store_row(To* row, const From* like, i32 cols, F fill) {
    const Part part = part_of_row();
    const Cut cut = cut_of(like, cols);
    const bool together = cut.before == elements_past_pack(row);
#pragma unroll
    for (int j = 0; j < Rows::packs; ++j) {
        const i32 start = i32(part.first + j * part.step) * Rows::pack - cut.before;
        if (start >= cut.end) continue;
        Pack<To, Rows::pack> pack;
        fill(pack, j);
        store_pack(row, j, start, cut, together, pack);
    }
}

// The first row of this thread's group, the first of its warp, and how far it is to the next.
struct Walk {
    u64 row, of_warp, step;
};
EP_DEVICE Walk walk_over_rows() {
    if constexpr (Rows::in_warp) {
        const u32 groups = Rows::any_lanes ? blockDim.y : Rows::threads / lanes_of_row();
        const u64 before = u64(blockIdx.x) * groups;
        u32 group = threadIdx.y, leader = group;
        if constexpr (Rows::any_lanes) {
            // The number of a group in its warp is below 32 / lanes; divisions would take longer than all else here.
            leader &= ~((warp_size - 1) >> (31 - __clz(lanes_of_row())));
        } else {
            // Never 0 here; but the other kernels' compilers read this branch, too.
            constexpr u32 lanes = Rows::any_lanes ? warp_size : Rows::lanes;
            group = threadIdx.x / lanes;
            leader = threadIdx.x / warp_size * (warp_size / lanes);
        }
        return {(before + group) * Rows::rows, (before + leader) * Rows::rows, u64(gridDim.x) * groups * Rows::rows};
    }
    constexpr u32 sharing = Rows::in_warp ? 1 : Rows::blocks;
    return {blockIdx.x / sharing, blockIdx.x / sharing, gridDim.x / sharing};
}
