// The portable vector layer: one small API over GCC's vector extensions, compiled once per ISA.
//
// `vf` is a vector of LANES floats (16 with AVX-512, 8 with AVX2, 4 elsewhere). bfloat16 and float16 are storage types:
// they are widened on load and rounded to nearest even on store. Arithmetic is +, -, *, / and comparisons on `vf`
// itself. An intrinsic stands here only where the extensions cannot say it (fused multiply-add, masked tails, 2^n
// scaling, half conversions).
#pragma once

#include "kernel.hpp"

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace kw {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));
typedef _Float16 vhf __attribute__((vector_size(LANES * 2)));

// x - 0 is x for every x (0 + -0 is not), so the compiler may broadcast straight from memory.
inline vf splat(float x) { return x - vf{}; }
inline vf bits_float(vu x) { return (vf)x; }
inline vu float_bits(vf x) { return (vu)x; }

inline vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}
inline vf fnma(vf a, vf b, vf c) { return fma(-a, b, c); }  // c - a b

// Where an operand is NaN the SECOND is returned: max(x, running) drops a NaN in x, max(running, x) takes it on.
#if defined(__AVX512F__)  // the one instruction that gcc 12 does not make of the comparison below
inline vf max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
inline vf min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
inline vf max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
inline vf min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
inline vf max(vf a, vf b) { return a > b ? a : b; }
inline vf min(vf a, vf b) { return a < b ? a : b; }
#endif
inline vf abs(vf a) { return (vf)((vu)a & 0x7fffffffu); }
inline vf sqrt(vf a) {
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)a);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)a);
#else
    for (int i = 0; i < LANES; ++i) a[i] = __builtin_sqrtf(a[i]);
    return a;
#endif
}

// ---------------------------------------------------------------- loads and stores

template <class V, class T>
inline V load_bits(const T* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof(V));
    return v;
}

inline vf widen(vh h) {  // bfloat16 bits
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}
inline vf widen(vhf h) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    return __builtin_convertvector(h, vf);
#endif
}
inline vh round_bf16(vf x) {
    vu u = (vu)x;
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    vu quiet = (u >> 16) | 0x40u;
    vu kept = (u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
#if defined(__AVX512F__)
    return (vh)_mm512_cvtepi32_epi16((__m512i)kept);
#elif defined(__AVX2__)
    __m256i packed = _mm256_packus_epi32((__m256i)kept, (__m256i)kept);  // every lane is below 2^16
    return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
    return __builtin_convertvector(kept, vh);
#endif
}
inline vhf round_f16(vf x) {
#if defined(__AVX512F__)
    return (vhf)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return (vhf)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return __builtin_convertvector(x, vhf);
#endif
}

inline vf load(const float* p) { return load_bits<vf>(p); }
inline vf load(const bf16* p) { return widen(load_bits<vh>(p)); }
inline vf load(const f16* p) { return widen(load_bits<vhf>(p)); }
inline void store(float* p, vf x) { __builtin_memcpy(p, &x, sizeof x); }
inline void store(bf16* p, vf x) {
    vh h = round_bf16(x);
    __builtin_memcpy(p, &h, sizeof h);
}
inline void store(f16* p, vf x) {
    vhf h = round_f16(x);
    __builtin_memcpy(p, &h, sizeof h);
}

// Tails: 0 <= n <= LANES elements; not one byte beyond them is touched. Missing lanes read as +0.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
inline __mmask16 tail_mask(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline vf load(const float* p, int n) { return (vf)_mm512_maskz_loadu_ps(tail_mask(n), p); }
inline vf load(const bf16* p, int n) { return widen((vh)_mm256_maskz_loadu_epi16(tail_mask(n), p)); }
inline vf load(const f16* p, int n) { return widen((vhf)_mm256_maskz_loadu_epi16(tail_mask(n), p)); }
inline void store(float* p, vf x, int n) { _mm512_mask_storeu_ps(p, tail_mask(n), (__m512)x); }
inline void store(bf16* p, vf x, int n) { _mm256_mask_storeu_epi16(p, tail_mask(n), (__m256i)round_bf16(x)); }
inline void store(f16* p, vf x, int n) { _mm256_mask_storeu_epi16(p, tail_mask(n), (__m256i)round_f16(x)); }
#else
template <class T>
inline vf load(const T* p, int n) {
    T buffer[LANES] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return load(buffer);
}
template <class T>
inline void store(T* p, vf x, int n) {
    T buffer[LANES];
    store(buffer, x);
    for (int i = 0; i < n; ++i) p[i] = buffer[i];
}
#endif

// Lanes at and beyond n replaced by `fill`.
inline vi lane_index() {
    vi v;
    for (int i = 0; i < LANES; ++i) v[i] = i;
    return v;
}
inline vf keep_first(vf x, int n, float fill) { return lane_index() < n ? x : splat(fill); }

// ---------------------------------------------------------------- reductions

inline float reduce_add(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float lanes[LANES];
    __builtin_memcpy(lanes, &v, sizeof v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
#endif
}
inline float reduce_max(vf v) {  // a NaN in any lane gives NaN
    float m = v[0];
    for (int i = 1; i < LANES; ++i) m = (v[i] > m || v[i] != v[i]) ? v[i] : m;
    return m;
}

// ---------------------------------------------------------------- elementary functions

// x 2^n for |n| <= 252, exact but for the last rounding into the subnormals.
inline vf scale_by_power_of_two(vf x, vf n) {
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
    vi whole = __builtin_convertvector(n, vi), half = whole >> 1;
    return x * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
#endif
}
inline vf round_nearest(vf x) {  // |x| < 2^22
    const vf magic = splat(12582912.0f);
    vf y = x + magic;
    __asm__("" : "+v"(y));  // keeps -ffp-contract and reassociation from undoing it
    return y - magic;
}

// e^x: under 1.1 ulp over the whole range measured against float64, +inf above 88.73, 0 below -103.98, NaN kept.
// x = n ln2 + r with |r| <= ln2/2, ln2 in two parts; e^r by a degree-6 minimax polynomial.
inline vf exp(vf x) {
    x = x > 89.0f ? splat(89.0f) : x;
    x = x < -104.5f ? splat(-104.5f) : x;
    vf n = round_nearest(x * 1.44269504f);
    vf r = fnma(n, splat(0.693359375f), x);
    r = fnma(n, splat(-2.12194440e-4f), r);
    vf p = splat(1.3898866e-3f);
    p = fma(p, r, splat(8.3750887e-3f));
    p = fma(p, r, splat(4.1668225e-2f));
    p = fma(p, r, splat(1.6666430e-1f));
    p = fma(p, r, splat(4.9999997e-1f));
    p = fma(p * r, r, r) + 1.0f;
    return scale_by_power_of_two(p, n);
}

inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }

}  // namespace kw
