// c = alpha * sum of op(a) op(b) + beta * c over batches, for what cuBLASLt does not take: integers, elements that are
// aligned to a part of themselves, sums of half types over batches, and products over nothing.
// EP_DATA is the dtype (of integers the unsigned one: results modulo a power of two are the same); 256 threads.
#include "common.cuh"

using Data = EP_DATA;

constexpr u32 threads = 256, tile = 64, depth = 16, each = 4;
constexpr int max_loops = 6;

// A dimension of the batch with the steps of a, b and c in elements.
struct Loop {
    u64 length, a, b, c;
};

struct Args {
    u64 a, b, c;
    u64 m, n, k;
    // Steps from row to row and from column to column of op(a) and op(b). c is dense.
    u64 a_row, a_col, b_row, b_col;
    // Loops over results, outermost first, and those over what is summed into one; the counts are their products.
    u64 outer_count, inner_count;
    u64 outer_rank, inner_rank;
    Loop outer[max_loops], inner[max_loops];
    // In the type that sums are computed in.
    u64 alpha[2], beta[2];
    // 0: c is not read.
    u64 read_c;
    // Bit 0: conjugate a; bit 1: b.
    u64 conjugate;
};

using Sum = Select<is_int<Data> && (sizeof(Data) < 4), u32, Compute<Data>>;

// Complex elements may be aligned to one part only.
template <class S, class T>
EP_DEVICE S fetch(const T* from, bool conjugate) {
    if constexpr (is_complex<T>) {
        using Part = decltype(T{}.re);
        auto parts = reinterpret_cast<const Part*>(from);
        return S{parts[0], conjugate ? -parts[1] : parts[1]};
    } else return S(widen(*from));
}
template <class S, class T>
EP_DEVICE void put(T* to, const S& value) {
    if constexpr (is_complex<T>) {
        using Part = decltype(T{}.re);
        auto parts = reinterpret_cast<Part*>(to);
        parts[0] = value.re;
        parts[1] = value.im;
    } else if constexpr (is_int<T>) *to = T(value);
    else *to = convert<T>(value);
}

template <class S>
EP_DEVICE S nothing() {
    if constexpr (is_complex<S>) return S{0, 0};
    else return S(0);
}
template <class S>
EP_DEVICE void multiply_add(S& sum, const S& x, const S& y) {
    if constexpr (is_complex<S>) {
        sum.re += x.re * y.re - x.im * y.im;
        sum.im += x.re * y.im + x.im * y.re;
    } else sum += x * y;
}
// A real factor scales the parts, so that it makes no NaN of an infinity.
template <class S>
EP_DEVICE S scaled(const S& by, const S& x) {
    if constexpr (is_complex<S>) {
        if (by.im == 0) return S{by.re * x.re, by.re * x.im};
        return S{by.re * x.re - by.im * x.im, by.re * x.im + by.im * x.re};
    } else return by * x;
}
template <class S>
EP_DEVICE S added(const S& x, const S& y) {
    if constexpr (is_complex<S>) return S{x.re + y.re, x.im + y.im};
    else return x + y;
}

// Where an index of all loops together is, in a, b and c.
EP_DEVICE void walk(const Loop* loops, u64 rank, u64 index, u64& a, u64& b, u64& c) {
    for (u64 i = rank; i-- > 0;) {
        const u64 rest = index / loops[i].length, at = index - rest * loops[i].length;
        a += at * loops[i].a;
        b += at * loops[i].b;
        c += at * loops[i].c;
        index = rest;
    }
}

extern "C" __global__ void __launch_bounds__(256) ep_matmul(const __grid_constant__ Args args) {
    await_stream();
    __shared__ Sum left[depth][tile + 1], right[depth][tile + 1];
    const u64 columns = (args.n + tile - 1) / tile;
    const u64 row0 = u64(blockIdx.x) / columns * tile, col0 = u64(blockIdx.x) % columns * tile;
    const u32 t = threadIdx.x, across = t % (tile / each), down = t / (tile / each);
    const Sum alpha = from_bits<Sum>(args.alpha[0], args.alpha[1]);
    const Sum beta = from_bits<Sum>(args.beta[0], args.beta[1]);
    for (u64 outer = blockIdx.y; outer < args.outer_count; outer += gridDim.y) {
        u64 a0 = 0, b0 = 0, c0 = 0;
        walk(args.outer, args.outer_rank, outer, a0, b0, c0);
        Sum sums[each][each];
#pragma unroll
        for (u32 i = 0; i < each; ++i)
#pragma unroll
            for (u32 j = 0; j < each; ++j) sums[i][j] = nothing<Sum>();
        for (u64 inner = 0; inner < args.inner_count; ++inner) {
            u64 a1 = a0, b1 = b0, unused = 0;
            walk(args.inner, args.inner_rank, inner, a1, b1, unused);
            const Data *a = pointer<Data>(args.a) + a1, *b = pointer<Data>(args.b) + b1;
            for (u64 p0 = 0; p0 < args.k; p0 += depth) {
                // Neighbouring threads read along whichever dimension is dense.
                for (u32 i = t; i < tile * depth; i += threads) {
                    const u32 r = args.a_col == 1 ? i / depth : i % tile, p = args.a_col == 1 ? i % depth : i / tile;
                    const bool inside = row0 + r < args.m && p0 + p < args.k;
                    left[p][r] = inside
                        ? fetch<Sum>(a + (row0 + r) * args.a_row + (p0 + p) * args.a_col, args.conjugate & 1)
                        : nothing<Sum>();
                }
                for (u32 i = t; i < tile * depth; i += threads) {
                    const u32 c = args.b_col == 1 ? i % tile : i / depth, p = args.b_col == 1 ? i / tile : i % depth;
                    const bool inside = col0 + c < args.n && p0 + p < args.k;
                    right[p][c] = inside
                        ? fetch<Sum>(b + (p0 + p) * args.b_row + (col0 + c) * args.b_col, args.conjugate & 2)
                        : nothing<Sum>();
                }
                __syncthreads();
#pragma unroll
                for (u32 p = 0; p < depth; ++p) {
                    Sum x[each], y[each];
#pragma unroll
                    for (u32 i = 0; i < each; ++i) x[i] = left[p][down + i * (tile / each)];
#pragma unroll
                    for (u32 j = 0; j < each; ++j) y[j] = right[p][across + j * (tile / each)];
#pragma unroll
                    for (u32 i = 0; i < each; ++i)
#pragma unroll
                        for (u32 j = 0; j < each; ++j) multiply_add(sums[i][j], x[i], y[j]);
                }
                __syncthreads();
            }
        }
        Data* c = pointer<Data>(args.c) + c0;
#pragma unroll
        for (u32 i = 0; i < each; ++i) {
            const u64 row = row0 + down + i * (tile / each);
#pragma unroll
            for (u32 j = 0; j < each; ++j) {
                const u64 col = col0 + across + j * (tile / each);
                if (row >= args.m || col >= args.n) continue;
                Data* at = c + row * args.n + col;
                Sum value = scaled(alpha, sums[i][j]);
                if (args.read_c) value = added(value, scaled(beta, fetch<Sum>(at, false)));
                put(at, value);
            }
        }
    }
}
