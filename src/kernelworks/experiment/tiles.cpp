// One tile of a matrix product, kept in registers: MR rows by NR vectors of C, over all of K.
//
//   tile(out, a, b, k, rows, vectors, passes)    a [k, 8], b [k, 8 vectors]: the first `rows` and `vectors` of each step
//
// Each step of k loads NR vectors of b and MR numbers of a, and does MR NR multiply-adds with them.
#include "simd.hpp"

namespace {

constexpr int64_t LANES = sizeof(kw::vf) / sizeof(float);
constexpr int64_t ROWS = 8, VECTORS = 4;  // of a step, in memory

template <int64_t MR, int64_t NR>
float multiply(const float* a, const float* b, int64_t k, int64_t passes) {
    kw::vf c[MR][NR] = {};
    for (int64_t pass = 0; pass < passes; ++pass) {
        for (int64_t step = 0; step < k; ++step) {
            kw::vf row[NR];
            for (int64_t j = 0; j < NR; ++j)
                __builtin_memcpy(&row[j], b + step * VECTORS * LANES + j * LANES, sizeof(kw::vf));
            for (int64_t i = 0; i < MR; ++i) {
                const kw::vf factor = kw::vf{} + a[step * ROWS + i];
                for (int64_t j = 0; j < NR; ++j) c[i][j] = kw::fma(factor, row[j], c[i][j]);
            }
        }
        __asm__ volatile("" ::: "memory");
    }
    float sum = 0;
    for (int64_t i = 0; i < MR; ++i)
        for (int64_t j = 0; j < NR; ++j)
            for (int64_t lane = 0; lane < LANES; ++lane) sum += c[i][j][lane];
    return sum;
}

template <int64_t MR>
float with_vectors(int64_t vectors, const float* a, const float* b, int64_t k, int64_t passes) {
    if (vectors == 1) return multiply<MR, 1>(a, b, k, passes);
    if (vectors == 2) return multiply<MR, 2>(a, b, k, passes);
    return multiply<MR, 4>(a, b, k, passes);
}

}  // namespace

KW_EXPORT(tile) {
    const float *a = args.tensor(1).ptr<float>(), *b = args.tensor(2).ptr<float>();
    const int64_t k = args.integer(3), rows = args.integer(4), vectors = args.integer(5), passes = args.integer(6);
    const float sum = rows == 1   ? with_vectors<1>(vectors, a, b, k, passes)
                      : rows == 2 ? with_vectors<2>(vectors, a, b, k, passes)
                      : rows == 4 ? with_vectors<4>(vectors, a, b, k, passes)
                      : rows == 6 ? with_vectors<6>(vectors, a, b, k, passes)
                                  : with_vectors<8>(vectors, a, b, k, passes);
    args.tensor(0).ptr<float>()[0] = sum;
}

KW_EXPORT(lanes) { args.tensor(0).ptr<float>()[0] = static_cast<float>(LANES); }
