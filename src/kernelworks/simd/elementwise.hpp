// Walks any number of equally shaped tensors together, whatever their strides, handing out runs of elements that lie
// side by side in every one of them. Kernels that treat each element alone (activations, optimizers) need no more.
//
//     kw::elementwise(threads, {out, a, b}, 1, [](char* const* p, int64_t n) { p[0][i] from p[1][i], p[2][i], ... });
//
// Dimensions are put in the order of the first tensor's strides and merged where they can be, so contiguous tensors,
// transposed dense ones and row slices all become long runs. Where the innermost stride of some tensor is not 1, up to
// CHUNK elements at a time pass through a small buffer.
#pragma once

#include "kernel.hpp"

namespace kw {

template <int K>
struct Walk {
    static constexpr int MAX_DIMS = 64;  // torch's own limit
    static constexpr int64_t CHUNK = 256;

    int ndim = 0;
    int64_t size[MAX_DIMS];          // outermost first
    int64_t step[K][MAX_DIMS];       // in bytes
    char* data[K];
    int64_t width[K];                // bytes of one element
    bool side_by_side = true;        // the innermost step of every tensor is its element width

    explicit Walk(const Tensor (&t)[K]) {
        int order[MAX_DIMS];
        int dims = 0;
        for (int i = 0; i < t[0].ndim; ++i) {
            if (t[0].shape[i] == 1) continue;
            int at = dims++;
            for (; at > 0 && t[0].stride[order[at - 1]] < t[0].stride[i]; --at) order[at] = order[at - 1];
            order[at] = i;
        }
        for (int k = 0; k < K; ++k) {
            data[k] = t[k].data;
            width[k] = t[k].dtype.bits / 8;
        }
        for (int i = 0; i < dims; ++i) add(t, order[i]);
        if (ndim == 0) {  // a single element
            size[0] = 1;
            for (int k = 0; k < K; ++k) step[k][0] = width[k];
            ndim = 1;
        }
        for (int k = 0; k < K; ++k) side_by_side = side_by_side && step[k][ndim - 1] == width[k];
    }

    // Appends dimension `dim` as the innermost one, as part of the previous one where every tensor allows it.
    void add(const Tensor (&t)[K], int dim) {
        bool merges = ndim > 0;
        for (int k = 0; k < K && merges; ++k)
            merges = step[k][ndim - 1] == t[k].stride[dim] * width[k] * t[0].shape[dim];
        if (merges) {
            size[ndim - 1] *= t[0].shape[dim];
        } else {
            size[ndim++] = t[0].shape[dim];
        }
        for (int k = 0; k < K; ++k) step[k][ndim - 1] = t[k].stride[dim] * width[k];
    }

    // Calls f(pointers, n) over elements [begin, end) of the walk.
    template <class F>
    void run(Range range, int outputs, F f) const {
        const int64_t inner = size[ndim - 1];
        for (int64_t at = range.begin; at < range.end;) {
            const int64_t column = at % inner;
            int64_t n = inner - column < range.end - at ? inner - column : range.end - at;
            char* p[K];
            for (int k = 0; k < K; ++k) p[k] = data[k] + column * step[k][ndim - 1];
            int64_t rest = at / inner;
            for (int i = ndim - 2; i >= 0; --i) {
                const int64_t index = rest % size[i];
                rest /= size[i];
                for (int k = 0; k < K; ++k) p[k] += index * step[k][i];
            }
            if (side_by_side) {
                f(p, n);
            } else {
                n = n < CHUNK ? n : CHUNK;
                through_buffer(p, n, outputs, f);
            }
            at += n;
        }
    }

    template <class F>
    void through_buffer(char* const* p, int64_t n, int outputs, F f) const {
        alignas(64) char buffer[K][CHUNK * 4];
        char* q[K];
        for (int k = 0; k < K; ++k) {
            q[k] = buffer[k];
            for (int64_t i = 0; i < n; ++i) std::memcpy(q[k] + i * width[k], p[k] + i * step[k][ndim - 1], width[k]);
        }
        f(q, n);
        for (int k = 0; k < outputs; ++k)
            for (int64_t i = 0; i < n; ++i) std::memcpy(p[k] + i * step[k][ndim - 1], q[k] + i * width[k], width[k]);
    }
};

inline bool contiguous(const Tensor& t) {
    int64_t step = 1;
    for (int i = t.ndim - 1; i >= 0; --i) {
        if (t.shape[i] != 1 && t.stride[i] != step) return false;
        step *= t.shape[i];
    }
    return true;
}

// The first `outputs` tensors are written. Element types have at most four bytes. No output may overlap itself.
template <int K, class F>
inline void elementwise(int64_t threads, const Tensor (&t)[K], int outputs, F f) {
    constexpr int64_t GRAIN = 32 * 1024;  // bytes that make a second thread worth waking
    const int64_t total = t[0].numel();
    int64_t bytes = 0;
    bool flat = true;
    for (int k = 0; k < K; ++k) {
        bytes += total * (t[k].dtype.bits / 8);
        flat = flat && contiguous(t[k]);
    }
    if (total == 0) return;
    threads = worth(threads, bytes, GRAIN);
    if (flat) {  // the usual call, which for small tensors should cost no more than the arithmetic
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range range = slice(total, ith, nth, 64);
            char* p[K];
            for (int k = 0; k < K; ++k) p[k] = t[k].data + range.begin * (t[k].dtype.bits / 8);
            if (range.begin < range.end) f(p, range.end - range.begin);
        });
        return;
    }
    const Walk<K> walk(t);
    parallel(threads, [&](int64_t ith, int64_t nth) { walk.run(slice(total, ith, nth, 64), outputs, f); });
}

}  // namespace kw
