// Functions of elements as kernels, one line each:
//
//     KW_POINTWISE(silu_mul, (auto gate, auto up), silu(gate) * up)
//     KW_POINTWISE_BACKWARD(silu_mul, (auto grad, auto gate, auto up), slopes(grad, gate, up))
//
// exports silu_mul(out, gate, up, threads) and silu_mul_backward(grad_gate, grad_up, grad, gate, up, threads), for
// float32, bfloat16 and float16, any strides, any length. The expression is computed on vectors of floats, and where the
// target has none on doubles, one element after another (functions.hpp). It has one result, or several of `both`.
//
// Forwards keep four vectors in flight and write outputs of 8 MiB and more past the caches; KW_POINTWISE_HEAVY, for
// functions whose arithmetic on 16-bit elements takes longer than the memory, does so for float32 alone.
#pragma once

#include "elementwise.hpp"
#include "functions.hpp"
#if KW_VECTORS
#include "map.hpp"
#endif

namespace kw {

using Kernel = void (*)(char* const*, int64_t);  // over n elements; first the results, then the operands

template <class F>
constexpr int operands() {
    if constexpr (requires(F f, V v) { f(v); }) return 1;
    else if constexpr (requires(F f, V v) { f(v, v); }) return 2;
    else if constexpr (requires(F f, V v) { f(v, v, v); }) return 3;
    else return 4;
}

// f of the operands, where at(k) is the k-th.
template <class F, class At>
inline auto applied(F f, At at) {
    constexpr int K = operands<F>();
    if constexpr (K == 1) return f(at(0));
    else if constexpr (K == 2) return f(at(0), at(1));
    else if constexpr (K == 3) return f(at(0), at(1), at(2));
    else return f(at(0), at(1), at(2), at(3));
}

template <class R>
constexpr int RESULTS = 0;
template <>
constexpr int RESULTS<V> = 1;
template <int K>
constexpr int RESULTS<Several<K>> = K;

template <class F>
constexpr int results() {
    return RESULTS<decltype(applied(F{}, [](int) { return V{}; }))>;
}

template <class F, class T>
struct Operands {
    const T* p[operands<F>()];
    explicit Operands(char* const* from) {
        for (int k = 0; k < operands<F>(); ++k) p[k] = reinterpret_cast<const T*>(from[k]);
    }
};

#if KW_VECTORS

template <class F, class T, bool PAST_CACHE>
void forward(char* const* p, int64_t n) {
    const Operands<F, T> in(p + 1);
    map<PAST_CACHE>(
        reinterpret_cast<T*>(p[0]), n, [=](int64_t i) { return applied(F{}, [&](int k) { return load(in.p[k] + i); }); },
        [=](int64_t i, int m) { return applied(F{}, [&](int k) { return load(in.p[k] + i, m); }); });
}

template <class F, class T>
void backward(char* const* p, int64_t n) {
    constexpr int K = results<F>();
    const Operands<F, T> in(p + K);
    if constexpr (K == 1) {
        write_row<false>(
            reinterpret_cast<T*>(p[0]), n,
            [=](int64_t i) { return applied(F{}, [&](int k) { return load(in.p[k] + i); }); },
            [=](int64_t i, int m) { return applied(F{}, [&](int k) { return load(in.p[k] + i, m); }); });
    } else {
        T* out[K];
        for (int k = 0; k < K; ++k) out[k] = reinterpret_cast<T*>(p[k]);
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) {
            const Several<K> made = applied(F{}, [&](int k) { return load(in.p[k] + i); });
            for (int k = 0; k < K; ++k) store(out[k] + i, made.of[k]);
        }
        if (i < n) {
            const int m = static_cast<int>(n - i);
            const Several<K> made = applied(F{}, [&](int k) { return load(in.p[k] + i, m); });
            for (int k = 0; k < K; ++k) store(out[k] + i, made.of[k], m);
        }
    }
}

template <class F, bool HEAVY>
Kernel forward_of(Tensor out) {
    Kernel kernel = nullptr;
    with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        constexpr bool STREAMS = !HEAVY || sizeof(T) == 4;
        const bool past_cache = STREAMS && out.numel() * static_cast<int64_t>(sizeof(T)) >= PAST_CACHE_BYTES;
        kernel = past_cache ? forward<F, T, STREAMS> : forward<F, T, false>;
    });
    return kernel;
}

template <class F>
Kernel backward_of(Tensor out) {
    Kernel kernel = nullptr;
    with_dtype(out.dtype, [&](auto zero) { kernel = backward<F, decltype(zero)>; });
    return kernel;
}

#else

template <class F, class T>
void plain(char* const* p, int64_t n) {
    constexpr int K = results<F>();
    const Operands<F, T> in(p + K);
    for (int64_t i = 0; i < n; ++i) {
        const auto made = applied(F{}, [&](int k) { return static_cast<double>(to_float(in.p[k][i])); });
        for (int k = 0; k < K; ++k) {
            double result;
            if constexpr (K == 1) result = made;
            else result = made.of[k];
            reinterpret_cast<T*>(p[k])[i] = from_float<T>(static_cast<float>(result));
        }
    }
}

template <class F>
Kernel backward_of(Tensor out) {
    Kernel kernel = nullptr;
    with_dtype(out.dtype, [&](auto zero) { kernel = plain<F, decltype(zero)>; });
    return kernel;
}
template <class F, bool HEAVY>
Kernel forward_of(Tensor out) {
    return backward_of<F>(out);
}

#endif

// The results, the operands, then the number of threads.
template <class F>
void over_elements(Args args, Kernel kernel) {
    constexpr int K = results<F>() + operands<F>();
    Tensor t[K];
    for (int k = 0; k < K; ++k) t[k] = args.tensor(k);
    elementwise(args.integer(K), t, results<F>(), kernel);
}

}  // namespace kw

// In the namespace of what an expression may call, so that its names are found before the C library's.
#define KW_POINTWISE_AS(name, kernel, parameters, ...)                                          \
    namespace kw {                                                                              \
    namespace {                                                                                 \
    constexpr auto name##_function = [] parameters { return __VA_ARGS__; };                     \
    }                                                                                           \
    }                                                                                           \
    KW_EXPORT(name) {                                                                           \
        using F = decltype(kw::name##_function);                                                \
        kw::over_elements<F>(args, kernel(args.tensor(0)));                                     \
    }

#define KW_POINTWISE(name, parameters, ...) \
    KW_POINTWISE_AS(name, (kw::forward_of<F, false>), parameters, __VA_ARGS__)
#define KW_POINTWISE_HEAVY(name, parameters, ...) \
    KW_POINTWISE_AS(name, (kw::forward_of<F, true>), parameters, __VA_ARGS__)
#define KW_POINTWISE_BACKWARD(name, parameters, ...) \
    KW_POINTWISE_AS(name##_backward, kw::backward_of<F>, parameters, __VA_ARGS__)
