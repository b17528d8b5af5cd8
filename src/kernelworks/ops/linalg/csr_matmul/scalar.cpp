// csr_matmul, to be read: out[r] = the sum over the entries i of row r of values[i] dense[column[i]].
#include "entries.hpp"

using namespace kw;

// out [M, D], crow [M + 1], column [N], values [N], dense [K, D] whose rows are lines, threads
KW_EXPORT(csr_matmul) {
    const Tensor out = args.tensor(0), dense = args.tensor(4);
    const int64_t M = out.shape[0], D = out.shape[1];
    with_index(args.tensor(1).dtype, [&](auto index) {
        using I = decltype(index);
        const I *crow = args.tensor(1).ptr<const I>(), *column = args.tensor(2).ptr<const I>();
        with_dtype(out.dtype, [&](auto zero) {
            using T = decltype(zero);
            for (int64_t r = 0; r < M; ++r)
                for (int64_t j = 0; j < D; ++j) {
                    double sum = 0.0;
                    for (int64_t i = crow[r]; i < crow[r + 1]; ++i)
                        sum += static_cast<double>(to_float(args.tensor(3).ptr<const T>()[i])) *
                               static_cast<double>(to_float(dense.ptr<const T>()[column[i] * dense.stride[0] + j]));
                    out.ptr<T>()[r * D + j] = from_float<T>(static_cast<float>(sum));
                }
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
    const Tensor grad = args.tensor(1), dense = args.tensor(4);
    const int64_t M = grad.shape[0], D = grad.shape[1];
    with_index(args.tensor(2).dtype, [&](auto index) {
        using I = decltype(index);
        const I *crow = args.tensor(2).ptr<const I>(), *column = args.tensor(3).ptr<const I>();
        with_dtype(grad.dtype, [&](auto zero) {
            using T = decltype(zero);
            for (int64_t r = 0; r < M; ++r)
                for (int64_t i = crow[r]; i < crow[r + 1]; ++i) {
                    double sum = 0.0;
                    for (int64_t j = 0; j < D; ++j)
                        sum += static_cast<double>(to_float(grad.ptr<const T>()[r * D + j])) *
                               static_cast<double>(to_float(dense.ptr<const T>()[column[i] * dense.stride[0] + j]));
                    args.tensor(0).ptr<T>()[i] = from_float<T>(static_cast<float>(sum));
                }
        });
    });
}
