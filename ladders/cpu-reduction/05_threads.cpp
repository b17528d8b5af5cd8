// title: Threads
// target: avx2
// threads: 1, all
// loads: L1 8, DRAM 8
// hypothesis: Each core adds up a part in one piece, and the parts' sums are added at the end in their order, so that
//   two calls give the same bits. Each core brings its own requests; memory has room for some of them.
// predicts: 1.6
// next: One stream of addresses a core: one bank of memory after the other, each row of it opened and closed in turn.
#include <algorithm>
#include <cstdint>
#include <omp.h>
#include <vector>

typedef float Vector __attribute__((vector_size(32), aligned(4)));
constexpr int LANES = 8, CHAINS = 4;
constexpr int64_t BLOCK = 4096;  // 128 additions in each lane of each chain: the float sums stay short
constexpr int64_t AHEAD = 1024;  // numbers: a page

// The sum of a block: in float along the chains, in double over their lanes. What lies a page ahead is asked for.
static double block_sum(int64_t N, const float* x) {
    Vector sum[CHAINS] = {};
    int64_t n = 0;
    for (; n + CHAINS * LANES <= N; n += CHAINS * LANES) {
        __builtin_prefetch(x + n + AHEAD);
        __builtin_prefetch(x + n + AHEAD + 16);
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; ++c) sum[c] += *(const Vector*)(x + n + c * LANES);
    }
    double total = 0;
    for (int c = 0; c < CHAINS; ++c)
        for (int i = 0; i < LANES; ++i) total += sum[c][i];
    for (; n < N; ++n) total += x[n];
    return total;
}

// s[0] = sum of x[N].
extern "C" [[gnu::visibility("default")]] void sum(int64_t N, const float* __restrict x, float* __restrict s,
                                                   int64_t threads) {
    std::vector<double> parts(threads);
#pragma omp parallel num_threads((int)threads)
    {
        int64_t ith = omp_get_thread_num(), nth = omp_get_num_threads();
        int64_t blocks = (N + BLOCK - 1) / BLOCK, begin = blocks * ith / nth * BLOCK;
        int64_t end = std::min(N, blocks * (ith + 1) / nth * BLOCK);
        double total = 0;
        for (int64_t n = begin; n < end; n += BLOCK) total += block_sum(std::min(BLOCK, end - n), x + n);
        parts[ith] = total;
    }
    double total = 0;
    for (double part : parts) total += part;
    s[0] = (float)total;
}
