#include <cstdint>

extern "C" void embedding(const float* table, const int64_t* ids, float* out, long count, long rows, long d) {
    for (long t = 0; t < count; ++t) {
        int64_t id = ids[t];
        for (long c = 0; id < 0 && c < d; ++c) {
            out[t * d + c] = 0;
        }
        if (id < 0) {
            continue;
        }
        const float* from = table + id * d;
        for (long c = 0; c < d; ++c) {
            out[t * d + c] = from[c];
        }
    }
    (void)rows;
}
