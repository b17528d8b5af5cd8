// Attention of packed sequences: attention's tiles, those of all sequences and heads shared out together.
#include "../attention/simd.cpp"
#include "sequences.hpp"

namespace kw::attention {

template <class T>
struct Packed {
    const Problem& p;
    const Sequences& s;
    Heads<T> out, q, k, v;
    float* lse;  // [H, T] or null

    int64_t tiles_of(int64_t sequence, int64_t rows) const {
        return round_up(s.queries(sequence) * p.group, rows) / rows;
    }

    // ends[n]: the tiles of the first n sequences, of one key-value head.
    int64_t count(int64_t* ends, int64_t rows) const {
        ends[0] = 0;
        for (int64_t n = 0; n < s.count; ++n) ends[n + 1] = ends[n] + tiles_of(n, rows);
        return ends[s.count];
    }

    void tile(int64_t sequence, int64_t head, int64_t first, int64_t rows) const {
        const Problem own = s.one(p, sequence);
        const int64_t per_head = s.queries(sequence) * p.group, at = s.q[sequence], key = s.k[sequence];
        Prefill<T>{own, from(out, at), from(q, at), from(k, key), from(v, key), lse ? lse + at : nullptr}.tile(
            QueryRows{own, 0, head, first, per_head - first < rows ? per_head - first : rows});
    }

    void run(int64_t threads) const {
        int64_t* ends = static_cast<int64_t*>(malloc(sizeof(int64_t) * static_cast<size_t>(s.count + 1)));
        int64_t rows = TILE, tiles = count(ends, rows);
        while (rows > LANES && p.Hkv * tiles < threads) tiles = count(ends, rows /= 2);
        const int64_t units = p.Hkv * tiles;
        int64_t next = 0;
        parallel(threads < units ? threads : units, [&](int64_t, int64_t) {
            // Whoever is free takes the next tile: of one sequence and head after the other, the last rows first.
            int64_t sequence = 0;
            for (int64_t u; (u = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
                while (u >= p.Hkv * ends[sequence + 1]) ++sequence;
                const int64_t within = u - p.Hkv * ends[sequence], many = ends[sequence + 1] - ends[sequence];
                tile(sequence, within / many, (many - 1 - within % many) * rows, rows);
            }
        });
        free(ends);
    }
};

}  // namespace kw::attention

// varlen_attn(out, lse or None, q, k, v, None, scale, causal, shift, window, threads, ends of queries, ends of keys)
KW_EXPORT(varlen_attn) {
    using namespace kw::attention;
    kw::Tensor out = args.tensor(0), q = args.tensor(2), k = args.tensor(3), v = args.tensor(4);
    Problem p(q, k, args, 5);
    Sequences s(args.tensor(11), args.tensor(12));
    float* lse = args.none(1) ? nullptr : args.tensor(1).ptr<float>();
    const int64_t threads = kw::worth(args.integer(10), 4 * s.pairs(p) * p.D, 1 << 18);
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        Packed<T>{p, s, Heads<T>(out), Heads<T>(q), Heads<T>(k), Heads<T>(v), lse}.run(threads);
    });
}
