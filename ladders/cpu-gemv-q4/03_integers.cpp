// title: int8 dot products, x quantised too
// target: avx2
// threads: 1
// format: q4_0_x8
// multiples: K 32
// loads: L1 2.7, DRAM 0.5625
// hypothesis: Round x to 8 bits, block by block, and no weight needs to be widened: one instruction multiplies 32
//   pairs of bytes and adds neighbours to 16 bits, a second adds those to 32 bits. The weights have no sign as they
//   lie, which is what the first wants, and the 8 that each has too much is taken away as one number that was made of
//   x before. Some eleven instructions a block and not twenty-five. The price is half a step of x in each product.
// predicts: 2
// next: The four instructions between a scale and its product: one core's work, and the other cores do nothing.
#include <cmath>
#include <cstdint>
#include <immintrin.h>
#include <vector>

struct Block {
    uint16_t scale;       // float16
    uint8_t weights[16];  // weight i below, weight i + 16 above, of each 8 too much
};
static_assert(sizeof(Block) == 18);

// x as multiples of a step that fits the largest of each block.
struct alignas(32) Rounded {
    int8_t whole[32];
    int32_t start[8];  // -8 times the sum of each four: what the weights have too much
    float step;
};

static void round_x(int64_t blocks, const float* x, Rounded* to) {
    for (int64_t b = 0; b < blocks; ++b, x += 32) {
        float largest = 0;
        for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
        float inverse = largest > 0 ? 127 / largest : 0;
        to[b].step = largest / 127;
        for (int i = 0; i < 32; ++i) {
            to[b].whole[i] = (int8_t)std::lrint(x[i] * inverse);
            to[b].start[i / 4] -= 8 * to[b].whole[i];
        }
    }
}

static float sum_of(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// sum plus the product of a block with one of x.
static __m256 add(__m256 sum, const Block& w, const Rounded& x) {
    __m128i both = _mm_loadu_si128((const __m128i*)w.weights);
    __m256i weights = _mm256_inserti128_si256(_mm256_castsi128_si256(both), _mm_srli_epi16(both, 4), 1);
    weights = _mm256_and_si256(weights, _mm256_set1_epi8(15));
    __m256i pairs = _mm256_maddubs_epi16(weights, _mm256_load_si256((const __m256i*)x.whole));  // at most 2 x 15 x 127
    __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    fours = _mm256_add_epi32(fours, _mm256_load_si256((const __m256i*)x.start));
    return _mm256_fmadd_ps(_mm256_set1_ps(_cvtsh_ss(w.scale) * x.step), _mm256_cvtepi32_ps(fours), sum);
}

// The dot product of a row with x.
static float dot(int64_t blocks, const Block* row, const Rounded* x) {
    __m256 sum = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b) sum = add(sum, row[b], x[b]);
    return sum_of(sum);
}

// y[N] = W[N, K] x[K], W in blocks along its rows.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const Block* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t) {
    int64_t blocks = K / 32;
    std::vector<Rounded> rounded(blocks);  // zeros
    round_x(blocks, x, rounded.data());
    for (int64_t n = 0; n < N; ++n) y[n] = dot(blocks, W + n * blocks, rounded.data());
}
