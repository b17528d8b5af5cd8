#include <cmath>

// y[i] = 0.5 x (1 + erf(x / sqrt(2))).
extern "C" void gelu(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) {
        y[i] = 0.5f * x[i] * std::erf(x[i]);  // Yours: this is not yet the formula.
    }
}
