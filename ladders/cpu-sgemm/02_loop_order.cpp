// title: Loop order
// target: avx2
// threads: 1
// rows: 256
// loads: L1 12, L3 4
// hypothesis: With j innermost, B and C are read in the order in which they lie: eight elements are one vector, the
//   prefetcher sees a stream, and no addition waits for the one before it. What is left is three trips to L1 for
//   each multiply-add (B, and C both ways) and all of B from L3 or beyond once for each row of A.
// predicts: 40
// next: B, 16 MiB, is read from outside L2 again for every row of A. Use a part of it for all rows while it is
//   near.
#include <cstdint>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void sgemm(int64_t M, int64_t N, int64_t K, const float* __restrict A,
                                                     const float* __restrict B, float* __restrict C, int64_t) {
    for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) C[i * N + j] = 0;
        for (int64_t k = 0; k < K; ++k) {
            float a = A[i * K + k];
            for (int64_t j = 0; j < N; ++j) C[i * N + j] += a * B[k * N + j];
        }
    }
}
