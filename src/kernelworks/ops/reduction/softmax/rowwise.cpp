// Softmax along any dimension, forward and backward; how lines are walked is in exp_lines.hpp.
//
// Output, x, dim, threads. dim is -1 for the last dimension, else counted from the front, and then both are contiguous.
#include "exp_lines.hpp"

using kw::V;

struct Forward {
    static constexpr bool OF_EXP = true;
    template <class S>
    static S of(S sum) {
        return 1.0f / sum;
    }
    template <class S>
    static V value(V e, S scale) {
        return e * scale;
    }
};
KW_EXPORT(softmax) { kw::exp_lines<Forward>(args); }

struct Backward {  // dx = y g - y sum(y g)
    static V add(V sum, V g, V y) { return kw::fma(y, g, sum); }
    static V value(V g, V y, V total) { return kw::fma(y, g, -(y * total)); }
};
KW_EXPORT(softmax_backward) { kw::sum_lines<Backward>(args); }
