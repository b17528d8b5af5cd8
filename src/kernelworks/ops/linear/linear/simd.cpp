// out = x weight^T + bias, and its gradients, over portable vectors.
//
// Two algorithms, one for few rows of x (stream.hpp) and one for many (blocked.hpp; in_place.hpp for float32 with
// AVX2). All multiply and add in float32.
#include "blocked.hpp"
#include "in_place.hpp"
#include "stream.hpp"

namespace {

template <class T>
void fill(int64_t M, int64_t N, Result<T> out, const T* bias) {
    for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n)
            out.data[m * out.row_stride + n] = bias ? bias[n] : kw::from_float<T>(0.0f);
}

template <class T>
void product(int64_t M, int64_t N, int64_t K, Operand<T> a, Operand<T> b, Result<T> out, const T* bias,
             int64_t threads) {
    if (M == 0 || N == 0) return;
    if (K == 0) return fill(M, N, out, bias);
    int64_t useful = kw::worth(threads, M * N * K / (M < 16 ? M : 16), 32 * 1024);
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        if (multiplied_in_place(M, N, K, a, b, out, bias, useful)) return;
#endif
    if (a.inner_stride == 1 && b.inner_stride == 1) {
        if (M <= FEW) return stream(M, N, K, a, b, out, bias, 0, 1, useful);
        if (N <= FEW)  // few outputs a row: the rows of x are what is streamed
            return stream(N, M, K, b, a, Result<T>{out.data, 1, out.row_stride}, bias, 1, 0, useful);
    }
    blocked(M, N, K, a, b, out, bias, useful);
}

// A matrix argument [lines, inner], of which one of the strides is 1.
template <class T>
Operand<T> lines_of(const kw::Tensor& t) {
    kw::Rows<const T> rows(t);
    return Operand<T>{rows.data, rows.stride, t.ndim == 2 && rows.N > 1 ? t.stride[1] : 1};
}
// The same matrix as [inner, lines].
template <class T>
Operand<T> turned(const kw::Tensor& t) {
    Operand<T> lines = lines_of<T>(t);
    return Operand<T>{lines.data, lines.inner_stride, lines.line_stride};
}
template <class T>
Result<T> result(const kw::Tensor& t) {
    kw::Rows<T> rows(t);
    return Result<T>{rows.data, rows.stride, 1};
}

}  // namespace

// linear(output[M, N], x[M, K], weight[N, K], bias[N] or None, threads)
KW_EXPORT(linear) {
    kw::Tensor output = args.tensor(0), x = args.tensor(1), weight = args.tensor(2);
    kw::with_dtype(output.dtype, [&](auto zero) {
        using T = decltype(zero);
        const T* bias = args.none(3) ? nullptr : args.tensor(3).ptr<T>();
        product<T>(kw::Rows<T>(output).M, weight.shape[0], weight.shape[1], lines_of<T>(x), lines_of<T>(weight),
                   result<T>(output), bias, args.integer(4));
    });
}

// grad_x[M, K] = grad_output[M, N] weight[N, K]
KW_EXPORT(linear_grad_x) {
    kw::Tensor grad_x = args.tensor(0), grad = args.tensor(1), weight = args.tensor(2);
    kw::with_dtype(grad_x.dtype, [&](auto zero) {
        using T = decltype(zero);
        product<T>(kw::Rows<T>(grad_x).M, weight.shape[1], weight.shape[0], lines_of<T>(grad), turned<T>(weight),
                   result<T>(grad_x), nullptr, args.integer(3));
    });
}

// grad_weight[N, K] = grad_output[M, N]^T x[M, K]
KW_EXPORT(linear_grad_weight) {
    kw::Tensor grad_weight = args.tensor(0), grad = args.tensor(1), x = args.tensor(2);
    kw::with_dtype(grad_weight.dtype, [&](auto zero) {
        using T = decltype(zero);
        product<T>(grad_weight.shape[0], grad_weight.shape[1], kw::Rows<T>(grad).M, turned<T>(grad), turned<T>(x),
                   result<T>(grad_weight), nullptr, args.integer(3));
    });
}

// grad_bias[N] = sum over M of grad_output[M, N]
KW_EXPORT(linear_grad_bias) {
    kw::Tensor grad_bias = args.tensor(0);
    kw::with_dtype(grad_bias.dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::Rows<T> grad(args.tensor(1));
        T* to = grad_bias.ptr<T>();
        kw::parallel(kw::worth(args.integer(2), grad.M * grad.N, 32 * 1024), [&](int64_t ith, int64_t nth) {
            kw::Range mine = kw::slice(grad.N, ith, nth, LANES);
            for (int64_t n = mine.begin; n < mine.end; n += LANES) {
                int here = static_cast<int>(smaller(LANES, mine.end - n));
                vf sum{};
                for (int64_t m = 0; m < grad.M; ++m)
                    sum += here == LANES ? kw::load(grad[m] + n) : kw::load(grad[m] + n, here);
                kw::store(to + n, sum, here);
            }
        });
    });
}
