// quantize, to be read: block by block, number by number.
#include "packed/formats.hpp"

// quantize(output [M, bytes], x [M, K], format's number, threads)
KW_EXPORT(quantize) {
    const kw::Tensor output = args.tensor(0);
    kw::with_dtype(args.tensor(1).dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::Rows<const T> x(args.tensor(1));
        kw::with_format(args.integer(2), [&](auto format) {
            using F = decltype(format);
            const int64_t blocks = x.N / F::BLOCK;
            uint8_t* to = output.ptr<uint8_t>();
            kw::parallel(kw::worth(args.integer(3), x.M * x.N * 4, 32 * 1024), [&](int64_t ith, int64_t nth) {
                const kw::Range mine = kw::slice(x.M * blocks, ith, nth);
                for (int64_t i = mine.begin; i < mine.end; ++i) {
                    const T* from = x[i / blocks] + i % blocks * F::BLOCK;
                    float wide[F::BLOCK];
                    for (int j = 0; j < F::BLOCK; ++j) wide[j] = kw::to_float(from[j]);
                    F::encode(wide, to + i * F::BYTES);
                }
            });
        });
    });
}
