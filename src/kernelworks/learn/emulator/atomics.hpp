// Atomic updates: one thread at a time runs, so each is done in one go. What is left to say is what a fence before an
// atomic, and that atomic's next reader, order between blocks.
#pragma once

#include "scheduler.hpp"

namespace emulator {

enum { INT, UNSIGNED, LONG, FLOAT, DOUBLE };
enum { ATOMIC_ADD, ATOMIC_MIN, ATOMIC_MAX, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, ATOMIC_EXCHANGE, ATOMIC_CAS, ATOMIC_INC, ATOMIC_DEC };

inline void note_atomic(u64 address) {
    Fibre* f = gpu.self;
    if (!f) return;
    auto at = releases.by_address.find(address);
    if (at != releases.by_address.end()) {
        for (auto [block, fence] : at->second) {
            u32& known = releases.known[u64(gpu.block_number) << 32 | block];
            known = std::max(known, fence);
        }
    }
    auto inside = releases.threads_by_address.find(address);
    if (inside != releases.threads_by_address.end()) {
        for (auto [thread, fence] : inside->second) {
            u32& known = releases.known_threads[u64(f->thread) << 32 | thread];
            known = std::max(known, fence);
        }
    }
    if (f->fence) releases.threads_by_address[address][f->thread] = f->fence;
    // Beside its own fence a thread passes on those that others made before a barrier.
    u32 fence = std::max(f->fence, gpu.fence_at_barrier);
    if (fence) releases.by_address[address][gpu.block_number] = fence;
}

template <class T>
T combine_as(int operation, T a, T b) {
    return operation == ATOMIC_ADD ? T(a + b) : operation == ATOMIC_MIN ? std::min(a, b) : std::max(a, b);
}

template <class T>
u64 combine_bits(int operation, u64 a, u64 b) {
    T x, y;
    std::memcpy(&x, &a, sizeof(T));
    std::memcpy(&y, &b, sizeof(T));
    T z = combine_as(operation, x, y);
    u64 raw = 0;
    std::memcpy(&raw, &z, sizeof(T));
    return raw;
}

inline u64 atomic_result(int kind, int operation, u64 old, u64 value, u64 compare) {
    switch (operation) {
        case ATOMIC_AND: return old & value;
        case ATOMIC_OR: return old | value;
        case ATOMIC_XOR: return old ^ value;
        case ATOMIC_EXCHANGE: return value;
        case ATOMIC_CAS: return old == compare ? value : old;
        case ATOMIC_INC: return old >= value ? 0 : old + 1;
        case ATOMIC_DEC: return old == 0 || old > value ? value : old - 1;
        default: break;
    }
    switch (kind) {
        case INT: return combine_bits<int32_t>(operation, old, value);
        case UNSIGNED: return combine_bits<u32>(operation, old, value);
        case LONG: return combine_bits<u64>(operation, old, value);
        case FLOAT: return combine_bits<float>(operation, old, value);
        default: return combine_bits<double>(operation, old, value);
    }
}

}  // namespace emulator
