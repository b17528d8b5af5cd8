// Lines along a dimension that are summed and then mapped: what an op of rows has in common with all others.
//
// An op of two inputs a, b is a struct that says what is summed and what is written from the sum:
//
//     struct Backward {
//         static V add(V sum, V a, V b);         // sum + term
//         static V value(V a, V b, V total);
//     };
//     KW_EXPORT(name) { kw::sum_lines<Backward>(args); }  // output, a, b, dim, threads
//
// V is a vector of floats and, where the target has none, a double (functions.hpp): one line after another, to be read.
//
// Along the last dimension a line is a row, read once for the sum and once more, from L1, to write: sums run in 4 LANES
// float32 accumulators over at most PIECE elements and are carried on in float64. Along another dimension (`dim`
// counted from the front, -1 for the last; all tensors contiguous then) lanes hold neighbouring columns and no lane
// talks to another: float32 within BLOCK rows, compensated between them.
#pragma once

#include "functions.hpp"
#if KW_VECTORS
#include "exp_sum.hpp"
#include "stream.hpp"
#endif

namespace kw {

#if KW_VECTORS

constexpr int64_t BLOCK = 128;             // of a column, the longest run that is summed in float32
constexpr int64_t GRAIN = 32 << 10;        // bytes that are worth another thread
constexpr int64_t STREAM_BYTES = 8 << 20;  // outputs from here on are written past the caches

// ---------------------------------------------------------------- columns: [outer, n, inner], contiguous

struct Columns {
    static constexpr int GROUP = 4;  // vectors of columns that are worked on together
    int64_t outer = 1, n, inner = 1, groups;
    Columns(const Tensor& t, int64_t dim) : n(t.shape[dim]) {
        for (int64_t d = 0; d < dim; ++d) outer *= t.shape[d];
        for (int64_t d = dim + 1; d < t.ndim; ++d) inner *= t.shape[d];
        groups = (inner + GROUP * LANES - 1) / (GROUP * LANES);
    }
    // f(offset of the first element, how many columns) for each group of columns of this thread's slice
    template <class F>
    void each(int64_t threads, F f) const {
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(outer * groups, ith, nth);
            for (int64_t g = r.begin; g < r.end; ++g) {
                const int64_t column = g % groups * (GROUP * LANES), left = inner - column;
                const int64_t width = left < GROUP * LANES ? left : GROUP * LANES;
                f(g / groups * n * inner + column, static_cast<int>(width));
            }
        });
    }
};

// The vector v of a row of `width` columns; lanes beyond the width read as 0.
template <class T>
inline vf column_load(const T* p, int v, int width) {
    const int left = width - v * LANES;
    return left >= LANES ? load(p + v * LANES) : load(p + v * LANES, left);
}
template <class T>
inline void column_store(T* p, int v, int width, vf x) {
    const int left = width - v * LANES;
    if (left >= LANES) store(p + v * LANES, x);
    else store(p + v * LANES, x, left);
}

// Per lane the sum of n rows: float32 within a block of rows, compensated between the blocks. add(sum, row) adds a row.
template <class Add>
inline vf blocked_sum(int64_t n, Add add) {
    vf sum = {}, lost = {};
    for (int64_t i = 0; i < n; i += BLOCK) {
        vf block = {};
        for (int64_t j = i; j < i + BLOCK && j < n; ++j) block = add(block, j);
        const vf term = block - lost, next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
    return sum;
}

// ---------------------------------------------------------------- a sum, then a map

template <class Op, class T>
void sum_rows(Rows<T> out, Rows<T> a, Rows<T> b, int64_t threads) {
    const int64_t n = out.N;
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(out.M, ith, nth);
        for (int64_t row = r.begin; row < r.end; ++row) {
            T* to = out[row];
            const T *p = a[row], *q = b[row];
            double sum = 0;
            for (int64_t begin = 0; begin < n; begin += PIECE) {
                const int64_t end = n - begin < PIECE ? n : begin + PIECE;
                FourSums s;
                int64_t i = begin;
                for (; i + 4 * LANES <= end; i += 4 * LANES) {
                    s.a = Op::add(s.a, load(p + i), load(q + i));
                    s.b = Op::add(s.b, load(p + i + LANES), load(q + i + LANES));
                    s.c = Op::add(s.c, load(p + i + 2 * LANES), load(q + i + 2 * LANES));
                    s.d = Op::add(s.d, load(p + i + 3 * LANES), load(q + i + 3 * LANES));
                }
                for (; i < end; i += LANES) {  // lanes beyond the end are 0 in both and must add nothing
                    const int k = end - i < LANES ? static_cast<int>(end - i) : LANES;
                    s.a = Op::add(s.a, load(p + i, k), load(q + i, k));
                }
                sum += s.total();
            }
            const vf total = splat(static_cast<float>(sum));
            write_row<false>(
                to, n, [&](int64_t i) { return Op::value(load(p + i), load(q + i), total); },
                [&](int64_t i, int k) { return Op::value(load(p + i, k), load(q + i, k), total); });
        }
    });
}

template <class Op, class T>
void sum_columns(const Tensor& out, const Tensor& a, const Tensor& b, int64_t dim, int64_t threads) {
    const Columns c(out, dim);
    c.each(threads, [&](int64_t offset, int width) {
        T* to = out.ptr<T>() + offset;
        const T *p = a.ptr<T>() + offset, *q = b.ptr<T>() + offset;
        for (int v = 0; v * LANES < width; ++v) {
            auto at = [&](const T* t, int64_t i) { return column_load(t + i * c.inner, v, width); };
            const vf total = blocked_sum(c.n, [&](vf sum, int64_t i) { return Op::add(sum, at(p, i), at(q, i)); });
            for (int64_t i = 0; i < c.n; ++i) column_store(to + i * c.inner, v, width, Op::value(at(p, i), at(q, i), total));
        }
    });
}

// output, a, b, dim, threads
template <class Op>
void sum_lines(Args args) {
    const Tensor out = args.tensor(0), a = args.tensor(1), b = args.tensor(2);
    const int64_t dim = args.integer(3), bytes = out.numel() * out.dtype.bits / 8;
    if (!bytes) return;
    const int64_t threads = worth(args.integer(4), bytes, GRAIN);
    with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        if (dim >= 0) sum_columns<Op, T>(out, a, b, dim, threads);
        else sum_rows<Op, T>(Rows<T>(out), Rows<T>(a), Rows<T>(b), threads);
    });
}

#else

// The lines along a dimension: N elements, `step` apart; line number i starts at start(i).
template <class T>
struct Lines {
    T* data;
    int64_t count, N, step, inner, row_stride;

    // Contiguous, or along the last dimension (dim -1) rows of any stride.
    Lines(const Tensor& t, int64_t dim) : data(t.ptr<T>()), count(1), inner(1) {
        if (dim < 0) dim = t.ndim - 1;
        N = t.shape[dim];
        for (int64_t d = 0; d < t.ndim; ++d) count *= d == dim ? 1 : t.shape[d];
        for (int64_t d = dim + 1; d < t.ndim; ++d) inner *= t.shape[d];
        step = inner;
        row_stride = t.ndim == 2 && dim == 1 ? t.stride[0] : N * inner;
    }
    T* start(int64_t i) const { return data + i / inner * row_stride + i % inner; }
    double at(int64_t i, int64_t j) const { return to_float(start(i)[j * step]); }
    void put(int64_t i, int64_t j, double value) const { start(i)[j * step] = from_float<T>(static_cast<float>(value)); }
};

template <class Op>
void sum_lines(Args args) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const int64_t dim = args.integer(3);
        const Lines<T> out(args.tensor(0), dim), a(args.tensor(1), dim), b(args.tensor(2), dim);
        for (int64_t i = 0; i < out.count; ++i) {
            double total = 0;
            for (int64_t j = 0; j < out.N; ++j) total = Op::add(total, a.at(i, j), b.at(i, j));
            for (int64_t j = 0; j < out.N; ++j) out.put(i, j, Op::value(a.at(i, j), b.at(i, j), total));
        }
    });
}

#endif

}  // namespace kw
