// silu_mul, to be read: out = gate sigmoid(gate) up, one element after another, in float64.
#include "elementwise.hpp"

namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

template <class T>
double at(const char* p, int64_t i) {
    return kw::to_float(reinterpret_cast<const T*>(p)[i]);
}
template <class T>
void put(char* p, int64_t i, double value) {
    reinterpret_cast<T*>(p)[i] = kw::from_float<T>(static_cast<float>(value));
}

}  // namespace

// silu_mul(out, gate, up, threads)
KW_EXPORT(silu_mul) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::elementwise(1, {args.tensor(0), args.tensor(1), args.tensor(2)}, 1, [](char* const* p, int64_t n) {
            for (int64_t i = 0; i < n; ++i) {
                const double gate = at<T>(p[1], i), up = at<T>(p[2], i);
                put<T>(p[0], i, gate * sigmoid(gate) * up);
            }
        });
    });
}

// With s = sigmoid(gate), the derivative of gate s is s + gate s (1 - s), and 1 - s = sigmoid(-gate).
// silu_mul_backward(grad_gate, grad_up, grad, gate, up, threads)
KW_EXPORT(silu_mul_backward) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::elementwise(1, {args.tensor(0), args.tensor(1), args.tensor(2), args.tensor(3), args.tensor(4)}, 2,
                        [](char* const* p, int64_t n) {
                            for (int64_t i = 0; i < n; ++i) {
                                const double grad = at<T>(p[2], i), gate = at<T>(p[3], i), up = at<T>(p[4], i);
                                const double s = sigmoid(gate);
                                put<T>(p[0], i, grad * up * (s + gate * s * sigmoid(-gate)));
                                put<T>(p[1], i, grad * gate * s);
                            }
                        });
    });
}
