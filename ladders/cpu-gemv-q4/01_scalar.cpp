// title: Scalar Q4_0
// target: avx2
// threads: 1
// rows: 2048
// format: q4_0
// multiples: K 32
// loads: L1 4.6, DRAM 0.5625
// hypothesis: A weight is half of a byte: shifted or masked, less 8, converted and multiplied with x; a block's sum
//   is multiplied with its scale once. Each addition waits for the one before it, 4 cycles for half a byte. So this
//   is bound by the latency of an addition, and memory stands idle.
// next: One weight an instruction, several instructions a weight.
#include <cstdint>
#include <immintrin.h>

struct Block {
    uint16_t scale;       // float16
    uint8_t weights[16];  // weight i below, weight i + 16 above, of each 8 too much
};
static_assert(sizeof(Block) == 18);

// y[N] = W[N, K] x[K], W in blocks along its rows.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const Block* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t) {
    int64_t blocks = K / 32;
    for (int64_t n = 0; n < N; ++n, W += blocks) {
        float total = 0;
        for (int64_t b = 0; b < blocks; ++b) {
            const float* part = x + b * 32;
            float sum = 0;
            for (int i = 0; i < 16; ++i) {
                sum += ((W[b].weights[i] & 15) - 8) * part[i];
                sum += ((W[b].weights[i] >> 4) - 8) * part[i + 16];
            }
            total += _cvtsh_ss(W[b].scale) * sum;
        }
        y[n] = total;
    }
}
