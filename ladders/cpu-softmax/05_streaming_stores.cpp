// title: Non-temporal stores
// target: avx2
// threads: 1
// loads: DRAM 0.8
// hypothesis: The exponentials are kept in a row of our own, which never leaves L1, and y is written once, whole
//   lines past the caches, so that its old lines are not fetched: 8 bytes cross for an element and not 12. That is
//   right only because 32 MiB of y would be in no cache when somebody reads it.
// predicts: 1.3
// next: While a row's exponentials are computed nothing comes from memory and nothing goes there.
#include <cmath>
#include <cstdint>
#include <immintrin.h>
#include <vector>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32), aligned(4)));
typedef int32_t Whole __attribute__((vector_size(32)));
constexpr int LANES = 8;

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

static float largest_of(int64_t N, const float* x) {
    Vector most[4];
    for (Vector& one : most) one = Vector{} + x[0];
    int64_t n = 0;
    for (; n + 4 * LANES <= N; n += 4 * LANES)
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) most[c] = _mm256_max_ps(*(const Vector*)(x + n + c * LANES), most[c]);
    float largest = x[0];
    for (const Vector& one : most)
        for (int i = 0; i < LANES; ++i) largest = one[i] > largest ? one[i] : largest;
    for (; n < N; ++n) largest = x[n] > largest ? x[n] : largest;
    return largest;
}

// to = exp(x - largest); returns their sum.
static float exponentials(int64_t N, const float* x, float largest, float* to) {
    Vector sum[2] = {};
    int64_t n = 0;
    for (; n + 2 * LANES <= N; n += 2 * LANES)
#pragma GCC unroll 2
        for (int c = 0; c < 2; ++c) {
            Vector e = exponential(*(const Vector*)(x + n + c * LANES) - largest);
            *(Vector*)(to + n + c * LANES) = e;
            sum[c] += e;
        }
    float total = added(sum[0] + sum[1]);
    for (; n < N; ++n) total += to[n] = exponential(Vector{} + (x[n] - largest))[0];
    return total;
}

// y = kept * inverse. A vector that is stored past the caches must lie on a boundary of 32 bytes.
static void scale(int64_t N, const float* kept, float inverse, float* y) {
    int64_t n = 0;
    for (; n < N && (uintptr_t)(y + n) % 32; ++n) y[n] = kept[n] * inverse;
    for (; n + LANES <= N; n += LANES) _mm256_stream_ps(y + n, *(const Vector*)(kept + n) * inverse);
    for (; n < N; ++n) y[n] = kept[n] * inverse;
}

// y[m, n] = exp(x[m, n] - max of x[m]) / its sum over n, both row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void softmax(int64_t M, int64_t N, const float* __restrict x,
                                                       float* __restrict y, int64_t) {
    std::vector<float> kept(N);
    for (int64_t m = 0; m < M; ++m, x += N, y += N) {
        float sum = exponentials(N, x, largest_of(N, x), kept.data());
        scale(N, kept.data(), 1 / sum, y);
    }
    _mm_sfence();  // what was stored past the caches is there for everybody
}
