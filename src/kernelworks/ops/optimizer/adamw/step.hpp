// One step of AdamW for one element, in float64: what the plain kernel runs, and the wide kernels where a square leaves
// float32.
#pragma once

#include "kernel.hpp"

namespace kw {

struct AdamW {
    double lr, beta1, beta2, eps, decay;     // decay = 1 - lr weight_decay
    double correction1, root_correction2;    // 1 - beta1^step, sqrt(1 - beta2^step)
    double sign;                             // -1 where the objective is maximized
};

// From adamw_'s arguments: 4 tensors, lr, beta1, beta2, eps, weight_decay, correction1, correction2, maximize, threads.
inline AdamW adamw_arguments(Args args) {
    return AdamW{args.real(4), args.real(5), args.real(6), args.real(7), 1.0 - args.real(4) * args.real(8),
                 args.real(9), std::sqrt(args.real(10)), args.integer(11) ? -1.0 : 1.0};
}

template <class T, class S>
inline void adamw_element(T* param, S* exp_avg, S* exp_avg_sq, T grad, const AdamW& a) {
    const double g = a.sign * to_float(grad), m = to_float(*exp_avg);
    const double average = m + (g - m) * (1.0 - a.beta1);
    const double square = a.beta2 * to_float(*exp_avg_sq) + (1.0 - a.beta2) * g * g;
    const double update = a.lr / a.correction1 * average / (std::sqrt(square) / a.root_correction2 + a.eps);
    *param = from_float<T>(static_cast<float>(to_float(*param) * a.decay - update));
    *exp_avg = from_float<S>(static_cast<float>(average));
    *exp_avg_sq = from_float<S>(static_cast<float>(square));
}

// with_types(param, state, [&](auto zero_of_param, auto zero_of_state) { ... }): the state has the parameter's type or
// is float32.
template <class F>
inline void with_types(DLDataType param, DLDataType state, F f) {
    with_dtype(param, [&](auto p) {
        if (state.bits == 32) {
            f(p, float{});
        } else {
            f(p, p);
        }
    });
}

}  // namespace kw
