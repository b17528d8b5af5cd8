// title: Scalar Q8_0
// target: avx2
// threads: 1, all
// format: q8_0
// multiples: K 32
// loads: L1 5.06, DRAM 1.0625
// hypothesis: Blocks of 32 weights with one float16 scale: 34 bytes where bfloat16 takes 64. If bytes were all that
//   counts, this would take 0.53 of the time. But the weights are integers now, and this converts them one by one, as
//   the format is written down, into one chain of additions: 4 cycles a weight, as in the first rung. So it will be
//   slower than what it replaces, by about the factor that the vectors had won.
// predicts: 0.11
// next: A conversion and a multiply-add for each single weight, each waiting for the one before. Convert vectors.
#include <cstdint>

struct Block {
    _Float16 scale;
    int8_t weights[32];
};
static_assert(sizeof(Block) == 34);

// The dot product of a row with x.
static float dot(int64_t blocks, const Block* row, const float* x) {
    float sum = 0;
    for (int64_t b = 0; b < blocks; ++b, x += 32) {
        float scale = (float)row[b].scale;
        for (int i = 0; i < 32; ++i) sum += scale * (float)row[b].weights[i] * x[i];
    }
    return sum;
}

// y[N] = W[N, K] x[K], W in blocks along its rows.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const Block* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t threads) {
#pragma omp parallel for num_threads((int)threads)
    for (int64_t n = 0; n < N; ++n) y[n] = dot(K / 32, W + n * (K / 32), x);
}
