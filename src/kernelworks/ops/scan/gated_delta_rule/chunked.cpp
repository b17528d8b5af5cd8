// The gated delta rule by chunks of steps: what takes in a prompt. Within a chunk, what the steps write solves a triangular
// system; all else are products of small matrices, which stay in L1 and L2:
//
//     W = beta (V - e^G K S),  (1 + beta (K K^T) D) U = W,  O = e^G Q S + (Q K^T) D U,  S = e^G_end S + (e^(G_end - G) K)^T U
//
// with G the running sum of gates in a chunk (in float64: long gates must cancel exactly) and D[t, j] = e^(G_t - G_j) for
// j <= t. A thread has a head's state for all chunks, block by block of its columns. No step reads a later one, not even times 0.
#include <cstdlib>

#include "problem.hpp"
#include "simd.hpp"

namespace {

using namespace kw;

constexpr int CHUNK = 64, VECTORS = 4, COLUMNS = VECTORS * LANES, TILE = 4;

// to[r, :] += sum over n < count of a[r astride + n nstride] x[n, :], for ROWS rows.
template <int ROWS>
inline void add_products(float* to, const float* a, int64_t astride, int64_t nstride, const float* x, int count) {
    vf sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < VECTORS; ++c) sum[r][c] = load(to + r * COLUMNS + c * LANES);
    for (int n = 0; n < count; ++n) {
        vf v[VECTORS];
        for (int c = 0; c < VECTORS; ++c) v[c] = load(x + n * COLUMNS + c * LANES);
        for (int r = 0; r < ROWS; ++r) {
            const vf w = splat(a[r * astride + n * nstride]);
            for (int c = 0; c < VECTORS; ++c) sum[r][c] = fma(w, v[c], sum[r][c]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < VECTORS; ++c) store(to + r * COLUMNS + c * LANES, sum[r][c]);
}

inline void products(float* to, const float* a, int64_t astride, int64_t nstride, const float* x, int rows, int count) {
    int r = 0;
    for (; r + TILE <= rows; r += TILE) add_products<TILE>(to + r * COLUMNS, a + r * astride, astride, nstride, x, count);
    for (; r < rows; ++r) add_products<1>(to + r * COLUMNS, a + r * astride, astride, nstride, x, count);
}

// The same of a lower triangle: row r takes n < r + inclusive.
inline void triangle(float* to, const float* a, const float* x, int rows, int inclusive) {
    for (int r = 0; r < rows; r += TILE) {
        const int here = rows - r < TILE ? rows - r : TILE;
        products(to + r * COLUMNS, a + r * CHUNK, CHUNK, 1, x, here, r);
        for (int k = 0; k < here; ++k)
            add_products<1>(to + (r + k) * COLUMNS, a + (r + k) * CHUNK + r, CHUNK, 1, x + r * COLUMNS, k + inclusive);
    }
}

// What all columns of a head share of a chunk.
struct Chunk {
    alignas(64) float key[CHUNK][MOST_DIM], query[CHUNK][MOST_DIM], turned[MOST_DIM][COLUMNS];
    alignas(64) float system[CHUNK][CHUNK], seen[CHUNK][CHUNK], known[CHUNK][COLUMNS], asked[CHUNK][COLUMNS];
    float since[CHUNK], rest[CHUNK], rate[CHUNK], whole;
};

template <class T>
void read(Chunk& c, const DeltaRule<T>& p, int64_t b, int64_t head, int64_t begin, int n) {
    const int64_t key_head = p.key_head(head);
    double until[CHUNK], sum = 0;
    for (int t = 0; t < n; ++t) {
        p.read(c.key[t], p.k, b, begin + t, key_head, 1.0f);
        p.read(c.query[t], p.q, b, begin + t, key_head, p.scale);
        c.rate[t] = p.number(p.beta, b, begin + t, head);
        until[t] = sum += p.gate(b, begin + t, head);
        c.since[t] = static_cast<float>(std::exp(sum));
    }
    c.whole = c.since[n - 1];
    for (int t = 0; t < n; ++t) c.rest[t] = static_cast<float>(std::exp(sum - until[t]));
    for (int first = 0; first < n; first += COLUMNS) {  // these keys against all behind them
        const int count = n - first < COLUMNS ? n - first : COLUMNS;
        for (int i = 0; i < p.dim; ++i)
            for (int j = 0; j < COLUMNS; ++j) c.turned[i][j] = j < count ? c.key[first + j][i] : 0.0f;
        std::memset(c.known, 0, sizeof c.known);
        std::memset(c.asked, 0, sizeof c.asked);
        products(c.known[first], c.key[first], MOST_DIM, 1, c.turned[0], n - first, p.dim);
        products(c.asked[first], c.query[first], MOST_DIM, 1, c.turned[0], n - first, p.dim);
        for (int t = first; t < n; ++t) {
            alignas(64) float decay[COLUMNS];
            const int last = t - first < count ? t - first : count - 1;
            for (int j = 0; j <= last; ++j) decay[j] = static_cast<float>(until[t] - until[first + j]);
            for (int j = 0; j <= last; j += LANES) store(decay + j, exp(load(decay + j)));
            for (int j = 0; j <= last; ++j) {
                c.seen[t][first + j] = c.asked[t][j] * decay[j];
                c.system[t][first + j] = -c.rate[t] * (c.known[t][j] * decay[j]);
            }
        }
    }
}

struct Columns {
    alignas(64) float state[MOST_DIM][COLUMNS];
};
struct Room {
    Chunk chunk;
    alignas(64) float update[CHUNK][COLUMNS], output[CHUNK][COLUMNS];
    Columns columns[MOST_DIM / COLUMNS];
};

template <class T>
void step(Room& s, float (*state)[COLUMNS], const DeltaRule<T>& p, int64_t b, int64_t head, int64_t begin, int n, int column) {
    const Chunk& c = s.chunk;
    const int width = p.value_dim - column < COLUMNS ? p.value_dim - column : COLUMNS;
    std::memset(s.update, 0, sizeof(float) * static_cast<size_t>(n * COLUMNS));
    std::memset(s.output, 0, sizeof(float) * static_cast<size_t>(n * COLUMNS));
    products(s.update[0], c.key[0], MOST_DIM, 1, state[0], n, p.dim);
    products(s.output[0], c.query[0], MOST_DIM, 1, state[0], n, p.dim);
    for (int t = 0; t < n; ++t) {
        const T* value = p.template at<T>(p.v, b, begin + t, head) + column;
        for (int j = 0; j < COLUMNS; j += LANES) {
            const int left = width - j;
            const vf v = left >= LANES ? load(value + j) : left > 0 ? load(value + j, left) : vf{};
            store(s.update[t] + j, c.rate[t] * (v - c.since[t] * load(s.update[t] + j)));
            store(s.output[t] + j, c.since[t] * load(s.output[t] + j));
        }
    }
    triangle(s.update[0], c.system[0], s.update[0], n, 0);
    triangle(s.output[0], c.seen[0], s.update[0], n, 1);
    for (int t = 0; t < n; ++t) {
        T* to = p.template at<T>(p.out, b, begin + t, head) + column;
        for (int j = 0; j < width; j += LANES) {
            if (width - j >= LANES) store(to + j, load(s.output[t] + j));
            else store(to + j, load(s.output[t] + j), width - j);
        }
        for (int j = 0; j < COLUMNS; ++j) s.update[t][j] *= c.rest[t];
    }
    for (int i = 0; i < p.dim; ++i)
        for (int j = 0; j < COLUMNS; ++j) state[i][j] *= c.whole;
    products(state[0], c.key[0], 1, MOST_DIM, s.update[0], p.dim, n);
}

template <class T>
void run(Room& s, const DeltaRule<T>& p, int64_t b, int64_t head) {
    const int64_t place = p.state_of(b, head);
    auto each = [&](auto f) {  // block of columns
        for (int column = 0; column < p.value_dim; column += COLUMNS) f(s.columns[column / COLUMNS].state, column);
    };
    each([&](float (*state)[COLUMNS], int column) {
        for (int i = 0; i < p.dim; ++i)
            for (int j = 0; j < COLUMNS; ++j)
                state[i][j] = p.first && column + j < p.value_dim ? p.first[place + i * p.value_dim + column + j] : 0.0f;
    });
    for (int64_t begin = 0; begin < p.steps; begin += CHUNK) {
        const int n = static_cast<int>(p.steps - begin < CHUNK ? p.steps - begin : CHUNK);
        read(s.chunk, p, b, head, begin, n);
        each([&](float (*state)[COLUMNS], int column) { step(s, state, p, b, head, begin, n, column); });
    }
    if (!p.last) return;
    each([&](float (*state)[COLUMNS], int column) {
        for (int i = 0; i < p.dim; ++i)
            for (int j = 0; j < COLUMNS && column + j < p.value_dim; ++j)
                p.last[place + i * p.value_dim + column + j] = state[i][j];
    });
}

}  // namespace

KW_EXPORT(gated_delta_rule) {
    with_dtype(args.tensor(2).dtype, [&](auto zero) {
        using T = decltype(zero);
        const DeltaRule<T> p(args);
        parallel(p.threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(p.batch * p.value_heads, ith, nth);
            if (r.begin == r.end) return;
            Room* room = static_cast<Room*>(std::aligned_alloc(64, sizeof(Room)));
            if (!room) std::abort();  // half a megabyte a thread
            for (int64_t i = r.begin; i < r.end; ++i) run(*room, p, i / p.value_heads, i % p.value_heads);
            std::free(room);
        });
    });
}
