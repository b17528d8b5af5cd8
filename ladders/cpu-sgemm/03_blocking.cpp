// title: Cache blocking
// target: avx2
// threads: 1
// rows: 512
// loads: L1 12, L2 4
// hypothesis: Cut B into blocks of 256 x 512 (512 KiB, half of this machine's L2) and let every row of A meet one
//   block before the next is fetched. B then crosses from outside L2 once, not M times; the inner loop is the same.
// predicts: 1.5
// next: The rows of a block lie N elements apart: at N = 2048 their addresses are 8 KiB apart, which crowds them
//   into few sets of the caches and one page each. Copy the block to where its rows touch.
#include <algorithm>
#include <cstdint>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

constexpr int64_t BLOCK_K = 256, BLOCK_N = 512;

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void sgemm(int64_t M, int64_t N, int64_t K, const float* __restrict A,
                                                     const float* __restrict B, float* __restrict C, int64_t) {
    std::fill(C, C + M * N, 0.0f);
    for (int64_t j0 = 0; j0 < N; j0 += BLOCK_N)
        for (int64_t k0 = 0; k0 < K; k0 += BLOCK_K) {
            int64_t j1 = std::min(N, j0 + BLOCK_N), k1 = std::min(K, k0 + BLOCK_K);
            for (int64_t i = 0; i < M; ++i)
                for (int64_t k = k0; k < k1; ++k) {
                    float a = A[i * K + k];
                    for (int64_t j = j0; j < j1; ++j) C[i * N + j] += a * B[k * N + j];
                }
        }
}
