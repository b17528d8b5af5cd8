// causal_conv1d as its definition reads: one output after the other, sums in float64.
#include "kernel.hpp"

namespace {

template <class T>
struct Given {
    kw::Tensor x, weight, bias, states;
    bool has_bias, has_states, silu;
    int64_t B, D, L, W;

    Given(const kw::Args& args, int first, bool silu_)
        : x(args.tensor(first)), weight(args.tensor(first + 1)), has_bias(!args.none(first + 2)),
          has_states(!args.none(first + 3)), silu(silu_) {
        if (has_bias) bias = args.tensor(first + 2);
        if (has_states) states = args.tensor(first + 3);
        B = x.shape[0], D = x.shape[1], L = x.shape[2], W = weight.shape[1];
    }
    static T at(kw::Tensor t, int64_t i, int64_t j, int64_t k) {
        return t.ptr<T>()[i * t.stride[0] + j * t.stride[1] + k * t.stride[2]];
    }
    double tap(int64_t d, int64_t k) const {
        return kw::to_float(weight.ptr<T>()[d * weight.stride[0] + k * weight.stride[1]]);
    }
    // Input j of the states and x in a row: the W that make output l are j = l .. l + W - 1.
    T input(int64_t b, int64_t d, int64_t j) const {
        if (j >= W - 1) return at(x, b, d, j - (W - 1));
        return has_states ? at(states, b, d, j) : kw::from_float<T>(0.0f);
    }
    double sum(int64_t b, int64_t d, int64_t l) const {
        double s = has_bias ? kw::to_float(bias.ptr<T>()[d * bias.stride[0]]) : 0.0;
        for (int64_t k = 0; k < W; ++k) s += tap(d, k) * kw::to_float(input(b, d, l + k));
        return s;
    }
};

template <class T>
void put(kw::Tensor t, int64_t i, int64_t j, int64_t k, double value) {
    t.ptr<T>()[i * t.stride[0] + j * t.stride[1] + k * t.stride[2]] = kw::from_float<T>(static_cast<float>(value));
}

template <class T>
void forward(kw::Args args) {
    const Given<T> given(args, 2, args.integer(6));
    for (int64_t b = 0; b < given.B; ++b)
        for (int64_t d = 0; d < given.D; ++d) {
            for (int64_t l = 0; l < given.L; ++l) {
                const double s = given.sum(b, d, l);
                put<T>(args.tensor(0), b, d, l, given.silu ? s / (1.0 + std::exp(-s)) : s);
            }
            for (int64_t j = 0; j < given.W - 1 && !args.none(1); ++j)
                put<T>(args.tensor(1), b, d, j, kw::to_float(given.input(b, d, given.L + j)));
        }
}

template <class T>
void backward(kw::Args args) {
    const Given<T> given(args, 6, args.integer(10));
    const kw::Tensor grad = args.tensor(4);
    auto flow = [&](int64_t b, int64_t d, int64_t l) {
        const double g = kw::to_float(given.at(grad, b, d, l));
        if (!given.silu) return g;
        const double s = given.sum(b, d, l), up = 1.0 / (1.0 + std::exp(-s)), down = 1.0 / (1.0 + std::exp(s));
        return g * (up + up * down * s);
    };
    for (int64_t d = 0; d < given.D; ++d) {
        double of_bias = 0.0;
        for (int64_t b = 0; b < given.B; ++b) {
            for (int64_t l = 0; l < given.L; ++l) of_bias += flow(b, d, l);
            for (int64_t p = 0; p < given.L + given.W - 1; ++p) {
                double of_input = 0.0;
                for (int64_t k = 0; k < given.W; ++k)
                    if (p - k >= 0 && p - k < given.L) of_input += given.tap(d, k) * flow(b, d, p - k);
                if (p >= given.L && !args.none(5)) of_input += kw::to_float(given.at(args.tensor(5), b, d, p - given.L));
                if (p >= given.W - 1) {
                    put<T>(args.tensor(0), b, d, p - (given.W - 1), of_input);
                } else if (!args.none(3)) {
                    put<T>(args.tensor(3), b, d, p, of_input);
                }
            }
        }
        if (!args.none(2)) args.tensor(2).ptr<T>()[d] = kw::from_float<T>(static_cast<float>(of_bias));
        for (int64_t k = 0; k < given.W && !args.none(1); ++k) {
            double of_tap = 0.0;
            for (int64_t b = 0; b < given.B; ++b)
                for (int64_t l = 0; l < given.L; ++l) of_tap += flow(b, d, l) * kw::to_float(given.input(b, d, l + k));
            args.tensor(1).ptr<T>()[d * given.W + k] = kw::from_float<T>(static_cast<float>(of_tap));
        }
    }
}

}  // namespace

// The arguments are those of simd.cpp.
KW_EXPORT(causal_conv1d) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) { forward<decltype(zero)>(args); });
}

KW_EXPORT(causal_conv1d_backward) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) { backward<decltype(zero)>(args); });
}
