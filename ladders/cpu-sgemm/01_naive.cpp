// title: Naive
// target: avx2
// threads: 1
// rows: 16
// loads: L1 8, L3 64
// hypothesis: The formula as it is written: one output at a time, a sum over k. Each multiply-add waits for the
//   addition before it (4 cycles), and each element of B lies N elements after the one before, in a cache line of
//   its own. So this is bound by memory latency, and the multipliers stand idle.
// next: Neighbouring elements of B lie along j, not along k. Walk them in that order.
#include <cstdint>

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void sgemm(int64_t M, int64_t N, int64_t K, const float* __restrict A,
                                                     const float* __restrict B, float* __restrict C, int64_t) {
    for (int64_t i = 0; i < M; ++i)
        for (int64_t j = 0; j < N; ++j) {
            float sum = 0;
            for (int64_t k = 0; k < K; ++k) sum += A[i * K + k] * B[k * N + j];
            C[i * N + j] = sum;
        }
}
