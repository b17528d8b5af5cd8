// The first k elements of each line as the definition reads: again and again the one that comes next after the last one
// taken. Of equals the first comes first; NaN is above all numbers, and last where the smallest come first.
#pragma once

#include "kernel.hpp"

namespace kw {

struct Element {
    float value;
    int64_t place;
};

// Whether a comes before b, of two places in one line.
inline bool comes_before(Element a, Element b, bool largest) {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan == largest;
    if (!a_nan && a.value != b.value) return (a.value > b.value) == largest;
    return a.place < b.place;
}

// values, indices, x, outer, n, inner, outer_stride, stride, beside, k, largest, sorted, threads
inline void select_one_by_one(const Args& args) {
    const Tensor values = args.tensor(0), indices = args.tensor(1), x = args.tensor(2);
    const int64_t outer = args.integer(3), n = args.integer(4), inner = args.integer(5), stride = args.integer(7);
    const int64_t outer_stride = args.integer(6), k = args.integer(9), beside = args.integer(8);
    const bool largest = args.integer(10) != 0;
    with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel(worth(args.integer(12), outer * n * inner * (k + 1), 1 << 14), [&](int64_t ith, int64_t nth) {
            const Range r = slice(outer * inner, ith, nth);
            for (int64_t line = r.begin; line < r.end; ++line) {
                const T* from = x.ptr<T>() + line / inner * outer_stride + line % inner;
                const int64_t to = line / beside * k * beside + line % beside;
                Element last{0.0f, -1};
                for (int64_t j = 0; j < k; ++j) {
                    Element next{0.0f, -1};
                    for (int64_t i = 0; i < n; ++i) {
                        const Element own{to_float(from[i * stride]), i};
                        const bool after = last.place < 0 || comes_before(last, own, largest);
                        if (after && (next.place < 0 || comes_before(own, next, largest))) next = own;
                    }
                    values.ptr<T>()[to + j * beside] = from[next.place * stride];
                    indices.ptr<int64_t>()[to + j * beside] = next.place;
                    last = next;
                }
            }
        });
    });
}

}  // namespace kw
