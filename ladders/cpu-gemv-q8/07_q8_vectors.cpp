// title: SIMD dequantisation of Q8_0
// target: avx2
// threads: 1, all
// format: q8_0
// multiples: K 32
// loads: L1 5.06, DRAM 1.0625
// hypothesis: Eight int8 become eight float32 with two instructions, and a third multiplies and adds. The scale is
//   taken out of the block's sum and multiplied in once: about 20 instructions a block of 34 bytes, 5 to 6 cycles. A
//   core's share of memory brings a block in 7 to 8. So this is memory's rate again, now with half the bytes.
// predicts: 15
// next: The instructions of a block fill most of the cycles in which memory brings it, and a core looks only some 200
//   instructions ahead: ten blocks, six lines. Fewer instructions a block would show it more lines to ask for.
#include <cstdint>
#include <immintrin.h>

struct Block {
    uint16_t scale;  // float16
    int8_t weights[32];
};
static_assert(sizeof(Block) == 34);

static float sum_of(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The dot product of a row with x.
static float dot(int64_t blocks, const Block* row, const float* x) {
    __m256 sum = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b, x += 32) {
        __m256 part[2] = {};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            __m128i eight = _mm_loadl_epi64((const __m128i*)(row[b].weights + 8 * i));
            __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
            part[i % 2] = _mm256_fmadd_ps(wide, _mm256_loadu_ps(x + 8 * i), part[i % 2]);
        }
        __m256 scale = _mm256_set1_ps(_cvtsh_ss(row[b].scale));
        sum = _mm256_fmadd_ps(scale, _mm256_add_ps(part[0], part[1]), sum);
    }
    return sum_of(sum);
}

// y[N] = W[N, K] x[K], W in blocks along its rows.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const Block* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t threads) {
#pragma omp parallel for num_threads((int)threads)
    for (int64_t n = 0; n < N; ++n) y[n] = dot(K / 32, W + n * (K / 32), x);
}
