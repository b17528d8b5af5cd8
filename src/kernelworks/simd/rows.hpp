// A tensor of any rank seen as rows along its last dimension, which has stride 1; the leading strides may be anything.
#pragma once

#include "kernel.hpp"

namespace kw {

inline int64_t row_length(const Tensor& t) { return t.ndim ? t.shape[t.ndim - 1] : 1; }

inline int64_t row_count(const Tensor& t) {
    int64_t rows = 1;
    for (int d = 0; d + 1 < t.ndim; ++d) rows *= t.shape[d];
    return rows;
}

// Elements from the tensor's first to the first of row `row`, rows counted in row-major order.
inline int64_t row_offset(const Tensor& t, int64_t row) {
    if (t.ndim < 2) return 0;
    int64_t offset = 0;
    for (int d = t.ndim - 2; d > 0; --d) {
        offset += row % t.shape[d] * t.stride[d];
        row /= t.shape[d];
    }
    return offset + row * t.stride[0];
}

}  // namespace kw
