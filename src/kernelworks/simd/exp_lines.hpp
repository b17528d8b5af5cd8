// Lines along a dimension by their maximum m and the sum of e^(x - m): what softmax and log-softmax are made of.
//
// An op is a struct that says what it makes of the sum, once a line, and what it writes:
//
//     struct Forward {
//         static constexpr bool OF_EXP = true;                      // value is of e^(x - m), else of x - m
//         template <class S> static S of(S sum);                    // S: a double, or one sum a lane
//         template <class S> static V value(V e, S of);             // S: a float for all lanes, or one a lane
//     };
//     KW_EXPORT(name) { kw::exp_lines<Forward>(args); }             // output, x, dim, threads
//
// Along the last dimension: the row's maximum; its exponentials, kept in a scratch row that stays in the L1 cache where
// they are written from, and their sum; then out. A row longer than the scratch is read once for maximum and sum
// together and once more to write, and needs no buffer of its length. `dim` and columns are those of lines.hpp.
#pragma once

#include "lines.hpp"

namespace kw {

#if KW_VECTORS

constexpr int64_t SCRATCH = 8192;  // float32 elements: 32 KiB of the L1 cache

inline double log(double x) { return std::log(x); }
inline vf log(vf x) {  // once a line: lane by lane
    for (int lane = 0; lane < LANES; ++lane) x[lane] = static_cast<float>(std::log(static_cast<double>(x[lane])));
    return x;
}

// What value is given of an element whose distance from the maximum is d.
template <class Op>
inline vf of_distance(vf d) {
    if constexpr (Op::OF_EXP) return exp_nonpositive(d);
    else return d;
}

template <class Op, bool STREAM, class T>
void short_row(T* out, const T* x, int64_t n, float* e, const T* ahead) {
    const float m = row_max(x, n);
    double sum = 0;
    for (int64_t i = 0; i < n; i += PIECE)
        sum += exp_sum<Op::OF_EXP>(e + i, x + i, m, n - i < PIECE ? n - i : PIECE, ahead + i);
    const float r = static_cast<float>(Op::of(sum));
    auto kept = [&](int64_t i) {
        if constexpr (Op::OF_EXP) return load(e + i);
        else return load(x + i) - m;
    };
    auto part = [&](int64_t i, int k) {
        if constexpr (Op::OF_EXP) return load(e + i, k);
        else return load(x + i, k) - m;
    };
    write_row<STREAM>(
        out, n, [&](int64_t i) { return Op::value(kept(i), r); },
        [&](int64_t i, int k) { return Op::value(part(i, k), r); });
}

template <class Op, bool STREAM, class T>
void long_row(T* out, const T* x, int64_t n) {
    const ExpSum s = running_exp_sum(x, n);
    const float r = static_cast<float>(Op::of(s.sum));
    write_row<STREAM>(
        out, n, [&](int64_t i) { return Op::value(of_distance<Op>(load(x + i) - s.max), r); },
        [&](int64_t i, int k) { return Op::value(of_distance<Op>(load(x + i, k) - s.max), r); });
}

// Rows of whole groups of vectors, in a stream that would otherwise stop and go: row i - 1 is written past the caches
// while the exponentials of row i are computed and row i + 1 is fetched.
template <class Op, class T>
void streamed_rows(Rows<T> out, Rows<T> x, Range r, float* scratch) {
    const int64_t n = x.N;
    float scale = 0;
    for (int64_t i = r.begin; i < r.end; ++i) {
        float *e = scratch + (i & 1) * n, *before = scratch + (~i & 1) * n;
        const T *from = x[i], *ahead = x[i + 1 < r.end ? i + 1 : i];
        T* to = i > r.begin ? out[i - 1] : nullptr;
        const float m = row_max(from, n);
        FourSums s;
        for (int64_t j = 0; j < n; j += 4 * LANES) {
            for (int64_t byte = 0; byte < 4 * LANES * static_cast<int64_t>(sizeof(T)); byte += 64)
                __builtin_prefetch(reinterpret_cast<const char*>(ahead + j) + byte);
            vf v[4];
            for (int k = 0; k < 4; ++k) {
                const vf d = load(from + j + k * LANES) - m;
                v[k] = exp_nonpositive(d);
                store(e + j + k * LANES, Op::OF_EXP ? v[k] : d);
            }
            s.a += v[0];
            s.b += v[1];
            s.c += v[2];
            s.d += v[3];
            if (!to) continue;
            auto value = [&](int k) { return Op::value(load(before + j + k * LANES), scale); };
            store_two<true>(to + j, value(0), value(1));
            store_two<true>(to + j + 2 * LANES, value(2), value(3));
        }
        scale = static_cast<float>(Op::of(s.total()));
    }
    if (r.begin == r.end) return;
    const float* last = scratch + ((r.end - 1) & 1) * n;
    write_row<true>(
        out[r.end - 1], n, [&](int64_t j) { return Op::value(load(last + j), scale); },
        [&](int64_t j, int k) { return Op::value(load(last + j, k), scale); });
}

template <class Op, bool STREAM, class T>
void exp_rows(Rows<T> out, Rows<T> x, int64_t threads) {
    // Two rows fit the scratch, and every row starts and ends at a cache line and at a whole group of vectors.
    const bool regular = x.N <= PIECE && x.N % (4 * LANES) == 0 && reinterpret_cast<intptr_t>(out.data) % 64 == 0;
    parallel(threads, [&](int64_t ith, int64_t nth) {
        alignas(64) float scratch[SCRATCH];
        const Range r = slice(x.M, ith, nth);
        if (STREAM && regular) {
            streamed_rows<Op>(out, x, r, scratch);
            stream_end();
            return;
        }
        for (int64_t i = r.begin; i < r.end; ++i) {
            if (x.N <= SCRATCH) short_row<Op, STREAM>(out[i], x[i], x.N, scratch, x[i + 1 < r.end ? i + 1 : i]);
            else long_row<Op, STREAM>(out[i], x[i], x.N);
        }
        if constexpr (STREAM) stream_end();
    });
}

template <class Op, class T>
void exp_columns(const Tensor& out, const Tensor& x, int64_t dim, int64_t threads) {
    const Columns c(x, dim);
    c.each(threads, [&](int64_t offset, int width) {
        const T* from = x.ptr<T>() + offset;
        T* to = out.ptr<T>() + offset;
        for (int v = 0; v * LANES < width; ++v) {
            vf m = splat(-INFINITY);
            for (int64_t i = 0; i < c.n; ++i) m = max(column_load(from + i * c.inner, v, width), m);
            auto distance = [&](int64_t i) { return column_load(from + i * c.inner, v, width) - m; };
            const vf r = Op::of(blocked_sum(c.n, [&](vf sum, int64_t i) { return sum + exp_nonpositive(distance(i)); }));
            for (int64_t i = 0; i < c.n; ++i)
                column_store(to + i * c.inner, v, width, Op::value(of_distance<Op>(distance(i)), r));
        }
    });
}

// output, x, dim, threads
template <class Op>
void exp_lines(Args args) {
    const Tensor out = args.tensor(0), x = args.tensor(1);
    const int64_t dim = args.integer(2), bytes = x.numel() * x.dtype.bits / 8;
    if (!bytes) return;
    const int64_t threads = worth(args.integer(3), bytes, GRAIN);
    with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        if (dim >= 0) exp_columns<Op, T>(out, x, dim, threads);
        else if (bytes >= STREAM_BYTES) exp_rows<Op, true, T>(Rows<T>(out), Rows<T>(x), threads);
        else exp_rows<Op, false, T>(Rows<T>(out), Rows<T>(x), threads);
    });
}

#else

inline double log(double x) { return std::log(x); }
inline double exp_nonpositive(double x) { return std::exp(x); }

template <class Op>
void exp_lines(Args args) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Lines<T> out(args.tensor(0), args.integer(2)), x(args.tensor(1), args.integer(2));
        for (int64_t i = 0; i < x.count; ++i) {
            double max = -INFINITY, sum = 0.0;
            for (int64_t j = 0; j < x.N; ++j) max = x.at(i, j) > max ? x.at(i, j) : max;
            for (int64_t j = 0; j < x.N; ++j) sum += std::exp(x.at(i, j) - max);
            for (int64_t j = 0; j < x.N; ++j) {
                const double d = x.at(i, j) - max;
                out.put(i, j, Op::value(Op::OF_EXP ? std::exp(d) : d, Op::of(sum)));
            }
        }
    });
}

#endif

}  // namespace kw
