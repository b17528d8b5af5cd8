// gelu, to be read: one element after another, in float64.
//   tanh form: x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3), which is x (1 + tanh u) / 2
//   erf form:  x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2 the normal distribution function
#include "elementwise.hpp"

namespace {

constexpr double PI = 3.14159265358979323846;
const double TWICE_ROOT_TWO_OVER_PI = 2.0 * std::sqrt(2.0 / PI);

double twice_u(double x) { return TWICE_ROOT_TWO_OVER_PI * (x + 0.044715 * x * x * x); }
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double normal_distribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double gelu_of(double x, bool tanh) { return x * (tanh ? sigmoid(twice_u(x)) : normal_distribution(x)); }

double derivative(double x, bool tanh) {
    if (!tanh) return normal_distribution(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * PI);
    const double s = sigmoid(twice_u(x)), slope = TWICE_ROOT_TWO_OVER_PI * (1.0 + 3.0 * 0.044715 * x * x);
    return s + s * sigmoid(-twice_u(x)) * slope * x;
}

}  // namespace

// gelu(out, x, tanh, threads)
KW_EXPORT(gelu) {
    const kw::Tensor out = args.tensor(0), x = args.tensor(1);
    const bool tanh = args.integer(2);
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::elementwise(1, {out, x}, 1, [&](char* const* p, int64_t n) {
            for (int64_t i = 0; i < n; ++i)
                reinterpret_cast<T*>(p[0])[i] = kw::from_float<T>(
                    static_cast<float>(gelu_of(kw::to_float(reinterpret_cast<const T*>(p[1])[i]), tanh)));
        });
    });
}

// gelu_backward(dx, dy, x, tanh, threads)
KW_EXPORT(gelu_backward) {
    const kw::Tensor dx = args.tensor(0), dy = args.tensor(1), x = args.tensor(2);
    const bool tanh = args.integer(3);
    kw::with_dtype(dx.dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::elementwise(1, {dx, dy, x}, 1, [&](char* const* p, int64_t n) {
            for (int64_t i = 0; i < n; ++i) {
                const double g = kw::to_float(reinterpret_cast<const T*>(p[1])[i]);
                const double value = kw::to_float(reinterpret_cast<const T*>(p[2])[i]);
                reinterpret_cast<T*>(p[0])[i] = kw::from_float<T>(static_cast<float>(g * derivative(value, tanh)));
            }
        });
    });
}
