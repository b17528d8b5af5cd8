// Reductions of [outer, n, inner] along n, of any kind: what is done in which order, by which thread.
//
// A reduction says four things of itself:
//
//     struct Kind {
//         using State = ...;  // what is known of a part of a line; copied by assignment
//         template <class T> static State row(const T* x, int64_t n, int64_t first);
//         template <class T> static void columns(State* s, const T* x, int64_t n, int64_t stride, int width, int64_t first);
//         static State join(State before, State after);
//         template <class Out> static Out result(State);
//     };
//
// `row` reduces n >= 1 elements side by side, `columns` each of `width` <= WIDTH neighbouring lines whose elements lie
// `stride` apart; the first of them is number `first` of its line. The order of all steps follows from the shape alone:
// a result has the same bits for any number of threads.
#pragma once

#include <cstdlib>
#include <type_traits>

#include "simd.hpp"

namespace kw {

constexpr int WIDTH = 1024;                    // neighbouring lines that are reduced together: their states stay in L1
constexpr int64_t MOST_LINE = int64_t{1} << 30;  // elements of a part of a line, whose numbers fit 32 bits
constexpr int64_t SHARED = 64;                 // parts to work on; where there are fewer lines, lines are cut
constexpr int64_t PART = 1 << 16;              // elements that a part of cut lines has at least
constexpr int64_t REDUCTION_GRAIN = 32 << 10;  // bytes that are worth another thread

// Element i of line (o, c) is data[o outer_stride + i stride + c].
struct Lines {
    int64_t outer, n, inner, outer_stride, stride;
};

// The parts that all lines are cut into, each of `length` elements but the last.
struct Parts {
    int64_t groups, length, count;
    explicit Parts(const Lines& l) {
        groups = (l.inner + WIDTH - 1) / WIDTH;
        const int64_t lines = l.outer * groups, width = l.inner < WIDTH ? l.inner : WIDTH;
        const int64_t least = (PART + width - 1) / width, wanted = (SHARED + lines - 1) / lines;
        length = (l.n + wanted - 1) / wanted;
        if (length < least) length = least;
        if (length > MOST_LINE) length = MOST_LINE;
        length = (length + 63) / 64 * 64;
        count = (l.n + length - 1) / length;
    }
};

template <class Kind, class Out, class T>
void reduce(Out* out, const T* x, const Lines& l, int64_t threads) {
    using State = typename Kind::State;
    const Parts parts(l);
    const bool rows = l.inner == 1 && l.stride == 1;
    if (rows && parts.count == 1) {
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(l.outer, ith, nth);
            for (int64_t o = r.begin; o < r.end; ++o)
                out[o] = Kind::template result<Out>(Kind::row(x + o * l.outer_stride, l.n, 0));
        });
        return;
    }
    State* partial = nullptr;
    if (parts.count > 1) {
        partial = static_cast<State*>(std::malloc(sizeof(State) * static_cast<size_t>(l.outer * parts.count * l.inner)));
        if (!partial) std::abort();  // a few kilobytes a thread
    }
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(l.outer * parts.count * parts.groups, ith, nth);
        int64_t group = r.begin % parts.groups, part = r.begin / parts.groups % parts.count;
        int64_t o = r.begin / parts.groups / parts.count;
        for (int64_t item = r.begin; item < r.end; ++item) {
            const int64_t column = group * WIDTH, first = part * parts.length;
            const int64_t n = l.n - first < parts.length ? l.n - first : parts.length;
            const int width = static_cast<int>(l.inner - column < WIDTH ? l.inner - column : WIDTH);
            const T* from = x + o * l.outer_stride + first * l.stride + column;
            State own[WIDTH];
            State* s = partial ? partial + (o * parts.count + part) * l.inner + column : own;
            if (rows) s[0] = Kind::row(from, n, first);
            else Kind::columns(s, from, n, l.stride, width, first);
            for (int c = 0; c < width && !partial; ++c) out[o * l.inner + column + c] = Kind::template result<Out>(s[c]);
            if (++group == parts.groups) {
                group = 0;
                if (++part == parts.count) part = 0, ++o;
            }
        }
    });
    if (!partial) return;
    for (int64_t o = 0; o < l.outer; ++o)
        for (int64_t c = 0; c < l.inner; ++c) {
            const State* s = partial + o * parts.count * l.inner + c;
            State all = s[0];
            for (int64_t p = 1; p < parts.count; ++p) all = Kind::join(all, s[p * l.inner]);
            out[o * l.inner + c] = Kind::template result<Out>(all);
        }
    std::free(partial);
}

// The arguments of every reduction: out, x, outer, n, inner, outer_stride, stride, threads; x's strides say nothing.
template <class Kind, class Index = void>
inline void reduce(const Args& args) {
    const Tensor out = args.tensor(0), x = args.tensor(1);
    const Lines l{args.integer(2), args.integer(3), args.integer(4), args.integer(5), args.integer(6)};
    if (!l.outer || !l.n || !l.inner) return;
    const int64_t threads = worth(args.integer(7), l.outer * l.n * l.inner * x.dtype.bits / 8, REDUCTION_GRAIN);
    with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        using Out = std::conditional_t<std::is_void_v<Index>, T, Index>;
        reduce<Kind>(out.ptr<Out>(), x.ptr<T>(), l, threads);
    });
}

// The number of the first lane of a comparison that holds, LANES where none does.
inline int first_lane(vi holds) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return __builtin_ctz(static_cast<unsigned>(_mm512_movepi32_mask((__m512i)holds)) | 1u << LANES);
#elif defined(__AVX2__)
    return __builtin_ctz(static_cast<unsigned>(_mm256_movemask_ps((__m256)holds)) | 1u << LANES);
#else
    int lane = 0;
    while (lane < LANES && !holds[lane]) ++lane;
    return lane;
#endif
}

// f(v, at) for each vector of neighbouring columns; at(p) loads it from a row p, with 0 for what is beyond the width.
template <class F>
inline void each_vector(int width, F f) {
    int v = 0;
    for (; v + LANES <= width; v += LANES) f(v, [=](auto* p) { return load(p + v); });
    if (v < width) f(v, [=](auto* p) { return load(p + v, width - v); });
}

}  // namespace kw
