// What an expression of the table of activations may call beside functions.hpp, and the kernels of its entries:
//
//     where(condition, a, b)                    a or b, of which one may be a constant
//     exponential(d) exponential_less_one(d)    of d <= 0; what they give of others is not to be used
//     log_one_more(e)                           of 0 <= e <= 1
//     logistic(x) hyperbolic_tangent(x)         of any x
//
//     KW_POINTWISE_ENTRY(elu, 1, elu_value(a[0], number[0]))
//     KW_POINTWISE_ENTRY_BACKWARD(elu, 1, elu_gradient(a[0], a[1], number[0]))
//
// export elu(out, x, alpha, threads) and elu_backward(grad_x, grad, x, alpha, threads): the numbers, of which there are
// so many, come as doubles and are rounded to float32.
//
// A table has many entries, and all are compiled together. So an expression stands in a library once in each direction
// and not once for each type and way to store: those are asked once for four vectors.
#pragma once

#include "elementwise.hpp"
#include "functions.hpp"
#if KW_VECTORS
#include "exp.hpp"
#include "map.hpp"
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

// ---------------------------------------------------------------- kernels

enum Type { FLOAT32, BFLOAT16, FLOAT16 };

inline Type type_of(DLDataType t) { return t.code == kDLBfloat ? BFLOAT16 : t.bits == 16 ? FLOAT16 : FLOAT32; }

// f(p as a pointer to elements of the type).
template <class F>
inline void with_type(Type type, char* p, F f) {
    if (type == FLOAT32) f(reinterpret_cast<float*>(p));
    else if (type == BFLOAT16) f(reinterpret_cast<bf16*>(p));
    else f(reinterpret_cast<f16*>(p));
}

// Over n elements: p holds the result and the operands.
using Elements = void (*)(char* const* p, int64_t n, const float* numbers, Type type, bool past_cache);

#if KW_VECTORS
constexpr int STEP = 4;  // vectors in flight: one's latency hides behind the others'

template <bool PAST_CACHE>
inline void store_step(Type type, char* p, int64_t i, const V* y) {
    with_type(type, p, [&](auto* out) {
        store_pair<PAST_CACHE>(out + i, y[0], y[1]);
        store_pair<PAST_CACHE>(out + i + 2 * LANES, y[2], y[3]);
    });
}

template <class F, int K>
void elements(char* const* p, int64_t n, const float* numbers, Type type, bool past_cache) {
    const V number[2] = {splat(numbers[0]), splat(numbers[1])};
    int64_t i = 0;
    auto part = [&](int m) {  // the next m elements, at most a vector of them
        V a[K] = {};
        for (int k = 0; k < K; ++k) with_type(type, p[k + 1], [&](auto* in) { a[k] = load(in + i, m); });
        const V y = F::of(a, number);
        with_type(type, p[0], [&](auto* out) { store(out + i, y, m); });
        i += m;
    };
    const int64_t width = type == FLOAT32 ? 4 : 2;
    int64_t head = past_cache ? (-reinterpret_cast<intptr_t>(p[0]) & 63) / width : 0;  // to the first cache line
    if (head > n) head = n;
    for (int64_t end = head;;) {
        while (i < end) part(static_cast<int>(end - i < LANES ? end - i : LANES));
        if (i == n) break;
        for (; i + STEP * LANES <= n; i += STEP * LANES) {
            V a[STEP][K], y[STEP];
            for (int k = 0; k < K; ++k)
                with_type(type, p[k + 1], [&](auto* in) {
                    for (int j = 0; j < STEP; ++j) a[j][k] = load(in + i + j * LANES);
                });
            for (int j = 0; j < STEP; ++j) y[j] = F::of(a[j], number);
            if (past_cache) store_step<true>(type, p[0], i, y);
            else store_step<false>(type, p[0], i, y);
        }
        end = n;
    }
    if (past_cache) stream_end();
}
#else
template <class F, int K>
void elements(char* const* p, int64_t n, const float* numbers, Type type, bool) {
    const V number[2] = {numbers[0], numbers[1]};
    for (int64_t i = 0; i < n; ++i) {
        V a[K] = {};
        for (int k = 0; k < K; ++k) with_type(type, p[k + 1], [&](auto* in) { a[k] = to_float(in[i]); });
        const float y = static_cast<float>(F::of(a, number));
        with_type(type, p[0], [&]<class T>(T* out) { out[i] = from_float<T>(y); });
    }
}
constexpr int64_t PAST_CACHE_BYTES = INT64_MAX;
#endif

// The result, the operands, the numbers, then the number of threads. A forward (K = 1) writes past the caches.
template <int K>
void run_entry(Args args, int count, Elements kernel) {
    Tensor t[K + 1];
    float numbers[2] = {};
    for (int k = 0; k <= K; ++k) t[k] = args.tensor(k);
    for (int k = 0; k < count; ++k) numbers[k] = static_cast<float>(args.real(K + 1 + k));
    const Type type = type_of(t[0].dtype);
    const bool past_cache = K == 1 && t[0].numel() * (t[0].dtype.bits / 8) >= PAST_CACHE_BYTES;
    elementwise(args.integer(K + 1 + count), t, 1,
                [&](char* const* p, int64_t n) { kernel(p, n, numbers, type, past_cache); });
}

}  // namespace kw

// In the namespace of what an expression may call, so that its names are found before the C library's.
#define KW_EXPORT_ENTRY(name, operands, count, ...)                                                              \
    namespace kw {                                                                                             \
    namespace {                                                                                                \
    struct name##_elements {                                                                                   \
        static V of([[maybe_unused]] const V* a, [[maybe_unused]] const V* number) { return __VA_ARGS__; }     \
    };                                                                                                         \
    }                                                                                                          \
    }                                                                                                          \
    KW_EXPORT(name) { kw::run_entry<operands>(args, count, kw::elements<kw::name##_elements, operands>); }

#define KW_POINTWISE_ENTRY(name, count, ...) KW_EXPORT_ENTRY(name, 1, count, __VA_ARGS__)
#define KW_POINTWISE_ENTRY_BACKWARD(name, count, ...) KW_EXPORT_ENTRY(name##_backward, 2, count, __VA_ARGS__)
