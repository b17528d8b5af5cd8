// What packed formats have in common: scales in float16, codes of a few bits each, and how numbers come from them.
//
// Numbers are decoded 32 at a time, a group; a block has one or several. A format is a struct (blocks.hpp,
// superblocks.hpp):
//
//     BLOCK, BYTES               numbers of a block, bytes that they take
//     ZERO                       what is taken from a code
//     SCALED, OFFSET             numbers that a scale is for, 32 or 16; whether something is added to each group
//     factors(p, scale, offset)  the scales of the block at p, one for each SCALED numbers, and what is added, one for each group
//     code(p, i)                 the code of number i, without sign
//     codes(p, group)            those of a group, as bytes
//     encode(x, p)               BLOCK floats to BYTES bytes
//
// A number is (code - ZERO) scale + offset. The product is exact in float32, so that it does not matter how it is added.
#pragma once

#include "../simd.hpp"

namespace kw {

constexpr int GROUP = 32;

inline float half_at(const uint8_t* p) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    f16 half;
    std::memcpy(&half, &bits, 2);
    return static_cast<float>(half);
#endif
}

// One NaN for all, so that the bytes are the same wherever they are made.
inline void put_half(float x, uint8_t* p) {
    uint16_t bits = 0x7e00;
#if defined(__F16C__)
    if (x == x) bits = static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#else
    f16 half = static_cast<f16>(x);
    if (x == x) std::memcpy(&bits, &half, 2);
#endif
    std::memcpy(p, &bits, 2);
}

// LANES whole numbers of 8 bits.
inline vf from_int8(const void* p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
#else
    vf x;
    for (int i = 0; i < LANES; ++i) x[i] = static_cast<const int8_t*>(p)[i];
    return x;
#endif
}

inline float inverse(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

// What is no number is 0, as is what is too large for one.
inline int32_t whole(float x) { return __builtin_fabsf(x) < 1e9f ? static_cast<int32_t>(x) : 0; }

// ---------------------------------------------------------------- codes

#if defined(__AVX2__)
inline __m256i bytes_at(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// 16 bytes of two nibbles each, the low ones first.
inline __m256i both_nibbles(const uint8_t* p) {
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), _mm256_set1_epi8(15));
}

// The bits of each byte from `shift` on that `mask` leaves.
inline __m256i bits_of(__m256i bytes, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi16(bytes, shift), _mm256_set1_epi8(static_cast<char>(mask)));
}

// 32 bits as bytes of 16 or 0.
inline __m256i fifth_bits(const uint8_t* p) {
    int32_t bits;
    std::memcpy(&bits, p, 4);
    const __m256i of_byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i places = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i here = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), of_byte), places);
    return _mm256_and_si256(_mm256_cmpeq_epi8(here, places), _mm256_set1_epi8(16));
}
#endif

inline int nibble(const uint8_t* p, int i) { return i < 16 ? p[i] & 15 : p[i - 16] >> 4; }

// ---------------------------------------------------------------- from codes to numbers

// What the numbers of a block are multiplied by, and what is added.
template <class F>
struct Factors {
    static constexpr int GROUPS = F::BLOCK / GROUP, SCALES = F::BLOCK / F::SCALED;
    alignas(32) float scale[SCALES];
    alignas(32) float offset[F::OFFSET ? GROUPS : 1];
    explicit Factors(const uint8_t* p) { F::factors(p, scale, offset); }
    float scale_at(int group, int half) const { return scale[F::SCALED == GROUP ? group : 2 * group + half]; }
};

// The numbers of a group of the block at p, as GROUP / LANES vectors.
template <class F>
inline void decode(const uint8_t* p, const Factors<F>& by, int group, vf* w) {
    constexpr int V = GROUP / LANES;
    if constexpr (requires { F::decode(p, by, group, w); }) return F::decode(p, by, group, w);
    int8_t numbers[GROUP];
#if defined(__AVX2__)
    const __m256i less = _mm256_sub_epi8(F::codes(p, group), _mm256_set1_epi8(static_cast<char>(F::ZERO)));
#if defined(__AVX512F__)
    w[0] = (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(less)));
    w[1] = (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(less, 1)));
#else
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(numbers), less);
#endif
#else
    for (int i = 0; i < GROUP; ++i) numbers[i] = static_cast<int8_t>(F::code(p, group * GROUP + i) - F::ZERO);
#endif
#pragma GCC unroll 8
    for (int i = 0; i < V; ++i) {
        if constexpr (LANES < 16) w[i] = from_int8(numbers + i * LANES);
        const vf scale = splat(by.scale_at(group, i * LANES / 16));
        if constexpr (F::OFFSET)
            w[i] = fma(w[i], scale, splat(by.offset[group]));
        else
            w[i] *= scale;
    }
}

// The numbers of the block at p, one by one.
template <class F>
inline void plain(const uint8_t* p, float* w) {
    const Factors<F> by(p);
    for (int i = 0; i < F::BLOCK; ++i) {
        w[i] = static_cast<float>(F::code(p, i) - F::ZERO) * by.scale[i / F::SCALED];
        if constexpr (F::OFFSET) w[i] += by.offset[i / GROUP];
    }
}

#if defined(__AVX512F__)
// 32 numbers of 4 bits, looked up: the permutation looks at the lowest four bits of each lane alone.
inline vf of_table(__m512i codes, vf table) { return (vf)_mm512_permutexvar_ps(codes, (__m512)table); }
inline __m512i widened(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// 16 bytes of two nibbles each.
inline void from_nibbles(const uint8_t* p, vf table, vf* w) {
    const __m512i both = widened(p);
    w[0] = of_table(both, table);
    w[1] = of_table(_mm512_srli_epi32(both, 4), table);
}
#endif

}  // namespace kw
