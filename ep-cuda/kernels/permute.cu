// Any permutation by blocks in shared memory, which are read in long runs of src and written in long runs of dst.
// Made for dimensions too small for the tiles of transpose.cu.
//
// EP_SIZE  bytes of an element     EP_THREADS     EP_SHORT  1: fewer threads than a warp take a segment of a run, as many as
// it has work for; 0: always a warp
// EP_BULK (any value, sm_90): runs of src are copied by the hardware, 16 bytes at a time, into shared memory where they have
// the same place within 16 bytes as in src.
#include "common.cuh"

using Element = BitsOf<EP_SIZE>;

// A block covers some indices of up to 8 dimensions, all of them except for at most two, which are cut. On each side its
// innermost dimensions are a run, elements that follow each other, up to the first that is cut; the others number the
// runs. In shared memory runs are as in src, `pitch` elements apart. Lists go from the innermost dimension outwards.
struct Side {
    u32 run, runs;                     // elements of a run, and how many
    u32 cut, per_index;                // 1 or 2: it ends with the first or second cut dimension, so long for each index
    FastDiv segments;                  // of a run, of which warps take some each
    u32 rank, lanes;                   // of what numbers the runs; threads that take a segment: 4 to 32
    FastDiv size[max_rank];
    i64 stride[max_rank];
    u32 to_shared[max_rank];
    u32 cut_of[max_rank];              // 1 or 2 for dimensions that are cut; else 0
};
struct Args {
    Side src_side, dst_side;
    FastDiv in_run[max_rank];          // sizes of the dimensions of dst's run; that of the last is not read
    u32 run_to_shared[max_rank];
    u32 run_rank, pitch;
    u64 cut_size[2], cut_extent[2];    // indices of a cut dimension in a block, and in all; 1 and 1 without
    // How blocks follow each other: how many there are, and how far they are apart.
    u32 rank, pad;
    FastDiv count[max_rank];           // that of the last one is not read
    i64 src_step[max_rank], dst_step[max_rank];
    u32 cut_of[max_rank];              // 1 or 2: blocks along a dimension that is cut; else 0
    u64 blocks, src_bytes;
    u64 src, dst;
};

constexpr u32 word = EP_SIZE < 4 ? 4 : EP_SIZE;
// Elements of a word and of a store. What may be aligned as its halves is stored one by one.
[[maybe_unused]] constexpr u32 in_word = word / EP_SIZE;
#ifdef EP_LOOSE
constexpr u32 in_pack = 1;
#else
constexpr u32 in_pack = 16 / EP_SIZE;
#endif
// What a block has room for: 40 KiB, and 2 for what runs leave out between them. A word in 33 is left out, too, so that
// steps of 32 words meet different banks.
constexpr u32 words = 43008 / word;
// Words of src that a lane takes of a segment, and packs of dst, or what would be packs, of a segment that a whole warp
// takes: it finds its place once. Fewer lanes take one pack each.
constexpr u32 together = EP_SIZE < 4 ? 4 : 8, packs_of_segment = 64 * (16 / EP_SIZE / in_pack);
using Word = Select<(EP_SIZE < 4), u32, Element>;
EP_DEVICE u32 place_of_word(u32 index) { return index + index / 32; }
// The first place of a lane, from which `further` finds that of the word so many times `lanes` on: steps of a warp leave
// out one word each.
EP_DEVICE u32 first_place(u32 index) { return EP_SHORT ? index : place_of_word(index); }
EP_DEVICE u32 further(u32 first, u32 times, u32 lanes) {
    return EP_SHORT ? place_of_word(first + times * lanes) : first + times * (warp_size + 1);
}
// Of a byte.
EP_DEVICE u32 place_of(u32 byte) {
#ifdef EP_BULK
    return byte;
#else
    return byte + byte / (32 * word) * word;
#endif
}

// Copies a word to shared memory in the background, so many times `lanes` further than `first`.
EP_DEVICE void copy_word(Word* shared, u32 first, u32 times, u32 lanes, const void* from) {
    // Of a warp the distance is a constant of the instruction.
    Word* const to = EP_SHORT ? shared + further(first, times, lanes) : shared + first + times * (warp_size + 1);
#ifdef EP_LOOSE
    constexpr u32 piece = word / 2;
#else
    constexpr u32 piece = word;
#endif
    const u32 place = u32(__cvta_generic_to_shared(to));
#pragma unroll
    for (u32 i = 0; i < word; i += piece)
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place + i), "l"(reinterpret_cast<u64>(from) + i), "n"(piece)
                     : "memory");
}

#ifdef EP_BULK
// A barrier in shared memory that is passed once all threads have arrived and the bytes that they announced are there.
struct Arrival {
    u64 state;

    __device__ __forceinline__ u32 address() { return u32(__cvta_generic_to_shared(&state)); }
    __device__ __forceinline__ void init() {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "n"(EP_THREADS) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // Announces so many bytes, a multiple of 16 at such addresses, and copies them in the background.
    __device__ __forceinline__ void copy(void* to, u64 from, u32 bytes) {
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         u32(__cvta_generic_to_shared(to))),
                     "l"(from), "r"(bytes), "r"(address())
                     : "memory");
    }
    __device__ __forceinline__ void arrive() {
        asm volatile("{.reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0];}" ::"r"(address()) : "memory");
    }
    __device__ __forceinline__ void wait(u32 parity) {
        u32 passed;
        do {
            asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                         : "=r"(passed)
                         : "r"(address()), "r"(parity)
                         : "memory");
        } while (!passed);
    }
};
#endif

// Where a run is: offsets in memory and in the block, and whether it is inside.
struct Run {
    i64 offset;
    u32 shared;
    bool inside;
};
EP_DEVICE Run run_at(const Side& side, u32 number, uint2 left) {
    Run run{0, 0, true};
#pragma unroll 1
    for (u32 d = 0; d < side.rank; ++d) {
        u32 index = number;
        if (d + 1 < side.rank) number = divide(side.size[d], number, index);
        run.offset += i64(index) * side.stride[d];
        run.shared += index * side.to_shared[d];
        if (side.cut_of[d]) run.inside &= index < (side.cut_of[d] == 1 ? left.x : left.y);
    }
    return run;
}
EP_DEVICE u32 length_of(const Side& side, uint2 left) {
    return side.cut ? side.per_index * (side.cut == 1 ? left.x : left.y) : side.run;
}

EP_DEVICE Element element_at(const Word* shared, u32 byte) {
    return *reinterpret_cast<const Element*>(reinterpret_cast<const u8*>(shared) + place_of(byte));
}

// Along the three innermost dimensions of dst's runs, that need no division: their sizes, of which the last dimension's
// has no end here, and how far the next element is where none of them ends, the first, and two.
struct Steps {
    u32 size[3], one, turned, turned_twice;
};
EP_DEVICE Steps steps_of(const Args& args) {
    Steps steps;
#pragma unroll
    for (u32 d = 0; d < 3; ++d) steps.size[d] = d + 1 < args.run_rank ? u32(args.in_run[d].divisor) : ~0u;
    const u32 second = args.run_to_shared[1] * EP_SIZE;
    steps.one = args.run_to_shared[0] * EP_SIZE;
    steps.turned = second - (steps.size[0] - 1) * steps.one;
    steps.turned_twice = args.run_to_shared[2] * EP_SIZE - steps.size[1] * second;
    return steps;
}

// Elements `begin` to `end` of a run as a pack, from 0 on. Without branches, for neighbours turn at different elements.
template <bool Deep>
EP_DEVICE void collect(
    Pack<Element, int(in_pack)>& pack, const Word* shared, const Steps& steps, u32 place, i32 begin, i32 end, u32 index,
    u32 second) {
#pragma unroll
    for (i32 i = 0; i < i32(in_pack); ++i) {
        if (begin + i < end) pack.at[i] = element_at(shared, place);
        const bool moves = begin + i >= 0, turns = moves && index + 1 == steps.size[0];
        place += turns ? steps.turned : moves ? steps.one : 0;
        index = turns ? 0 : index + moves;
        if constexpr (Deep) {
            const bool turns_twice = turns && second + 1 == steps.size[1];
            place += turns_twice ? steps.turned_twice : 0;
            second = turns_twice ? 0 : second + turns;
        }
    }
}

// The same of a whole pack of a long run, along whose elements the innermost dimension ends once at most: after `until_turn`.
EP_DEVICE void collect_whole(
    Pack<Element, int(in_pack)>& pack, const Word* shared, u32 place, u32 one, u32 until_turn, u32 turned) {
#pragma unroll
    for (u32 i = 0; i < in_pack; ++i)
        pack.at[i] = element_at(shared, place + i * one + (i < until_turn ? 0 : turned - one));
}

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_permute(const __grid_constant__ Args args) {
    await_stream();
    __shared__ alignas(16) Word shared[words + words / 32 + 1];
#ifdef EP_BULK
    __shared__ Arrival arrival;
    if (threadIdx.x == 0) arrival.init();
    __syncthreads();
    u32 parity = 0;
#endif
    for (u64 t = blockIdx.x; t < args.blocks; t += gridDim.x) {
        u32 rest = u32(t);
        const Element* src = pointer<const Element>(args.src);
        Element* dst = pointer<Element>(args.dst);
        u64 extent[2] = {args.cut_extent[0], args.cut_extent[1]};
#pragma unroll 1
        for (u32 d = 0; d < args.rank; ++d) {
            u32 index = rest;
            if (d + 1 < args.rank) rest = divide(args.count[d], rest, index);
            src += i64(index) * args.src_step[d];
            dst += i64(index) * args.dst_step[d];
            if (args.cut_of[d] == 1) extent[0] -= index * args.cut_size[0];
            if (args.cut_of[d] == 2) extent[1] -= index * args.cut_size[1];
        }
        const uint2 left = {u32(least(extent[0], args.cut_size[0])), u32(least(extent[1], args.cut_size[1]))};

#ifdef EP_BULK
        // What src has in front of the block's first element within 16 bytes, runs have in shared memory, too.
        const u32 lead = u32(reinterpret_cast<u64>(src) / EP_SIZE % in_pack);
        const u32 src_length = length_of(args.src_side, left);
#pragma unroll 1
        for (u32 number = threadIdx.x; number < args.src_side.runs; number += EP_THREADS) {
            const Run run = run_at(args.src_side, number, left);
            if (!run.inside) continue;
            const Element* const from = src + run.offset;
            u8* const to = reinterpret_cast<u8*>(shared) + (run.shared + lead) * EP_SIZE;
            // Whole pieces of 16 bytes, but none that is partly outside of src: what is left of those goes by elements.
            const u64 first = reinterpret_cast<u64>(from), last = reinterpret_cast<u64>(from + src_length);
            u64 begin = first & ~u64(15), end = (last + 15) & ~u64(15);
            if (begin < args.src) begin += 16;
            if (end > args.src + args.src_bytes) end -= 16;
            if (begin < end) arrival.copy(to + i64(begin - first), begin, u32(end - begin));
            if (begin > first || end < last) {
#pragma unroll 1
                for (u32 i = 0; i < src_length; ++i) {
                    const u64 at = first + u64(i) * EP_SIZE;
                    if (at < begin || at >= end) reinterpret_cast<Element*>(to)[i] = from[i];
                }
            }
        }
        arrival.arrive();
        arrival.wait(parity);
        parity ^= 1;
#else
        constexpr u32 lead = 0;
        const u32 lanes = EP_SHORT ? args.src_side.lanes : warp_size, groups = EP_THREADS / lanes;
        const u32 lane = threadIdx.x & (lanes - 1), group = threadIdx.x / lanes;
        const u32 src_length = length_of(args.src_side, left), src_words = (src_length + in_word - 1) / in_word;
        const u32 reads = args.src_side.runs * u32(args.src_side.segments.divisor);
        constexpr u32 at_once = EP_SIZE < 4 ? 2 : 1;
        for (u32 first = group; first < reads; first += groups * at_once) {
#if EP_SIZE < 4
            u32 found[at_once][together], upper[at_once][together], offset[at_once], begin[at_once], to[at_once];
#endif
#pragma unroll
            for (u32 g = 0; g < at_once; ++g) {
#if EP_SIZE < 4
                begin[g] = src_words;
#endif
                if (first + g * groups >= reads) continue;
                u32 segment;
                const Run run = run_at(args.src_side, divide(args.src_side.segments, first + g * groups, segment), left);
                const u32 index = segment * (together * lanes) + lane;
                if (!run.inside || index >= src_words) continue;
                const u32 place = first_place(run.shared / in_word + index);
                const Element* const from = src + run.offset + index * in_word;
#if EP_SIZE >= 4
#pragma unroll
                for (u32 k = 0; k < together; ++k)
                    if (index + k * lanes < src_words) copy_word(shared, place, k, lanes, from + k * lanes);
#else
                // By aligned words, two where an end of one is wanted, of which nothing outside of src is read.
                const u64 address = reinterpret_cast<u64>(from), low = address & ~u64(3);
                offset[g] = u32(address & 3);
                const bool inside = low >= args.src && low + 4 * (together * lanes) + 4 <= args.src + args.src_bytes;
                if (inside && offset[g] == 0) {
#pragma unroll
                    for (u32 k = 0; k < together; ++k)
                        if (index + k * lanes < src_words)
                            copy_word(shared, place, k, lanes, pointer<const u32>(low) + k * lanes);
                    continue;
                }
                begin[g] = index;
                to[g] = place;
#pragma unroll
                for (u32 k = 0; k < together; ++k) {
                    if (index + k * lanes >= src_words) continue;
                    const u32* const words = pointer<const u32>(low) + k * lanes;
                    if (inside) {
                        found[g][k] = words[0];
                        upper[g][k] = words[1];
                        continue;
                    }
                    // As if it had been found by words.
                    u64 bytes = 0;
                    const u32 count = least(src_length - (index + k * lanes) * in_word, in_word);
#pragma unroll 1
                    for (u32 i = 0; i < count; ++i)
                        bytes |= u64(from[k * lanes * in_word + i]) << (8 * (offset[g] + i * EP_SIZE));
                    found[g][k] = u32(bytes);
                    upper[g][k] = u32(bytes >> 32);
                }
#endif
            }
#if EP_SIZE < 4
#pragma unroll
            for (u32 g = 0; g < at_once; ++g)
#pragma unroll
                for (u32 k = 0; k < together; ++k)
                    if (begin[g] + k * lanes < src_words)
                        shared[further(to[g], k, lanes)] = __funnelshift_r(found[g][k], upper[g][k], 8 * offset[g]);
#endif
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
#endif

        const u32 length = length_of(args.dst_side, left), rank = args.run_rank;
        const Steps steps = steps_of(args);
        const u32 writes = args.dst_side.runs * u32(args.dst_side.segments.divisor);
        const u32 sharing = EP_SHORT ? args.dst_side.lanes : warp_size, own = threadIdx.x & (sharing - 1);
        const u32 in_segment = sharing < warp_size ? sharing * (packs_of_segment / 64) : packs_of_segment;
        for (u32 unit = threadIdx.x / sharing; unit < writes; unit += EP_THREADS / sharing) {
            u32 segment;
            const Run run = run_at(args.dst_side, divide(args.dst_side.segments, unit, segment), left);
            Element* const to = dst + run.offset;
            // Packs are those of memory: the first and the last may not be whole.
            const i32 before = in_pack == 1 ? 0 : i32(reinterpret_cast<u64>(to) / EP_SIZE % in_pack);
            if (!run.inside) continue;
#pragma unroll 1
            for (u32 k = 0; k < in_segment; k += sharing) {
                const i32 begin = i32((segment * in_segment + k + own) * in_pack) - before;
                const i32 first = begin < 0 ? 0 : begin, end = least(begin + i32(in_pack), i32(length));
                if (first >= end) continue;
                u32 index[3] = {};
                auto locate = [&](u32 at) {
                    u32 place = run.shared + lead;
#pragma unroll
                    for (u32 d = 0; d < max_rank; ++d) {
                        if (d >= rank) break;
                        u32 i = at;
                        if (d + 1 < rank) at = divide(args.in_run[d], at, i);
                        place += i * args.run_to_shared[d];
                        if (d < 3) index[d] = i;
                    }
                    return place * EP_SIZE;
                };
                u32 place = locate(u32(first));
                const u32 left_of_three = ((steps.size[2] - index[2]) * steps.size[1] - index[1]) * steps.size[0] - index[0];
                if (rank > 3 && u32(end - first) > left_of_three) {
#pragma unroll 1
                    for (i32 at = first; at < end; ++at) to[at] = element_at(shared, locate(u32(at)));
                } else if constexpr (in_pack == 1) to[first] = element_at(shared, place);
                else {
                    Pack<Element, int(in_pack)> pack;
                    if (!EP_SHORT && steps.size[0] >= in_pack) {
                        const u32 twice = rank > 2 && index[1] + 1 == steps.size[1] ? steps.turned_twice : 0;
                        const u32 until_turn = steps.size[0] - index[0], turned = steps.turned + twice;
                        if (begin >= 0 && end - begin == i32(in_pack)) {
                            collect_whole(pack, shared, place, steps.one, until_turn, turned);
                            store(to + begin, pack);
                            continue;
                        }
#pragma unroll
                        for (u32 i = 0; i + 1 < in_pack; ++i) {
                            if (first + i32(i) >= end) break;
                            const u32 further = i < until_turn ? 0 : turned - steps.one;
                            to[first + i] = element_at(shared, place + i * steps.one + further);
                        }
                        continue;
                    }
                    if (rank > 2) collect<true>(pack, shared, steps, place, begin, end, index[0], index[1]);
                    else collect<false>(pack, shared, steps, place, begin, end, index[0], index[1]);
                    if (end - begin == i32(in_pack) && begin >= 0) store(to + begin, pack);
                    else {
#pragma unroll
                        for (i32 i = 0; i < i32(in_pack); ++i)
                            if (begin + i >= 0 && begin + i < end) to[begin + i] = pack.at[i];
                    }
                }
            }
        }
        __syncthreads();
    }
}
