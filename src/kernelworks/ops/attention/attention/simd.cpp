// Attention for many queries: tiles of up to 64 rows against tiles of 64 keys, softmax kept up to date as it goes.
// Few queries have decode.cpp, gradients backward.cpp: each is built when it is first needed.
#include "tile.hpp"

namespace kw::attention {

// The running softmax of a tile of rows, one lane a row, in units of log2: maximum, sum, and whether anything was seen.
struct Softmax {
    vf maximum[TILE / LANES], sum[TILE / LANES], factor[TILE / LANES];
    vi seen[TILE / LANES];

    explicit Softmax(int64_t vectors) {
        for (int64_t v = 0; v < vectors; ++v) {
            maximum[v] = splat(-INFINITY);
            sum[v] = vf{};
            seen[v] = vi{};
        }
    }

    // S[t][row] becomes 2^(S - maximum); `factor` is what earlier sums and outputs must be multiplied with.
    __attribute__((noinline)) void update(float* S, int64_t n, int64_t vectors) {
        int64_t ld = vectors * LANES;
        for (int64_t v = 0; v < vectors; ++v) {
            float* s = S + v * LANES;
            vf largest = maximum[v];
            for (int64_t t = 0; t < n; ++t) largest = max(load(s + t * ld), largest);
            // A row that has seen nothing above -inf yet: subtract 0, so that its scores give 2^-inf = 0, not NaN.
            vf base = largest == -INFINITY ? vf{} : largest;
            vf total = {};
            for (int64_t t = 0; t < n; ++t) {
                vf e = exp2(load(s + t * ld) - base);
                store(s + t * ld, e);
                total += e;
            }
            factor[v] = exp2(maximum[v] - base);
            sum[v] = fma(sum[v], factor[v], total);
            maximum[v] = largest;
        }
    }

    // What outputs are divided by, as a factor: 0 for a row that saw no key.
    vf normaliser(int64_t v) const { return seen[v] != 0 ? 1.0f / sum[v] : vf{}; }
};

template <class T>
struct Prefill {
    const Problem& p;
    Heads<T> out, q, k, v;
    float* lse;  // [B, H, Lq] or null

    void tile(const QueryRows& rows) const {
        alignas(64) float Q[MAX_DIM * TILE], O[MAX_DIM * TILE], K[TILE * PAD_DIM], V[TILE * PAD_DIM], S[TILE * TILE];
        const int64_t vectors = rows.vectors(), ld = rows.pitch(), packed = pitch(p.D);
        pack_transposed(Q, q, rows, p.D, static_cast<float>(p.scale * 1.4426950408889634));
        std::memset(O, 0, sizeof(float) * static_cast<size_t>(round_up(p.D, 8) * ld));
        Softmax softmax(vectors);
        const int64_t first = p.first_key(rows.query(0)), end = p.end_key(rows.query(rows.count - 1));
        for (int64_t key = first; key < end; key += TILE) {
            const int64_t n = end - key < TILE ? end - key : TILE;
            pack_rows(K, k.at(rows.b, rows.kv_head, key), k.row, n, p.D);
            pack_rows(V, v.at(rows.b, rows.kv_head, key), v.row, n, p.D);
            product<false, OVERWRITE>(S, ld, K, packed, Q, ld, n, vectors, p.D);
            if (all_visible(rows, key, n)) {
                for (int64_t x = 0; x < vectors; ++x) softmax.seen[x] = vi{} - 1;
            } else {
                for_hidden(rows, key, n, [&](int64_t t, int64_t x, vi hidden) {
                    float* s = S + t * ld + x * LANES;
                    store(s, hidden != 0 ? splat(-INFINITY) : load(s));
                    softmax.seen[x] |= ~hidden;
                });
            }
            softmax.update(S, n, vectors);
            product<true, RESCALE>(O, ld, V, packed, S, ld, p.D, vectors, n, softmax.factor);
        }
        finish(rows, softmax, O);
    }

    void finish(const QueryRows& rows, const Softmax& softmax, const float* O) const {
        vf normalisers[TILE / LANES];
        for (int64_t x = 0; x < rows.vectors(); ++x) normalisers[x] = softmax.normaliser(x);
        unpack_transposed(out, O, rows, p.D, normalisers);
        if (!lse) return;
        for (int64_t r = 0; r < rows.count; ++r) {
            float* to = lse + (rows.b * p.H + rows.head(r)) * p.Lq + rows.query(r);
            float m = softmax.maximum[r / LANES][r % LANES], l = softmax.sum[r / LANES][r % LANES];
            *to = softmax.seen[r / LANES][r % LANES] ? (m + __builtin_log2f(l)) * LN2 : -INFINITY;
        }
    }

    void run(int64_t threads) const {
        const int64_t heads = p.B * p.Hkv, per_head = p.Lq * p.group;
        int64_t rows = TILE;
        while (rows > LANES && heads * (round_up(per_head, rows) / rows) < threads) rows /= 2;
        const int64_t tiles = round_up(per_head, rows) / rows, units = heads * tiles;
        int64_t next = 0;
        parallel(threads < units ? threads : units, [&](int64_t, int64_t) {
            // Whoever is free takes the next tile; under a causal mask the longest of a head come first.
            for (int64_t u; (u = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
                int64_t head = u / tiles, first = (tiles - 1 - u % tiles) * rows;
                tile(QueryRows{p, head / p.Hkv, head % p.Hkv, first, per_head - first < rows ? per_head - first : rows});
            }
        });
    }
};

}  // namespace kw::attention

// attention(out, lse or None, q, k, v, mask or None, scale, causal, shift, window, threads)
KW_EXPORT(attention) {
    using namespace kw::attention;
    kw::Tensor out = args.tensor(0), q = args.tensor(2), k = args.tensor(3), v = args.tensor(4);
    Problem p(q, k, args, 5);
    float* lse = args.none(1) ? nullptr : args.tensor(1).ptr<float>();
    const int64_t threads = kw::worth(args.integer(10), 4 * seen_pairs(p) * p.D, 1 << 18);
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        Prefill<T>{p, Heads<T>(out), Heads<T>(q), Heads<T>(k), Heads<T>(v), lse}.run(threads);
    });
}
