#include <cmath>

extern "C" void swiglu(const float* x, float* y, long rows, long n) {
    for (long i = 0; i < rows; ++i) {
        const float* gate = x + i * 2 * n;
        const float* up = gate + n;
        for (long j = 0; j < n; ++j) {
            y[i * n + j] = gate[j] / (1 + std::exp(-gate[j])) * up[j];
        }
    }
}
