// The gradients of attention of packed sequences: attention's, one thread for a sequence and key-value head at a time.
#include "../attention/backward.cpp"
#include "sequences.hpp"

namespace kw::attention {

struct Sized {
    int64_t pairs, sequence;
};

inline int longer_first(const void* a, const void* b) {
    const Sized *x = static_cast<const Sized*>(a), *y = static_cast<const Sized*>(b);
    if (x->pairs != y->pairs) return x->pairs > y->pairs ? -1 : 1;
    return x->sequence < y->sequence ? -1 : 1;
}

template <class T>
struct PackedBackward {
    const Problem& p;
    const Sequences& s;
    Heads<T> dq, dk, dv, grad, q, k, v, out;
    const float* lse;  // [H, T]

    void one(int64_t sequence, int64_t head, Workspace& w) const {
        const Problem own = s.one(p, sequence);
        const int64_t at = s.q[sequence], key = s.k[sequence], rows = s.queries(sequence) * p.group;
        const size_t size = sizeof(float) * static_cast<size_t>(own.Lk * pitch(p.D));
        const Backward<T> b{own,          from(dq, at), from(dk, key), from(dv, key), from(grad, at),
                            from(q, at),  from(k, key), from(v, key),  from(out, at), lse + at};
        std::memset(w.dK, 0, size);
        std::memset(w.dV, 0, size);
        for (int64_t r = 0; r < rows; r += TILE) b.tile(QueryRows{own, 0, head, r, rows - r < TILE ? rows - r : TILE}, w);
        b.write_rows(b.dk, w.dK, 0, head);
        b.write_rows(b.dv, w.dV, 0, head);
    }

    void run(int64_t threads) const {
        const int64_t units = s.count * p.Hkv;
        Sized* order = static_cast<Sized*>(malloc(sizeof(Sized) * static_cast<size_t>(s.count + 1)));
        for (int64_t n = 0; n < s.count; ++n) order[n] = Sized{s.queries(n) * s.keys(n), n};
        qsort(order, static_cast<size_t>(s.count), sizeof(Sized), longer_first);
        const int64_t longest = s.longest();
        int64_t next = 0;
        parallel(threads < units ? threads : units, [&](int64_t, int64_t) {
            Workspace w(p.D, longest);
            for (int64_t u; (u = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;)
                one(order[u / p.Hkv].sequence, u % p.Hkv, w);
        });
        free(order);
    }
};

}  // namespace kw::attention

// varlen_attn_backward(dq, dk, dv, grad, q, k, v, out, lse, None, scale, causal, shift, window, threads, ends of queries,
// ends of keys)
KW_EXPORT(varlen_attn_backward) {
    using namespace kw::attention;
    kw::Tensor q = args.tensor(4), k = args.tensor(5);
    Problem p(q, k, args, 9);
    Sequences s(args.tensor(15), args.tensor(16));
    const int64_t threads = kw::worth(args.integer(14), 10 * s.pairs(p) * p.D, 1 << 18);
    kw::with_dtype(q.dtype, [&](auto zero) {
        using T = decltype(zero);
        auto heads = [&](int i) { return Heads<T>(args.tensor(i)); };
        PackedBackward<T>{p, s, heads(0), heads(1), heads(2), heads(3), heads(4), heads(5), heads(6), heads(7),
                          args.tensor(8).ptr<float>()}
            .run(threads);
    });
}
