// title: Naive bfloat16
// target: avx2
// threads: 1
// format: bf16
// loads: L1 6, DRAM 2
// hypothesis: The formula as it is written. A bfloat16 is the upper half of a float32, so widening it is a shift.
//   Each addition waits for the one before it, 4 cycles, in which memory could hand over far more than the 2 bytes of
//   one weight. So this is bound by the latency of an addition, and memory stands idle.
// next: One chain of additions, one element an instruction. Use vectors, and several chains.
#include <bit>
#include <cstdint>

static float widen(uint16_t bits) { return std::bit_cast<float>((uint32_t)bits << 16); }

// y[N] = W[N, K] x[K], W bfloat16, row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const uint16_t* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t) {
    for (int64_t n = 0; n < N; ++n) {
        float sum = 0;
        for (int64_t k = 0; k < K; ++k) sum += widen(W[n * K + k]) * x[k];
        y[n] = sum;
    }
}
