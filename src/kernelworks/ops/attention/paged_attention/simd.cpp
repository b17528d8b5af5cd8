// Attention over pages for many queries: the tiles of packed sequences, whose keys are looked up row by row.
#include "vectors_of_pages.hpp"

#include "../varlen_attn/simd.cpp"

namespace kw::attention {

// A tile of keys may begin in one page and end in another.
template <class T>
inline void pack_rows(float* to, PagedRow<T> from, int64_t, int64_t n, int64_t D) {
    for (int64_t i = 0; i < n; ++i, ++from.place, to += pitch(D)) {
        const Paged<T>* row = from;
        pack_row(to, row, D, 1.0f);
    }
    for (; n % 8; ++n, to += pitch(D)) std::memset(to, 0, sizeof(float) * static_cast<size_t>(pitch(D)));
}

}  // namespace kw::attention

// paged_attention(out, None, q, k, v, None, scale, causal, shift, window, threads, ends of queries, keys, blocks)
KW_EXPORT_RAN(paged_attention) {
    using namespace kw::attention;
    return with_pages(args, [](const Problem& p, const Sequences& s, int64_t threads, auto out, auto q, auto k, auto v) {
        Packed{p, s, out, q, k, v, nullptr}.run(threads);
    });
}
