// Attention over pages, to be read: each sequence is a problem of attention's, whose plain kernels lie beside it.
#include "pages.hpp"

#include "../varlen_attn/scalar.cpp"

namespace kw::attention {

template <class T>
static float dot(const Paged<T>* a, PagedRow<T> b, int64_t n) {
    const Paged<T>* row = b;
    return dot(&a->value, &row->value, n);
}

}  // namespace kw::attention

// paged_attention(out, None, q, k, v, None, scale, causal, shift, window, threads, ends of queries, keys, blocks)
KW_EXPORT_RAN(paged_attention) {
    using namespace kw::attention;
    return with_pages(args, [](const Problem& p, const Sequences& s, int64_t threads, auto out, auto q, auto k, auto v) {
        kw::parallel(threads, [&](int64_t ith, int64_t nth) {
            kw::Range r = kw::slice(s.count * p.H, ith, nth);
            for (int64_t n = r.begin; n < r.end; ++n) {
                const int64_t one = n / p.H, at = s.q[one], key = s.k[one];
                one_sequence(s.one(p, one), from(out, at), nullptr, from(q, at), from(k, key), from(v, key),
                             s.queries(one), n % p.H);
            }
        });
    });
}
