// Cross-entropy of logits [M, N] and class numbers [M], forward and backward, in portable vectors.
//
// Forward: one pass over each row for its maximum and sum of exponentials; the probabilities are never written.
// Backward: that pass again, then (e^(x - max) / sum - one_hot) times what flows into the row's loss.
#include "exp_sum.hpp"
#include "stream.hpp"

namespace {

using namespace kw;

constexpr int64_t GRAIN = 32 << 10;  // bytes that are worth another thread

enum Reduction : int64_t { NONE = 0, MEAN = 1, SUM = 2 };

// The first row whose target is neither a class nor ignore_index; -1 where there is none.
int64_t first_bad(const int64_t* target, int64_t m, int64_t n, int64_t ignore) {
    for (int64_t i = 0; i < m; ++i)
        if (target[i] != ignore && (target[i] < 0 || target[i] >= n)) return i;
    return -1;
}

int64_t counted(const int64_t* target, int64_t m, int64_t ignore) {
    int64_t count = 0;
    for (int64_t i = 0; i < m; ++i) count += target[i] != ignore;
    return count;
}

template <class T>
void backward_row(T* out, const T* x, int64_t n, int64_t target, double flow) {
    const ExpSum s = running_exp_sum(x, n);
    const float scale = static_cast<float>(flow / s.sum);
    write_row<false>(
        out, n, [&](int64_t i) { return exp_nonpositive(load(x + i) - s.max) * scale; },
        [&](int64_t i, int k) { return exp_nonpositive(load(x + i, k) - s.max) * scale; });
    const double p = std::exp(to_float(x[target]) - static_cast<double>(s.max)) / s.sum;
    out[target] = from_float<T>(static_cast<float>((p - 1.0) * flow));
}

}  // namespace

// loss ([M] for reduction 0, else one), losses [M] float64 (written), bad [1] int64 (written: the first row whose target
// is out of range, or -1; nothing else is written where there is one), logits, target, ignore_index, reduction, threads
KW_EXPORT(cross_entropy) {
    const Tensor loss = args.tensor(0);
    with_dtype(loss.dtype, [&](auto zero) {
        using T = decltype(zero);
        const Rows<T> x(args.tensor(3));
        const int64_t* target = args.tensor(4).ptr<int64_t>();
        const int64_t ignore = args.integer(5), reduction = args.integer(6);
        const int64_t bad = first_bad(target, x.M, x.N, ignore);
        *args.tensor(2).ptr<int64_t>() = bad;
        if (bad >= 0) return;
        double* losses = args.tensor(1).ptr<double>();
        const int64_t threads = worth(args.integer(7), x.M * x.N * static_cast<int64_t>(sizeof(T)), GRAIN);
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(x.M, ith, nth);
            for (int64_t i = r.begin; i < r.end; ++i) {
                losses[i] = 0.0;
                if (target[i] == ignore) continue;
                const ExpSum s = running_exp_sum(x[i], x.N);
                losses[i] = std::log(s.sum) + (static_cast<double>(s.max) - to_float(x[i][target[i]]));
            }
        });
        if (reduction == NONE) {
            for (int64_t i = 0; i < x.M; ++i) loss.ptr<T>()[i] = from_float<T>(static_cast<float>(losses[i]));
            return;
        }
        double sum = 0.0;
        for (int64_t i = 0; i < x.M; ++i) sum += losses[i];
        if (reduction == MEAN) sum /= static_cast<double>(counted(target, x.M, ignore));
        *loss.ptr<T>() = from_float<T>(static_cast<float>(sum));
    });
}

// grad_logits, grad_loss ([M] for reduction 0, else one), logits, target, ignore_index, reduction, threads
KW_EXPORT(cross_entropy_backward) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Rows<T> out(args.tensor(0)), x(args.tensor(2));
        const T* grad = args.tensor(1).ptr<T>();
        const int64_t* target = args.tensor(3).ptr<int64_t>();
        const int64_t ignore = args.integer(4), reduction = args.integer(5);
        const double share = reduction == MEAN ? 1.0 / static_cast<double>(counted(target, x.M, ignore)) : 1.0;
        const int64_t threads = worth(args.integer(6), 2 * x.M * x.N * static_cast<int64_t>(sizeof(T)), GRAIN);
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(x.M, ith, nth);
            for (int64_t i = r.begin; i < r.end; ++i) {
                if (target[i] == ignore) std::memset(static_cast<void*>(out[i]), 0, x.N * sizeof(T));
                else backward_row(out[i], x[i], x.N, target[i], to_float(grad[reduction == NONE ? i : 0]) * share);
            }
        });
    });
}
