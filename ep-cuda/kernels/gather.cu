// gather and batch_gather: dst[b, o, i, :] = src[b, o, indices[b, i], :], rows cut into pieces of EP_SIZE bytes.
//
// EP_MODE  wrap, zero or error     EP_INDICES  i32 or i64     EP_SIZE  bytes of a piece: rows and addresses are
// multiples of it     EP_INDEX  u32 where the pieces of dst are below 2^31, else u64     EP_THREADS, EP_UNROLL
//
// With no piece in a row the indices are checked all the same: the launch then has one thread for each.
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

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_gather(const __grid_constant__ Args args) {
    const EP_INDICES* indices = pointer<const EP_INDICES>(args.indices);
    const u64 first = u64(blockIdx.x) * (EP_THREADS * EP_UNROLL) + threadIdx.x;
    if (args.checked) {
#pragma unroll
        for (int u = 0; u < EP_UNROLL; ++u) {
            const u64 i = first + u * EP_THREADS;
            if (i < args.checked) resolve(args, i, indices[i], true);
        }
        return;
    }
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
        if (place >= 0) load<Reuse::constant>(data[u], from);
        else data[u].at[0] = Piece{};
    }
#pragma unroll
    for (int u = 0; u < EP_UNROLL; ++u) {
        const u64 at = first + u * EP_THREADS;
        if (at < args.pieces) store(pointer<Piece>(args.dst) + at, data[u]);
    }
}
