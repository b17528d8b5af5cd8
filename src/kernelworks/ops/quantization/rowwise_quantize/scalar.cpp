// rowwise_quantize as its definition reads: one row after the other.
#include <cmath>
#include <cstring>

#include "kernel.hpp"

namespace {

// The code of the nearest number of e4m3, halves to the even one: of up to 448 in size. NaN is 127.
uint8_t float8(float q) {
    if (std::isnan(q)) return 127;
    const float size = std::fabs(q);
    const uint8_t sign = std::signbit(q) ? 128 : 0;
    if (size < 0x1p-6f) return static_cast<uint8_t>(sign + std::nearbyint(size * 512.0f));
    int exponent;
    const float mantissa = std::frexp(size, &exponent);  // size = mantissa 2^exponent, from 1/2 on
    return static_cast<uint8_t>(sign + (exponent + 5) * 8 + static_cast<int>(std::nearbyint(mantissa * 16.0f)));
}

}  // namespace

// codes [M, K], scale [M], x [M, K], whether codes are float8, threads
KW_EXPORT(rowwise_quantize) {
    const int64_t M = args.tensor(1).numel();
    const bool is_float8 = args.integer(3) != 0;
    const float most = is_float8 ? 448.0f : 127.0f;
    kw::with_dtype(args.tensor(2).dtype, [&](auto zero) {
        const kw::Rows<const decltype(zero)> x(args.tensor(2));
        const int64_t K = x.N;
        for (int64_t m = 0; m < M; ++m) {
            const auto* from = x[m];
            float largest = 0.0f;
            for (int64_t k = 0; k < K; ++k) {
                const float size = std::fabs(kw::to_float(from[k]));
                if (std::isnan(size) || size > largest) largest = size;
                if (std::isnan(largest)) break;
            }
            const float scale = largest / most;
            args.tensor(1).ptr<float>()[m] = scale;
            for (int64_t k = 0; k < K; ++k) {
                float q = scale == 0.0f ? 0.0f : kw::to_float(from[k]) / scale;
                if (q > most) q = most;
                if (q < -most) q = -most;
                uint8_t code = is_float8 ? float8(q) : 0;
                if (!is_float8 && !std::isnan(q)) code = static_cast<uint8_t>(static_cast<int>(std::nearbyint(q)));
                args.tensor(0).ptr<uint8_t>()[m * K + k] = code;
            }
        }
    });
}
