// Rows written past the caches: non-temporal stores, which spare the read of a line that is about to be overwritten
// whole. They pay where the output is larger than the caches that would hold it, and cost where it is not.
//
//     kw::write_row<true>(out, n, [&](int64_t i) { return value of elements i .. i+LANES-1; },
//                                 [&](int64_t i, int k) { the same for the first k of them; });
//
// The body is aligned to what one instruction of the ISA writes; the head and the tail are stored as usual. A thread
// that streamed calls kw::stream_end() before it returns, so that other threads see its rows.
#pragma once

#include "simd.hpp"

namespace kw {

inline void stream_end() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#if defined(__AVX512F__) || defined(__AVX2__)
inline void store_past_cache(float* p, vf x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)x);
#else
    _mm256_stream_ps(p, (__m256)x);
#endif
}
inline void store_past_cache(bf16* p, vf x) {
#if defined(__AVX512F__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)round_bf16(x));
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)round_bf16(x));
#endif
}
inline void store_past_cache(f16* p, vf x) {
#if defined(__AVX512F__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)round_f16(x));
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)round_f16(x));
#endif
}
#else
template <class T>
inline void store_past_cache(T* p, vf x) {
    store(p, x);
}
#endif

// Writes n elements at `out`: whole(i) gives LANES values from element i on, part(i, k) the first k < LANES of them.
template <bool STREAM, class T, class Whole, class Part>
inline void write_row(T* out, int64_t n, Whole whole, Part part) {
    int64_t i = 0;
    if constexpr (STREAM) {
        constexpr int64_t step = LANES * sizeof(T);
        int64_t head = (-reinterpret_cast<intptr_t>(out) & (step - 1)) / static_cast<int64_t>(sizeof(T));
        if (head > n) head = n;
        if (head) store(out, part(0, static_cast<int>(head)), static_cast<int>(head));
        for (i = head; i + LANES <= n; i += LANES) store_past_cache(out + i, whole(i));
    } else {
        for (; i + LANES <= n; i += LANES) store(out + i, whole(i));
    }
    if (i < n) store(out + i, part(i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

}  // namespace kw
