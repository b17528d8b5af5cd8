// What both algorithms of linear share: operands and results with their strides, and memory kept between calls.
#pragma once

#include <cstdlib>

#include "simd.hpp"

namespace {

using kw::LANES;
using kw::vf;
using kw::vu;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Memory that a thread keeps from call to call, grown when needed, aligned to a cache line.
struct Scratch {
    char* data = nullptr;
    size_t size = 0;
    ~Scratch() { std::free(data); }
    template <class T>
    T* room(int64_t count) {
        size_t wanted = static_cast<size_t>(round_up(count * static_cast<int64_t>(sizeof(T)) + 64, 4096));
        if (wanted > size) {
            std::free(data);
            data = static_cast<char*>(std::aligned_alloc(4096, wanted));
            if (data == nullptr) std::abort();
            size = wanted;
        }
        return reinterpret_cast<T*>(data);
    }
};

// A matrix seen as `lines` (rows of x, columns of the result) along an inner dimension that the product sums over.
template <class T>
struct Operand {
    const T* data;
    int64_t line_stride, inner_stride;
    const T* at(int64_t line, int64_t inner) const { return data + line * line_stride + inner * inner_stride; }
};

// The result: element (i, j) lies at i * row_stride + j * column_stride.
template <class T>
struct Result {
    T* data;
    int64_t row_stride, column_stride;
};

// Blocks of `width` lanes, taken in turn from a and b: those whose index has the bit `width` equal to `bit`.
inline vf interleaved(vf a, vf b, int width, int bit) {
    kw::vi from{};
    for (int i = 0; i < LANES; ++i) from[i] = (i & width ? LANES + i - width : i) + bit;
    return __builtin_shuffle(a, b, from);
}

}  // namespace
