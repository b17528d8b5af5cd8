#include <cmath>
#include <vector>

extern "C" void attention(const float* q, const float* k, const float* v, float* out, long lq, long lk, long d, float scale) {
    std::vector<float> scores(lk);
    for (long i = 0; i < lq; ++i) {
        float* to = out + i * d;
        float largest = -INFINITY;
        for (long j = 0; j < lk; ++j) {
            float sum = 0;
            for (long c = 0; c < d; ++c) {
                sum += q[i * d + c] * k[j * d + c];
            }
            scores[j] = sum * scale;
            largest = scores[j] > largest ? scores[j] : largest;
        }
        for (long c = 0; c < d; ++c) {
            to[c] = 0;
        }
        float total = 0;
        for (long j = 0; j < lk; ++j) {
            float weight = std::exp(scores[j] - largest);
            total += weight;
            for (long c = 0; c < d; ++c) {
                to[c] += weight * v[j * d + c];
            }
        }
        for (long c = 0; c < d; ++c) {
            to[c] /= total;
        }
    }
}
