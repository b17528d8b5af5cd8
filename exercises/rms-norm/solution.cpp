#include <cmath>

extern "C" void rms_norm(const float* x, const float* weight, float* y, long rows, long n, float eps) {
    for (long i = 0; i < rows; ++i) {
        const float* row = x + i * n;
        float* out = y + i * n;
        double sum = 0;
        for (long j = 0; j < n; ++j) {
            sum += double(row[j]) * row[j];
        }
        double scale = 1 / std::sqrt(sum / n + eps);
        for (long j = 0; j < n; ++j) {
            out[j] = row[j] * scale * weight[j];
        }
    }
}
