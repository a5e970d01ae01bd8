// Copies runs into a destination without gaps: a thread writes a whole pack of it.
//
// EP_SIZE  bytes of an element, below 16     EP_INDEX  u32 where offsets and the number of elements are below 2^31, else u64
// EP_APART  0, or 1 for elements of one or two bytes     EP_THREADS
//
// A pack that holds the end of a run and the begin of the next takes twice the loads, and nearly every warp has one. With EP_APART few
// threads of a block write all of those, one for each run that ends in it, beside their packs within runs: for runs that are not too
// short.
#include "common.cuh"

using Element = BitsOf<EP_SIZE>;
using Index = EP_INDEX;
using Offset = Select<sizeof(Index) == 4, i32, i64>;
constexpr int in_pack = 16 / EP_SIZE;
using Run = Pack<Element, in_pack>;

// Dimensions go from the innermost, along which runs of at least a pack are, outwards.
struct Args {
    u64 count;                // elements
    u32 rank, before;         // elements by which the first pack begins before dst, so that packs are aligned
    FastDiv dims[max_rank];   // that of the outermost dimension is not read
    i64 strides[max_rank];    // of src, in elements
    u64 src, dst;
    u64 ends[2];              // the lowest and the highest address of an element of src
    // With EP_APART: elements from the last multiple of 16 up to src's address to the first element, to the lowest and behind the
    // highest, and how many runs may end in a block's packs.
    i64 lead, low, high;
    u64 turns;
};

// Where a run begins, by its number, in elements behind `at`.
EP_DEVICE Offset place_of(const Args& args, Index run, Offset at) {
    Index rest = run;
#pragma unroll
    for (int d = 1; d < max_rank; ++d) {
        if (d >= args.rank) break;
        Index index = rest;
        if (d + 1 < args.rank) rest = divide(args.dims[d], rest, index);
        at += Offset(index) * Offset(args.strides[d]);
    }
    return at;
}
// The address of an element of src by its number.
EP_DEVICE u64 address_of(const Args& args, Index element, Index& in_run) {
    const Index run = divide(args.dims[0], element, in_run);
    return args.src + i64(place_of(args, run, Offset(in_run))) * EP_SIZE;
}

#if EP_APART
// The pack at any element of src, out of the aligned words that have it: fewer instructions than by whole packs, but more loads.
struct Shifted {
    u32 words[5];
    u32 offset;

    // False where those would leave what src's elements span.
    __device__ __forceinline__ bool load(const Args& args, Offset at) {
        constexpr Offset in_word = 4 / EP_SIZE;
        const Offset begin = at & -in_word;
        if (begin < Offset(args.low) || begin > Offset(args.high) - 5 * in_word) return false;
        offset = u32(at - begin) * EP_SIZE;
        auto source = pointer<const u32>(args.src / 16 * 16 + i64(begin) * EP_SIZE);
#pragma unroll
        for (int i = 0; i < 5; ++i) words[i] = __ldg(source + i);
        return true;
    }
    __device__ __forceinline__ Run get() const {
        Run run;
        u32 all[5] = {words[0], words[1], words[2], words[3], words[4]};
        shift_bytes<4>(all, offset);
        run.raw[0] = {all[0], all[1], all[2], all[3]};
        return run;
    }
};

enum class Way { none, whole, by_elements };

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_copy_runs(const __grid_constant__ Args args) {
    await_stream();
    constexpr u32 in_block = EP_THREADS * in_pack;
    // Elements are counted from where the first pack begins.
    const Index before = args.before, total = Index(args.count) + before, length = Index(args.dims[0].divisor);
    const Index begin = Index(blockIdx.x) * in_block;
    const Offset lead = Offset(args.lead);
    Element* const dst = pointer<Element>(args.dst) - args.before;
    auto is_whole = [&](Index first) { return first >= before && first + in_pack <= total; };
    // Of a pack within a run, or at an end of dst, and of one in which a run ends.
    Index first[2] = {begin + threadIdx.x * in_pack, 0};
    Way ways[2] = {Way::none, Way::none};
    Shifted here, upper, lower;

    if (first[0] < total) {
        ways[0] = Way::by_elements;
        if (is_whole(first[0])) {
            Index in_run;
            const Index run = divide(args.dims[0], first[0] - before, in_run);
            if (in_run + in_pack > length) ways[0] = Way::none;
            else if (here.load(args, place_of(args, run, lead + Offset(in_run)))) ways[0] = Way::whole;
        }
    }
    // Which warp has more to do differs from block to block.
    const u32 turn = (threadIdx.x + (blockIdx.x * 0x9e3779b9u >> 20) * warp_size) % EP_THREADS;
    u32 cut = 0;
    if (turn < args.turns) {
        Index rest;
        const Index run = divide(args.dims[0], begin > before ? begin - before : 0, rest) + 1 + turn;
        const Index end = run * length + before;
        cut = u32(end % in_pack);
        first[1] = end - cut;
        if (cut != 0 && end < begin + in_block && is_whole(first[1])) {
            ways[1] = Way::by_elements;
            const bool loaded = lower.load(args, place_of(args, run - 1, lead + Offset(length) - Offset(cut)));
            if (upper.load(args, place_of(args, run, lead - Offset(cut))) && loaded) ways[1] = Way::whole;
        }
    }

    if (ways[0] == Way::whole) store(dst + first[0], here.get());
    if (ways[1] == Way::whole) {
        Run run = lower.get();
        const Run next = upper.get();
#pragma unroll
        for (int i = 0; i < 4; ++i) run.words[i] = choose(bits_from(i32(cut * EP_SIZE * 8), i), next.words[i], run.words[i]);
        store(dst + first[1], run);
    }
    // At the ends of either side.
#pragma unroll 1
    for (int k = 0; k < 2; ++k) {
        if ((k == 0 ? ways[0] : ways[1]) != Way::by_elements) continue;
        const Index from = k == 0 ? first[0] : first[1];
#pragma unroll 1
        for (Index element = from; element < from + in_pack; ++element) {
            if (element < before || element >= total) continue;
            Index in_run;
            dst[element] = *pointer<const Element>(address_of(args, element - before, in_run));
        }
    }
}
#else
// The pack at any address of an element, by two aligned loads.
struct Shifted {
    uint4 lower, upper;
    i32 offset;

    __device__ __forceinline__ void load(u64 address) {
        offset = i32(address % 16);
        auto source = pointer<const uint4>(address - offset);
        lower = __ldg(source);
        upper = __ldg(source + 1);
    }
    __device__ __forceinline__ Run get() const {
        u32 words[8] = {lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w};
        shift_words(words, offset);
        Run run;
        run.raw[0] = {words[0], words[1], words[2], words[3]};
        return run;
    }
};
EP_DEVICE bool is_inside(const Args& args, u64 address) {
    const u64 begin = address / 16 * 16;
    return begin >= args.ends[0] && begin + 32 - EP_SIZE <= args.ends[1];
}

extern "C" __global__ void __launch_bounds__(EP_THREADS) ep_copy_runs(const __grid_constant__ Args args) {
    await_stream();
    const i64 at = i64(u64(blockIdx.x) * EP_THREADS + threadIdx.x) * in_pack - i64(args.before);
    Shifted here, next;
    // Elements before the next run, and whether the pack is whole and loaded.
    i32 left;
    bool loaded = at >= 0 && at + in_pack <= i64(args.count);
    if (loaded) {
        Index in_run;
        const u64 address = address_of(args, Index(at), in_run);
        left = least(i64(args.dims[0].divisor) - i64(in_run), i64(in_pack));
        u64 following = address;
        if (left < in_pack) following = address_of(args, Index(at + left), in_run) - u64(left) * EP_SIZE;
        loaded = is_inside(args, address) && is_inside(args, following);
        if (loaded) {
            here.load(address);
            if (left < in_pack) next.load(following);
        }
    }
    Element* const to = pointer<Element>(args.dst) + at;
    if (loaded) {
        Run run = here.get();
        if (left < in_pack) {
            const Run rest = next.get();
#pragma unroll
            for (int i = 0; i < in_pack; ++i)
                if (i >= left) run.at[i] = rest.at[i];
        }
        return store(to, run);
    }
    // At the ends of either side.
#pragma unroll 1
    for (i32 i = 0; i < in_pack; ++i) {
        if (at + i < 0 || at + i >= i64(args.count)) continue;
        Index in_run;
        to[i] = *pointer<const Element>(address_of(args, Index(at + i), in_run));
    }
}
#endif
