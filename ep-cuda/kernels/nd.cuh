// Loops over N-dimensional operands: each thread computes some packs of neighbours along the innermost dimension.
//
// Specialised by
//   EP_THREADS  threads of a block
//   EP_PACK     elements of a pack
//   EP_UNROLL   packs of a thread
//   EP_INDEX    u32 where the number of packs and all offsets are below 2^31, else u64
// and, before the include, EP_SHIFTED_LOADS where small elements that are not aligned are worth code of their own
#pragma once
#include "common.cuh"

using Index = EP_INDEX;
using Offset = Select<sizeof(Index) == 4, i32, i64>;
constexpr int pack_size = EP_PACK;
constexpr int unroll = EP_UNROLL;

// The operands of a launch; the destination comes first. Dimensions go from the innermost outwards.
template <int Operands>
struct NdArgs {
    // Packs in all: ceil((before + inner_size) / EP_PACK) times the sizes of the other dimensions.
    u64 packs;
    // Elements of the innermost dimension, and in all.
    u64 inner_size, count;
    u32 rank;
    // Elements by which the first pack begins before the first element, so that packs are aligned; 0 unless the rank is 1 or
    // packs go on.
    u32 before;
    // Bit k: all packs of operand k are aligned to their size (up to 16 bytes) and contiguous.
    u32 vector;
    // Bit k: operand k is the value in `scalars`. Bit 31: packs go on, of a destination without gaps, whose innermost
    // dimension is not of whole packs, or not at an aligned address: one may hold the end of it and the begin of the next.
    u32 scalar;
    // Sizes, the innermost one counted in packs, or in elements where packs go on. The outermost is not read.
    FastDiv dims[max_rank];
    // Elements from one index to the next, the innermost one from one pack to the next, or from one element.
    i64 strides[Operands][max_rank];
    // Elements between neighbours within a pack; 0 repeats one.
    i64 inner[Operands];
    u64 address[Operands];
    // The bits of an operand that is a value; of others the lowest and the highest address of an element.
    u64 scalars[Operands][2];
};

// Where a pack is in each operand, and which of its elements are inside. From element `turn` on they are `jump` further
// than neighbours are: there the innermost dimension begins anew.
template <int Operands>
struct Place {
    Offset at[Operands], jump[Operands];
    i32 from, to, turn;

    __device__ __forceinline__ bool whole() const { return from <= 0 && to >= pack_size; }
    __device__ __forceinline__ bool holds(int i) const { return i >= from && i < to; }
};
// Rows of pairs take nearly as long by elements.
template <int Operands>
EP_DEVICE bool goes_on(const NdArgs<Operands>& args) {
    return pack_size > 2 && args.scalar >> 31;
}

template <int Operands>
EP_DEVICE Place<Operands> place_of(const NdArgs<Operands>& args, Index pack) {
    Place<Operands> place;
    const bool on = goes_on(args);
    // Of the first pack, which may begin before the first element, as if it did not.
    const Index unit = on && pack > 0 ? pack * pack_size - args.before : pack;
    Index rest = unit, innermost = unit, lines = 0;
#pragma unroll
    for (int k = 0; k < Operands; ++k) place.at[k] = place.jump[k] = 0;
#pragma unroll
    for (int d = 0; d < max_rank; ++d) {
        if (d >= args.rank) break;
        Index index = rest;
        if (d + 1 < args.rank) rest = divide(args.dims[d], rest, index);
        if (d == 0) innermost = index, lines = rest;
#pragma unroll
        for (int k = 0; k < Operands; ++k) place.at[k] += Offset(index) * Offset(args.strides[k][d]);
    }
    const bool begins = pack == 0 || !on;
    const i64 first = i64(innermost) * (on ? 1 : pack_size) - (begins ? i64(args.before) : 0);
    const i64 left = i64(args.inner_size) - first;
    place.from = first < 0 ? i32(-first) : 0;
    place.to = place.turn = left < pack_size ? i32(left) : pack_size;
#pragma unroll
    for (int k = 0; k < Operands; ++k)
        if (begins) place.at[k] -= Offset(args.before) * Offset(args.inner[k]);
    if (on && left < pack_size) {
        const i64 after = i64(args.count + args.before) - i64(pack) * pack_size;
        place.to = after < pack_size ? i32(after) : pack_size;
        // Where the next line begins, and where this one would go on.
        rest = lines + 1;
#pragma unroll 1
        for (int d = 1; d < args.rank; ++d) {
            Index index = rest;
            if (d + 1 < args.rank) rest = divide(args.dims[d], rest, index);
#pragma unroll
            for (int k = 0; k < Operands; ++k) place.jump[k] += Offset(index) * Offset(args.strides[k][d]);
        }
#pragma unroll
        for (int k = 0; k < Operands; ++k) place.jump[k] -= place.at[k] + place.turn * Offset(args.inner[k]);
    }
    return place;
}

template <int K, class T, int Operands>
EP_DEVICE void get(Pack<T, pack_size>& pack, const NdArgs<Operands>& args, const Place<Operands>& place) {
    if (args.scalar >> K & 1) {
        const T value = from_bits<T>(args.scalars[K][0], args.scalars[K][1]);
#pragma unroll
        for (int i = 0; i < pack_size; ++i) pack.at[i] = value;
        return;
    }
    const T* from = pointer<const T>(args.address[K]) + place.at[K];
    if ((args.vector >> K & 1) && place.whole()) return load(pack, from);
    const Offset step = Offset(args.inner[K]);
#ifdef EP_SHIFTED_LOADS
    if constexpr (sizeof(T) <= 2 && Pack<T, pack_size>::bytes == 16) {
        // Out of the two aligned packs that have it, where both are the operand's.
        const u64 begin = reinterpret_cast<u64>(from) / 16 * 16;
        if (step == 1 && place.whole() && place.turn >= pack_size && begin >= args.scalars[K][0] && begin + 32 - sizeof(T) <= args.scalars[K][1]) {
            const uint4 lower = __ldg(pointer<const uint4>(begin)), upper = __ldg(pointer<const uint4>(begin) + 1);
            u32 words[8] = {lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w};
            shift_words(words, i32(reinterpret_cast<u64>(from) - begin));
            pack.raw[0] = {words[0], words[1], words[2], words[3]};
            return;
        }
    }
#endif
    if (step == 0 && place.turn >= place.to) {
        const T value = *from;
#pragma unroll
        for (int i = 0; i < pack_size; ++i) pack.at[i] = value;
        return;
    }
#pragma unroll
    for (int i = 0; i < pack_size; ++i)
        if (place.holds(i)) pack.at[i] = from[i * step + (i < place.turn ? 0 : place.jump[K])];
}

template <class T, int Operands>
EP_DEVICE void put(const Pack<T, pack_size>& pack, const NdArgs<Operands>& args, const Place<Operands>& place) {
    T* to = pointer<T>(args.address[0]) + place.at[0];
    if ((args.vector & 1) && place.whole()) return store(to, pack);
    const Offset step = Offset(args.inner[0]);
#pragma unroll
    for (int i = 0; i < pack_size; ++i)
        if (place.holds(i)) to[i * step] = pack.at[i];
}

// The first pack of this thread; the others follow at distances of a block.
EP_DEVICE u64 first_pack() { return u64(blockIdx.x) * (EP_THREADS * unroll) + threadIdx.x; }

// Whether all of this block's packs are whole, in operands without strides: then they need no arithmetic of indices,
// which would take longer than some functions.
template <int Operands>
EP_DEVICE bool is_plain(const NdArgs<Operands>& args) {
    constexpr u32 all = (1u << Operands) - 1;
    const u64 end = (u64(blockIdx.x) + 1) * (EP_THREADS * unroll * pack_size);
    return args.rank == 1 && args.before == 0 && args.vector == all && end <= args.inner_size;
}

// Makes the second of some values the first, and so on.
template <class T, int N>
EP_DEVICE void advance(T (&list)[N]) {
#pragma unroll
    for (int i = 0; i + 1 < N; ++i) list[i] = list[i + 1];
}

// A pack of results of a function so long that copies of it would take longer to compile than this does to run: the
// elements take turns in one place of the code.
template <class Dst, class F, class... Sources>
EP_DEVICE void compute_rolled(Pack<Dst, pack_size>& dst, F f, Pack<Sources, pack_size>... sources) {
#pragma unroll 1
    for (int i = 0; i < pack_size; ++i) {
        advance(dst.at);
        dst.at[pack_size - 1] = f(sources.at[0]...);
        (advance(sources.at), ...);
    }
}

// dst = f(src) for each element, all of a thread's loads before its first store.
template <class Dst, class Src, bool Rolled = false, class F>
EP_DEVICE void map1(const NdArgs<2>& args, F f) {
    Pack<Src, pack_size> src[unroll];
    Place<2> places[unroll];
    // Of elements of 4 bytes and more plain blocks have code of their own: past the conditions below the compiler moves nothing, and
    // functions of some fifty instructions took up to 15 % longer. Of shorter elements, which are more to a pack, they take
    // longer so.
    constexpr bool apart = !Rolled && sizeof(Src) >= 4 && sizeof(Dst) >= 4;
    bool plain = is_plain(args);
    if (apart && plain) {
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            load(src[u], pointer<const Src>(args.address[1]) + (first_pack() + u * EP_THREADS) * pack_size);
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            Pack<Dst, pack_size> dst;
#pragma unroll
            for (int i = 0; i < pack_size; ++i) dst.at[i] = f(src[u].at[i]);
            store(pointer<Dst>(args.address[0]) + (first_pack() + u * EP_THREADS) * pack_size, dst);
        }
        return;
    }
    plain = plain && !apart;
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        const u64 pack = first_pack() + u * EP_THREADS;
        if (plain) {
            load(src[u], pointer<const Src>(args.address[1]) + pack * pack_size);
        } else if (pack < args.packs) {
            places[u] = place_of(args, Index(pack));
            get<1>(src[u], args, places[u]);
        }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        const u64 pack = first_pack() + u * EP_THREADS;
        if (pack >= args.packs) continue;
        Pack<Dst, pack_size> dst;
        if constexpr (Rolled) compute_rolled(dst, f, src[u]);
        else {
#pragma unroll
            for (int i = 0; i < pack_size; ++i) dst.at[i] = f(src[u].at[i]);
        }
        if (plain) store(pointer<Dst>(args.address[0]) + pack * pack_size, dst);
        else put(dst, args, places[u]);
    }
}

template <class Dst, class A, class B, bool Rolled = false, class F>
EP_DEVICE void map2(const NdArgs<3>& args, F f) {
    Pack<A, pack_size> a[unroll];
    Pack<B, pack_size> b[unroll];
    Place<3> places[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        const u64 pack = first_pack() + u * EP_THREADS;
        if (pack < args.packs) {
            places[u] = place_of(args, Index(pack));
            get<1>(a[u], args, places[u]);
            get<2>(b[u], args, places[u]);
        }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        if (first_pack() + u * EP_THREADS >= args.packs) continue;
        Pack<Dst, pack_size> dst;
        if constexpr (Rolled) compute_rolled(dst, f, a[u], b[u]);
        else {
#pragma unroll
            for (int i = 0; i < pack_size; ++i) dst.at[i] = f(a[u].at[i], b[u].at[i]);
        }
        put(dst, args, places[u]);
    }
}

template <class Dst, class A, class B, class C, class F>
EP_DEVICE void map3(const NdArgs<4>& args, F f) {
    Pack<A, pack_size> a[unroll];
    Pack<B, pack_size> b[unroll];
    Pack<C, pack_size> c[unroll];
    Place<4> places[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        const u64 pack = first_pack() + u * EP_THREADS;
        if (pack < args.packs) {
            places[u] = place_of(args, Index(pack));
            get<1>(a[u], args, places[u]);
            get<2>(b[u], args, places[u]);
            get<3>(c[u], args, places[u]);
        }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        if (first_pack() + u * EP_THREADS >= args.packs) continue;
        Pack<Dst, pack_size> dst;
#pragma unroll
        for (int i = 0; i < pack_size; ++i) dst.at[i] = f(a[u].at[i], b[u].at[i], c[u].at[i]);
        put(dst, args, places[u]);
    }
}
