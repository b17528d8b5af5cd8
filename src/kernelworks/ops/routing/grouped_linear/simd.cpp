// out = x weight[g]^T + bias[g] for the rows of each group g, and its gradients: linear's products, group by group.
//
// All groups are cut up among the threads together, by what their products cost: a thread takes a stretch of the columns
// of one group after another, so a hot group is shared by all, and none waits at the end of a group. Which algorithm
// multiplies follows from the whole group's rows, so the bits are the same for any number of threads.
#include "../../linear/linear/blocked.hpp"
#include "../../linear/linear/in_place.hpp"
#include "../../linear/linear/stream.hpp"
#include "groups.hpp"

namespace {

constexpr int64_t PANEL = 512;     // rows of a group that are shared out together
constexpr int64_t WEIGHT_COST = 8;  // products that take as long as an element of the weight takes to come from memory

template <class T>
Operand<T> turned(Operand<T> a) {
    return Operand<T>{a.data, a.inner_stride, a.line_stride};
}

// A stretch of the columns of a panel: some rows of a group.
struct Part {
    int64_t group, row, rows;
    kw::Range columns;
};

// The ith of nth shares of all columns of all groups, part by part: panel by panel in each group, cut at multiples of
// `multiple(rows of the group)`. A row of a column costs 1, each column of a panel WEIGHT_COST besides.
template <class M, class F>
void share(const Groups& groups, int64_t columns, int64_t ith, int64_t nth, M multiple, F run) {
    auto panels_of = [](int64_t rows) { return (rows + PANEL - 1) / PANEL; };
    int64_t total = 0;
    for (int64_t g = 0; g < groups.count; ++g)
        if (int64_t rows = groups.rows(g)) total += rows + panels_of(rows) * WEIGHT_COST;
    // in units of a column's cost; the products stay far below 2^63 for any memory that there is
    const double first = static_cast<double>(total) * static_cast<double>(ith) / static_cast<double>(nth);
    const double last = static_cast<double>(total) * static_cast<double>(ith + 1) / static_cast<double>(nth);
    double at = 0.0;
    for (int64_t g = 0; g < groups.count && at < last; ++g) {
        const int64_t rows = groups.rows(g), panels = panels_of(rows), step = multiple(rows);
        const int64_t blocks = (columns + step - 1) / step;
        Part whole{g, 0, 0, {0, columns}};  // panels of this group of which all columns are this thread's
        for (int64_t p = 0; p < panels; ++p) {
            const int64_t row = rows * p / panels, height = rows * (p + 1) / panels - row;
            const double cost = static_cast<double>(height + WEIGHT_COST), per_block = cost / static_cast<double>(blocks);
            auto block = [&](double to) {
                const double place = (to - at) / per_block;
                return place <= 0.0 ? 0 : (place >= static_cast<double>(blocks) ? blocks : static_cast<int64_t>(place));
            };
            const int64_t begin = block(first), end = ith + 1 == nth ? blocks : block(last);
            at += cost;
            if (begin == 0 && end == blocks) {
                if (!whole.rows) whole.row = row;
                whole.rows += height;
                continue;
            }
            if (whole.rows) run(whole), whole.rows = 0;
            if (begin < end) run(Part{g, row, height, {begin * step, smaller(end * step, columns)}});
        }
        if (whole.rows) run(whole);
    }
}

// How a group of so many rows is multiplied: few rows go by the weight as it streams past.
template <class T>
bool streams(int64_t rows, int64_t K, Operand<T> a, Operand<T> b) {
    int64_t few = FEW;
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) few = FEW_IN_PLACE;
#endif
    return rows <= few && K > 0 && a.inner_stride == 1 && b.inner_stride == 1;
}

template <class T>
void fill(int64_t M, int64_t N, Result<T> out, const T* bias) {
    for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n)
            out.data[m * out.row_stride + n] = bias ? bias[n] : kw::from_float<T>(0.0f);
}

// out[M, N] = a b + bias on this thread alone. Contiguous rows of the result.
template <class T>
void multiply(bool stream_it, int64_t M, int64_t N, int64_t K, Operand<T> a, Operand<T> b, Result<T> out, const T* bias) {
    if (M == 0 || N == 0) return;
    if (K == 0) return fill(M, N, out, bias);
    if (stream_it) return stream(M, N, K, a, b, out, bias, 0, 1, 1);
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        if (b.inner_stride == 1 && M < MANY_IN_PLACE && M < N)
            return in_place<true>(N, M, K, b, a, out.data, out.row_stride, bias, 1);
        if (a.inner_stride == 1) return in_place<false>(M, N, K, a, b, out.data, out.row_stride, bias, 1);
    }
#endif
    blocked(M, N, K, a, b, out, bias, 1);
}

template <class T>
Operand<T> rows_of(const kw::Tensor& t) {
    return Operand<T>{t.ptr<T>(), t.stride[0], 1};
}

// The product of each group's rows with its own matrix of `b`, whose lines are the columns of the result.
template <class T>
void products(const kw::Tensor& to, Operand<T> a, Stack<T> b, bool lines_are_rows, int64_t K, const Groups& groups,
              const Stack<T>* bias, int64_t threads) {
    const int64_t N = to.shape[1], all = groups.all_rows();
    Result<T> out{to.ptr<T>(), to.stride[0], 1};
    auto of_group = [&](int64_t g) {
        Operand<T> lines{b.at(g), b.row, b.column};
        return lines_are_rows ? lines : turned(lines);
    };
    kw::parallel(kw::worth(threads, all * N * K / 16 + groups.count, 32 * 1024), [&](int64_t ith, int64_t nth) {
        auto multiple = [&](int64_t rows) -> int64_t {
            return streams(rows, K, a, of_group(0)) ? Policy<T>::ROWS : TILE_N;
        };
        share(groups, N, ith, nth, multiple, [&](const Part& part) {
            const int64_t row = groups.begin(part.group) + part.row, n = part.columns.begin;
            Operand<T> left{a.at(row, 0), a.line_stride, a.inner_stride}, right = of_group(part.group);
            const bool few = streams(groups.rows(part.group), K, left, right);
            right.data = right.at(n, 0);
            multiply(few, part.rows, part.columns.end - n, K, left, right,
                     Result<T>{out.data + row * out.row_stride + n, out.row_stride, 1},
                     bias ? bias->at(part.group) + n : nullptr);
        });
        const kw::Range none = kw::slice(to.shape[0] - all, ith, nth);  // rows of no group
        fill<T>(none.end - none.begin, N, Result<T>{out.data + (all + none.begin) * out.row_stride, out.row_stride, 1},
                nullptr);
    });
}

}  // namespace

// grouped_linear(output[T, N], x[T, K], weight[E, N, K], ends[E], bias[E, N] or None, threads): the first group whose
// end is wrong, or -1. Rows are contiguous; of a matrix of the weight rows or columns are.
KW_EXPORT_INTEGER(grouped_linear) {
    const kw::Tensor to = args.tensor(0), x = args.tensor(1), weight = args.tensor(2);
    const Groups groups(args.tensor(3));
    const int64_t wrong = groups.wrong(to.shape[0]);
    if (wrong >= 0) return wrong;
    kw::with_dtype(to.dtype, [&](auto zero) {
        using T = decltype(zero);
        const Stack<T> bias(args.none(4) ? weight : args.tensor(4));
        products<T>(to, rows_of<T>(x), Stack<T>(weight), true, weight.shape[2], groups,
                    args.none(4) ? nullptr : &bias, args.integer(5));
    });
    return -1;
}

// grad_x[T, K] = grad_output[T, N] weight[g] for the rows of each group g; ends[E], threads
KW_EXPORT_INTEGER(grouped_linear_grad_x) {
    const kw::Tensor to = args.tensor(0), grad = args.tensor(1), weight = args.tensor(2);
    const Groups groups(args.tensor(3));
    const int64_t wrong = groups.wrong(to.shape[0]);
    if (wrong >= 0) return wrong;
    kw::with_dtype(to.dtype, [&](auto zero) {
        using T = decltype(zero);
        products<T>(to, rows_of<T>(grad), Stack<T>(weight), false, weight.shape[1], groups, nullptr, args.integer(4));
    });
    return -1;
}

// grad_weight[E, N, K]: of each group grad_output^T x over its rows; grad_output[T, N], x[T, K], ends[E], threads
KW_EXPORT_INTEGER(grouped_linear_grad_weight) {
    const kw::Tensor to = args.tensor(0), grad = args.tensor(1), x = args.tensor(2);
    const Groups groups(args.tensor(3));
    const int64_t wrong = groups.wrong(x.shape[0]), N = to.shape[1], K = to.shape[2];
    if (wrong >= 0) return wrong;
    kw::with_dtype(to.dtype, [&](auto zero) {
        using T = decltype(zero);
        Operand<T> left = rows_of<T>(grad), right = rows_of<T>(x);
        const int64_t products = groups.all_rows() * N * K / 16 + groups.count * N * K;
        kw::parallel(kw::worth(args.integer(4), products, 32 * 1024), [&](int64_t ith, int64_t nth) {
            // Of every group a stretch of the rows of its gradient: who has fewer of one has more of the next.
            for (int64_t g = 0; g < groups.count; ++g) {
                const kw::Range mine = kw::slice(N, (ith + g) % nth, nth, TILE_M);
                const int64_t M = mine.end - mine.begin, first = groups.begin(g);
                if (M == 0) continue;
                multiply<T>(false, M, K, groups.rows(g), turned(Operand<T>{left.at(first, mine.begin), left.line_stride, 1}),
                            turned(Operand<T>{right.at(first, 0), right.line_stride, 1}),
                            Result<T>{to.ptr<T>() + (g * N + mine.begin) * K, K, 1}, nullptr);
            }
        });
    });
    return -1;
}

// grad_bias[E, N]: the sum of grad_output[T, N] over each group's rows; ends[E], threads
KW_EXPORT_INTEGER(grouped_linear_grad_bias) {
    const kw::Tensor to = args.tensor(0), rows = args.tensor(1);
    const Groups groups(args.tensor(2));
    const int64_t wrong = groups.wrong(rows.shape[0]), N = to.shape[1];
    if (wrong >= 0) return wrong;
    kw::with_dtype(to.dtype, [&](auto zero) {
        using T = decltype(zero);
        const Operand<T> grad = rows_of<T>(rows);
        kw::parallel(kw::worth(args.integer(3), (rows.shape[0] + groups.count) * N, 32 * 1024),
                     [&](int64_t ith, int64_t nth) {
            const kw::Range mine = kw::slice(N, ith, nth, LANES);
            for (int64_t g = 0; g < groups.count; ++g)
                for (int64_t n = mine.begin; n < mine.end; n += LANES) {
                    const int here = static_cast<int>(smaller(LANES, mine.end - n));
                    vf sum{};
                    for (int64_t m = groups.begin(g); m < groups.end(g); ++m) sum += kw::load(grad.at(m, n), here);
                    kw::store(to.ptr<T>() + g * N + n, sum, here);
                }
        });
    });
    return -1;
}
