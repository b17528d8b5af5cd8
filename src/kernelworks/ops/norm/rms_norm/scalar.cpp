// rms_norm, to be read: y = x / sqrt(mean(x^2) + eps) * weight, one row after another.
#include "kernel.hpp"

namespace {

// One row of x (+ residual) as float64, which holds every square of a float32 without overflow.
template <class T>
double element(const T* x, const T* residual, int64_t j) {
    double value = kw::to_float(x[j]);
    return residual ? value + kw::to_float(residual[j]) : value;
}

template <class T>
double inverse_rms(const T* x, const T* residual, int64_t N, double eps) {
    double sum = 0.0;
    for (int64_t j = 0; j < N; ++j) sum += element(x, residual, j) * element(x, residual, j);
    return 1.0 / std::sqrt(sum / static_cast<double>(N) + eps);
}

template <class T>
double weight_at(const T* weight, int64_t j) {
    return weight ? kw::to_float(weight[j]) : 1.0;
}

}  // namespace

// output, sum or None, x, residual or None, weight or None, eps, threads
KW_EXPORT(rms_norm) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::Rows<T> output(args.tensor(0)), x(args.tensor(2));
        bool add = !args.none(3);
        kw::Rows<T> residuals(args.tensor(add ? 3 : 2));
        T* sums = args.none(1) ? nullptr : args.tensor(1).ptr<T>();
        const T* weight = args.none(4) ? nullptr : args.tensor(4).ptr<T>();
        for (int64_t i = 0; i < x.M; ++i) {
            const T* residual = add ? residuals[i] : nullptr;
            double r = inverse_rms(x[i], residual, x.N, args.real(5));
            for (int64_t j = 0; j < x.N; ++j) {
                double value = element(x[i], residual, j);
                if (sums) sums[i * x.N + j] = kw::from_float<T>(static_cast<float>(value));
                output[i][j] = kw::from_float<T>(static_cast<float>(value * r * weight_at(weight, j)));
            }
        }
    });
}

// With r = 1 / rms: grad_x = r (g w - x r^2 mean(g w x)), grad_weight = sum over rows of g x r. What flows into the
// second output, the sum, is added to grad_x.
// grad_x, grad_weight or None, partial sums (one row used here), grad_output, grad_sum or None, x, residual or None,
// weight or None, eps, threads
KW_EXPORT(rms_norm_backward) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::Rows<T> grad_x(args.tensor(0)), grad(args.tensor(3)), x(args.tensor(5));
        double* grad_weight = args.tensor(2).ptr<double>();
        bool add = !args.none(6), add_grad = !args.none(4);
        kw::Rows<T> residuals(args.tensor(add ? 6 : 5)), grad_sums(args.tensor(add_grad ? 4 : 3));
        const T* weight = args.none(7) ? nullptr : args.tensor(7).ptr<T>();
        for (int64_t i = 0; i < x.M; ++i) {
            const T* residual = add ? residuals[i] : nullptr;
            double r = inverse_rms(x[i], residual, x.N, args.real(8));
            double mean = 0.0;
            for (int64_t j = 0; j < x.N; ++j)
                mean += kw::to_float(grad[i][j]) * weight_at(weight, j) * element(x[i], residual, j);
            mean /= static_cast<double>(x.N);
            for (int64_t j = 0; j < x.N; ++j) {
                double value = element(x[i], residual, j), g = kw::to_float(grad[i][j]);
                double gx = r * (g * weight_at(weight, j) - value * r * r * mean);
                if (add_grad) gx += kw::to_float(grad_sums[i][j]);
                grad_x[i][j] = kw::from_float<T>(static_cast<float>(gx));
                grad_weight[j] += g * value * r;
            }
        }
        if (!args.none(1))
            for (int64_t j = 0; j < x.N; ++j)
                args.tensor(1).ptr<T>()[j] = kw::from_float<T>(static_cast<float>(grad_weight[j]));
    });
}
