// Processes of one host that compute together, through memory that all of them map.
//
// The segment holds a control block for each rank, then two areas for each. Time goes in steps, which all ranks count
// alike. In a step a rank writes to its area of that step, and to no other's; it posts the step (release) and waits
// until all have (acquire); then it reads. The areas of odd and of even steps are apart: who writes for step t has seen
// all ranks post t - 1, so nobody reads what was written for t - 2 any more.
//
// A call's first step carries a text that says what is called. Ranks whose texts differ all find that out at that step,
// before a result is written, and none is ahead of the others afterwards.
//
// Waiting is cut into slices, so that the caller looks for a signal, for a rank that has ended and for the time. A call
// that waits is gone on with by calling it again with `resume`.
#pragma once

#include <sched.h>
#include <time.h>

#include "answer.hpp"
#include "simd.hpp"

namespace kw {

// Where things lie in the segment; templates/rank_segment.py has the same figures.
constexpr int64_t CONTROL = 4096, PROGRESS = 64, TEXT = 1024, TEXT_BYTES = 256, BROKEN_AT = 2048;
constexpr int64_t AREA = 256 * 1024;
constexpr int MOST_RANKS = 64;

// What a call answers; ANOTHER says that another rank called something else.
enum : int64_t { DONE = 0, WAITING = 1, BROKEN = 2, ANOTHER = 3 };

constexpr int SPINS = 2000;                           // before the core is offered to others
constexpr int64_t YIELD_NS = 1000000, SLICE_NS = 20000000;  // how long it is offered, how long a slice is in all

inline int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

struct Ranks {
    char* base;
    int rank, count;

    Ranks(const Args& args) : base(reinterpret_cast<char*>(args.integer(0))), rank(static_cast<int>(args.integer(1))),
                              count(static_cast<int>(args.integer(2))) {}

    uint64_t* posted(int r) const { return reinterpret_cast<uint64_t*>(base + r * CONTROL); }
    int64_t& progress() const { return *reinterpret_cast<int64_t*>(base + rank * CONTROL + PROGRESS); }
    char* text(int r, uint64_t step) const { return base + r * CONTROL + TEXT + (step & 1) * TEXT_BYTES; }
    template <class T = char>
    T* area(int r, uint64_t step) const {
        return reinterpret_cast<T*>(base + count * CONTROL + (2 * r + (step & 1)) * AREA);
    }

    bool broken() const { return __atomic_load_n(reinterpret_cast<int64_t*>(base + BROKEN_AT), __ATOMIC_ACQUIRE); }
    uint64_t step() const { return __atomic_load_n(posted(rank), __ATOMIC_RELAXED); }
    void post(uint64_t step) const { __atomic_store_n(posted(rank), step, __ATOMIC_RELEASE); }
    bool all_at(uint64_t step) const {
        for (int r = 0; r < count; ++r)
            if (__atomic_load_n(posted(r), __ATOMIC_ACQUIRE) < step) return false;
        return true;
    }

    // A slice of waiting until all have posted a step.
    int64_t wait(uint64_t step) const {
        for (int i = 0; i < SPINS; ++i) {
            if (all_at(step)) return DONE;
            pause();
        }
        const int64_t begin = now_ns();
        for (int64_t passed = 0; passed < SLICE_NS; passed = now_ns() - begin) {
            if (all_at(step)) return DONE;
            if (broken()) return BROKEN;
            if (passed < YIELD_NS) {
                sched_yield();
            } else {
                const timespec nap{0, 50000};
                nanosleep(&nap, nullptr);
            }
        }
        return WAITING;
    }

    // Posts a call's first step, with its text.
    void begin(uint64_t step, int64_t text_address) const {
        std::memcpy(text(rank, step), reinterpret_cast<const char*>(text_address), TEXT_BYTES);
        post(step);
    }
    bool called_alike(uint64_t step) const {
        for (int r = 0; r < count; ++r)
            if (std::memcmp(text(r, step), text(rank, step), TEXT_BYTES)) return false;
        return true;
    }
};

}  // namespace kw
