#include <cmath>
#include <vector>

extern "C" void decode(const float* q, const float* k, const float* v, float* keys, float* values, float* out, long length,
                       long d, float scale) {
    for (long c = 0; c < d; ++c) {
        keys[length * d + c] = k[c];
        values[length * d + c] = v[c];
    }
    long count = length + 1;
    std::vector<float> scores(count);
    float largest = -INFINITY;
    for (long j = 0; j < count; ++j) {
        float sum = 0;
        for (long c = 0; c < d; ++c) {
            sum += q[c] * keys[j * d + c];
        }
        scores[j] = sum * scale;
        largest = scores[j] > largest ? scores[j] : largest;
    }
    for (long c = 0; c < d; ++c) {
        out[c] = 0;
    }
    float total = 0;
    for (long j = 0; j < count; ++j) {
        float weight = std::exp(scores[j] - largest);
        total += weight;
        for (long c = 0; c < d; ++c) {
            out[c] += weight * values[j * d + c];
        }
    }
    for (long c = 0; c < d; ++c) {
        out[c] /= total;
    }
}
