#include <cmath>

extern "C" void rms_norm_lanes(const float* x, const float* weight, float* y, long rows, long n, float eps) {
    for (long i = 0; i < rows; ++i) {
        const float* row = x + i * n;
        float* out = y + i * n;
        float sums[16] = {};
        long j = 0;
        for (; j + 16 <= n; j += 16) {
            for (long lane = 0; lane < 16; ++lane) {
                sums[lane] += row[j + lane] * row[j + lane];
            }
        }
        for (; j < n; ++j) {
            sums[0] += row[j] * row[j];
        }
        float total = 0;
        for (long lane = 0; lane < 16; ++lane) {
            total += sums[lane];
        }
        float scale = 1 / std::sqrt(total / n + eps);
        for (long k = 0; k < n; ++k) {
            out[k] = row[k] * scale * weight[k];
        }
    }
}
