#include <cmath>

// Each pair (c, c + d/2) of row i is turned by (i + offset) * theta^(-2 c / d).
extern "C" void rope(const float* x, float* y, long length, long d, float theta, long offset) {
    long half = d / 2;
    for (long i = 0; i < length; ++i) {
        for (long c = 0; c < half; ++c) {
            double angle = (i + offset) * std::pow(double(theta), -2.0 * c / d);
            float first = x[i * d + c], second = x[i * d + c + half];
            y[i * d + c] = first * std::cos(angle);  // Yours: a rotation has a second term.
            y[i * d + c + half] = second * std::cos(angle);
        }
    }
}
