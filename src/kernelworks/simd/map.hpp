// out[i] = f(i) over a run of elements, for functions of many operations: four vectors in flight, so that one's latency
// hides behind the others', and the bfloat16 rounding instruction where there is one.
//
//     kw::map<past_cache>(out, n, [&](int64_t i) { return value of elements i .. i+LANES-1; },
//                                 [&](int64_t i, int k) { the same for the first k of them; });
//
// `past_cache` is write_row's STREAM (stream.hpp), the closing fence included.
#pragma once

#include "stream.hpp"

namespace kw {

constexpr int64_t PAST_CACHE_BYTES = 8 << 20;  // outputs from here on are written past the caches

template <bool PAST_CACHE, class T>
inline void store_pair(T* p, vf a, vf b) {
#if defined(__AVX512BF16__)
    if constexpr (sizeof(T) == 2 && !__is_same(T, f16)) {
        // The instruction flushes subnormals to zero; a pair that holds one is rounded the long way.
        constexpr int SUBNORMAL = 0x20;
        if (!(_mm512_fpclass_ps_mask((__m512)a, SUBNORMAL) | _mm512_fpclass_ps_mask((__m512)b, SUBNORMAL))) [[likely]] {
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
            if constexpr (PAST_CACHE) {
                _mm512_stream_si512(reinterpret_cast<__m512i*>(p), both);
            } else {
                _mm512_storeu_si512(p, both);
            }
            return;
        }
    }
#endif
    store_two<PAST_CACHE>(p, a, b);
}

template <bool PAST_CACHE, class T, class Whole, class Part>
inline void map(T* out, int64_t n, Whole whole, Part part) {
    int64_t i = 0;
    if constexpr (PAST_CACHE) {  // up to the first whole cache line
        int64_t head = (-reinterpret_cast<intptr_t>(out) & 63) / static_cast<int64_t>(sizeof(T));
        for (head = head < n ? head : n; i < head; i += LANES) {
            const int k = static_cast<int>(head - i < LANES ? head - i : LANES);
            store(out + i, part(i, k), k);
        }
        i = head;
    }
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        const vf a = whole(i), b = whole(i + LANES), c = whole(i + 2 * LANES), d = whole(i + 3 * LANES);
        store_pair<PAST_CACHE>(out + i, a, b);
        store_pair<PAST_CACHE>(out + i + 2 * LANES, c, d);
    }
    for (; i + LANES <= n; i += LANES) store(out + i, whole(i));
    if (i < n) store(out + i, part(i, static_cast<int>(n - i)), static_cast<int>(n - i));
    if constexpr (PAST_CACHE) stream_end();
}

}  // namespace kw
