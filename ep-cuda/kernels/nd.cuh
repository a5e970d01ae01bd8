// Loops over N-dimensional operands: each thread computes some packs of neighbours along the innermost dimension.
//
// Specialised by
//   EP_THREADS  threads of a block
//   EP_PACK     elements of a pack
//   EP_UNROLL   packs of a thread
//   EP_INDEX    u32 where the number of packs and all offsets are below 2^31, else u64
// and, before the include,
//   EP_SHIFTED_LOADS  where the packs of small elements of a source may begin anywhere
//   EP_BROADCAST      where the destination has no gaps, and neighbours along the innermost dimension are neighbours in each
//                     source, or one element of it. Of more than four elements in a pack, small ones may then begin anywhere, rows
//                     may be shorter than packs that go on, and blocks may have up to 64 threads more than EP_THREADS, one for each
//                     row that may end in the block's packs: those take the packs that hold the end of a row and the begin of the next
#pragma once
#include "common.cuh"

#ifdef EP_BROADCAST
constexpr bool is_broadcast = EP_PACK > 4;
#else
constexpr bool is_broadcast = false;
#endif

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
    // dimension is not of whole packs, or not at an aligned address: one may hold the end of it and the begin of the next. Bit 30: a
    // block's further threads take such packs.
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
    // Of the first element, of all but the innermost dimension, where packs go on.
    Index row;

    __device__ __forceinline__ bool whole() const { return from <= 0 && to >= pack_size; }
    __device__ __forceinline__ bool holds(int i) const { return i >= from && i < to; }
};
// Rows of pairs take nearly as long by elements.
template <int Operands>
EP_DEVICE bool goes_on(const NdArgs<Operands>& args) {
    return pack_size > 2 && args.scalar >> 31;
}

// Whether the innermost dimension begins anew more than once in a pack.
template <int Operands>
EP_DEVICE bool is_short(const NdArgs<Operands>& args) {
    return is_broadcast && goes_on(args) && args.inner_size < pack_size;
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
    auto add = [&](int d) {
        Index index = rest;
        if (d + 1 < args.rank) rest = divide(args.dims[d], rest, index);
        if (d == 0) innermost = index, lines = rest;
#pragma unroll
        for (int k = 0; k < Operands; ++k) place.at[k] += Offset(index) * Offset(args.strides[k][d]);
    };
    // Few operands have more dimensions that cannot be joined, and copies of this for those would take a tenth of the time that
    // kernels of functions take to compile.
    constexpr int usual = 3;
#pragma unroll
    for (int d = 0; d < usual; ++d)
        if (d < args.rank) add(d);
#pragma unroll 1
    for (int d = usual; d < args.rank; ++d) add(d);
    const bool begins = pack == 0 || !on;
    // Within the row, or below it by what comes before the first element. There is always some of the row left.
    const Index before = begins ? Index(args.before) : 0;
    const Index left = Index(args.inner_size) + before - innermost * (on ? 1 : pack_size);
    place.from = innermost == 0 ? i32(before) : 0;
    place.to = place.turn = left < pack_size ? i32(left) : pack_size;
    place.row = lines;
#pragma unroll
    for (int k = 0; k < Operands; ++k) place.at[k] -= Offset(before) * Offset(args.inner[k]);
    if (on && left < pack_size) {
        const Index after = Index(args.count) + Index(args.before) - pack * pack_size;
        place.to = after < pack_size ? i32(after) : pack_size;
        if (is_broadcast && threadIdx.x < EP_THREADS && (args.scalar >> 30 & 1)) {
            place.to = 0;
            return place;
        }
        if (is_short(args)) {
            // To the next row of two dimensions.
#pragma unroll
            for (int k = 0; k < Operands; ++k) place.jump[k] = Offset(args.strides[k][1]) - Offset(args.inner_size) * Offset(args.inner[k]);
            return place;
        }
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

// The neighbours of a whole pack, out of the aligned words that have them, where those are the operand's. False if they are not.
template <int K, class T, int Operands>
EP_DEVICE bool get_words(Pack<T, pack_size>& pack, const NdArgs<Operands>& args, const Place<Operands>& place, const T* from) {
    constexpr int words = Pack<T, pack_size>::bytes / 4;
    constexpr Index size = sizeof(T), loaded = 4 * (words + 1);
    const u32 address = u32(reinterpret_cast<u64>(from)), past = address & 3;
    // Bytes from the lowest element on, which wrap below it.
    const Index below = Index(args.address[K] - args.scalars[K][0]), all = Index(args.scalars[K][1] - args.scalars[K][0]) + size;
    if (all < loaded || Index(place.at[K]) * size + below - past > all - loaded) return false;
    // Not by the bits of the address, of which the compiler would not know that it is in global memory.
    auto source = reinterpret_cast<const u32*>(from - past / sizeof(T));
    u32 found[words + 1];
#pragma unroll
    for (int i = 0; i <= words; ++i) found[i] = source[i];
    shift_bytes<words>(found, address);
#pragma unroll
    for (int i = 0; i < words; ++i) pack.words[i] = found[i];
    return true;
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
    if constexpr (is_broadcast && sizeof(T) <= 2) {
        if (step == 1 && place.whole() && place.turn >= pack_size && get_words<K>(pack, args, place, from)) return;
    }
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

// A pack in which rows end that are shorter than it, one element after the other.
template <int K, class T, int Operands>
EP_DEVICE void get_short(Pack<T, pack_size>& pack, const NdArgs<Operands>& args, const Place<Operands>& place) {
    const bool is_value = args.scalar >> K & 1;
    const T value = from_bits<T>(args.scalars[K][0], args.scalars[K][1]);
    Offset at = place.at[K];
    Index row = place.row;
    i32 turn = place.turn;
#pragma unroll 1
    for (i32 i = 0; i < pack_size; ++i, at += Offset(args.inner[K])) {
        if (i == turn) {
            turn += i32(args.inner_size);
            at += place.jump[K];
            if (args.rank > 2) {
                Index rest = ++row;
                at = 0;
#pragma unroll 1
                for (u32 d = 1; d < args.rank; ++d) {
                    Index index = rest;
                    if (d + 1 < args.rank) rest = divide(args.dims[d], rest, index);
                    at += Offset(index) * Offset(args.strides[K][d]);
                }
            }
        }
        push(pack, is_value ? value : pointer<const T>(args.address[K])[place.holds(i) ? at : 0]);
    }
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

// The number of a thread's pack, or of none.
template <int Operands>
EP_DEVICE Index pack_number(const NdArgs<Operands>& args, int u) {
    if (is_broadcast && threadIdx.x >= EP_THREADS) {
        // One more row that may end in the block's packs, for each thread that it has more than them.
        constexpr u32 in_block = EP_THREADS * unroll * pack_size;
        const Index before = Index(args.before), begin = Index(blockIdx.x) * in_block, turn = threadIdx.x - EP_THREADS + u * (blockDim.x - EP_THREADS);
        Index rest;
        const Index row = divide(args.dims[0], begin > before ? begin - before : 0, rest) + 1 + turn;
        const Index end = row * Index(args.inner_size) + before;
        return end % pack_size == 0 || end >= begin + in_block ? Index(args.packs) : end / pack_size;
    }
    return Index(first_pack()) + u * EP_THREADS;
}

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

// `Words` computes a word of results out of words of both, where there is such a way.
struct NoWords {};

template <class Dst, class A, class B, bool Rolled = false, class F, class Words = NoWords>
EP_DEVICE void map2(const NdArgs<3>& args, F f, Words of_words = {}) {
    Pack<A, pack_size> a[unroll];
    Pack<B, pack_size> b[unroll];
    Place<3> places[unroll];
    bool has[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        const Index pack = pack_number(args, u);
        has[u] = pack < Index(args.packs);
        if (!has[u]) continue;
        places[u] = place_of(args, pack);
        if (is_broadcast) has[u] = places[u].to > 0;
        if (!has[u]) continue;
        if (is_short(args)) {
            get_short<1>(a[u], args, places[u]);
            get_short<2>(b[u], args, places[u]);
        } else {
            get<1>(a[u], args, places[u]);
            get<2>(b[u], args, places[u]);
        }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        if (!has[u]) continue;
        Pack<Dst, pack_size> dst;
        if constexpr (Rolled) compute_rolled(dst, f, a[u], b[u]);
        else if constexpr (!same<Words, NoWords> && dst.bytes % 4 == 0) {
#pragma unroll
            for (int i = 0; i < dst.bytes / 4; ++i) dst.words[i] = of_words(a[u].words[i], b[u].words[i]);
        } else {
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
    bool has[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        const Index pack = pack_number(args, u);
        has[u] = pack < Index(args.packs);
        if (!has[u]) continue;
        places[u] = place_of(args, pack);
        if (is_broadcast) has[u] = places[u].to > 0;
        if (!has[u]) continue;
        if (is_short(args)) {
            get_short<1>(a[u], args, places[u]);
            get_short<2>(b[u], args, places[u]);
            get_short<3>(c[u], args, places[u]);
        } else {
            get<1>(a[u], args, places[u]);
            get<2>(b[u], args, places[u]);
            get<3>(c[u], args, places[u]);
        }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        if (!has[u]) continue;
        Pack<Dst, pack_size> dst;
#pragma unroll
        for (int i = 0; i < pack_size; ++i) dst.at[i] = f(a[u].at[i], b[u].at[i], c[u].at[i]);
        put(dst, args, places[u]);
    }
}
