// Indices into a window of an axis, and how one that is refused is reported.
#pragma once
#include "common.cuh"

enum class IndexMode { wrap, zero, error };

// The part of an axis of `size` that is there: offset .. offset + length.
struct Window {
    i64 offset, length, size;
};

// What the host reads after the launches that may write it. It sets `position` to all ones before the first of them.
struct IndexError {
    u32 lock, launch;
    u64 position;
    i64 value;
};

// Keeps the first refused index of the first launch that refused one: the host numbers launches upwards.
EP_DEVICE void report(u64 address, u32 launch, u64 position, i64 value) {
    IndexError* error = pointer<IndexError>(address);
    volatile u64* found = &error->position;
    volatile u32* launch_found = &error->launch;
    auto earlier_is_known = [&] { return *found != ~u64(0) && (*launch_found != launch || *found <= position); };
    if (earlier_is_known()) return;
    while (atomicCAS(&error->lock, 0u, 1u) != 0) {}
    __threadfence();
    if (!earlier_is_known()) {
        *launch_found = launch;
        *found = position;
        *reinterpret_cast<volatile i64*>(&error->value) = value;
    }
    __threadfence();
    atomicExch(&error->lock, 0u);
}

// The place within the window that an index means, or -1 where it leads to nothing.
template <IndexMode Mode, class I>
EP_DEVICE i64 place_in(Window window, I given, bool& refused) {
    const i64 value = i64(given);
    const i64 index = Mode == IndexMode::wrap && value < 0 ? value + window.size : value;
    const bool inside = index >= 0 && index < window.size;
    refused = Mode != IndexMode::zero && !inside;
    const i64 place = index - window.offset;
    return inside && place >= 0 && place < window.length ? place : -1;
}
