// title: Register-blocked microkernel
// target: avx2
// threads: 1
// loads: L1 0.92, L2 0.67
// hypothesis: A tile of 6 x 16 outputs fits 12 of the 16 vector registers. Each step of k loads two vectors of B
//   and six single elements of A and does twelve multiply-adds with them: 0.92 bytes from L1 for each element's
//   multiply-add and not 12, and twelve chains hide the latency. Both operands are packed in the order in which the
//   tile reads them. This should come near two multiply-adds a cycle.
// predicts: 4
// next: The tile still meets cold memory: outputs whose rows lie in other pages, panels at odd addresses in small
//   pages, and scratch that the system hands out afresh in every call.
#include <algorithm>
#include <cstdint>
#include <vector>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32), aligned(4)));
constexpr int LANES = 8, TILE_M = 6, TILE_N = 2 * LANES;
constexpr int64_t BLOCK_K = 384, BLOCK_N = 24 * TILE_N;

// c[TILE_M, TILE_N] (+)= a b over panels of `depth` steps; only rows x columns of it are stored.
static void tile(int64_t depth, const float* a, const float* b, float* c, int64_t stride, bool first, int64_t rows,
                 int64_t columns) {
    Vector sum[TILE_M][2] = {};
    for (int64_t k = 0; k < depth; ++k, a += TILE_M, b += TILE_N) {
        Vector b0 = *(const Vector*)b, b1 = *(const Vector*)(b + LANES);
#pragma GCC unroll 6
        for (int i = 0; i < TILE_M; ++i) {
            sum[i][0] += a[i] * b0;
            sum[i][1] += a[i] * b1;
        }
    }
    float edge[TILE_M * TILE_N];
#pragma GCC unroll 6
    for (int i = 0; i < TILE_M; ++i)
        for (int v = 0; v < 2; ++v) *(Vector*)(edge + i * TILE_N + v * LANES) = sum[i][v];
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
            c[i * stride + j] = (first ? 0.0f : c[i * stride + j]) + edge[i * TILE_N + j];
}

// Rows of A side by side, k by k: to[k * TILE_M + row], zeros where there is no row.
static void pack_a(float* to, const float* from, int64_t stride, int64_t rows, int64_t depth) {
    for (int64_t k = 0; k < depth; ++k)
        for (int64_t i = 0; i < TILE_M; ++i) to[k * TILE_M + i] = i < rows ? from[i * stride + k] : 0.0f;
}

// Columns of B: to[k * TILE_N + column], zeros where there is no column.
static void pack_b(float* to, const float* from, int64_t stride, int64_t columns, int64_t depth) {
    for (int64_t k = 0; k < depth; ++k)
        for (int64_t j = 0; j < TILE_N; ++j) to[k * TILE_N + j] = j < columns ? from[k * stride + j] : 0.0f;
}

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void sgemm(int64_t M, int64_t N, int64_t K, const float* __restrict A,
                                                     const float* __restrict B, float* __restrict C, int64_t) {
    int64_t panels = (M + TILE_M - 1) / TILE_M;
    std::vector<float> room_a(panels * TILE_M * K), room_b(BLOCK_K * BLOCK_N);
    float *packed_a = room_a.data(), *packed_b = room_b.data();
    for (int64_t p = 0; p < panels; ++p)  // all of A once: panel by panel, each K long
        pack_a(packed_a + p * TILE_M * K, A + p * TILE_M * K, K, std::min<int64_t>(TILE_M, M - p * TILE_M), K);
    for (int64_t j0 = 0; j0 < N; j0 += BLOCK_N)
        for (int64_t k0 = 0; k0 < K; k0 += BLOCK_K) {
            int64_t width = std::min(N - j0, BLOCK_N), depth = std::min(K - k0, BLOCK_K);
            for (int64_t j = 0; j < width; j += TILE_N)
                pack_b(packed_b + j * depth, B + k0 * N + j0 + j, N, std::min<int64_t>(TILE_N, width - j), depth);
            for (int64_t p = 0; p < panels; ++p)
                for (int64_t j = 0; j < width; j += TILE_N)
                    tile(depth, packed_a + p * TILE_M * K + k0 * TILE_M, packed_b + j * depth,
                         C + p * TILE_M * N + j0 + j, N, k0 == 0, std::min<int64_t>(TILE_M, M - p * TILE_M),
                         std::min<int64_t>(TILE_N, width - j));
        }
}
