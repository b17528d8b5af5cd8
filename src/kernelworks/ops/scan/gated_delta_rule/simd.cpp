// The gated delta rule step by step: what decodes. A thread holds some columns of a head's state in L1 for all steps, reads
// them against the key, then updates them and reads them against the query.
#include "problem.hpp"
#include "simd.hpp"

namespace {

using namespace kw;

constexpr int VECTORS = 2;                     // of neighbouring columns that are worked on together
constexpr int COLUMNS = VECTORS * LANES;
constexpr int SUMS = 4;                        // in turn, so that no addition waits for the one before

using Row = vf[VECTORS];

// Columns that there are: of the last block some are not, and are 0.
template <class T>
inline vf some(const T* p, int left) {
    return left >= LANES ? load(p) : left > 0 ? load(p, left) : vf{};
}
template <class T>
inline void put(T* p, vf x, int left) {
    if (left >= LANES) store(p, x);
    else if (left > 0) store(p, x, left);
}

template <class T>
void run(const DeltaRule<T>& p, int64_t b, int64_t head, int column) {
    alignas(64) Row state[MOST_DIM];
    alignas(64) float key[MOST_DIM], query[MOST_DIM];
    const int left = p.value_dim - column, dim = p.dim;
    const int64_t place = p.state_of(b, head) + column, key_head = p.key_head(head);
    for (int i = 0; i < dim; ++i)
        for (int c = 0; c < VECTORS; ++c)
            state[i][c] = p.first ? some(p.first + place + i * p.value_dim + c * LANES, left - c * LANES) : vf{};
    for (int64_t t = 0; t < p.steps; ++t) {
        p.read(key, p.k, b, t, key_head, 1.0f);
        p.read(query, p.q, b, t, key_head, p.scale);
        const float decay = static_cast<float>(std::exp(p.gate(b, t, head))), rate = p.number(p.beta, b, t, head);
        vf known[SUMS][VECTORS] = {}, output[SUMS][VECTORS] = {};
        int i = 0;
        for (; i + SUMS <= dim; i += SUMS)
            for (int s = 0; s < SUMS; ++s)
                for (int c = 0; c < VECTORS; ++c) known[s][c] = fma(splat(key[i + s]), state[i + s][c], known[s][c]);
        for (; i < dim; ++i)
            for (int c = 0; c < VECTORS; ++c) known[0][c] = fma(splat(key[i]), state[i][c], known[0][c]);
        vf update[VECTORS];
        const T* value = p.template at<T>(p.v, b, t, head) + column;
        for (int c = 0; c < VECTORS; ++c) {
            const vf knew = (known[0][c] + known[1][c]) + (known[2][c] + known[3][c]);
            update[c] = rate * (some(value + c * LANES, left - c * LANES) - decay * knew);
        }
        auto step = [&](int at, int s) {
            for (int c = 0; c < VECTORS; ++c) {
                state[at][c] = fma(splat(key[at]), update[c], decay * state[at][c]);
                output[s][c] = fma(splat(query[at]), state[at][c], output[s][c]);
            }
        };
        for (i = 0; i + SUMS <= dim; i += SUMS)
            for (int s = 0; s < SUMS; ++s) step(i + s, s);
        for (; i < dim; ++i) step(i, 0);
        T* to = p.template at<T>(p.out, b, t, head) + column;
        for (int c = 0; c < VECTORS; ++c)
            put(to + c * LANES, (output[0][c] + output[1][c]) + (output[2][c] + output[3][c]), left - c * LANES);
    }
    for (int i = 0; i < dim && p.last; ++i)
        for (int c = 0; c < VECTORS; ++c) put(p.last + place + i * p.value_dim + c * LANES, state[i][c], left - c * LANES);
}

}  // namespace

KW_EXPORT(gated_delta_rule) {
    with_dtype(args.tensor(2).dtype, [&](auto zero) {
        using T = decltype(zero);
        const DeltaRule<T> p(args);
        const int64_t blocks = (p.value_dim + COLUMNS - 1) / COLUMNS;
        parallel(p.threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(p.batch * p.value_heads * blocks, ith, nth);
            for (int64_t i = r.begin; i < r.end; ++i) {
                const int64_t head = i / blocks;
                run(p, head / p.value_heads, head % p.value_heads, static_cast<int>(i % blocks * COLUMNS));
            }
        });
    });
}
