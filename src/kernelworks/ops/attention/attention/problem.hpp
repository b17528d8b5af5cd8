// The arguments of one attention call, and which keys a query may see. Shared by the plain and the vector kernels.
#pragma once

#include "kernel.hpp"

namespace kw::attention {

// A [B, H, L, D] tensor of any strides whose last dimension is contiguous.
template <class T>
struct Heads {
    T* data;
    int64_t batch, head, row;  // strides, in elements

    explicit Heads(const Tensor& t)
        : data(t.ptr<T>()), batch(t.stride[0]), head(t.stride[1]), row(t.stride[2]) {}
    T* at(int64_t b, int64_t h, int64_t i) const { return data + b * batch + h * head + i * row; }
};

struct Problem {
    int64_t B, H, Hkv, Lq, Lk, D;
    int64_t group;  // query heads that share one key-value head
    double scale;
    bool causal;
    int64_t shift;   // query i stands at key position i + shift
    int64_t window;  // keys a query may look back on, itself included; 0: no window
    const uint8_t* mask;
    int64_t mask_stride[4];

    Problem(const Tensor& q, const Tensor& k, const Args& args, int first)
        : B(q.shape[0]), H(q.shape[1]), Hkv(k.shape[1]), Lq(q.shape[2]), Lk(k.shape[2]), D(q.shape[3]),
          group(H / Hkv), scale(args.real(first + 1)), causal(args.integer(first + 2) != 0),
          shift(args.integer(first + 3)), window(args.integer(first + 4)), mask(nullptr), mask_stride{} {
        if (args.none(first)) return;
        Tensor m = args.tensor(first);
        mask = m.ptr<uint8_t>();
        for (int i = 0; i < 4; ++i) mask_stride[i] = m.stride[i];
    }

    // Query i may see keys first_key(i) <= j < end_key(i), where the mask lets it.
    int64_t end_key(int64_t i) const {
        int64_t end = causal ? i + shift + 1 : Lk;
        return end < 0 ? 0 : (end < Lk ? end : Lk);
    }
    int64_t first_key(int64_t i) const {
        int64_t first = window ? i + shift + 1 - window : 0;
        return first < 0 ? 0 : first;
    }
    const uint8_t* mask_row(int64_t b, int64_t h, int64_t i) const {
        return mask + b * mask_stride[0] + h * mask_stride[1] + i * mask_stride[2];
    }
};

// Sum of the keys that each query may see, mask left aside: what the work of a call grows with.
inline int64_t seen_pairs(const Problem& p) {
    int64_t pairs = 0, step = p.Lq > 64 ? p.Lq / 64 : 1, counted = 0;
    for (int64_t i = 0; i < p.Lq; i += step, ++counted) {
        int64_t n = p.end_key(i) - p.first_key(i);
        pairs += n > 0 ? n : 0;
    }
    return counted ? pairs / counted * p.Lq * p.B * p.H : 0;
}

}  // namespace kw::attention
