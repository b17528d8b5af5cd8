#include <cmath>

extern "C" void silu(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) {
        y[i] = x[i] / (1 + std::exp(-x[i]));
    }
}
