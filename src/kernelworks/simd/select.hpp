// The first k elements of each line of [outer, n, inner] along n, in order: top-k, sorting, and their like.
//
//     KW_EXPORT(topk) { kw::select(args); }
//
// An element becomes a candidate: 64 bits whose order is the order asked for. The upper half is the element's key, an
// integer of the same order as the numbers (-0 equals 0, NaN is above infinity), turned around if the smallest come
// first; the lower half is its place, turned around, so that of equals the first one comes first. No two candidates are
// equal: which k are the first does not hang on how a line is cut or on the number of threads.
//
// Few of many: a first block gives a threshold that at least k elements reach, by the largest of each lane; from then on
// a vector is looked at again only if it holds an element above the threshold, which rises when the candidates are cut
// back to k. Many of a line: all elements become candidates, of which the k-th is found, and those before it are sorted,
// long ones by their digits.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "simd.hpp"

namespace kw {

using Candidate = int64_t;

constexpr int64_t SELECT_BLOCK = 1024;           // elements between two looks at how many candidates there are
constexpr int64_t SLACK = 64;                    // candidates beyond 2 k before they are cut back
constexpr int64_t DIGITS_FROM = 1024;            // candidates from which digits sort quicker than comparisons
constexpr int DIGIT_BITS = 11;
constexpr int LANE_GROUPS = 4;                   // groups of lanes whose largest give the first threshold
constexpr int64_t SELECT_LINES = 64;             // with fewer lines, long ones are cut into parts
constexpr int64_t SELECT_PART = 1 << 17;         // elements that a part has at least
constexpr int64_t SELECT_GRAIN = 16 << 10;       // bytes that are worth another thread
constexpr int SELECT_COLUMNS = 16;               // neighbouring lines that are copied together
constexpr int64_t COPIED = 1 << 18;              // elements of the copies of neighbouring lines

// ---------------------------------------------------------------- candidates

inline int32_t ordered_bits(float x, bool largest) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    if (bits == INT32_MIN) bits = 0;  // -0
    int32_t key = bits ^ ((bits >> 31) & INT32_MAX);
    if ((bits & INT32_MAX) > 0x7f800000) key = INT32_MAX;  // NaN, of either sign
    return largest ? key : ~key;
}
inline vi ordered_bits(vf x, vi turned) {  // turned: -1 where the smallest come first, else 0
    vi bits = (vi)x;
    bits = bits == INT32_MIN ? vi{} : bits;
    vi key = bits ^ ((bits >> 31) & INT32_MAX);
    key = (bits & INT32_MAX) > 0x7f800000 ? vi{} + INT32_MAX : key;
    return key ^ turned;
}
inline Candidate candidate(int32_t key, int64_t place) {
    return static_cast<Candidate>(static_cast<uint64_t>(static_cast<uint32_t>(key)) << 32 | (~place & 0xffffffff));
}
inline int64_t place_of(Candidate c) { return ~c & 0xffffffff; }
inline int32_t key_of(Candidate c) { return static_cast<int32_t>(c >> 32); }

// ---------------------------------------------------------------- vectors

// A bit for each lane that holds.
inline unsigned lane_bits(vi holds) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return static_cast<unsigned>(_mm512_movepi32_mask((__m512i)holds));
#elif defined(__AVX2__)
    return static_cast<unsigned>(_mm256_movemask_ps((__m256)holds));
#else
    unsigned bits = 0;
    for (int i = 0; i < LANES; ++i) bits |= static_cast<unsigned>(holds[i] & 1) << i;
    return bits;
#endif
}

inline vi larger(vi a, vi b) { return a > b ? a : b; }
inline vi smaller(vi a, vi b) { return a < b ? a : b; }

// The lanes in falling order.
inline vi sorted_lanes(vi v) {
    const vi lane = lane_index();
    for (int size = 2; size <= LANES; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            const vi other = __builtin_shuffle(v, lane ^ step);
            const vi first = ((lane & step) == 0) == ((lane & size) == 0);
            v = first ? larger(v, other) : smaller(v, other);
        }
    return v;
}

// Whether an element may be as far as the limit. It holds of too many: of NaN, of both zeros, and of subnormal numbers
// where they are flushed; keys tell.
template <bool LARGEST>
inline vi may_pass(vf x, vf limit) {
    return LARGEST ? ~(x < limit) : ~(x > limit);
}

// ---------------------------------------------------------------- sorting candidates

// In falling order by their keys, equal ones as they stood; `other` has room for as many. Returns where they are.
inline Candidate* sorted_by_digits(Candidate* from, Candidate* other, int64_t count) {
    constexpr int DIGITS = 3, VALUES = 1 << DIGIT_BITS;
    static_assert(DIGITS * DIGIT_BITS >= 32);
    auto digit = [](Candidate c, int d) {  // of the key from the largest down
        return (~(static_cast<uint32_t>(key_of(c)) ^ 0x80000000u) >> (d * DIGIT_BITS)) & (VALUES - 1);
    };
    int64_t counts[DIGITS][VALUES] = {};
    for (int64_t i = 0; i < count; ++i)
        for (int d = 0; d < DIGITS; ++d) ++counts[d][digit(from[i], d)];
    for (int d = 0; d < DIGITS; ++d) {
        int64_t* starts = counts[d];
        if (starts[digit(from[0], d)] == count) continue;  // all have this digit
        int64_t sum = 0;
        for (int v = 0; v < VALUES; ++v) {
            const int64_t own = starts[v];
            starts[v] = sum;
            sum += own;
        }
        for (int64_t i = 0; i < count; ++i) other[starts[digit(from[i], d)]++] = from[i];
        std::swap(from, other);
    }
    return from;
}

inline void sort_few(Candidate* c, int64_t count) {
    if (count > 32) return std::sort(c, c + count, [](Candidate a, Candidate b) { return a > b; });
    for (int64_t i = 1; i < count; ++i) {
        const Candidate own = c[i];
        int64_t j = i;
        for (; j && c[j - 1] < own; --j) c[j] = c[j - 1];
        c[j] = own;
    }
}

// The first k of some candidates at their front, in any order.
inline void cut_back(Candidate* c, int64_t count, int64_t k) {
    if (k < count) std::nth_element(c, c + k - 1, c + count, [](Candidate a, Candidate b) { return a > b; });
}

// ---------------------------------------------------------------- one line

// Room for the candidates of lines of up to n elements, twice.
inline int64_t candidate_room(int64_t n, int64_t k) {
    const int64_t few = 2 * k + SLACK + SELECT_BLOCK;
    return 2 * (n < 4 * k || n < few ? n : few);
}

// The number whose key it is, to compare with before keys are made.
template <bool LARGEST>
inline float number_of(int32_t key) {
    key = LARGEST ? key : ~key;
    const int32_t bits = key ^ ((key >> 31) & INT32_MAX);
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// Appends what is above the threshold of the elements [begin, end), whose first is number `first` of its line.
template <bool LARGEST, class T>
inline int64_t gather_above(Candidate* c, int64_t count, const T* x, int64_t begin, int64_t end, int64_t first, int32_t above) {
    const vf limits = splat(number_of<LARGEST>(above + 1));
    const vi turned = LARGEST ? vi{} : vi{} - 1;
    auto look = [&](vf v, int64_t i, int left) {
        const vi keys = ordered_bits(v, turned);
        unsigned bits = lane_bits(keys > above);
        if (left < LANES) bits &= (1u << left) - 1;
        int32_t own[LANES];
        std::memcpy(own, &keys, sizeof own);
        for (; bits; bits &= bits - 1) {
            const int lane = __builtin_ctz(bits);
            c[count++] = candidate(own[lane], first + i + lane);
        }
    };
    int64_t i = begin;
    for (; i + 4 * LANES <= end; i += 4 * LANES) {
        vf v[4];
        vi any = {};
        for (int j = 0; j < 4; ++j) {
            v[j] = load(x + i + j * LANES);
            any |= may_pass<LARGEST>(v[j], limits);
        }
        if (!lane_bits(any)) continue;
        for (int j = 0; j < 4; ++j) look(v[j], i + j * LANES, LANES);
    }
    for (; i < end; i += LANES) {
        const int left = end - i < LANES ? static_cast<int>(end - i) : LANES;
        look(left < LANES ? load(x + i, left) : load(x + i), i, left);
    }
    return count;
}

// A key that at least k of the first `n` elements reach, INT32_MIN where none is known.
template <bool LARGEST, class T>
inline int32_t first_threshold(const T* x, int64_t n, int64_t k) {
    const int groups = static_cast<int>((k + LANES - 1) / LANES);
    if (groups > LANE_GROUPS || n < groups * LANES) return INT32_MIN;
    const vi turned = LARGEST ? vi{} : vi{} - 1;
    vi top[LANE_GROUPS];
    for (vi& t : top) t = vi{} + INT32_MIN;
    for (int64_t i = 0; i + groups * LANES <= n; i += groups * LANES)
        for (int g = 0; g < groups; ++g) top[g] = larger(top[g], ordered_bits(load(x + i + g * LANES), turned));
    if (groups == 1) return sorted_lanes(top[0])[k - 1];
    vi least = top[0];
    for (int g = 1; g < groups; ++g) least = smaller(least, top[g]);
    return sorted_lanes(least)[LANES - 1];
}

// The candidates of the first k of n elements, the first of which is number `first` of its line. Returns where they are.
template <bool LARGEST, class T>
Candidate* select_line(Candidate* c, const T* x, int64_t n, int64_t first, int64_t k, bool sorted) {
    if (k >= n || n < 4 * k || n < 4 * LANES) {
        Candidate* other = c + n;
        for (int64_t i = 0; i < n; ++i) c[i] = candidate(ordered_bits(to_float(x[i]), LARGEST), first + i);
        if (k < n) {
            std::memcpy(other, c, sizeof(Candidate) * static_cast<size_t>(n));
            cut_back(other, n, k);
            const Candidate last = other[k - 1];
            int64_t kept = 0;  // in the order of their places, which digits keep
            for (int64_t i = 0; i < n; ++i)
                if (c[i] >= last) c[kept++] = c[i];
        }
        if (!sorted) return c;
        if (k >= DIGITS_FROM) return sorted_by_digits(c, other, k);
        sort_few(c, k);
        return c;
    }
    const int64_t block = n < SELECT_BLOCK ? n : SELECT_BLOCK;
    int32_t above = first_threshold<LARGEST>(x, block, k);
    if (above > INT32_MIN) --above;  // those that equal it count
    int64_t count = 0, end = 0;
    while (end < n) {
        const int64_t begin = end;
        end = n - begin < SELECT_BLOCK ? n : begin + SELECT_BLOCK;
        if (above == INT32_MAX) break;  // nothing is above NaN
        if (above == INT32_MIN && count < k) {  // no threshold yet: all are candidates
            for (int64_t i = begin; i < end; ++i) c[count++] = candidate(ordered_bits(to_float(x[i]), LARGEST), first + i);
        } else {
            count = gather_above<LARGEST>(c, count, x, begin, end, first, above);
        }
        if (count > 2 * k + SLACK && end < n) {
            cut_back(c, count, k);
            count = k;
            above = key_of(c[k - 1]);
        }
    }
    cut_back(c, count, k);
    if (sorted) sort_few(c, k);
    return c;
}

// ---------------------------------------------------------------- all lines

struct Selection {
    int64_t outer, n, inner, outer_stride, stride, k;
    bool sorted;
    int64_t beside;         // lines that lie side by side in the results
    int64_t parts, length;  // that a line is cut into, by the shape alone

    int64_t start(int64_t line) const { return line / beside * k * beside + line % beside; }
};

template <class T>
inline void put_line(T* values, int64_t* indices, int64_t line, const Candidate* c, const T* x, const Selection& s) {
    for (int64_t j = 0, at = s.start(line); j < s.k; ++j, at += s.beside) {
        const int64_t place = place_of(c[j]);
        values[at] = x[place];
        indices[at] = place;
    }
}

template <class C>
inline C* room_for(int64_t count) {
    C* made = static_cast<C*>(std::malloc(sizeof(C) * static_cast<size_t>(count)));
    if (!made) std::abort();
    return made;
}

// Few long lines of unit stride: the first k of each part, then of those.
template <bool LARGEST, class T>
void select_parts(T* values, int64_t* indices, const T* x, const Selection& s, int64_t threads) {
    Candidate* firsts = room_for<Candidate>(s.outer * s.parts * s.k);
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(s.outer * s.parts, ith, nth);
        Candidate* c = room_for<Candidate>(candidate_room(s.length, s.k));
        for (int64_t item = r.begin; item < r.end; ++item) {
            const int64_t first = item % s.parts * s.length, left = s.n - first;
            const Candidate* found = select_line<LARGEST>(
                c, x + item / s.parts * s.outer_stride + first, left < s.length ? left : s.length, first, s.k, false);
            std::memcpy(firsts + item * s.k, found, sizeof(Candidate) * static_cast<size_t>(s.k));
        }
        std::free(c);
    });
    for (int64_t o = 0; o < s.outer; ++o) {
        Candidate* all = firsts + o * s.parts * s.k;
        cut_back(all, s.parts * s.k, s.k);
        if (s.sorted) sort_few(all, s.k);
        put_line(values, indices, o, all, x + o * s.outer_stride, s);
    }
    std::free(firsts);
}

template <bool LARGEST, class T>
void select_lines(T* values, int64_t* indices, const T* x, const Selection& s, int64_t threads) {
    const bool rows = s.inner == 1 && s.stride == 1;
    int64_t width = rows ? 1 : COPIED / s.n < 1 ? 1 : COPIED / s.n < SELECT_COLUMNS ? COPIED / s.n : SELECT_COLUMNS;
    width = width < s.inner ? width : s.inner;
    const int64_t groups = (s.inner + width - 1) / width;
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(s.outer * groups, ith, nth);
        if (r.begin == r.end) return;
        Candidate* c = room_for<Candidate>(candidate_room(s.n, s.k));
        T* copy = rows ? nullptr : room_for<T>(width * s.n);
        for (int64_t item = r.begin; item < r.end; ++item) {
            const int64_t o = item / groups, column = item % groups * width;
            const int64_t count = s.inner - column < width ? s.inner - column : width;
            const T* from = x + o * s.outer_stride + column;
            for (int64_t i = 0; i < s.n && !rows; ++i)
                for (int64_t j = 0; j < count; ++j) copy[j * s.n + i] = from[i * s.stride + j];
            for (int64_t j = 0; j < count; ++j) {
                const T* line = rows ? from : copy + j * s.n;
                const Candidate* found = select_line<LARGEST>(c, line, s.n, 0, s.k, s.sorted);
                put_line(values, indices, o * s.inner + column + j, found, line, s);
            }
        }
        std::free(copy);
        std::free(c);
    });
}

// values, indices, x, outer, n, inner, outer_stride, stride, beside, k, largest, sorted, threads; x's strides say nothing.
inline void select(const Args& args) {
    const Tensor values = args.tensor(0), indices = args.tensor(1), x = args.tensor(2);
    Selection s{args.integer(3), args.integer(4), args.integer(5), args.integer(6), args.integer(7), args.integer(9),
                args.integer(11) != 0, args.integer(8), 1, 0};
    if (!s.outer || !s.n || !s.inner || !s.k) return;
    const int64_t bytes = s.outer * s.inner * (s.n * x.dtype.bits / 8 + 64 * s.k);
    const int64_t threads = worth(args.integer(12), bytes, SELECT_GRAIN);
    if (s.inner == 1 && s.stride == 1 && s.outer < SELECT_LINES) {
        const int64_t least = 8 * s.k > SELECT_PART ? 8 * s.k : SELECT_PART, wanted = SELECT_LINES / s.outer;
        const int64_t length = (s.n + wanted - 1) / wanted;
        s.length = length > least ? length : least;
        s.parts = s.n / s.length;  // none is shorter than that
        if (s.parts > 1) s.length = (s.n + s.parts - 1) / s.parts;
    }
    with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        T* to = values.ptr<T>();
        int64_t* at = indices.ptr<int64_t>();
        const T* from = x.ptr<T>();
        const bool largest = args.integer(10) != 0;
        if (s.parts > 1) {
            if (largest) select_parts<true>(to, at, from, s, threads);
            else select_parts<false>(to, at, from, s, threads);
        } else {
            if (largest) select_lines<true>(to, at, from, s, threads);
            else select_lines<false>(to, at, from, s, threads);
        }
    });
}

}  // namespace kw
