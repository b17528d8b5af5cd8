// conv2d as its definition reads: one output after the other, sums in float64.
#include "kernel.hpp"

namespace {

struct Picture {
    kw::Tensor t;
    template <class T>
    T& at(int64_t b, int64_t c, int64_t h, int64_t w) const {
        return t.ptr<T>()[b * t.stride[0] + c * t.stride[1] + h * t.stride[2] + w * t.stride[3]];
    }
    template <class T>
    double read(int64_t b, int64_t c, int64_t h, int64_t w) const {
        return kw::to_float(at<T>(b, c, h, w));
    }
};

// f(b, o, oh, ow, c, i, j, h, w) for each product: of input [b, c of all, h, w] and tap [o, c of the group, i, j].
template <class F>
void each_product(kw::Tensor output, kw::Tensor x, kw::Tensor weight, kw::Args args, int first, F f) {
    const int64_t down = args.integer(first), right = args.integer(first + 1), top = args.integer(first + 2),
                  left = args.integer(first + 3), apart_h = args.integer(first + 4), apart_w = args.integer(first + 5),
                  groups = args.integer(first + 6);
    const int64_t O = weight.shape[0], C = weight.shape[1], each = O / groups;
    for (int64_t b = 0; b < output.shape[0]; ++b)
        for (int64_t o = 0; o < O; ++o)
            for (int64_t oh = 0; oh < output.shape[2]; ++oh)
                for (int64_t ow = 0; ow < output.shape[3]; ++ow)
                    for (int64_t c = 0; c < C; ++c)
                        for (int64_t i = 0; i < weight.shape[2]; ++i)
                            for (int64_t j = 0; j < weight.shape[3]; ++j) {
                                const int64_t h = oh * down - top + i * apart_h, w = ow * right - left + j * apart_w;
                                const bool inside = h >= 0 && h < x.shape[2] && w >= 0 && w < x.shape[3];
                                f(b, o, oh, ow, c, i, j, o / each * C + c, h, w, inside);
                            }
}

}  // namespace

// conv2d(out, x, weight, bias or None, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, groups, sums)
// all of any strides; sums: float64 of the output's shape, contiguous, zero
KW_EXPORT(conv2d) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::Tensor out = args.tensor(0);
        const Picture to{out}, x{args.tensor(1)}, taps{args.tensor(2)};
        double* sums = args.tensor(11).ptr<double>();
        const int64_t O = out.shape[1], H = out.shape[2], W = out.shape[3];
        each_product(out, x.t, taps.t, args, 4, [&](int64_t b, int64_t o, int64_t oh, int64_t ow, int64_t c, int64_t i,
                                                    int64_t j, int64_t of_x, int64_t h, int64_t w, bool inside) {
            const double value = inside ? x.read<T>(b, of_x, h, w) : 0.0;
            sums[((b * O + o) * H + oh) * W + ow] += value * taps.read<T>(o, c, i, j);
        });
        for (int64_t k = 0; k < out.numel(); ++k) {
            const int64_t o = k / (H * W) % O;
            double sum = sums[k];
            if (!args.none(3)) sum += kw::to_float(args.tensor(3).ptr<T>()[o * args.tensor(3).stride[0]]);
            to.at<T>(k / (H * W * O), o, k / W % H, k % W) = kw::from_float<T>(static_cast<float>(sum));
        }
    });
}

// conv2d_backward(of_x, of_weight, of_bias, grad, x, weight, stride_h, ..., groups): the first three float64, contiguous
// and zero, or None
KW_EXPORT(conv2d_backward) {
    kw::with_dtype(args.tensor(3).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Picture grad{args.tensor(3)}, x{args.tensor(4)}, taps{args.tensor(5)};
        double* of_x = args.none(0) ? nullptr : args.tensor(0).ptr<double>();
        double* of_weight = args.none(1) ? nullptr : args.tensor(1).ptr<double>();
        double* of_bias = args.none(2) ? nullptr : args.tensor(2).ptr<double>();
        const int64_t *shape = x.t.shape, *size = taps.t.shape;
        each_product(grad.t, x.t, taps.t, args, 6, [&](int64_t b, int64_t o, int64_t oh, int64_t ow, int64_t c, int64_t i,
                                                       int64_t j, int64_t from, int64_t h, int64_t w, bool inside) {
            const double g = grad.read<T>(b, o, oh, ow);
            if (of_bias && c == 0 && i == 0 && j == 0) of_bias[o] += g;
            if (!inside) return;
            if (of_x) of_x[((b * shape[1] + from) * shape[2] + h) * shape[3] + w] += g * taps.read<T>(o, c, i, j);
            if (of_weight) of_weight[((o * size[1] + c) * size[2] + i) * size[3] + j] += g * x.read<T>(b, from, h, w);
        });
    });
}
