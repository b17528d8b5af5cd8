// title: Register tiles of queries and keys
// target: avx2
// threads: 1
// multiples: D 16
// loads: L1 0.92, L3 0.67
// hypothesis: Both products are matrix products. Six queries meet sixteen keys in twelve registers, and six rows of
//   probabilities meet sixteen columns of V: two vectors and six single numbers are loaded for twelve multiply-adds,
//   and twelve chains hide the latency. Keys and queries are packed in the order in which the tile reads them. The
//   exponentials are as many as before. K and V, 1 MiB, now pass for six queries at a time and not for one.
// predicts: 2.5
// next: Six rows of 2048 scores are 48 KiB: they are written through L1, read for their exponentials, and read again.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <immintrin.h>
#include <vector>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32), aligned(4)));
typedef int32_t Whole __attribute__((vector_size(32)));
constexpr int LANES = 8, ROWS = 6, KEYS = 2 * LANES;  // a tile of scores, in 12 of 16 registers

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

// p becomes exp(p - largest), `count` of them, a multiple of LANES; returns their sum.
static float exponentials(int64_t count, float* p, float largest) {
    Vector sum = {};
    for (int64_t j = 0; j < count; j += LANES)
        sum += *(Vector*)(p + j) = exponential(*(const Vector*)(p + j) - largest);
    return added(sum);
}

// Queries side by side, number by number, times the scale: to[d * ROWS + row], zeros where there is no query.
static void pack_queries(int64_t D, int64_t rows, const float* q, float scale, float* to) {
    for (int64_t d = 0; d < D; ++d)
        for (int64_t i = 0; i < ROWS; ++i) to[d * ROWS + i] = i < rows ? q[i * D + d] * scale : 0.0f;
}

// All keys, KEYS side by side: to[j * D + d * KEYS + key] for the group at j, zeros where there is no key.
static void pack_keys(int64_t Lk, int64_t D, const float* k, float* to) {
    for (int64_t j = 0; j < Lk; j += KEYS)
        for (int64_t x = 0; x < KEYS; ++x)
            for (int64_t d = 0; d < D; ++d) to[j * D + d * KEYS + x] = j + x < Lk ? k[(j + x) * D + d] : 0.0f;
}

// Scores of ROWS queries and KEYS keys: s[row * stride + key].
static void score_tile(int64_t D, const float* q, const float* k, float* s, int64_t stride) {
    Vector sum[ROWS][2] = {};
    for (int64_t d = 0; d < D; ++d, q += ROWS, k += KEYS) {
        Vector k0 = *(const Vector*)k, k1 = *(const Vector*)(k + LANES);
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; ++i) {
            sum[i][0] += q[i] * k0;
            sum[i][1] += q[i] * k1;
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; ++i)
        for (int v = 0; v < 2; ++v) *(Vector*)(s + i * stride + v * LANES) = sum[i][v];
}

// o[row, D] = o * factor[row] + p[row, count] v[count, D]
static void weigh(int64_t count, int64_t D, const float* p, int64_t stride, const float* v, const float* factor,
                  float* o) {
    for (int64_t d = 0; d < D; d += 2 * LANES) {
        Vector sum[ROWS][2];
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; ++i)
            for (int x = 0; x < 2; ++x) sum[i][x] = *(const Vector*)(o + i * D + d + x * LANES) * factor[i];
        for (int64_t j = 0; j < count; ++j) {
            Vector v0 = *(const Vector*)(v + j * D + d), v1 = *(const Vector*)(v + j * D + d + LANES);
#pragma GCC unroll 6
            for (int i = 0; i < ROWS; ++i) {
                sum[i][0] += p[i * stride + j] * v0;
                sum[i][1] += p[i * stride + j] * v1;
            }
        }
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; ++i)
            for (int x = 0; x < 2; ++x) *(Vector*)(o + i * D + d + x * LANES) = sum[i][x];
    }
}

// O[Lq, D] = softmax(Q K^T / sqrt(D)) V, all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void attention(int64_t Lq, int64_t Lk, int64_t D, const float* __restrict Q,
                                                         const float* __restrict K, const float* __restrict V,
                                                         float* __restrict O, int64_t) {
    int64_t padded = (Lk + KEYS - 1) / KEYS * KEYS;
    std::vector<float> keys(padded * D), queries(ROWS * D), p(ROWS * padded), o(ROWS * D);
    const float zero[ROWS] = {}, scale = 1 / std::sqrt((float)D);
    pack_keys(Lk, D, K, keys.data());
    for (int64_t begin = 0; begin < Lq; begin += ROWS) {
        int64_t rows = std::min<int64_t>(ROWS, Lq - begin);
        pack_queries(D, rows, Q + begin * D, scale, queries.data());
        for (int64_t j = 0; j < padded; j += KEYS)
            score_tile(D, queries.data(), keys.data() + j * D, p.data() + j, padded);
        float total[ROWS];
        for (int64_t i = 0; i < ROWS; ++i) {
            float* row = p.data() + i * padded;
            std::fill(row + Lk, row + padded, -INFINITY);  // where there is no key
            total[i] = exponentials(padded, row, *std::max_element(row, row + Lk));
        }
        weigh(Lk, D, p.data(), padded, V, zero, o.data());
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t d = 0; d < D; ++d) O[(begin + i) * D + d] = o[i * D + d] / total[i];
    }
}
