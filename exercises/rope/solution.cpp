#include <cmath>

extern "C" void rope(const float* x, float* y, long length, long d, float theta, long offset) {
    long half = d / 2;
    for (long i = 0; i < length; ++i) {
        const float* row = x + i * d;
        float* out = y + i * d;
        for (long c = 0; c < half; ++c) {
            double angle = (i + offset) * std::pow(double(theta), -2.0 * c / d);
            float cosine = std::cos(angle), sine = std::sin(angle);
            float first = row[c], second = row[c + half];
            out[c] = first * cosine - second * sine;
            out[c + half] = second * cosine + first * sine;
        }
    }
}
