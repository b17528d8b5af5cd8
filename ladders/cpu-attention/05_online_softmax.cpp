// title: Online softmax
// target: avx2
// threads: 1
// multiples: D 16
// loads: L1 0.92, L3 0.67
// hypothesis: 128 keys at a time: their scores, 3 KiB for six queries, never leave L1. A row's largest score is not
//   known before its last key, so the largest so far is used, and whenever a larger one comes, what was summed is
//   multiplied by the exponential of the difference. That is exact. The maximum is taken in vectors on the way. No
//   buffer grows with Lk any more.
// predicts: 1.25
// next: K and V, 1 MiB, do not fit L2 of every machine, and come from L3 again for every six queries.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <immintrin.h>
#include <vector>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32), aligned(4)));
typedef int32_t Whole __attribute__((vector_size(32)));
constexpr int LANES = 8, ROWS = 6, KEYS = 2 * LANES;  // a tile of scores, in 12 of 16 registers
constexpr int64_t TILE = 128;  // keys that are taken at a time

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

static float largest_of(int64_t count, const float* p) {
    Vector most = *(const Vector*)p;
    for (int64_t j = LANES; j < count; j += LANES) most = (Vector)_mm256_max_ps(most, *(const Vector*)(p + j));
    float largest = most[0];
    for (int i = 1; i < LANES; ++i) largest = std::max(largest, most[i]);
    return largest;
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

// What is known of ROWS queries after some keys.
struct Running {
    float largest[ROWS], total[ROWS];
};

// Takes `count` keys more: scores, probabilities beside the largest so far, and what was summed rescaled to it.
static void take(int64_t count, int64_t D, const float* queries, const float* keys, const float* v, Running& known,
                 float* o) {
    alignas(64) float p[ROWS * TILE];
    float factor[ROWS];
    int64_t padded = (count + KEYS - 1) / KEYS * KEYS;
    for (int64_t j = 0; j < padded; j += KEYS) score_tile(D, queries, keys + j * D, p + j, TILE);
    for (int64_t i = 0; i < ROWS; ++i) {
        float* row = p + i * TILE;
        std::fill(row + count, row + padded, -INFINITY);  // where there is no key
        float largest = std::max(known.largest[i], largest_of(padded, row));
        factor[i] = exponential(Vector{} + (known.largest[i] - largest))[0];
        known.total[i] = known.total[i] * factor[i] + exponentials(padded, row, largest);
        known.largest[i] = largest;
    }
    weigh(count, D, p, TILE, v, factor, o);
}

// O[Lq, D] = softmax(Q K^T / sqrt(D)) V, all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void attention(int64_t Lq, int64_t Lk, int64_t D, const float* __restrict Q,
                                                         const float* __restrict K, const float* __restrict V,
                                                         float* __restrict O, int64_t) {
    int64_t padded = (Lk + KEYS - 1) / KEYS * KEYS;
    std::vector<float> keys(padded * D), queries(ROWS * D), o(ROWS * D);
    const float scale = 1 / std::sqrt((float)D);
    pack_keys(Lk, D, K, keys.data());
    for (int64_t begin = 0; begin < Lq; begin += ROWS) {
        int64_t rows = std::min<int64_t>(ROWS, Lq - begin);
        pack_queries(D, rows, Q + begin * D, scale, queries.data());
        Running known = {};
        std::fill(known.largest, known.largest + ROWS, -INFINITY);
        std::fill(o.begin(), o.end(), 0.0f);
        for (int64_t j = 0; j < Lk; j += TILE)
            take(std::min(TILE, Lk - j), D, queries.data(), keys.data() + j * D, V + j * D, known, o.data());
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t d = 0; d < D; ++d) O[(begin + i) * D + d] = o[i * D + d] / known.total[i];
    }
}
