// Scans of [outer, n, inner] along n: each element of a line becomes what the line comes to up to it.
//
// A scan says of itself how two runs of neighbours come to one, `before` the one that is met first:
//
//     struct Sum {
//         static constexpr double NONE = 0;   // changes nothing
//         static constexpr bool CUT = true;   // whether lines may be cut: a part's total never leaves float64
//         template <class S> static S join(S before, S after) { return before + after; }
//     };
//     KW_EXPORT(cumsum) { kw::scan<Sum>(args); }
//
// S is a vector of doubles or a double. All of it is in float64, and each element is rounded from there: no run of
// LANES / 2 numbers of float32 leaves float64, whatever is joined. Along rows a vector is scanned in itself, in log2
// steps, and what came before joins once; of neighbouring lines each has a lane, or a double in L1. If lines are few
// they are cut into parts: totals of the parts first, then each part from what is before it. Parts follow from the
// shape alone, so a result has the same bits for any number of threads.
//
// The gradient of a scan whose step has the slopes `along` (of the next element in this one) and `across` (of an element
// in its input) runs back over the line (`scan_slopes`).
#pragma once

#include <cstdlib>

#include "functions.hpp"
#if KW_VECTORS
#include "map.hpp"
#include "reduction.hpp"
#endif

namespace kw {

// out, x, outer, n, inner, outer_stride, stride, backwards, threads; out is contiguous.
struct ScanArgs {
    Tensor out, x;
    int64_t outer, n, inner, outer_stride, stride;
    bool backwards;
    int64_t threads;
    explicit ScanArgs(const Args& a)
        : out(a.tensor(0)), x(a.tensor(1)), outer(a.integer(2)), n(a.integer(3)), inner(a.integer(4)),
          outer_stride(a.integer(5)), stride(a.integer(6)), backwards(a.integer(7) != 0),
          threads(worth(a.integer(8), outer * n * inner * x.dtype.bits / 8, 32 << 10)) {}
};

#if KW_VECTORS

// ---------------------------------------------------------------- vectors of doubles

constexpr int HALF = LANES / 2;
typedef double vd __attribute__((vector_size(LANES * 4)));
struct Wide {
    vd low, high;
};

inline vd splat_wide(double x) { return x - vd{}; }
// Each lane is the first or the last.
#if defined(__AVX512F__)
template <bool FIRST>
inline vd from_lane(vd v) {
    if constexpr (FIRST) return __builtin_shufflevector(v, v, 0, 0, 0, 0, 0, 0, 0, 0);
    else return __builtin_shufflevector(v, v, 7, 7, 7, 7, 7, 7, 7, 7);
}
inline Wide widened(vf x) {  // gcc 12 makes four conversions of __builtin_convertvector
    return Wide{(vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)),
                (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1))};
}
inline vf narrowed(Wide w) {
    const __m256 low = _mm512_cvtpd_ps((__m512d)w.low), high = _mm512_cvtpd_ps((__m512d)w.high);
    return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
// Lane i is v's lane i - K, and the first K are `none`'s; BACK: lane i + K, and the last.
template <bool BACK, int K>
inline vd moved(vd v, vd none) {
    if constexpr (BACK) {
        if constexpr (K == 1) return __builtin_shufflevector(v, none, 1, 2, 3, 4, 5, 6, 7, 8);
        else if constexpr (K == 2) return __builtin_shufflevector(v, none, 2, 3, 4, 5, 6, 7, 8, 9);
        else return __builtin_shufflevector(v, none, 4, 5, 6, 7, 8, 9, 10, 11);
    } else {
        if constexpr (K == 1) return __builtin_shufflevector(none, v, 7, 8, 9, 10, 11, 12, 13, 14);
        else if constexpr (K == 2) return __builtin_shufflevector(none, v, 6, 7, 8, 9, 10, 11, 12, 13);
        else return __builtin_shufflevector(none, v, 4, 5, 6, 7, 8, 9, 10, 11);
    }
}
#else
template <bool FIRST>
inline vd from_lane(vd v) {
    if constexpr (FIRST) return __builtin_shufflevector(v, v, 0, 0, 0, 0);
    else return __builtin_shufflevector(v, v, 3, 3, 3, 3);
}
inline Wide widened(vf x) {
    return Wide{(vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)),
                (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1))};
}
inline vf narrowed(Wide w) {
    return (vf)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)w.high), _mm256_cvtpd_ps((__m256d)w.low));
}
template <bool BACK, int K>
inline vd moved(vd v, vd none) {
    if constexpr (BACK) {
        if constexpr (K == 1) return __builtin_shufflevector(v, none, 1, 2, 3, 4);
        else return __builtin_shufflevector(v, none, 2, 3, 4, 5);
    } else {
        if constexpr (K == 1) return __builtin_shufflevector(none, v, 3, 4, 5, 6);
        else return __builtin_shufflevector(none, v, 2, 3, 4, 5);
    }
}
#endif

// ---------------------------------------------------------------- rows

template <class Op, bool BACK>
inline vd scanned(vd v) {
    const vd none = splat_wide(Op::NONE);
    v = Op::join(moved<BACK, 1>(v, none), v);
    v = Op::join(moved<BACK, 2>(v, none), v);
    if constexpr (HALF > 4) v = Op::join(moved<BACK, 4>(v, none), v);
    return v;
}

// The elements of one vector, joined to what came before; that moves on.
template <class Op, bool BACK>
inline vf joined(vf x, vd& carry) {
    Wide w = widened(x);
    w.low = scanned<Op, BACK>(w.low);
    w.high = scanned<Op, BACK>(w.high);
    vd &first = BACK ? w.high : w.low, &second = BACK ? w.low : w.high;
    second = Op::join(from_lane<BACK>(first), second);
    const vd whole = from_lane<BACK>(second);
    first = Op::join(carry, first);
    second = Op::join(carry, second);
    carry = Op::join(carry, whole);
    return narrowed(w);
}

template <class T>
inline vf few(const T* p, int n, float none) {
    return keep_first(load(p, n), n, none);
}

template <class Op, bool BACK, bool PAST_CACHE, class T>
inline void scan_row(T* out, const T* x, int64_t n, double before) {
    vd carry = splat_wide(before);
    auto whole = [&](int64_t i) { return joined<Op, BACK>(load(x + i), carry); };
    auto part = [&](int64_t i, int k) { return joined<Op, BACK>(few(x + i, k, static_cast<float>(Op::NONE)), carry); };
    if constexpr (!BACK) return map<PAST_CACHE>(out, n, whole, part);
    int64_t i = n;  // the end of what is left
    auto odd = [&](int64_t count) {
        for (const int64_t end = i - count; i > end;) {
            const int k = static_cast<int>(i - end < LANES ? i - end : LANES);
            i -= k;
            store(out + i, part(i, k), k);
        }
    };
    const int64_t behind = (reinterpret_cast<intptr_t>(out + n) & 63) / static_cast<int64_t>(sizeof(T));
    if (PAST_CACHE) odd(behind < n ? behind : n);
    for (; i >= 2 * LANES; i -= 2 * LANES) {
        const vf b = whole(i - LANES), a = whole(i - 2 * LANES);
        store_pair<PAST_CACHE>(out + i - 2 * LANES, a, b);
    }
    odd(i);
    if constexpr (PAST_CACHE) stream_end();
}

template <class Op, class T>
inline double row_total(const T* x, int64_t n) {
    vd s[4];
    for (vd& v : s) v = splat_wide(Op::NONE);
    for (int64_t i = 0; i < n; i += 2 * LANES)
        for (int k = 0; k < 2; ++k) {
            const int64_t at = i + k * LANES, left = n - at;
            if (left <= 0) break;
            const Wide w = widened(left >= LANES ? load(x + at) : few(x + at, static_cast<int>(left), static_cast<float>(Op::NONE)));
            s[2 * k] = Op::join(s[2 * k], w.low);
            s[2 * k + 1] = Op::join(s[2 * k + 1], w.high);
        }
    s[0] = Op::join(Op::join(s[0], s[1]), Op::join(s[2], s[3]));
    double total = Op::NONE;
    for (int i = 0; i < HALF; ++i) total = Op::join(total, static_cast<double>(s[0][i]));
    return total;
}

// ---------------------------------------------------------------- neighbouring lines

// Joins a row of VECTORS vectors to `now`, and writes it unless `to` is null. `left` columns are left from `p` on.
template <class Op, int VECTORS, class T>
inline void join_row(T* to, const T* p, int left, Wide* now) {
    for (int k = 0; k < VECTORS; ++k, left -= LANES) {
        const Wide w = widened(left >= LANES ? load(p + k * LANES) : load(p + k * LANES, left));
        now[k].low = Op::join(now[k].low, w.low);
        now[k].high = Op::join(now[k].high, w.high);
        if (!to) continue;
        if (left >= LANES) store(to + k * LANES, narrowed(now[k]));
        else store(to + k * LANES, narrowed(now[k]), left);
    }
}

// Joins `n` elements of each of `width` <= WIDTH lines to `carry`, and writes them unless `out` is null. Few lines stay
// in registers: a carry that goes through memory costs more than such a row.
template <class Op, class T>
inline void scan_columns(T* out, const T* x, int64_t n, int64_t stride, int64_t inner, int width, bool back, double* carry) {
    Wide* now = reinterpret_cast<Wide*>(carry);
    const int64_t first = back ? n - 1 : 0, step = back ? -1 : 1;
    const T* p = x + first * stride;
    T* to = out ? out + first * inner : nullptr;
    auto walk = [&](auto row) {
        for (int64_t j = 0; j < n; ++j, p += step * stride) {
            row();
            if (to) to += step * inner;
        }
    };
    auto held = [&]<int VECTORS>() {
        Wide own[VECTORS];
        __builtin_memcpy(own, now, sizeof own);
        walk([&] { join_row<Op, VECTORS>(to, p, width, own); });
        __builtin_memcpy(now, own, sizeof own);
    };
    if (width <= LANES) return held.template operator()<1>();
    if (width <= 2 * LANES) return held.template operator()<2>();
    walk([&] {
        for (int v = 0; v < width; v += LANES) join_row<Op, 1>(to ? to + v : nullptr, p + v, width - v, now + v / LANES);
    });
}

// ---------------------------------------------------------------- all of it

template <class Op, class T>
struct Scan {
    ScanArgs a;
    Parts parts;
    bool rows, past_cache;
    T* out;
    const T* x;

    explicit Scan(const ScanArgs& args)
        : a(args), parts(Lines{a.outer, a.n, a.inner, a.outer_stride, a.stride}), rows(a.inner == 1 && a.stride == 1),
          past_cache(a.outer * a.n * a.inner * static_cast<int64_t>(sizeof(T)) >= PAST_CACHE_BYTES),
          out(a.out.ptr<T>()), x(a.x.ptr<T>()) {
        if (!Op::CUT) parts.length = a.n, parts.count = 1;
    }

    // Where the part number `part` in the order of the scan begins, and how long it is.
    Range part_of(int64_t part) const {
        const int64_t first = (a.backwards ? parts.count - 1 - part : part) * parts.length, left = a.n - first;
        return Range{first, left < parts.length ? left : parts.length};
    }

    // A part of a group of lines from `carry` on: written, or only its total left in `carry`.
    void run(int64_t o, int64_t group, int64_t part, double* carry, bool write) const {
        const Range r = part_of(part);
        const int64_t column = group * WIDTH, begin = r.begin, n = r.end;
        const int width = static_cast<int>(a.inner - column < WIDTH ? a.inner - column : WIDTH);
        const T* from = x + o * a.outer_stride + begin * a.stride + column;
        T* to = out + (o * a.n + begin) * a.inner + column;
        if (!rows) return scan_columns<Op>(write ? to : nullptr, from, n, a.stride, a.inner, width, a.backwards, carry);
        if (!write) carry[0] = Op::join(carry[0], row_total<Op>(from, n));
        else if (a.backwards) past_cache ? scan_row<Op, true, true>(to, from, n, carry[0]) : scan_row<Op, true, false>(to, from, n, carry[0]);
        else past_cache ? scan_row<Op, false, true>(to, from, n, carry[0]) : scan_row<Op, false, false>(to, from, n, carry[0]);
    }

    static void begin(double* carry, int64_t width) {
        for (int64_t c = 0; c < width; ++c) carry[c] = Op::NONE;
    }

    void operator()() const {
        const int64_t lines = a.outer * parts.groups, room = rows ? 1 : WIDTH;
        if (parts.count == 1) {
            parallel(a.threads, [&](int64_t ith, int64_t nth) {
                alignas(64) double carry[WIDTH];
                const Range r = slice(lines, ith, nth);
                for (int64_t line = r.begin; line < r.end; ++line) {
                    begin(carry, room);
                    run(line / parts.groups, line % parts.groups, 0, carry, true);
                }
            });
            return;
        }
        const int64_t items = lines * parts.count;
        double* totals = static_cast<double*>(std::aligned_alloc(64, sizeof(double) * static_cast<size_t>((items * room + 7) / 8 * 8)));
        if (!totals) std::abort();  // a few kilobytes a line
        parallel(a.threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(items, ith, nth);
            for (int64_t item = r.begin; item < r.end; ++item) {
                const int64_t line = item / parts.count;
                begin(totals + item * room, room);
                run(line / parts.groups, line % parts.groups, item % parts.count, totals + item * room, false);
            }
        });
        parallel(a.threads, [&](int64_t ith, int64_t nth) {
            alignas(64) double carry[WIDTH];
            const Range r = slice(items, ith, nth);
            for (int64_t item = r.begin; item < r.end; ++item) {
                const int64_t line = item / parts.count;
                begin(carry, room);
                for (int64_t before = line * parts.count; before < item; ++before)
                    for (int64_t c = 0; c < room; ++c) carry[c] = Op::join(carry[c], totals[before * room + c]);
                run(line / parts.groups, line % parts.groups, item % parts.count, carry, true);
            }
        });
        std::free(totals);
    }
};

template <class Op>
inline void scan(const Args& args) {
    const ScanArgs a(args);
    if (!a.outer || !a.n || !a.inner) return;
    with_dtype(a.x.dtype, [&](auto zero) { Scan<Op, decltype(zero)>{a}(); });
}

#else

template <class Op>
inline void scan(const Args& args) {
    const ScanArgs a(args);
    with_dtype(a.x.dtype, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t line = 0; line < a.outer * a.inner; ++line) {
            const int64_t o = line / a.inner, c = line % a.inner;
            double carry = Op::NONE;
            for (int64_t j = 0; j < a.n; ++j) {
                const int64_t i = a.backwards ? a.n - 1 - j : j;
                carry = Op::join(carry, static_cast<double>(to_float(a.x.ptr<T>()[o * a.outer_stride + i * a.stride + c])));
                a.out.ptr<T>()[(o * a.n + i) * a.inner + c] = from_float<T>(static_cast<float>(carry));
            }
        }
    });
}

#endif

// ---------------------------------------------------------------- gradients that depend on x

// grad_x of LINES lines: flow[i] = grad[i] + along[i + 1] flow[i + 1], grad_x[i] = flow[i] across[i]. What stands before
// an element is kept every SEGMENT elements and found anew from there, so that no line is too long.
template <class Op, class T>
struct Slopes {
    static constexpr int LINES = 8, SEGMENT = 64;
    int64_t n, stride, out_stride, grad_stride;
    const T *x[LINES], *grad[LINES];
    T* out[LINES];
    int lines;

    static void step(double* now, const double* v) {
        for (int l = 0; l < LINES; ++l) now[l] = Op::join(now[l], v[l]);
    }
    static void at(double* v, const T* const* p, int64_t offset) {
        for (int l = 0; l < LINES; ++l) v[l] = static_cast<double>(to_float(p[l][offset]));
    }

    void run(double* marks) const {
        double now[LINES], v[LINES], g[LINES], flow[LINES] = {}, slope[LINES] = {};
        for (double& d : now) d = Op::NONE;
        for (int64_t i = 0; i < n; ++i) {
            if (i % SEGMENT == 0) std::memcpy(marks + i / SEGMENT * LINES, now, sizeof now);
            at(v, x, i * stride);
            step(now, v);
        }
        for (int64_t begin = (n - 1) / SEGMENT * SEGMENT; begin >= 0; begin -= SEGMENT) {
            const int64_t end = begin + SEGMENT < n ? begin + SEGMENT : n;
            double before[SEGMENT][LINES];
            std::memcpy(now, marks + begin / SEGMENT * LINES, sizeof now);
            for (int64_t i = begin; i < end; ++i) {
                std::memcpy(before[i - begin], now, sizeof now);
                at(v, x, i * stride);
                step(now, v);
            }
            for (int64_t i = end - 1; i >= begin; --i) {
                at(v, x, i * stride);
                at(g, grad, i * grad_stride);
                const double* was = before[i - begin];
                for (int l = 0; l < LINES; ++l) {
                    flow[l] = g[l] + slope[l] * flow[l];
                    g[l] = flow[l] * Op::across(was[l], v[l]);
                    slope[l] = Op::along(was[l], v[l]);
                }
                for (int l = 0; l < lines; ++l) out[l][i * out_stride] = from_float<T>(static_cast<float>(g[l]));
            }
        }
    }
};

// grad_x, x, outer, n, inner, outer_stride, stride, grad, grad_outer_stride, grad_stride, threads
template <class Op>
inline void scan_slopes(const Args& args) {
    const Tensor out = args.tensor(0), x = args.tensor(1), grad = args.tensor(7);
    const int64_t outer = args.integer(2), n = args.integer(3), inner = args.integer(4);
    if (!outer || !n || !inner) return;
    with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        using Some = Slopes<Op, T>;
        const int64_t count = outer * inner, groups = (count + Some::LINES - 1) / Some::LINES;
        parallel(worth(args.integer(10), count * n, 1 << 12), [&](int64_t ith, int64_t nth) {
            const Range r = slice(groups, ith, nth);
            const int64_t marks = (n + Some::SEGMENT - 1) / Some::SEGMENT * Some::LINES;
            double* room = r.begin < r.end ? static_cast<double*>(std::malloc(sizeof(double) * static_cast<size_t>(marks))) : nullptr;
            if (r.begin < r.end && !room) std::abort();  // an eighth of what some lines take in float64
            for (int64_t group = r.begin; group < r.end; ++group) {
                Some some{n, args.integer(6), inner, args.integer(9), {}, {}, {}, 0};
                for (int l = 0; l < Some::LINES; ++l) {
                    int64_t line = group * Some::LINES + l;
                    if (line < count) some.lines = l + 1;
                    else line = count - 1;  // lanes without a line of their own read the last one
                    const int64_t o = line / inner, c = line % inner;
                    some.x[l] = x.ptr<T>() + o * args.integer(5) + c;
                    some.grad[l] = grad.ptr<T>() + o * args.integer(8) + c;
                    some.out[l] = out.ptr<T>() + o * n * inner + c;
                }
                some.run(room);
            }
            std::free(room);
        });
    });
}

}  // namespace kw
