// Rows written from a function of the position, past the caches where that pays: a non-temporal store spares the read
// of a line that is about to be overwritten whole. It pays where the output is larger than the caches that would hold
// it, and costs where it is not.
//
//     kw::write_row<true>(out, n, [&](int64_t i) { return value of elements i .. i+LANES-1; },
//                                 [&](int64_t i, int k) { the same for the first k of them; });
//
// Past the caches, the body is aligned to a cache line; the head and the tail are stored as usual. A thread that
// streamed calls kw::stream_end() before it returns, so that other threads see its rows.
#pragma once

#include "simd.hpp"

namespace kw {

inline void stream_end() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#if defined(__AVX512F__) && defined(__AVX512BW__)
// Two vectors of 16-bit results as one, which halves the stores; bfloat16 also saves the narrowing, since one
// permutation picks the upper halves of both.
inline __m512i two(bf16, vf a, vf b) {
    auto rounded = [](vf x) {
        const vu u = (vu)x;
        const __m512i up = (__m512i)(u + 0x7fffu + ((u >> 16) & 1u));
        const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
        return _mm512_mask_or_epi32(up, nan, (__m512i)u, _mm512_set1_epi32(0x400000));
    };
    alignas(64) static constexpr int16_t odd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                    33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_permutex2var_epi16(rounded(a), _mm512_load_si512(odd), rounded(b));
}
inline __m512i two(f16, vf a, vf b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)round_f16(a)), (__m256i)round_f16(b), 1);
}
template <bool STREAM, class T>
inline void store_two(T* p, vf a, vf b) {
    if constexpr (sizeof(T) == 4) {
        if constexpr (STREAM) {
            _mm512_stream_ps(p, (__m512)a);
            _mm512_stream_ps(p + LANES, (__m512)b);
        } else {
            store(p, a);
            store(p + LANES, b);
        }
    } else if constexpr (STREAM) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(p), two(T{}, a, b));
    } else {
        _mm512_storeu_si512(p, two(T{}, a, b));
    }
}
#elif defined(__AVX2__)
inline void stream_one(float* p, vf x) { _mm256_stream_ps(p, (__m256)x); }
inline void stream_one(bf16* p, vf x) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)round_bf16(x)); }
inline void stream_one(f16* p, vf x) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)round_f16(x)); }
template <bool STREAM, class T>
inline void store_two(T* p, vf a, vf b) {
    if constexpr (STREAM) {
        stream_one(p, a);
        stream_one(p + LANES, b);
    } else {
        store(p, a);
        store(p + LANES, b);
    }
}
#else
template <bool STREAM, class T>
inline void store_two(T* p, vf a, vf b) {
    store(p, a);
    store(p + LANES, b);
}
#endif

// Writes n elements at `out`: whole(i) gives LANES values from element i on, part(i, k) the first k < LANES of them.
template <bool STREAM, class T, class Whole, class Part>
inline void write_row(T* out, int64_t n, Whole whole, Part part) {
    int64_t i = 0;
    if constexpr (STREAM) {
        constexpr int64_t line = 64;
        int64_t head = (-reinterpret_cast<intptr_t>(out) & (line - 1)) / static_cast<int64_t>(sizeof(T));
        if (head > n) head = n;
        for (; i + LANES <= head; i += LANES) store(out + i, whole(i));
        if (i < head) store(out + i, part(i, static_cast<int>(head - i)), static_cast<int>(head - i));
        i = head;
    }
    for (; i + 2 * LANES <= n; i += 2 * LANES) store_two<STREAM>(out + i, whole(i), whole(i + LANES));
    if (i + LANES <= n) {
        store(out + i, whole(i));
        i += LANES;
    }
    if (i < n) store(out + i, part(i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

}  // namespace kw
