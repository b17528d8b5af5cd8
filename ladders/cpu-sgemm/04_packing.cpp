// title: Packing
// target: avx2
// threads: 1
// rows: 512
// loads: L1 12, L2 4
// hypothesis: Copied into a buffer of its own, a block of B lies in one piece: its lines spread over all sets of
//   the caches, it takes 128 pages and not 256, and the prefetcher runs from row to row. The copy costs one pass
//   over B for M uses of it.
// predicts: 1.2
// next: For each multiply-add one element of B is loaded and one of C loaded and stored: three trips to L1 for one
//   use. Keep C in registers, and use each loaded element many times.
#include <algorithm>
#include <cstdint>
#include <vector>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

constexpr int64_t BLOCK_K = 256, BLOCK_N = 512;

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void sgemm(int64_t M, int64_t N, int64_t K, const float* __restrict A,
                                                     const float* __restrict B, float* __restrict C, int64_t) {
    std::vector<float> room(BLOCK_K * BLOCK_N);
    float* __restrict packed = room.data();
    std::fill(C, C + M * N, 0.0f);
    for (int64_t j0 = 0; j0 < N; j0 += BLOCK_N)
        for (int64_t k0 = 0; k0 < K; k0 += BLOCK_K) {
            int64_t width = std::min(N - j0, BLOCK_N), depth = std::min(K - k0, BLOCK_K);
            for (int64_t k = 0; k < depth; ++k)
                for (int64_t j = 0; j < width; ++j) packed[k * width + j] = B[(k0 + k) * N + j0 + j];
            for (int64_t i = 0; i < M; ++i)
                for (int64_t k = 0; k < depth; ++k) {
                    float a = A[i * K + k0 + k];
                    for (int64_t j = 0; j < width; ++j) C[i * N + j0 + j] += a * packed[k * width + j];
                }
        }
}
