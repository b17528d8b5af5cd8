// title: One operation at a time
// target: avx2
// threads: 1
// loads: DRAM 18
// hypothesis: The formula as a framework runs it that has a kernel for each operation: the squares of all of x, then
//   a mean of each row, then x times the root's inverse, then that times w. What one operation leaves, 32 MiB, is in
//   no cache when the next one asks for it. Each element crosses to or from memory nine times, since a line must be
//   fetched before it is written to; twice would do.
// next: Nothing of a row needs another row. Do all operations on one row while it is near.
#include <cmath>
#include <cstdint>
#include <vector>

// y[m, n] = x[m, n] / sqrt(mean of x[m]^2 + eps) * w[n], all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void rms_norm(int64_t M, int64_t N, const float* __restrict x,
                                                        const float* __restrict w, float* __restrict y, float eps,
                                                        int64_t) {
    static std::vector<float> square, inverse;
    square.resize(M * N);
    inverse.resize(M);
    for (int64_t i = 0; i < M * N; ++i) square[i] = x[i] * x[i];
    for (int64_t m = 0; m < M; ++m) {
        float sum = 0;
        for (int64_t n = 0; n < N; ++n) sum += square[m * N + n];
        inverse[m] = 1 / std::sqrt(sum / N + eps);
    }
    for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n) y[m * N + n] = x[m * N + n] * inverse[m];
    for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n) y[m * N + n] *= w[n];
}
