// title: Software prefetch of the next row
// target: avx2
// threads: 1
// loads: DRAM 4
// hypothesis: With every line that is written, the line of the next row at the same place is asked for: memory reads
//   and writes at once, and the next sum finds its row in a cache. Two rows are 32 KiB, as much as L1 holds beside
//   nothing else, so some of it comes from L2; that is still near.
// predicts: 1.2
// next: One core has only so many requests to memory under way. The other cores' are not used.
#include <cmath>
#include <cstdint>
#include <immintrin.h>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32), aligned(4)));
constexpr int LANES = 8, CHAINS = 4;

static float sum_of_squares(int64_t N, const float* x) {
    Vector sum[CHAINS] = {};
    int64_t n = 0;
    for (; n + CHAINS * LANES <= N; n += CHAINS * LANES)
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; ++c) {
            Vector v = *(const Vector*)(x + n + c * LANES);
            sum[c] += v * v;
        }
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    float total = 0;
    for (int i = 0; i < LANES; ++i) total += sum[0][i];
    for (; n < N; ++n) total += x[n] * x[n];
    return total;
}

// y = x * inverse * w; meanwhile the row of x after this one is asked for. A vector that is stored past the caches
// must lie on a boundary of 32 bytes.
static void scale(int64_t N, const float* x, const float* w, float* y, float inverse) {
    int64_t n = 0;
    for (; n < N && (uintptr_t)(y + n) % 32; ++n) y[n] = x[n] * inverse * w[n];
    for (; n + 2 * LANES <= N; n += 2 * LANES) {
        __builtin_prefetch(x + N + n);
        _mm256_stream_ps(y + n, *(const Vector*)(x + n) * inverse * *(const Vector*)(w + n));
        _mm256_stream_ps(y + n + LANES, *(const Vector*)(x + n + LANES) * inverse * *(const Vector*)(w + n + LANES));
    }
    for (; n < N; ++n) y[n] = x[n] * inverse * w[n];
}

// y[m, n] = x[m, n] / sqrt(mean of x[m]^2 + eps) * w[n], all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void rms_norm(int64_t M, int64_t N, const float* __restrict x,
                                                        const float* __restrict w, float* __restrict y, float eps,
                                                        int64_t) {
    for (int64_t m = 0; m < M; ++m, x += N, y += N) {
        float inverse = 1 / std::sqrt(sum_of_squares(N, x) / N + eps);
        scale(N, x, w, y, inverse);
    }
    _mm_sfence();  // what was stored past the caches is there for everybody
}
