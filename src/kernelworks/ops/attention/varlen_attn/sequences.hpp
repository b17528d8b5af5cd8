// Where the sequences of packed tokens begin and end, and what one of them is: a problem of attention's.
//
// Tokens lie as heads of one batch, [1, H, T, D]; sequence s is queries q[s] up to q[s + 1], and keys k[s] up to k[s + 1].
// The last query of a sequence stands at its last key, moved on by as many keys as a query may look ahead.
#pragma once

#include <cstdlib>

#include "../attention/problem.hpp"

namespace kw::attention {

struct Sequences {
    const int64_t *q, *k;
    int64_t count;

    Sequences(const Tensor& ends_q, const Tensor& ends_k)
        : q(ends_q.ptr<int64_t>()), k(ends_k.ptr<int64_t>()), count(ends_q.shape[0] - 1) {}

    int64_t queries(int64_t s) const { return q[s + 1] - q[s]; }
    int64_t keys(int64_t s) const { return k[s + 1] - k[s]; }

    // One sequence of them all. Lq stays the number of all queries: so far apart lie the rows of lse.
    Problem one(const Problem& all, int64_t s) const {
        Problem p = all;
        p.Lk = keys(s);
        p.shift = all.shift + keys(s) - queries(s);
        return p;
    }

    int64_t longest() const {
        int64_t most = 0;
        for (int64_t s = 0; s < count; ++s) most = keys(s) > most ? keys(s) : most;
        return most;
    }

    // Pairs of a query and a key that it may see, over all heads.
    int64_t pairs(const Problem& all) const {
        int64_t sum = 0;
        for (int64_t s = 0; s < count; ++s) {
            Problem p = one(all, s);
            p.Lq = queries(s);
            sum += seen_pairs(p);
        }
        return sum;
    }
};

// The tokens from one on, as if it were the first.
template <class T>
Heads<T> from(const Heads<T>& x, int64_t token) {
    Heads<T> moved = x;
    moved.data += token * x.row;
    return moved;
}

}  // namespace kw::attention
