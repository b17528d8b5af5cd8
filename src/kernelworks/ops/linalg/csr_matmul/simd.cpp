// csr_matmul: of a matrix, columns of a row's sum stay in vectors while its entries go by; of a vector, lanes are entries.
#include "entries.hpp"
#include "simd.hpp"

namespace {

using namespace kw;

constexpr int64_t GRAIN = 16 * 1024;  // multiplications that make a second thread worth waking
constexpr int WIDE = 4;               // vectors of a row's sum

int tail(int64_t from, int64_t n) { return static_cast<int>(n - from < LANES ? n - from : LANES); }

// Lane l is the number that entry l names, of a dense matrix of one column.
template <class I, class T>
vf named(const T* dense, int64_t stride, const I* column, int count) {
    float found[LANES] = {};
    for (int l = 0; l < count; ++l) found[l] = to_float(dense[column[l] * stride]);
    return load(found);
}

template <class I, class T>
T row_times_vector(const I* column, const T* values, int64_t begin, int64_t end, const T* dense, int64_t stride) {
    vf sum = {};
    for (int64_t i = begin; i < end; i += LANES) {
        const int k = tail(i, end);
        sum = fma(k == LANES ? load(values + i) : load(values + i, k), named(dense, stride, column + i, k), sum);
    }
    return from_float<T>(reduce_add(sum));
}

template <class I, class T>
void row_times_matrix(T* to, const I* column, const T* values, int64_t begin, int64_t end, const T* dense, int64_t stride,
                      int64_t D) {
    int64_t j = 0;
    for (; j + WIDE * LANES <= D; j += WIDE * LANES) {
        vf sum[WIDE] = {};
        for (int64_t i = begin; i < end; ++i) {
            const vf value = splat(to_float(values[i]));
            const T* row = dense + column[i] * stride + j;
            for (int w = 0; w < WIDE; ++w) sum[w] = fma(value, load(row + w * LANES), sum[w]);
        }
        for (int w = 0; w < WIDE; ++w) store(to + j + w * LANES, sum[w]);
    }
    for (; j + LANES <= D; j += LANES) {
        vf sum = {};
        for (int64_t i = begin; i < end; ++i)
            sum = fma(splat(to_float(values[i])), load(dense + column[i] * stride + j), sum);
        store(to + j, sum);
    }
    if (j == D) return;
    const int k = tail(j, D);
    vf sum = {};
    for (int64_t i = begin; i < end; ++i)
        sum = fma(splat(to_float(values[i])), load(dense + column[i] * stride + j, k), sum);
    store(to + j, sum, k);
}

template <class T>
float dot(const T* a, const T* b, int64_t D) {
    vf sum = {};
    for (int64_t j = 0; j < D; j += LANES) {
        const int k = tail(j, D);
        sum = k == LANES ? fma(load(a + j), load(b + j), sum) : fma(load(a + j, k), load(b + j, k), sum);
    }
    return reduce_add(sum);
}

}  // namespace

// out [M, D], crow [M + 1], column [N], values [N], dense [K, D] whose rows are lines, threads
KW_EXPORT(csr_matmul) {
    const Tensor out = args.tensor(0), dense = args.tensor(4);
    const int64_t M = out.shape[0], D = out.shape[1], N = args.tensor(3).shape[0], stride = dense.stride[0];
    with_index(args.tensor(1).dtype, [&](auto index) {
        using I = decltype(index);
        const I *crow = args.tensor(1).ptr<const I>(), *column = args.tensor(2).ptr<const I>();
        with_dtype(out.dtype, [&](auto zero) {
            using T = decltype(zero);
            const T *values = args.tensor(3).ptr<const T>(), *from = dense.ptr<const T>();
            parallel(worth(args.integer(5), (N + M) * D, GRAIN), [&](int64_t ith, int64_t nth) {
                const Range rows = rows_by_entries(crow, M, ith, nth);
                for (int64_t r = rows.begin; r < rows.end; ++r) {
                    T* to = out.ptr<T>() + r * D;
                    if (D == 1) *to = row_times_vector<I, T>(column, values, crow[r], crow[r + 1], from, stride);
                    else row_times_matrix<I, T>(to, column, values, crow[r], crow[r + 1], from, stride, D);
                }
            });
        });
    });
}

// The matrix by columns: starts [K + 1] int64, rows [N] int64, values there [N], crow, column, values
KW_EXPORT(csr_turn) {
    with_index(args.tensor(3).dtype, [&](auto index) {
        using I = decltype(index);
        with_dtype(args.tensor(2).dtype, [&](auto zero) {
            using T = decltype(zero);
            turn(args.tensor(0).ptr<int64_t>(), args.tensor(1).ptr<int64_t>(), args.tensor(2).ptr<T>(),
                 args.tensor(3).ptr<const I>(), args.tensor(4).ptr<const I>(), args.tensor(5).ptr<const T>(),
                 args.tensor(3).shape[0] - 1, args.tensor(0).shape[0] - 1);
        });
    });
}

// Of each value: out [N], grad [M, D], crow, column, dense [K, D], threads
KW_EXPORT(csr_matmul_grad_values) {
    const Tensor out = args.tensor(0), grad = args.tensor(1), dense = args.tensor(4);
    const int64_t M = grad.shape[0], D = grad.shape[1], N = out.shape[0], stride = dense.stride[0];
    with_index(args.tensor(2).dtype, [&](auto index) {
        using I = decltype(index);
        const I *crow = args.tensor(2).ptr<const I>(), *column = args.tensor(3).ptr<const I>();
        with_dtype(grad.dtype, [&](auto zero) {
            using T = decltype(zero);
            const T *flow = grad.ptr<const T>(), *from = dense.ptr<const T>();
            parallel(worth(args.integer(5), (N + M) * D, GRAIN), [&](int64_t ith, int64_t nth) {
                const Range rows = rows_by_entries(crow, M, ith, nth);
                for (int64_t r = rows.begin; r < rows.end; ++r)
                    for (int64_t i = crow[r]; i < crow[r + 1]; ++i)
                        out.ptr<T>()[i] = from_float<T>(dot(flow + r * D, from + column[i] * stride, D));
            });
        });
    });
}
