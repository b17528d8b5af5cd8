// title: SIMD vectors and loop order
// target: avx2
// threads: 1
// rows: 64
// loads: L1 7
// hypothesis: A score is eight lanes of sums in four chains; the outputs of a query are summed side by side, key by
//   key, so V is read in the order in which it lies. A pair of a query and a key then takes some ten cycles for its
//   score, some twelve for its outputs and some fifteen for its exponential, and not five hundred.
// predicts: 12
// next: A call of the mathematical library for each exponential is as much as either product.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32), aligned(4)));
constexpr int LANES = 8, CHAINS = 4;

static float added(Vector sum) {
    float total = 0;
    for (int i = 0; i < LANES; ++i) total += sum[i];
    return total;
}

static float dot(int64_t D, const float* q, const float* k) {
    Vector sum[CHAINS] = {};
    int64_t d = 0;
    for (; d + CHAINS * LANES <= D; d += CHAINS * LANES)
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; ++c)
            sum[c] += *(const Vector*)(q + d + c * LANES) * *(const Vector*)(k + d + c * LANES);
    float total = added((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; d < D; ++d) total += q[d] * k[d];
    return total;
}

// O[Lq, D] = softmax(Q K^T / sqrt(D)) V, all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void attention(int64_t Lq, int64_t Lk, int64_t D, const float* __restrict Q,
                                                         const float* __restrict K, const float* __restrict V,
                                                         float* __restrict O, int64_t) {
    std::vector<float> p(Lk);
    float scale = 1 / std::sqrt((float)D);
    for (int64_t i = 0; i < Lq; ++i, Q += D, O += D) {
        float largest = -INFINITY, total = 0;
        for (int64_t j = 0; j < Lk; ++j) {
            p[j] = dot(D, Q, K + j * D) * scale;
            largest = std::max(largest, p[j]);
        }
        for (int64_t j = 0; j < Lk; ++j) total += p[j] = std::exp(p[j] - largest);
        std::fill(O, O + D, 0.0f);
        for (int64_t j = 0; j < Lk; ++j)
            for (int64_t d = 0; d < D; ++d) O[d] += p[j] * V[j * D + d];
        for (int64_t d = 0; d < D; ++d) O[d] /= total;
    }
}
