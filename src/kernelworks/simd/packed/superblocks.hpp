// Packed formats whose blocks are 256 numbers, with scales of a few bits for parts of them, which one of float16 scales
// (numbers.hpp says what a format has).
#pragma once

#include <initializer_list>

#include "numbers.hpp"
#include "searches.hpp"

namespace kw {

// Eight scales and eight minima of 6 bits in 12 bytes: of the first four the lower bits of bytes 0 to 3 and 4 to 7; of the
// others the nibbles of bytes 8 to 11 and the upper two bits of those.
inline void six_bits(const uint8_t* p, uint8_t* scales, uint8_t* minima) {
    uint32_t low, middle, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&middle, p + 4, 4);
    std::memcpy(&high, p + 8, 4);
    const uint32_t words[4] = {
        low & 0x3f3f3f3fu, (high & 0x0f0f0f0fu) | (low >> 2 & 0x30303030u), middle & 0x3f3f3f3fu,
        (high >> 4 & 0x0f0f0f0fu) | (middle >> 2 & 0x30303030u)};
    std::memcpy(scales, words, 8);
    std::memcpy(minima, words + 2, 8);
}

inline void put_six_bits(const uint8_t* scales, const uint8_t* minima, uint8_t* p) {
    for (int i = 0; i < 4; ++i) {
        p[i] = static_cast<uint8_t>(scales[i] | scales[i + 4] >> 4 << 6);
        p[4 + i] = static_cast<uint8_t>(minima[i] | minima[i + 4] >> 4 << 6);
        p[8 + i] = static_cast<uint8_t>((scales[i + 4] & 15) | (minima[i + 4] & 15) << 4);
    }
}

// A block with a NaN or an infinity: scales of float16 that are NaN, and else zeros.
inline bool put_if_not_finite(const float* x, uint8_t* p, int bytes, std::initializer_list<int> scales) {
    if (all_finite(x, 256)) return false;
    std::memset(p, 0, static_cast<size_t>(bytes));
    for (int at : scales) put_half(__builtin_nanf(""), p + at);
    return true;
}

template <int BITS>
struct Superblock {  // scale and scale of the minima in float16, 12 bytes of both, (the fifth bits,) the lowest four bits
    static constexpr int BLOCK = 256, BYTES = BITS == 5 ? 176 : 144, LOW = BYTES - 128, HIGH = 16, ZERO = 0, SCALED = 32;
    static constexpr bool OFFSET = true;
    static void factors(const uint8_t* p, float* scale, float* offset) {
        const float times = half_at(p), less = half_at(p + 2);
        uint8_t scales[8], minima[8];
        six_bits(p + 4, scales, minima);
#if defined(__AVX2__)
        auto scaled = [](const uint8_t* six, float by) {
            const __m128i whole = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(six));
            return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(whole)), _mm256_set1_ps(by));
        };
        _mm256_store_ps(scale, scaled(scales, times));
        _mm256_store_ps(offset, _mm256_xor_ps(scaled(minima, less), _mm256_set1_ps(-0.0f)));
#else
        for (int i = 0; i < 8; ++i) {
            scale[i] = times * static_cast<float>(scales[i]);
            offset[i] = -(less * static_cast<float>(minima[i]));
        }
#endif
    }
    static void encode(const float* x, uint8_t* p) {
        if (put_if_not_finite(x, p, BYTES, {0, 2})) return;
        constexpr int MOST = (1 << BITS) - 1, STEPS = BITS == 4 ? 20 : 15;
        uint8_t codes[BLOCK], scales[8], minima[8];
        ScaledRange found[8];
        float most_scale = 0.0f, most_minimum = 0.0f;
        for (int g = 0; g < 8; ++g) {
            found[g] = search_range<MOST, STEPS>(x + g * GROUP, BITS == 4 ? -1.0f : -0.5f, codes + g * GROUP);
            most_scale = found[g].scale > most_scale ? found[g].scale : most_scale;
            most_minimum = found[g].minimum > most_minimum ? found[g].minimum : most_minimum;
        }
        const float of_scale = most_scale > 0.0f ? 63.0f / most_scale : 0.0f;
        const float of_minimum = most_minimum > 0.0f ? 63.0f / most_minimum : 0.0f;
        for (int g = 0; g < 8; ++g) {
            scales[g] = static_cast<uint8_t>(between(nearest(of_scale * found[g].scale) & 255, 0, 63));
            minima[g] = static_cast<uint8_t>(between(nearest(of_minimum * found[g].minimum) & 255, 0, 63));
        }
        put_half(most_scale / 63.0f, p);
        put_half(most_minimum / 63.0f, p + 2);
        put_six_bits(scales, minima, p + 4);
        for (int g = 0; g < 8; ++g) {
            const float scale = half_at(p) * static_cast<float>(scales[g]);
            const float minimum = half_at(p + 2) * static_cast<float>(minima[g]);
            for (int i = g * GROUP; i < (g + 1) * GROUP && scale != 0.0f; ++i)
                codes[i] = static_cast<uint8_t>(between(nearest((x[i] + minimum) / scale), 0, MOST));
        }
        if (BITS == 5) std::memset(p + HIGH, 0, 32);
        for (int i = 0; i < BLOCK; ++i) {
            const int group = i / 32;
            uint8_t* low = p + LOW + group / 2 * 32 + i % 32;
            *low = static_cast<uint8_t>(group % 2 ? *low | (codes[i] & 15) << 4 : codes[i] & 15);
            if (BITS == 5) p[HIGH + i % 32] = static_cast<uint8_t>(p[HIGH + i % 32] | codes[i] >> 4 << group);
        }
    }
    // Two groups share 32 bytes: the first has their low nibbles.
    static int code(const uint8_t* p, int i) {
        const int group = i / 32, low = p[LOW + group / 2 * 32 + i % 32] >> group % 2 * 4 & 15;
        return BITS == 5 ? low | (p[HIGH + i % 32] >> group & 1) << 4 : low;
    }
#if defined(__AVX2__)
    static __m256i codes(const uint8_t* p, int group) {
        const __m256i low = bits_of(bytes_at(p + LOW + group / 2 * 32), group % 2 * 4, 15);
        if (BITS == 4) return low;
        return _mm256_or_si256(low, _mm256_slli_epi16(bits_of(bytes_at(p + HIGH), group, 1), 4));
    }
#endif
};

struct Q4_K : Superblock<4> {
#if defined(__AVX512F__)
    static void decode(const uint8_t* p, const Factors<Q4_K>& by, int group, vf* w) {
        const vf table = fma(__builtin_convertvector(lane_index(), vf), splat(by.scale[group]), splat(by.offset[group]));
        const uint8_t* from = p + LOW + group / 2 * 32;
        const __m128i shift = _mm_cvtsi32_si128(group % 2 * 4);
        w[0] = of_table(_mm512_srl_epi32(widened(from), shift), table);
        w[1] = of_table(_mm512_srl_epi32(widened(from + 16), shift), table);
    }
#endif
};
struct Q5_K : Superblock<5> {};

// The lowest four bits (128 bytes), the upper two (64), 16 scales of 8 bits with sign, the scale of those in float16. In
// each half of 128 numbers two groups share 32 bytes of nibbles, the first and the third and the second and the fourth;
// all four share 32 bytes of upper bits.
struct Q6_K {
    static constexpr int BLOCK = 256, BYTES = 210, ZERO = 32, SCALED = 16, HIGH = 128, SCALES = 192, SCALE = 208;
    static constexpr bool OFFSET = false;
    static void factors(const uint8_t* p, float* scale, float*) {
        const float times = half_at(p + SCALE);
#pragma GCC unroll 4
        for (int i = 0; i < 16; i += LANES) store(scale + i, from_int8(p + SCALES + i) * times);
    }
    static void encode(const float* x, uint8_t* p) {
        if (put_if_not_finite(x, p, BYTES, {SCALE})) return;
        uint8_t codes[BLOCK];
        float found[16], largest = 0.0f;
        for (int part = 0; part < 16; ++part) {
            found[part] = search_scale(x + part * 16, codes + part * 16);
            if (__builtin_fabsf(found[part]) > __builtin_fabsf(largest)) largest = found[part];
        }
        std::memset(p, 0, BYTES);
        if (__builtin_fabsf(largest) < LEAST_OF_GROUP) return;
        const float times = -128.0f / largest;
        put_half(1.0f / times, p + SCALE);
        for (int part = 0; part < 16; ++part) {
            const int32_t rounded = nearest(times * found[part]);
            p[SCALES + part] = static_cast<uint8_t>(rounded < 127 ? rounded : 127);
            const float scale = half_at(p + SCALE) * static_cast<float>(static_cast<int8_t>(p[SCALES + part]));
            for (int i = part * 16; i < part * 16 + 16 && scale != 0.0f; ++i)
                codes[i] = static_cast<uint8_t>(between(nearest(x[i] / scale), -32, 31) + 32);
        }
        for (int i = 0; i < BLOCK; ++i) {
            const int half = i / 128, group = i / 32 % 4;
            uint8_t* low = p + half * 64 + group % 2 * 32 + i % 32;
            uint8_t* high = p + HIGH + half * 32 + i % 32;
            *low = static_cast<uint8_t>(*low | (codes[i] & 15) << group / 2 * 4);
            *high = static_cast<uint8_t>(*high | codes[i] >> 4 << group * 2);
        }
    }
    static int code(const uint8_t* p, int i) {
        const int half = i / 128, group = i / 32 % 4;
        const int low = p[half * 64 + group % 2 * 32 + i % 32] >> group / 2 * 4 & 15;
        return low | (p[HIGH + half * 32 + i % 32] >> group * 2 & 3) << 4;
    }
#if defined(__AVX2__)
    static __m256i codes(const uint8_t* p, int group) {
        const int half = group / 4, of = group % 4;
        const __m256i low = bits_of(bytes_at(p + half * 64 + of % 2 * 32), of / 2 * 4, 15);
        return _mm256_or_si256(low, _mm256_slli_epi16(bits_of(bytes_at(p + HIGH + half * 32), of * 2, 3), 4));
    }
#endif
};

}  // namespace kw
