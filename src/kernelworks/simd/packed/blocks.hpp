// Packed formats whose blocks are 32 numbers (numbers.hpp says what a format has).
#pragma once

#include "numbers.hpp"
#include "searches.hpp"

namespace kw {

struct Q8_0 {  // scale, 32 numbers of 8 bits
    static constexpr int BLOCK = 32, BYTES = 34, ZERO = 128, SCALED = 32;
    static constexpr bool OFFSET = false;
    static void factors(const uint8_t* p, float* scale, float*) { scale[0] = half_at(p); }
    static int code(const uint8_t* p, int i) { return p[2 + i] ^ 128; }
#if defined(__AVX2__)
    static __m256i codes(const uint8_t* p, int) { return _mm256_xor_si256(bytes_at(p + 2), _mm256_set1_epi8(-128)); }
#endif
    static void decode(const uint8_t* p, const Factors<Q8_0>& by, int, vf* w) {
        const vf scale = splat(by.scale[0]);
#pragma GCC unroll 8
        for (int i = 0; i < BLOCK / LANES; ++i) w[i] = from_int8(p + 2 + i * LANES) * scale;
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

// ---------------------------------------------------------------- 4 and 5 bits

// Where numbers of 4 bits lie, and the fifth of 5: HEAD bytes come first. In the lowest four bits the first half of a
// block lies before the second.
template <int HEAD, int BITS>
struct Nibbles {
    static constexpr int BLOCK = 32, BYTES = HEAD + (BITS == 5 ? 20 : 16), LOW = BYTES - 16, SCALED = 32;
    static int code(const uint8_t* p, int i) {
        const int low = nibble(p + LOW, i);
        return BITS == 5 ? low | (p[HEAD + i / 8] >> i % 8 & 1) << 4 : low;
    }
#if defined(__AVX2__)
    static __m256i codes(const uint8_t* p, int) {
        const __m256i low = both_nibbles(p + LOW);
        return BITS == 5 ? _mm256_or_si256(low, fifth_bits(p + HEAD)) : low;
    }
#endif
    // code_of(i) for each of the 32 numbers.
    template <class Code>
    static void put(Code code_of, uint8_t* p) {
        uint32_t fifth = 0;
        for (int i = 0; i < BLOCK; ++i) {
            const int code = code_of(i);
            fifth |= static_cast<uint32_t>(code >> 4) << i;
            uint8_t* to = p + LOW + i % 16;
            *to = static_cast<uint8_t>(i < 16 ? code & 15 : *to | (code & 15) << 4);
        }
        if (BITS == 5) std::memcpy(p + HEAD, &fifth, 4);
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

template <int BITS>
struct Symmetric : Nibbles<2, BITS> {  // scale; half of the range is taken from each number
    using N = Nibbles<2, BITS>;
    static constexpr int ZERO = 1 << (BITS - 1);
    static constexpr bool OFFSET = false;
    static void factors(const uint8_t* p, float* scale, float*) { scale[0] = half_at(p); }
    static void encode(const float* x, uint8_t* p) {
        const float scale = first_largest(x, N::BLOCK) / -static_cast<float>(ZERO), times = inverse(scale);
        put_half(scale, p);
        N::put(
            [&](int i) {
                const int32_t n = whole(x[i] * times + (static_cast<float>(ZERO) + 0.5f));
                return n < 2 * ZERO - 1 ? n : 2 * ZERO - 1;
            },
            p);
    }
};

template <int BITS>
struct Ranged : Nibbles<4, BITS> {  // scale and least number, which is added
    using N = Nibbles<4, BITS>;
    static constexpr int ZERO = 0, MOST = (1 << BITS) - 1;
    static constexpr bool OFFSET = true;
    static void factors(const uint8_t* p, float* scale, float* offset) {
        scale[0] = half_at(p);
        offset[0] = half_at(p + 2);
    }
    static void encode(const float* x, uint8_t* p) {
        float least = x[0], most = x[0];
        for (int i = 1; i < N::BLOCK; ++i) {
            least = x[i] < least || x[i] != x[i] ? x[i] : least;
            most = x[i] > most || x[i] != x[i] ? x[i] : most;
        }
        const float scale = (most - least) / static_cast<float>(MOST), times = inverse(scale);
        put_half(scale, p);
        put_half(least, p + 2);
        N::put(
            [&](int i) {
                const int32_t n = whole((x[i] - least) * times + 0.5f);
                return n < MOST ? n : MOST;
            },
            p);
    }
};

struct Q4_0 : Symmetric<4> {
#if defined(__AVX512F__)
    static void decode(const uint8_t* p, const Factors<Q4_0>& by, int, vf* w) {
        from_nibbles(p + LOW, __builtin_convertvector(lane_index() - ZERO, vf) * splat(by.scale[0]), w);
    }
#endif
};
struct Q5_0 : Symmetric<5> {};
struct Q4_1 : Ranged<4> {
#if defined(__AVX512F__)
    static void decode(const uint8_t* p, const Factors<Q4_1>& by, int, vf* w) {
        const vf table = fma(__builtin_convertvector(lane_index(), vf), splat(by.scale[0]), splat(by.offset[0]));
        from_nibbles(p + LOW, table, w);
    }
#endif
};
struct Q5_1 : Ranged<5> {};

// ---------------------------------------------------------------- 4 bits that choose from a table

constexpr int8_t LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct IQ4_NL : Nibbles<2, 4> {  // scale, 32 choices of 4 bits
    static constexpr int ZERO = 128;
    static constexpr bool OFFSET = false;
    static void factors(const uint8_t* p, float* scale, float*) { scale[0] = half_at(p); }
    static int code(const uint8_t* p, int i) { return LEVELS[nibble(p + LOW, i)] + ZERO; }
#if defined(__AVX2__)
    static __m256i codes(const uint8_t* p, int) {
        const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(LEVELS));
        const __m256i shifted = _mm256_xor_si256(_mm256_set_m128i(levels, levels), _mm256_set1_epi8(-128));
        return _mm256_shuffle_epi8(shifted, both_nibbles(p + LOW));
    }
#endif
    static void encode(const float* x, uint8_t* p) {
        float largest = 0.0f, size = 0.0f;
        for (int i = 0; i < BLOCK; ++i)
            if (__builtin_fabsf(x[i]) > size) {
                size = __builtin_fabsf(x[i]);
                largest = x[i];
            }
        const bool finite = all_finite(x, BLOCK);
        if (!finite || size < LEAST_OF_GROUP) {
            std::memset(p, 0, BYTES);
            put_half(finite ? 0.0f : __builtin_nanf(""), p);
            return;
        }
        const float times = 1.0f / (largest / static_cast<float>(LEVELS[0]));
        float sum_qx = 0.0f, sum_q2 = 0.0f;
        int codes[BLOCK];
        for (int i = 0; i < BLOCK; ++i) {
            codes[i] = nearest_level(LEVELS, times * x[i]);
            const float q = static_cast<float>(LEVELS[codes[i]]), w = x[i] * x[i];
            sum_qx += w * q * x[i];
            sum_q2 += w * q * q;
        }
        put_half(sum_q2 > 0.0f ? sum_qx / sum_q2 : 0.0f, p);
        put([&](int i) { return codes[i]; }, p);
    }
#if defined(__AVX512F__)
    static void decode(const uint8_t* p, const Factors<IQ4_NL>& by, int, vf* w) {
        from_nibbles(p + LOW, from_int8(LEVELS) * splat(by.scale[0]), w);
    }
#endif
};

}  // namespace kw
