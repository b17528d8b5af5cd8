// title: Several streams a core
// target: avx2
// threads: 1, all
// loads: L1 8, DRAM 8
// hypothesis: Four streams a core, each a quarter of its part away from the next: one that has come to the end of a
//   page does not hold up the others, and several rows of memory are open at a time. The lanes' sums are 256
//   additions long now. Memory was busy most of the time: a small gain.
// predicts: 1.08
// next: Memory. A number crosses once and is added once: fewer bytes for each, as bfloat16 has, or no pass at all, a
//   sum that is taken where the numbers are made.
#include <algorithm>
#include <cstdint>
#include <omp.h>
#include <vector>

typedef float Vector __attribute__((vector_size(32), aligned(4)));
constexpr int LANES = 8, CHAINS = 4, STREAMS = 4;
constexpr int64_t BLOCK = 4096;  // at most 256 additions in each lane: the float sums stay short
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

// The sums of STREAMS blocks of the same length, `apart` numbers from each other, read in turns.
static double streams_sum(int64_t apart, const float* x) {
    Vector sum[STREAMS][2] = {};
    for (int64_t n = 0; n < BLOCK; n += 2 * LANES)
#pragma GCC unroll 4
        for (int r = 0; r < STREAMS; ++r) {
            __builtin_prefetch(x + r * apart + n + AHEAD);
            sum[r][0] += *(const Vector*)(x + r * apart + n);
            sum[r][1] += *(const Vector*)(x + r * apart + n + LANES);
        }
    double total = 0;
    for (int r = 0; r < STREAMS; ++r)
        for (int i = 0; i < LANES; ++i) total += (double)sum[r][0][i] + sum[r][1][i];
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
        int64_t apart = (end - begin) / BLOCK / STREAMS * BLOCK;
        double total = 0;
        for (int64_t n = begin; n < begin + apart; n += BLOCK) total += streams_sum(apart, x + n);
        for (int64_t n = begin + STREAMS * apart; n < end; n += BLOCK)
            total += block_sum(std::min(BLOCK, end - n), x + n);
        parts[ith] = total;
    }
    double total = 0;
    for (double part : parts) total += part;
    s[0] = (float)total;
}
