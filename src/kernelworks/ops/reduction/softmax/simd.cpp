// Softmax along any dimension, forward and backward, in portable vectors.
//
// Along the last dimension: the row's maximum m; e^(x - m) into a scratch row that stays in the L1 cache, and their
// sum; then e / sum out. A row longer than the scratch is read once for maximum and sum together and once more to write:
// two exponentials an element, and no buffer of its length.
// Along another dimension: columns side by side in the lanes, no lane talks to another.
#include "exp_sum.hpp"
#include "stream.hpp"

namespace {

using namespace kw;

constexpr int64_t SCRATCH = 8192;          // float32 elements: 32 KiB of the L1 cache
constexpr int64_t STREAM_BYTES = 8 << 20;  // outputs from here on are written past the caches
constexpr int64_t GRAIN = 32 << 10;        // bytes that are worth another thread

template <bool STREAM, class T>
void short_row(T* out, const T* x, int64_t n, float* e, const T* ahead) {
    const float m = row_max(x, n);
    double sum = 0;
    for (int64_t i = 0; i < n; i += PIECE)
        sum += exp_sum<true>(e + i, x + i, m, n - i < PIECE ? n - i : PIECE, ahead + i);
    const float r = static_cast<float>(1.0 / sum);
    write_row<STREAM>(
        out, n, [&](int64_t i) { return load(e + i) * r; }, [&](int64_t i, int k) { return load(e + i, k) * r; });
}

template <bool STREAM, class T>
void long_row(T* out, const T* x, int64_t n) {
    const ExpSum s = running_exp_sum(x, n);
    const float r = static_cast<float>(1.0 / s.sum);
    write_row<STREAM>(
        out, n, [&](int64_t i) { return exp_nonpositive(load(x + i) - s.max) * r; },
        [&](int64_t i, int k) { return exp_nonpositive(load(x + i, k) - s.max) * r; });
}

// Rows of whole groups of vectors, in a stream that would otherwise stop and go: row i - 1 is written past the caches
// while the exponentials of row i are computed and row i + 1 is fetched.
template <class T>
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
                v[k] = exp_nonpositive(load(from + j + k * LANES) - m);
                store(e + j + k * LANES, v[k]);
            }
            s.a += v[0];
            s.b += v[1];
            s.c += v[2];
            s.d += v[3];
            if (!to) continue;
            store_two<true>(to + j, load(before + j) * scale, load(before + j + LANES) * scale);
            store_two<true>(to + j + 2 * LANES, load(before + j + 2 * LANES) * scale,
                            load(before + j + 3 * LANES) * scale);
        }
        scale = static_cast<float>(1.0 / s.total());
    }
    if (r.begin == r.end) return;
    const float* last = scratch + ((r.end - 1) & 1) * n;
    write_row<true>(
        out[r.end - 1], n, [&](int64_t j) { return load(last + j) * scale; },
        [&](int64_t j, int k) { return load(last + j, k) * scale; });
}

template <bool STREAM, class T>
void rows(Rows<T> out, Rows<T> x, int64_t threads) {
    // Two rows fit the scratch, and every row starts and ends at a cache line and at a whole group of vectors.
    const bool regular = x.N <= PIECE && x.N % (4 * LANES) == 0 && reinterpret_cast<intptr_t>(out.data) % 64 == 0;
    parallel(threads, [&](int64_t ith, int64_t nth) {
        alignas(64) float scratch[SCRATCH];
        const Range r = slice(x.M, ith, nth);
        if (STREAM && regular) {
            streamed_rows(out, x, r, scratch);
            stream_end();
            return;
        }
        for (int64_t i = r.begin; i < r.end; ++i) {
            if (x.N <= SCRATCH) short_row<STREAM>(out[i], x[i], x.N, scratch, x[i + 1 < r.end ? i + 1 : i]);
            else long_row<STREAM>(out[i], x[i], x.N);
        }
        if constexpr (STREAM) stream_end();
    });
}

// ---------------------------------------------------------------- columns: [outer, n, inner], contiguous

constexpr int GROUP = 4;        // vectors of columns that are worked on together
constexpr int64_t BLOCK = 128;  // rows summed in float32 before the sum moves up, which keeps the error at 128 steps

struct Columns {
    int64_t outer = 1, n, inner = 1, groups;
    Columns(const Tensor& t, int64_t dim) : n(t.shape[dim]) {
        for (int64_t d = 0; d < dim; ++d) outer *= t.shape[d];
        for (int64_t d = dim + 1; d < t.ndim; ++d) inner *= t.shape[d];
        groups = (inner + GROUP * LANES - 1) / (GROUP * LANES);
    }
    // f(offset of the first element, how many columns) for each group of columns of this thread's slice
    template <class F>
    void each(int64_t threads, F f) const {
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(outer * groups, ith, nth);
            for (int64_t g = r.begin; g < r.end; ++g) {
                const int64_t column = g % groups * (GROUP * LANES), left = inner - column;
                const int64_t width = left < GROUP * LANES ? left : GROUP * LANES;
                f(g / groups * n * inner + column, static_cast<int>(width));
            }
        });
    }
};

// The vector v of a row of `width` columns; lanes beyond the width read as 0.
template <class T>
inline vf column_load(const T* p, int v, int width) {
    const int left = width - v * LANES;
    return left >= LANES ? load(p + v * LANES) : load(p + v * LANES, left);
}
template <class T>
inline void column_store(T* p, int v, int width, vf x) {
    const int left = width - v * LANES;
    if (left >= LANES) store(p + v * LANES, x);
    else store(p + v * LANES, x, left);
}

// Per lane the sum of f(row) over n rows: float32 within a block of rows, compensated between the blocks.
template <class F>
inline vf blocked_sum(int64_t n, F f) {
    vf sum = {}, lost = {};
    for (int64_t i = 0; i < n; i += BLOCK) {
        vf block = {};
        for (int64_t j = i; j < i + BLOCK && j < n; ++j) block += f(j);
        const vf term = block - lost, next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
    return sum;
}

template <class T>
void columns(const Tensor& out, const Tensor& x, int64_t dim, int64_t threads) {
    const Columns c(x, dim);
    c.each(threads, [&](int64_t offset, int width) {
        const T* from = x.ptr<T>() + offset;
        T* to = out.ptr<T>() + offset;
        for (int v = 0; v * LANES < width; ++v) {
            vf m = splat(-INFINITY);
            for (int64_t i = 0; i < c.n; ++i) m = max(column_load(from + i * c.inner, v, width), m);
            auto e = [&](int64_t i) { return exp_nonpositive(column_load(from + i * c.inner, v, width) - m); };
            const vf r = 1.0f / blocked_sum(c.n, e);
            for (int64_t i = 0; i < c.n; ++i) column_store(to + i * c.inner, v, width, e(i) * r);
        }
    });
}

// ---------------------------------------------------------------- backward: dx = y g - y sum(y g)

template <class T>
void rows_backward(Rows<T> dx, Rows<T> dy, Rows<T> y, int64_t threads) {
    const int64_t n = y.N;
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(y.M, ith, nth);
        for (int64_t row = r.begin; row < r.end; ++row) {
            T* to = dx[row];
            const T *g = dy[row], *p = y[row];
            double sum = 0;
            for (int64_t begin = 0; begin < n; begin += PIECE) {
                const int64_t end = n - begin < PIECE ? n : begin + PIECE;
                FourSums s;
                int64_t i = begin;
                for (; i + 4 * LANES <= end; i += 4 * LANES) {
                    s.a = fma(load(p + i), load(g + i), s.a);
                    s.b = fma(load(p + i + LANES), load(g + i + LANES), s.b);
                    s.c = fma(load(p + i + 2 * LANES), load(g + i + 2 * LANES), s.c);
                    s.d = fma(load(p + i + 3 * LANES), load(g + i + 3 * LANES), s.d);
                }
                for (; i < end; i += LANES) {
                    const int k = end - i < LANES ? static_cast<int>(end - i) : LANES;
                    s.a = fma(load(p + i, k), load(g + i, k), s.a);
                }
                sum += s.total();
            }
            const vf total = splat(static_cast<float>(sum));
            write_row<false>(
                to, n, [&](int64_t i) { return fma(load(p + i), load(g + i), -(load(p + i) * total)); },
                [&](int64_t i, int k) { return fma(load(p + i, k), load(g + i, k), -(load(p + i, k) * total)); });
        }
    });
}

template <class T>
void columns_backward(const Tensor& dx, const Tensor& dy, const Tensor& y, int64_t dim, int64_t threads) {
    const Columns c(y, dim);
    c.each(threads, [&](int64_t offset, int width) {
        T* to = dx.ptr<T>() + offset;
        const T *g = dy.ptr<T>() + offset, *p = y.ptr<T>() + offset;
        for (int v = 0; v * LANES < width; ++v) {
            auto at = [&](const T* t, int64_t i) { return column_load(t + i * c.inner, v, width); };
            const vf total = blocked_sum(c.n, [&](int64_t i) { return at(p, i) * at(g, i); });
            for (int64_t i = 0; i < c.n; ++i)
                column_store(to + i * c.inner, v, width, fma(at(p, i), at(g, i), -(at(p, i) * total)));
        }
    });
}

}  // namespace

// output, x, dim, threads. dim is -1 for the last dimension, else counted from the front, and then both are contiguous.
KW_EXPORT(softmax) {
    const Tensor out = args.tensor(0), x = args.tensor(1);
    const int64_t dim = args.integer(2), bytes = x.numel() * x.dtype.bits / 8;
    if (!bytes) return;
    const int64_t threads = worth(args.integer(3), bytes, GRAIN);
    with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        if (dim >= 0) columns<T>(out, x, dim, threads);
        else if (bytes >= STREAM_BYTES) rows<true, T>(Rows<T>(out), Rows<T>(x), threads);
        else rows<false, T>(Rows<T>(out), Rows<T>(x), threads);
    });
}

// grad_x, grad_output, output, dim, threads
KW_EXPORT(softmax_backward) {
    const Tensor dx = args.tensor(0), dy = args.tensor(1), y = args.tensor(2);
    const int64_t dim = args.integer(3), bytes = y.numel() * y.dtype.bits / 8;
    if (!bytes) return;
    const int64_t threads = worth(args.integer(4), bytes, GRAIN);
    with_dtype(y.dtype, [&](auto zero) {
        using T = decltype(zero);
        if (dim >= 0) columns_backward<T>(dx, dy, y, dim, threads);
        else rows_backward<T>(Rows<T>(dx), Rows<T>(dy), Rows<T>(y), threads);
    });
}
