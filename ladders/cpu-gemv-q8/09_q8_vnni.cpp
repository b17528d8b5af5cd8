// title: VNNI
// target: avx512_vnni
// threads: 1, all
// format: q8_0_x8
// multiples: K 32
// loads: L1 7.06, DRAM 1.0625
// hypothesis: One instruction multiplies 64 pairs of bytes and adds them by fours to sixteen int32, two blocks at a
//   time. It too wants one side without a sign: w + 128, which is one bit turned round. That is 128 times the sum of
//   x too much, which is known before the first row is read, so the sums start at minus that. About 7 instructions a
//   block. Memory has no more to give, so again this cannot be much; what is gained is time in which the core waits.
// predicts: 1.02
// next: Few instructions are left, and still memory is not busy all the time. One row is one stream of addresses,
//   which the prefetcher follows only to the end of a page.
#include <cmath>
#include <cstdint>
#include <immintrin.h>
#include <vector>

struct Block {
    uint16_t scale;  // float16
    int8_t weights[32];
};
static_assert(sizeof(Block) == 34);

// Two blocks of x as multiples of a step that fits the largest of each block.
struct alignas(64) Pair {
    int8_t whole[64];
    int32_t start[16];  // -128 times the sum of each four
    float step[16];     // the first block's in the first eight
};

static void round_x(int64_t blocks, const float* x, Pair* to) {
    for (int64_t b = 0; b < blocks; ++b, x += 32) {
        float largest = 0;
        for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
        float inverse = largest > 0 ? 127 / largest : 0;
        Pair& pair = to[b / 2];
        for (int i = 0, at = b % 2 * 32; i < 32; ++i, ++at) {
            pair.whole[at] = (int8_t)std::lrint(x[i] * inverse);
            pair.start[at / 4] -= 128 * pair.whole[at];
            pair.step[at / 4] = largest / 127;
        }
    }
}

static __m256i load(const Block& block) { return _mm256_loadu_si256((const __m256i*)block.weights); }
static __m128 scale_of(const Block& block) { return _mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)&block)); }

// sum plus the products of two blocks with a pair of x, in float32.
static __m512 add(__m512 sum, __m512i weights, __m512 scale, const Pair& x) {
    __m512i shifted = _mm512_xor_si512(weights, _mm512_set1_epi8((char)128));
    __m512i fours = _mm512_dpbusd_epi32(_mm512_load_si512(x.start), shifted, _mm512_load_si512(x.whole));
    return _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_load_ps(x.step)), _mm512_cvtepi32_ps(fours), sum);
}

// The dot product of a row with x.
static float dot(int64_t blocks, const Block* row, const Pair* x) {
    __m512 sum = _mm512_setzero_ps();
    int64_t b = 0;
    for (; b + 2 <= blocks; b += 2) {
        __m512i weights = _mm512_inserti64x4(_mm512_castsi256_si512(load(row[b])), load(row[b + 1]), 1);
        __m512 scale = _mm512_broadcastss_ps(scale_of(row[b]));
        scale = _mm512_mask_broadcastss_ps(scale, 0xff00, scale_of(row[b + 1]));
        sum = add(sum, weights, scale, x[b / 2]);
    }
    if (b < blocks)  // the other half of the pair of x is zero
        sum = add(sum, _mm512_zextsi256_si512(load(row[b])), _mm512_broadcastss_ps(scale_of(row[b])), x[b / 2]);
    return _mm512_reduce_add_ps(sum);
}

// y[N] = W[N, K] x[K], W in blocks along its rows.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const Block* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t threads) {
    std::vector<Pair> rounded((K / 32 + 1) / 2);  // zeros
    round_x(K / 32, x, rounded.data());
#pragma omp parallel for num_threads((int)threads)
    for (int64_t n = 0; n < N; ++n) y[n] = dot(K / 32, W + n * (K / 32), rounded.data());
}
