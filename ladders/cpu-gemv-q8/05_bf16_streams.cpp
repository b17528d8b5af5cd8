// title: Row streams and software prefetch
// target: avx2
// threads: 1, all
// format: bf16
// loads: L1 3, DRAM 2
// hypothesis: Four rows at a time, each a quarter of the thread's share away from the next: four streams, so that one
//   that has just crossed into a new page does not hold up the others, and each is followed from its row's end into
//   the next row. The line that a stream will need 1 KiB from now is asked for by an instruction, across the page's
//   end too. An element of x is loaded once for four rows. Memory was busy most of the time before: a small gain. (A
//   first version, without pairs, had already gained 1.26 when the rung of pairs was put in before it.)
// predicts: 1.08
// next: Memory hands over all it can. What is left is to ask it for fewer bytes.
#include <bit>
#include <cstdint>
#include <omp.h>
#include <vector>
#pragma GCC optimize("fp-contract=fast")  // a multiplication and an addition may become one instruction

typedef float Vector __attribute__((vector_size(32), aligned(4)));
typedef uint32_t Pairs __attribute__((vector_size(32), aligned(2)));
constexpr int LANES = 8, ROWS = 4, STEP = 4 * LANES;  // a step is one line of each row
constexpr int64_t AHEAD = 1024;                       // bytes

static float widen(uint16_t bits) { return std::bit_cast<float>((uint32_t)bits << 16); }

// Of every 16 elements the even ones, then the odd ones.
static void by_parity(int64_t K, const float* x, float* to) {
    for (int64_t k = 0; k < K; ++k) to[k / 16 * 16 + k % 2 * 8 + k % 16 / 2] = x[k];
}

// R rows that lie `stride` apart; their dot products with x go to y[0], y[step], ...
template <int R>
static void dots(int64_t K, const uint16_t* rows, int64_t stride, const float* x, const float* split, float* y,
                 int64_t step) {
    Vector sum[R] = {};
    int64_t k = 0;
    for (; k + STEP <= K; k += STEP) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) __builtin_prefetch((const char*)(rows + r * stride + k) + AHEAD);
#pragma GCC unroll 2
        for (int i = 0; i < STEP; i += 16) {
            Vector even = *(const Vector*)(split + k + i), odd = *(const Vector*)(split + k + i + 8);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                Pairs both = *(const Pairs*)(rows + r * stride + k + i);
                sum[r] += (Vector)(both << 16) * even;
                sum[r] += (Vector)(both & 0xffff0000u) * odd;
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        float total = 0;
        for (int i = 0; i < LANES; ++i) total += sum[r][i];
        for (int64_t rest = k; rest < K; ++rest) total += widen(rows[r * stride + rest]) * x[rest];
        y[r * step] = total;
    }
}

// y[N] = W[N, K] x[K], W bfloat16, row-major and contiguous.
extern "C" [[gnu::visibility("default")]] void gemv(int64_t N, int64_t K, const uint16_t* __restrict W,
                                                    const float* __restrict x, float* __restrict y, int64_t threads) {
    std::vector<float> split(K + 16);
    by_parity(K, x, split.data());
#pragma omp parallel num_threads((int)threads)
    {
        int64_t ith = omp_get_thread_num(), nth = omp_get_num_threads();
        int64_t begin = N * ith / nth, end = N * (ith + 1) / nth, apart = (end - begin) / ROWS;
        for (int64_t n = begin; n < begin + apart; ++n)
            dots<ROWS>(K, W + n * K, apart * K, x, split.data(), y + n, apart);
        for (int64_t n = begin + apart * ROWS; n < end; ++n) dots<1>(K, W + n * K, 0, x, split.data(), y + n, 0);
    }
}
