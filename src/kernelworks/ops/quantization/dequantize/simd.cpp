// dequantize: block by block, decoded in registers.
#include "packed/formats.hpp"

// dequantize(output [numbers], packed [bytes], format's number, threads)
KW_EXPORT(dequantize) {
    const kw::Tensor output = args.tensor(0), packed = args.tensor(1);
    kw::with_dtype(output.dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::with_format(args.integer(2), [&](auto format) {
            using F = decltype(format);
            const uint8_t* from = packed.ptr<uint8_t>();
            T* to = output.ptr<T>();
            const int64_t n = output.numel();
            kw::parallel(kw::worth(args.integer(3), n * 4, 64 * 1024), [&](int64_t ith, int64_t nth) {
                const kw::Range mine = kw::slice(n / F::BLOCK, ith, nth);
                for (int64_t b = mine.begin; b < mine.end; ++b) {
                    const kw::Factors<F> by(from + b * F::BYTES);
                    for (int g = 0; g < F::BLOCK / kw::GROUP; ++g) {
                        kw::vf w[kw::GROUP / kw::LANES];
                        kw::decode<F>(from + b * F::BYTES, by, g, w);
                        T* here = to + b * F::BLOCK + g * kw::GROUP;
#pragma GCC unroll 8
                        for (int i = 0; i < kw::GROUP / kw::LANES; ++i) kw::store(here + i * kw::LANES, w[i]);
                    }
                }
            });
        });
    });
}
