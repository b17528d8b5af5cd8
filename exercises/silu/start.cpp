#include <cmath>

// y[i] = x / (1 + exp(-x)).
extern "C" void silu(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) {
        y[i] = 1 / (1 + std::exp(-x[i]));  // Yours: this is the gate without what it lets through.
    }
}
