// gelu on vectors of any width. See README.md for why both forms are written around one decaying exponential.
#include "elementwise.hpp"
#include "exp2.hpp"
#include "map.hpp"
#include "normal.hpp"

namespace {

using kw::vf;

constexpr float INVERSE_ROOT_TWO_PI = 0.3989422804f;
constexpr float TWO_ROOT_TWO_OVER_PI = 1.595769122f;  // 2 sqrt(2 / pi)
constexpr float LOG2_E = 1.442695041f;
constexpr float CUBIC = 0.044715f;

// x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). With e = exp(-|2 u|) neither side overflows or cancels.
struct Tanh {
    // -|2 u| / ln 2: what 2 is raised to
    static vf exponent(vf x) {
        constexpr float linear = LOG2_E * TWO_ROOT_TWO_OVER_PI, cubic = linear * CUBIC;
        vf w = x * kw::fma(x * x, kw::splat(cubic), kw::splat(linear));
        return kw::max(kw::splat(-151.0f), (vf)((kw::vu)w | 0x80000000u));  // in this order a NaN survives
    }
    static vf forward(vf x) {
        vf e = kw::exp2(exponent(x));
        return x * (x < 0.0f ? e : kw::splat(1.0f)) / (1.0f + e);
    }
    static vf derivative(vf x) {
        vf c = kw::min(kw::splat(20.0f), kw::max(kw::splat(-20.0f), x));  // 0 or 1 long before; x^3 must not overflow
        vf e = kw::exp2(exponent(c)), r = 1.0f / (1.0f + e);
        vf up = x < 0.0f ? e * r : r, down = x < 0.0f ? r : e * r;  // sigmoid(2 u) and sigmoid(-2 u)
        vf slope = kw::fma(c * c, kw::splat(3.0f * TWO_ROOT_TWO_OVER_PI * CUBIC), kw::splat(TWO_ROOT_TWO_OVER_PI));
        return kw::fma(up * down * slope, x, up);  // in this order a huge x meets a 0
    }
};

// x Phi(x), Phi the normal distribution function.
struct Erf {
    static vf forward(vf x) { return x * kw::normal(x).distribution; }
    static vf derivative(vf x) {
        kw::Normal n = kw::normal(x);
        return kw::fma(x * INVERSE_ROOT_TWO_PI, n.kernel, n.distribution);
    }
};

using Kernel = void (*)(char* const*, int64_t);  // p[0] is written from p[1], p[2]

template <class Form, class T, bool PAST_CACHE>
void forward(char* const* p, int64_t n) {
    T* out = reinterpret_cast<T*>(p[0]);
    const T* x = reinterpret_cast<const T*>(p[1]);
    kw::map<PAST_CACHE>(
        out, n, [=](int64_t i) { return Form::forward(kw::load(x + i)); },
        [=](int64_t i, int k) { return Form::forward(kw::load(x + i, k)); });
}

template <class Form, class T>
void backward(char* const* p, int64_t n) {
    T* dx = reinterpret_cast<T*>(p[0]);
    const T *dy = reinterpret_cast<const T*>(p[1]), *x = reinterpret_cast<const T*>(p[2]);
    kw::write_row<false>(
        dx, n, [=](int64_t i) { return kw::load(dy + i) * Form::derivative(kw::load(x + i)); },
        [=](int64_t i, int k) { return kw::load(dy + i, k) * Form::derivative(kw::load(x + i, k)); });
}

template <class Form>
Kernel forward_of(kw::Tensor out) {
    Kernel kernel = nullptr;
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        // With 16-bit elements the arithmetic takes longer than the memory: there is nothing to gain past the caches.
        const bool past_cache = sizeof(T) == 4 && out.numel() * 4 >= kw::PAST_CACHE_BYTES;
        kernel = past_cache ? forward<Form, T, sizeof(T) == 4> : forward<Form, T, false>;
    });
    return kernel;
}

template <class Form>
Kernel backward_of(kw::Tensor dx) {
    Kernel kernel = nullptr;
    kw::with_dtype(dx.dtype, [&](auto zero) { kernel = backward<Form, decltype(zero)>; });
    return kernel;
}

}  // namespace

// gelu(out, x, tanh, threads)
KW_EXPORT(gelu) {
    kw::Tensor out = args.tensor(0), x = args.tensor(1);
    kw::elementwise(args.integer(3), {out, x}, 1, args.integer(2) ? forward_of<Tanh>(out) : forward_of<Erf>(out));
}

// gelu_backward(dx, dy, x, tanh, threads)
KW_EXPORT(gelu_backward) {
    kw::Tensor dx = args.tensor(0), dy = args.tensor(1), x = args.tensor(2);
    kw::elementwise(args.integer(4), {dx, dy, x}, 1, args.integer(3) ? backward_of<Tanh>(dx) : backward_of<Erf>(dx));
}
