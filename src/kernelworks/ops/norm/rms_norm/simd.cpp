// rms_norm over portable vectors. One pass sums the squares while the row comes in, a second over the same row, now in
// L1, scales it. Four accumulators hide the latency of the fused multiply-add and shorten the chain of roundings.
#include "simd.hpp"

#include <vector>

namespace {

using kw::LANES;
using kw::vf;

constexpr int64_t GRAIN = 32 * 1024;  // bytes that make a second thread worth waking

// Outside this range the float32 sum of squares has overflowed or lost bits; such a row is done in float64.
bool in_range(float mean_square) { return mean_square > 0x1p-90f && mean_square < 0x1p120f; }

template <class T>
vf weight_at(const T* weight, int64_t j) {
    return weight ? kw::load(weight + j) : kw::splat(1.0f);
}
template <class T>
vf weight_at(const T* weight, int64_t j, int n) {
    return weight ? kw::load(weight + j, n) : kw::splat(1.0f);
}

// The row is x, or x + residual where there is one.
template <class T>
struct Input {
    const T *x, *residual;

    vf at(int64_t j) const {
        vf v = kw::load(x + j);
        return residual ? v + kw::load(residual + j) : v;
    }
    vf at(int64_t j, int n) const {
        vf v = kw::load(x + j, n);
        return residual ? v + kw::load(residual + j, n) : v;
    }
    double exact(int64_t j) const {
        double v = kw::to_float(x[j]);
        return residual ? v + kw::to_float(residual[j]) : v;
    }
};

template <class T>
float sum_of_squares(Input<T> in, int64_t N) {
    vf a = {}, b = {}, c = {}, d = {};
    int64_t j = 0;
    for (; j + 4 * LANES <= N; j += 4 * LANES) {
        vf p = in.at(j), q = in.at(j + LANES), r = in.at(j + 2 * LANES), s = in.at(j + 3 * LANES);
        a = kw::fma(p, p, a);
        b = kw::fma(q, q, b);
        c = kw::fma(r, r, c);
        d = kw::fma(s, s, d);
    }
    for (; j < N; j += LANES) {
        int n = static_cast<int>(N - j < LANES ? N - j : LANES);
        vf p = in.at(j, n);
        a = kw::fma(p, p, a);
    }
    return kw::reduce_add((a + b) + (c + d));
}

template <class T>
double exact_inverse_rms(Input<T> in, int64_t N, double eps) {
    double sum = 0.0;
    for (int64_t j = 0; j < N; ++j) sum += in.exact(j) * in.exact(j);
    return 1.0 / std::sqrt(sum / static_cast<double>(N) + eps);
}

template <class T>
void forward_row(T* output, T* sum, Input<T> in, const T* weight, int64_t N, double eps) {
    float mean_square = sum_of_squares(in, N) / static_cast<float>(N) + static_cast<float>(eps);
    if (!in_range(mean_square)) {
        double r = exact_inverse_rms(in, N, eps);
        for (int64_t j = 0; j < N; ++j) {
            double v = in.exact(j);
            if (sum) sum[j] = kw::from_float<T>(static_cast<float>(v));
            output[j] = kw::from_float<T>(static_cast<float>(v * r * (weight ? kw::to_float(weight[j]) : 1.0f)));
        }
        return;
    }
    vf r = kw::splat(1.0f / std::sqrt(mean_square));
    int64_t j = 0;
    for (; j + LANES <= N; j += LANES) {
        vf v = in.at(j);
        if (sum) kw::store(sum + j, v);
        kw::store(output + j, v * r * weight_at(weight, j));
    }
    if (j < N) {
        int n = static_cast<int>(N - j);
        vf v = in.at(j, n);
        if (sum) kw::store(sum + j, v, n);
        kw::store(output + j, v * r * weight_at(weight, j, n), n);
    }
}

// grad_x = r (g w - x r^2 mean(g w x)) [+ grad_sum];  grad_weight += g x r, in float64 so that the number of rows
// does not enter the error.
template <class T>
void backward_row(T* grad_x, double* grad_weight, const T* grad, const T* grad_sum, Input<T> in, const T* weight,
                  int64_t N, double eps) {
    vf squares = {}, products = {};
    for (int64_t j = 0; j < N; j += LANES) {
        int n = static_cast<int>(N - j < LANES ? N - j : LANES);
        vf x = in.at(j, n), gw = kw::load(grad + j, n) * weight_at(weight, j, n);
        squares = kw::fma(x, x, squares);
        products = kw::fma(gw, x, products);
    }
    float mean_square = kw::reduce_add(squares) / static_cast<float>(N) + static_cast<float>(eps);
    float dot = kw::reduce_add(products);
    double r = 1.0 / std::sqrt(static_cast<double>(mean_square)), c = dot;
    if (!in_range(mean_square) || !std::isfinite(dot)) {
        r = exact_inverse_rms(in, N, eps);
        c = 0.0;
        for (int64_t j = 0; j < N; ++j)
            c += static_cast<double>(kw::to_float(grad[j])) * (weight ? kw::to_float(weight[j]) : 1.0f) * in.exact(j);
    }
    c = c / static_cast<double>(N) * r * r;
    for (int64_t j = 0; j < N; ++j) {
        double x = in.exact(j), g = kw::to_float(grad[j]);
        double gx = r * (g * (weight ? kw::to_float(weight[j]) : 1.0f) - x * c);
        if (grad_sum) gx += kw::to_float(grad_sum[j]);
        grad_x[j] = kw::from_float<T>(static_cast<float>(gx));
        grad_weight[j] += g * x * r;
    }
}

}  // namespace

// output, sum or None, x, residual or None, weight or None, eps, threads
KW_EXPORT(rms_norm) {
    kw::Tensor output = args.tensor(0);
    kw::with_dtype(output.dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::Rows<T> y(output), x(args.tensor(2));
        T* sum = args.none(1) ? nullptr : args.tensor(1).ptr<T>();
        const T* weight = args.none(4) ? nullptr : args.tensor(4).ptr<T>();
        bool add = !args.none(3);
        kw::Rows<T> residual(args.tensor(add ? 3 : 2));
        double eps = args.real(5);
        int64_t threads = kw::worth(args.integer(6), x.M * x.N * static_cast<int64_t>(2 * sizeof(T)), GRAIN);
        kw::parallel(threads, [&](int64_t ith, int64_t nth) {
            kw::Range rows = kw::slice(x.M, ith, nth);
            for (int64_t i = rows.begin; i < rows.end; ++i) {
                Input<T> in{x[i], add ? residual[i] : nullptr};
                forward_row<T>(y[i], sum ? sum + i * x.N : nullptr, in, weight, x.N, eps);
            }
        });
    });
}

// grad_x, grad_weight or None, partial sums [threads, N] float64, grad_output, grad_sum or None, x, residual or None,
// weight or None, eps, threads
KW_EXPORT(rms_norm_backward) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::Rows<T> gx(args.tensor(0)), g(args.tensor(3)), x(args.tensor(5));
        double* partial = args.tensor(2).ptr<double>();
        bool add = !args.none(6), add_grad = !args.none(4);
        kw::Rows<T> residual(args.tensor(add ? 6 : 5)), grad_sum(args.tensor(add_grad ? 4 : 3));
        const T* weight = args.none(7) ? nullptr : args.tensor(7).ptr<T>();
        double eps = args.real(8);
        int64_t threads = args.integer(9);
        kw::parallel(threads, [&](int64_t ith, int64_t nth) {
            kw::Range rows = kw::slice(x.M, ith, nth);
            for (int64_t i = rows.begin; i < rows.end; ++i) {
                Input<T> in{x[i], add ? residual[i] : nullptr};
                backward_row<T>(gx[i], partial + ith * x.N, g[i], add_grad ? grad_sum[i] : nullptr, in, weight, x.N,
                                eps);
            }
        });
        if (args.none(1)) return;
        T* gw = args.tensor(1).ptr<T>();
        for (int64_t j = 0; j < x.N; ++j) {
            double total = 0.0;
            for (int64_t t = 0; t < threads; ++t) total += partial[t * x.N + j];
            gw[j] = kw::from_float<T>(static_cast<float>(total));
        }
    });
}
