// Attention of packed sequences, to be read: each is a problem of attention's, whose plain kernels lie beside it.
#include "../attention/scalar.cpp"
#include "sequences.hpp"

namespace kw::attention {

template <class T>
static void one_sequence(const Problem& p, const Heads<T>& out, float* lse, const Heads<T>& q, const Heads<T>& k,
                         const Heads<T>& v, int64_t queries, int64_t h) {
    for (int64_t i = 0; i < queries; ++i)
        one_query<T>(p, 0.0, nullptr, out.at(0, h, i), lse ? lse + h * p.Lq + i : nullptr, q.at(0, h, i), k, v, 0, h, i);
}

}  // namespace kw::attention

// varlen_attn(out, lse or None, q, k, v, None, scale, causal, shift, window, threads, ends of queries, ends of keys)
KW_EXPORT(varlen_attn) {
    using namespace kw::attention;
    Problem all(args.tensor(2), args.tensor(3), args, 5);
    Sequences s(args.tensor(11), args.tensor(12));
    float* lse = args.none(1) ? nullptr : args.tensor(1).ptr<float>();
    const int64_t threads = kw::worth(args.integer(10), 4 * s.pairs(all) * all.D, 1 << 18);
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        Heads<T> out(args.tensor(0)), q(args.tensor(2)), k(args.tensor(3)), v(args.tensor(4));
        kw::parallel(threads, [&](int64_t ith, int64_t nth) {
            kw::Range r = kw::slice(s.count * all.H, ith, nth);
            for (int64_t n = r.begin; n < r.end; ++n) {
                const int64_t one = n / all.H, at = s.q[one], key = s.k[one];
                one_sequence<T>(s.one(all, one), from(out, at), lse ? lse + at : nullptr, from(q, at), from(k, key),
                                from(v, key), s.queries(one), n % all.H);
            }
        });
    });
}

// varlen_attn_backward(dq, dk, dv, grad, q, k, v, out, lse, None, scale, causal, shift, window, threads, ends of queries,
// ends of keys)
KW_EXPORT(varlen_attn_backward) {
    using namespace kw::attention;
    Problem all(args.tensor(4), args.tensor(5), args, 9);
    Sequences s(args.tensor(15), args.tensor(16));
    const float* lse = args.tensor(8).ptr<float>();
    kw::with_dtype(args.tensor(4).dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::parallel(args.integer(14), [&](int64_t ith, int64_t nth) {
            kw::Range r = kw::slice(s.count * all.Hkv, ith, nth);
            const size_t size = static_cast<size_t>(s.longest() * all.D);
            double* sums = static_cast<double*>(malloc(2 * sizeof(double) * (size + 1)));
            float* logs = static_cast<float*>(malloc(sizeof(float) * static_cast<size_t>(all.H * all.Lq + 1)));
            for (int64_t n = r.begin; n < r.end; ++n) {
                const int64_t one = n / all.Hkv, queries = s.queries(one), at = s.q[one];
                auto tokens = [&](int i, int64_t first) { return from(Heads<T>(args.tensor(i)), first); };
                Problem p = s.one(all, one);
                p.Lq = queries;
                for (int64_t h = 0; h < p.H; ++h)  // lse as one sequence alone would have it
                    std::memcpy(logs + h * queries, lse + h * all.Lq + at, sizeof(float) * static_cast<size_t>(queries));
                Gradients<T> x{tokens(0, at), tokens(1, s.k[one]), tokens(2, s.k[one]), tokens(3, at),
                               tokens(4, at), tokens(5, s.k[one]), tokens(6, s.k[one]), tokens(7, at), logs};
                std::memset(sums, 0, 2 * sizeof(double) * size);
                one_kv_head<T>(p, 0.0, x, 0, n % all.Hkv, sums, sums + size);
            }
            free(logs);
            free(sums);
        });
    });
}
