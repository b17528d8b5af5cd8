// Mamba-2's recurrence as its definition reads, for reading: one step after the other, a column of the state at a time.
#include "states/linear_state.hpp"

template <class T>
static void column(const kw::LinearState<T>& p, int64_t b, int64_t head, int j) {
    float state[kw::chunks::MOST_DIM], key[kw::chunks::MOST_DIM], query[kw::chunks::MOST_DIM];
    for (int i = 0; i < p.dim; ++i) state[i] = p.first ? p.first[p.state_place(b, head, i, j)] : 0.0f;
    for (int64_t t = 0; t < p.steps; ++t) {
        p.read_key(key, b, t, p.key_head(head));
        p.read_query(query, b, t, p.key_head(head));
        const float decay = static_cast<float>(std::exp(p.gate(b, t, head))), x = kw::to_float(p.values(b, t, head)[j]);
        const float update = p.factor(b, t, head) * x;  // dt x
        float output = 0;
        for (int i = 0; i < p.dim; ++i) {
            state[i] = (p.begins(b, t) ? 0.0f : decay * state[i]) + key[i] * update;
            output += query[i] * state[i];
        }
        p.template at<T>(p.out, b, t, head)[j] = kw::from_float<T>(output + (p.has_skips ? p.skip(head) * x : 0.0f));
    }
    for (int i = 0; i < p.dim && p.last; ++i) p.last[p.state_place(b, head, i, j)] = state[i];
}

KW_EXPORT(ssd) {
    kw::with_dtype(args.tensor(2).dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto p = kw::LinearState<T>::forward(args);
        kw::parallel(args.integer(12), [&](int64_t ith, int64_t nth) {
            const kw::Range r = kw::slice(p.batch * p.value_heads * p.value_dim, ith, nth);
            for (int64_t i = r.begin; i < r.end; ++i) {
                const int64_t head = i / p.value_dim;
                column(p, head / p.value_heads, head % p.value_heads, static_cast<int>(i % p.value_dim));
            }
        });
    });
}
