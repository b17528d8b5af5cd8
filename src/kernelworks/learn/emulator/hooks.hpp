// What compiled code calls: the names that `-fsanitize=thread` inserts before each load and store, and CUDA's own.
#pragma once

#include "scheduler.hpp"

#define KW_HERE __builtin_return_address(0)
#define KW_HOOK(bytes)                                                                                          \
    void __tsan_read##bytes(void* p) { emulator::access(p, bytes, emulator::READ, KW_HERE, true); }               \
    void __tsan_write##bytes(void* p) { emulator::access(p, bytes, emulator::WRITE, KW_HERE, true); }             \
    void __tsan_unaligned_read##bytes(void* p) { emulator::access(p, bytes, emulator::READ, KW_HERE, false); }    \
    void __tsan_unaligned_write##bytes(void* p) { emulator::access(p, bytes, emulator::WRITE, KW_HERE, false); }  \
    void __tsan_volatile_read##bytes(void* p) {                                                                 \
        emulator::access(p, bytes, emulator::READ, KW_HERE, true);                                                \
        emulator::reads_beside_atomics.insert(emulator::site(KW_HERE));                                           \
        emulator::note_spin();                                                                                    \
    }                                                                                                           \
    void __tsan_volatile_write##bytes(void* p) { emulator::access(p, bytes, emulator::WRITE, KW_HERE, true); }    \
    void __tsan_unaligned_volatile_read##bytes(void* p) { emulator::access(p, bytes, emulator::READ, KW_HERE, false); } \
    void __tsan_unaligned_volatile_write##bytes(void* p) { emulator::access(p, bytes, emulator::WRITE, KW_HERE, false); }

extern "C" {
KW_HOOK(1)
KW_HOOK(2)
KW_HOOK(4)
KW_HOOK(8)
KW_HOOK(16)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, unsigned long n) { emulator::access(p, u_int32_t(n), emulator::READ, KW_HERE, false); }
void __tsan_write_range(void* p, unsigned long n) { emulator::access(p, u_int32_t(n), emulator::WRITE, KW_HERE, false); }

emulator::uint3_ kw_thread_idx() noexcept { return emulator::gpu.self ? emulator::gpu.self->index : emulator::uint3_{}; }
emulator::uint3_ kw_block_idx() noexcept { return emulator::gpu.block_index; }
emulator::uint3_ kw_block_dim() noexcept { return emulator::gpu.block; }
emulator::uint3_ kw_grid_dim() noexcept { return emulator::gpu.grid; }
void kw_syncthreads(int line) { emulator::wait_in_block(line, 0, 0); }
int kw_syncthreads_vote(int line, int operation, int predicate) {
    return emulator::wait_in_block(line, emulator::VOTE + operation, u_int64_t(predicate));
}
void kw_syncwarp(int line, unsigned mask) { emulator::wait_in_warp(line, emulator::SYNC_WARP, mask, 0, 0); }
unsigned long long kw_exchange(int line, int operation, unsigned mask, unsigned long long value, int source) {
    return emulator::wait_in_warp(line, operation, mask, value, source);
}
unsigned kw_activemask() {
    using namespace emulator;
    u32 warp = gpu.self->thread / 32, mask = 0;
    for (u32 l = 0; l < lanes_of(warp); l++) mask |= u32(gpu.fibres[warp * 32 + l].state != FINISHED) << l;
    return mask;
}
void kw_fence() {
    using namespace emulator;
    if (gpu.self) gpu.self->fence = gpu.block_fence = gpu.fence_time++;
}

void* kw_shared_array(int id, unsigned long bytes, unsigned long element, unsigned long inner, unsigned long innermost,
                      const char* name, int line) {
    using namespace emulator;
    static std::unordered_map<u64, Array*> known;
    static u64 of_case = 0;
    if (of_case != case_number) known.clear();
    of_case = case_number;
    Array*& a = known[u64(id) << 32 | bytes];
    if (!a) {
        a = memory.add(name, bytes, u32(element), SHARED);
        a->inner = inner / element;
        a->innermost = innermost / element;
    }
    if (a->used_by != gpu.launch) {
        a->used_by = gpu.launch;
        u64 sum = gpu.dynamic_bytes;
        for (auto& [key, other] : known) sum += other->used_by == gpu.launch ? other->bytes : 0;
        u64 fixed = sum - gpu.dynamic_bytes;
        if (fixed > 48 * 1024 || sum > 227 * 1024) {
            Fault fault;
            fault.kind = fixed > 48 * 1024 ? "static_shared" : "shared_size";
            fault.first.line = line;
            fault.value = (long long)(fixed > 48 * 1024 ? fixed : sum);
            report(fault);
            stop_order();
        }
    }
    return reinterpret_cast<void*>(a->base);
}

void* kw_dynamic_shared(const char* name, int) {
    using namespace emulator;
    gpu.dynamic->name = name;
    return reinterpret_cast<void*>(gpu.dynamic->base);
}

void kw_launch(emulator::uint3_ grid, emulator::uint3_ block, unsigned long shared, void (*body)(void*), void* closure,
               unsigned long bytes, int line) {
    if (emulator::gpu.self) {
        emulator::Fault fault;
        fault.kind = "nested_launch";
        fault.second = emulator::place_of(*emulator::gpu.self, 0, emulator::NONE);
        fault.second.line = line;
        emulator::report(fault);
        emulator::stop_order();
    }
    emulator::launch(grid, block, shared, body, closure, bytes, line);
}

void* kw_allocate(unsigned long bytes) {
    return reinterpret_cast<void*>(emulator::memory.add(emulator::ALLOCATED, bytes, 4, emulator::GLOBAL)->base);
}
void* kw_allocate_shared(unsigned long bytes) {
    emulator::Array* a = emulator::memory.add(emulator::ALLOCATED, bytes, 4, emulator::GLOBAL);
    a->managed = true;
    return reinterpret_cast<void*>(a->base);
}
// Goes on by one at each look: there is no time here.
long long kw_clock() noexcept {
    static long long looks = 0;
    return ++looks;
}
// Behind assert().
[[noreturn]] void __assert_fail(const char* text, const char*, unsigned line, const char*) noexcept {
    using namespace emulator;
    if (!gpu.self) {
        std::fprintf(stderr, "assert(%s) fails in host code\n", text);
        std::abort();
    }
    Fault fault;
    fault.kind = "assertion";
    fault.second = place_of(*gpu.self, 0, NONE);
    fault.second.line = int(line);
    report(fault);
    stop_order();
}
void kw_free(void* p) {
    emulator::Array* a = emulator::memory.beside(u_int64_t(p));
    if (a) emulator::release(*a);
}
void kw_fill(void* to, int value, unsigned long bytes) {
    emulator::mark_written(u_int64_t(to), bytes);
    std::memset(to, value, bytes);
}
void kw_copy(void* to, const void* from, unsigned long bytes) {
    emulator::mark_written(u_int64_t(to), bytes);
    std::memmove(to, from, bytes);
}

unsigned long long kw_atomic(void* p, int kind, int operation, unsigned long long value, unsigned long long compare) {
    using namespace emulator;
    static const u32 widths[] = {4, 4, 8, 4, 8};
    u32 bytes = widths[kind];
    u32 before = u32(faults.size());
    if (operation == ATOMIC_CAS && gpu.self) note_guess(*gpu.self, u64(p));
    access(p, bytes, ATOMIC, KW_HERE, true);
    if (faults.size() != before && faults.back().kind == "out_of_bounds") return 0;
    note_atomic(u64(p));
    u64 old = 0;
    std::memcpy(&old, p, bytes);
    u64 next = atomic_result(kind, operation, old, value, compare);
    std::memcpy(p, &next, bytes);
    note_spin();
    return old;
}

// Behind -fsanitize=bounds: an index that leaves the array that it is written for.
struct SourcePlace {
    const char* file;
    u_int32_t line, column;
};
struct ArrayType {
    u_int16_t kind, info;
    char name[1];
};
struct BadIndex {
    SourcePlace place;
    const ArrayType* array;
    const ArrayType* index;
};
void __ubsan_handle_out_of_bounds(BadIndex* bad, unsigned long index) {
    using namespace emulator;
    if (!gpu.self) return;
    Fault fault;
    fault.kind = "index";
    fault.array = bad->array->name;
    fault.second = place_of(*gpu.self, 0, NONE);
    fault.second.line = int(bad->place.line);
    fault.index = (long long)(index);
    fault.value = bad->place.column;
    report(fault);
}
void __ubsan_handle_out_of_bounds_abort(BadIndex* bad, unsigned long index) { __ubsan_handle_out_of_bounds(bad, index); }
}
