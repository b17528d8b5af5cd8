// rowwise_dequantize as its definition reads.
#include <cmath>

#include "kernel.hpp"

// out [M, K], the codes' bytes [M, K], scale [M], whether codes are float8, threads
KW_EXPORT(rowwise_dequantize) {
    const kw::Tensor out = args.tensor(0), scale = args.tensor(2);
    const uint8_t* codes = args.tensor(1).ptr<uint8_t>();
    const int64_t rows = scale.numel(), count = out.numel();
    if (!count) return;
    const int64_t K = count / rows;
    const bool is_float8 = args.integer(3) != 0;
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < count; ++i) {
            const int code = codes[i], size = code & 127;
            float x = static_cast<float>(static_cast<int8_t>(codes[i]));
            if (is_float8) {
                x = size < 8 ? std::ldexp(static_cast<float>(size), -9) : std::ldexp(static_cast<float>(8 + size % 8), size / 8 - 10);
                if (size == 127) x = NAN;
                if (code > 127) x = -x;
            }
            out.ptr<T>()[i] = kw::from_float<T>(x * scale.ptr<float>()[i / K]);
        }
    });
}
