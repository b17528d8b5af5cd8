// What the lanes of a warp do together: __syncwarp, shuffles, votes and reductions. A lane waits until all that its mask
// names, and that have not returned, have come to the same call.
#pragma once

#include "traffic.hpp"

namespace emulator {

// The list of `cuda_emulator.hpp`, and two of the runtime's own.
enum Operation {
    SHUFFLE, BALLOT, ADD, MINIMUM, MAXIMUM, MINIMUM_SIGNED, MAXIMUM_SIGNED, AND, OR, XOR, MATCH, SYNC_WARP = 100, VOTE = 200
};

inline u64 combine(int operation, u64 a, u64 b) {
    switch (operation) {
        case ADD: return u32(a + b);
        case MINIMUM: return std::min(u32(a), u32(b));
        case MAXIMUM: return std::max(u32(a), u32(b));
        case MINIMUM_SIGNED: return u32(std::min(int(a), int(b)));
        case MAXIMUM_SIGNED: return u32(std::max(int(a), int(b)));
        case AND: return a & b;
        case OR: return a | b;
        default: return a ^ b;
    }
}

inline u32 lanes_of(u32 warp) { return std::min(32u, gpu.threads - warp * 32); }

// Lane `lane` waits in its warp: lets all that wait with it go on if nobody is missing.
inline bool complete_warp(u32 warp, u32 lane) {
    Fibre* lanes = &gpu.fibres[warp * 32];
    const Fibre& one = lanes[lane];
    u32 count = lanes_of(warp), together = 0;
    for (u32 l = 0; l < count; l++) {
        if (!(one.mask >> l & 1) || lanes[l].state == FINISHED) continue;
        const Fibre& other = lanes[l];
        if (other.state != IN_WARP || other.operation != one.operation || other.mask != one.mask) return false;
        if (one.operation != SYNC_WARP && other.line != one.line) return false;
        together |= 1u << l;
    }
    u64 ballot = 0, reduced = 0;
    bool first = true;
    for (u32 l = 0; l < count; l++) {
        if (!(together >> l & 1)) continue;
        ballot |= u64(lanes[l].value & 1) << l;
        reduced = first ? lanes[l].value : combine(one.operation, reduced, lanes[l].value);
        first = false;
    }
    u64 values[32];
    for (u32 l = 0; l < 32; l++) values[l] = l < count ? lanes[l].value : 0;
    for (u32 l = 0; l < count; l++) {
        if (!(together >> l & 1)) continue;
        Fibre& f = lanes[l];
        f.state = RUNNABLE;
        if (f.operation == SHUFFLE) {
            u32 from = u32(f.source) & 31;
            if (!(together >> from & 1)) {
                Fault fault;
                fault.kind = "absent_lane";
                fault.second = place_of(f, 0, NONE);
                fault.index = from;
                report(fault);
                f.result = 0x7fc12345;
            } else {
                f.result = values[from];
            }
        } else if (f.operation == BALLOT) {
            f.result = ballot;
        } else if (f.operation == MATCH) {
            f.result = 0;
            for (u32 k = 0; k < count; k++) f.result |= u64((together >> k & 1) && values[k] == values[l]) << k;
        } else {
            f.result = reduced;
        }
    }
    if (one.operation == SYNC_WARP) {
        Warp& w = gpu.warps[warp];
        u32 newest[32] = {};
        for (u32 l = 0; l < count; l++) {
            if (!(together >> l & 1)) continue;
            for (u32 k = 0; k < 32; k++) newest[k] = std::max(newest[k], w.clock[l][k]);
        }
        for (u32 l = 0; l < count; l++) {
            if (!(together >> l & 1)) continue;
            std::memcpy(w.clock[l], newest, sizeof newest);
            w.clock[l][l]++;
        }
    }
    return true;
}

inline u64 wait_in_warp(int line, int operation, u32 mask, u64 value, int source) {
    Fibre* f = gpu.self;
    if (!f) return 0;
    u32 lane = f->thread % 32;
    f->line = line;
    f->operation = operation;
    f->mask = mask;
    f->value = value;
    f->source = source;
    if (!(mask >> lane & 1)) {
        Fault fault;
        fault.kind = "not_in_mask";
        fault.second = place_of(*f, 0, NONE);
        fault.index = lane;
        report(fault);
        stop_order();
    }
    f->state = IN_WARP;
    gpu.spins = 0;
    complete_warp(f->thread / 32, lane);
    to_scheduler();
    return f->result;
}

inline int wait_in_block(int line, int operation, u64 value) {
    Fibre* f = gpu.self;
    if (!f) return 0;
    f->line = line;
    f->operation = operation;
    f->value = value;
    f->state = AT_BARRIER;
    gpu.spins = 0;
    to_scheduler();
    return int(f->result);
}

}  // namespace emulator
