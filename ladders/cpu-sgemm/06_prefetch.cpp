// title: Alignment and software prefetch
// target: avx2
// threads: 1
// loads: L1 0.92, L2 0.67
// hypothesis: Scratch that is kept between calls costs no page faults; on 64-byte boundaries no vector straddles
//   two lines; on large pages the panels need few entries of the TLB. The lines of C are asked for before the sum
//   over k starts, and a share of the next panel of A with every tile, so both are near when they are needed. While
//   it is packed, B is read a row at a time, not in strips of 16. Whole tiles are stored as vectors. The
//   multipliers were busy most of the time already: a small gain.
// predicts: 1.06
// next: One core's multipliers are busy. The other core does nothing.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32)));  // at a multiple of 32 bytes
typedef float Anywhere __attribute__((vector_size(32), aligned(4)));
constexpr int LANES = 8, TILE_M = 6, TILE_N = 2 * LANES;
constexpr int64_t BLOCK_K = 384, BLOCK_N = 24 * TILE_N;

// Scratch that lives as long as the thread, on large pages where the system gives them.
struct Scratch {
    float* data = nullptr;
    int64_t held = 0;
    float* room(int64_t count) {
        constexpr int64_t PAGE = 2 << 20;
        int64_t bytes = (count * 4 + PAGE - 1) / PAGE * PAGE;
        if (bytes <= held) return data;
        free(data);
        data = (float*)aligned_alloc(PAGE, bytes);
        madvise(data, bytes, MADV_HUGEPAGE);
        held = bytes;
        return data;
    }
    ~Scratch() { free(data); }
};
static thread_local Scratch room_a, room_b;

// c[TILE_M, TILE_N] (+)= a b over panels of `depth` steps; only rows x columns of it are stored.
static void tile(int64_t depth, const float* a, const float* b, float* c, int64_t stride, bool first, int64_t rows,
                 int64_t columns) {
    Vector sum[TILE_M][2] = {};
#pragma GCC unroll 6
    for (int i = 0; i < TILE_M; ++i) {
        __builtin_prefetch(c + i * stride, 1);
        __builtin_prefetch(c + i * stride + TILE_N - 1, 1);
    }
    for (int64_t k = 0; k < depth; ++k, a += TILE_M, b += TILE_N) {
        Vector b0 = *(const Vector*)b, b1 = *(const Vector*)(b + LANES);
#pragma GCC unroll 6
        for (int i = 0; i < TILE_M; ++i) {
            sum[i][0] += a[i] * b0;
            sum[i][1] += a[i] * b1;
        }
    }
    if (rows == TILE_M && columns == TILE_N) {
#pragma GCC unroll 6
        for (int i = 0; i < TILE_M; ++i)
            for (int v = 0; v < 2; ++v) {
                Anywhere* to = (Anywhere*)(c + i * stride + v * LANES);
                *to = first ? sum[i][v] : *to + sum[i][v];
            }
        return;
    }
    alignas(64) float edge[TILE_M * TILE_N];
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

// Rows of B, read whole: panels of TILE_N columns, to[k * TILE_N + column], zeros where there is no column.
static void pack_b(float* to, const float* from, int64_t stride, int64_t width, int64_t depth) {
    for (int64_t k = 0; k < depth; ++k)
        for (int64_t j = 0; j < width; j += TILE_N) {
            const float* line = from + k * stride + j;
            float* step = to + j * depth + k * TILE_N;
            if (j + TILE_N <= width)
                for (int64_t x = 0; x < TILE_N; ++x) step[x] = line[x];
            else
                for (int64_t x = 0; x < TILE_N; ++x) step[x] = j + x < width ? line[x] : 0.0f;
        }
}

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void sgemm(int64_t M, int64_t N, int64_t K, const float* __restrict A,
                                                     const float* __restrict B, float* __restrict C, int64_t) {
    int64_t panels = (M + TILE_M - 1) / TILE_M;
    float *packed_a = room_a.room(panels * TILE_M * K), *packed_b = room_b.room(BLOCK_K * BLOCK_N);
    for (int64_t p = 0; p < panels; ++p)  // all of A once: panel by panel, each K long
        pack_a(packed_a + p * TILE_M * K, A + p * TILE_M * K, K, std::min<int64_t>(TILE_M, M - p * TILE_M), K);
    for (int64_t j0 = 0; j0 < N; j0 += BLOCK_N)
        for (int64_t k0 = 0; k0 < K; k0 += BLOCK_K) {
            int64_t width = std::min(N - j0, BLOCK_N), depth = std::min(K - k0, BLOCK_K);
            pack_b(packed_b, B + k0 * N + j0, N, width, depth);
            for (int64_t p = 0; p < panels; ++p) {
                const float* a = packed_a + p * TILE_M * K + k0 * TILE_M;
                const float* ahead = p + 1 < panels ? a + TILE_M * K : a;
                int64_t share = TILE_M * depth * TILE_N / width;  // of the next panel, for one tile of this one
                for (int64_t j = 0; j < width; j += TILE_N) {
                    for (int64_t x = 0; x < share; x += 16) __builtin_prefetch(ahead + j / TILE_N * share + x);
                    tile(depth, a, packed_b + j * depth, C + p * TILE_M * N + j0 + j, N, k0 == 0,
                         std::min<int64_t>(TILE_M, M - p * TILE_M), std::min<int64_t>(TILE_N, width - j));
                }
            }
        }
}
