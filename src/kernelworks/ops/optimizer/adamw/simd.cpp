// adamw_ on vectors of any width, in float32. Gradients whose squares leave float32's range take the float64 element.
#include "elementwise.hpp"
#include "simd.hpp"
#include "step.hpp"

namespace {

using kw::LANES;
using kw::vf;

struct Constants {
    float keep1, take1, keep2, take2, eps, decay, step, root, sign;

    explicit Constants(const kw::AdamW& a)
        : keep1(static_cast<float>(a.beta1)), take1(static_cast<float>(1.0 - a.beta1)),
          keep2(static_cast<float>(a.beta2)), take2(static_cast<float>(1.0 - a.beta2)), eps(static_cast<float>(a.eps)),
          decay(static_cast<float>(a.decay)), step(static_cast<float>(a.lr / a.correction1)),
          root(static_cast<float>(1.0 / a.root_correction2)), sign(static_cast<float>(a.sign)) {}
};

bool any_beyond(vf g, float limit) {
    const auto beyond = kw::abs(g) > limit;
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)beyond);
#else
    int32_t found = 0;
    for (int i = 0; i < LANES; ++i) found |= beyond[i];
    return found;
#endif
}

template <class T, class S>
void update(T* param, S* exp_avg, S* exp_avg_sq, const T* grad, int64_t n, const kw::AdamW& a, const Constants& c) {
    for (int64_t i = 0; i < n; i += LANES) {
        const int k = static_cast<int>(n - i < LANES ? n - i : LANES);
        const vf g = kw::load(grad + i, k) * c.sign, m0 = kw::load(exp_avg + i, k), v0 = kw::load(exp_avg_sq + i, k);
        if (any_beyond(g, 0x1p60f) || any_beyond(m0, 0x1p100f)) [[unlikely]] {
            for (int64_t j = i; j < i + k; ++j)
                kw::adamw_element(param + j, exp_avg + j, exp_avg_sq + j, grad[j], a);
            continue;
        }
        const vf m = kw::fma(m0, kw::splat(c.keep1), g * c.take1);
        const vf v = kw::fma(v0, kw::splat(c.keep2), g * g * c.take2);
        const vf change = m * c.step / kw::fma(kw::sqrt(v), kw::splat(c.root), kw::splat(c.eps));
        kw::store(param + i, kw::load(param + i, k) * c.decay - change, k);
        kw::store(exp_avg + i, m, k);
        kw::store(exp_avg_sq + i, v, k);
    }
}

}  // namespace

// adamw_(param, grad, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, weight_decay, correction1, correction2, maximize,
// threads)
KW_EXPORT(adamw_) {
    const kw::Tensor param = args.tensor(0), grad = args.tensor(1);
    const kw::Tensor exp_avg = args.tensor(2), exp_avg_sq = args.tensor(3);
    const kw::AdamW a = kw::adamw_arguments(args);
    const Constants c(a);
    kw::with_types(param.dtype, exp_avg.dtype, [&](auto t, auto s) {
        using T = decltype(t);
        using S = decltype(s);
        kw::elementwise(args.integer(12), {param, exp_avg, exp_avg_sq, grad}, 3, [&](char* const* p, int64_t n) {
            update(reinterpret_cast<T*>(p[0]), reinterpret_cast<S*>(p[1]), reinterpret_cast<S*>(p[2]),
                   reinterpret_cast<const T*>(p[3]), n, a, c);
        });
    });
}
