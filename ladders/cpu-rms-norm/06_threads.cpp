// title: Threads
// target: avx2
// threads: 1, all
// loads: DRAM 4
// hypothesis: Rows share nothing but w, so each core takes a part of them, in one piece: it goes on from row to row,
//   and what it asks for ahead is its own. One core used some two thirds of what memory has to give, so two gain
//   half.
// predicts: 1.5
// next: Memory. Each byte crosses once, and what is left is not to move them at all: an operation before or after
//   this one that works on the row while it is here, as a fused residual addition or a quantised output does.
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
                                                        int64_t threads) {
#pragma omp parallel num_threads((int)threads)
    {
#pragma omp for schedule(static)
        for (int64_t m = 0; m < M; ++m) {
            float inverse = 1 / std::sqrt(sum_of_squares(N, x + m * N) / N + eps);
            scale(N, x + m * N, w, y + m * N, inverse);
        }
        _mm_sfence();  // what was stored past the caches is there for everybody
    }
}
