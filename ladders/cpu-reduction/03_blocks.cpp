// title: SIMD vectors, float32 sums in blocks
// target: avx2
// threads: 1
// loads: L1 8, DRAM 8
// hypothesis: Within a block of 4096 numbers float is exact enough: each of 32 lanes adds 128 of them. Eight numbers
//   are one instruction with its load, none is converted, and a block ends in double. 32 numbers take some 4 cycles,
//   less than memory takes to bring them: memory is what is left.
// predicts: 1.7
// next: The prefetcher follows the stream to the end of a page of 4 KiB, and has to find out about the next one.
#include <algorithm>
#include <cstdint>

typedef float Vector __attribute__((vector_size(32), aligned(4)));
constexpr int LANES = 8, CHAINS = 4;
constexpr int64_t BLOCK = 4096;  // 128 additions in each lane of each chain: the float sums stay short

// The sum of a block: in float along the chains, in double over their lanes.
static double block_sum(int64_t N, const float* x) {
    Vector sum[CHAINS] = {};
    int64_t n = 0;
    for (; n + CHAINS * LANES <= N; n += CHAINS * LANES)
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; ++c) sum[c] += *(const Vector*)(x + n + c * LANES);
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
