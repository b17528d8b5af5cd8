// Recurrences that forget and write, without looking at what is there: S_t = e^g_t S_{t-1} + k_t (f_t v_t)^T, o_t = scale
// S_t^T q_t + skip v_t. linear_attention has f = 1 and no gate, ssd f = dt and g = A dt. A source of an op package is
//
//     KW_LINEAR_STATE_CHUNKED(ssd)      ssd(..) and ssd_backward(..), by chunks of steps (state_chunks.hpp)
//     KW_LINEAR_STATE_STEPS(ssd)        ssd(..), step by step
//
// which export, [B, T, H, D] with any strides but the last, states float32 and contiguous, [K, V] or turned [V, K]:
//
//     NAME(output, last state or None, GIVEN.., threads)
//     NAME_backward(d_q, d_k, d_v, d_gate, d_factor [B, T, Hv] in float32 or None, d_first or None, grad, d_last or None,
//                   GIVEN.., threads)
//     GIVEN: q, k, v, factors or None, rates [Hv] of a gate beside its factor or None, skips [Hv] or None, sequences
//            [B, T] int32 or None (the state is new where the number changes), first state or None, scale, turned
#pragma once

#include "state_chunks.hpp"

namespace kw {

template <class T>
struct LinearState {
    static constexpr bool DELTA = false, FACTOR = true;
    Tensor out, grad, q, k, v, factors, rates, skips, sequences, d[5];
    bool has_factors, has_rates, has_skips, has_sequences, wanted[5] = {}, turned;
    const float *first, *grad_last = nullptr;
    float *last = nullptr, *d_first = nullptr;
    int64_t batch, steps, heads, value_heads;
    int dim, value_dim;
    float scale;

    // `from`: where GIVEN begins.
    LinearState(const Args& a, int from)
        : q(a.tensor(from)), k(a.tensor(from + 1)), v(a.tensor(from + 2)), has_factors(!a.none(from + 3)),
          has_rates(!a.none(from + 4)), has_skips(!a.none(from + 5)), has_sequences(!a.none(from + 6)),
          turned(a.integer(from + 9) != 0), first(a.none(from + 7) ? nullptr : a.tensor(from + 7).ptr<float>()),
          batch(q.shape[0]), steps(q.shape[1]), heads(q.shape[2]), value_heads(v.shape[2]),
          dim(static_cast<int>(q.shape[3])), value_dim(static_cast<int>(v.shape[3])),
          scale(static_cast<float>(a.real(from + 8))) {
        if (has_factors) factors = a.tensor(from + 3);
        if (has_rates) rates = a.tensor(from + 4);
        if (has_skips) skips = a.tensor(from + 5);
        if (has_sequences) sequences = a.tensor(from + 6);
    }
    static LinearState forward(const Args& a) {
        LinearState p(a, 2);
        p.out = a.tensor(0);
        p.last = a.none(1) ? nullptr : a.tensor(1).ptr<float>();
        return p;
    }
    static LinearState backward(const Args& a) {
        LinearState p(a, 8);
        for (int i = 0; i < 5; ++i) {
            p.wanted[i] = !a.none(i);
            if (p.wanted[i]) p.d[i] = a.tensor(i);
        }
        p.d_first = a.none(5) ? nullptr : a.tensor(5).ptr<float>();
        p.grad = a.tensor(6);
        p.grad_last = a.none(7) ? nullptr : a.tensor(7).ptr<float>();
        return p;
    }

    template <class U>
    static U* at(const Tensor& t, int64_t b, int64_t step, int64_t head) {
        return t.ptr<U>() + b * t.stride[0] + step * t.stride[1] + head * t.stride[2];
    }
    static float number(const Tensor& t, int64_t place) {
        return t.dtype.bits == 32 ? t.ptr<float>()[place] : to_float(t.ptr<T>()[place]);
    }
    int64_t key_head(int64_t head) const { return head / (value_heads / heads); }
    int64_t state_place(int64_t b, int64_t head, int64_t i, int64_t j) const {
        const int64_t before = (b * value_heads + head) * dim * value_dim;
        return before + (turned ? j * dim + i : i * value_dim + j);
    }
    float factor(int64_t b, int64_t step, int64_t head) const {
        return has_factors ? number(factors, b * factors.stride[0] + step * factors.stride[1] + head * factors.stride[2]) : 1.0f;
    }
    float skip(int64_t head) const { return has_skips ? number(skips, head * skips.stride[0]) : 0.0f; }
    // Whether a step begins another sequence than the one before it.
    bool begins(int64_t b, int64_t step) const {
        if (!has_sequences || !step) return false;
        const int32_t* of = sequences.ptr<int32_t>() + b * sequences.stride[0] + step * sequences.stride[1];
        return of[0] != of[-sequences.stride[1]];
    }
    double gate(int64_t b, int64_t step, int64_t head) const {
        if (begins(b, step)) return -1e4;
        if (!has_rates) return 0.0;
        const double x = static_cast<double>(number(rates, head * rates.stride[0])) * static_cast<double>(factor(b, step, head));
        return x < -1e4 ? -1e4 : x;
    }
    float rate(int64_t, int64_t, int64_t) const { return 1.0f; }
    void read_key(float* to, int64_t b, int64_t step, int64_t head) const {
        const T* from = at<T>(k, b, step, head);
        for (int i = 0; i < dim; ++i) to[i] = to_float(from[i]);
    }
    void read_query(float* to, int64_t b, int64_t step, int64_t head) const {
        const T* from = at<T>(q, b, step, head);
        for (int i = 0; i < dim; ++i) to[i] = to_float(from[i]) * scale;
    }
    const T* values(int64_t b, int64_t step, int64_t head) const { return at<T>(v, b, step, head); }
    const T* flows(int64_t b, int64_t step, int64_t head) const { return at<T>(grad, b, step, head); }

    void put_output(const float* from, int64_t b, int64_t step, int64_t head, int column) const {
        T* to = at<T>(out, b, step, head) + column;
        const T* value = values(b, step, head) + column;
        const vf s = splat(skip(head));
        for (int j = 0; j < chunks::COLUMNS && column + j < value_dim; j += LANES) {
            const int left = value_dim - column - j;
            const vf made = load(from + j);
            chunks::put(to + j, has_skips ? fma(s, chunks::some(value + j, left), made) : made, left);
        }
    }
    // Returns what the gradient of the factor is made of.
    double put_value(const float* made, const float* flow, int64_t b, int64_t step, int64_t head, int column) const {
        const vf f = splat(factor(b, step, head)), s = splat(skip(head));
        const T* value = values(b, step, head) + column;
        vf sum{};
        for (int j = 0; j < chunks::COLUMNS && column + j < value_dim; j += LANES) {
            const int left = value_dim - column - j;
            const vf x = load(made + j);
            sum = fma(x, chunks::some(value + j, left), sum);
            if (wanted[2]) chunks::put(at<T>(d[2], b, step, head) + column + j, fma(s, load(flow + j), f * x), left);
        }
        return static_cast<double>(reduce_add(sum));
    }
    void put_numbers(double d_gate, double, double d_factor, int64_t b, int64_t step, int64_t head) const {
        if (wanted[3]) *at<float>(d[3], b, step, head) = static_cast<float>(d_gate);
        if (wanted[4]) *at<float>(d[4], b, step, head) = static_cast<float>(d_factor);
    }
    void put_query(const float* made, int64_t b, int64_t step, int64_t head) const {
        for (int i = 0; wanted[0] && i < dim; ++i) at<T>(d[0], b, step, head)[i] = from_float<T>(made[i] * scale);
    }
    void put_key(const float* made, int64_t b, int64_t step, int64_t head) const {
        for (int i = 0; wanted[1] && i < dim; ++i) at<T>(d[1], b, step, head)[i] = from_float<T>(made[i]);
    }
};

// ---------------------------------------------------------------- step by step

// A column of a head's state, which lies in one piece if it is turned.
template <class T>
void linear_column(const LinearState<T>& p, int64_t b, int64_t head, int j) {
    alignas(64) float state[chunks::MOST_DIM] = {}, key[chunks::MOST_DIM] = {}, query[chunks::MOST_DIM] = {};
    for (int i = 0; p.first && i < p.dim; ++i) state[i] = p.first[p.state_place(b, head, i, j)];
    for (int64_t t = 0; t < p.steps; ++t) {
        p.read_key(key, b, t, p.key_head(head));
        p.read_query(query, b, t, p.key_head(head));
        const float decay = static_cast<float>(std::exp(p.gate(b, t, head))), value = to_float(p.values(b, t, head)[j]);
        const vf update = splat(value * p.factor(b, t, head)), kept = splat(decay);
        const bool anew = p.begins(b, t);  // not even times 0: what was before may be no number
        vf sum[2] = {};
        for (int i = 0; i < p.dim; i += LANES) {
            const vf s = fma(load(key + i), update, anew ? vf{} : kept * load(state + i));
            store(state + i, s);
            sum[i / LANES % 2] = fma(load(query + i), s, sum[i / LANES % 2]);
        }
        p.template at<T>(p.out, b, t, head)[j] = from_float<T>(reduce_add(sum[0] + sum[1]) + (p.has_skips ? p.skip(head) * value : 0.0f));
    }
    for (int i = 0; p.last && i < p.dim; ++i) p.last[p.state_place(b, head, i, j)] = state[i];
}

// Some columns at once, of which two vectors lie side by side.
template <class T>
void linear_columns(const LinearState<T>& p, int64_t b, int64_t head, int column) {
    alignas(64) vf state[chunks::MOST_DIM][2];
    alignas(64) float key[chunks::MOST_DIM], query[chunks::MOST_DIM];
    const int left[2] = {p.value_dim - column, p.value_dim - column - LANES};
    const int64_t place = p.state_place(b, head, 0, column);
    for (int i = 0; i < p.dim; ++i)
        for (int c = 0; c < 2; ++c)
            state[i][c] = p.first ? chunks::some(p.first + place + i * p.value_dim + c * LANES, left[c]) : vf{};
    for (int64_t t = 0; t < p.steps; ++t) {
        p.read_key(key, b, t, p.key_head(head));
        p.read_query(query, b, t, p.key_head(head));
        const bool anew = p.begins(b, t);
        const vf decay = splat(static_cast<float>(std::exp(p.gate(b, t, head))));
        vf update[2], sum[4][2] = {};
        for (int c = 0; c < 2; ++c) update[c] = p.factor(b, t, head) * chunks::some(p.values(b, t, head) + column + c * LANES, left[c]);
        for (int i = 0; i < p.dim; ++i)
            for (int c = 0; c < 2; ++c) {
                state[i][c] = fma(splat(key[i]), update[c], anew ? vf{} : decay * state[i][c]);
                sum[i % 4][c] = fma(splat(query[i]), state[i][c], sum[i % 4][c]);
            }
        for (int c = 0; c < 2; ++c) {
            vf made = (sum[0][c] + sum[1][c]) + (sum[2][c] + sum[3][c]);
            if (p.has_skips) made = fma(splat(p.skip(head)), chunks::some(p.values(b, t, head) + column + c * LANES, left[c]), made);
            chunks::put(p.template at<T>(p.out, b, t, head) + column + c * LANES, made, left[c]);
        }
    }
    for (int i = 0; i < p.dim && p.last; ++i)
        for (int c = 0; c < 2; ++c) chunks::put(p.last + place + i * p.value_dim + c * LANES, state[i][c], left[c]);
}

template <class T>
void linear_steps(const LinearState<T>& p, int64_t threads) {
    const int columns = p.turned ? 1 : 2 * LANES;
    const int64_t blocks = (p.value_dim + columns - 1) / columns;
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(p.batch * p.value_heads * blocks, ith, nth);
        for (int64_t i = r.begin; i < r.end; ++i) {
            const int64_t b = i / blocks / p.value_heads, head = i / blocks % p.value_heads;
            const int column = static_cast<int>(i % blocks) * columns;
            if (p.turned) linear_column(p, b, head, column);
            else linear_columns(p, b, head, column);
        }
    });
}

}  // namespace kw

#define KW_LINEAR_STATE_STEPS(NAME)                                                            \
    KW_EXPORT(NAME) {                                                                          \
        kw::with_dtype(args.tensor(2).dtype, [&](auto zero) {                                  \
            kw::linear_steps(kw::LinearState<decltype(zero)>::forward(args), args.integer(12)); \
        });                                                                                    \
    }

#define KW_LINEAR_STATE_CHUNKED(NAME)                                                                   \
    KW_EXPORT(NAME) {                                                                                   \
        kw::with_dtype(args.tensor(2).dtype, [&](auto zero) {                                           \
            kw::chunks::forward(kw::LinearState<decltype(zero)>::forward(args), args.integer(12));      \
        });                                                                                             \
    }                                                                                                   \
    KW_EXPORT(NAME##_backward) {                                                                        \
        kw::with_dtype(args.tensor(8).dtype, [&](auto zero) {                                           \
            kw::chunks::backward(kw::LinearState<decltype(zero)>::backward(args), args.integer(18));    \
        });                                                                                             \
    }
