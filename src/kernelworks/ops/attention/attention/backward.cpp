// The gradients of attention, tile by tile: scores are formed again and turned into probabilities with the saved
// logsumexp, so nothing of size Lq x Lk is kept.
//
//     P = exp(S - lse)      dV = P^T dO      dS = P (dO V^T - delta), delta = sum_d dO O
//     dQ = scale dS K       dK = scale dS^T Q
//
// One thread works on one key-value head at a time, all query heads of its group together, so that dK and dV are
// summed in one place and in one order.
#include <cstdlib>

#include "tile.hpp"

namespace kw::attention {

// Scratch of one thread. `rows` are float32 rows of pitch(D), `lanes` are [d or key][row of the query tile].
struct Workspace {
    float *Q, *G, *K, *V, *sum, *dK, *dV;       // rows
    float *QT, *GT, *dQT, *P, *dS;              // lanes
    float* all;

    Workspace(int64_t D, int64_t Lk) {
        const int64_t row = pitch(D), tile = TILE * row, lanes = round_up(D, 8) * TILE, square = TILE * TILE;
        all = static_cast<float*>(
            aligned_alloc(64, sizeof(float) * static_cast<size_t>(5 * tile + 2 * Lk * row + 3 * lanes + 2 * square)));
        float* next = all;
        auto take = [&](int64_t n) { return next += n, next - n; };
        Q = take(tile), G = take(tile), K = take(tile), V = take(tile), sum = take(tile);
        QT = take(lanes), GT = take(lanes), dQT = take(lanes), P = take(square), dS = take(square);
        dK = take(Lk * row), dV = take(Lk * row);
    }
    Workspace(const Workspace&) = delete;
    ~Workspace() { free(all); }
};

template <class T>
struct Backward {
    const Problem& p;
    Heads<T> dq, dk, dv, grad, q, k, v, out;
    const float* lse;

    // delta and the logsumexp of each row, in lanes; an idle lane gets +inf, so that its probabilities are 0.
    void row_constants(const QueryRows& rows, vf* delta, vf* log2_sum) const {
        for (int64_t r = 0; r < rows.pitch(); ++r) {
            float sum = 0, log = INFINITY;
            if (r < rows.count) {
                const T *g = rows.at(grad, r), *o = rows.at(out, r);
                vf total = {};
                for (int64_t d = 0; d < p.D; d += LANES)
                    total = fma(load(g + d, lanes_left(p.D - d)), load(o + d, lanes_left(p.D - d)), total);
                sum = reduce_add(total);
                log = lse[(rows.b * p.H + rows.head(r)) * p.Lq + rows.query(r)] * LOG2E;
            }
            delta[r / LANES][r % LANES] = sum;
            log2_sum[r / LANES][r % LANES] = log;
        }
    }

    // P and dS of one tile of keys, from scores (in P) and dO V^T (in dS).
    void probabilities(const QueryRows& rows, int64_t key, int64_t n, const vf* delta, const vf* log2_sum,
                       Workspace& w) const {
        const int64_t ld = rows.pitch();
        for (int64_t x = 0; x < rows.vectors(); ++x)
            for (int64_t t = 0; t < n; ++t) {
                float *P = w.P + t * ld + x * LANES, *dS = w.dS + t * ld + x * LANES;
                vf e = exp2(load(P) - log2_sum[x]);
                store(P, e);
                store(dS, e * (load(dS) - delta[x]));
            }
        if (all_visible(rows, key, n)) return;
        for_hidden(rows, key, n, [&](int64_t t, int64_t x, vi hidden) {
            float *P = w.P + t * ld + x * LANES, *dS = w.dS + t * ld + x * LANES;
            store(P, hidden != 0 ? vf{} : load(P));
            store(dS, hidden != 0 ? vf{} : load(dS));
        });
    }

    // to[key] += sum over rows of A[key][row] X[row]
    void add_to_keys(float* to, const float* A, int64_t ld, const float* X, int64_t n, int64_t rows, float* sum) const {
        const int64_t row = pitch(p.D);
        product<false, OVERWRITE>(sum, row, A, ld, X, row, n, round_up(p.D, LANES) / LANES, rows);
        for (int64_t t = 0; t < n; ++t)
            for (int64_t d = 0; d < p.D; d += LANES)
                store(to + t * row + d, load(to + t * row + d) + load(sum + t * row + d));
    }

    void tile(const QueryRows& rows, Workspace& w) const {
        const int64_t vectors = rows.vectors(), ld = rows.pitch(), row = pitch(p.D);
        vf delta[TILE / LANES], log2_sum[TILE / LANES], scale[TILE / LANES];
        pack_transposed(w.QT, q, rows, p.D, static_cast<float>(p.scale * 1.4426950408889634));
        pack_transposed(w.GT, grad, rows, p.D, 1.0f);
        for (int64_t r = 0; r < rows.count; ++r) {
            pack_row(w.Q + r * row, rows.at(q, r), p.D, static_cast<float>(p.scale));
            pack_row(w.G + r * row, rows.at(grad, r), p.D, 1.0f);
        }
        row_constants(rows, delta, log2_sum);
        std::memset(w.dQT, 0, sizeof(float) * static_cast<size_t>(round_up(p.D, 8) * ld));
        const int64_t first = p.first_key(rows.query(0)), end = p.end_key(rows.query(rows.count - 1));
        for (int64_t key = first; key < end; key += TILE) {
            const int64_t n = end - key < TILE ? end - key : TILE;
            pack_rows(w.K, k.at(rows.b, rows.kv_head, key), k.row, n, p.D);
            pack_rows(w.V, v.at(rows.b, rows.kv_head, key), v.row, n, p.D);
            product<false, OVERWRITE>(w.P, ld, w.K, row, w.QT, ld, n, vectors, p.D);
            product<false, OVERWRITE>(w.dS, ld, w.V, row, w.GT, ld, n, vectors, p.D);
            probabilities(rows, key, n, delta, log2_sum, w);
            add_to_keys(w.dV + key * row, w.P, ld, w.G, n, rows.count, w.sum);
            add_to_keys(w.dK + key * row, w.dS, ld, w.Q, n, rows.count, w.sum);
            product<true, ADD>(w.dQT, ld, w.K, row, w.dS, ld, p.D, vectors, n);
        }
        for (int64_t x = 0; x < vectors; ++x) scale[x] = splat(static_cast<float>(p.scale));
        unpack_transposed(dq, w.dQT, rows, p.D, scale);
    }

    void write_rows(const Heads<T>& to, const float* from, int64_t b, int64_t head) const {
        for (int64_t j = 0; j < p.Lk; ++j)
            for (int64_t d = 0; d < p.D; d += LANES)
                store(to.at(b, head, j) + d, load(from + j * pitch(p.D) + d), lanes_left(p.D - d));
    }

    void run(int64_t threads) const {
        const int64_t heads = p.B * p.Hkv, per_head = p.Lq * p.group;
        int64_t next = 0;
        parallel(threads < heads ? threads : heads, [&](int64_t, int64_t) {
            Workspace w(p.D, p.Lk);
            for (int64_t u; (u = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < heads;) {
                const int64_t b = u / p.Hkv, head = u % p.Hkv;
                std::memset(w.dK, 0, sizeof(float) * static_cast<size_t>(p.Lk * pitch(p.D)));
                std::memset(w.dV, 0, sizeof(float) * static_cast<size_t>(p.Lk * pitch(p.D)));
                for (int64_t r = 0; r < per_head; r += TILE)
                    tile(QueryRows{p, b, head, r, per_head - r < TILE ? per_head - r : TILE}, w);
                write_rows(dk, w.dK, b, head);
                write_rows(dv, w.dV, b, head);
            }
        });
    }
};

}  // namespace kw::attention

// attention_backward(dq, dk, dv, grad, q, k, v, out, lse, mask or None, scale, causal, shift, window, threads)
KW_EXPORT(attention_backward) {
    using namespace kw::attention;
    kw::Tensor q = args.tensor(4), k = args.tensor(5);
    Problem p(q, k, args, 9);
    const int64_t threads = kw::worth(args.integer(14), 10 * seen_pairs(p) * p.D, 1 << 18);
    kw::with_dtype(q.dtype, [&](auto zero) {
        using T = decltype(zero);
        auto heads = [&](int i) { return Heads<T>(args.tensor(i)); };
        Backward<T>{p, heads(0), heads(1), heads(2), heads(3), heads(4), heads(5), heads(6), heads(7),
                    args.tensor(8).ptr<float>()}
            .run(threads);
    });
}
