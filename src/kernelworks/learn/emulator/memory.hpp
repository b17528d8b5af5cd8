// The memory of the emulated GPU: one reserved range, in which every array stands between guard zones.
//
// A table from page to array says in one step to which array an address belongs, or beside which array it lies.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace emulator {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

constexpr u64 PAGE = 4096, GUARD = 64 * PAGE, ARENA = u64(1) << 30;
constexpr u32 NOT_WRITTEN = 0;

enum Space : u8 { GLOBAL, SHARED };
enum AccessKind : u8 { NONE, READ, WRITE, ATOMIC };

// Who accessed a cell last, and when: enough to say whether something orders that access before another one.
struct Stamp {
    u32 launch = 0;   // of a shared array: the block's turn
    u32 block = 0;
    u32 barrier = 0;  // how many block barriers the block had passed
    u32 lane_time = 0;
    u32 fence = 0;
    u32 site = 0;
    u16 thread = 0;
    AccessKind kind = NONE;
};

struct Cell {
    Stamp write, reads[3];  // two threads of one block, and one of another block
    u32 written = NOT_WRITTEN;
};

struct Array {
    std::string name;
    u64 base = 0, bytes = 0;
    u64 inner = 1, innermost = 1;  // elements of one step of the first two indices, for messages
    u32 element = 4;
    Space space = GLOBAL;
    bool initialised = false;  // before the launch
    bool constant = false;     // an input: nobody writes there
    bool freed = false;
    bool managed = false;  // host code uses it too
    u32 granule = 4;  // bytes of one cell; 1 once a smaller or a crooked access was seen
    u32 used_by = 0;  // of a shared array: the launch that used it last
    std::vector<Cell> cells;

    void split() {
        std::vector<Cell> fine;
        fine.reserve(cells.size() * granule);
        for (const Cell& c : cells)
            for (u32 i = 0; i < granule; i++) fine.push_back(c);
        cells.swap(fine);
        granule = 1;
    }
};

struct Memory {
    u8* base = nullptr;
    u64 used = 0;
    std::vector<Array*> arrays;
    std::vector<u16> pages;  // page -> 1 + index of the array in or beside it

    void reserve() {
        void* at = mmap(nullptr, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            std::perror("mmap");
            std::exit(3);
        }
        base = static_cast<u8*>(at);
        pages.assign(ARENA / PAGE, 0);
    }

    // Drops the arrays of a case, with what was in them.
    void clear() {
        for (Array* a : arrays) delete a;
        arrays.clear();
        madvise(base, used, MADV_DONTNEED);
        std::fill(pages.begin(), pages.begin() + used / PAGE, 0);
        used = 0;
    }

    Array* add(const std::string& name, u64 bytes, u32 element, Space space) {
        u64 whole = (bytes + PAGE - 1) / PAGE * PAGE;
        u64 span = GUARD + whole + GUARD;
        if (used + span > ARENA || arrays.size() > 60000) {
            std::fprintf(stderr, "the emulator has no memory for %llu bytes\n", (unsigned long long)bytes);
            std::exit(3);
        }
        Array* a = new Array;
        a->name = name;
        a->bytes = bytes;
        a->element = element;
        a->space = space;
        // Its end touches the guard zone; the alignment of 256 bytes is that of cudaMalloc.
        a->base = u64(base) + used + GUARD;
        a->cells.resize((bytes + 3) / 4);
        arrays.push_back(a);
        for (u64 p = used / PAGE; p < (used + span) / PAGE; p++) pages[p] = u16(arrays.size());
        std::memset(base + used + GUARD - PAGE, 0xff, whole + 2 * PAGE);  // not a number, in every type
        used += span;
        return a;
    }

    // The array that an address lies in or beside, or null.
    Array* beside(u64 address) const {
        u64 offset = address - u64(base);
        if (offset >= used) return nullptr;
        u16 index = pages[offset / PAGE];
        return index ? arrays[index - 1] : nullptr;
    }
};

inline Memory memory;

// ---------------------------------------------------------------- what was found

struct Place {
    u32 block = 0, thread = 0, site = 0;
    int line = 0;  // where the source gave its line itself (barriers, shuffles)
    AccessKind kind = NONE;
};

struct Fault {
    std::string kind, array;
    Place first, second;
    long long index = 0;  // of the element, counted from the array's begin
    u64 bytes = 0, count = 0;
    u32 order = 0, element = 4;
    u64 length = 0;  // of the array, in elements
    bool shared = false;
    u64 inner = 1, innermost = 1;
    uint32_t grid[3] = {}, block[3] = {};
    long long value = 0;
    u64 threads = 0;  // how many different threads, as far as known
    u64 last_thread = ~u64(0);
};

inline std::vector<Fault> faults;
constexpr size_t MOST_FAULTS = 40;

}  // namespace emulator
