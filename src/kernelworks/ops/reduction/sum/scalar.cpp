// The sum of a line as its definition reads, for reading: 64 additions in float32 before it moves on in float64.
#include "scalar_reduction.hpp"

template <class T>
static T line(const T* x, int64_t n, int64_t stride) {
    double sum = 0;
    for (int64_t begin = 0; begin < n; begin += 64) {
        float block = 0;
        for (int64_t i = begin; i < n && i < begin + 64; ++i) block += kw::to_float(x[i * stride]);
        sum += block;
    }
    return kw::from_float<T>(static_cast<float>(sum));
}

KW_LINES(sum, line)
