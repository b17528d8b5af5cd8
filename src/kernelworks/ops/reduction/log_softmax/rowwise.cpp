// log_softmax along any dimension, forward and backward; how lines are walked is in exp_lines.hpp.
#include "exp_lines.hpp"

using kw::V;

struct Forward {  // y = (x - max) - log(sum)
    static constexpr bool OF_EXP = false;
    template <class S>
    static S of(S sum) {
        return kw::log(sum);
    }
    template <class S>
    static V value(V distance, S log_sum) {
        return distance - log_sum;
    }
};
KW_EXPORT(log_softmax) { kw::exp_lines<Forward>(args); }

struct Backward {  // dx = g - e^y sum(g)
    static V add(V sum, V g, V) { return sum + g; }
    static V value(V g, V y, V total) { return kw::fma(-kw::exp_nonpositive(y), total, g); }
};
KW_EXPORT(log_softmax_backward) { kw::sum_lines<Backward>(args); }
