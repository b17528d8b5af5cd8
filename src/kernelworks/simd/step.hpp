// One step over lists of tensors: all elements of all tensors are shared among the threads as one work.
//
//     const kw::Lists lists{args, 4, args.integer(0)};  // from argument 4 on
//     kw::over_lists<3>(lists, threads, 2, [&](auto t, auto s, char* const* p, int64_t n) { ... });
//
// The function is given what lies in one place of each list, runs of elements that lie side by side in all of them.
// The first `outputs` lists are written. Element types: `t` of the first list, `s` of the last written one, which may
// be float32 beside 16 bits.
#pragma once

#include "elementwise.hpp"
#include "functions.hpp"

namespace kw {

struct Lists {
    Args args;
    int first;       // the argument that is the first tensor of the first list
    int64_t count;   // tensors of each list

    Tensor at(int list, int64_t i) const { return args.tensor(first + static_cast<int>(list * count + i)); }
};

// with_types(param, state, [&](auto zero_of_param, auto zero_of_state) { ... }): the state has the parameter's type or
// is float32.
template <class F>
inline void with_types(DLDataType param, DLDataType state, F f) {
    with_dtype(param, [&](auto p) {
        if (state.bits == 32) {
            f(p, float{});
        } else {
            f(p, p);
        }
    });
}

// A thread's share is cut at multiples of BLOCK elements of a tensor: no two threads write to one cache line of it.
constexpr int64_t BLOCK = 64;

template <int K, class F>
inline void run_piece(const Tensor (&t)[K], Range range, int outputs, F f) {
    bool flat = true;
    for (int k = 0; k < K; ++k) flat = flat && contiguous(t[k]);
    if (!flat) return Walk<K>(t).run(range, outputs, f);
    char* p[K];
    for (int k = 0; k < K; ++k) p[k] = t[k].data + range.begin * (t[k].dtype.bits / 8);
    f(p, range.end - range.begin);
}

template <int K, class F>
inline void over_lists(const Lists& lists, int64_t threads, int outputs, F f) {
    constexpr int64_t GRAIN = 32 * 1024;  // bytes that make a second thread worth waking
    int64_t blocks = 0, bytes = 0;
    for (int64_t i = 0; i < lists.count; ++i) {
        const Tensor t = lists.at(0, i);
        blocks += (t.numel() + BLOCK - 1) / BLOCK;
        bytes += K * t.numel() * (t.dtype.bits / 8);
    }
    parallel(worth(threads, bytes, GRAIN), [&](int64_t ith, int64_t nth) {
        const Range mine = slice(blocks, ith, nth);
        int64_t first = 0;
        for (int64_t i = 0; i < lists.count && first < mine.end; ++i) {
            Tensor t[K];
            for (int k = 0; k < K; ++k) t[k] = lists.at(k, i);
            const int64_t n = t[0].numel(), its = (n + BLOCK - 1) / BLOCK;
            const int64_t begin = mine.begin > first ? mine.begin - first : 0;
            const int64_t end = mine.end - first < its ? mine.end - first : its;
            first += its;
            if (begin >= end) continue;
            const Range range{begin * BLOCK, end * BLOCK < n ? end * BLOCK : n};
            with_types(t[0].dtype, t[outputs - 1].dtype, [&](auto p, auto s) {
                run_piece<K>(t, range, outputs, [&](char* const* q, int64_t m) { f(p, s, q, m); });
            });
        }
    });
}

}  // namespace kw
