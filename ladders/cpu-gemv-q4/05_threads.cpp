// title: Threads, shares as they come
// target: avx2
// threads: 1, all
// format: q4_0_x8
// multiples: K 32
// loads: L1 1.3, DRAM 0.5625
// hypothesis: Whoever is done with 244 rows takes the next, so the cores end together. Four streams of 61 rows lie
//   140544 bytes apart, no whole number of pages: they want different sets of the L1 cache. A core alone was bound by
//   its arithmetic, not by memory, so two are nearly twice as quick.
// predicts: 1.8
// next: Memory, if the cores are many or quick; else the eleven instructions of a block.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <immintrin.h>
#include <vector>

constexpr int ROWS = 4;
constexpr int64_t SHARE = 244;   // rows that a core takes at a time
constexpr int64_t AHEAD = 1024;  // bytes

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

// R rows that lie `apart` blocks apart; their dot products with x go to y[0], y[step], ...
template <int R>
static void dots(int64_t blocks, const Block* rows, int64_t apart, const Rounded* x, float* y, int64_t step) {
    __m256 sum[R] = {};
    for (int64_t b = 0; b < blocks; ++b)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Block* block = rows + r * apart + b;
            _mm_prefetch((const char*)block + AHEAD, _MM_HINT_T0);
            sum[r] = add(sum[r], *block, x[b]);
        }
    for (int r = 0; r < R; ++r) y[r * step] = sum_of(sum[r]);
}

// y[N] = W[N, K] x[K], W in blocks along its rows.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const Block* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t threads) {
    int64_t blocks = K / 32;
    std::vector<Rounded> rounded(blocks);  // zeros
    round_x(blocks, x, rounded.data());
#pragma omp parallel for num_threads((int)threads) schedule(dynamic)
    for (int64_t begin = 0; begin < N; begin += SHARE) {
        int64_t end = std::min(N, begin + SHARE), apart = (end - begin) / ROWS;
        for (int64_t n = begin; n < begin + apart; ++n)
            dots<ROWS>(blocks, W + n * blocks, apart * blocks, rounded.data(), y + n, apart);
        for (int64_t n = begin + apart * ROWS; n < end; ++n)
            dots<1>(blocks, W + n * blocks, 0, rounded.data(), y + n, 0);
    }
}
