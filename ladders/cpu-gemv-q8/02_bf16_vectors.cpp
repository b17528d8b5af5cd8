// title: SIMD vectors and independent accumulators
// target: avx2
// threads: 1
// format: bf16
// loads: L1 6, DRAM 2
// hypothesis: Eight weights become one vector with one load and one shift, and four sums that do not wait for each
//   other hide the latency of a multiply-add. 32 weights, a line of the cache, then take about 5 cycles of
//   instructions, and one core's share of memory takes longer than that to bring a line. So memory is what is left.
// predicts: 8.5
// next: One core has only so many requests to memory under way. The other core's are not used.
#include <bit>
#include <cstdint>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32), aligned(4)));
typedef uint32_t Bits __attribute__((vector_size(32)));
typedef uint16_t Halves __attribute__((vector_size(16), aligned(2)));
constexpr int LANES = 8, CHAINS = 4;

static float widen(uint16_t bits) { return std::bit_cast<float>((uint32_t)bits << 16); }
static Vector widen(const uint16_t* from) {
    return (Vector)(__builtin_convertvector(*(const Halves*)from, Bits) << 16);
}

// The dot product of a row with x.
static float dot(int64_t K, const uint16_t* row, const float* x) {
    Vector sum[CHAINS] = {};
    int64_t k = 0;
    for (; k + CHAINS * LANES <= K; k += CHAINS * LANES)
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; ++c)
            sum[c] += widen(row + k + c * LANES) * *(const Vector*)(x + k + c * LANES);
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    float total = 0;
    for (int i = 0; i < LANES; ++i) total += sum[0][i];
    for (; k < K; ++k) total += widen(row[k]) * x[k];
    return total;
}

// y[N] = W[N, K] x[K], W bfloat16, row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const uint16_t* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t) {
    for (int64_t n = 0; n < N; ++n) y[n] = dot(K, W + n * K, x);
}
