// title: Naive
// target: avx2
// threads: 1
// rows: 8
// loads: L1 8
// hypothesis: The formula as it is written, a query at a time: a score for every key, their exponentials and their
//   sum, and each output as a sum over the keys. Every multiply-add of a score and of an output waits for the
//   addition before it (4 cycles), and the outputs read V down its columns, 256 bytes apart. So this is bound by
//   latency.
// next: Neighbouring outputs do not depend on each other, and their numbers of V lie side by side.
#include <cmath>
#include <cstdint>
#include <vector>

// O[Lq, D] = softmax(Q K^T / sqrt(D)) V, all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void attention(int64_t Lq, int64_t Lk, int64_t D, const float* __restrict Q,
                                                         const float* __restrict K, const float* __restrict V,
                                                         float* __restrict O, int64_t) {
    std::vector<float> p(Lk);
    for (int64_t i = 0; i < Lq; ++i) {
        float largest = -INFINITY, total = 0;
        for (int64_t j = 0; j < Lk; ++j) {
            float score = 0;
            for (int64_t d = 0; d < D; ++d) score += Q[i * D + d] * K[j * D + d];
            p[j] = score / std::sqrt((float)D);
            largest = p[j] > largest ? p[j] : largest;
        }
        for (int64_t j = 0; j < Lk; ++j) total += p[j] = std::exp(p[j] - largest);
        for (int64_t d = 0; d < D; ++d) {
            float sum = 0;
            for (int64_t j = 0; j < Lk; ++j) sum += p[j] * V[j * D + d];
            O[i * D + d] = sum / total;
        }
    }
}
