#include <cmath>
#include <vector>

// Adds k and v to the caches as row `length`, and attends with q to rows 0 to length.
extern "C" void decode(const float* q, const float* k, const float* v, float* keys, float* values, float* out, long length,
                       long d, float scale) {
    for (long c = 0; c < d; ++c) {
        keys[length * d + c] = k[c];
        values[length * d + c] = v[c];
    }
    // Yours: attention with one query. This takes the new value alone.
    for (long c = 0; c < d; ++c) {
        out[c] = v[c];
    }
    (void)q, (void)scale;  // Says that these are not used yet; take it away.
}
