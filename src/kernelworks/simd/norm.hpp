// Norms of rows, forward and backward: z = (x - mean) / spread of a row x, or of x + residual, then z weight + bias.
//
//     KW_EXPORT(rms_norm) { kw::norm<kw::RootMeanSquare>(args); }
//     KW_EXPORT(rms_norm_backward) { kw::norm_backward<kw::RootMeanSquare>(args); }
//
// A statistic says what mean and 1/spread are: RootMeanSquare (no mean) or Variance. On vectors, the passes over a row
// after the first find it in the L1 cache:
//
//   1. Variance: a float32 number near the mean (the mean itself, rounded);
//   2. sums of the deviations d = x - centre and of d^2: the first corrects the mean, so the variance and the output
//      lose nothing to a mean that is large beside the spread (x - centre is rounded relative to itself);
//   3. output = ((d - correction) rstd) weight + bias.
//
// A row whose spread leaves the range where float32 carries it (huge, tiny, inf, NaN, or a mean so large that the centre
// is off by a good part of the spread) is done in float64, element by element.
#pragma once

#include "moments.hpp"

namespace kw {

template <class T>
double exact_at(const T* p, int64_t j, double otherwise) {
    return p ? static_cast<double>(to_float(p[j])) : otherwise;
}

template <class T>
T rounded(double value) {
    return from_float<T>(static_cast<float>(value));
}

// One row in float64.
template <class T, class In>
void exact_forward(T* out, T* sum, In in, const T* weight, const T* bias, int64_t n, const Moments& m) {
    for (int64_t j = 0; j < n; ++j) {
        const double v = in.exact(j), z = (v - m.mean) * m.rstd;
        if (sum) sum[j] = rounded<T>(v);
        out[j] = rounded<T>(z * exact_at(weight, j, 1.0) + exact_at(bias, j, 0.0));
    }
}

// grad_x = rstd (gw - mean(gw) - z mean(gw z)) + grad_sum, gw = grad weight; without the first mean where x is not centred.
template <bool CENTRED, class T, class In>
void exact_backward(T* grad_x, const T* grad, const T* grad_sum, In in, const T* weight, int64_t n, const Moments& m) {
    const double inverse = 1.0 / static_cast<double>(n);
    double mean_gw = 0, mean_gwz = 0;
    auto gw = [&](int64_t j) { return to_float(grad[j]) * exact_at(weight, j, 1.0); };
    auto z = [&](int64_t j) { return (in.exact(j) - m.mean) * m.rstd; };
    for (int64_t j = 0; j < n; ++j) {
        if constexpr (CENTRED) mean_gw += gw(j) * inverse;
        mean_gwz += gw(j) * z(j) * inverse;
    }
    for (int64_t j = 0; j < n; ++j)
        grad_x[j] = rounded<T>(m.rstd * (gw(j) - mean_gw - z(j) * mean_gwz) + exact_at(grad_sum, j, 0.0));
}

#if KW_VECTORS

constexpr int64_t GRAIN = 32 << 10;        // bytes that are worth another thread
constexpr int64_t STREAM_BYTES = 8 << 20;  // outputs from here on are written past the caches

// ---------------------------------------------------------------- forward

template <bool STREAM, bool WEIGHT, bool BIAS, bool ADD, class Z, class T>
void write_normalised(T* out, T* sum, Input<T, ADD> in, const T* weight, const T* bias, int64_t n, const Z& z) {
    auto affine = [](vf v, vf w, vf b) {
        if constexpr (WEIGHT && BIAS) return fma(v, w, b);
        else if constexpr (WEIGHT) return v * w;
        else if constexpr (BIAS) return v + b;
        else return v;
    };
    write_row<STREAM>(
        out, n,
        [&](int64_t j) {
            const vf v = in.at(j);
            if constexpr (ADD) store(sum + j, v);
            return affine(z(v), WEIGHT ? load(weight + j) : vf{}, BIAS ? load(bias + j) : vf{});
        },
        [&](int64_t j, int k) {
            const vf v = in.at(j, k);
            if constexpr (ADD) store(sum + j, v, k);
            return affine(z(v), WEIGHT ? load(weight + j, k) : vf{}, BIAS ? load(bias + j, k) : vf{});
        });
}

template <class Statistic, bool STREAM, bool ADD, class T>
void forward_row(T* out, T* sum, Input<T, ADD> in, const T* weight, const T* bias, int64_t n, double eps,
                 Input<T, ADD> next) {
    if constexpr (ADD && Statistic::CENTRED && sizeof(T) == 4) {  // the sum as it is written is exactly what is read on
        write_row<false>(
            sum, n, [&](int64_t j) { return in.at(j); }, [&](int64_t j, int k) { return in.at(j, k); });
        const Input<T, false> added{sum, nullptr};
        return forward_row<Statistic, STREAM, false>(out, static_cast<T*>(nullptr), added, weight, bias, n, eps, added);
    }
    const Moments m = Statistic::of(in, n, eps, next);
    if (m.exact) return exact_forward(out, sum, in, weight, bias, n, m);
    const Normalise<Statistic::CENTRED> z(m);
    if (weight && bias) write_normalised<STREAM, true, true>(out, sum, in, weight, bias, n, z);
    else if (weight) write_normalised<STREAM, true, false>(out, sum, in, weight, bias, n, z);
    else if (bias) write_normalised<STREAM, false, true>(out, sum, in, weight, bias, n, z);
    else write_normalised<STREAM, false, false>(out, sum, in, weight, bias, n, z);
}

// A norm's forward over rows; sums is null, or where x + residual goes.
template <class Statistic, bool STREAM, bool ADD, class T>
void norm_rows(Rows<T> out, T* sums, Rows<T> x, Rows<T> residual, const T* weight, const T* bias, double eps,
               int64_t threads) {
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(x.M, ith, nth);
        auto input = [&](int64_t i) { return Input<T, ADD>{x[i], ADD ? residual[i] : nullptr}; };
        for (int64_t i = r.begin; i < r.end; ++i)
            forward_row<Statistic, STREAM>(out[i], ADD ? sums + i * x.N : nullptr, input(i), weight, bias, x.N, eps,
                                           input(i + 1 < r.end ? i + 1 : i));
        if constexpr (STREAM) stream_end();
    });
}

template <class Statistic, bool ADD, class T>
void norm_forward(Rows<T> out, T* sums, Rows<T> x, Rows<T> residual, const T* weight, const T* bias, double eps,
                  int64_t threads) {
    const int64_t bytes = x.M * x.N * static_cast<int64_t>(sizeof(T));
    threads = worth(threads, 2 * bytes, GRAIN);
    constexpr bool STREAMS = Statistic::STREAMS && !ADD;
    if (STREAMS && bytes >= STREAM_BYTES)
        norm_rows<Statistic, STREAMS, ADD>(out, sums, x, residual, weight, bias, eps, threads);
    else norm_rows<Statistic, false, ADD>(out, sums, x, residual, weight, bias, eps, threads);
}

// ---------------------------------------------------------------- backward

template <bool CENTRED, bool ADD, class T>
void backward_row(T* grad_x, const T* grad, const T* grad_sum, Input<T, ADD> in, const T* weight, int64_t n,
                  const Moments& m) {
    if (m.exact) return exact_backward<CENTRED>(grad_x, grad, grad_sum, in, weight, n, m);
    const double inverse = 1.0 / static_cast<double>(n);
    double mean_gw = 0, mean_gwz = 0;
    const Normalise<CENTRED> z(m);
    auto gw = [&](int64_t j) { return weight ? load(grad + j) * load(weight + j) : load(grad + j); };
    auto gw_part = [&](int64_t j, int k) { return weight ? load(grad + j, k) * load(weight + j, k) : load(grad + j, k); };
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        vf sum[4] = {}, sum_z[4] = {};
        auto add = [&](int i, vf g, vf x) KW_INLINE {
            if constexpr (CENTRED) sum[i] += g;
            sum_z[i] = fma(g, z(x), sum_z[i]);
        };
        four_ways(
            n - begin < PIECE ? n - begin : PIECE,
            [&](int i, int64_t j) KW_INLINE { add(i, gw(begin + j), in.at(begin + j)); },
            [&](int i, int64_t j, int k) KW_INLINE { add(i, gw_part(begin + j, k), in.at(begin + j, k)); });
        if constexpr (CENTRED) mean_gw += reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3])) * inverse;
        mean_gwz += reduce_add((sum_z[0] + sum_z[1]) + (sum_z[2] + sum_z[3])) * inverse;
    }
    const float a = static_cast<float>(mean_gw), b = static_cast<float>(mean_gwz);
    auto turned = [&](vf d, vf x) {
        if constexpr (CENTRED) d -= a;
        return (d - z(x) * b) * z.rstd;
    };
    write_row<false>(
        grad_x, n,
        [&](int64_t j) {
            const vf d = turned(gw(j), in.at(j));
            return ADD && grad_sum ? d + load(grad_sum + j) : d;
        },
        [&](int64_t j, int k) {
            const vf d = turned(gw_part(j, k), in.at(j, k));
            return ADD && grad_sum ? d + load(grad_sum + j, k) : d;
        });
}

constexpr int64_t GROUP = 4;  // rows whose shares of the parameters' gradients are added in float32, then in float64

typedef double vd __attribute__((vector_size(LANES * 8)));

template <class T>
inline void store_some(T* p, vf x, int k) {
    if (k == LANES) store(p, x);
    else store(p, x, k);
}

inline void add_to(double* sums, vf x, int k) {
    if (k == LANES) {
        const vd sum = load_bits<vd>(sums) + __builtin_convertvector(x, vd);
        __builtin_memcpy(sums, &sum, sizeof sum);
        return;
    }
    for (int lane = 0; lane < k; ++lane) sums[lane] += x[lane];
}

struct Pair {
    vf g, x;
};

template <class T, bool ADD>
struct Group {
    int rows = 0;
    const T* grad[GROUP];
    Input<T, ADD> in[GROUP];
    Moments moments[GROUP];

    bool exact() const {
        for (int i = 0; i < rows; ++i)
            if (moments[i].exact) return true;
        return false;
    }
};

// Of a group of rows: take(j, k, sum of grad z, sum of grad) for each LANES columns. Rows in float64 are left out.
template <bool CENTRED, bool ADD, class T, class Take>
void group_sums(const Group<T, ADD>& group, int64_t n, Take take) {
    auto add = [&](auto at) {
        vf w = {}, b = {};
        for (int i = 0; i < group.rows; ++i) {
            if (group.moments[i].exact) continue;
            const auto [g, x] = at(i);
            if constexpr (CENTRED) b += g;
            w = fma(g, Normalise<CENTRED>(group.moments[i])(x), w);
        }
        return Several<2>{{w, b}};
    };
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        take(j, LANES, add([&](int i) { return Pair{load(group.grad[i] + j), group.in[i].at(j)}; }));
    const int k = static_cast<int>(n - j);
    if (k) take(j, k, add([&](int i) { return Pair{load(group.grad[i] + j, k), group.in[i].at(j, k)}; }));
}

template <class Statistic, bool ADD, class T>
void norm_gradients(Rows<T> grad_x, T* grad_weight, T* grad_bias, double* partial, Rows<T> grad,
                    const Rows<T>* grad_sum, Rows<T> x, Rows<T> residual, const T* weight, double eps, int64_t threads) {
    constexpr bool CENTRED = Statistic::CENTRED;
    const int64_t n = x.N, share = (1 + CENTRED) * n;  // a thread's sums: the weight's, then the bias's
    threads = worth(threads, 3 * x.M * n * static_cast<int64_t>(sizeof(T)), GRAIN);
    const bool sums = grad_weight || grad_bias;
    bool done = false;
    int64_t shares = 1;  // of threads that ran
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(x.M, ith, nth, GROUP);
        auto input = [&](int64_t i) { return Input<T, ADD>{x[i], ADD ? residual[i] : nullptr}; };
        if (ith == 0) shares = nth;
        double* own = partial + ith * share;
        const bool alone = nth == 1 && x.M > 0 && x.M <= GROUP;  // then no sum needs another beside it
        if (sums && !alone) std::memset(own, 0, static_cast<size_t>(share) * sizeof(double));
        for (int64_t begin = r.begin; begin < r.end; begin += GROUP) {
            Group<T, ADD> group;
            for (int64_t i = begin; i < begin + GROUP && i < r.end; ++i, ++group.rows) {
                group.in[group.rows] = input(i), group.grad[group.rows] = grad[i];
                const Moments m = Statistic::of(input(i), n, eps, input(i + 1 < r.end ? i + 1 : i));
                backward_row<CENTRED>(grad_x[i], grad[i], grad_sum ? (*grad_sum)[i] : nullptr, input(i), weight, n, m);
                group.moments[group.rows] = m;
            }
            if (!sums) continue;
            if (alone && !group.exact()) {
                group_sums<CENTRED>(group, n, [&](int64_t j, int k, Several<2> made) {
                    if (grad_weight) store_some(grad_weight + j, made.of[0], k);
                    if (grad_bias) store_some(grad_bias + j, made.of[1], k);
                });
                done = true;
                continue;
            }
            if (alone) std::memset(own, 0, static_cast<size_t>(share) * sizeof(double));
            group_sums<CENTRED>(group, n, [&](int64_t j, int k, Several<2> made) {
                add_to(own + j, made.of[0], k);
                if constexpr (CENTRED) add_to(own + n + j, made.of[1], k);
            });
            for (int i = 0; i < group.rows; ++i) {
                const Moments& m = group.moments[i];
                for (int64_t j = 0; m.exact && j < n; ++j) {
                    own[j] += to_float(group.grad[i][j]) * ((group.in[i].exact(j) - m.mean) * m.rstd);
                    if constexpr (CENTRED) own[n + j] += to_float(group.grad[i][j]);
                }
            }
        }
    });
    for (int64_t j = 0; sums && !done && j < n; ++j) {
        double of_weight = 0.0, of_bias = 0.0;
        for (int64_t t = 0; t < shares; ++t) {
            of_weight += partial[t * share + j];
            if constexpr (CENTRED) of_bias += partial[t * share + n + j];
        }
        if (grad_weight) grad_weight[j] = rounded<T>(of_weight);
        if (grad_bias) grad_bias[j] = rounded<T>(of_bias);
    }
}

#else  // to be read: one row after another, in float64

template <class Statistic, bool ADD, class T>
void norm_forward(Rows<T> out, T* sums, Rows<T> x, Rows<T> residual, const T* weight, const T* bias, double eps,
                  int64_t) {
    for (int64_t i = 0; i < x.M; ++i) {
        const Input<T, ADD> in{x[i], ADD ? residual[i] : nullptr};
        exact_forward(out[i], ADD ? sums + i * x.N : nullptr, in, weight, bias, x.N,
                      exact_moments(in, x.N, eps, Statistic::CENTRED));
    }
}

template <class Statistic, bool ADD, class T>
void norm_gradients(Rows<T> grad_x, T* grad_weight, T* grad_bias, double* partial, Rows<T> grad,
                    const Rows<T>* grad_sum, Rows<T> x, Rows<T> residual, const T* weight, double eps, int64_t) {
    double *weight_sums = partial, *bias_sums = Statistic::CENTRED ? partial + x.N : nullptr;
    for (int64_t j = 0; j < (grad_weight || grad_bias ? (1 + Statistic::CENTRED) * x.N : 0); ++j) partial[j] = 0.0;
    for (int64_t i = 0; i < x.M; ++i) {
        const Input<T, ADD> in{x[i], ADD ? residual[i] : nullptr};
        const Moments m = exact_moments(in, x.N, eps, Statistic::CENTRED);
        exact_backward<Statistic::CENTRED>(grad_x[i], grad[i], grad_sum ? (*grad_sum)[i] : nullptr, in, weight, x.N, m);
        for (int64_t j = 0; j < x.N; ++j) {  // grad_weight = sum over rows of grad z, grad_bias = sum of grad
            if (grad_weight) weight_sums[j] += to_float(grad[i][j]) * ((in.exact(j) - m.mean) * m.rstd);
            if (grad_bias) bias_sums[j] += to_float(grad[i][j]);
        }
    }
    for (int64_t j = 0; j < x.N; ++j) {
        if (grad_weight) grad_weight[j] = rounded<T>(weight_sums[j]);
        if (grad_bias) grad_bias[j] = rounded<T>(bias_sums[j]);
    }
}

#endif

// output, sum or None, x, residual or None, weight or None, bias or None, eps, threads. The sum comes with a residual.
template <class Statistic>
void norm(Args args) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Rows<T> out(args.tensor(0)), x(args.tensor(2));
        auto pointer = [&](int i) { return args.none(i) ? nullptr : args.tensor(i).ptr<T>(); };
        const double eps = args.real(6);
        const int64_t threads = args.integer(7);
        if (args.none(3)) norm_forward<Statistic, false>(out, pointer(1), x, x, pointer(4), pointer(5), eps, threads);
        else
            norm_forward<Statistic, true>(out, pointer(1), x, Rows<T>(args.tensor(3)), pointer(4), pointer(5), eps,
                                          threads);
    });
}

// grad_x, grad_weight or None, grad_bias or None, sums [threads, 2, N] float64 (scratch; [threads, 1, N] where nothing is
// centred), grad_output, grad_sum or None, x, residual or None, weight or None, eps, threads
template <class Statistic>
void norm_backward(Args args) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Rows<T> grad_x(args.tensor(0)), grad(args.tensor(4)), x(args.tensor(6));
        auto pointer = [&](int i) { return args.none(i) ? nullptr : args.tensor(i).ptr<T>(); };
        const Rows<T> residual(args.tensor(args.none(7) ? 6 : 7)), grad_sum(args.tensor(args.none(5) ? 4 : 5));
        const Rows<T>* later = args.none(5) ? nullptr : &grad_sum;
        auto run = [&](auto gradients) {
            gradients(grad_x, pointer(1), pointer(2), args.tensor(3).ptr<double>(), grad, later, x, residual, pointer(8),
                      args.real(9), args.integer(10));
        };
        if (args.none(7)) run(norm_gradients<Statistic, false, T>);
        else run(norm_gradients<Statistic, true, T>);
    });
}

}  // namespace kw
