// softmax, to be read: y = e^(x - max) / sum of e^(x - max), along one dimension of a contiguous tensor (or along the
// last dimension of rows with any stride), in float64.
#include "kernel.hpp"

namespace {

// The lines along `dim`: N elements, `step` apart; line number i starts at start(i).
template <class T>
struct Lines {
    T* data;
    int64_t count, N, step, inner, row_stride;

    Lines(const kw::Tensor& t, int64_t dim) : data(t.ptr<T>()), count(1), inner(1) {
        if (dim < 0) dim = t.ndim - 1;
        N = t.shape[dim];
        for (int64_t d = 0; d < t.ndim; ++d) count *= d == dim ? 1 : t.shape[d];
        for (int64_t d = dim + 1; d < t.ndim; ++d) inner *= t.shape[d];
        step = inner;
        row_stride = t.ndim == 2 && dim == 1 ? t.stride[0] : N * inner;
    }
    T* start(int64_t i) const { return data + i / inner * row_stride + i % inner; }
};

}  // namespace

// output, x, dim (-1 for the last, else from the front), threads (one is used here)
KW_EXPORT(softmax) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        Lines<T> output(args.tensor(0), args.integer(2)), x(args.tensor(1), args.integer(2));
        for (int64_t i = 0; i < x.count; ++i) {
            const T* from = x.start(i);
            T* to = output.start(i);
            double max = -INFINITY, sum = 0.0;
            for (int64_t j = 0; j < x.N; ++j) {
                double value = kw::to_float(from[j * x.step]);
                if (value > max) max = value;
            }
            for (int64_t j = 0; j < x.N; ++j) sum += std::exp(kw::to_float(from[j * x.step]) - max);
            for (int64_t j = 0; j < x.N; ++j) {
                double value = std::exp(kw::to_float(from[j * x.step]) - max) / sum;
                to[j * output.step] = kw::from_float<T>(static_cast<float>(value));
            }
        }
    });
}

// grad_x = y (g - sum(y g)), y the forward's output.
// grad_x, grad_output, output, dim (-1 for the last, else from the front), threads (one is used here)
KW_EXPORT(softmax_backward) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t dim = args.integer(3);
        Lines<T> grad_x(args.tensor(0), dim), grad(args.tensor(1), dim), output(args.tensor(2), dim);
        for (int64_t i = 0; i < output.count; ++i) {
            const T *g = grad.start(i), *y = output.start(i);
            T* to = grad_x.start(i);
            double sum = 0.0;
            for (int64_t j = 0; j < output.N; ++j)
                sum += static_cast<double>(kw::to_float(y[j * output.step])) * kw::to_float(g[j * grad.step]);
            for (int64_t j = 0; j < output.N; ++j) {
                double value = kw::to_float(y[j * output.step]) * (kw::to_float(g[j * grad.step]) - sum);
                to[j * grad_x.step] = kw::from_float<T>(static_cast<float>(value));
            }
        }
    });
}
