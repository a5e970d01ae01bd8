// Rows held in the registers of a group of threads: part of a warp, a block, or a cluster of blocks.
//
// Specialised by
//   EP_THREADS  threads of a block
//   EP_LANES    threads that share a row within a warp: a power of two up to 32; 32 where a block or more does
//   EP_BLOCKS   blocks that share a row: 0 where a warp or less does, 1 for a block, 2 to 8 for a cluster (sm_90)
//   EP_ROWS     rows that a group holds at once; 1 unless EP_BLOCKS is 0
//   EP_PACK     elements that are loaded together
//   EP_PACKS    packs of a row that a thread holds
//   EP_ALIGNED  1: every row begins at a multiple of a pack and has whole packs; 0: it may begin and end within one
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
    static constexpr u32 sharers = in_warp ? lanes : threads * blocks;
    // Blocks for each multiprocessor, for which registers are left: without, some blocks of 512 threads would be alone.
    static constexpr u32 resident = in_warp || threads > 512 ? 1 : 1024 / threads;
    static_assert(in_warp || (lanes == warp_size && rows == 1), "a block shares one row at a time");
};

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

// Combines what the warps of a block, or of a cluster of blocks, found. Two sets of places make one barrier enough
// for each use: a warp cannot be two barriers ahead of another.
template <class A>
struct Exchange {
    static constexpr u32 warps = Rows::threads / warp_size;
    static constexpr u32 blocks = Rows::in_warp ? 1 : Rows::blocks;
    static constexpr u32 places = warps * blocks;

    struct Shared {
#if EP_BLOCKS > 1
        Arrival arrivals[2];
#endif
        A found[2][places];
        u32 zero;
    };
    Shared& shared;
    u32 uses = 0;

    // `zero` is one that the compiler does not know. A cluster meets between this and the first use.
    __device__ __forceinline__ Exchange(Shared& memory, u32 zero) : shared(memory) {
        if (Rows::in_warp || threadIdx.x != 0) return;
        shared.zero = zero;
#if EP_BLOCKS > 1
        shared.arrivals[0].init();
        shared.arrivals[1].init();
#endif
    }

    // A zero that is known only after the first use. What depends on it cannot be computed earlier, and kept.
    __device__ __forceinline__ u32 late_zero() const { return *static_cast<volatile u32*>(&shared.zero); }

    template <class F>
    __device__ __forceinline__ A all(A x, F combine) {
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
            A* place = found + block_rank() * warps + warp;
            Arrival& arrival = shared.arrivals[set];
            if (threadIdx.x == 0) arrival.expect(places * sizeof(A));
            if (lane < blocks) {
#pragma unroll
                for (u32 i = 0; i < sizeof(A) / 4; ++i)
                    arrival.send(reinterpret_cast<u32*>(place) + i, lane, u.words[i]);
            }
            arrival.wait(parity);
#endif
        }
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
    if constexpr (Rows::in_warp) return {threadIdx.x % Rows::lanes, Rows::lanes};
    else return {block_rank() * Rows::threads + threadIdx.x, Rows::sharers};
}

template <class T>
EP_DEVICE i32 elements_past_pack(const T* row) {
    return Rows::is_aligned ? 0 : i32((reinterpret_cast<u64>(row) / sizeof(T)) % Rows::pack);
}

// How far around a row's begin its tensor goes, as far as packs that touch the row can reach: a pack that is partly of
// neighbouring rows is read as a whole, but nothing outside of the tensor is.
struct Span {
    i32 before, after;
};
EP_DEVICE Span span_of(u64 row, u64 rows, u64 cols) {
    return {i32(least(row * cols, u64(Rows::pack))), i32(least((rows - row) * cols, cols + Rows::pack))};
}

// Gives this thread's elements past the row's ends, in packs that are partly inside, the value `outside`.
template <class T>
EP_DEVICE void mask_row(Pack<T, Rows::pack> (&packs)[Rows::packs], i32 first, i32 cols, T outside) {
#pragma unroll
    for (int j = 0; j < Rows::packs; ++j) {
        const i32 start = first + j * i32(Rows::sharers) * Rows::pack;
        // Of a thread's packs only the first can begin before the row.
        const bool ends_inside = u32(cols - start - 1) < u32(Rows::pack - 1);
        if (!ends_inside && (j > 0 || start >= 0)) continue;
#pragma unroll
        for (int i = 0; i < Rows::pack; ++i)
            if ((j == 0 && start + i < 0) || start + i >= cols) packs[j].at[i] = outside;
    }
}

// Loads this thread's packs of a row; what is past the row's ends gets `outside`. Pack 0 begins at or before the row,
// at a multiple of its size in memory.
template <class T>
EP_DEVICE void load_row(Pack<T, Rows::pack> (&packs)[Rows::packs], const T* row, i32 cols, Span span, T outside) {
    const i32 before = elements_past_pack(row), first = i32(part_of_row().first) * Rows::pack - before;
    // All loads before the first use of one, and no branches between them.
    const i32 last = Rows::is_aligned ? cols - 1 : least(cols - 1, span.after - Rows::pack);
#pragma unroll
    for (int j = 0; j < Rows::packs; ++j) {
        const i32 start = first + j * i32(Rows::sharers) * Rows::pack;
#pragma unroll
        for (int i = 0; i < Rows::pack; ++i) packs[j].at[i] = outside;
        if (start <= last && (Rows::is_aligned || j > 0 || start >= -span.before)) load(packs[j], row + start);
    }
    if constexpr (!Rows::is_aligned) {
        // The tensor's first and last elements.
        if (before > span.before || last < cols - 1) {
#pragma unroll
            for (int j = 0; j < Rows::packs; ++j) {
                const i32 start = first + j * i32(Rows::sharers) * Rows::pack;
                if (start < cols && (start > last || start < -span.before))
                    load_some(packs[j], row + start, -start, cols - start);
            }
        }
        mask_row(packs, first, cols, outside);
    }
}

// Loads a row by the positions of the packs of another that begins `before` elements past a pack.
template <class T>
EP_DEVICE void load_row_at(
    Pack<T, Rows::pack> (&packs)[Rows::packs], const T* row, i32 before, i32 cols, Span span, T outside) {
    if (Rows::is_aligned || before == elements_past_pack(row)) return load_row(packs, row, cols, span, outside);
    const i32 first = i32(part_of_row().first) * Rows::pack - before;
#pragma unroll
    for (int j = 0; j < Rows::packs; ++j) {
        const i32 start = first + j * i32(Rows::sharers) * Rows::pack;
#pragma unroll
        for (int i = 0; i < Rows::pack; ++i) packs[j].at[i] = outside;
        if (start < cols) load_anywhere(packs[j], row, start, -span.before, span.after, cols);
    }
    mask_row(packs, first, cols, outside);
}

// Stores the pack at element `start` of a row. `together`: the row's packs are those of memory.
template <class To>
EP_DEVICE void store_pack(To* row, i32 start, i32 cols, bool together, const Pack<To, Rows::pack>& pack) {
    if (Rows::is_aligned || (together && start >= 0 && start + Rows::pack <= cols)) store(row + start, pack);
    else store_some(row + start, pack, -start, cols - start);
}

// Stores a pack for each that `load_row` loaded from `like`: `fill(pack, j)` gives pack j its elements.
template <class To, class From, class F>
EP_DEVICE void store_row(To* row, const From* like, i32 cols, F fill) {
    const Part part = part_of_row();
    const i32 before = elements_past_pack(like);
    const bool together = before == elements_past_pack(row);
#pragma unroll
    for (int j = 0; j < Rows::packs; ++j) {
        const i32 start = i32(part.first + j * part.step) * Rows::pack - before;
        if (start >= cols) continue;
        Pack<To, Rows::pack> out;
        fill(out, j);
        store_pack(row, start, cols, together, out);
    }
}

// The first row of this thread's group, the first of its warp, and how far it is to the next.
struct Walk {
    u64 row, of_warp, step;
};
EP_DEVICE Walk walk_over_rows() {
    if constexpr (Rows::in_warp) {
        constexpr u32 groups = Rows::threads / Rows::lanes;
        const u64 before = u64(blockIdx.x) * groups;
        const u32 group = threadIdx.x / Rows::lanes, leader = threadIdx.x / warp_size * (warp_size / Rows::lanes);
        return {(before + group) * Rows::rows, (before + leader) * Rows::rows, u64(gridDim.x) * groups * Rows::rows};
    }
    constexpr u32 sharing = Rows::in_warp ? 1 : Rows::blocks;
    return {blockIdx.x / sharing, blockIdx.x / sharing, gridDim.x / sharing};
}
