// Arithmetic peaks: independent multiply-add chains in registers, no memory.
//
//   fma32(result, rounds, threads), fma64(...)    a multiply-add is 2 flop; scalar where the target is scalar
//   dot_bf16(...), dot_int8(...)                  where the target has them, else result[2] = 0
//
// result is float64[3]: seconds, threads, operations of one thread.
#include "clock.hpp"

namespace {

constexpr int CHAINS = 12;  // latency 4 times 2 units is 8; with the two constants they fit 16 registers

#if defined(__AVX2__)
using Float = kw::vf;
typedef double Double __attribute__((vector_size(kw::LANES * 4)));
inline Float multiply_add(Float a, Float b, Float c) { return kw::fma(a, b, c); }
inline Double multiply_add(Double a, Double b, Double c) {
#if defined(__AVX512F__)
    return (Double)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#else
    return (Double)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#endif
}
#else
using Float = float;
using Double = double;
template <class T>
inline T multiply_add(T a, T b, T c) {
    return a * b + c;  // contracted where the architecture always has it
}
#endif

template <class V>
inline void keep(V& x) {
#if defined(__x86_64__)
    __asm__ volatile("" : "+v"(x));
#else
    __asm__ volatile("" : "+w"(x));
#endif
}

template <class V, class Element>
void chains(kw::Args args) {
    double* result = args.tensor(0).ptr<double>();
    int64_t rounds = args.integer(1);
    kw::timed(result, args.integer(2), [&](int64_t, int64_t) {
        V half = V{} + Element(0.5), sum[CHAINS];
        keep(half);
        for (int j = 0; j < CHAINS; ++j) sum[j] = half;
        for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
            for (int j = 0; j < CHAINS; ++j) sum[j] = multiply_add(sum[j], half, half);
        for (int j = 0; j < CHAINS; ++j) keep(sum[j]);
    });
    result[2] = 2.0 * CHAINS * static_cast<double>(sizeof(V) / sizeof(Element)) * static_cast<double>(rounds);
}

#if defined(__AVX512BF16__)
void bf16_rounds(int64_t rounds) {
    __m512 sum[CHAINS] = {};
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), b = a;
    for (int64_t i = 0; i < rounds; ++i)
        for (int j = 0; j < CHAINS; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], a, b);
    for (int j = 0; j < CHAINS; ++j) keep(sum[j]);
}
#endif

#if defined(__AVX512F__)
__attribute__((target("avx512vnni"))) void int8_rounds(int64_t rounds) {
    __m512i sum[CHAINS] = {};
    __m512i a = _mm512_set1_epi8(1), b = a;
    for (int64_t i = 0; i < rounds; ++i)
        for (int j = 0; j < CHAINS; ++j) {
            sum[j] = _mm512_dpbusd_epi32(sum[j], a, b);
            __asm__ volatile("" : "+v"(sum[j]));  // or gcc folds the sum of constants
        }
}
#endif

}  // namespace

KW_EXPORT(fma32) { chains<Float, float>(args); }
KW_EXPORT(fma64) { chains<Double, double>(args); }

KW_EXPORT(dot_bf16) {
    double* result = args.tensor(0).ptr<double>();
    [[maybe_unused]] int64_t rounds = args.integer(1);
    result[2] = 0;
#if defined(__AVX512BF16__)
    kw::timed(result, args.integer(2), [&](int64_t, int64_t) { bf16_rounds(rounds); });
    result[2] = 2.0 * 32 * CHAINS * static_cast<double>(rounds);
#endif
}

KW_EXPORT(dot_int8) {
    double* result = args.tensor(0).ptr<double>();
    [[maybe_unused]] int64_t rounds = args.integer(1);
    result[2] = 0;
#if defined(__AVX512F__)
    kw::timed(result, args.integer(2), [&](int64_t, int64_t) { int8_rounds(rounds); });
    result[2] = 2.0 * 64 * CHAINS * static_cast<double>(rounds);
#endif
}
