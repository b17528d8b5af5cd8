// nll_loss: one element a row is read, so there is nothing for vectors to do; a gradient is zeros but for that element.
#pragma once

#include "kernel.hpp"

namespace {

using namespace kw;

enum Reduction : int64_t { NONE, MEAN, SUM };
constexpr int64_t GRAIN = 64 * 1024;  // bytes that make a second thread worth waking

template <class T>
struct LossRows {
    const Tensor x, target;
    const T* weight;
    int64_t ignored;

    int64_t classes() const { return x.shape[1]; }
    int64_t of(int64_t i) const { return target.ptr<const int64_t>()[i]; }
    bool counts(int64_t i) const { return of(i) != ignored; }
    double scale(int64_t i) const { return !counts(i) ? 0.0 : weight ? to_float(weight[of(i)]) : 1.0; }
    double loss(int64_t i) const {
        return counts(i) ? -scale(i) * to_float(x.ptr<const T>()[i * x.stride[0] + of(i) * x.stride[1]]) : 0.0;
    }
    double total() const {
        double sum = 0.0;
        for (int64_t i = 0; i < x.shape[0]; ++i) sum += scale(i);
        return sum;
    }
};

// loss [N] or one, the first row whose target is no class or -1 [1], x [N, C], target [N], weight [C] or None,
// ignore_index, reduction
inline void write_loss(const Args& args) {
    const Tensor loss = args.tensor(0), x = args.tensor(2), target = args.tensor(3);
    int64_t& bad = *args.tensor(1).ptr<int64_t>();
    const int64_t rows = x.shape[0], reduction = args.integer(6), ignored = args.integer(5);
    bad = -1;
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t t = target.ptr<const int64_t>()[i];
        if (t != ignored && (t < 0 || t >= x.shape[1])) {
            bad = i;
            return;
        }
    }
    with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        const LossRows<T> of{x, target, args.none(4) ? nullptr : args.tensor(4).ptr<const T>(), ignored};
        double sum = 0.0;
        for (int64_t i = 0; i < rows; ++i) {
            if (reduction == NONE) loss.ptr<T>()[i] = from_float<T>(static_cast<float>(of.loss(i)));
            else sum += of.loss(i);
        }
        if (reduction != NONE) *loss.ptr<T>() = from_float<T>(static_cast<float>(reduction == MEAN ? sum / of.total() : sum));
    });
}

// grad_x [N, C], contiguous; grad [N] or one; x, target, weight or None, ignore_index, reduction, threads
inline void write_gradient(const Args& args) {
    const Tensor out = args.tensor(0), grad = args.tensor(1), x = args.tensor(2), target = args.tensor(3);
    const int64_t reduction = args.integer(6), C = out.shape[1];
    with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        const LossRows<T> of{x, target, args.none(4) ? nullptr : args.tensor(4).ptr<const T>(), args.integer(5)};
        const double total = reduction == MEAN ? of.total() : 1.0;
        parallel(worth(args.integer(7), out.numel() * out.dtype.bits / 8, GRAIN), [&](int64_t ith, int64_t nth) {
            const Range range = slice(out.shape[0], ith, nth);
            for (int64_t i = range.begin; i < range.end; ++i) {
                T* row = out.ptr<T>() + i * C;
                std::memset(static_cast<void*>(row), 0, sizeof(T) * static_cast<size_t>(C));
                if (!of.counts(i)) continue;
                const double flow = to_float(grad.ptr<const T>()[reduction == NONE ? i : 0]);
                row[of.of(i)] = from_float<T>(static_cast<float>(-of.scale(i) * flow / total));
            }
        });
    });
}

}  // namespace
