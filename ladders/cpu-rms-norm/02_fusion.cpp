// title: Fusion
// target: avx2
// threads: 1
// loads: DRAM 6
// hypothesis: A row of 16 KiB fits L1. It is fetched once, for its sum; when it is multiplied it is still there, and
//   no square is ever stored. Of nine crossings three are left: x comes, y's line comes and goes. The additions still
//   wait for each other, 4 cycles each, which is now the larger part of the time.
// predicts: 2
// next: One chain of additions, and the compiler may not break it up: floating-point addition is not associative. Say
//   in the source that there are several sums.
#include <cmath>
#include <cstdint>

// y[m, n] = x[m, n] / sqrt(mean of x[m]^2 + eps) * w[n], all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void rms_norm(int64_t M, int64_t N, const float* __restrict x,
                                                        const float* __restrict w, float* __restrict y, float eps,
                                                        int64_t) {
    for (int64_t m = 0; m < M; ++m, x += N, y += N) {
        float sum = 0;
        for (int64_t n = 0; n < N; ++n) sum += x[n] * x[n];
        float inverse = 1 / std::sqrt(sum / N + eps);
        for (int64_t n = 0; n < N; ++n) y[n] = x[n] * inverse * w[n];
    }
}
