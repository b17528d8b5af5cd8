#include <cmath>
#include <cstdint>

// Blocks of 32: scales[b] = largest |x| / 127, q[i] = x[i] / scales[b], rounded.
extern "C" void quantize_q8(const float* x, int8_t* q, float* scales, long n) {
    for (long b = 0; b * 32 < n; ++b) {
        long end = b * 32 + 32 < n ? b * 32 + 32 : n;
        float largest = 0;
        for (long i = b * 32; i < end; ++i) {
            largest = x[i] > largest ? x[i] : largest;  // Yours: what of negative numbers?
        }
        scales[b] = largest / 127;
        for (long i = b * 32; i < end; ++i) {
            q[i] = 0;  // Yours.
        }
    }
}
