// title: GotoBLAS order, cut for the caches of this machine
// target: avx512, avx2
// threads: 1, all
// loads: L1 0.92, L2 0.25
// hypothesis: A tile reads a panel of A and a wider one of B, and one of the two stays in L1 while the other comes
//   from L2. Until here the wide one came: 64 bytes for each step of 6 x 16 on AVX2. Now the panel of B stays and the
//   narrow ones of A come, 24 bytes. How long a panel is follows from L1, and how many of A's go round from L2, both
//   asked of the system: blocks of 576 KiB did not fit the L2 of 512 KiB that many machines have. Four steps of k are
//   one turn of the loop. One source for both widths of vectors; where there is no AVX-512 this is the rung after the
//   threads.
// predicts: 1.05
// next: The multipliers. What is left is the store of each tile and the packing, some hundredths each.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

#ifdef __AVX512F__
constexpr int LANES = 16, TILE_M = 14;  // 28 of 32 registers hold sums
#else
constexpr int LANES = 8, TILE_M = 6;  // 12 of 16
#endif
constexpr int TILE_N = 2 * LANES;
typedef float Vector __attribute__((vector_size(4 * LANES)));  // at a multiple of its size
typedef float Anywhere __attribute__((vector_size(4 * LANES), aligned(4)));

// How the product is cut for the caches of this machine.
struct Cut {
    int64_t depth, rows;  // steps of k, and rows of A that meet a panel of B before the next
    Cut() {
        int64_t l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
        if (l1 <= 0) l1 = 32 << 10;  // not every system says
        if (l2 <= 0) l2 = 512 << 10;
        depth = l1 * 7 / 8 / (4 * (TILE_M + TILE_N)) / 8 * 8;  // a panel of each in L1
        rows = l2 / 2 / (4 * depth) / TILE_M * TILE_M;         // panels of A in half of L2
    }
};

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
#pragma GCC unroll 14
    for (int i = 0; i < TILE_M; ++i) {
        __builtin_prefetch(c + i * stride, 1);
        __builtin_prefetch(c + i * stride + TILE_N - 1, 1);
    }
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; ++k, a += TILE_M, b += TILE_N) {
        Vector b0 = *(const Vector*)b, b1 = *(const Vector*)(b + LANES);
#pragma GCC unroll 14
        for (int i = 0; i < TILE_M; ++i) {
            sum[i][0] += a[i] * b0;
            sum[i][1] += a[i] * b1;
        }
    }
    if (rows == TILE_M && columns == TILE_N) {
#pragma GCC unroll 14
        for (int i = 0; i < TILE_M; ++i)
            for (int v = 0; v < 2; ++v) {
                Anywhere* to = (Anywhere*)(c + i * stride + v * LANES);
                *to = first ? sum[i][v] : *to + sum[i][v];
            }
        return;
    }
    alignas(64) float edge[TILE_M * TILE_N];
#pragma GCC unroll 14
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
                                                     const float* __restrict B, float* __restrict C, int64_t threads) {
    static const Cut cut;
    int64_t panels = (M + TILE_M - 1) / TILE_M;
    float* packed_a = room_a.room(panels * TILE_M * K);
#pragma omp parallel num_threads((int)threads)
    {
#pragma omp for  // ends when all are done: everybody reads all of A
        for (int64_t p = 0; p < panels; ++p)  // all of A once: panel by panel, each K long
            pack_a(packed_a + p * TILE_M * K, A + p * TILE_M * K, K, std::min<int64_t>(TILE_M, M - p * TILE_M), K);
        int64_t tiles = (N + TILE_N - 1) / TILE_N, ith = omp_get_thread_num(), nth = omp_get_num_threads();
        int64_t begin = tiles * ith / nth * TILE_N, end = std::min(N, tiles * (ith + 1) / nth * TILE_N);
        int64_t width = (end - begin + TILE_N - 1) / TILE_N * TILE_N;
        float* packed_b = room_b.room(cut.depth * width);
        for (int64_t k0 = 0; k0 < K; k0 += cut.depth) {
            int64_t depth = std::min(K - k0, cut.depth);
            pack_b(packed_b, B + k0 * N + begin, N, end - begin, depth);
            for (int64_t i0 = 0; i0 < M; i0 += cut.rows)
                for (int64_t j = begin; j < end; j += TILE_N)
                    for (int64_t i = i0; i < std::min(M, i0 + cut.rows); i += TILE_M)
                        tile(depth, packed_a + i * K + k0 * TILE_M, packed_b + (j - begin) * depth, C + i * N + j, N,
                             k0 == 0, std::min<int64_t>(TILE_M, M - i), std::min<int64_t>(TILE_N, end - j));
        }
    }
}
