// The entries of a matrix in compressed rows: indices of int32 or int64, and how rows are shared among threads.
#pragma once

#include "kernel.hpp"

namespace kw {

// with_index(t.dtype, [&](auto zero) { using I = decltype(zero); ... })
template <class F>
inline void with_index(DLDataType t, F f) {
    if (t.bits == 32) f(int32_t{});
    else f(int64_t{});
}

// Rows whose entries, and the rows themselves, are about a thread's part of all.
template <class I>
inline Range rows_by_entries(const I* crow, int64_t M, int64_t ith, int64_t nth) {
    const auto first = [&](int64_t part) {
        const int64_t before = (crow[M] + M) * part / nth;
        int64_t low = 0, n = M;
        while (n > 0) {
            const int64_t half = n / 2;
            if (crow[low + half] + low + half < before) low += half + 1, n -= half + 1;
            else n = half;
        }
        return low;
    };
    return {first(ith), ith + 1 == nth ? M : first(ith + 1)};
}

// The same matrix by columns: where each begins, and of each entry its row and value. Entries of a column keep their order.
template <class I, class T>
inline void turn(int64_t* starts, int64_t* rows, T* moved, const I* crow, const I* column, const T* values, int64_t M, int64_t K) {
    for (int64_t k = 0; k <= K; ++k) starts[k] = 0;
    for (int64_t i = 0; i < crow[M]; ++i) ++starts[column[i] + 1];
    for (int64_t k = 0; k < K; ++k) starts[k + 1] += starts[k];
    for (int64_t r = 0; r < M; ++r)
        for (int64_t i = crow[r]; i < crow[r + 1]; ++i) {
            const int64_t to = starts[column[i]]++;
            rows[to] = r, moved[to] = values[i];
        }
    for (int64_t k = K; k > 0; --k) starts[k] = starts[k - 1];  // each start had moved to the next one's
    starts[0] = 0;
}

}  // namespace kw
