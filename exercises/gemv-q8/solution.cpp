#include <cstdint>

extern "C" void gemv_q8(const int8_t* q, const float* scales, const float* x, float* y, long m, long n) {
    long blocks = n / 32;
    for (long i = 0; i < m; ++i) {
        float totals[16] = {};
        for (long b = 0; b < blocks; ++b) {
            for (long lane = 0; lane < 16; ++lane) {
                long j = b * 32 + lane;
                float sum = q[i * n + j] * x[j] + q[i * n + j + 16] * x[j + 16];
                totals[lane] += scales[i * blocks + b] * sum;
            }
        }
        float total = 0;
        for (long lane = 0; lane < 16; ++lane) {
            total += totals[lane];
        }
        y[i] = total;
    }
}
