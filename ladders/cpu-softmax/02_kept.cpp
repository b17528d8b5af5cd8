// title: Exponentials computed once
// target: avx2
// threads: 1
// rows: 256
// loads: DRAM 1.2
// hypothesis: The exponentials of the sum are stored in y, and a last loop multiplies them by the inverse of their
//   sum. A row of 16 KiB is still in L1 then, so the loop costs next to nothing beside a call for each element. Half
//   the calls, half the time.
// predicts: 1.9
// next: The calls. An exponential is some multiply-adds, and vectors could do eight at once if it were not in a
//   library.
#include <cmath>
#include <cstdint>

// y[m, n] = exp(x[m, n] - max of x[m]) / its sum over n, both row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void softmax(int64_t M, int64_t N, const float* __restrict x,
                                                       float* __restrict y, int64_t) {
    for (int64_t m = 0; m < M; ++m, x += N, y += N) {
        float largest = x[0];
        for (int64_t n = 1; n < N; ++n) largest = x[n] > largest ? x[n] : largest;
        float sum = 0;
        for (int64_t n = 0; n < N; ++n) sum += y[n] = std::exp(x[n] - largest);
        float inverse = 1 / sum;
        for (int64_t n = 0; n < N; ++n) y[n] *= inverse;
    }
}
