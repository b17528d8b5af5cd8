// title: SIMD exponential
// target: avx2
// threads: 1
// loads: DRAM 1.2
// hypothesis: exp(x) = 2^k exp(r) with k whole and |r| at most half of ln 2: k goes into the exponent's bits, and a
//   polynomial of degree 7 gives exp(r). Some twenty instructions do that for eight elements, so some seven cycles
//   and not more than a hundred. The search for the largest, one element at a time, each waiting 4 cycles for the one
//   before, was hidden beside the calls and is now most of the time.
// predicts: 4
// next: One chain of comparisons, as the formula has it. The largest of eight lanes each is as good.
#include <cmath>
#include <cstdint>
#include <immintrin.h>
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

// y[m, n] = exp(x[m, n] - max of x[m]) / its sum over n, both row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void softmax(int64_t M, int64_t N, const float* __restrict x,
                                                       float* __restrict y, int64_t) {
    for (int64_t m = 0; m < M; ++m, x += N, y += N) {
        float largest = x[0];
        for (int64_t n = 1; n < N; ++n) largest = x[n] > largest ? x[n] : largest;
        float inverse = 1 / exponentials(N, x, largest, y);
        for (int64_t n = 0; n < N; ++n) y[n] *= inverse;
    }
}
