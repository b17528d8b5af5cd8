// title: Huge pages
// target: avx512_vnni
// threads: 1, all
// format: q8_0_x8_large
// multiples: K 32
// loads: L1 2.56, DRAM 1.0625
// hypothesis: The weights are read for every token, so it pays to ask the system once, in the first call, to move
//   them to pages of 2 MiB: it copies them within a tenth of a second, and every call after that looks up 30
//   addresses and not 15 000, and the prefetcher comes to a boundary 512 times less often. The measured peak of
//   memory is read on small pages, so it is no limit here. (Tried in a sketch before this was written down.)
// predicts: 1.04
// next: Memory, and what keeps a core from asking it for more: some ten lines can be on their way to one core at a
//   time. Only fewer bytes a weight would help.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <immintrin.h>
#include <set>
#include <sys/mman.h>
#include <vector>

constexpr int ROWS = 4;
constexpr int64_t AHEAD = 1024;  // bytes

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

// R rows that lie `apart` blocks apart; their dot products with x go to y[0], y[step], ...
template <int R>
static void dots(int64_t blocks, const Block* rows, int64_t apart, const Pair* x, float* y, int64_t step) {
    __m512 sum[R] = {};
    int64_t b = 0;
    for (; b + 2 <= blocks; b += 2)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Block* two = rows + r * apart + b;
            _mm_prefetch((const char*)two + AHEAD, _MM_HINT_T0);
            __m512i weights = _mm512_inserti64x4(_mm512_castsi256_si512(load(two[0])), load(two[1]), 1);
            __m512 scale = _mm512_broadcastss_ps(scale_of(two[0]));
            scale = _mm512_mask_broadcastss_ps(scale, 0xff00, scale_of(two[1]));
            sum[r] = add(sum[r], weights, scale, x[b / 2]);
        }
    for (int r = 0; r < R; ++r) {
        if (b < blocks) {  // the other half of the pair of x is zero
            const Block& last = rows[r * apart + b];
            sum[r] = add(sum[r], _mm512_zextsi256_si512(load(last)), _mm512_broadcastss_ps(scale_of(last)), x[b / 2]);
        }
        y[r * step] = _mm512_reduce_add_ps(sum[r]);
    }
}

// Asks the system, once for each matrix, to move it to large pages. What it cannot do is left as it is.
static void large_pages(const Block* from, int64_t bytes) {
    static std::set<const Block*> asked;
    if (!asked.insert(from).second) return;
    constexpr uintptr_t PAGE = 2 << 20;
    constexpr int COLLAPSE = 25;  // MADV_COLLAPSE, since Linux 6.1
    uintptr_t begin = ((uintptr_t)from + PAGE - 1) / PAGE * PAGE, end = ((uintptr_t)from + bytes) / PAGE * PAGE;
    if (begin < end) madvise((void*)begin, end - begin, COLLAPSE);
}

// How many rows apart the streams of a share lie: some 64, a quarter of a page more or less than whole pages.
static int64_t distance(int64_t row_bytes) {
    for (int64_t rows = 64; rows > 32; --rows)
        if (std::abs(rows * row_bytes % 2048 - 1024) <= 256) return rows;
    return 64;
}

// y[N] = W[N, K] x[K], W in blocks along its rows.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const Block* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t threads) {
    int64_t blocks = K / 32;
    std::vector<Pair> rounded((blocks + 1) / 2);  // zeros
    round_x(blocks, x, rounded.data());
    large_pages(W, N * blocks * (int64_t)sizeof(Block));
    int64_t share = ROWS * distance(blocks * (int64_t)sizeof(Block));
#pragma omp parallel for num_threads((int)threads) schedule(dynamic)
    for (int64_t begin = 0; begin < N; begin += share) {
        int64_t end = std::min(N, begin + share), apart = (end - begin) / ROWS;
        for (int64_t n = begin; n < begin + apart; ++n)
            dots<ROWS>(blocks, W + n * blocks, apart * blocks, rounded.data(), y + n, apart);
        for (int64_t n = begin + apart * ROWS; n < end; ++n)
            dots<1>(blocks, W + n * blocks, 0, rounded.data(), y + n, 0);
    }
}
