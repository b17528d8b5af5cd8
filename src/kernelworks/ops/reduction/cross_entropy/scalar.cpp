// Cross-entropy, to be read: loss = log(sum of e^(x - max)) + max - x[target], one row after another, in float64.
#include "kernel.hpp"

namespace {

struct ExpSum {
    double max, sum;  // of e^(x - max)
};

template <class T>
ExpSum exp_sum(const T* x, int64_t N) {
    ExpSum r{-INFINITY, 0.0};
    for (int64_t j = 0; j < N; ++j)
        if (kw::to_float(x[j]) > r.max) r.max = kw::to_float(x[j]);
    for (int64_t j = 0; j < N; ++j) r.sum += std::exp(kw::to_float(x[j]) - r.max);
    return r;
}

template <class T>
T rounded(double value) {
    return kw::from_float<T>(static_cast<float>(value));
}

// What the sum of losses, or the gradient of one row, is divided by: 1, or how many rows count for the mean.
double divisor(const int64_t* target, int64_t M, int64_t ignore, int64_t reduction) {
    if (reduction != 1) return 1.0;
    double count = 0.0;
    for (int64_t i = 0; i < M; ++i) count += target[i] != ignore;
    return count;
}

}  // namespace

// loss, losses [M] float64 (written), bad [1] int64 (written: the first row with a target out of range, or -1), logits,
// target, ignore_index, reduction (0 none, 1 mean, 2 sum), threads (one is used here)
KW_EXPORT(cross_entropy) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        T* loss = args.tensor(0).ptr<T>();
        double* losses = args.tensor(1).ptr<double>();
        int64_t* bad = args.tensor(2).ptr<int64_t>();
        kw::Rows<T> x(args.tensor(3));
        const int64_t* target = args.tensor(4).ptr<int64_t>();
        int64_t ignore = args.integer(5), reduction = args.integer(6);
        *bad = -1;
        for (int64_t i = 0; i < x.M; ++i) {
            if (target[i] == ignore || (target[i] >= 0 && target[i] < x.N)) continue;
            *bad = i;
            return;
        }
        double sum = 0.0;
        for (int64_t i = 0; i < x.M; ++i) {
            losses[i] = 0.0;
            if (target[i] != ignore) {
                ExpSum s = exp_sum(x[i], x.N);
                losses[i] = std::log(s.sum) + (s.max - kw::to_float(x[i][target[i]]));
            }
            if (reduction == 0) loss[i] = rounded<T>(losses[i]);
            sum += losses[i];
        }
        if (reduction != 0) *loss = rounded<T>(sum / divisor(target, x.M, ignore, reduction));
    });
}

// grad_logits = (e^(x - max) / sum - one_hot) flow, where flow is the gradient of the row's loss (over the count for
// the mean), and 0 where the target is ignored.
// grad_logits, grad_loss, logits, target, ignore_index, reduction, threads (one is used here)
KW_EXPORT(cross_entropy_backward) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::Rows<T> out(args.tensor(0)), x(args.tensor(2));
        const T* grad = args.tensor(1).ptr<T>();
        const int64_t* target = args.tensor(3).ptr<int64_t>();
        int64_t ignore = args.integer(4), reduction = args.integer(5);
        double over = divisor(target, x.M, ignore, reduction);
        for (int64_t i = 0; i < x.M; ++i) {
            double flow = kw::to_float(grad[reduction == 0 ? i : 0]) / over;
            ExpSum s = target[i] == ignore ? ExpSum{0.0, 1.0} : exp_sum(x[i], x.N);
            for (int64_t j = 0; j < x.N; ++j) {
                double p = std::exp(kw::to_float(x[i][j]) - s.max) / s.sum;
                double value = (p - (j == target[i] ? 1.0 : 0.0)) * flow;
                out[i][j] = rounded<T>(target[i] == ignore ? 0.0 : value);
            }
        }
    });
}
