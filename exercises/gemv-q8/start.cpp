#include <cstdint>

// y[i] = sum of scale * q * x over the blocks of 32 of row i.
extern "C" void gemv_q8(const int8_t* q, const float* scales, const float* x, float* y, long m, long n) {
    for (long i = 0; i < m; ++i) {
        float sum = 0;
        for (long j = 0; j < n; ++j) {
            sum += q[i * n + j] * x[j];
        }
        y[i] = sum;  // Yours: the scales of the blocks.
    }
    (void)scales;  // Says that scales is not used yet; take it away.
}
