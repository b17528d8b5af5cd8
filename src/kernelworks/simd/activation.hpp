// What an expression of the table of activations may call beside functions.hpp, and such functions with numbers:
//
//     where(condition, a, b)                    a or b, of which one may be a constant
//     exponential(d) exponential_less_one(d)    of d <= 0; what they give of others is not to be used
//     log_one_more(e)                           of 0 <= e <= 1
//     logistic(x) hyperbolic_tangent(x)         of any x
//
//     KW_POINTWISE_NUMBERS(elu, 1, (auto x, auto alpha), elu_value(x, alpha))
//     KW_POINTWISE_NUMBERS_BACKWARD(elu, 1, (auto grad, auto x, auto alpha), elu_gradient(grad, x, alpha))
//
// export elu(out, x, alpha, threads) and elu_backward(grad_x, grad, x, alpha, threads): the numbers come as doubles and
// are rounded to float32.
#pragma once

#include "pointwise.hpp"
#if KW_VECTORS
#include "exp.hpp"
#endif

namespace kw {

#if KW_VECTORS
inline V operand(V x) { return x; }
inline V operand(float x) { return splat(x); }
#else
inline V operand(V x) { return x; }
#endif

template <class C, class A, class B>
inline V where(C condition, A a, B b) {
    return condition ? operand(a) : operand(b);
}

#if KW_VECTORS

inline V exponential(V d) { return exp_nonpositive(d); }

// n = d / ln 2 to the nearest integer, 2^n (e^r - 1) + (2^n - 1): e^r - 1 = r + r^2 q(r) keeps its digits around 0, and
// from n = -1 on the second term is at least a half.
inline V exponential_less_one(V d) {
    d = max(splat(-104.5f), d);  // in this order a NaN survives
    const vf n = round_nearest(d * 1.44269504f);
    const vf r = fma(n, splat(-0.693145752f), d), s = fma(n, splat(-1.42860677e-6f), r);  // ln 2 in two parts
    vf q = splat(2.48015873e-5f);
    q = fma(q, s, splat(1.98412698e-4f));
    q = fma(q, s, splat(1.38888889e-3f));
    q = fma(q, s, splat(8.33333333e-3f));
    q = fma(q, s, splat(4.16666667e-2f));
    q = fma(q, s, splat(1.66666667e-1f));
    q = fma(q, s, splat(5.0e-1f));
    const vf power = scale_by_power_of_two(splat(1.0f), n);
    return d == 0.0f ? d : fma(power, fma(q * s, s, s), power - 1.0f);  // -0 keeps its sign
}

// log(1 + e) = 2 atanh(z) with z = e / (2 + e), at most 1/3: 2 z (1 + z^2/3 + z^4/5 + ...).
inline V log_one_more(V e) {
    const vf z = e / (2.0f + e), zz = z * z;
    vf q = splat(1.0f / 17.0f);
    q = fma(q, zz, splat(1.0f / 15.0f));
    q = fma(q, zz, splat(1.0f / 13.0f));
    q = fma(q, zz, splat(1.0f / 11.0f));
    q = fma(q, zz, splat(1.0f / 9.0f));
    q = fma(q, zz, splat(1.0f / 7.0f));
    q = fma(q, zz, splat(1.0f / 5.0f));
    q = fma(q, zz, splat(1.0f / 3.0f));
    const vf twice = z + z;
    return fma(twice * zz, q, twice);
}

#else

inline V exponential(V d) { return std::exp(d); }
inline V exponential_less_one(V d) { return std::expm1(d); }
inline V log_one_more(V e) { return std::log1p(e); }

#endif

// sigmoid(x) = e^-|x| / (1 + e^-|x|) below 0 and 1 / (1 + e^-|x|) above: neither overflows or cancels.
inline V logistic(V x) {
    const V e = exponential(-abs(x));
    return where(x < 0.0f, e, 1.0f) / (1.0f + e);
}

// tanh |x| = -t / (2 + t) with t = e^(-2 |x|) - 1; 0 keeps its sign.
inline V hyperbolic_tangent(V x) {
    const V t = exponential_less_one(-2.0f * abs(x)), y = t / (2.0f + t);
    return where(x == 0.0f, x, where(x < 0.0f, y, -y));
}

template <int K, int N, class F, class At>
inline V with_numbers(F f, At at, const V* number) {
    static_assert((K == 1 || K == 2) && (N == 1 || N == 2));
    if constexpr (K == 1 && N == 1) return f(at(0), number[0]);
    else if constexpr (K == 1) return f(at(0), number[0], number[1]);
    else if constexpr (N == 1) return f(at(0), at(1), number[0]);
    else return f(at(0), at(1), number[0], number[1]);
}

// n elements: p holds the result and the K operands.
template <class F, int K, int N, class T, bool PAST_CACHE>
void numbered(char* const* p, int64_t n, const float* from) {
    const T* in[K];
    V number[N];
    for (int k = 0; k < K; ++k) in[k] = reinterpret_cast<const T*>(p[k + 1]);
    for (int k = 0; k < N; ++k) number[k] = operand(from[k]);
    T* const out = reinterpret_cast<T*>(p[0]);
#if KW_VECTORS
    map<PAST_CACHE>(
        out, n, [&](int64_t i) { return with_numbers<K, N>(F{}, [&](int k) { return load(in[k] + i); }, number); },
        [&](int64_t i, int m) { return with_numbers<K, N>(F{}, [&](int k) { return load(in[k] + i, m); }, number); });
#else
    for (int64_t i = 0; i < n; ++i) {
        const V made = with_numbers<K, N>(F{}, [&](int k) { return static_cast<V>(to_float(in[k][i])); }, number);
        out[i] = from_float<T>(static_cast<float>(made));
    }
#endif
}

// The result, the operands, the numbers, then the number of threads. A forward (K = 1) writes past the caches.
template <class F, int K, int N, bool HEAVY>
void over_numbers(Args args) {
    Tensor t[K + 1];
    float number[N];
    for (int k = 0; k <= K; ++k) t[k] = args.tensor(k);
    for (int k = 0; k < N; ++k) number[k] = static_cast<float>(args.real(K + 1 + k));
    with_dtype(t[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        void (*kernel)(char* const*, int64_t, const float*) = numbered<F, K, N, T, false>;
#if KW_VECTORS
        constexpr bool STREAMS = K == 1 && (!HEAVY || sizeof(T) == 4);
        if (STREAMS && t[0].numel() * static_cast<int64_t>(sizeof(T)) >= PAST_CACHE_BYTES)
            kernel = numbered<F, K, N, T, STREAMS>;
#endif
        elementwise(args.integer(K + 1 + N), t, 1, [&](char* const* p, int64_t n) { kernel(p, n, number); });
    });
}

}  // namespace kw

#define KW_NUMBERED(name, operands, numbers, heavy, parameters, ...)        \
    namespace kw {                                                          \
    namespace {                                                             \
    constexpr auto name##_function = [] parameters { return __VA_ARGS__; }; \
    }                                                                       \
    }                                                                       \
    KW_EXPORT(name) { kw::over_numbers<decltype(kw::name##_function), operands, numbers, heavy>(args); }

#define KW_POINTWISE_NUMBERS(name, numbers, parameters, ...) \
    KW_NUMBERED(name, 1, numbers, false, parameters, __VA_ARGS__)
#define KW_POINTWISE_NUMBERS_HEAVY(name, numbers, parameters, ...) \
    KW_NUMBERED(name, 1, numbers, true, parameters, __VA_ARGS__)
#define KW_POINTWISE_NUMBERS_BACKWARD(name, numbers, parameters, ...) \
    KW_NUMBERED(name##_backward, 2, numbers, false, parameters, __VA_ARGS__)
