// Elements picked along a dimension by an index, and elements added where an index says, of tensors of any strides.
//
//     KW_EXPORT(gather) { kw::gather(args); }
//
// A tensor is gone through line by line of its last dimension. If the index is the same along it (whole rows), rows are
// copied or added as vectors. What is added to one element is added by one thread, in the order of the index: the same bits
// for any number of threads.
#pragma once

#include "answer.hpp"
#include "simd.hpp"

namespace kw {

constexpr int64_t INDEX_GRAIN = 64 * 1024;  // bytes that make a second thread worth waking
constexpr int64_t FEWEST_COLUMNS = 64;      // of a block of columns

template <class F>
inline void with_index(Tensor index, F f) {
    if (index.dtype.bits == 32) {
        f(index.ptr<const int32_t>());
    } else {
        f(index.ptr<const int64_t>());
    }
}

// first_outside(index, contiguous, n): the position of the first index that is none below n, or -1
inline int64_t first_outside(Args args) {
    const Tensor index = args.tensor(0);
    const uint64_t n = static_cast<uint64_t>(args.integer(1));
    int64_t found = -1;
    with_index(index, [&](auto at) {
        for (int64_t i = 0, count = index.numel(); i < count && found < 0; ++i)
            if (static_cast<uint64_t>(static_cast<int64_t>(at[i])) >= n) found = i;  // a negative one is huge here
    });
    return found;
}

// Where line number `line` of `shape` begins in a tensor, not counting dimension `except`.
inline int64_t line_start(int64_t line, const Tensor& shape, const Tensor& t, int except) {
    int64_t at = 0;
    for (int d = shape.ndim - 2; d >= 0; --d) {
        if (d != except) at += line % shape.shape[d] * t.stride[d];
        line /= shape.shape[d];
    }
    return at;
}

// gather(out, x, index, dim, threads): all of as many dimensions, at least one; index of out's shape
inline void gather(Args args) {
    const Tensor out = args.tensor(0), x = args.tensor(1), index = args.tensor(2);
    const int dim = static_cast<int>(args.integer(3)), last = out.ndim - 1;
    const int64_t count = out.shape[last], lines = count ? out.numel() / count : 0;
    const int64_t to_step = out.stride[last], from_step = x.stride[last], index_step = index.stride[last];
    auto run = [&](auto zero) {
        using T = decltype(zero);
        with_index(index, [&](auto indices) {
            parallel(worth(args.integer(4), 2 * out.numel() * int64_t{sizeof(T)}, INDEX_GRAIN), [&](int64_t ith, int64_t nth) {
                const Range range = slice(lines, ith, nth);
                for (int64_t line = range.begin; line < range.end; ++line) {
                    T* to = out.ptr<T>() + line_start(line, out, out, -1);
                    const T* from = x.ptr<const T>() + line_start(line, out, x, dim);
                    const auto* at = indices + line_start(line, out, index, -1);
                    if (dim == last) {
                        for (int64_t j = 0; j < count; ++j) to[j * to_step] = from[at[j * index_step] * from_step];
                    } else if (index_step == 0) {
                        from += *at * x.stride[dim];
                        if (to_step == 1 && from_step == 1) {
                            std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
                        } else {
                            for (int64_t j = 0; j < count; ++j) to[j * to_step] = from[j * from_step];
                        }
                    } else {
                        for (int64_t j = 0; j < count; ++j)
                            to[j * to_step] = from[at[j * index_step] * x.stride[dim] + j * from_step];
                    }
                }
            });
        });
    };
    if (out.dtype.bits == 32) {
        run(uint32_t{});
    } else {
        run(uint16_t{});
    }
}

// scatter_add(out, src, index, dim, alpha, threads): out float32; index of src's shape
inline void scatter_add(Args args) {
    const Tensor out = args.tensor(0), src = args.tensor(1), index = args.tensor(2);
    const int dim = static_cast<int>(args.integer(3)), last = src.ndim - 1;
    const float alpha = static_cast<float>(args.real(4));
    const int64_t width = src.shape[last], many = src.shape[dim];
    if (!src.numel()) return;
    const int64_t to_step = out.stride[last], from_step = src.stride[last], index_step = index.stride[last];
    // Of each block of columns all indices along the dimension are one thread's.
    const int64_t threads = args.integer(5), block = dim == last ? width : [&] {
        const int64_t share = ((width + threads - 1) / threads + LANES - 1) / LANES * LANES;
        return share < FEWEST_COLUMNS ? FEWEST_COLUMNS : share;
    }();
    const int64_t blocks = (width + block - 1) / block, lines = src.numel() / width / (dim == last ? 1 : many);
    with_dtype(src.dtype, [&](auto zero) {
        using T = decltype(zero);
        with_index(index, [&](auto indices) {
            parallel(worth(threads, 8 * src.numel(), INDEX_GRAIN), [&](int64_t ith, int64_t nth) {
                const Range range = slice(lines * blocks, ith, nth);
                for (int64_t part = range.begin; part < range.end; ++part) {
                    const int64_t begin = part % blocks * block, end = begin + block < width ? begin + block : width;
                    int64_t line = part / blocks, to_start = 0, from_start = 0, index_start = 0;
                    for (int d = last - 1; d >= 0; --d) {  // all dimensions but the last and the index's
                        if (d == dim) continue;
                        const int64_t place = line % src.shape[d];
                        line /= src.shape[d];
                        to_start += place * out.stride[d], from_start += place * src.stride[d];
                        index_start += place * index.stride[d];
                    }
                    float* to = out.ptr<float>() + to_start;
                    const T* from = src.ptr<const T>() + from_start;
                    const auto* at = indices + index_start;
                    if (dim == last) {
                        for (int64_t j = 0; j < width; ++j)
                            to[at[j * index_step] * to_step] += alpha * to_float(from[j * from_step]);
                        continue;
                    }
                    for (int64_t m = 0; m < many; ++m, from += src.stride[dim], at += index.stride[dim]) {
                        if (index_step == 0 && to_step == 1 && from_step == 1) {
                            float* row = to + *at * out.stride[dim];
                            for (int64_t j = begin; j < end; j += LANES) {
                                const int n = static_cast<int>(end - j < LANES ? end - j : LANES);
                                store(row + j, load(row + j, n) + splat(alpha) * load(from + j, n), n);
                            }
                        } else {
                            for (int64_t j = begin; j < end; ++j)
                                to[at[j * index_step] * out.stride[dim] + j * to_step] += alpha * to_float(from[j * from_step]);
                        }
                    }
                }
            });
        });
    });
}

}  // namespace kw
