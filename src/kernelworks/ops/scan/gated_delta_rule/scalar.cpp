// The gated delta rule as its definition reads, for reading: one step after the other, a column of the state at a time.
#include "problem.hpp"

template <class T>
static void column(const kw::DeltaRule<T>& p, int64_t b, int64_t head, int j) {
    float state[kw::MOST_DIM], key[kw::MOST_DIM], query[kw::MOST_DIM];
    const int64_t place = p.state_of(b, head) + j, key_head = p.key_head(head);
    for (int i = 0; i < p.dim; ++i) state[i] = p.first ? p.first[place + i * p.value_dim] : 0.0f;
    for (int64_t t = 0; t < p.steps; ++t) {
        p.read(key, p.k, b, t, key_head, 1.0f);
        p.read(query, p.q, b, t, key_head, p.scale);
        const float decay = static_cast<float>(std::exp(p.gate(b, t, head))), rate = p.number(p.beta, b, t, head);
        float known = 0, output = 0;
        for (int i = 0; i < p.dim; ++i) {
            state[i] *= decay;
            known += key[i] * state[i];
        }
        const float update = rate * (kw::to_float(p.template at<T>(p.v, b, t, head)[j]) - known);
        for (int i = 0; i < p.dim; ++i) {
            state[i] += key[i] * update;
            output += query[i] * state[i];
        }
        p.template at<T>(p.out, b, t, head)[j] = kw::from_float<T>(output);
    }
    for (int i = 0; i < p.dim && p.last; ++i) p.last[place + i * p.value_dim] = state[i];
}

KW_EXPORT(gated_delta_rule) {
    kw::with_dtype(args.tensor(2).dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::DeltaRule<T> p(args);
        kw::parallel(p.threads, [&](int64_t ith, int64_t nth) {
            const kw::Range r = kw::slice(p.batch * p.value_heads * p.value_dim, ith, nth);
            for (int64_t i = r.begin; i < r.end; ++i) {
                const int64_t head = i / p.value_dim;
                column(p, head / p.value_heads, head % p.value_heads, static_cast<int>(i % p.value_dim));
            }
        });
    });
}
