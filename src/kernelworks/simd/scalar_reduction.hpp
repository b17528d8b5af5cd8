// A reduction's definition as it reads: one line after the other, one element after the other.
//
//     template <class T> Out line(const T* x, int64_t n, int64_t stride);
//     KW_LINES(sum, line)
//
// exports what `reduction.hpp` exports for vectors; Out is T or an index.
#pragma once

#include <utility>

#include "kernel.hpp"

// out, x, outer, n, inner, outer_stride, stride, threads
#define KW_LINES(name, line)                                                                             \
    KW_EXPORT(name) {                                                                                    \
        const kw::Tensor out = args.tensor(0), x = args.tensor(1);                                       \
        const int64_t outer = args.integer(2), n = args.integer(3), inner = args.integer(4);             \
        const int64_t outer_stride = args.integer(5), stride = args.integer(6);                          \
        kw::with_dtype(x.dtype, [&](auto zero) {                                                         \
            using T = decltype(zero);                                                                    \
            using Out = decltype(line(std::declval<const T*>(), n, stride));                             \
            kw::parallel(kw::worth(args.integer(7), outer * n * inner, 1 << 14), [&](int64_t ith, int64_t nth) { \
                const kw::Range r = kw::slice(outer * inner, ith, nth);                                  \
                for (int64_t k = r.begin; k < r.end; ++k)                                                \
                    out.ptr<Out>()[k] = line(x.ptr<T>() + k / inner * outer_stride + k % inner, n, stride); \
            });                                                                                          \
        });                                                                                              \
    }
