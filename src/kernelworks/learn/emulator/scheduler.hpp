// Which thread runs next, and what it means if none can: a launch from its first block to its last.
#pragma once

#include "warps.hpp"

namespace emulator {

inline void yield_sometimes(Fibre&) {
    if (gpu.countdown && !--gpu.countdown) to_scheduler();
}

constexpr u64 MOST_SPINS = 500;

// A thread that waits for another one by looking again and again: after a while the others run.
inline void note_spin() {
    Fibre* f = gpu.self;
    if (!f || ++gpu.spins < MOST_SPINS) return;
    gpu.spins = 0;
    gpu.avoids = true;
    gpu.cursor = (f->thread + 1) % gpu.threads;
    to_scheduler();
}

inline u32 accesses_until_switch() {
    switch (gpu.order.kind) {
        case ROUND_ROBIN:
        case ROUND_REVERSE: return 1;
        case RANDOM: return gpu.order.seed % 2 ? 0 : 1 + u32(gpu.draw() % 16);
        default: return 0;
    }
}

inline Fibre* scan(u32 from, bool up) {
    for (u32 i = 0; i < gpu.threads; i++) {
        Fibre& f = gpu.fibres[(up ? from + i : from + gpu.threads - i) % gpu.threads];
        if (f.state == RUNNABLE) return &f;
    }
    return nullptr;
}

inline Fibre* scan_but(u32 last) {
    for (u32 t = 0; t < gpu.threads; t++)
        if (t != last && gpu.fibres[t].state == RUNNABLE) return &gpu.fibres[t];
    return gpu.fibres[last].state == RUNNABLE ? &gpu.fibres[last] : nullptr;
}

inline Fibre* next_fibre() {
    u32 n = gpu.threads, which = gpu.order.which % n;
    Fibre* f = nullptr;
    if (gpu.avoids) {
        gpu.avoids = false;
        return scan(gpu.cursor, true);
    }
    switch (gpu.order.kind) {
        case FORWARD: return scan(0, true);
        case REVERSE: return scan(n - 1, false);
        case ROUND_ROBIN: f = scan(gpu.cursor, true); break;
        case ROUND_REVERSE: f = scan(gpu.cursor, false); break;
        case ONE_FIRST: return gpu.fibres[which].state == RUNNABLE ? &gpu.fibres[which] : scan(0, true);
        case ONE_LAST: return scan_but(which);
        case WARPS_REVERSE: {
            for (int w = int((n - 1) / 32); w >= 0; w--)
                for (u32 t = u32(w) * 32; t < std::min(n, u32(w) * 32 + 32); t++)
                    if (gpu.fibres[t].state == RUNNABLE) return &gpu.fibres[t];
            return nullptr;
        }
        default: return scan(u32(gpu.draw() % n), gpu.draw() & 1);
    }
    if (f) gpu.cursor = gpu.order.kind == ROUND_ROBIN ? f->thread + 1 : f->thread + n - 1;
    gpu.cursor %= n;
    return f;
}

// Nobody can run. True if a barrier lets them go on; a fault and the end of the order if it never will.
inline void open_barrier() {
    Fibre *waits = nullptr, *other = nullptr, *gone = nullptr, *in_warp = nullptr;
    for (u32 t = 0; t < gpu.threads; t++) {
        Fibre& f = gpu.fibres[t];
        if (f.state == IN_WARP && complete_warp(t / 32, t % 32)) return;
    }
    for (u32 t = 0; t < gpu.threads; t++) {
        Fibre& f = gpu.fibres[t];
        if (f.state == FINISHED && !gone) gone = &f;
        if (f.state == IN_WARP && !in_warp) in_warp = &f;
        if (f.state == AT_BARRIER && !waits) waits = &f;
        if (f.state == AT_BARRIER && waits && f.line != waits->line && !other) other = &f;
    }
    Fault fault;
    if (in_warp) {
        // The lane that it waits for: it has come to another call, or to none.
        u32 warp = in_warp->thread / 32, lane = in_warp->thread % 32;
        Fibre* lanes = &gpu.fibres[warp * 32];
        Fibre* missing = nullptr;
        for (u32 l = 0; l < lanes_of(warp) && !missing; l++) {
            Fibre& m = lanes[l];
            bool same = m.state == IN_WARP && m.operation == in_warp->operation && m.mask == in_warp->mask &&
                        (m.line == in_warp->line || m.operation == SYNC_WARP);
            if ((in_warp->mask >> l & 1) && m.state != FINISHED && l != lane && !same) missing = &m;
        }
        fault.kind = "warp_divergence";
        fault.first = place_of(*in_warp, 0, NONE);
        fault.index = in_warp->operation;
        if (missing) {
            fault.second = place_of(*missing, missing->last_site, NONE);
            fault.value = missing->state == AT_BARRIER ? 1 : missing->mask != in_warp->mask ? 3 : 2;
        }
        report(fault);
        stop_order();
    }
    if (gone || other) {
        fault.kind = gone ? "missing_thread" : "two_barriers";
        fault.first = place_of(*waits, 0, NONE);
        fault.second = place_of(gone ? *gone : *other, gone ? gone->last_site : 0, NONE);
        if (gone) fault.second.line = 0;
        u64 arrived = 0;
        for (u32 t = 0; t < gpu.threads; t++) arrived += gpu.fibres[t].state == AT_BARRIER;
        fault.value = (long long)arrived;
        report(fault);
        stop_order();
    }
    u64 voted = waits->operation == VOTE + AND ? 1 : 0;
    for (u32 t = 0; t < gpu.threads; t++) {
        Fibre& f = gpu.fibres[t];
        if (f.operation >= VOTE) voted = combine(f.operation - VOTE, voted, f.value);
    }
    for (u32 t = 0; t < gpu.threads; t++) {
        gpu.fibres[t].state = RUNNABLE;
        gpu.fibres[t].result = voted;
    }
    gpu.barrier++;
    gpu.fence_at_barrier = gpu.block_fence;
    if (gpu.order.kind == ROUND_REVERSE) gpu.cursor = gpu.threads - 1;
    else gpu.cursor = 0;
}

inline void run_block(u32 number) {
    gpu.block_number = number;
    gpu.block_index = {number % gpu.grid.x, number / gpu.grid.x % gpu.grid.y, number / gpu.grid.x / gpu.grid.y};
    gpu.turn++;
    gpu.barrier = 0;
    gpu.block_fence = gpu.fence_at_barrier = 0;
    releases.clear_block();
    gpu.cursor = gpu.order.kind == ROUND_REVERSE ? gpu.threads - 1 : 0;
    for (u32 w = 0; w < (gpu.threads + 31) / 32; w++) {
        std::memset(gpu.warps[w].clock, 0, sizeof gpu.warps[w].clock);
        for (u32 l = 0; l < 32; l++) gpu.warps[w].clock[l][l] = 1;
    }
    for (u32 t = 0; t < gpu.threads; t++) prepare(gpu.fibres[t], t);
    for (;;) {
        Fibre* f = next_fibre();
        if (!f) {
            bool alive = false;
            for (u32 t = 0; t < gpu.threads; t++) alive |= gpu.fibres[t].state != FINISHED;
            if (!alive) break;
            open_barrier();
            continue;
        }
        gpu.countdown = accesses_until_switch();
        to_fibre(*f);
    }
    count_requests();
}

inline std::vector<u32> order_of_blocks() {
    std::vector<u32> blocks(gpu.blocks);
    for (u32 b = 0; b < gpu.blocks; b++) blocks[b] = b;
    bool backwards = gpu.order.kind == REVERSE || gpu.order.kind == ROUND_REVERSE || gpu.order.kind == WARPS_REVERSE;
    if (backwards) std::reverse(blocks.begin(), blocks.end());
    if (gpu.order.kind == RANDOM)
        for (u32 b = gpu.blocks; b > 1; b--) std::swap(blocks[b - 1], blocks[gpu.draw() % b]);
    return blocks;
}

struct Launch {
    int line;
    uint3_ grid, block;
    u64 count;
};
inline std::vector<Launch> launches;
constexpr size_t MOST_LAUNCHES = 20;

inline void note_launch(int line) {
    if (gpu.order_number) return;
    auto same = [](uint3_ a, uint3_ b) { return a.x == b.x && a.y == b.y && a.z == b.z; };
    for (Launch& l : launches)
        if (l.line == line && same(l.grid, gpu.grid) && same(l.block, gpu.block)) {
            l.count++;
            return;
        }
    if (launches.size() < MOST_LAUNCHES) launches.push_back({line, gpu.grid, gpu.block, 1});
}

inline void check_configuration(int line) {
    Fault fault;
    fault.first.line = line;
    u64 threads = u64(gpu.block.x) * gpu.block.y * gpu.block.z, blocks = u64(gpu.grid.x) * gpu.grid.y * gpu.grid.z;
    u64 shared = gpu.dynamic_bytes;
    bool bad_block = !threads || threads > MOST_THREADS || gpu.block.z > 64;
    bool bad_grid = !blocks || gpu.grid.y > 65535 || gpu.grid.z > 65535 || blocks > (1u << 22);
    if (bad_block || bad_grid || shared > 227 * 1024) {
        fault.kind = bad_block ? "block_size" : bad_grid ? "grid_size" : "shared_size";
        fault.value = (long long)(bad_block ? threads : bad_grid ? blocks : shared);
        report(fault);
        stop_order();
    }
    gpu.threads = u32(threads);
    gpu.blocks = u32(blocks);
}

inline void launch(uint3_ grid, uint3_ block, u64 shared, void (*body)(void*), void* closure, u64 bytes, int line) {
    gpu.grid = grid;
    gpu.block = block;
    gpu.dynamic_bytes = shared;
    gpu.launch_line = line;
    check_configuration(line);
    note_launch(line);
    gpu.body = body;
    gpu.closure = closure;
    gpu.closure_begin = u64(closure);
    gpu.closure_bytes = bytes;
    gpu.launch++;
    gpu.fence_time = 1;
    releases.clear();
    if (gpu.dynamic) {
        gpu.dynamic->bytes = shared;
        gpu.dynamic->cells.resize(std::max(size_t(shared), gpu.dynamic->cells.size()));
    }
    for (u32 b : order_of_blocks()) run_block(b);
    gpu.closure_bytes = 0;
}

}  // namespace emulator
