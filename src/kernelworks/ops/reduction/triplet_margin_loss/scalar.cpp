// triplet_margin_loss as its definition reads: one row after the other, all in float64.
#include <cmath>

#include "kernel.hpp"

namespace {

struct Numbers {
    double margin, eps;
    int64_t p;
    bool swap;
    int64_t divisor;  // 0: each row has its own loss
    Numbers(kw::Args args, int at)
        : margin(args.real(at)), eps(args.real(at + 1)), p(args.integer(at + 2)), swap(args.integer(at + 3)),
          divisor(args.integer(at + 4)) {}
};

template <class T>
double distance(const Numbers& number, const T* a, const T* b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const double apart = static_cast<double>(kw::to_float(a[i])) - kw::to_float(b[i]) + number.eps;
        sum += number.p == 1 ? std::fabs(apart) : apart * apart;
    }
    return number.p == 1 ? sum : std::sqrt(sum);
}

// `share` of a distance's gradient, to its first point; the second one's has the other sign.
template <class T>
double step(const Numbers& number, T a, T b, double share, double length) {
    const double apart = static_cast<double>(kw::to_float(a)) - kw::to_float(b) + number.eps;
    if (share == 0.0 || length == 0.0) return 0.0;
    return number.p == 1 ? (apart > 0.0 ? share : apart < 0.0 ? -share : 0.0 * apart) : share * apart / length;
}

template <class T>
struct Row {
    const T *anchor, *positive, *negative;
    double far, near, other, hinge, part;  // part: how much of the near distance is the other one
    Row(kw::Args args, int at, const Numbers& number, int64_t row, int64_t n)
        : anchor(args.tensor(at).ptr<T>() + row * n), positive(args.tensor(at + 1).ptr<T>() + row * n),
          negative(args.tensor(at + 2).ptr<T>() + row * n), other(0.0), part(0.0) {
        far = distance(number, anchor, positive, n), near = distance(number, anchor, negative, n);
        double least = near;
        if (number.swap) {
            other = distance(number, positive, negative, n);
            if (other < near || other != other) least = other, part = 1.0;
            if (other == near) part = 0.5;
        }
        hinge = number.margin + far - least;
    }
};

}  // namespace

// The arguments are those of simd.cpp.
KW_EXPORT(triplet_margin_loss) {
    kw::with_dtype(args.tensor(1).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Numbers number(args, 5);
        const int64_t rows = args.tensor(2).shape[0], n = args.tensor(2).shape[1];
        T* loss = args.tensor(1).ptr<T>();
        double all = 0.0;
        for (int64_t row = 0; row < rows; ++row) {
            const double hinge = Row<T>(args, 2, number, row, n).hinge, cut = hinge < 0.0 ? 0.0 : hinge;
            all += cut;
            if (!number.divisor) loss[row] = kw::from_float<T>(static_cast<float>(cut));
        }
        if (number.divisor) loss[0] = kw::from_float<T>(static_cast<float>(all / static_cast<double>(number.divisor)));
    });
}

KW_EXPORT(triplet_margin_loss_backward) {
    kw::with_dtype(args.tensor(3).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Numbers number(args, 7);
        const int64_t rows = args.tensor(4).shape[0], n = args.tensor(4).shape[1];
        const T* grad = args.tensor(3).ptr<T>();
        const auto put = [&](int k, int64_t at, double value) {
            if (!args.none(k)) args.tensor(k).ptr<T>()[at] = kw::from_float<T>(static_cast<float>(value));
        };
        for (int64_t row = 0; row < rows; ++row) {
            const Row<T> r(args, 4, number, row, n);
            double flow = kw::to_float(grad[number.divisor ? 0 : row]);
            if (number.divisor) flow /= static_cast<double>(number.divisor);
            if (!(r.hinge >= 0.0)) flow = 0.0;
            for (int64_t i = 0; i < n; ++i) {
                const double one = step(number, r.anchor[i], r.positive[i], flow, r.far);
                const double two = step(number, r.anchor[i], r.negative[i], flow * (1.0 - r.part), r.near);
                const double three = step(number, r.positive[i], r.negative[i], flow * r.part, r.other);
                put(0, row * n + i, one - two);
                put(1, row * n + i, -one - three);
                put(2, row * n + i, two + three);
            }
        }
    });
}
