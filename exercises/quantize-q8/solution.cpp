#include <cmath>
#include <cstdint>

extern "C" void quantize_q8(const float* x, int8_t* q, float* scales, long n) {
    for (long b = 0; b * 32 < n; ++b) {
        long end = b * 32 + 32 < n ? b * 32 + 32 : n;
        float largest = 0;
        for (long i = b * 32; i < end; ++i) {
            float size = std::fabs(x[i]);
            largest = size > largest ? size : largest;
        }
        float scale = largest / 127;
        scales[b] = scale;
        for (long i = b * 32; i < end; ++i) {
            q[i] = scale > 0 ? int8_t(std::nearbyint(x[i] / scale)) : 0;
        }
    }
}
