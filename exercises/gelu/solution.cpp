#include <cmath>

extern "C" void gelu(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) {
        y[i] = 0.5f * x[i] * (1 + std::erf(x[i] * 0.70710678f));
    }
}
