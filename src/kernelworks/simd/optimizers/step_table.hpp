// Steps that are entries of a table, from the expressions of an entry (templates/optimizers/step_table.py):
//
//     KW_STEP_ENTRY(NAME, STATES, NUMBERS)
//
// exports NAME(tensors, *numbers, threads, *params, *states of each list, *grads) of NAME_element(w, g, c), which makes
// of w, an element of the parameter and of each state, what the step makes of it, with the gradient g and the numbers c.
//
// Vectors are in float32. Values that could leave its range on the way take the element in float64, as all do if a
// number could.
#pragma once

#include "step.hpp"

namespace kw {

#if KW_VECTORS
template <class V>
inline V constant(double x) {
    if constexpr (std::is_same_v<V, double>) {
        return x;
    } else {
        return splat(static_cast<float>(x));
    }
}
template <class C>
inline vf where(C condition, vf a, vf b) { return condition ? a : b; }
#else
template <class V>
inline V constant(double x) { return x; }
#endif
inline double where(bool condition, double a, double b) { return condition ? a : b; }
inline double sqrt(double a) { return std::sqrt(a); }

// Whether a number may be taken in float32: no product on the way leaves its range, if no value is huge.
inline bool middle(double x) { return x == 0.0 || (std::fabs(x) >= 0x1p-100 && std::fabs(x) <= 0x1p15); }

template <int STATES, class F, class T, class S>
void step_one_by_one(char* const* p, int64_t begin, int64_t n, const double* numbers, F element, T, S) {
    const T* gradient = reinterpret_cast<const T*>(p[1 + STATES]);
    for (int64_t i = begin; i < begin + n; ++i) {
        double w[1 + STATES];
        w[0] = static_cast<double>(to_float(reinterpret_cast<const T*>(p[0])[i]));
        for (int k = 1; k <= STATES; ++k) w[k] = static_cast<double>(to_float(reinterpret_cast<const S*>(p[k])[i]));
        element(w, static_cast<double>(to_float(gradient[i])), numbers);
        reinterpret_cast<T*>(p[0])[i] = from_float<T>(static_cast<float>(w[0]));
        for (int k = 1; k <= STATES; ++k) reinterpret_cast<S*>(p[k])[i] = from_float<S>(static_cast<float>(w[k]));
    }
}

#if KW_VECTORS
inline bool any_beyond(vf x) {
    const auto beyond = x > 0x1p60f;
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)beyond);
#else
    return _mm256_movemask_ps((__m256)beyond);
#endif
}

template <int STATES, class F, class T, class S>
void step_vectors(char* const* p, int64_t n, const float* near, const double* exact, F element, T t, S s) {
    const T* gradient = reinterpret_cast<const T*>(p[1 + STATES]);
    auto several = [&](int64_t i, auto... count) {  // a whole vector, or the first `count` elements of one
        vf w[1 + STATES];
        w[0] = load(reinterpret_cast<const T*>(p[0]) + i, count...);
        const vf g = load(gradient + i, count...);
        vf largest = max(abs(w[0]), abs(g));
        for (int k = 1; k <= STATES; ++k) {
            w[k] = load(reinterpret_cast<const S*>(p[k]) + i, count...);
            largest = max(largest, abs(w[k]));
        }
        if (any_beyond(largest)) [[unlikely]]
            return step_one_by_one<STATES>(p, i, (int64_t{LANES} + ... + (count - LANES)), exact, element, t, s);
        element(w, g, near);
        store(reinterpret_cast<T*>(p[0]) + i, w[0], count...);
        for (int k = 1; k <= STATES; ++k) store(reinterpret_cast<S*>(p[k]) + i, w[k], count...);
    };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) several(i);
    if (i < n) several(i, static_cast<int>(n - i));
}
#endif

template <int STATES, int NUMBERS, class F>
void step_entry(Args args, F element) {
    double exact[NUMBERS];
    [[maybe_unused]] float near[NUMBERS];
    [[maybe_unused]] bool narrow = true;
    for (int k = 0; k < NUMBERS; ++k) {
        exact[k] = args.real(1 + k);
        near[k] = static_cast<float>(exact[k]);
        narrow = narrow && middle(exact[k]);
    }
    const Lists lists{args, 2 + NUMBERS, args.integer(0)};
    over_lists<2 + STATES>(lists, args.integer(1 + NUMBERS), 1 + STATES, [&](auto t, auto s, char* const* p, int64_t n) {
#if KW_VECTORS
        if (narrow) return step_vectors<STATES>(p, n, near, exact, element, t, s);
#endif
        step_one_by_one<STATES>(p, 0, n, exact, element, t, s);
    });
}

}  // namespace kw

#define KW_STEP_ENTRY(NAME, STATES, NUMBERS)                                                          \
    KW_EXPORT(NAME) {                                                                                 \
        kw::step_entry<STATES, NUMBERS>(args, [](auto* w, auto g, const auto* c) { kw::NAME##element(w, g, c); }); \
    }
