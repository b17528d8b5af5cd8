// title: Naive
// target: avx2
// threads: 1
// rows: 128
// loads: DRAM 1.2
// hypothesis: The formula as it is written: the largest, the sum of exponentials, and for every element its
//   exponential once more, divided by the sum. An exponential is a call of the mathematical library, one element at a
//   time, some fifteen cycles, and there are two for each element. Memory stands idle.
// next: Half of the exponentials were there before.
#include <cmath>
#include <cstdint>

// y[m, n] = exp(x[m, n] - max of x[m]) / its sum over n, both row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void softmax(int64_t M, int64_t N, const float* __restrict x,
                                                       float* __restrict y, int64_t) {
    for (int64_t m = 0; m < M; ++m, x += N, y += N) {
        float largest = x[0];
        for (int64_t n = 1; n < N; ++n) largest = x[n] > largest ? x[n] : largest;
        float sum = 0;
        for (int64_t n = 0; n < N; ++n) sum += std::exp(x[n] - largest);
        for (int64_t n = 0; n < N; ++n) y[n] = std::exp(x[n] - largest) / sum;
    }
}
