// combine: the rows of a token are added up in vectors, a few of them at a time while the row goes by.
#include "places.hpp"
#include "simd.hpp"

namespace {

using namespace kw;

constexpr int64_t GRAIN = 32 << 10;  // bytes that make a second thread worth waking
constexpr int VECTORS = 4;           // of neighbouring columns whose sums are in registers

// The sum of so many rows at from(i), each times factor(i).
template <class T, class From, class Factor>
inline void add_up(T* to, int64_t width, int64_t count, From from, Factor factor) {
    int64_t h = 0;
    for (; h + VECTORS * LANES <= width; h += VECTORS * LANES) {
        vf sum[VECTORS] = {};
        for (int64_t i = 0; i < count; ++i) {
            const T* row = from(i);
            if (!row) continue;
            const vf by = splat(factor(i));
            for (int v = 0; v < VECTORS; ++v) sum[v] = fma(by, load(row + h + v * LANES), sum[v]);
        }
        for (int v = 0; v < VECTORS; ++v) store(to + h + v * LANES, sum[v]);
    }
    for (; h < width; h += LANES) {
        const int left = width - h < LANES ? static_cast<int>(width - h) : LANES;
        vf sum = {};
        for (int64_t i = 0; i < count; ++i)
            if (const T* row = from(i)) sum = fma(splat(factor(i)), load(row + h, left), sum);
        store(to + h, sum, left);
    }
}

template <class T>
inline float dot(const T* a, const T* b, int64_t width) {
    vf sum[VECTORS] = {};
    int64_t h = 0;
    for (; h + VECTORS * LANES <= width; h += VECTORS * LANES)
        for (int v = 0; v < VECTORS; ++v) sum[v] = fma(load(a + h + v * LANES), load(b + h + v * LANES), sum[v]);
    for (; h < width; h += LANES) {
        const int left = width - h < LANES ? static_cast<int>(width - h) : LANES;
        sum[0] = fma(load(a + h, left), load(b + h, left), sum[0]);
    }
    return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

}  // namespace

// combine(output [T, H], rows [R, H], weights [T, k], places [T, k], threads); weights and places are contiguous
KW_EXPORT(combine) {
    const Tensor out = args.tensor(0), rows = args.tensor(1), weights = args.tensor(2);
    const Places places(args.tensor(3), rows.shape[0]);
    const int64_t tokens = out.shape[0], width = out.shape[1], k = weights.shape[1], step = rows.stride[0];
    with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        const int64_t bytes = tokens * (k + 1) * width * static_cast<int64_t>(sizeof(T));
        parallel(worth(args.integer(4), bytes, GRAIN), [&](int64_t ith, int64_t nth) {
            const Range r = slice(tokens, ith, nth);
            for (int64_t t = r.begin; t < r.end; ++t)
                add_up(out.ptr<T>() + t * width, width, k,
                       [&](int64_t j) {
                           const int64_t place = places[t * k + j];
                           return place < 0 ? nullptr : rows.ptr<const T>() + place * step;
                       },
                       [&](int64_t j) { return weight_at<T>(weights, t * k + j); });
        });
    });
}

// combine_grad_rows(grad_rows [R, H], grad_output [T, H], weights [T, k], places [T, k], starts [R + 1], choices [T k],
// threads): starts and choices are room for the choices sorted by row
KW_EXPORT(combine_grad_rows) {
    const Tensor out = args.tensor(0), grad = args.tensor(1), weights = args.tensor(2);
    const int64_t rows = out.shape[0], width = out.shape[1], k = weights.shape[1], step = grad.stride[0];
    int64_t *starts = args.tensor(4).ptr<int64_t>(), *choices = args.tensor(5).ptr<int64_t>();
    sort_choices(starts, choices, Places(args.tensor(3), rows), weights.numel());
    with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        const int64_t bytes = (rows + weights.numel()) * width * static_cast<int64_t>(sizeof(T));
        parallel(worth(args.integer(6), bytes, GRAIN), [&](int64_t ith, int64_t nth) {
            const Range r = slice(rows, ith, nth);
            for (int64_t i = r.begin; i < r.end; ++i) {
                const int64_t* mine = choices + starts[i];
                add_up(out.ptr<T>() + i * width, width, starts[i + 1] - starts[i],
                       [&](int64_t c) { return grad.ptr<const T>() + mine[c] / k * step; },
                       [&](int64_t c) { return weight_at<T>(weights, mine[c]); });
            }
        });
    });
}

// combine_grad_weights(grad_weights [T, k], grad_output [T, H], rows [R, H], places [T, k], threads)
KW_EXPORT(combine_grad_weights) {
    const Tensor out = args.tensor(0), grad = args.tensor(1), rows = args.tensor(2);
    const Places places(args.tensor(3), rows.shape[0]);
    const int64_t width = rows.shape[1], k = out.shape[1];
    with_dtype(rows.dtype, [&](auto zero) {
        using T = decltype(zero);
        const int64_t bytes = 2 * out.numel() * width * static_cast<int64_t>(sizeof(T));
        parallel(worth(args.integer(4), bytes, GRAIN), [&](int64_t ith, int64_t nth) {
            const Range r = slice(out.numel(), ith, nth);
            for (int64_t c = r.begin; c < r.end; ++c) {
                const int64_t place = places[c];
                const T* own = grad.ptr<const T>() + c / k * grad.stride[0];
                put_weight<T>(out, c, place < 0 ? 0.0f : dot(own, rows.ptr<const T>() + place * rows.stride[0], width));
            }
        });
    });
}
