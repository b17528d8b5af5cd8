#include <cmath>
#include <cstdint>

static bool chosen(const int64_t* experts, long slots, long e) {
    for (long slot = 0; slot < slots; ++slot) {
        if (experts[slot] == e) {
            return true;
        }
    }
    return false;
}

extern "C" void moe_router(const float* logits, int64_t* experts, float* weights, long tokens, long count, long k) {
    for (long t = 0; t < tokens; ++t) {
        const float* row = logits + t * count;
        int64_t* to = experts + t * k;
        for (long slot = 0; slot < k; ++slot) {
            long best = -1;
            for (long e = 0; e < count; ++e) {
                bool taken = chosen(to, slot, e);
                if (!taken && (best < 0 || row[e] > row[best])) {
                    best = e;
                }
            }
            to[slot] = best;
        }
        float total = 0;
        for (long slot = 0; slot < k; ++slot) {
            total += std::exp(row[to[slot]] - row[to[0]]);
        }
        for (long slot = 0; slot < k; ++slot) {
            weights[t * k + slot] = std::exp(row[to[slot]] - row[to[0]]) / total;
        }
    }
}
