// Threads as fibres: each has a stack of its own, and gives control back at barriers, in shuffles and where an order of
// threads says so. One block runs after the other.
#pragma once

#include <csetjmp>
#include <ucontext.h>

#include "memory.hpp"

namespace emulator {

struct uint3_ {
    u32 x, y, z;
};

constexpr u64 STACK = 64 * 1024;
constexpr u32 MOST_THREADS = 1024;

enum State : u8 { RUNNABLE, AT_BARRIER, IN_WARP, FINISHED };

struct Fibre {
#if defined(__x86_64__)
    void* stack_pointer = nullptr;
#else
    ucontext_t context;
#endif
    State state = FINISHED;
    uint3_ index{};
    u32 thread = 0;
    // Where it waits, and with what.
    int line = 0, operation = 0, source = 0;
    u32 mask = 0;
    u64 value = 0, result = 0;
    u32 last_site = 0;
    u32 fence = 0;  // the block's time at its last __threadfence; 0: none
    u64 read_addresses[4] = {};  // its last reads: one of them may be the guess of an atomicCAS
    u32 read_sites[4] = {}, reads = 0;
};

struct Warp {
    u32 clock[32][32];  // clock[a][b]: up to which time of lane b lane a has seen all that b did
};

enum OrderKind : u32 { FORWARD, REVERSE, ROUND_ROBIN, ROUND_REVERSE, ONE_FIRST, ONE_LAST, WARPS_REVERSE, RANDOM };

struct Order {
    u32 kind = FORWARD;
    u32 which = 0;  // the thread that is first or last
    u64 seed = 1;
};

struct Machine {
    Fibre fibres[MOST_THREADS];
    Warp warps[MOST_THREADS / 32];
    u8* stacks = nullptr;
    Fibre* self = nullptr;  // null on the host
#if defined(__x86_64__)
    void* scheduler_pointer = nullptr;
#else
    ucontext_t scheduler_context;
#endif
    uint3_ grid{}, block{}, block_index{};
    u32 threads = 0, blocks = 0, block_number = 0;
    u32 launch = 0, turn = 0, barrier = 0;
    u32 fence_time = 1;  // the number of the next __threadfence
    u32 block_fence = 0, fence_at_barrier = 0;  // the block's last one: now, and at its last barrier
    u32 order_number = 0;
    u64 reports = 0;  // of this order
    Order order;
    u64 random = 1;
    u32 cursor = 0;
    u32 countdown = 0;  // accesses until the fibre gives control back; 0: never
    void (*body)(void*) = nullptr;
    void* closure = nullptr;
    u64 closure_begin = 0, closure_bytes = 0;
    int launch_line = 0;
    u64 dynamic_bytes = 0;
    Array* dynamic = nullptr;
    jmp_buf give_up;
    u64 spins = 0;      // atomics and volatile loads in a row: who spins lets others run
    bool avoids = false;  // the fibre before the cursor is not to run next

    u64 draw() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        return random;
    }
};

inline Machine gpu;

#if defined(__x86_64__)
extern "C" void kw_switch(void** keep, void* go);
asm(R"(
.text
.globl kw_switch
.type kw_switch,@function
kw_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size kw_switch,.-kw_switch
)");
#endif

inline void to_scheduler() {
    Fibre* f = gpu.self;
#if defined(__x86_64__)
    kw_switch(&f->stack_pointer, gpu.scheduler_pointer);
#else
    swapcontext(&f->context, &gpu.scheduler_context);
#endif
}

inline void to_fibre(Fibre& f) {
    gpu.self = &f;
#if defined(__x86_64__)
    kw_switch(&gpu.scheduler_pointer, f.stack_pointer);
#else
    swapcontext(&gpu.scheduler_context, &f.context);
#endif
    gpu.self = nullptr;
}

inline void fibre_main() {
    gpu.body(gpu.closure);
    gpu.self->state = FINISHED;
    to_scheduler();
    std::abort();
}

inline void prepare(Fibre& f, u32 thread) {
    u8* bottom = gpu.stacks + STACK * thread;
#if defined(__x86_64__)
    u64* top = reinterpret_cast<u64*>(bottom + STACK - 64);
    *--top = 0;  // keeps the alignment that a call would leave
    *--top = u64(&fibre_main);
    for (int i = 0; i < 6; i++) *--top = 0;
    f.stack_pointer = top;
#else
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = bottom;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, reinterpret_cast<void (*)()>(&fibre_main), 0);
#endif
    f.state = RUNNABLE;
    f.thread = thread;
    f.index = {thread % gpu.block.x, thread / gpu.block.x % gpu.block.y, thread / gpu.block.x / gpu.block.y};
    f.fence = 0;
    f.last_site = 0;
    for (u64& address : f.read_addresses) address = 0;
}

inline void reserve_stacks() {
    // A page that nobody may touch lies below each stack: an overflow is a fault, not another thread's local variable.
    void* at = mmap(nullptr, STACK * MOST_THREADS, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        std::perror("mmap");
        std::exit(3);
    }
    gpu.stacks = static_cast<u8*>(at);
    for (u32 t = 0; t < MOST_THREADS; t++) mprotect(gpu.stacks + STACK * t, PAGE, PROT_NONE);
}

inline bool on_a_stack(u64 address) { return address - u64(gpu.stacks) < STACK * MOST_THREADS; }

[[noreturn]] inline void stop_order() { std::longjmp(gpu.give_up, 1); }

inline Place place_of(const Fibre& f, u32 site, AccessKind kind) {
    Place p;
    p.block = gpu.block_number;
    p.thread = f.thread;
    p.site = site;
    p.line = f.line;
    p.kind = kind;
    return p;
}

constexpr u64 MOST_REPORTS = 20000;  // of one order: what goes wrong everywhere is known by then

// One entry for each kind of fault and pair of places; of its examples the one with the smallest numbers is kept.
inline void report(Fault f) {
    if (++gpu.reports > MOST_REPORTS && gpu.self) stop_order();
    for (int i = 0; i < 3; i++) {
        f.grid[i] = (&gpu.grid.x)[i];
        f.block[i] = (&gpu.block.x)[i];
    }
    f.order = gpu.order_number;
    f.count = 1;
    u64 who = u64(f.second.block) << 32 | f.second.thread;
    f.threads = 1;
    f.last_thread = who;
    for (Fault& g : faults) {
        if (g.kind != f.kind || g.array != f.array || g.first.site != f.first.site || g.second.site != f.second.site ||
            g.first.line != f.first.line || g.second.line != f.second.line)
            continue;
        if (g.order == f.order) {  // the other orders have it too
            g.count++;
            if (g.last_thread != who) g.threads++;
            g.last_thread = who;
            auto key = [](const Fault& x) {
                return ((u64(x.second.block) + x.first.block) << 32) + x.second.thread + x.first.thread;
            };
            if (key(f) < key(g)) {
                f.count = g.count;
                f.threads = g.threads;
                g = f;
            }
        }
        return;
    }
    if (faults.size() < MOST_FAULTS) faults.push_back(f);
}

}  // namespace emulator
