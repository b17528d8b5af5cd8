// causal_conv1d_update as its definition reads: one output after the other, sums in float64, then the state moves on.
#include "kernel.hpp"

namespace {

template <class T>
T& at(kw::Tensor t, int64_t i, int64_t j, int64_t k) {
    return t.ptr<T>()[i * t.stride[0] + j * t.stride[1] + k * t.stride[2]];
}

}  // namespace

// convolve(out, None, x, weight, bias or None, states, silu, along channels, threads)
KW_EXPORT(convolve) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::Tensor out = args.tensor(0), x = args.tensor(2), weight = args.tensor(3), states = args.tensor(5);
        const int64_t W = weight.shape[1];
        for (int64_t b = 0; b < x.shape[0]; ++b)
            for (int64_t d = 0; d < x.shape[1]; ++d)
                for (int64_t l = 0; l < x.shape[2]; ++l) {
                    double s = args.none(4) ? 0.0 : kw::to_float(args.tensor(4).ptr<T>()[d * args.tensor(4).stride[0]]);
                    for (int64_t k = 0; k < W; ++k) {
                        const int64_t j = l + k - (W - 1);
                        const T input = j < 0 ? at<T>(states, b, d, l + k) : at<T>(x, b, d, j);
                        s += static_cast<double>(kw::to_float(weight.ptr<T>()[d * weight.stride[0] + k * weight.stride[1]])) *
                             kw::to_float(input);
                    }
                    const double made = args.integer(6) ? s / (1.0 + std::exp(-s)) : s;
                    at<T>(out, b, d, l) = kw::from_float<T>(static_cast<float>(made));
                }
    });
}

// shift(conv_state, x, threads)
KW_EXPORT(shift) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::Tensor state = args.tensor(0), x = args.tensor(1);
        const int64_t L = x.shape[2], S = state.shape[2];
        for (int64_t b = 0; b < x.shape[0]; ++b)
            for (int64_t d = 0; d < x.shape[1]; ++d)
                for (int64_t j = 0; j < S; ++j)
                    at<T>(state, b, d, j) = j + L < S ? at<T>(state, b, d, j + L) : at<T>(x, b, d, j + L - S);
    });
}
