// grouped_linear, to be read: every element of the result is one dot product, summed in float64.
#include "groups.hpp"

namespace {

template <class T>
T rounded(double value) {
    return kw::from_float<T>(static_cast<float>(value));
}

// A matrix of any strides, as numbers.
template <class T>
struct Matrix {
    T* data;
    int64_t row, column;

    explicit Matrix(const kw::Tensor& t) : data(t.ptr<T>()), row(t.stride[0]), column(t.stride[1]) {}
    T& at(int64_t i, int64_t j) const { return data[i * row + j * column]; }
};

template <class T>
void clear(Matrix<T> out, int64_t from, const kw::Tensor& t) {
    for (int64_t i = from; i < t.shape[0]; ++i)
        for (int64_t j = 0; j < t.shape[1]; ++j) out.at(i, j) = rounded<T>(0.0);
}

}  // namespace

// grouped_linear(output[T, N], x[T, K], weight[E, N, K], ends[E], bias[E, N] or None, threads): the first group whose
// end is wrong, or -1
KW_EXPORT_INTEGER(grouped_linear) {
    const kw::Tensor to = args.tensor(0), w = args.tensor(2);
    const Groups groups(args.tensor(3));
    const int64_t wrong = groups.wrong(to.shape[0]);
    if (wrong >= 0) return wrong;
    kw::with_dtype(to.dtype, [&](auto zero) {
        using T = decltype(zero);
        Matrix<T> output(to), x(args.tensor(1));
        Stack<T> weight(w);
        for (int64_t g = 0; g < groups.count; ++g)
            for (int64_t m = groups.begin(g); m < groups.end(g); ++m)
                for (int64_t n = 0; n < w.shape[1]; ++n) {
                    double sum = args.none(4) ? 0.0 : kw::to_float(*Stack<T>(args.tensor(4)).at(g, n));
                    for (int64_t k = 0; k < w.shape[2]; ++k)
                        sum += static_cast<double>(kw::to_float(x.at(m, k))) *
                               kw::to_float(weight.at(g, n)[k * weight.column]);
                    output.at(m, n) = rounded<T>(sum);
                }
        clear(output, groups.all_rows(), to);
    });
    return -1;
}

// grad_x[T, K] = grad_output[T, N] weight[g] for the rows of each group g; ends[E], threads
KW_EXPORT_INTEGER(grouped_linear_grad_x) {
    const kw::Tensor to = args.tensor(0), w = args.tensor(2);
    const Groups groups(args.tensor(3));
    const int64_t wrong = groups.wrong(to.shape[0]);
    if (wrong >= 0) return wrong;
    kw::with_dtype(to.dtype, [&](auto zero) {
        using T = decltype(zero);
        Matrix<T> grad_x(to), grad(args.tensor(1));
        Stack<T> weight(w);
        for (int64_t g = 0; g < groups.count; ++g)
            for (int64_t m = groups.begin(g); m < groups.end(g); ++m)
                for (int64_t k = 0; k < w.shape[2]; ++k) {
                    double sum = 0.0;
                    for (int64_t n = 0; n < w.shape[1]; ++n)
                        sum += static_cast<double>(kw::to_float(grad.at(m, n))) *
                               kw::to_float(weight.at(g, n)[k * weight.column]);
                    grad_x.at(m, k) = rounded<T>(sum);
                }
        clear(grad_x, groups.all_rows(), to);
    });
    return -1;
}

// grad_weight[E, N, K]: of each group grad_output^T x over its rows; grad_output[T, N], x[T, K], ends[E], threads
KW_EXPORT_INTEGER(grouped_linear_grad_weight) {
    const kw::Tensor to = args.tensor(0), x_rows = args.tensor(2);
    const Groups groups(args.tensor(3));
    const int64_t wrong = groups.wrong(x_rows.shape[0]);
    if (wrong >= 0) return wrong;
    kw::with_dtype(to.dtype, [&](auto zero) {
        using T = decltype(zero);
        Matrix<T> grad(args.tensor(1)), x(x_rows);
        Stack<T> grad_weight(to);
        for (int64_t g = 0; g < groups.count; ++g)
            for (int64_t n = 0; n < to.shape[1]; ++n)
                for (int64_t k = 0; k < to.shape[2]; ++k) {
                    double sum = 0.0;
                    for (int64_t m = groups.begin(g); m < groups.end(g); ++m)
                        sum += static_cast<double>(kw::to_float(grad.at(m, n))) * kw::to_float(x.at(m, k));
                    grad_weight.at(g, n)[k] = rounded<T>(sum);
                }
    });
    return -1;
}

// grad_bias[E, N]: the sum of grad_output[T, N] over each group's rows; ends[E], threads
KW_EXPORT_INTEGER(grouped_linear_grad_bias) {
    const kw::Tensor to = args.tensor(0), rows = args.tensor(1);
    const Groups groups(args.tensor(2));
    const int64_t wrong = groups.wrong(rows.shape[0]);
    if (wrong >= 0) return wrong;
    kw::with_dtype(to.dtype, [&](auto zero) {
        using T = decltype(zero);
        Matrix<T> grad(rows);
        Stack<T> grad_bias(to);
        for (int64_t g = 0; g < groups.count; ++g)
            for (int64_t n = 0; n < to.shape[1]; ++n) {
                double sum = 0.0;
                for (int64_t m = groups.begin(g); m < groups.end(g); ++m) sum += kw::to_float(grad.at(m, n));
                *grad_bias.at(g, n) = rounded<T>(sum);
            }
    });
    return -1;
}
