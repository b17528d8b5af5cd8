// linear, to be read: every element of the result is one dot product, summed in float64.
#include "kernel.hpp"

namespace {

// A matrix argument, element by element, whatever its strides.
template <class T>
struct Matrix {
    T* data;
    int64_t rows, columns, row_stride, column_stride;

    explicit Matrix(const kw::Tensor& t) : data(t.ptr<T>()) {
        kw::Rows<T> lines(t);
        rows = lines.M;
        columns = lines.N;
        row_stride = lines.stride;
        column_stride = t.ndim == 2 && columns > 1 ? t.stride[1] : 1;
    }
    T& at(int64_t i, int64_t j) const { return data[i * row_stride + j * column_stride]; }
};

template <class T>
T rounded(double value) {
    return kw::from_float<T>(static_cast<float>(value));
}

}  // namespace

// output[M, N], x[M, K], weight[N, K], bias[N] or None, threads
KW_EXPORT(linear) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        Matrix<T> output(args.tensor(0)), x(args.tensor(1)), weight(args.tensor(2));
        const T* bias = args.none(3) ? nullptr : args.tensor(3).ptr<T>();
        for (int64_t m = 0; m < output.rows; ++m)
            for (int64_t n = 0; n < output.columns; ++n) {
                double sum = bias ? kw::to_float(bias[n]) : 0.0;
                for (int64_t k = 0; k < weight.columns; ++k)
                    sum += static_cast<double>(kw::to_float(x.at(m, k))) * kw::to_float(weight.at(n, k));
                output.at(m, n) = rounded<T>(sum);
            }
    });
}

// grad_x[M, K] = grad_output[M, N] weight[N, K]
KW_EXPORT(linear_grad_x) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        Matrix<T> grad_x(args.tensor(0)), grad(args.tensor(1)), weight(args.tensor(2));
        for (int64_t m = 0; m < grad_x.rows; ++m)
            for (int64_t k = 0; k < grad_x.columns; ++k) {
                double sum = 0.0;
                for (int64_t n = 0; n < grad.columns; ++n)
                    sum += static_cast<double>(kw::to_float(grad.at(m, n))) * kw::to_float(weight.at(n, k));
                grad_x.at(m, k) = rounded<T>(sum);
            }
    });
}

// grad_weight[N, K] = grad_output[M, N]^T x[M, K]
KW_EXPORT(linear_grad_weight) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        Matrix<T> grad_weight(args.tensor(0)), grad(args.tensor(1)), x(args.tensor(2));
        for (int64_t n = 0; n < grad_weight.rows; ++n)
            for (int64_t k = 0; k < grad_weight.columns; ++k) {
                double sum = 0.0;
                for (int64_t m = 0; m < grad.rows; ++m)
                    sum += static_cast<double>(kw::to_float(grad.at(m, n))) * kw::to_float(x.at(m, k));
                grad_weight.at(n, k) = rounded<T>(sum);
            }
    });
}

// grad_bias[N] = sum over M of grad_output[M, N]
KW_EXPORT(linear_grad_bias) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        Matrix<T> grad(args.tensor(1));
        T* grad_bias = args.tensor(0).ptr<T>();
        for (int64_t n = 0; n < grad.columns; ++n) {
            double sum = 0.0;
            for (int64_t m = 0; m < grad.rows; ++m) sum += kw::to_float(grad.at(m, n));
            grad_bias[n] = rounded<T>(sum);
        }
    });
}
