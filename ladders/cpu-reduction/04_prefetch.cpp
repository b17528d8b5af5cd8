// title: Software prefetch
// target: avx2
// threads: 1
// loads: L1 8, DRAM 8
// hypothesis: The line that is needed a page from now is asked for by an instruction, which knows no end of a page,
//   so the stream does not stop there. Between two pages the prefetcher did well: a small gain.
// predicts: 1.1
// next: One core has only so many requests to memory under way. The other cores' are not used.
#include <algorithm>
#include <cstdint>

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
                                                   int64_t) {
    double total = 0;
    for (int64_t n = 0; n < N; n += BLOCK) total += block_sum(std::min(BLOCK, N - n), x + n);
    s[0] = (float)total;
}
