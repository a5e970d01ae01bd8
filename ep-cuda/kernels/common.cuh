// What every kernel needs: element types and their conversions, vectors of elements, index arithmetic.
//
// Nothing is included: NVRTC compiles these sources on machines without a toolkit.
#pragma once

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using f32 = float;
using f64 = double;

// Truth values are stored as 0 or 1 in a byte of their own type, so that they convert by "not zero".
struct b8 {
    u8 byte;
};
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};
// Complex numbers are aligned as their parts, in memory that others made.
struct c64 {
    f32 re, im;
};
struct c128 {
    f64 re, im;
};
// Elements of which only the size matters. EP_LOOSE is for those that are aligned as their halves, as complex numbers
// may be.
#ifdef EP_LOOSE
struct bits64 {
    u32 low, high;
};
struct bits128 {
    u64 low, high;
};
#else
using bits64 = u64;
struct alignas(16) bits128 {
    u64 low, high;
};
#endif

#define EP_DEVICE static __device__ __forceinline__
#define EP_CAT_(a, b) a##b
#define EP_CAT(a, b) EP_CAT_(a, b)

// The largest number of threads of a warp.
constexpr u32 warp_size = 32;
constexpr u32 full_mask = 0xffffffffu;

template <class A, class B>
constexpr bool same = false;
template <class A>
constexpr bool same<A, A> = true;

template <bool C, class A, class B>
struct SelectOf {
    using type = A;
};
template <class A, class B>
struct SelectOf<false, A, B> {
    using type = B;
};
template <bool C, class A, class B>
using Select = typename SelectOf<C, A, B>::type;

template <class T>
constexpr bool is_complex = same<T, c64> || same<T, c128>;
template <class T>
constexpr bool is_half = same<T, f16> || same<T, bf16>;
template <class T>
constexpr bool is_float = is_half<T> || same<T, f32> || same<T, f64>;
template <class T>
constexpr bool is_bool = same<T, b8>;
template <class T>
constexpr bool is_int = !is_complex<T> && !is_float<T> && !is_bool<T>;

template <u32 Bytes>
using BitsOf = Select<Bytes == 1, u8,
    Select<Bytes == 2, u16, Select<Bytes == 4, u32, Select<Bytes == 8, bits64, bits128>>>>;

// The type that elements are computed in.
template <class T>
using Compute = Select<is_half<T>, f32, T>;
// The same where results of f64 are wanted of floats with fewer bits.
template <class Src, class Dst>
using Between = Select<same<Dst, f64>, f64, Compute<Src>>;

// Waits until all earlier work of the stream is done and its memory is seen here. The first statement of every kernel, for
// all of its threads: launches may bring blocks to the device before that (see Function::launch), which hides what it
// takes. A grid whose blocks have all waited is done after those before it, so that later launches need to wait for it alone.
EP_DEVICE void await_stream() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class T>
EP_DEVICE constexpr T least(T a, T b) {
    return a < b ? a : b;
}

// ---- Conversions ---------------------------------------------------------------------------------------------------

EP_DEVICE f32 to_f32(f16 x) {
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
EP_DEVICE f32 to_f32(bf16 x) {
    // One byte permutation of the word that holds it, where a shift would have to extract it first.
    f32 y;
    asm("mov.b32 %0, {%1, %2};" : "=f"(y) : "h"(u16(0)), "h"(x.bits));
    return y;
}

EP_DEVICE f16 f16_from(f32 x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
EP_DEVICE f16 f16_from(f64 x) {
    f16 y;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x));
    return y;
}
EP_DEVICE bf16 bf16_from(f32 x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// Rounding towards zero with the lowest bit set when anything was cut off: a second rounding, to fewer bits, then
// gives what one would have.
EP_DEVICE f32 odd(f32 cut, bool inexact) { return __uint_as_float(__float_as_uint(cut) | u32(inexact)); }
EP_DEVICE f32 f32_odd(f64 x) {
    f32 cut = __double2float_rz(x);
    return odd(cut, f64(cut) != x);
}
EP_DEVICE f32 f32_odd(i64 x) {
    f32 cut = __ll2float_rz(x);
    return odd(cut, __float2ll_rz(cut) != x);
}
EP_DEVICE f32 f32_odd(u64 x) {
    f32 cut = __ull2float_rz(x);
    return odd(cut, __float2ull_rz(cut) != x);
}

// Truncates, saturates to the range of the type, and turns NaN into 0.
template <class To>
EP_DEVICE To saturate(f32 x) {
    if (x != x) return To(0);
    if constexpr (same<To, i64>) return __float2ll_rz(x);
    else if constexpr (same<To, u64>) return __float2ull_rz(x);
    else if constexpr (same<To, u32>) return __float2uint_rz(x);
    else if constexpr (same<To, i32>) return __float2int_rz(x);
    else if constexpr (To(-1) > To(0)) return To(least(__float2uint_rz(x), u32(To(-1))));
    else {
        constexpr i32 low = -(1 << (8 * sizeof(To) - 1));
        i32 y = __float2int_rz(x);
        return To(y < low ? low : least(y, -low - 1));
    }
}
template <class To>
EP_DEVICE To saturate(f64 x) {
    if (x != x) return To(0);
    if constexpr (same<To, i64>) return __double2ll_rz(x);
    else if constexpr (same<To, u64>) return __double2ull_rz(x);
    else if constexpr (same<To, u32>) return __double2uint_rz(x);
    else if constexpr (same<To, i32>) return __double2int_rz(x);
    else if constexpr (To(-1) > To(0)) return To(least(__double2uint_rz(x), u32(To(-1))));
    else {
        constexpr i32 low = -(1 << (8 * sizeof(To) - 1));
        i32 y = __double2int_rz(x);
        return To(y < low ? low : least(y, -low - 1));
    }
}

// Converts between any two element types by the rules of `cast`.
template <class To, class From>
EP_DEVICE To convert(From x) {
    if constexpr (same<To, From>) return x;
    else if constexpr (is_half<From>) return convert<To>(to_f32(x));
    else if constexpr (is_bool<To>) {
        if constexpr (is_complex<From>) return b8{u8(x.re != 0 || x.im != 0)};
        else return b8{u8(x != 0)};
    } else if constexpr (is_complex<To>) {
        using Part = Select<same<To, c64>, f32, f64>;
        if constexpr (is_complex<From>) return To{convert<Part>(x.re), convert<Part>(x.im)};
        else return To{convert<Part>(x), Part(0)};
    } else if constexpr (is_complex<From>) return convert<To>(x.re);
    else if constexpr (is_bool<From>) return convert<To>(u32(x.byte != 0));
    else if constexpr (is_int<From>) {
        using Wide = Select<From(-1) < From(0), i64, u64>;
        constexpr bool exact_in_f32 = sizeof(From) < 4;
        if constexpr (is_half<To>) {
            if constexpr (exact_in_f32) return convert<To>(f32(x));
            else return convert<To>(f32_odd(Wide(x)));
        } else return To(x);
    } else if constexpr (is_int<To>) return saturate<To>(x);
    else if constexpr (same<To, f16>) return f16_from(x);
    else if constexpr (same<To, bf16>) {
        if constexpr (same<From, f64>) return bf16_from(f32_odd(x));
        else return bf16_from(x);
    } else return To(x);
}

template <class T>
EP_DEVICE Compute<T> widen(T x) {
    return convert<Compute<T>>(x);
}

// The bits of an element that a launch passes by value.
template <class T>
EP_DEVICE T from_bits(u64 low, u64 high) {
    union {
        u64 words[2];
        T value;
    } u{{low, high}};
    return u.value;
}

template <class T>
EP_DEVICE T* pointer(u64 address) {
    return reinterpret_cast<T*>(address);
}

// ---- Vectors of elements -------------------------------------------------------------------------------------------

// N neighbouring elements in registers. Loads and stores move up to 16 bytes at a time.
template <class T, int N>
struct Pack {
    static constexpr int bytes = int(sizeof(T)) * N;
    static constexpr int chunk = bytes < 16 ? bytes : 16;
    static constexpr int chunks = bytes / chunk;
    using Chunk = Select<chunk == 16, uint4, Select<chunk == 8, uint2, BitsOf<chunk == 16 ? 1 : chunk>>>;
    static_assert(bytes % chunk == 0 && (chunk & (chunk - 1)) == 0, "a pack is a power of two of bytes");
    using Word = Select<bytes % 4 == 0, u32, u8>;
    union {
        Chunk raw[chunks];
        T at[N];
        Word words[bytes / sizeof(Word)];
    };
    __device__ __forceinline__ Pack() {}
};

// Elements of a pack as they are computed with; those of half types out of their words, so that none is shifted down first.
template <class T, int N>
EP_DEVICE void spread(Compute<T> (&values)[N], const Pack<T, N>& pack) {
    using P = Pack<T, N>;
    if constexpr (is_half<T> && P::chunk == 16) {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const uint4 chunk = pack.raw[i / 8];
            const u32 word = i % 8 == 0 ? chunk.x : i % 8 == 2 ? chunk.y : i % 8 == 4 ? chunk.z : chunk.w;
            if constexpr (same<T, bf16>) {
                values[i] = __uint_as_float(word << 16);
                values[i + 1] = __uint_as_float(word & 0xffff0000u);
            } else {
                asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
                    : "=f"(values[i]), "=f"(values[i + 1])
                    : "r"(word));
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] = widen(pack.at[i]);
    }
}

// Results of a pack; those of half types are rounded in pairs, by one instruction for two.
template <class T, int N, class A>
EP_DEVICE void narrow(Pack<T, N>& pack, const A (&values)[N]) {
    if constexpr (is_half<T> && same<A, f32> && N % 2 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            union {
                u32 word;
                T at[2];
            } both;
            if constexpr (same<T, f16>)
                asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both.word) : "f"(values[i + 1]), "f"(values[i]));
            else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both.word) : "f"(values[i + 1]), "f"(values[i]));
            pack.at[i] = both.at[0];
            pack.at[i + 1] = both.at[1];
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) pack.at[i] = convert<T>(values[i]);
    }
}

// What is read: `constant` promises that the kernel never writes it. Others have no hint for the caches: it gained nothing
// where operands exceed them, and cost what an earlier launch left there.
enum class Source { ordinary, constant };

template <Source S = Source::ordinary, class T, int N>
EP_DEVICE void load(Pack<T, N>& pack, const T* from) {
    using P = Pack<T, N>;
    auto source = reinterpret_cast<const typename P::Chunk*>(from);
#pragma unroll
    for (int i = 0; i < P::chunks; ++i) {
        if constexpr (S == Source::constant) pack.raw[i] = __ldg(source + i);
        else pack.raw[i] = source[i];
    }
}
template <class T, int N>
EP_DEVICE void store(T* to, const Pack<T, N>& pack) {
    using P = Pack<T, N>;
    auto target = reinterpret_cast<typename P::Chunk*>(to);
#pragma unroll
    for (int i = 0; i < P::chunks; ++i) {
        __stcs(target + i, pack.raw[i]);
    }
}

// Elements from `first` up to `last` of a pack at any address of an element. Loops are short rather than fast, for few
// packs need them.
template <class T, int N>
EP_DEVICE void load_some(Pack<T, N>& pack, const T* from, i32 first, i32 last) {
#pragma unroll 1
    for (i32 i = 0; i < N; ++i) {
#pragma unroll
        for (int k = 0; k + 1 < N; ++k) pack.at[k] = pack.at[k + 1];
        if (i >= first && i < last) pack.at[N - 1] = from[i];
    }
}
template <class T, int N>
EP_DEVICE void store_some(T* to, Pack<T, N> pack, i32 first, i32 last) {
#pragma unroll 1
    for (i32 i = 0; i < N; ++i) {
        if (i >= first && i < last) to[i] = pack.at[0];
#pragma unroll
        for (int k = 0; k + 1 < N; ++k) pack.at[k] = pack.at[k + 1];
    }
}

// Moves the words from any byte of the first word on to the front, by the last two bits of their address.
template <int Words>
EP_DEVICE void shift_bytes(u32 (&words)[Words + 1], u32 address) {
#pragma unroll
    for (int i = 0; i < Words; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], 8 * (address & 3));
}

// The bits of one of several words that come from bit `first` of all of them on.
EP_DEVICE u32 bits_from(i32 first, i32 word) {
    const i32 above = first - 32 * word;
    u32 bits;
    // A shift by more than 31 leaves nothing.
    asm("shl.b32 %0, %1, %2;" : "=r"(bits) : "r"(full_mask), "r"(above < 0 ? 0 : above));
    return bits;
}
EP_DEVICE u32 choose(u32 bits, u32 where_set, u32 elsewhere) { return (where_set & bits) | (elsewhere & ~bits); }

// A word of one small element many times.
template <class T>
EP_DEVICE u32 repeated(T value) {
    static_assert(sizeof(T) <= 2, "elements of one or two bytes");
    union {
        T value;
        BitsOf<sizeof(T)> bits;
    } u{value};
    return u32(u.bits) * (sizeof(T) == 1 ? 0x01010101u : 0x00010001u);
}

// Drops the first element of a pack and appends one.
template <class T, int N>
EP_DEVICE void push(Pack<T, N>& pack, T value) {
    using P = Pack<T, N>;
    if constexpr (sizeof(T) <= 2 && P::bytes >= 4) {
        constexpr int words = P::bytes / 4;
#pragma unroll
        for (int i = 0; i < words; ++i)
            pack.words[i] = __funnelshift_r(pack.words[i], i + 1 < words ? pack.words[i + 1] : repeated(value), 8 * sizeof(T));
    } else {
#pragma unroll
        for (int i = 0; i + 1 < N; ++i) pack.at[i] = pack.at[i + 1];
        pack.at[N - 1] = value;
    }
}

// Moves the 16 bytes from byte `offset` on, which is below 16, to the front.
EP_DEVICE void shift_words(u32 (&words)[8], i32 offset) {
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = offset & 8 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = offset & 4 ? words[i + 1] : words[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], 8 * (offset & 3));
}

// Loads the pack at element `at` of an array that begins at any address of an element: small elements by two aligned
// loads. The array may be read from element `low` up to `high`; elements below 0 and from `count` on need not be right.
template <class T, int N>
EP_DEVICE void load_anywhere(Pack<T, N>& pack, const T* array, i32 at, i32 low, i32 high, i32 count) {
    constexpr i32 bytes = Pack<T, N>::bytes;
    const u64 address = reinterpret_cast<u64>(array + at);
    const i32 offset = i32(address % 16), first = at - offset / i32(sizeof(T));
    if (bytes == 16 && offset == 0 && first >= low && first + N <= high) load<Source::constant>(pack, array + at);
    else if constexpr (sizeof(T) >= 4) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (at + i >= 0 && at + i < count) pack.at[i] = __ldg(array + at + i);
    } else if (bytes == 16 && first >= low && first + 2 * N <= high) {
        auto source = reinterpret_cast<const uint4*>(address - offset);
        const uint4 lower = __ldg(source), upper = __ldg(source + 1);
        u32 words[8] = {lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w};
        shift_words(words, offset);
        if constexpr (bytes == 16) pack.raw[0] = {words[0], words[1], words[2], words[3]};
    } else load_some(pack, array + at, -at, count - at);
}

// N values in registers of their own.
template <class T, int N>
struct Values {
    T at[N];
};

// Hides where a pack's bits come from, so that elements of half types are converted again for each use: held as f32
// they would take twice the registers. `zero` is a zero that the compiler does not know.
template <class T, int N>
EP_DEVICE void forget(Pack<T, N>& pack, u32 zero) {
    using P = Pack<T, N>;
    if constexpr (is_half<T> && P::chunk == 16) {
        static_assert(P::chunks == 1, "packs are of up to 16 bytes");
        pack.raw[0].x ^= zero;
        pack.raw[0].y ^= zero;
        pack.raw[0].z ^= zero;
        pack.raw[0].w ^= zero;
    }
}
template <class T, int N>
EP_DEVICE void forget(Values<T, N>&, u32) {}

EP_DEVICE bool aligned(u64 address, u32 bytes) { return (address & (bytes - 1)) == 0; }

// ---- Index arithmetic ----------------------------------------------------------------------------------------------

// Division by a fixed number: Granlund and Montgomery's multiplication for dividends below 2^31. With
// l = ceil(log2 divisor), multiplier = floor(2^32 (2^l - divisor) / divisor) + 1 and shift = l.
struct FastDiv {
    u64 divisor;
    u32 multiplier, shift;
};

template <class Index>
EP_DEVICE Index divide(FastDiv by, Index n, Index& remainder) {
    Index quotient;
    if constexpr (sizeof(Index) == 4) quotient = (__umulhi(n, by.multiplier) + n) >> by.shift;
    else quotient = n / Index(by.divisor);
    remainder = n - quotient * Index(by.divisor);
    return quotient;
}

constexpr int max_rank = 8;
