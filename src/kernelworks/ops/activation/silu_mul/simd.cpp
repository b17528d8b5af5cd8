// silu_mul on vectors of any width. The forward is gate / (1 + e^-gate) up: where e^-gate overflows, the result is the 0
// that float32 has for it. The derivative needs both sigmoids, which come from e^-|gate| without cancelling.
#include "elementwise.hpp"
#include "exp2.hpp"
#include "map.hpp"

namespace {

using kw::vf;
using Kernel = void (*)(char* const*, int64_t);

constexpr float LOG2_E = 1.442695041f;

vf silu(vf x) {
    const vf w = kw::max(kw::splat(-151.0f), kw::min(kw::splat(151.0f), x * -LOG2_E));  // in this order a NaN survives
    return x / (1.0f + kw::exp2(w));
}

struct Sigmoid {
    vf up, down;  // sigmoid(x), sigmoid(-x)
};

Sigmoid sigmoid(vf x) {
    const vf e = kw::exp2(kw::max(kw::splat(-151.0f), kw::abs(x) * -LOG2_E)), r = 1.0f / (1.0f + e), s = e * r;
    return Sigmoid{x < 0.0f ? s : r, x < 0.0f ? r : s};
}

// p: out, gate, up
template <class T, bool PAST_CACHE>
void forward(char* const* p, int64_t n) {
    T* out = reinterpret_cast<T*>(p[0]);
    const T *gate = reinterpret_cast<const T*>(p[1]), *up = reinterpret_cast<const T*>(p[2]);
    kw::map<PAST_CACHE>(
        out, n, [=](int64_t i) { return silu(kw::load(gate + i)) * kw::load(up + i); },
        [=](int64_t i, int k) { return silu(kw::load(gate + i, k)) * kw::load(up + i, k); });
}

// p: grad_gate, grad_up, grad, gate, up
template <class T>
void backward(char* const* p, int64_t n) {
    T *grad_gate = reinterpret_cast<T*>(p[0]), *grad_up = reinterpret_cast<T*>(p[1]);
    const T *grad = reinterpret_cast<const T*>(p[2]), *gate = reinterpret_cast<const T*>(p[3]),
            *up = reinterpret_cast<const T*>(p[4]);
    for (int64_t i = 0; i < n; i += kw::LANES) {
        const int k = static_cast<int>(n - i < kw::LANES ? n - i : kw::LANES);
        const vf x = kw::load(gate + i, k), g = kw::load(grad + i, k);
        const Sigmoid s = sigmoid(x);
        // silu'(x) = s + x s (1 - s)
        kw::store(grad_gate + i, g * kw::load(up + i, k) * kw::fma(s.up * s.down, x, s.up), k);
        kw::store(grad_up + i, g * (x * s.up), k);
    }
}

}  // namespace

// silu_mul(out, gate, up, threads)
KW_EXPORT(silu_mul) {
    kw::Tensor out = args.tensor(0), gate = args.tensor(1), up = args.tensor(2);
    Kernel kernel = nullptr;
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        const bool past_cache = out.numel() * static_cast<int64_t>(sizeof(T)) >= kw::PAST_CACHE_BYTES;
        kernel = past_cache ? forward<T, true> : forward<T, false>;
    });
    kw::elementwise(args.integer(3), {out, gate, up}, 1, kernel);
}

// silu_mul_backward(grad_gate, grad_up, grad, gate, up, threads)
KW_EXPORT(silu_mul_backward) {
    kw::Tensor grad_gate = args.tensor(0);
    Kernel kernel = nullptr;
    kw::with_dtype(grad_gate.dtype, [&](auto zero) { kernel = backward<decltype(zero)>; });
    kw::elementwise(args.integer(5), {grad_gate, args.tensor(1), args.tensor(2), args.tensor(3), args.tensor(4)}, 2,
                    kernel);
}
