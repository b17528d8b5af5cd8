#include <cmath>
#include <vector>

// out = softmax(scale * Q K^T) V; q is lq x d, k and v are lk x d.
extern "C" void attention(const float* q, const float* k, const float* v, float* out, long lq, long lk, long d, float scale) {
    for (long i = 0; i < lq; ++i) {
        std::vector<float> scores(lk);
        for (long j = 0; j < lk; ++j) {
            float sum = 0;
            for (long c = 0; c < d; ++c) {
                sum += q[i * d + c] * k[j * d + c];
            }
            scores[j] = sum * scale;
        }
        // Yours: softmax of the scores, and the mean of the rows of v with these weights. This is the mean alone.
        for (long c = 0; c < d; ++c) {
            out[i * d + c] = 0;
            for (long j = 0; j < lk; ++j) {
                out[i * d + c] += v[j * d + c] / lk;
            }
        }
    }
}
