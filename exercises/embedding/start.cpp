#include <cstdint>

// out[t, :] = table[ids[t], :], and 0 where ids[t] is -1.
extern "C" void embedding(const float* table, const int64_t* ids, float* out, long count, long rows, long d) {
    for (long t = 0; t < count; ++t) {
        for (long c = 0; c < d; ++c) {
            out[t * d + c] = table[t % rows * d + c];  // Yours: the row that ids[t] says.
        }
    }
    (void)ids;  // Says that ids is not used yet; take it away.
}
