// gather and batch_gather: dst[b, o, i, :] = src[b, o, indices[b, i], :], rows cut into pieces of EP_SIZE bytes.
//
// EP_MODE  wrap, zero or error     EP_INDICES  i32 or i64     EP_SIZE  bytes of a piece: rows and addresses are
// multiples of it     EP_INDEX  u32 where the pieces of dst are below 2^31, else u64     EP_THREADS, EP_UNROLL
//
// With no piece in a row the indices are checked all the same: the launch then has one thread for each. Many short rows
// are gathered by warps: a thread for the index of each row, then all of them for the pieces of these rows.
#include "indices.cuh"

using Piece = BitsOf<EP_SIZE>;
using Index = EP_INDEX;
constexpr IndexMode mode = IndexMode::EP_MODE;

struct Args {
    // Of dst.
    u64 pieces;
    FastDiv per_row;       // pieces of a row
    FastDiv num_indices;   // of a batch
    FastDiv outer;
    Window window;
    u64 indices, src, dst;
    u64 error;
    u64 launch;
    // Indices in all, for the check alone; else 0.
    u64 checked;
    // Rows of dst where warps gather them; else 0.
    u64 short_rows;
};

template <class T>
EP_DEVICE i64 resolve(const Args& args, u64 position, T given, bool reports) {
    bool refused;
    const i64 place = place_in<mode>(args.window, given, refused);
    if constexpr (mode != IndexMode::zero) {
        if (refused && reports) report(args.error, u32(args.launch), position, i64(given));
    }
    return place;
}

#if EP_SIZE < 16
// A thread finds where its row is; the pieces of a warp's rows follow each other in dst.
EP_DEVICE void gather_short_rows(const Args& args) {
    constexpr u32 together = 8;
    const u32 lane = threadIdx.x % warp_size;
    const u64 first_row = u64(blockIdx.x) * EP_THREADS + threadIdx.x - lane;
    if (first_row >= args.short_rows) return;
    const u32 rows = u32(least(args.short_rows - first_row, u64(warp_size))), per_row = u32(args.per_row.divisor);
    // Where each row begins, 0 for a row of zeros.
    __shared__ u64 begins[EP_THREADS];
    u64* const begin = begins + (threadIdx.x - lane);
    if (lane < rows) {
        Index i, o;
        const Index lead = divide(args.num_indices, Index(first_row + lane), i);
        const Index batch = divide(args.outer, lead, o);
        const u64 position = u64(batch) * args.num_indices.divisor + i;
        const i64 place = resolve(args, position, __ldg(pointer<const EP_INDICES>(args.indices) + position), o == 0);
        const u64 row = u64(lead) * u64(args.window.length) + u64(place);
        begin[lane] = place >= 0 ? args.src + row * per_row * EP_SIZE : 0;
    }
    __syncwarp();
    Piece* const dst = pointer<Piece>(args.dst) + first_row * per_row;
    const u32 pieces = rows * per_row;
    for (u32 first = lane; first < pieces; first += warp_size * together) {
        Pack<Piece, 1> data[together];
#pragma unroll
        for (u32 k = 0; k < together; ++k) {
            u32 at;
            const u32 row = divide(args.per_row, first + k * warp_size, at);
            const u64 from = first + k * warp_size < pieces ? begin[row] : 0;
            data[k].at[0] = Piece{};
            if (from) load<Source::constant>(data[k], pointer<const Piece>(from) + at);
        }
#pragma unroll
        for (u32 k = 0; k < together; ++k)
            if (first + k * warp_size < pieces) store(dst + first + k * warp_size, data[k]);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_gather(const __grid_constant__ Args args) {
    await_stream();
    const EP_INDICES* indices = pointer<const EP_INDICES>(args.indices);
    const u64 first = u64(blockIdx.x) * (EP_THREADS * EP_UNROLL) + threadIdx.x;
    if (args.checked) {
#pragma unroll 1
        for (int u = 0; u < EP_UNROLL; ++u) {
            const u64 i = first + u * EP_THREADS;
            if (i < args.checked) resolve(args, i, indices[i], true);
        }
        return;
    }
#if EP_SIZE < 16
    if (args.short_rows) return gather_short_rows(args);
#endif
    Pack<Piece, 1> data[EP_UNROLL];
    EP_INDICES given[EP_UNROLL];
    Index piece[EP_UNROLL], lead[EP_UNROLL];
    u64 position[EP_UNROLL];
    bool reports[EP_UNROLL];
#pragma unroll
    for (int u = 0; u < EP_UNROLL; ++u) {
        const u64 at = first + u * EP_THREADS;
        if (at >= args.pieces) break;
        Index i, o;
        const Index row = divide(args.per_row, Index(at), piece[u]);
        lead[u] = divide(args.num_indices, row, i);
        const Index batch = divide(args.outer, lead[u], o);
        position[u] = u64(batch) * args.num_indices.divisor + i;
        reports[u] = o == 0 && piece[u] == 0;
        given[u] = __ldg(indices + position[u]);
    }
#pragma unroll
    for (int u = 0; u < EP_UNROLL; ++u) {
        const u64 at = first + u * EP_THREADS;
        if (at >= args.pieces) break;
        const i64 place = resolve(args, position[u], given[u], reports[u]);
        const u64 row = u64(lead[u]) * u64(args.window.length) + u64(place);
        const Piece* from = pointer<const Piece>(args.src) + row * args.per_row.divisor + piece[u];
        if (place >= 0) load<Source::constant>(data[u], from);
        else data[u].at[0] = Piece{};
    }
#pragma unroll
    for (int u = 0; u < EP_UNROLL; ++u) {
        const u64 at = first + u * EP_THREADS;
        if (at < args.pieces) store(pointer<Piece>(args.dst) + at, data[u]);
    }
}
