// rowwise_linear, to be read: each output is a sum of products, times the row's scale, plus the bias.
#include <cmath>

#include "kernel.hpp"

namespace {

double decode(uint8_t code, bool is_float8) {
    if (!is_float8) return static_cast<int8_t>(code);
    const int exponent = code >> 3 & 15, fraction = code & 7;
    if (exponent == 15 && fraction == 7) return std::nan("");
    const double size = exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
    return code & 128 ? -size : size;
}

}  // namespace

// out [M, N], x float32 [M, K], weight's bytes [N, K], scale [N], bias or None, whether codes are float8, threads
KW_EXPORT(rowwise_linear) {
    const kw::Tensor out = args.tensor(0), x = args.tensor(1), weight = args.tensor(2);
    const int64_t M = x.shape[0], N = weight.shape[0], K = weight.shape[1];
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t m = 0; m < M; ++m)
            for (int64_t n = 0; n < N; ++n) {
                double sum = 0;
                for (int64_t k = 0; k < K; ++k)
                    sum += x.ptr<float>()[m * K + k] * decode(weight.ptr<uint8_t>()[n * K + k], args.integer(5));
                sum *= args.tensor(3).ptr<float>()[n];
                if (!args.none(4)) sum += kw::to_float(args.tensor(4).ptr<T>()[n]);
                out.ptr<T>()[m * N + n] = kw::from_float<T>(static_cast<float>(sum));
            }
    });
}
