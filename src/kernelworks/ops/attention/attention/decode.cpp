// Attention for one query, or a few: the work is to read K and V once, at the rate of memory.
//
// The queries of all heads that share a key-value head go together (a group of up to 4 rows, or two groups), head_dim
// lies in the lanes, and the keys are split over threads when heads are few. While scores of some keys are formed,
// the same rows of V are on their way, and while those are added up, the next tile of K.
#include <cstdlib>

#include "tile.hpp"

namespace kw::attention {

constexpr int MAX_FEW = 8;  // rows at most

// Lane i of the result is the sum over lanes of r[i].
template <int S>
inline void fold_blocks(vf* r) {
    vi low, high;
    for (int l = 0; l < LANES; ++l) {
        low[l] = l & S ? LANES + l : l;
        high[l] = l & S ? LANES + l - S : l + S;
    }
#pragma GCC unroll 16
    for (int i = 0; i < S; ++i) {
        vf a = r[i], b = r[i + S];
        r[i] = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
    }
}
inline vf lane_sums(vf* r) {
    if constexpr (LANES >= 16) fold_blocks<8>(r);
    if constexpr (LANES >= 8) fold_blocks<4>(r);
    fold_blocks<2>(r);
    fold_blocks<1>(r);
    return r[0];
}

inline void prefetch_row(const void* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(p) + i);
}

// What one slice of the keys gives for one row: unnormalised output, maximum and sum, and whether it saw any key.
struct Partial {
    float maximum, sum;
    bool seen;
    float output[MAX_DIM];
};

// One group of R rows (1, 2 or 4; the last ones may be idle) on its way through the keys.
template <class T, int R>
struct Few {
    static constexpr int KEYS = LANES / R;  // keys that one vector of scores holds, R rows each: lane = key * R + row

    const Problem& p;
    const Heads<T>&k, &v;
    int64_t b, kv_head;
    int rows;                               // rows in use
    int64_t query[R], head[R];
    alignas(64) float Q[R][MAX_DIM];
    alignas(64) float O[R][MAX_DIM];
    vf maximum, sum;                        // lane i belongs to row i % R
    bool seen[R];

    Few(const QueryRows& all, int64_t first, const Heads<T>& q, const Heads<T>& keys, const Heads<T>& values)
        : p(all.p), k(keys), v(values), b(all.b), kv_head(all.kv_head),
          rows(all.count - first < R ? static_cast<int>(all.count - first) : R), maximum(splat(-INFINITY)), sum{} {
        const float factor = static_cast<float>(p.scale * 1.4426950408889634);
        for (int r = 0; r < R; ++r) {
            int64_t from = first + (r < rows ? r : rows - 1);
            query[r] = all.query(from);
            head[r] = all.head(from);
            const T* x = all.at(q, from);
            for (int64_t d = 0; d < p.D; d += LANES) store(Q[r] + d, load(x + d, lanes_left(p.D - d)) * factor);
            std::memset(O[r], 0, sizeof O[r]);
            seen[r] = false;
        }
    }

    // The largest, or the sum, of the lanes that belong to one row, in all of them.
    template <class F>
    static vf fold(vf x, F f) {
        for (int s = R; s < LANES; s *= 2) {
            vi other;
            for (int l = 0; l < LANES; ++l) other[l] = l ^ s;
            x = f(x, __builtin_shuffle(x, other));
        }
        return x;
    }

    void scores(float* S, int64_t key, int64_t n) const {
        const int64_t whole = p.D / LANES * LANES;
        const int rest = static_cast<int>(p.D - whole);
        for (int64_t t = 0; t < n; t += KEYS) {
            const T* row[KEYS];
            for (int i = 0; i < KEYS; ++i) row[i] = k.at(b, kv_head, key + (t + i < n ? t + i : n - 1));
            vf acc[LANES] = {};
            // Row after row, as they lie in memory: the processor's own prefetchers follow that. For each line of K
            // the same line of V is asked for.
#pragma GCC unroll 16
            for (int i = 0; i < KEYS; ++i) {
                const T* value = v.at(b, kv_head, key + (t + i < n ? t + i : n - 1));
                for (int64_t d = 0; d < whole; d += LANES) {
                    vf x = load(row[i] + d);
                    if (d * sizeof(T) % 64 == 0) __builtin_prefetch(value + d);
#pragma GCC unroll 4
                    for (int r = 0; r < R; ++r) acc[i * R + r] = fma(x, load(Q[r] + d), acc[i * R + r]);
                }
            }
            if (rest) {
                for (int i = 0; i < KEYS; ++i) {
                    vf x = load(row[i] + whole, rest);
                    for (int r = 0; r < R; ++r) acc[i * R + r] = fma(x, load(Q[r] + whole), acc[i * R + r]);
                }
            }
            store(S + t * R, lane_sums(acc));
        }
    }

    // -inf where a row does not see a key, and in the lanes beyond the last key.
    void hide(float* S, int64_t key, int64_t n) {
        for (int64_t t = n; t < round_up(n, KEYS); ++t)
            for (int r = 0; r < R; ++r) S[t * R + r] = -INFINITY;
        for (int r = 0; r < R; ++r) {
            int64_t first = p.first_key(query[r]) - key, end = p.end_key(query[r]) - key;
            if (first <= 0 && end >= n && !p.mask) {
                seen[r] = true;
                continue;
            }
            const uint8_t* mask = p.mask ? p.mask_row(b, head[r], query[r]) : nullptr;
            for (int64_t t = 0; t < n; ++t) {
                if (t >= first && t < end && (!mask || mask[(key + t) * p.mask_stride[3]]))
                    seen[r] = true;
                else
                    S[t * R + r] = -INFINITY;
            }
        }
    }

    // S becomes 2^(S - maximum); returns what earlier sums must be multiplied with.
    vf update(float* S, int64_t n) {
        vf largest = maximum;
        const int64_t lanes = round_up(n, KEYS) * R;
        for (int64_t i = 0; i < lanes; i += LANES) largest = max(load(S + i), largest);
        largest = fold(largest, [](vf a, vf b) { return max(a, b); });
        vf base = largest == -INFINITY ? vf{} : largest, total = {};
        for (int64_t i = 0; i < lanes; i += LANES) {
            vf e = exp2(load(S + i) - base);
            store(S + i, e);
            total += e;
        }
        vf factor = exp2(maximum - base);
        sum = fma(sum, factor, total);
        maximum = largest;
        return factor;
    }

    // O += P V over C vectors of head_dim, the last of them `last` lanes long.
    template <int C>
    void add_values(const float* P, int64_t key, int64_t n, int64_t d, int last, vf factor, bool fetch) {
        vf acc[R][C] = {};
        for (int64_t t = 0; t < n; ++t) {
            const T* row = v.at(b, kv_head, key + t) + d;
            if (fetch && key + TILE + t < p.Lk)
                prefetch_row(k.at(b, kv_head, key + TILE + t), p.D * static_cast<int64_t>(sizeof(T)));
            vf x[C];
#pragma GCC unroll 8
            for (int c = 0; c + 1 < C; ++c) x[c] = load(row + c * LANES);
            x[C - 1] = last == LANES ? load(row + (C - 1) * LANES) : load(row + (C - 1) * LANES, last);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                vf w = splat(P[t * R + r]);
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) acc[r][c] = fma(x[c], w, acc[r][c]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                float* o = O[r] + d + c * LANES;
                store(o, fma(load(o), splat(factor[r]), acc[r][c]));
            }
    }

    void tile(int64_t key, int64_t n) {
        alignas(64) float S[(TILE + LANES) * R];
        scores(S, key, n);
        hide(S, key, n);
        vf factor = update(S, n);
        constexpr int C = LANES == 16 ? (R == 4 ? 4 : 8) : (R == 4 ? 2 : 4);
        int64_t d = 0;
        for (; d + C * LANES <= p.D; d += C * LANES) add_values<C>(S, key, n, d, LANES, factor, d == 0);
        for (; d < p.D; d += LANES) add_values<1>(S, key, n, d, lanes_left(p.D - d), factor, d == 0);
    }

    void hand_over(Partial* to) const {
        vf total = fold(sum, [](vf x, vf y) { return x + y; });
        for (int r = 0; r < rows; ++r, ++to) {
            to->maximum = maximum[r];
            to->sum = total[r];
            to->seen = seen[r];
            std::memcpy(to->output, O[r], sizeof(float) * static_cast<size_t>(p.D));
        }
    }
};

template <class T>
struct Decode {
    const Problem& p;
    Heads<T> out, q, k, v;
    float* lse;

    template <class... Groups>
    void walk(int64_t begin, int64_t end, Partial* partial, Groups&... groups) const {
        for (int64_t key = begin; key < end; key += TILE)
            (groups.tile(key, end - key < TILE ? end - key : TILE), ...);
        ((groups.hand_over(partial), partial += groups.rows), ...);
    }

    void slice_of_keys(const QueryRows& rows, int64_t ith, int64_t nth, Partial* partial) const {
        int64_t first = p.first_key(rows.query(0)), end = p.end_key(rows.query(rows.count - 1));
        Range r = slice(end > first ? end - first : 0, ith, nth, TILE);
        const int64_t begin = first + r.begin, stop = first + r.end;
        if (rows.count == 1) {
            Few<T, 1> one(rows, 0, q, k, v);
            walk(begin, stop, partial, one);
        } else if (rows.count == 2) {
            Few<T, 2> two(rows, 0, q, k, v);
            walk(begin, stop, partial, two);
        } else if (rows.count <= 4) {
            Few<T, 4> four(rows, 0, q, k, v);
            walk(begin, stop, partial, four);
        } else {
            Few<T, 4> four(rows, 0, q, k, v), others(rows, 4, q, k, v);
            walk(begin, stop, partial, four, others);
        }
    }

    // Brings the slices of one row to a common maximum, adds them up and divides.
    void combine(const QueryRows& rows, int64_t r, Partial* partial, int64_t slices) const {
        float largest = -INFINITY, sum = 0;
        bool seen = false;
        for (int64_t s = 0; s < slices; ++s) {
            const Partial& x = partial[s * MAX_FEW + r];
            largest = x.maximum > largest ? x.maximum : largest;
            seen |= x.seen;
        }
        const float base = largest == -INFINITY ? 0.0f : largest;
        alignas(64) float total[MAX_DIM] = {};
        for (int64_t s = 0; s < slices; ++s) {
            const Partial& x = partial[s * MAX_FEW + r];
            vf weight = exp2(splat(x.maximum - base));
            sum += x.sum * weight[0];
            for (int64_t d = 0; d < p.D; d += LANES)
                store(total + d, fma(load(x.output + d), weight, load(total + d)));
        }
        const vf normaliser = splat(seen ? 1.0f / sum : 0.0f);
        T* to = rows.at(out, r);
        for (int64_t d = 0; d < p.D; d += LANES) store(to + d, load(total + d) * normaliser, lanes_left(p.D - d));
        if (lse)
            lse[(rows.b * p.H + rows.head(r)) * p.Lq + rows.query(r)] =
                seen ? (base + __builtin_log2f(sum)) * LN2 : -INFINITY;
    }

    void run(int64_t threads) const {
        const int64_t heads = p.B * p.Hkv, rows = p.Lq * p.group;
        int64_t slices = heads % threads == 0 || heads >= 4 * threads ? 1 : threads;
        if (slices > 16) slices = 16;
        const int64_t units = heads * slices;
        // One unit after another needs one place for its partials; units in parallel need all.
        Partial* partial = static_cast<Partial*>(
            aligned_alloc(64, sizeof(Partial) * static_cast<size_t>(units * MAX_FEW)));
        auto part = [&](int64_t head) { return QueryRows{p, head / p.Hkv, head % p.Hkv, 0, rows}; };
        auto finish = [&](int64_t head) {
            for (int64_t r = 0; r < rows; ++r) combine(part(head), r, partial + head * slices * MAX_FEW, slices);
        };
        int64_t next = 0;
        parallel(threads < units ? threads : units, [&](int64_t, int64_t) {
            for (int64_t u; (u = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
                slice_of_keys(part(u / slices), u % slices, slices, partial + u * MAX_FEW);
                if (slices == 1) finish(u);
            }
        });
        if (slices > 1)
            for (int64_t head = 0; head < heads; ++head) finish(head);
        free(partial);
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
        Decode<T>{p, Heads<T>(out), Heads<T>(q), Heads<T>(k), Heads<T>(v), lse}.run(threads);
    });
}
