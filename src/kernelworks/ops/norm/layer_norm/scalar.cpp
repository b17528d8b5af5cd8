// layer_norm, to be read: y = (x - mean) / sqrt(variance + eps) * weight + bias, one row after another, in float64,
// where the difference from a large mean loses nothing and no square of a float32 overflows.
#include "kernel.hpp"

namespace {

struct Moments {
    double mean, rstd;
};

template <class T>
Moments moments(const T* x, int64_t N, double eps) {
    double sum = 0.0, squares = 0.0;
    for (int64_t j = 0; j < N; ++j) sum += kw::to_float(x[j]);
    double mean = sum / static_cast<double>(N);
    for (int64_t j = 0; j < N; ++j) squares += (kw::to_float(x[j]) - mean) * (kw::to_float(x[j]) - mean);
    return {mean, 1.0 / std::sqrt(squares / static_cast<double>(N) + eps)};
}

template <class T>
double value_at(const T* parameter, int64_t j, double otherwise) {
    return parameter ? static_cast<double>(kw::to_float(parameter[j])) : otherwise;
}

template <class T>
T rounded(double value) {
    return kw::from_float<T>(static_cast<float>(value));
}

}  // namespace

// output, x, weight or None, bias or None, eps, threads (one is used here)
KW_EXPORT(layer_norm) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::Rows<T> output(args.tensor(0)), x(args.tensor(1));
        const T* weight = args.none(2) ? nullptr : args.tensor(2).ptr<T>();
        const T* bias = args.none(3) ? nullptr : args.tensor(3).ptr<T>();
        for (int64_t i = 0; i < x.M; ++i) {
            Moments m = moments(x[i], x.N, args.real(4));
            for (int64_t j = 0; j < x.N; ++j) {
                double z = (kw::to_float(x[i][j]) - m.mean) * m.rstd;
                output[i][j] = rounded<T>(z * value_at(weight, j, 1.0) + value_at(bias, j, 0.0));
            }
        }
    });
}

// With z = (x - mean) rstd and gw = grad weight:
//     grad_x = rstd (gw - mean(gw) - z mean(gw z)),   grad_weight = sum over rows of grad z,   grad_bias = of grad.
// grad_x, grad_weight or None, grad_bias or None, stats [M, 3] float64 (written: mean, rstd, 1), grad_output, x,
// weight or None, eps, threads (one is used here)
KW_EXPORT(layer_norm_backward) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::Rows<T> grad_x(args.tensor(0)), grad(args.tensor(4)), x(args.tensor(5));
        double* stats = args.tensor(3).ptr<double>();
        const T* weight = args.none(6) ? nullptr : args.tensor(6).ptr<T>();
        for (int64_t i = 0; i < x.M; ++i) {
            Moments m = moments(x[i], x.N, args.real(7));
            stats[3 * i] = m.mean;
            stats[3 * i + 1] = m.rstd;
            stats[3 * i + 2] = 1.0;
            auto gw = [&](int64_t j) { return kw::to_float(grad[i][j]) * value_at(weight, j, 1.0); };
            auto z = [&](int64_t j) { return (kw::to_float(x[i][j]) - m.mean) * m.rstd; };
            double mean_gw = 0.0, mean_gwz = 0.0;
            for (int64_t j = 0; j < x.N; ++j) {
                mean_gw += gw(j) / static_cast<double>(x.N);
                mean_gwz += gw(j) * z(j) / static_cast<double>(x.N);
            }
            for (int64_t j = 0; j < x.N; ++j) grad_x[i][j] = rounded<T>(m.rstd * (gw(j) - mean_gw - z(j) * mean_gwz));
        }
        for (int parameter = 1; parameter <= 2; ++parameter) {  // the weight's gradient, then the bias's
            if (args.none(parameter)) continue;
            T* out = args.tensor(parameter).ptr<T>();
            for (int64_t j = 0; j < args.tensor(parameter).numel(); ++j) {
                double sum = 0.0;
                for (int64_t i = 0; i < x.M; ++i) {
                    double z = (kw::to_float(x[i][j]) - stats[3 * i]) * stats[3 * i + 1];
                    sum += kw::to_float(grad[i][j]) * (parameter == 1 ? z : 1.0);
                }
                out[j] = rounded<T>(sum);
            }
        }
    });
}
