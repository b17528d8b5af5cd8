#include <cmath>

// y[i, j] = x[i, j] * weight[j] / sqrt(mean of the squares of row i + eps), with sixteen sums.
extern "C" void rms_norm_lanes(const float* x, const float* weight, float* y, long rows, long n, float eps) {
    for (long i = 0; i < rows; ++i) {
        const float* row = x + i * n;
        float* out = y + i * n;
        float sums[16] = {};
        for (long j = 0; j + 16 <= n; j += 16) {
            for (long lane = 0; lane < 16; ++lane) {
                sums[lane] += row[j + lane] * row[j + lane];
            }
        }
        // Yours: what is left of the row, and all sixteen sums in one.
        float total = sums[0];
        float scale = 1 / std::sqrt(total / n + eps);
        for (long j = 0; j < n; ++j) {
            out[j] = row[j] * scale * weight[j];
        }
    }
}
