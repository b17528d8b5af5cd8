// Recurrences of a state S [K, V] by chunks of steps, forward and backward, in products of small matrices. A step forgets,
// writes, and is read:
//
//     S_t = e^g_t S_{t-1} + k_t u_t^T,   o_t = S_t^T q_t,   u_t = v_t, or beta_t (v_t - (e^g_t S_{t-1})^T k_t) with a delta
//
// Of a chunk, G is the running sum of its gates (in float64: long gates must cancel exactly), D[t, j] = e^(G_t - G_j) for
// j <= t, A = (K K^T) D below the diagonal (0 without a delta), P = (Q K^T) D, S the state at its start and dS the gradient
// of the state at its end. Then, beta = 1 without a delta,
//
//     X = V - e^G K S - A (beta X),  U = beta X,       O = e^G Q S + P U,       S' = e^G_end S + (e^(G_end - G) K)^T U
//     W = e^(G_end - G) K dS + P^T dO - A^T (beta W),  Y = beta W = dV,         d beta_t = W_t X_t
//     dQ = e^G dO S^T + (M D) K,   M = dO U^T,   N = -Y U^T below the diagonal
//     dK = -e^G Y S^T + e^(G_end - G) U dS^T + (M D)^T Q + (N D) K + (N D)^T K
//     dS' = e^G_end dS + (e^G Q)^T dO - (e^G K)^T Y
//
// and the gradient of a gate is the sum of all that crosses it: no sum and its difference, which would leave rounding of
// large numbers where a gate is shut. The triangular systems are solved row after row, by no inverse.
//
// A problem P says what is read and written: DELTA, FACTOR (values times a number a step), T, its sizes, and the functions
// that are called here. A thread has a key head of a sequence with all of its value heads.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "simd.hpp"

namespace kw {
namespace chunks {

constexpr int STEPS = 64, COLUMNS = 64, MOST_DIM = 256, TILE = 4, VECTORS = LANES == 16 ? 4 : 2;

// to[r, w] += sum over n < count of a[r astride + n nstride] x[n, w] for ROWS rows and VECS vectors of w.
template <int ROWS, int VECS>
inline void add_products(float* to, int64_t to_stride, const float* a, int64_t astride, int64_t nstride, const float* x,
                         int64_t x_stride, int count) {
    vf sum[ROWS][VECS];
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < VECS; ++c) sum[r][c] = load(to + r * to_stride + c * LANES);
    for (int n = 0; n < count; ++n) {
        vf v[VECS];
        for (int c = 0; c < VECS; ++c) v[c] = load(x + n * x_stride + c * LANES);
        for (int r = 0; r < ROWS; ++r) {
            const vf w = splat(a[r * astride + n * nstride]);
            for (int c = 0; c < VECS; ++c) sum[r][c] = fma(w, v[c], sum[r][c]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < VECS; ++c) store(to + r * to_stride + c * LANES, sum[r][c]);
}

template <int ROWS>
inline void row_products(float* to, int64_t to_stride, const float* a, int64_t astride, int64_t nstride, const float* x,
                         int64_t x_stride, int count, int width) {
    int w = 0;
    for (; w + VECTORS * LANES <= width; w += VECTORS * LANES)
        add_products<ROWS, VECTORS>(to + w, to_stride, a, astride, nstride, x + w, x_stride, count);
    for (; w < width; w += LANES) add_products<ROWS, 1>(to + w, to_stride, a, astride, nstride, x + w, x_stride, count);
}

// The same for any number of rows; width is a multiple of LANES.
inline void products(float* to, int64_t to_stride, const float* a, int64_t astride, int64_t nstride, const float* x,
                     int64_t x_stride, int rows, int count, int width) {
    int r = 0;
    for (; r + TILE <= rows; r += TILE)
        row_products<TILE>(to + r * to_stride, to_stride, a + r * astride, astride, nstride, x, x_stride, count, width);
    for (; r < rows; ++r)
        row_products<1>(to + r * to_stride, to_stride, a + r * astride, astride, nstride, x, x_stride, count, width);
}

using Square = float[STEPS][STEPS];
using Block = float[STEPS][COLUMNS];
using Vectors = float[STEPS][MOST_DIM];

// What all columns of a head share of a chunk, and what they add up for it.
struct Chunk {
    alignas(64) Vectors key, query, d_key, d_query;
    alignas(64) float turned[MOST_DIM][STEPS], turned_state[COLUMNS][MOST_DIM], turned_update[COLUMNS][STEPS];
    alignas(64) Square decay, alike, seen, with_flow, with_update;
    alignas(64) Block known, asked, kept, flow, own, update, back, before, after;
    float since[STEPS], rest[STEPS], rate[STEPS], whole;
    double since_sum[STEPS], rest_sum[STEPS], d_rate[STEPS], d_factor[STEPS], end_sum;
};

inline int padded(int n) { return (n + LANES - 1) / LANES * LANES; }

template <class T>
inline vf some(const T* p, int left) {
    return left >= LANES ? load(p) : left > 0 ? load(p, left) : vf{};
}
template <class T>
inline void put(T* p, vf x, int left) {
    if (left >= LANES) store(p, x);
    else if (left > 0) store(p, x, left);
}

template <class P>
void read(Chunk& c, const P& p, int64_t b, int64_t head, int64_t begin, int n) {
    const int64_t key_head = p.key_head(head);
    double until[STEPS], sum = 0;
    for (int t = 0; t < n; ++t) {
        std::fill(c.key[t] + p.dim, c.key[t] + padded(p.dim), 0.0f);
        std::fill(c.query[t] + p.dim, c.query[t] + padded(p.dim), 0.0f);
        p.read_key(c.key[t], b, begin + t, key_head);
        p.read_query(c.query[t], b, begin + t, key_head);
        c.rate[t] = p.rate(b, begin + t, head);
        until[t] = sum += p.gate(b, begin + t, head);
        c.since[t] = static_cast<float>(std::exp(sum));
    }
    c.whole = c.since[n - 1];
    for (int t = 0; t < n; ++t) c.rest[t] = static_cast<float>(std::exp(sum - until[t]));
    for (int i = 0; i < p.dim; ++i)
        for (int t = 0; t < STEPS; ++t) c.turned[i][t] = t < n ? c.key[t][i] : 0.0f;
    std::memset(c.seen, 0, sizeof c.seen);
    products(c.seen[0], STEPS, c.query[0], MOST_DIM, 1, c.turned[0], STEPS, n, p.dim, STEPS);
    if (P::DELTA) {
        std::memset(c.alike, 0, sizeof c.alike);
        products(c.alike[0], STEPS, c.key[0], MOST_DIM, 1, c.turned[0], STEPS, n, p.dim, STEPS);
    }
    for (int t = 0; t < n; ++t) {
        for (int j = 0; j < STEPS; ++j) c.decay[t][j] = j <= t ? static_cast<float>(until[t] - until[j]) : 0.0f;
        for (int j = 0; j <= t; j += LANES) store(c.decay[t] + j, exp(load(c.decay[t] + j)));
        for (int j = 0; j < STEPS; ++j) {
            c.decay[t][j] = j <= t ? c.decay[t][j] : 0.0f;
            c.seen[t][j] = j <= t ? c.seen[t][j] * c.decay[t][j] : 0.0f;
            if (P::DELTA) c.alike[t][j] = j < t ? -(c.alike[t][j] * c.decay[t][j]) : 0.0f;
        }
    }
}

// to[t] += sum over the rows r before t (behind it: BACKWARD) of alike[t, r] (alike[r, t]) times[r], and times = rate to.
template <bool BACKWARD>
inline void solve(Chunk& c, Block& to, Block& times, int n) {
    for (int done = 0; done < n; done += TILE) {
        const int here = n - done < TILE ? n - done : TILE, first = BACKWARD ? n - done - here : done;
        if (BACKWARD)
            products(to[first], COLUMNS, &c.alike[n - done][first], 1, STEPS, times[n - done], COLUMNS, here, done, COLUMNS);
        else
            products(to[first], COLUMNS, c.alike[first], STEPS, 1, times[0], COLUMNS, here, done, COLUMNS);
        for (int i = 0; i < here; ++i) {
            const int t = BACKWARD ? first + here - 1 - i : first + i;
            if (BACKWARD) products(to[t], COLUMNS, &c.alike[t + 1][t], 1, STEPS, times[t + 1], COLUMNS, 1, i, COLUMNS);
            else products(to[t], COLUMNS, &c.alike[t][first], STEPS, 1, times[first], COLUMNS, 1, i, COLUMNS);
            for (int j = 0; j < COLUMNS; j += LANES) store(times[t] + j, c.rate[t] * load(to[t] + j));
        }
    }
}

using State = float (*)[COLUMNS];

// What a chunk writes: `own` as its steps read it, `update`, and with a delta `known` of the keys.
template <class P>
void write(Chunk& c, State state, const P& p, int64_t b, int64_t head, int64_t begin, int n, int column) {
    if (P::DELTA) {
        std::memset(c.known, 0, sizeof c.known);
        products(c.known[0], COLUMNS, c.key[0], MOST_DIM, 1, state[0], COLUMNS, n, p.dim, COLUMNS);
    }
    Block& to = P::DELTA ? c.own : c.update;
    for (int t = 0; t < n; ++t) {
        const auto* value = p.values(b, begin + t, head) + column;
        const float factor = P::FACTOR ? p.factor(b, begin + t, head) : 1.0f;
        for (int j = 0; j < COLUMNS; j += LANES) {
            vf v = some(value + j, p.value_dim - column - j);
            if (P::FACTOR) v *= factor;
            if (P::DELTA) v -= c.since[t] * load(c.known[t] + j);
            store(to[t] + j, v);
        }
    }
    if (P::DELTA) solve<false>(c, c.own, c.update, n);
}

template <class P>
void carry(Chunk& c, State state, const P& p, int n) {
    for (int t = 0; t < n; ++t)
        for (int j = 0; j < COLUMNS; j += LANES) store(c.after[t] + j, c.rest[t] * load(c.update[t] + j));
    for (int i = 0; i < p.dim; ++i)
        for (int j = 0; j < COLUMNS; ++j) state[i][j] *= c.whole;
    products(state[0], COLUMNS, c.key[0], 1, MOST_DIM, c.after[0], COLUMNS, p.dim, n, COLUMNS);
}

// The columns of a head's state or of its gradient, from memory (zeros if there is none) or to it.
template <class P>
void load_state(State to, const P& p, const float* from, int64_t b, int64_t head, int column) {
    for (int i = 0; i < p.dim; ++i)
        for (int j = 0; j < COLUMNS; ++j)
            to[i][j] = from && column + j < p.value_dim ? from[p.state_place(b, head, i, column + j)] : 0.0f;
}
template <class P>
void store_state(float* to, const P& p, State from, int64_t b, int64_t head, int column) {
    for (int i = 0; to && i < p.dim; ++i)
        for (int j = 0; j < COLUMNS && column + j < p.value_dim; ++j) to[p.state_place(b, head, i, column + j)] = from[i][j];
}

// ---------------------------------------------------------------- forward, without a delta

template <class P>
void forward_block(Chunk& c, State state, const P& p, int64_t b, int64_t head, int64_t begin, int n, int column) {
    write(c, state, p, b, head, begin, n, column);
    std::memset(c.asked, 0, sizeof c.asked);
    products(c.asked[0], COLUMNS, c.query[0], MOST_DIM, 1, state[0], COLUMNS, n, p.dim, COLUMNS);
    for (int t = 0; t < n; ++t)
        for (int j = 0; j < COLUMNS; j += LANES) store(c.asked[t] + j, c.since[t] * load(c.asked[t] + j));
    for (int t = 0; t < n; ++t)  // no step reads a later one, not even times 0
        products(c.asked[t], COLUMNS, c.seen[t], STEPS, 1, c.update[0], COLUMNS, 1, t + 1, COLUMNS);
    for (int t = 0; t < n; ++t) p.put_output(c.asked[t], b, begin + t, head, column);
    carry(c, state, p, n);
}

template <class P>
void forward(const P& p, int64_t threads) {
    const int blocks = (p.value_dim + COLUMNS - 1) / COLUMNS;
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(p.batch * p.value_heads, ith, nth);
        if (r.begin == r.end) return;
        std::unique_ptr<Chunk> c(new Chunk);
        std::vector<float> room(static_cast<size_t>(blocks * p.dim * COLUMNS) + 16);
        auto state_of = [&](int block) { return reinterpret_cast<State>(room.data() + int64_t{block} * p.dim * COLUMNS); };
        for (int64_t i = r.begin; i < r.end; ++i) {
            const int64_t b = i / p.value_heads, head = i % p.value_heads;
            for (int k = 0; k < blocks; ++k) load_state(state_of(k), p, p.first, b, head, k * COLUMNS);
            for (int64_t begin = 0; begin < p.steps; begin += STEPS) {
                const int n = static_cast<int>(std::min<int64_t>(p.steps - begin, STEPS));
                read(*c, p, b, head, begin, n);
                for (int k = 0; k < blocks; ++k) forward_block(*c, state_of(k), p, b, head, begin, n, k * COLUMNS);
            }
            for (int k = 0; k < blocks; ++k) store_state(p.last, p, state_of(k), b, head, k * COLUMNS);
        }
    });
}

// ---------------------------------------------------------------- backward

inline double dot(const float* a, const float* b, int count) {
    vf sum{};
    for (int j = 0; j < count; j += LANES) sum = fma(load(a + j), load(b + j), sum);
    return static_cast<double>(reduce_add(sum));
}

inline void turn_state(Chunk& c, State state, int dim) {
    for (int j = 0; j < COLUMNS; ++j) {
        for (int i = 0; i < dim; ++i) c.turned_state[j][i] = state[i][j];
        for (int i = dim; i < padded(dim); ++i) c.turned_state[j][i] = 0.0f;
    }
}

template <class P>
void backward_block(Chunk& c, State state, State d_state, const P& p, int64_t b, int64_t head, int64_t begin, int n,
                    int column) {
    const int wide = padded(p.dim);
    write(c, state, p, b, head, begin, n, column);
    std::memset(c.asked, 0, sizeof c.asked);
    std::memset(c.kept, 0, sizeof c.kept);
    std::memset(c.turned_update, 0, sizeof c.turned_update);
    products(c.asked[0], COLUMNS, c.query[0], MOST_DIM, 1, state[0], COLUMNS, n, p.dim, COLUMNS);
    products(c.kept[0], COLUMNS, c.key[0], MOST_DIM, 1, d_state[0], COLUMNS, n, p.dim, COLUMNS);
    for (int t = 0; t < n; ++t) {
        const auto* flow = p.flows(b, begin + t, head) + column;
        for (int j = 0; j < COLUMNS; j += LANES) {
            store(c.flow[t] + j, some(flow + j, p.value_dim - column - j));
            store(c.back[t] + j, c.rest[t] * load(c.kept[t] + j));
        }
        for (int j = 0; j < COLUMNS; ++j) c.turned_update[j][t] = c.update[t][j];
    }
    products(c.back[0], COLUMNS, c.seen[0], 1, STEPS, c.flow[0], COLUMNS, n, n, COLUMNS);
    Block& made = P::DELTA ? c.before : c.back;  // the gradient of a value
    if (P::DELTA) solve<true>(c, c.back, made, n);
    products(c.with_flow[0], STEPS, c.flow[0], COLUMNS, 1, c.turned_update[0], STEPS, n, COLUMNS, STEPS);
    if (P::DELTA) products(c.with_update[0], STEPS, made[0], COLUMNS, 1, c.turned_update[0], STEPS, n, COLUMNS, STEPS);
    for (int t = 0; t < n; ++t) {
        double crossed = dot(c.flow[t], c.asked[t], COLUMNS);
        if (P::DELTA) {
            crossed -= dot(made[t], c.known[t], COLUMNS);
            c.d_rate[t] += dot(c.back[t], c.own[t], COLUMNS);
        }
        c.since_sum[t] += static_cast<double>(c.since[t]) * crossed;
        c.rest_sum[t] += static_cast<double>(c.rest[t]) * dot(c.update[t], c.kept[t], COLUMNS);
        c.d_factor[t] += p.put_value(made[t], c.flow[t], b, begin + t, head, column);
    }
    for (int i = 0; i < p.dim; ++i) c.end_sum += static_cast<double>(c.whole) * dot(state[i], d_state[i], COLUMNS);
    for (int t = 0; t < n; ++t)
        for (int j = 0; j < COLUMNS; j += LANES) {
            store(c.after[t] + j, c.rest[t] * load(c.update[t] + j));
            store(c.flow[t] + j, c.since[t] * load(c.flow[t] + j));
            if (P::DELTA) store(made[t] + j, -c.since[t] * load(made[t] + j));
        }
    turn_state(c, state, p.dim);
    products(c.d_query[0], MOST_DIM, c.flow[0], COLUMNS, 1, c.turned_state[0], MOST_DIM, n, COLUMNS, wide);
    if (P::DELTA) products(c.d_key[0], MOST_DIM, made[0], COLUMNS, 1, c.turned_state[0], MOST_DIM, n, COLUMNS, wide);
    turn_state(c, d_state, p.dim);
    products(c.d_key[0], MOST_DIM, c.after[0], COLUMNS, 1, c.turned_state[0], MOST_DIM, n, COLUMNS, wide);
    for (int i = 0; i < p.dim; ++i)
        for (int j = 0; j < COLUMNS; ++j) d_state[i][j] *= c.whole;
    products(d_state[0], COLUMNS, c.query[0], 1, MOST_DIM, c.flow[0], COLUMNS, p.dim, n, COLUMNS);
    if (P::DELTA) products(d_state[0], COLUMNS, c.key[0], 1, MOST_DIM, made[0], COLUMNS, p.dim, n, COLUMNS);
}

// What pairs of steps add, once all columns are through; d_gate[t] is all that crosses the gate of step t.
template <class P>
void pairs(Chunk& c, const P& p, double* d_gate, int n) {
    const int wide = padded(p.dim);
    double later = 0, crossed[STEPS] = {};
    for (int t = 0; t < n; ++t) {
        double until = 0;
        for (int j = 0; j <= t; ++j) {
            crossed[j] += until;  // of the pairs of t with steps before j
            double pair = static_cast<double>(c.with_flow[t][j]) * static_cast<double>(c.seen[t][j]);
            if (P::DELTA) pair += static_cast<double>(c.with_update[t][j]) * static_cast<double>(c.alike[t][j]);
            until += pair;
        }
        for (int j = 0; j < STEPS; ++j) {
            c.with_flow[t][j] = j <= t ? c.with_flow[t][j] * c.decay[t][j] : 0.0f;
            if (P::DELTA) c.with_update[t][j] = j < t ? -c.with_update[t][j] * c.decay[t][j] : 0.0f;
        }
    }
    double before = c.end_sum;
    for (int t = 0; t < n; ++t) {
        d_gate[t] = crossed[t] + before;
        before += c.rest_sum[t];
    }
    for (int t = n - 1; t >= 0; --t) d_gate[t] += later += c.since_sum[t];
    products(c.d_query[0], MOST_DIM, c.with_flow[0], STEPS, 1, c.key[0], MOST_DIM, n, n, wide);
    products(c.d_key[0], MOST_DIM, c.with_flow[0], 1, STEPS, c.query[0], MOST_DIM, n, n, wide);
    if (!P::DELTA) return;
    products(c.d_key[0], MOST_DIM, c.with_update[0], STEPS, 1, c.key[0], MOST_DIM, n, n, wide);
    products(c.d_key[0], MOST_DIM, c.with_update[0], 1, STEPS, c.key[0], MOST_DIM, n, n, wide);
}

// All gradients of one value head; those of queries and keys are added to [steps, padded(dim)] of its key head.
template <class P>
void backward_head(Chunk& c, const P& p, std::vector<float>& room, float* d_query, float* d_key, int64_t b, int64_t head) {
    const int blocks = (p.value_dim + COLUMNS - 1) / COLUMNS, wide = padded(p.dim);
    const int64_t one = int64_t{p.dim} * COLUMNS, all = one * blocks, count = (p.steps + STEPS - 1) / STEPS;
    room.resize(static_cast<size_t>((count + 2) * all));
    auto state_of = [&](int64_t chunk, int block) { return reinterpret_cast<State>(room.data() + chunk * all + block * one); };
    for (int k = 0; k < blocks; ++k) {
        load_state(state_of(0, k), p, p.first, b, head, k * COLUMNS);
        load_state(state_of(count + 1, k), p, p.grad_last, b, head, k * COLUMNS);
    }
    auto steps_of = [&](int64_t chunk) { return static_cast<int>(std::min<int64_t>(p.steps - chunk * STEPS, STEPS)); };
    for (int64_t chunk = 0; chunk + 1 < count; ++chunk) {  // the state at each chunk's start
        read(c, p, b, head, chunk * STEPS, steps_of(chunk));
        for (int k = 0; k < blocks; ++k) {
            std::memcpy(state_of(chunk + 1, k), state_of(chunk, k), sizeof(float) * static_cast<size_t>(one));
            write(c, state_of(chunk, k), p, b, head, chunk * STEPS, steps_of(chunk), k * COLUMNS);
            carry(c, state_of(chunk + 1, k), p, steps_of(chunk));
        }
    }
    for (int64_t chunk = count - 1; chunk >= 0; --chunk) {
        const int64_t begin = chunk * STEPS;
        const int n = steps_of(chunk);
        read(c, p, b, head, begin, n);
        for (auto* to : {&c.d_key, &c.d_query}) std::memset(*to, 0, sizeof c.d_key);
        for (auto* to : {&c.with_flow, &c.with_update}) std::memset(*to, 0, sizeof c.with_flow);
        for (auto* to : {c.since_sum, c.rest_sum, c.d_rate, c.d_factor}) std::fill(to, to + STEPS, 0.0);
        c.end_sum = 0;
        for (int k = 0; k < blocks; ++k)
            backward_block(c, state_of(chunk, k), state_of(count + 1, k), p, b, head, begin, n, k * COLUMNS);
        double d_gate[STEPS];
        pairs(c, p, d_gate, n);
        for (int t = 0; t < n; ++t) {
            p.put_numbers(d_gate[t], c.d_rate[t], c.d_factor[t], b, begin + t, head);
            for (int i = 0; i < p.dim; ++i) {
                d_query[(begin + t) * wide + i] += c.d_query[t][i];
                d_key[(begin + t) * wide + i] += c.d_key[t][i];
            }
        }
    }
    for (int k = 0; k < blocks; ++k) store_state(p.d_first, p, state_of(count + 1, k), b, head, k * COLUMNS);
}

template <class P>
void backward(const P& p, int64_t threads) {
    const int64_t group = p.heads ? p.value_heads / p.heads : 0, wide = padded(p.dim);
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(p.batch * p.heads, ith, nth);
        if (r.begin == r.end) return;
        std::unique_ptr<Chunk> c(new Chunk);
        std::vector<float> room, d_query, d_key;
        for (int64_t i = r.begin; i < r.end; ++i) {
            const int64_t b = i / p.heads, key_head = i % p.heads;
            d_query.assign(static_cast<size_t>(p.steps * wide), 0.0f);
            d_key.assign(static_cast<size_t>(p.steps * wide), 0.0f);
            for (int64_t k = 0; k < group; ++k)
                backward_head(*c, p, room, d_query.data(), d_key.data(), b, key_head * group + k);
            for (int64_t t = 0; t < p.steps; ++t) {
                p.put_query(d_query.data() + t * wide, b, t, key_head);
                p.put_key(d_key.data() + t * wide, b, t, key_head);
            }
        }
    });
}

}  // namespace chunks
}  // namespace kw
