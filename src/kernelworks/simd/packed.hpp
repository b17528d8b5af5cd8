// Packed formats: how a block of numbers lies in bytes, decoded in registers and encoded. The definitions are those of
// contract/packed_formats.py; a format is one struct here and one line in `with_format`.
//
//     BLOCK, BYTES          numbers of a block, bytes that they take
//     decode(p, w)          the BLOCK numbers at p, as BLOCK / LANES vectors; each is the float32 that the format defines
//     plain(p, w)           the same, one by one
//     encode(x, p)          BLOCK floats to BYTES bytes
//     codes(p), ZERO        the 32 numbers before they are scaled: bytes without sign, from which ZERO is taken
#pragma once

#include "simd.hpp"

namespace kw {

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

struct Q8_0 {  // scale, 32 numbers of 8 bits
    static constexpr int BLOCK = 32, BYTES = 34, ZERO = 128;
#if defined(__AVX2__)
    static __m256i codes(const uint8_t* p) {
        return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 2)), _mm256_set1_epi8(-128));
    }
#endif
    static void decode(const uint8_t* p, vf* w) {
        const vf scale = splat(half_at(p));
#pragma GCC unroll 8
        for (int i = 0; i < BLOCK / LANES; ++i) w[i] = from_int8(p + 2 + i * LANES) * scale;
    }
    static void plain(const uint8_t* p, float* w) {
        for (int i = 0; i < BLOCK; ++i) w[i] = static_cast<float>(static_cast<int8_t>(p[2 + i])) * half_at(p);
    }
    static void encode(const float* x, uint8_t* p) {
        float largest = 0.0f;
        for (int i = 0; i < BLOCK; ++i) {
            const float size = __builtin_fabsf(x[i]);
            largest = largest >= size || largest != largest ? largest : size;
        }
        const float scale = largest / 127.0f, times = inverse(scale);
        put_half(scale, p);
        for (int i = 0; i < BLOCK; ++i) {  // to nearest, halves away from zero
            const float scaled = x[i] * times, size = __builtin_fabsf(scaled), floor = __builtin_floorf(size);
            const float rounded = floor + __builtin_floorf(2.0f * (size - floor));
            p[2 + i] = static_cast<uint8_t>(whole(scaled < 0.0f ? -rounded : rounded));
        }
    }
};

// The element of the largest magnitude with its sign; of several the first, and a NaN where there is one.
inline float first_largest(const float* x, int n) {
    float found = x[0];
    for (int i = 1; i < n; ++i) {
        const bool more = !(__builtin_fabsf(x[i]) <= __builtin_fabsf(found));
        found = more && found == found ? x[i] : found;
    }
    return found;
}

// 16 bytes of two nibbles, the low ones the first half of a block, as whole numbers less `zero`.
inline void from_nibbles(const uint8_t* p, vf* w, int zero) {
#if defined(__AVX512F__)
    // The permutation looks at the lowest four bits of each lane alone.
    const vf table = __builtin_convertvector(lane_index() - zero, vf);
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    w[0] = (vf)_mm512_permutexvar_ps(both, (__m512)table);
    w[1] = (vf)_mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), (__m512)table);
#elif defined(__AVX2__)
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), mask = _mm_set1_epi8(15);
    const __m128i less = _mm_set1_epi8(static_cast<char>(zero));
    const __m128i low = _mm_sub_epi8(_mm_and_si128(both, mask), less);
    const __m128i high = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(both, 4), mask), less);
    w[0] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low));
    w[1] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(low, 8)));
    w[2] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high));
    w[3] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(high, 8)));
#else
    for (int i = 0; i < 32; ++i) w[i / LANES][i % LANES] = (i < 16 ? p[i] & 15 : p[i - 16] >> 4) - zero;
#endif
}

struct Q4_0 {  // scale, 32 numbers of 4 bits, from which 8 is taken
    static constexpr int BLOCK = 32, BYTES = 18, ZERO = 8;
#if defined(__AVX2__)
    static __m256i codes(const uint8_t* p) {
        const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 2));
        return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), _mm256_set1_epi8(15));
    }
#endif
    static void decode(const uint8_t* p, vf* w) {
        const vf scale = splat(half_at(p));
        from_nibbles(p + 2, w, 8);
#pragma GCC unroll 8
        for (int i = 0; i < BLOCK / LANES; ++i) w[i] *= scale;
    }
    static void plain(const uint8_t* p, float* w) {
        for (int i = 0; i < 16; ++i) {
            w[i] = static_cast<float>((p[2 + i] & 15) - 8) * half_at(p);
            w[16 + i] = static_cast<float>((p[2 + i] >> 4) - 8) * half_at(p);
        }
    }
    static void encode(const float* x, uint8_t* p) {
        const float scale = first_largest(x, BLOCK) / -8.0f, times = inverse(scale);
        put_half(scale, p);
        auto nibble = [&](int i) {
            const int32_t n = whole(x[i] * times + 8.5f);
            return n < 15 ? n : 15;
        };
        for (int i = 0; i < 16; ++i) p[2 + i] = static_cast<uint8_t>(nibble(i) | nibble(i + 16) << 4);
    }
};

struct Q5_0 {  // scale, the fifth bits of 32 numbers, their lower four as in Q4_0; 16 is taken from each
    static constexpr int BLOCK = 32, BYTES = 22, ZERO = 16;
#if defined(__AVX2__)
    static __m256i codes(const uint8_t* p) {
        int32_t bits;
        std::memcpy(&bits, p + 2, 4);
        const __m256i of_byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
        const __m256i places = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
        const __m256i here = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), of_byte), places);
        const __m256i fifth = _mm256_and_si256(_mm256_cmpeq_epi8(here, places), _mm256_set1_epi8(16));
        return _mm256_or_si256(Q4_0::codes(p + 4), fifth);
    }
#endif
    static void decode(const uint8_t* p, vf* w) {
        const vf scale = splat(half_at(p));
        int8_t whole[BLOCK];
#if defined(__AVX2__)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole), _mm256_sub_epi8(codes(p), _mm256_set1_epi8(ZERO)));
#else
        for (int i = 0; i < BLOCK; ++i) whole[i] = static_cast<int8_t>(number(p, i));
#endif
#pragma GCC unroll 8
        for (int i = 0; i < BLOCK / LANES; ++i) w[i] = from_int8(whole + i * LANES) * scale;
    }
    static int number(const uint8_t* p, int i) {
        const int low = i < 16 ? p[6 + i] & 15 : p[6 + i - 16] >> 4;
        return (low | (p[2 + i / 8] >> i % 8 & 1) << 4) - ZERO;
    }
    static void plain(const uint8_t* p, float* w) {
        for (int i = 0; i < BLOCK; ++i) w[i] = static_cast<float>(number(p, i)) * half_at(p);
    }
    static void encode(const float* x, uint8_t* p) {
        const float scale = first_largest(x, BLOCK) / -16.0f, times = inverse(scale);
        put_half(scale, p);
        uint32_t fifth = 0;
        for (int i = 0; i < BLOCK; ++i) {
            const int32_t n = whole(x[i] * times + 16.5f), code = n < 31 ? n : 31;
            fifth |= static_cast<uint32_t>(code >> 4) << i;
            uint8_t* to = p + 6 + i % 16;
            *to = static_cast<uint8_t>(i < 16 ? code & 15 : *to | (code & 15) << 4);
        }
        std::memcpy(p + 2, &fifth, 4);
    }
};

// f(format) of the format with GGML's number.
template <class Function>
inline void with_format(int64_t number, Function f) {
    switch (number) {
        case 2: return f(Q4_0{});
        case 6: return f(Q5_0{});
        default: return f(Q8_0{});
    }
}

}  // namespace kw
