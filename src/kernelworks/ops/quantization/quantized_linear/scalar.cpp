// quantized_linear, to be read: every element of the result is one dot product, summed in float64.
#include "packed/formats.hpp"

// quantized_linear(output [M, N], x [M, K], weight [N, bytes], bias [N] or None, not used, format's number, threads)
KW_EXPORT(quantized_linear) {
    const kw::Tensor output = args.tensor(0), weight = args.tensor(2);
    kw::with_dtype(output.dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::Rows<const T> x(args.tensor(1));
        const T* bias = args.none(3) ? nullptr : args.tensor(3).ptr<T>();
        kw::with_format(args.integer(5), [&](auto format) {
            using F = decltype(format);
            for (int64_t m = 0; m < kw::Rows<T>(output).M; ++m)
                for (int64_t n = 0; n < weight.shape[0]; ++n) {
                    double sum = bias ? kw::to_float(bias[n]) : 0.0;
                    for (int64_t b = 0; b < x.N / F::BLOCK; ++b) {
                        float w[F::BLOCK];
                        kw::plain<F>(weight.ptr<uint8_t>() + n * weight.shape[1] + b * F::BYTES, w);
                        for (int i = 0; i < F::BLOCK; ++i)
                            sum += static_cast<double>(kw::to_float(x[m][b * F::BLOCK + i])) * w[i];
                    }
                    output.ptr<T>()[m * weight.shape[0] + n] = kw::from_float<T>(static_cast<float>(sum));
                }
        });
    });
}

// grad_x [M, K] = grad_output [M, N] float32 dequantize(weight [N, bytes])
KW_EXPORT(quantized_linear_grad_x) {
    const kw::Tensor grad_x = args.tensor(0), grad = args.tensor(1), weight = args.tensor(2);
    kw::with_dtype(grad_x.dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::with_format(args.integer(3), [&](auto format) {
            using F = decltype(format);
            const int64_t N = weight.shape[0], blocks = weight.shape[1] / F::BYTES;
            for (int64_t m = 0; m < grad.shape[0]; ++m)
                for (int64_t b = 0; b < blocks; ++b) {
                    double sums[F::BLOCK] = {};
                    for (int64_t n = 0; n < N; ++n) {
                        float w[F::BLOCK];
                        kw::plain<F>(weight.ptr<uint8_t>() + n * weight.shape[1] + b * F::BYTES, w);
                        for (int i = 0; i < F::BLOCK; ++i)
                            sums[i] += static_cast<double>(grad.ptr<float>()[m * N + n]) * w[i];
                    }
                    for (int i = 0; i < F::BLOCK; ++i)
                        grad_x.ptr<T>()[(m * blocks + b) * F::BLOCK + i] =
                            kw::from_float<T>(static_cast<float>(sums[i]));
                }
        });
    });
}

// grad_bias [N] = sum over M of grad_output [M, N]
KW_EXPORT(quantized_linear_grad_bias) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::Rows<const T> grad(args.tensor(1));
        for (int64_t n = 0; n < grad.N; ++n) {
            double sum = 0.0;
            for (int64_t m = 0; m < grad.M; ++m) sum += kw::to_float(grad[m][n]);
            args.tensor(0).ptr<T>()[n] = kw::from_float<T>(static_cast<float>(sum));
        }
    });
}
