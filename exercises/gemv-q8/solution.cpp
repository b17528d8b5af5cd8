#include <cstdint>

extern "C" void gemv_q8(const int8_t* q, const float* scales, const float* x, float* y, long m, long n) {
    long blocks = n / 32;
    for (long i = 0; i < m; ++i) {
        float total = 0;
        for (long b = 0; b < blocks; ++b) {
            float sum = 0;
            for (long j = b * 32; j < b * 32 + 32; ++j) {
                sum += q[i * n + j] * x[j];
            }
            total += scales[i * blocks + b] * sum;
        }
        y[i] = total;
    }
}
