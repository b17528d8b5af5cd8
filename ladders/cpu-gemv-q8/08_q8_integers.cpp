// title: int8 dot products, x quantised too
// target: avx2
// threads: 1, all
// format: q8_0_x8
// multiples: K 32
// loads: L1 2.19, DRAM 1.0625
// hypothesis: Round x to 8 bits too, block by block, and no weight needs to be converted: one instruction multiplies
//   32 pairs of bytes and adds neighbours to 16 bits, a second adds those to 32 bits, and only their eight sums
//   become float32. The first wants one side without a sign, so it gets |w| and x with the sign of w. Some 12
//   instructions a block instead of 20: the core looks further ahead. Memory gives no more than before, so it cannot
//   be much. The price is half a step of x in each product.
// predicts: 1.05
// next: Signs cost two instructions, the two steps of the sum two more, and half of a 64-byte register is not used.
#include <cmath>
#include <cstdint>
#include <immintrin.h>
#include <vector>

struct Block {
    uint16_t scale;  // float16
    int8_t weights[32];
};
static_assert(sizeof(Block) == 34);

// x as multiples of a step that fits the largest of each block.
struct Rounded {
    float step;
    int8_t whole[32];
};

static void round_x(int64_t blocks, const float* x, Rounded* to) {
    for (int64_t b = 0; b < blocks; ++b, x += 32) {
        float largest = 0;
        for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
        float inverse = largest > 0 ? 127 / largest : 0;
        to[b].step = largest / 127;
        for (int i = 0; i < 32; ++i) to[b].whole[i] = (int8_t)std::lrint(x[i] * inverse);
    }
}

static float sum_of(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The dot product of a row with x.
static float dot(int64_t blocks, const Block* row, const Rounded* x) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 sum = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b) {
        __m256i w = _mm256_loadu_si256((const __m256i*)row[b].weights);
        __m256i signed_x = _mm256_sign_epi8(_mm256_loadu_si256((const __m256i*)x[b].whole), w);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), signed_x);  // at most 2 x 128 x 127, which fits
        __m256 fours = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
        sum = _mm256_fmadd_ps(_mm256_set1_ps(_cvtsh_ss(row[b].scale) * x[b].step), fours, sum);
    }
    return sum_of(sum);
}

// y[N] = W[N, K] x[K], W in blocks along its rows.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const Block* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t threads) {
    std::vector<Rounded> rounded(K / 32);
    round_x(K / 32, x, rounded.data());
#pragma omp parallel for num_threads((int)threads)
    for (int64_t n = 0; n < N; ++n) y[n] = dot(K / 32, W + n * (K / 32), rounded.data());
}
