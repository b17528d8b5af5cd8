// What a warp asks of memory at once: the k-th access of one place in the source by its 32 lanes is one request.
//
// In global memory a request costs the sectors of 32 bytes that it touches; the least is what its distinct bytes fill.
// In shared memory it costs as many passes as the fullest of the 32 banks of 4 bytes has distinct words.
#pragma once

#include <algorithm>

#include "shadow.hpp"

namespace emulator {

struct Entry {
    u64 address;
    u32 key;  // warp << 25 | k
    u8 bytes;
};

struct Requests {
    std::vector<Entry> entries;
    std::vector<u32> counts;  // by thread
    Array* array = nullptr;
    bool shared = false;
    AccessKind kind = NONE;
};

struct Traffic {
    std::string array;
    bool shared = false, several = false;
    AccessKind kind = NONE;
    u64 requests = 0, accesses = 0, cost = 0, least = 0, bytes = 0, worst = 0;
};

inline std::vector<Requests> pending;  // by site
inline std::vector<Traffic> traffic;
inline bool logs_requests = false;
inline u64 logged = 0;
constexpr u64 MOST_LOGGED = 3000000;

inline void log_request(Array& a, u64 address, u32 bytes, u32 at, const Fibre& f, AccessKind kind) {
    if (!logs_requests || logged > MOST_LOGGED) return;
    if (pending.size() <= at) pending.resize(at + 64);
    Requests& r = pending[at];
    if (r.counts.size() < gpu.threads) r.counts.resize(gpu.threads, 0);
    r.array = &a;
    r.shared = a.space == SHARED;
    r.kind = kind;
    r.entries.push_back({address, (f.thread / 32) << 25 | r.counts[f.thread]++, u8(bytes)});
    logged++;
}

inline void cost_of_global(const Entry* e, size_t n, Traffic& t) {
    static std::vector<u64> bytes, sectors;
    bytes.clear();
    sectors.clear();
    for (size_t i = 0; i < n; i++) {
        for (u64 b = e[i].address; b < e[i].address + e[i].bytes; b += 1) bytes.push_back(b);
    }
    std::sort(bytes.begin(), bytes.end());
    bytes.erase(std::unique(bytes.begin(), bytes.end()), bytes.end());
    u64 cost = 0, last = ~u64(0);
    for (u64 b : bytes) {
        cost += b / 32 != last;
        last = b / 32;
    }
    t.cost += cost;
    t.least += (bytes.size() + 31) / 32;
    t.worst = std::max(t.worst, cost);
}

inline void cost_of_shared(const Entry* e, size_t n, Traffic& t) {
    // 8 bytes a lane go by half warps, 16 bytes by quarter warps: 128 bytes a pass.
    size_t together = e[0].bytes <= 4 ? 32 : e[0].bytes == 8 ? 16 : 8;
    for (size_t from = 0; from < n; from += together) {
        static std::vector<u64> banks[32];
        for (auto& b : banks) b.clear();
        for (size_t i = from; i < std::min(n, from + together); i++) {
            for (u64 w = e[i].address / 4; w <= (e[i].address + e[i].bytes - 1) / 4; w++) banks[w % 32].push_back(w);
        }
        u64 passes = 1;
        for (auto& b : banks) {
            std::sort(b.begin(), b.end());
            passes = std::max(passes, u64(std::unique(b.begin(), b.end()) - b.begin()));
        }
        t.cost += passes;
        t.least += 1;
        t.worst = std::max(t.worst, passes);
    }
}

// At the end of a block: its requests are counted and forgotten.
inline void count_requests() {
    if (!logs_requests) return;
    if (traffic.size() < pending.size()) traffic.resize(pending.size());
    for (size_t at = 0; at < pending.size(); at++) {
        Requests& r = pending[at];
        if (r.entries.empty()) continue;
        Traffic& t = traffic[at];
        t.several |= !t.array.empty() && t.array != r.array->name;
        t.array = r.array->name;
        t.shared = r.shared;
        t.kind = r.kind;
        std::stable_sort(r.entries.begin(), r.entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
        for (size_t i = 0, j; i < r.entries.size(); i = j) {
            for (j = i; j < r.entries.size() && r.entries[j].key == r.entries[i].key; j++) t.bytes += r.entries[j].bytes;
            t.requests++;
            if (r.shared) cost_of_shared(&r.entries[i], j - i, t);
            else cost_of_global(&r.entries[i], j - i, t);
        }
        t.accesses += r.entries.size();
        r.entries.clear();
        std::fill(r.counts.begin(), r.counts.end(), 0);
    }
}

}  // namespace emulator
