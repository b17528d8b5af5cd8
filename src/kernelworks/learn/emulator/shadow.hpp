// Every load and store of every thread: bounds, memory that nobody has written, and pairs of accesses that race.
//
// Two accesses of one cell by different threads race if one of them writes, not both are atomic, and nothing orders
// them. In a block __syncthreads orders all, in a warp __syncwarp orders the lanes of its mask. Between the blocks of a
// launch only a __threadfence before an atomic, and that atomic's reader, do. A launch orders all before it.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "fibres.hpp"

namespace emulator {

inline u64 image_begin = 0, image_end = 0;  // the learner's library in memory

inline std::vector<u64> sites(1, 0);  // program counters; the first is no place
inline std::unordered_map<u64, u32> site_of;

inline u32 site(void* counter) {
    static u64 last = 0;
    static u32 last_site = 0;
    u64 pc = u64(counter);
    if (pc == last) return last_site;
    auto [at, fresh] = site_of.try_emplace(pc, u32(sites.size()));
    if (fresh) sites.push_back(pc);
    last = pc;
    return last_site = at->second;
}

// What a block knows of the others through fences and atomics, and a thread of others in its block: all up to a fence.
struct Releases {
    std::unordered_map<u64, u32> known;                          // (reader << 32 | writer) -> fence number
    std::unordered_map<u64, std::unordered_map<u32, u32>> by_address;  // an atomic's address -> block -> fence number
    std::unordered_map<u64, u32> known_threads;  // of the block that runs
    std::unordered_map<u64, std::unordered_map<u32, u32>> threads_by_address;
    void clear() {
        known.clear();
        by_address.clear();
    }
    void clear_block() {
        known_threads.clear();
        threads_by_address.clear();
    }
};
inline Releases releases;

inline bool is_ordered(const Stamp& s, const Fibre& f, u32 epoch) {
    if (s.launch != epoch) return true;
    if (s.block != gpu.block_number) {
        if (releases.known.empty()) return false;
        auto at = releases.known.find(u64(gpu.block_number) << 32 | s.block);
        return at != releases.known.end() && at->second >= s.fence;
    }
    if (s.thread == f.thread || s.barrier < gpu.barrier) return true;
    if (!releases.known_threads.empty()) {
        auto at = releases.known_threads.find(u64(f.thread) << 32 | s.thread);
        if (at != releases.known_threads.end() && at->second >= s.fence) return true;
    }
    if (s.thread / 32 != f.thread / 32) return false;
    return gpu.warps[f.thread / 32].clock[f.thread % 32][s.thread % 32] >= s.lane_time;
}

inline Fault fault_at(const char* kind, const Array& a, u64 address, u32 bytes) {
    Fault f;
    f.kind = kind;
    f.array = a.name;
    long long offset = (long long)(address) - (long long)(a.base);
    f.index = offset >= 0 ? offset / a.element : -((-offset + a.element - 1) / a.element);
    f.bytes = bytes;
    f.element = a.element;
    f.length = a.bytes / a.element;
    f.shared = a.space == SHARED;
    f.inner = a.inner;
    f.innermost = a.innermost;
    return f;
}

// Reads that may meet an atomic of another thread: volatile ones, which PTX takes for relaxed atomics, and the guess with
// which a loop of atomicCAS begins. The atomic finds out if the guess is old by then, and the loop goes round again.
inline std::unordered_set<u32> reads_beside_atomics;

inline void note_guess(const Fibre& f, u64 address) {
    for (int i = 0; i < 4; i++)
        if (f.read_addresses[i] == address) reads_beside_atomics.insert(f.read_sites[i]);
}

// Whether a read is the guess of an atomicCAS shows behind it, so races are looked through when an order has ended.
inline void forgive_reads_beside_atomics() {
    auto may = [](const Place& a, const Place& b) {
        return a.kind == READ && b.kind == ATOMIC && reads_beside_atomics.count(a.site);
    };
    std::erase_if(faults, [&](const Fault& f) { return f.kind == "race" && (may(f.first, f.second) || may(f.second, f.first)); });
}

inline void report_race(const Array& a, u64 address, u32 bytes, const Stamp& s, const Fibre& f, u32 at, AccessKind kind) {
    Fault fault = fault_at("race", a, address, bytes);
    fault.first.block = s.block;
    fault.first.thread = s.thread;
    fault.first.site = s.site;
    fault.first.kind = s.kind;
    fault.second = place_of(f, at, kind);
    fault.second.line = 0;
    report(fault);
}

inline void note_read(Cell& c, const Stamp& now, u32 epoch) {
    auto is_old = [&](const Stamp& s) { return s.kind == NONE || s.launch != epoch; };
    Stamp* r = c.reads;
    if (is_old(r[0]) || (r[0].block == now.block && (r[0].thread == now.thread || r[0].barrier < now.barrier))) {
        if (!is_old(r[0]) && r[0].barrier < now.barrier && r[1].block == now.block) r[1] = Stamp{};
        r[0] = now;
    } else if (r[0].block == now.block) {
        // A reader of another warp is worth more: __syncwarp orders it with nobody of this one.
        if (is_old(r[1]) || r[1].barrier < now.barrier || r[1].thread / 32 == r[0].thread / 32) r[1] = now;
    } else {
        r[2] = r[0];  // a reader of another block stays known
        r[1] = Stamp{};
        r[0] = now;
    }
}

inline void check_cell(Array& a, Cell& c, u64 address, u32 bytes, Fibre& f, u32 at, AccessKind kind, u32 epoch, u32 life) {
    bool unwritten = c.written != life && !(a.initialised);
    if (unwritten && kind != WRITE) {
        Fault fault = fault_at(kind == ATOMIC ? "unwritten_atomic" : "unwritten", a, address, bytes);
        fault.second = place_of(f, at, kind);
        fault.second.line = 0;
        report(fault);
        c.written = life;
    }
    Stamp now;
    now.launch = epoch;
    now.block = gpu.block_number;
    now.barrier = gpu.barrier;
    now.lane_time = gpu.warps[f.thread / 32].clock[f.thread % 32][f.thread % 32];
    now.fence = gpu.fence_time;
    now.site = at;
    now.thread = u16(f.thread);
    now.kind = kind;
    if (c.write.kind != NONE && !(kind == ATOMIC && c.write.kind == ATOMIC) && !is_ordered(c.write, f, epoch))
        report_race(a, address, bytes, c.write, f, at, kind);
    if (kind == READ) {
        note_read(c, now, epoch);
        return;
    }
    for (Stamp& r : c.reads) {
        if (r.kind != NONE && !is_ordered(r, f, epoch)) {
            report_race(a, address, bytes, r, f, at, kind);
            break;
        }
    }
    c.reads[0].kind = c.reads[1].kind = c.reads[2].kind = NONE;
    c.write = now;
    c.written = life;
}

inline void log_request(Array& a, u64 address, u32 bytes, u32 at, const Fibre& f, AccessKind kind);

// An address outside of the arrays: host memory, a wild pointer, a null pointer. The order cannot go on.
inline void check_foreign(u64 address, u32 bytes, Fibre& f, u32 at, AccessKind kind) {
    if (address >= image_begin && address + bytes <= image_end) return;  // __device__ and __constant__
    if (address - gpu.closure_begin < gpu.closure_bytes) return;                       // the launch's arguments
    Array nowhere;
    nowhere.name = address < PAGE * 16 ? "null" : "";
    nowhere.element = 1;
    Fault fault = fault_at("wild", nowhere, 0, bytes);
    fault.second = place_of(f, at, kind);
    fault.second.line = 0;
    report(fault);
    stop_order();
}

inline void yield_sometimes(Fibre&);

// Host code writes managed memory between launches.
inline void note_host_write(Array& a, u64 address, u32 bytes) {
    if (address < a.base || address + bytes > a.base + a.bytes) return;
    u64 offset = address - a.base;
    if (a.granule > 1 && (offset | bytes) % a.granule) a.split();
    for (u64 o = offset; o < offset + bytes; o += a.granule) a.cells[o / a.granule].written = 1;
}

inline void access(void* pointer, u32 bytes, AccessKind kind, void* counter, bool must_align) {
    Fibre* f = gpu.self;
    u64 address = u64(pointer);
    if (!f) {
        Array* a = memory.beside(address);
        if (a && a->managed && !a->freed && kind == WRITE) note_host_write(*a, address, bytes);
        if (a && (!a->managed || a->freed)) {
            Fault fault = fault_at("host_access", *a, address, bytes);
            fault.second.site = site(counter);
            fault.second.kind = kind;
            report(fault);
        }
        return;
    }
    if (on_a_stack(address)) return;
    u32 at = site(counter);
    Array* a = memory.beside(address);
    if (!a) return check_foreign(address, bytes, *f, at, kind);
    f->last_site = at;
    if (address < a->base || address + bytes > a->base + a->bytes || a->freed) {
        Fault fault = fault_at(a->freed ? "freed" : "out_of_bounds", *a, address, bytes);
        fault.second = place_of(*f, at, kind);
        fault.second.line = 0;
        report(fault);
        return;
    }
    if (must_align && address % bytes) {
        Fault fault = fault_at("misaligned", *a, address, bytes);
        fault.second = place_of(*f, at, kind);
        fault.second.line = 0;
        report(fault);
        stop_order();  // the access itself may end the process
    }
    if (a->constant && kind != READ) {
        Fault fault = fault_at("writes_input", *a, address, bytes);
        fault.second = place_of(*f, at, kind);
        fault.second.line = 0;
        report(fault);
    }
    u64 offset = address - a->base;
    if (a->granule > 1 && (offset | bytes) % a->granule) a->split();
    u32 epoch = a->space == SHARED ? gpu.turn : gpu.launch, life = a->space == SHARED ? gpu.turn : 1;
    for (u64 o = offset; o < offset + bytes; o += a->granule)
        check_cell(*a, a->cells[o / a->granule], a->base + o, bytes, *f, at, kind, epoch, life);
    log_request(*a, address, bytes, at, *f, kind);
    if (kind == READ) {
        f->read_addresses[f->reads % 4] = address;
        f->read_sites[f->reads++ % 4] = at;
    }
    yield_sometimes(*f);
}

}  // namespace emulator
