// Norms of x [N, C, S] whose parameters run along C: group_norm, instance_norm, batch_norm. z = (x - mean) / spread of a
// row, then z weight[c] + bias[c]. A row is a group of D channels of one sample, or one channel of all samples.
//
//     KW_EXPORT(group_norm) { kw::channel_norm(args); }
//     KW_EXPORT(group_norm_backward) { kw::channel_norm_backward(args); }
//
// x lies as [N, C, S] (a channel's elements of a sample side by side) or as [N, S, C] (channels_last), and so do the
// results. Mean and squares are taken in pieces that stay in the cache, each around a centre of its own, and joined in
// float64: x is read from memory once for them, and a large mean costs nothing. Of [N, S, C] a thread takes some columns,
// so that no sum hangs on the number of threads. A row that float32 does not carry is done in float64.
#pragma once

#include "norm.hpp"

namespace kw {

// The mean of a row, its sum of squared deviations, and 1 / spread.
struct Statistic {
    double mean, squares, rstd;
    bool exact;
};

struct Span {
    int64_t n0, n1, c0, c1;
};

template <class T, class P>
struct ChannelNorm {
    const T* x;
    const P *weight, *bias, *mean, *variance;  // the last two where the statistics are given
    int64_t N, C, S, groups;
    bool batch, last;
    double eps;

    int64_t channels() const { return batch ? 1 : C / groups; }
    int64_t rows() const { return batch ? C : N * groups; }
    Span span(int64_t row) const {
        if (batch) return {0, N, row, row + 1};
        const int64_t n = row / groups, c = row % groups * channels();
        return {n, n + 1, c, c + channels()};
    }
    int64_t count(const Span& r) const { return (r.n1 - r.n0) * (r.c1 - r.c0) * S; }
    int64_t at(int64_t n, int64_t c, int64_t s) const { return last ? (n * S + s) * C + c : (n * C + c) * S + s; }
    template <class F>
    void each(const Span& r, F f) const {
        for (int64_t n = r.n0; n < r.n1; ++n)
            for (int64_t c = r.c0; c < r.c1; ++c)
                for (int64_t s = 0; s < S; ++s) f(at(n, c, s), c);
    }
    double value(int64_t i) const { return to_float(x[i]); }
    double w(int64_t c) const { return weight ? to_float(weight[c]) : 1.0; }
    double b(int64_t c) const { return bias ? to_float(bias[c]) : 0.0; }

    Statistic given(int64_t c) const {
        const double spread = to_float(variance[c]) + eps;
        return {to_float(mean[c]), 0.0, 1.0 / std::sqrt(spread), !(spread > 0x1p-90 && spread < 0x1p100)};
    }
    Statistic exact(const Span& r) const {
        if (mean) return given(r.c0);
        const double n = static_cast<double>(count(r));
        double sum = 0, squares = 0;
        each(r, [&](int64_t i, int64_t) { sum += value(i); });
        const double middle = sum / n;
        each(r, [&](int64_t i, int64_t) { squares += (value(i) - middle) * (value(i) - middle); });
        return {middle, squares, 1.0 / std::sqrt(squares / n + eps), true};
    }
    void exact_forward(T* out, const Span& r, const Statistic& m) const {
        each(r, [&](int64_t i, int64_t c) { out[i] = rounded<T>((value(i) - m.mean) * m.rstd * w(c) + b(c)); });
    }
    // sums: of grad z and of grad, for each channel of the row.
    template <class Sums>
    void exact_sums(const T* grad, const Span& r, const Statistic& m, Sums add) const {
        each(r, [&](int64_t i, int64_t c) { add(c, to_float(grad[i]) * ((value(i) - m.mean) * m.rstd), to_float(grad[i])); });
    }
    // grad_x = rstd (gw - mean(gw) - z mean(gw z)), gw = grad weight; the means are 0 where the statistics are given.
    void exact_backward(T* grad_x, const T* grad, const Span& r, const Statistic& m, double a, double q) const {
        each(r, [&](int64_t i, int64_t c) {
            const double z = mean ? 0.0 : (value(i) - m.mean) * m.rstd * q;
            grad_x[i] = rounded<T>(m.rstd * (to_float(grad[i]) * w(c) - a - z));
        });
    }
};

// Where the gradients of weight and bias are gathered: of a channel in a sample, or in all of them.
struct Shares {
    double* of;
    int64_t C;
    bool batch;
    double* at(int64_t n, int64_t c) const { return of + 2 * ((batch ? 0 : n * C) + c); }
};

#if KW_VECTORS

constexpr int64_t DOWN = 128;  // rows that a column's float32 sums take in before they move on to float64

// Statistics of parts, joined in float64.
struct Joined {
    double n = 0, mean = 0, squares = 0, off = 0;

    void add(double k, double its_mean, double its_squares, double its_off) {
        const double apart = its_mean - mean, all = n + k;
        mean += apart * (k / all);
        squares += its_squares + apart * apart * (n * k / all);
        off = its_off > off ? its_off : off;
        n = all;
    }
    bool carried(double eps) const {
        const double spread = squares / n + eps;
        return spread > 0x1p-90 && spread < 0x1p100 && off <= spread * 0x1p-6;  // NaN fails too
    }
    Statistic statistic(double eps) const { return {mean, squares, 1.0 / std::sqrt(squares / n + eps), false}; }
};

inline Moments moments(const Statistic& m) { return {m.mean, m.rstd, m.exact}; }

template <bool VALUE>
struct Always {
    static constexpr bool value = VALUE;
};

// ---------------------------------------------------------------- [N, C, S]

template <class T, class P>
Statistic row_statistic(const ChannelNorm<T, P>& p, const Span& r) {
    if (p.mean) return p.given(r.c0);
    Joined all;
    const int64_t length = (r.c1 - r.c0) * p.S;
    for (int64_t n = r.n0; n < r.n1; ++n) {
        const Input<T, false> in{p.x + p.at(n, r.c0, 0), nullptr};
        for (int64_t j = 0; j < length; j += PIECE) {
            const int64_t k = length - j < PIECE ? length - j : PIECE;
            const double count = static_cast<double>(k);
            const float centre = static_cast<float>(Variance::piece_sum(in.from(j), k) / count);
            Variance::Deviations d;
            Variance::piece_deviations(d, in.from(j), k, centre, in.from(j + k));
            const double shift = d.sum / count, squares = d.squares - d.sum * shift;
            all.add(count, static_cast<double>(centre) + shift, squares > 0.0 ? squares : squares * 0.0, shift * shift);
        }
    }
    return all.carried(p.eps) ? all.statistic(p.eps) : p.exact(r);
}

template <bool STREAM, class T, class P>
void row_forward(const ChannelNorm<T, P>& p, T* out, const Span& r, const Statistic& m) {
    if (m.exact) return p.exact_forward(out, r, m);
    const Normalise<true> z(moments(m));
    for (int64_t n = r.n0; n < r.n1; ++n)
        for (int64_t c = r.c0; c < r.c1; ++c) {
            const T* x = p.x + p.at(n, c, 0);
            const vf w = splat(static_cast<float>(p.w(c))), b = splat(static_cast<float>(p.b(c)));
            write_row<STREAM>(
                out + p.at(n, c, 0), p.S, [&](int64_t j) { return fma(z(load(x + j)), w, b); },
                [&](int64_t j, int k) { return fma(z(load(x + j, k)), w, b); });
        }
}

template <class T, class P>
void row_backward(const ChannelNorm<T, P>& p, T* grad_x, const T* grad, const Span& r, const Statistic& m,
                  const Shares& shares) {
    double a = 0, q = 0;
    const Normalise<true> z(moments(m));
    auto share = [&](int64_t n, int64_t c, double of_weight, double of_bias) {
        double* to = shares.at(n, c);
        to[0] += of_weight, to[1] += of_bias;
        q += of_weight * p.w(c), a += of_bias * p.w(c);
    };
    if (m.exact) p.exact_sums(grad, r, m, [&](int64_t c, double gz, double g) { share(r.n0, c, gz, g); });
    else
        for (int64_t n = r.n0; n < r.n1; ++n)
            for (int64_t c = r.c0; c < r.c1; ++c) {
                const T *x = p.x + p.at(n, c, 0), *g = grad + p.at(n, c, 0);
                double of_weight = 0, of_bias = 0;
                for (int64_t begin = 0; begin < p.S; begin += PIECE) {
                    vf s[4] = {}, sz[4] = {};
                    auto add = [&](int i, vf d, vf v) KW_INLINE {
                        s[i] += d;
                        sz[i] = fma(d, z(v), sz[i]);
                    };
                    four_ways(
                        p.S - begin < PIECE ? p.S - begin : PIECE,
                        [&](int i, int64_t j) KW_INLINE { add(i, load(g + begin + j), load(x + begin + j)); },
                        [&](int i, int64_t j, int k) KW_INLINE { add(i, load(g + begin + j, k), load(x + begin + j, k)); });
                    of_bias += reduce_add((s[0] + s[1]) + (s[2] + s[3]));
                    of_weight += reduce_add((sz[0] + sz[1]) + (sz[2] + sz[3]));
                }
                share(n, c, of_weight, of_bias);
            }
    const double inverse = p.mean ? 0.0 : 1.0 / static_cast<double>(p.count(r));
    a = p.mean ? 0.0 : a * inverse, q = p.mean ? 0.0 : q * inverse;
    if (m.exact) return p.exact_backward(grad_x, grad, r, m, a, q);
    const vf mean_gw = splat(static_cast<float>(a)), mean_gwz = splat(static_cast<float>(q));
    for (int64_t n = r.n0; n < r.n1; ++n)
        for (int64_t c = r.c0; c < r.c1; ++c) {
            const T *x = p.x + p.at(n, c, 0), *g = grad + p.at(n, c, 0);
            const vf w = splat(static_cast<float>(p.w(c)));
            auto turned = [&](vf d, vf v) {
                if (p.mean) return d * w * z.rstd;
                return (d * w - mean_gw - z(v) * mean_gwz) * z.rstd;
            };
            write_row<false>(
                grad_x + p.at(n, c, 0), p.S, [&](int64_t j) { return turned(load(g + j), load(x + j)); },
                [&](int64_t j, int k) { return turned(load(g + j, k), load(x + j, k)); });
        }
}

// ---------------------------------------------------------------- [N, S, C]

// Some columns of a slab of rows: of a sample, or of all of them. `scratch` holds eight float64 for each.
template <class T, class P>
struct Columns {
    const ChannelNorm<T, P>& p;
    int64_t n, c0, width, rows;
    double *mean, *squares, *of_weight, *of_bias;
    float *centre, *rstd, *shift, *w, *b, *a, *q, *apart;  // `apart`: 1 at a row that float32 does not carry

    Columns(const ChannelNorm<T, P>& p, int64_t n, int64_t c0, int64_t width, double* scratch)
        : p(p), n(n), c0(c0), width(width), rows(p.batch ? p.N * p.S : p.S), mean(scratch), squares(mean + width),
          of_weight(squares + width), of_bias(of_weight + width), centre(reinterpret_cast<float*>(of_bias + width)),
          rstd(centre + width), shift(rstd + width), w(shift + width), b(w + width), a(b + width), q(a + width), apart(q + width) {
        std::memset(scratch, 0, static_cast<size_t>(8 * width) * sizeof(double));
        for (int64_t i = 0; i < width; ++i) {
            w[i] = static_cast<float>(p.w(c0 + i));
            b[i] = static_cast<float>(p.b(c0 + i));
        }
    }
    Span span(int64_t i) const {  // of the row that column i belongs to
        const int64_t d = p.channels(), c = c0 + i / d * d;
        return p.batch ? Span{0, p.N, c, c + 1} : Span{n, n + 1, c, c + d};
    }
    int64_t begin() const { return p.at(p.batch ? 0 : n, c0, 0); }

    // take(i, k) for each LANES columns of a block of rows.
    template <class Take>
    void chunks(Take take) const {
        for (int64_t i = 0; i < width; i += LANES) take(i, static_cast<int>(width - i < LANES ? width - i : LANES));
    }
    static vf some(const T* t, int k) { return k == LANES ? load(t) : load(t, k); }
    static vf some_floats(const float* t, int k) { return k == LANES ? load(t) : load(t, k); }

    // The sum down so many rows in four ways: term(row) of LANES columns.
    template <int PARTS, class Term>
    static Several<PARTS> down(int64_t count, Term term) {
        Several<PARTS> s[4] = {};
        int64_t r = 0;
        for (; r + 4 <= count; r += 4)
            for (int way = 0; way < 4; ++way) term(r + way, s[way]);
        for (; r < count; ++r) term(r, s[0]);
        for (int i = 0; i < PARTS; ++i) s[0].of[i] = (s[0].of[i] + s[1].of[i]) + (s[2].of[i] + s[3].of[i]);
        return s[0];
    }

    // Mean and squares of every column; returns the largest square of what a centre was off by.
    void measure(float* off) {
        for (int64_t r0 = 0; r0 < rows; r0 += DOWN) {
            const int64_t count = rows - r0 < DOWN ? rows - r0 : DOWN;
            const T* x = p.x + begin() + r0 * p.C;
            const double k_rows = static_cast<double>(count), before = static_cast<double>(r0), all = before + k_rows;
            chunks([&](int64_t i, int k) {
                const auto sum = down<1>(count, [&](int64_t r, Several<1>& s) KW_INLINE { s.of[0] += some(x + r * p.C + i, k); });
                const vf middle = sum.of[0] / static_cast<float>(count);
                const auto d = down<2>(count, [&](int64_t r, Several<2>& s) KW_INLINE {
                    const vf from = some(x + r * p.C + i, k) - middle;
                    s.of[0] += from;
                    s.of[1] = fma(from, from, s.of[1]);
                });
                for (int lane = 0; lane < k; ++lane) {
                    const double its = d.of[0][lane] / k_rows, its_mean = middle[lane] + its;
                    const double around = d.of[1][lane] - d.of[0][lane] * its, moved = its_mean - mean[i + lane];
                    mean[i + lane] += moved * (k_rows / all);
                    squares[i + lane] += (around > 0.0 ? around : around * 0.0) + moved * moved * (before * k_rows / all);
                    const float square = static_cast<float>(its * its);
                    off[i + lane] = square > off[i + lane] ? square : off[i + lane];
                }
            });
        }
    }

    // stats takes mean and squares of every row.
    void statistics(double* stats) {
        const int64_t d = p.channels();
        if (!p.mean) measure(a);
        for (int64_t i = 0; i < width; i += d) {
            const Statistic m = p.mean ? p.given(c0 + i) : joined(i, d);
            const Normalise<true> z(moments(m));
            if (stats) stats[2 * ((c0 + i) / d)] = m.mean, stats[2 * ((c0 + i) / d) + 1] = m.squares;
            mean[i] = m.mean, squares[i] = m.rstd, apart[i] = m.exact;
            for (int64_t j = i; j < i + d && !m.exact; ++j) centre[j] = z.centre, rstd[j] = z.rstd, shift[j] = z.shift;
        }
    }
    // f(span, statistic, first column) of rows that are done in float64.
    template <class F>
    void exact_rows(F f) const {
        for (int64_t i = 0; i < width; i += p.channels())
            if (apart[i] != 0.0f) f(span(i), Statistic{mean[i], 0.0, squares[i], true}, i);
    }
    Statistic joined(int64_t i, int64_t d) const {
        Joined all;
        all.n = static_cast<double>(d * rows);
        for (int64_t j = i; j < i + d; ++j) all.mean += mean[j] / static_cast<double>(d);
        for (int64_t j = i; j < i + d; ++j) {
            all.squares += squares[j] + (mean[j] - all.mean) * (mean[j] - all.mean) * static_cast<double>(rows);
            all.off = a[j] > all.off ? a[j] : all.off;
        }
        return all.carried(p.eps) ? all.statistic(p.eps) : p.exact(span(i));
    }
    vf z(const T* x, int64_t i, int k) const {
        return fma(some(x, k) - some_floats(centre + i, k), some_floats(rstd + i, k), some_floats(shift + i, k));
    }

    void write(T* out) {
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = begin() + r * p.C;
            chunks([&](int64_t i, int k) KW_INLINE {
                store_some(out + at + i, fma(z(p.x + at + i, i, k), some_floats(w + i, k), some_floats(b + i, k)), k);
            });
        }
    }
    void sums(const T* grad) {
        for (int64_t r0 = 0; r0 < rows; r0 += DOWN) {
            const int64_t at = begin() + r0 * p.C;
            chunks([&](int64_t i, int k) {
                const auto s = down<2>(rows - r0 < DOWN ? rows - r0 : DOWN, [&](int64_t r, Several<2>& to) KW_INLINE {
                    const vf g = some(grad + at + r * p.C + i, k);
                    to.of[0] = fma(g, z(p.x + at + r * p.C + i, i, k), to.of[0]);
                    to.of[1] += g;
                });
                add_to(of_weight + i, s.of[0], k);
                add_to(of_bias + i, s.of[1], k);
            });
        }
    }
    void means() {  // of gw and of gw z
        const int64_t d = p.channels();
        for (int64_t i = 0; i < width; i += d) {
            double gw = 0, gwz = 0;
            for (int64_t j = i; j < i + d; ++j) gw += of_bias[j] * p.w(c0 + j), gwz += of_weight[j] * p.w(c0 + j);
            const double n = static_cast<double>(d * rows);
            for (int64_t j = i; j < i + d; ++j) {
                a[j] = p.mean ? 0.0f : static_cast<float>(gw / n);
                q[j] = p.mean ? 0.0f : static_cast<float>(gwz / n);
            }
        }
    }
    void turn(T* grad_x, const T* grad) {
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = begin() + r * p.C;
            chunks([&](int64_t i, int k) KW_INLINE {
                vf d = some(grad + at + i, k) * some_floats(w + i, k);
                if (!p.mean) d = d - some_floats(a + i, k) - z(p.x + at + i, i, k) * some_floats(q + i, k);
                store_some(grad_x + at + i, d * some_floats(rstd + i, k), k);
            });
        }
    }
};

// run(columns) for every sample's columns, in blocks of `width`.
template <class T, class P, class Run>
void over_columns(const ChannelNorm<T, P>& p, int64_t width, double* scratch, int64_t threads, Run run) {
    const int64_t blocks = (p.C + width - 1) / width, items = blocks * (p.batch ? 1 : p.N);
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(items, ith, nth);
        for (int64_t item = r.begin; item < r.end; ++item) {
            const int64_t c0 = item % blocks * width;
            run(Columns<T, P>(p, item / blocks, c0, p.C - c0 < width ? p.C - c0 : width, scratch + ith * 8 * width));
        }
    });
}

#endif

// ---------------------------------------------------------------- forward

// stats: [rows, 2] float64, where each row's mean and squares go.
template <class T, class P>
void channel_forward(const ChannelNorm<T, P>& p, T* out, double* stats, int64_t width, double* scratch, int64_t threads) {
#if KW_VECTORS
    const int64_t bytes = p.N * p.C * p.S * static_cast<int64_t>(sizeof(T));
    threads = worth(threads, 2 * bytes, GRAIN);
    if (p.last) {
        over_columns(p, width, scratch, threads, [&](Columns<T, P> columns) {
            const int64_t n = columns.n;
            columns.statistics(stats ? stats + 2 * n * p.groups : nullptr);
            columns.write(out);
            columns.exact_rows([&](const Span& r, const Statistic& m, int64_t) { p.exact_forward(out, r, m); });
        });
        return;
    }
    auto rows = [&](auto stream) {
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(p.rows(), ith, nth);
            for (int64_t i = r.begin; i < r.end; ++i) {
                const Statistic m = row_statistic(p, p.span(i));
                if (stats) stats[2 * i] = m.mean, stats[2 * i + 1] = m.squares;
                row_forward<decltype(stream)::value>(p, out, p.span(i), m);
            }
            if constexpr (decltype(stream)::value) stream_end();
        });
    };
    if (bytes >= STREAM_BYTES) rows(Always<true>{});
    else rows(Always<false>{});
#else
    for (int64_t i = 0; i < p.rows(); ++i) {
        const Statistic m = p.exact(p.span(i));
        if (stats) stats[2 * i] = m.mean, stats[2 * i + 1] = m.squares;
        p.exact_forward(out, p.span(i), m);
    }
#endif
}

// mean <- (1 - momentum) mean + momentum (that of the rows of a channel, averaged over samples); so the unbiased variance.
template <class T, class P>
void move_statistics(const ChannelNorm<T, P>& p, P* mean, P* variance, const double* stats, double momentum) {
    const int64_t rows = p.batch ? 1 : p.N;
    const double n = static_cast<double>(p.batch ? p.N * p.S : p.S);
    for (int64_t c = 0; c < p.C; ++c) {
        double middle = 0, spread = 0;
        for (int64_t i = 0; i < rows; ++i) {
            middle += stats[2 * (i * p.C + c)] / static_cast<double>(rows);
            spread += stats[2 * (i * p.C + c) + 1] / (n - 1.0) / static_cast<double>(rows);
        }
        if (mean) mean[c] = rounded<P>((1.0 - momentum) * to_float(mean[c]) + momentum * middle);
        if (variance) variance[c] = rounded<P>((1.0 - momentum) * to_float(variance[c]) + momentum * spread);
    }
}

// ---------------------------------------------------------------- backward

template <class T, class P>
void channel_backward(const ChannelNorm<T, P>& p, T* grad_x, P* grad_weight, P* grad_bias, const T* grad, double* partial,
                      int64_t width, double* scratch, int64_t threads) {
    const Shares shares{partial, p.C, p.batch};
    const int64_t samples = p.batch ? 1 : p.N;
    std::memset(partial, 0, static_cast<size_t>(2 * samples * p.C) * sizeof(double));
#if KW_VECTORS
    threads = worth(threads, 3 * p.N * p.C * p.S * static_cast<int64_t>(sizeof(T)), GRAIN);
    if (p.last)
        over_columns(p, width, scratch, threads, [&](Columns<T, P> columns) {
            columns.statistics(nullptr);
            columns.sums(grad);
            columns.exact_rows([&](const Span& r, const Statistic& m, int64_t i) {
                for (int64_t j = i; j < i + p.channels(); ++j) columns.of_weight[j] = columns.of_bias[j] = 0.0;
                p.exact_sums(grad, r, m, [&](int64_t c, double gz, double g) {
                    columns.of_weight[c - columns.c0] += gz, columns.of_bias[c - columns.c0] += g;
                });
            });
            for (int64_t i = 0; i < columns.width; ++i) {
                double* to = shares.at(columns.n, columns.c0 + i);
                to[0] = columns.of_weight[i], to[1] = columns.of_bias[i];
            }
            columns.means();
            columns.turn(grad_x, grad);
            columns.exact_rows([&](const Span& r, const Statistic& m, int64_t i) {
                p.exact_backward(grad_x, grad, r, m, columns.a[i], columns.q[i]);
            });
        });
    else
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(p.rows(), ith, nth);
            for (int64_t i = r.begin; i < r.end; ++i)
                row_backward(p, grad_x, grad, p.span(i), row_statistic(p, p.span(i)), shares);
        });
#else
    for (int64_t i = 0; i < p.rows(); ++i) {
        const Span r = p.span(i);
        const Statistic m = p.exact(r);
        double a = 0, q = 0;
        p.exact_sums(grad, r, m, [&](int64_t c, double gz, double g) {
            double* to = shares.at(r.n0, c);
            to[0] += gz, to[1] += g;
            q += gz * p.w(c), a += g * p.w(c);
        });
        const double inverse = p.mean ? 0.0 : 1.0 / static_cast<double>(p.count(r));
        p.exact_backward(grad_x, grad, r, m, p.mean ? 0.0 : a * inverse, p.mean ? 0.0 : q * inverse);
    }
#endif
    for (int64_t c = 0; c < p.C; ++c) {
        double of_weight = 0, of_bias = 0;
        for (int64_t n = 0; n < samples; ++n) of_weight += shares.at(n, c)[0], of_bias += shares.at(n, c)[1];
        if (grad_weight) grad_weight[c] = rounded<P>(of_weight);
        if (grad_bias) grad_bias[c] = rounded<P>(of_bias);
    }
}

// with_parameters(args, first, last, x's dtype, f): f(zero of x's type, zero of the parameters', which may be float32).
template <class F>
void with_parameters(Args args, int first, int last, DLDataType dtype, F f) {
    with_dtype(dtype, [&](auto zero) {
        for (int i = first; i <= last; ++i)
            if (!args.none(i) && args.tensor(i).dtype.bits == 32) return f(zero, float{});
        f(zero, zero);
    });
}

template <class T, class P>
ChannelNorm<T, P> problem(Args args, int x, int parameters, int sizes) {
    auto pointer = [&](int i) -> const P* { return args.none(i) ? nullptr : args.tensor(i).ptr<P>(); };
    return {args.tensor(x).ptr<T>(), pointer(parameters), pointer(parameters + 1), pointer(parameters + 2),
            pointer(parameters + 3), args.integer(sizes), args.integer(sizes + 1), args.integer(sizes + 2),
            args.integer(sizes + 3), args.integer(sizes + 4) != 0, args.integer(sizes + 5) != 0, args.real(sizes + 6)};
}

// output, x, weight, bias, mean, variance (the given ones), mean, variance (to be moved), scratch, N, C, S, groups, batch,
// last, eps, momentum, width of a block of columns, threads. Of scratch, float64, the first 2 rows() are the statistics'.
inline void channel_norm(Args args) {
    with_parameters(args, 2, 7, args.tensor(1).dtype, [&](auto t, auto parameter) {
        using T = decltype(t);
        using P = decltype(parameter);
        const auto p = problem<T, P>(args, 1, 2, 9);
        double* scratch = args.tensor(8).ptr<double>();
        const bool moves = !args.none(6) || !args.none(7);
        channel_forward(p, args.tensor(0).ptr<T>(), moves ? scratch : nullptr, args.integer(17), scratch + 2 * p.rows(),
                        args.integer(18));
        auto moved = [&](int i) { return args.none(i) ? nullptr : args.tensor(i).ptr<P>(); };
        if (moves && p.N * p.S > 0) move_statistics(p, moved(6), moved(7), scratch, args.real(16));
    });
}

// grad_x, grad_weight, grad_bias, grad_output, x, weight, None, mean, variance, scratch, N, C, S, groups, batch, last, eps,
// width, threads. Of scratch the first 2 samples C are the parameters' gradients.
inline void channel_norm_backward(Args args) {
    with_parameters(args, 5, 8, args.tensor(4).dtype, [&](auto t, auto parameter) {
        using T = decltype(t);
        using P = decltype(parameter);
        const auto p = problem<T, P>(args, 4, 5, 10);
        double* scratch = args.tensor(9).ptr<double>();
        auto gradient = [&](int i) { return args.none(i) ? nullptr : args.tensor(i).ptr<P>(); };
        channel_backward(p, args.tensor(0).ptr<T>(), gradient(1), gradient(2), args.tensor(3).ptr<T>(), scratch,
                         args.integer(17), scratch + 2 * (p.batch ? 1 : p.N) * p.C, args.integer(18));
    });
}

}  // namespace kw
