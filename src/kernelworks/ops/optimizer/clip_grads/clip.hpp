// What both kernels of clip_grads_ do: squares are summed in float64, by chunks of CHUNK elements and these in their
// order, so that no result hangs on the number of threads.
#pragma once

#include <cstdlib>

#include "step.hpp"

namespace kw {

constexpr int64_t CHUNK = 8192;  // elements, a multiple of step.hpp's BLOCK

struct Sum {
    double squares = 0.0, largest = 0.0;
    bool nan = false;

    double norm(bool of_largest) const {
        return of_largest ? (nan ? __builtin_nan("") : largest) : std::sqrt(squares);
    }
};

inline int64_t chunks_of(const Tensor& t) { return (t.numel() + CHUNK - 1) / CHUNK; }

// The sums of all chunks, in their order. add(sum, elements, n) adds some.
template <class Add>
inline Sum sum_of(const Lists& lists, int64_t threads, Add add) {
    int64_t chunks = 0, bytes = 0;
    for (int64_t i = 0; i < lists.count; ++i) {
        const Tensor t = lists.at(0, i);
        chunks += chunks_of(t);
        bytes += t.numel() * (t.dtype.bits / 8);
    }
    auto* sums = static_cast<Sum*>(std::malloc(sizeof(Sum) * static_cast<size_t>(chunks + 1)));
    parallel(worth(threads, bytes, 32 * 1024), [&](int64_t ith, int64_t nth) {
        const Range mine = slice(chunks, ith, nth);
        int64_t first = 0;
        for (int64_t i = 0; i < lists.count && first < mine.end; ++i) {
            const Tensor t[1] = {lists.at(0, i)};
            const int64_t n = t[0].numel(), its = chunks_of(t[0]);
            for (int64_t c = mine.begin > first ? mine.begin - first : 0; c < its && first + c < mine.end; ++c) {
                Sum sum;
                const Range range{c * CHUNK, (c + 1) * CHUNK < n ? (c + 1) * CHUNK : n};
                with_dtype(t[0].dtype, [&](auto zero) {
                    using T = decltype(zero);
                    run_piece<1>(t, range, 0, [&](char* const* p, int64_t m) {
                        add(sum, reinterpret_cast<const T*>(p[0]), m);
                    });
                });
                sums[first + c] = sum;
            }
            first += its;
        }
    });
    Sum all;
    for (int64_t c = 0; c < chunks; ++c) {
        all.squares += sums[c].squares;
        all.largest = sums[c].largest > all.largest ? sums[c].largest : all.largest;
        all.nan = all.nan || sums[c].nan;
    }
    std::free(sums);
    return all;
}

}  // namespace kw
