// Groups of rows that lie one behind the other, by where each ends: int32 or int64, as they come.
#pragma once

#include "../../lookup/embedding/ids.hpp"

namespace {

struct Groups {
    const int32_t* narrow;
    const int64_t* wide;
    int64_t count;

    explicit Groups(const kw::Tensor& ends)
        : narrow(ends.dtype.bits == 32 ? ends.ptr<const int32_t>() : nullptr),
          wide(ends.dtype.bits == 32 ? nullptr : ends.ptr<const int64_t>()),
          count(ends.shape[0]) {}

    int64_t end(int64_t g) const { return narrow ? narrow[g] : wide[g]; }
    int64_t begin(int64_t g) const { return g ? end(g - 1) : 0; }
    int64_t rows(int64_t g) const { return end(g) - begin(g); }
    int64_t all_rows() const { return count ? end(count - 1) : 0; }

    // The first group that ends before it begins, or beyond the last of so many rows; -1 if there is none.
    int64_t wrong(int64_t rows) const {
        for (int64_t g = 0; g < count; ++g)
            if (end(g) < begin(g) || end(g) > rows) return g;
        return -1;
    }
};

// A tensor [E, N, K], or [E, N], of any strides.
template <class T>
struct Stack {
    T* data;
    int64_t step, row, column;

    explicit Stack(const kw::Tensor& t)
        : data(t.ptr<T>()), step(t.stride[0]), row(t.stride[1]), column(t.ndim > 2 ? t.stride[2] : 1) {}
    T* at(int64_t g, int64_t i = 0) const { return data + g * step + i * row; }
};

}  // namespace
