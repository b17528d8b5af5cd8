// The index of a line's smallest element as its definition reads, for reading: of equals the first, NaN below all.
#include "scalar_reduction.hpp"

template <class T>
static int64_t line(const T* x, int64_t n, int64_t stride) {
    int64_t at = 0;
    for (int64_t i = 1; i < n; ++i) {
        const float v = kw::to_float(x[i * stride]), best = kw::to_float(x[at * stride]);
        if (v < best || (v != v && best == best)) at = i;
    }
    return at;
}

KW_LINES(argmin, line)
