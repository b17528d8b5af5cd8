// title: bfloat16 unpacked in pairs
// target: avx2
// threads: 1, all
// format: bf16
// loads: L1 6, DRAM 2
// hypothesis: Sixteen weights loaded as eight words of 32 bits are eight pairs: shifted up, a word is its even
//   element in float32, and with the lower half masked off it is the odd one. No element changes lanes, and a line is
//   two loads and not four. x is put into the same order once: eight even ones, eight odd ones. Ten steps a line and
//   not sixteen, so more lines are asked for at a time; the prefetcher asked for many of them before.
// predicts: 1.1
// next: A row is one stream of addresses. The core's prefetcher follows it, but only to the end of a 4 KiB page, and
//   must find out about the next one.
#include <bit>
#include <cstdint>
#include <vector>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32), aligned(4)));
typedef uint32_t Pairs __attribute__((vector_size(32), aligned(2)));
constexpr int LANES = 8, STEP = 4 * LANES;

static float widen(uint16_t bits) { return std::bit_cast<float>((uint32_t)bits << 16); }

// Of every 16 elements the even ones, then the odd ones.
static void by_parity(int64_t K, const float* x, float* to) {
    for (int64_t k = 0; k < K; ++k) to[k / 16 * 16 + k % 2 * 8 + k % 16 / 2] = x[k];
}

// The dot product of a row with x, which is there in both orders.
static float dot(int64_t K, const uint16_t* row, const float* x, const float* split) {
    Vector sum[4] = {};
    int64_t k = 0;
    for (; k + STEP <= K; k += STEP)
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            Pairs both = *(const Pairs*)(row + k + 16 * i);
            sum[2 * i] += (Vector)(both << 16) * *(const Vector*)(split + k + 16 * i);
            sum[2 * i + 1] += (Vector)(both & 0xffff0000u) * *(const Vector*)(split + k + 16 * i + 8);
        }
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    float total = 0;
    for (int i = 0; i < LANES; ++i) total += sum[0][i];
    for (; k < K; ++k) total += widen(row[k]) * x[k];
    return total;
}

// y[N] = W[N, K] x[K], W bfloat16, row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const uint16_t* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t threads) {
    std::vector<float> split(K + 16);
    by_parity(K, x, split.data());
#pragma omp parallel for num_threads((int)threads)
    for (int64_t n = 0; n < N; ++n) y[n] = dot(K, W + n * K, x, split.data());
}
