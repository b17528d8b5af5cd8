// title: Independent accumulators
// target: avx2
// threads: 1
// loads: L1 8, DRAM 8
// hypothesis: Four sums that do not wait for each other fill the 4 cycles. A number is then a load with a conversion
//   and an addition, which a core does about once a cycle: four times as quick.
// predicts: 3.5
// next: A conversion and an addition for each number. A vector does several at once.
#include <cstdint>

// s[0] = sum of x[N].
extern "C" [[gnu::visibility("default")]] void sum(int64_t N, const float* __restrict x, float* __restrict s,
                                                   int64_t) {
    double total[4] = {};
    int64_t n = 0;
    for (; n + 4 <= N; n += 4)
        for (int c = 0; c < 4; ++c) total[c] += x[n + c];
    for (; n < N; ++n) total[0] += x[n];
    s[0] = (float)((total[0] + total[1]) + (total[2] + total[3]));
}
