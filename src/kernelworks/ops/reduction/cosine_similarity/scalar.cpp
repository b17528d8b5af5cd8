// cosine_similarity as its definition reads: one line after the other, all in float64.
#include <cmath>

#include "kernel.hpp"

namespace {

struct Line {  // elements `stride` apart
    int64_t first, n, stride;
};

// f(line's number, line) for each line; `at` is the place of outer, n, inner, outer_stride and stride.
template <class F>
void each_line(kw::Args args, int at, F f) {
    const int64_t outer = args.integer(at), n = args.integer(at + 1), inner = args.integer(at + 2);
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t c = 0; c < inner; ++c)
            f(o * inner + c, Line{o * args.integer(at + 3) + c, n, args.integer(at + 4)});
}

template <class T>
double dot(Line l, const T* a, const T* b) {
    double sum = 0.0;
    for (int64_t i = 0; i < l.n; ++i) {
        const int64_t at = l.first + i * l.stride;
        sum += static_cast<double>(kw::to_float(a[at])) * kw::to_float(b[at]);
    }
    return sum;
}

double limited(double norm, double eps) { return norm < eps ? eps : norm; }

template <class T>
void gradient(T* to, Line l, const T* x, const T* y, double grad, double norm, double one, double other, double product) {
    for (int64_t i = 0; i < l.n; ++i) {
        const int64_t at = l.first + i * l.stride;
        const double along = norm == 0.0 ? 0.0 : kw::to_float(x[at]) * product / (one * one * other * norm);
        to[at] = kw::from_float<T>(static_cast<float>(grad * (kw::to_float(y[at]) / (one * other) - along)));
    }
}

}  // namespace

// The arguments are those of simd.cpp.
KW_EXPORT(cosine_similarity) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const T *x = args.tensor(1).ptr<T>(), *y = args.tensor(2).ptr<T>();
        const double eps = args.real(8);
        each_line(args, 3, [&](int64_t number, Line l) {
            const double one = limited(std::sqrt(dot(l, x, x)), eps), other = limited(std::sqrt(dot(l, y, y)), eps);
            args.tensor(0).ptr<T>()[number] = kw::from_float<T>(static_cast<float>(dot(l, x, y) / (one * other)));
        });
    });
}

KW_EXPORT(cosine_similarity_backward) {
    kw::with_dtype(args.tensor(2).dtype, [&](auto zero) {
        using T = decltype(zero);
        const T *flow = args.tensor(2).ptr<T>(), *x = args.tensor(3).ptr<T>(), *y = args.tensor(4).ptr<T>();
        const double eps = args.real(10);
        each_line(args, 5, [&](int64_t number, Line l) {
            const double a = std::sqrt(dot(l, x, x)), b = std::sqrt(dot(l, y, y)), product = dot(l, x, y);
            const double one = limited(a, eps), other = limited(b, eps), grad = kw::to_float(flow[number]);
            if (!args.none(0)) gradient(args.tensor(0).ptr<T>(), l, x, y, grad, a, one, other, product);
            if (!args.none(1)) gradient(args.tensor(1).ptr<T>(), l, y, x, grad, b, other, one, product);
        });
    });
}
