// prod as its definition reads: one line after the other, all in float64.
#include "kernel.hpp"

namespace {

// f(line's number, the place of its element i) for each line; `at` is the place of outer, n, inner, outer_stride, stride.
template <class F>
void each_line(kw::Args args, int at, F f) {
    const int64_t outer = args.integer(at), inner = args.integer(at + 2), stride = args.integer(at + 4);
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t c = 0; c < inner; ++c) {
            const int64_t first = o * args.integer(at + 3) + c;
            f(o * inner + c, [=](int64_t i) { return first + i * stride; });
        }
}

}  // namespace

// The arguments are those of simd.cpp.
KW_EXPORT(prod) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const T* x = args.tensor(1).ptr<T>();
        const int64_t n = args.integer(3);
        each_line(args, 2, [&](int64_t number, auto place) {
            double product = 1.0;
            for (int64_t i = 0; i < n; ++i) product *= kw::to_float(x[place(i)]);
            args.tensor(0).ptr<T>()[number] = kw::from_float<T>(static_cast<float>(product));
        });
    });
}

// Of each element the product of the others: without a zero a quotient, with one 0 but in its place, with more 0.
KW_EXPORT(prod_backward) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const T *flow = args.tensor(1).ptr<T>(), *x = args.tensor(2).ptr<T>();
        const int64_t n = args.integer(4);
        each_line(args, 3, [&](int64_t number, auto place) {
            double product = 1.0;
            int64_t zeros = 0;
            for (int64_t i = 0; i < n; ++i) {
                const double value = kw::to_float(x[place(i)]);
                if (value == 0.0) ++zeros;
                else product *= value;
            }
            for (int64_t i = 0; i < n; ++i) {
                const double value = kw::to_float(x[place(i)]);
                const double others = zeros == 0 ? product / value : zeros == 1 && value == 0.0 ? product : 0.0;
                const double made = zeros > 1 || (zeros == 1 && value != 0.0) ? 0.0 : kw::to_float(flow[number]) * others;
                args.tensor(0).ptr<T>()[place(i)] = kw::from_float<T>(static_cast<float>(made));
            }
        });
    });
}
