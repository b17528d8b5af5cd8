// Packed formats of 4 bits whose blocks are 128 numbers, as weights of AWQ and GPTQ have them (numbers.hpp says what a
// format has): a head, then for each 32 numbers 16 bytes, the first half in the low nibbles.
#pragma once

#include "blocks.hpp"

namespace kw {

template <int HEAD>
struct Groups {
    static constexpr int BLOCK = 128, BYTES = HEAD + 64, SCALED = 32;
    static int code(const uint8_t* p, int i) { return nibble(p + HEAD + i / 32 * 16, i % 32); }
#if defined(__AVX2__)
    static __m256i codes(const uint8_t* p, int group) { return both_nibbles(p + HEAD + group * 16); }
#endif
    template <class Code>
    static void put(Code code_of, uint8_t* p) {
        for (int i = 0; i < BLOCK; ++i) {
            uint8_t* to = p + HEAD + i / 32 * 16 + i % 16;
            *to = static_cast<uint8_t>(i % 32 < 16 ? code_of(i) : *to | code_of(i) << 4);
        }
    }
};

struct INT4_128 : Groups<2> {  // scale; 8 is taken from each number
    static constexpr int ZERO = 8;
    static constexpr bool OFFSET = false;
    static void factors(const uint8_t* p, float* scale, float*) {
        for (int i = 0; i < 4; ++i) scale[i] = half_at(p);
    }
    static void encode(const float* x, uint8_t* p) {
        const float scale = first_largest(x, BLOCK) / -8.0f, times = inverse(scale);
        put_half(scale, p);
        put(
            [&](int i) {
                const int32_t n = whole(x[i] * times + 8.5f);
                return n < 15 ? n : 15;
            },
            p);
    }
#if defined(__AVX512F__)
    static void decode(const uint8_t* p, const Factors<INT4_128>& by, int group, vf* w) {
        const vf table = __builtin_convertvector(lane_index() - ZERO, vf) * splat(by.scale[group]);
        from_nibbles(p + 2 + group * 16, table, w);
    }
#endif
};

struct UINT4_128 : Groups<4> {  // scale and zero point; scale times the zero point is taken off
    static constexpr int ZERO = 0;
    static constexpr bool OFFSET = true;
    static void factors(const uint8_t* p, float* scale, float* offset) {
        for (int i = 0; i < 4; ++i) {
            scale[i] = half_at(p);
            offset[i] = -(half_at(p) * half_at(p + 2));
        }
    }
    static void encode(const float* x, uint8_t* p) {
        if (!all_finite(x, BLOCK)) {
            std::memset(p, 0, BYTES);
            put_half(__builtin_nanf(""), p);
            put_half(__builtin_nanf(""), p + 2);
            return;
        }
        float least = 0.0f, most = 0.0f;
        for (int i = 0; i < BLOCK; ++i) {
            least = x[i] < least ? x[i] : least;
            most = x[i] > most ? x[i] : most;
        }
        put_half((most - least) / 15.0f, p);
        const float scale = half_at(p);
        const int32_t zero = scale == 0.0f ? 0 : between(-nearest(least / scale), 0, 15);
        put_half(static_cast<float>(zero), p + 2);
        put([&](int i) { return scale == 0.0f ? 0 : between(nearest(x[i] / scale) + zero, 0, 15); }, p);
    }
#if defined(__AVX512F__)
    static void decode(const uint8_t* p, const Factors<UINT4_128>& by, int group, vf* w) {
        const vf table = fma(__builtin_convertvector(lane_index(), vf), splat(by.scale[group]), splat(by.offset[group]));
        from_nibbles(p + 4 + group * 16, table, w);
    }
#endif
};

}  // namespace kw
