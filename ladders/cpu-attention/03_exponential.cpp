// title: SIMD exponential
// target: avx2
// threads: 1
// rows: 64
// loads: L1 7
// hypothesis: A polynomial in vectors, two or three cycles for each exponential and not fifteen (the ladder of
//   softmax has it alone). What is left are the two products.
// predicts: 1.5
// next: A multiply-add of a score loads two vectors, and one of the outputs loads two and stores one: a core loads
//   two vectors a cycle, and could multiply two.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <immintrin.h>
#include <vector>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32), aligned(4)));
typedef int32_t Whole __attribute__((vector_size(32)));
constexpr int LANES = 8, CHAINS = 4;

// exp of numbers of at most 0, to two units in the last place; what is below 2^-126 becomes about that.
static Vector exponential(Vector x) {
    constexpr float ROUND = 12582912;  // 1.5 * 2^23: added and taken away again, it leaves a whole number
    x = (Vector)_mm256_max_ps(_mm256_set1_ps(-87.0f), x);
    Vector shifted = x * 1.44269504f + ROUND;
    Vector power = shifted - ROUND;
    Vector rest = x - power * 0.693359375f + power * 2.12194440e-4f;  // ln 2 in two parts, the first with few bits
    Vector series = 1.9875691500e-4f * rest + 1.3981999507e-3f;  // minimax coefficients of Cephes' expf
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    Vector value = series * (rest * rest) + rest + 1.0f;
    return (Vector)((Whole)value + ((Whole)shifted << 23));  // times 2^power: added to the exponent's bits
}

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

// p becomes exp(p - largest); returns their sum.
static float exponentials(int64_t N, float* p, float largest) {
    Vector sum = {};
    int64_t j = 0;
    for (; j + LANES <= N; j += LANES) sum += *(Vector*)(p + j) = exponential(*(const Vector*)(p + j) - largest);
    float total = added(sum);
    for (; j < N; ++j) total += p[j] = exponential(Vector{} + (p[j] - largest))[0];
    return total;
}

// O[Lq, D] = softmax(Q K^T / sqrt(D)) V, all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void attention(int64_t Lq, int64_t Lk, int64_t D, const float* __restrict Q,
                                                         const float* __restrict K, const float* __restrict V,
                                                         float* __restrict O, int64_t) {
    std::vector<float> p(Lk);
    float scale = 1 / std::sqrt((float)D);
    for (int64_t i = 0; i < Lq; ++i, Q += D, O += D) {
        float largest = -INFINITY;
        for (int64_t j = 0; j < Lk; ++j) {
            p[j] = dot(D, Q, K + j * D) * scale;
            largest = std::max(largest, p[j]);
        }
        float total = exponentials(Lk, p.data(), largest);
        std::fill(O, O + D, 0.0f);
        for (int64_t j = 0; j < Lk; ++j)
            for (int64_t d = 0; d < D; ++d) O[d] += p[j] * V[j * D + d];
        for (int64_t d = 0; d < D; ++d) O[d] /= total;
    }
}
