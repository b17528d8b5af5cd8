// title: SIMD dequantisation of Q4_0
// target: avx2
// threads: 1
// format: q4_0
// multiples: K 32
// loads: L1 4.6, DRAM 0.5625
// hypothesis: Sixteen bytes are masked and shifted at once, and eight of them at a time become 32-bit numbers and
//   float32. Some twenty-five instructions for a block of 32 weights, about nine cycles, and not more than a hundred.
// predicts: 9
// next: A weight is widened from 4 bits to 32, only to be multiplied. Multiply bytes.
#include <cstdint>
#include <immintrin.h>

struct Block {
    uint16_t scale;       // float16
    uint8_t weights[16];  // weight i below, weight i + 16 above, of each 8 too much
};
static_assert(sizeof(Block) == 18);

static float sum_of(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Eight bytes, each 8 too much, as float32.
static __m256 eight(__m128i bytes) {
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(8)));
}

// The dot product of a row with x.
static float dot(int64_t blocks, const Block* row, const float* x) {
    const __m128i low = _mm_set1_epi8(15);
    __m256 total = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b, x += 32) {
        __m128i both = _mm_loadu_si128((const __m128i*)row[b].weights);
        __m128i first = _mm_and_si128(both, low), second = _mm_and_si128(_mm_srli_epi16(both, 4), low);
        __m256 sum = _mm256_mul_ps(eight(first), _mm256_loadu_ps(x));
        __m256 other = _mm256_mul_ps(eight(_mm_srli_si128(first, 8)), _mm256_loadu_ps(x + 8));
        sum = _mm256_fmadd_ps(eight(second), _mm256_loadu_ps(x + 16), sum);
        other = _mm256_fmadd_ps(eight(_mm_srli_si128(second, 8)), _mm256_loadu_ps(x + 24), other);
        total = _mm256_fmadd_ps(_mm256_set1_ps(_cvtsh_ss(row[b].scale)), _mm256_add_ps(sum, other), total);
    }
    return sum_of(total);
}

// y[N] = W[N, K] x[K], W in blocks along its rows.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const Block* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t) {
    int64_t blocks = K / 32;
    for (int64_t n = 0; n < N; ++n) y[n] = dot(blocks, W + n * blocks, x);
}
