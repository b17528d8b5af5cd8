// title: Threads
// target: avx2
// threads: 1, all
// format: bf16
// loads: L1 6, DRAM 2
// hypothesis: Rows share nothing but x, which fits L1: each core takes a part of the rows and asks memory for its own
//   lines. If memory has room for both, that is twice the rate.
// predicts: 1.95
// next: A core looks some 200 instructions ahead, and as far as it sees it asks for lines. Sixteen steps for one line
//   of 32 weights, four of which move elements to wider lanes, show it a dozen lines. Fewer would show it more.
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
                                                    const float* __restrict x, float* __restrict y, int64_t threads) {
#pragma omp parallel for num_threads((int)threads)
    for (int64_t n = 0; n < N; ++n) y[n] = dot(K, W + n * K, x);
}
