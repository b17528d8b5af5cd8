// title: Naive
// target: avx2
// threads: 1
// loads: L1 8, DRAM 8
// hypothesis: One number after the other is added to a sum in double: in float a sum of millions stops growing. Each
//   addition waits for the one before it, 4 cycles for 4 bytes, in which memory could hand over far more. So this is
//   bound by the latency of an addition.
// next: One chain of additions. The compiler may not break it up, since that rounds otherwise.
#include <cstdint>

// s[0] = sum of x[N].
extern "C" [[gnu::visibility("default")]] void sum(int64_t N, const float* __restrict x, float* __restrict s,
                                                   int64_t) {
    double total = 0;
    for (int64_t n = 0; n < N; ++n) total += x[n];
    s[0] = (float)total;
}
