// adamw_, to be read: one element after another, in float64 (step.hpp has the element).
#include "elementwise.hpp"
#include "step.hpp"

// adamw_(param, grad, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, weight_decay, correction1, correction2, maximize,
// threads)
KW_EXPORT(adamw_) {
    const kw::Tensor param = args.tensor(0), grad = args.tensor(1);
    const kw::Tensor exp_avg = args.tensor(2), exp_avg_sq = args.tensor(3);
    const kw::AdamW a = kw::adamw_arguments(args);
    kw::with_types(param.dtype, exp_avg.dtype, [&](auto t, auto s) {
        using T = decltype(t);
        using S = decltype(s);
        kw::elementwise(1, {param, exp_avg, exp_avg_sq, grad}, 3, [&](char* const* p, int64_t n) {
            for (int64_t i = 0; i < n; ++i)
                kw::adamw_element(reinterpret_cast<T*>(p[0]) + i, reinterpret_cast<S*>(p[1]) + i,
                                  reinterpret_cast<S*>(p[2]) + i, reinterpret_cast<const T*>(p[3])[i], a);
        });
    });
}
