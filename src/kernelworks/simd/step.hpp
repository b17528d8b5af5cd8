// One step over lists of tensors: all elements of all tensors are shared among the threads as one work.
//
//     const kw::Lists lists{args, 4, args.integer(0), 3};            // three lists, from argument 4 on
//     kw::over_lists<3>(lists, threads, 2, [&](auto t, auto s, char* const* p, int64_t n) { ... });
//
// The function is given what lies in one place of each list, runs of elements that lie side by side in all of them.
// The first `outputs` lists are written. Element types: `t` of the first list, `s` of the last written one, which may
// be float32 beside 16 bits.
#pragma once

#include <cstdlib>

#include "answer.hpp"
#include "elementwise.hpp"
#include "functions.hpp"

namespace kw {

struct Lists {
    Args args;
    int first;       // the argument that is the first tensor of the first list
    int64_t count;   // tensors of each list
    int lists;

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

// ---------------------------------------------------------------- memory that is shared

struct Place {
    uintptr_t begin, end;
    int64_t place;
    bool written;
};

// Sorts by where they begin: runs that are in order already are merged, as allocations come in long ones.
inline void sort_places(Place* places, Place* spare, int64_t n) {
    for (bool sorted = false; !sorted;) {
        sorted = true;
        int64_t to = 0;
        for (int64_t begin = 0; begin < n;) {
            int64_t middle = begin + 1;
            while (middle < n && places[middle - 1].begin <= places[middle].begin) ++middle;
            int64_t end = middle < n ? middle + 1 : n;
            while (end < n && places[end - 1].begin <= places[end].begin) ++end;
            if (middle < n) sorted = sorted && begin == 0 && end == n;
            for (int64_t a = begin, b = middle; to < end; ++to)
                spare[to] = b >= end || (a < middle && places[a].begin <= places[b].begin) ? places[a++] : places[b++];
            begin = end;
        }
        for (int64_t i = 0; i < n; ++i) places[i] = spare[i];
    }
}

// -1, or 2^32 a + b where the tensors in places a < b, counted list after list, may share memory and one is written.
inline int64_t find_shared(const Lists& lists, int outputs) {
    const int64_t total = lists.count * lists.lists;
    auto* places = static_cast<Place*>(std::malloc(sizeof(Place) * static_cast<size_t>(2 * total + 1)));
    int64_t n = 0;
    for (int64_t at = 0; at < total; ++at) {
        const Tensor t = lists.at(static_cast<int>(at / lists.count), at % lists.count);
        if (t.numel() == 0) continue;
        int64_t reach = 0;
        for (int i = 0; i < t.ndim; ++i) reach += (t.shape[i] - 1) * t.stride[i];
        const auto begin = reinterpret_cast<uintptr_t>(t.data);
        places[n++] = Place{begin, begin + static_cast<uintptr_t>(reach + 1) * (t.dtype.bits / 8), at,
                            at < outputs * lists.count};
    }
    sort_places(places, places + total, n);
    int64_t found = -1;
    Place all{0, 0, 0, false}, written{0, 0, 0, false};  // of each the one that reaches furthest so far
    for (int64_t i = 0; i < n && found < 0; ++i) {
        const Place& one = places[i];
        const Place& other = one.written ? all : written;
        if (one.begin < other.end) {
            const int64_t a = one.place < other.place ? one.place : other.place;
            found = (a << 32) + one.place + other.place - a;
        }
        if (one.end > all.end) all = one;
        if (one.written && one.end > written.end) written = one;
    }
    std::free(places);
    return found;
}

}  // namespace kw
