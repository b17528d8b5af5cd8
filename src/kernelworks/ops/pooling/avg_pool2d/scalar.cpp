// avg_pool2d as its definition reads: one output after the other, sums in float64.
#include "kernel.hpp"

namespace {

template <class T>
T& at(kw::Tensor t, int64_t b, int64_t c, int64_t h, int64_t w) {
    return t.ptr<T>()[b * t.stride[0] + c * t.stride[1] + h * t.stride[2] + w * t.stride[3]];
}

// f(output's place, those of its window in the picture, in turn), and by how many it is divided.
template <class F>
void each_window(kw::Tensor out, kw::Tensor x, kw::Args args, F f) {
    const int64_t KH = args.integer(2), KW = args.integer(3), down = args.integer(4), right = args.integer(5),
                  top = args.integer(6), left = args.integer(7);
    for (int64_t oh = 0; oh < out.shape[2]; ++oh)
        for (int64_t ow = 0; ow < out.shape[3]; ++ow) {
            int64_t h0 = oh * down - top, h1 = h0 + KH, w0 = ow * right - left, w1 = w0 + KW;
            h0 = h0 < 0 ? 0 : h0, w0 = w0 < 0 ? 0 : w0;
            h1 = h1 > x.shape[2] ? x.shape[2] : h1, w1 = w1 > x.shape[3] ? x.shape[3] : w1;
            const double count = static_cast<double>(args.integer(8) ? KH * KW : (h1 - h0) * (w1 - w0));
            for (int64_t b = 0; b < out.shape[0]; ++b)
                for (int64_t c = 0; c < out.shape[1]; ++c) f(b, c, oh, ow, h0, h1, w0, w1, count);
        }
}

}  // namespace

// The arguments are those of simd.cpp.
KW_EXPORT(avg_pool2d) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::Tensor out = args.tensor(0), x = args.tensor(1);
        each_window(out, x, args, [&](int64_t b, int64_t c, int64_t oh, int64_t ow, int64_t h0, int64_t h1, int64_t w0,
                                      int64_t w1, double count) {
            double sum = 0.0;
            for (int64_t h = h0; h < h1; ++h)
                for (int64_t w = w0; w < w1; ++w) sum += kw::to_float(at<T>(x, b, c, h, w));
            at<T>(out, b, c, oh, ow) = kw::from_float<T>(static_cast<float>(sum / count));
        });
    });
}

// avg_pool2d_backward(sums, grad, KH, ..., as above): sums float64 of the picture's shape, zero
KW_EXPORT(avg_pool2d_backward) {
    kw::with_dtype(args.tensor(1).dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::Tensor sums = args.tensor(0), grad = args.tensor(1);
        each_window(grad, sums, args, [&](int64_t b, int64_t c, int64_t oh, int64_t ow, int64_t h0, int64_t h1, int64_t w0,
                                          int64_t w1, double count) {
            for (int64_t h = h0; h < h1; ++h)
                for (int64_t w = w0; w < w1; ++w)
                    at<double>(sums, b, c, h, w) += kw::to_float(at<T>(grad, b, c, oh, ow)) / count;
        });
    });
}
