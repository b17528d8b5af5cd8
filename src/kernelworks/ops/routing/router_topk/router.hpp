// What the experts of one token weigh, and how their weights depend on its logits: for reading, in double.
#pragma once

#include <vector>

#include "scalar_select.hpp"

namespace kw {

constexpr double ROUTER_EPS = 1e-20;  // beside a sum of sigmoids

struct RouterWay {
    bool sigmoid, normed;
    double scale;
};

inline double sigmoid_of(double x) { return x < 0 ? std::exp(x) / (1.0 + std::exp(x)) : 1.0 / (1.0 + std::exp(-x)); }

// The scores of `count` logits: each for itself, or all with the sum 1.
inline void scores_of(double* scores, const double* x, int64_t count, bool sigmoid) {
    double top = x[0], total = 0.0;
    for (int64_t i = 1; i < count; ++i) top = x[i] > top || x[i] != x[i] ? x[i] : top;
    for (int64_t i = 0; i < count; ++i) {
        scores[i] = sigmoid ? sigmoid_of(x[i]) : std::exp(x[i] - top);
        total += scores[i];
    }
    for (int64_t i = 0; i < count && !sigmoid; ++i) scores[i] /= total;
}

}  // namespace kw
