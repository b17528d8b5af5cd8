// embedding_bag: the rows of a bag are added up, or compared, in vectors; so are those of a gradient that one id looked up.
#include "bags.hpp"
#include "simd.hpp"

namespace {

using namespace kw;

constexpr int64_t GRAIN = 64 * 1024;  // bytes that make a second thread worth waking

int tail(int64_t from, int64_t n) { return static_cast<int>(n - from < LANES ? n - from : LANES); }

template <class T>
void bag_row(T* to, const Bags& bags, int64_t b, const T* weight, int64_t step, int64_t D, int64_t mode, const T* scales) {
    const int64_t begin = bags.begin(b), end = bags.end(b), many = mode == BAG_SUM ? 1 : bags.counted(b);
    const vf count = splat(static_cast<float>(many > 0 ? many : 1));
    for (int64_t j = 0; j < D; j += LANES) {
        const int k = tail(j, D);
        vf sum = splat(0.0f);
        bool first = true;
        for (int64_t i = begin; i < end; ++i) {
            const int64_t id = bags.ids[i];
            if (id == bags.padding) continue;
            vf row = load(weight + id * step + j, k);
            if (scales) row *= splat(to_float(scales[i]));
            if (mode == BAG_MAX) sum = first ? row : row > sum ? row : sum;
            else sum += row;
            first = false;
        }
        store(to + j, mode == BAG_MEAN ? sum / count : sum, k);
    }
}

// The place of the largest element of each column of a bag, of equal ones the first; -1 where the bag is empty.
template <class T>
void largest(int64_t* to, const Bags& bags, int64_t b, const T* weight, int64_t step, int64_t D) {
    for (int64_t j = 0; j < D; ++j) {
        int64_t at = -1;
        float most = 0.0f;
        for (int64_t i = bags.begin(b); i < bags.end(b); ++i) {
            if (bags.ids[i] == bags.padding) continue;
            const float v = to_float(weight[bags.ids[i] * step + j]);
            if (at < 0 || v > most) at = i, most = v;
        }
        to[j] = at;
    }
}

// One row of the weight's gradient, of the places that looked it up.
template <class T>
void add_places(T* to, const T* grad, const int64_t* places, int64_t count, const int64_t* bag, const float* scale,
                const int64_t* chosen, int64_t D) {
    for (int64_t j = 0; j < D; j += LANES) {
        const int k = tail(j, D);
        vf sum = splat(0.0f);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t place = places[i], b = bag[place];
            if (b < 0) continue;
            vf flow = load(grad + b * D + j, k) * splat(scale[place]);
            if (chosen)
                for (int l = 0; l < k; ++l)
                    if (chosen[b * D + j + l] != place) flow[l] = 0.0f;
            sum += flow;
        }
        store(to + j, sum, k);
    }
}

int64_t lower_bound(const int64_t* sorted, int64_t n, int64_t id) {
    int64_t low = 0;
    while (n > 0) {
        const int64_t half = n / 2;
        if (sorted[low + half] < id) low += half + 1, n -= half + 1;
        else n = half;
    }
    return low;
}

}  // namespace

// out [B, D], ids [N], weight [V, D], offsets [B], mode, weights [N] or None, padding or -1, threads
KW_EXPORT(embedding_bag) {
    const Tensor out = args.tensor(0), weight = args.tensor(2);
    const Bags bags(args.tensor(1), args.tensor(3), args.integer(6));
    const int64_t D = weight.shape[1], bytes = (bags.ids.count + bags.count()) * D * weight.dtype.bits / 8;
    with_dtype(weight.dtype, [&](auto zero) {
        using T = decltype(zero);
        const T* scales = args.none(5) ? nullptr : args.tensor(5).ptr<const T>();
        parallel(worth(args.integer(7), bytes, GRAIN), [&](int64_t ith, int64_t nth) {
            const Range range = slice(bags.count(), ith, nth);
            for (int64_t b = range.begin; b < range.end; ++b)
                bag_row<T>(out.ptr<T>() + b * D, bags, b, weight.ptr<const T>(), weight.stride[0], D, args.integer(4), scales);
        });
    });
}

// Of a maximum: chosen [B, D] int64, ids, weight, offsets, padding or -1, threads
KW_EXPORT(embedding_bag_chosen) {
    const Tensor chosen = args.tensor(0), weight = args.tensor(2);
    const Bags bags(args.tensor(1), args.tensor(3), args.integer(4));
    const int64_t D = weight.shape[1];
    with_dtype(weight.dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel(worth(args.integer(5), bags.ids.count * D * 4, GRAIN), [&](int64_t ith, int64_t nth) {
            const Range range = slice(bags.count(), ith, nth);
            for (int64_t b = range.begin; b < range.end; ++b)
                largest<T>(chosen.ptr<int64_t>() + b * D, bags, b, weight.ptr<const T>(), weight.stride[0], D);
        });
    });
}

// grad_weight [V, D], grad [B, D], sorted ids [N], the place that each came from [N], the bag of each place or -1 [N],
// what its flow is multiplied by, float32 [N], chosen [B, D] or None, threads
KW_EXPORT(embedding_bag_grad_weight) {
    const Tensor out = args.tensor(0), grad = args.tensor(1);
    const int64_t *sorted = args.tensor(2).ptr<const int64_t>(), *places = args.tensor(3).ptr<const int64_t>();
    const int64_t *bag = args.tensor(4).ptr<const int64_t>(), *chosen = args.none(6) ? nullptr : args.tensor(6).ptr<const int64_t>();
    const float* scale = args.tensor(5).ptr<const float>();
    const int64_t n = args.tensor(2).shape[0], V = out.shape[0], D = out.shape[1];
    with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel(worth(args.integer(7), (V + n) * D * 2, GRAIN), [&](int64_t ith, int64_t nth) {
            const Range rows = slice(V, ith, nth);
            int64_t at = lower_bound(sorted, n, rows.begin);
            for (int64_t v = rows.begin; v < rows.end; ++v) {
                const int64_t first = at;
                while (at < n && sorted[at] == v) ++at;
                add_places<T>(out.ptr<T>() + v * D, grad.ptr<const T>(), places + first, at - first, bag, scale, chosen, D);
            }
        });
    });
}

// Of each place's weight: out [N], grad [B, D], ids [N], weight [V, D], the bag of each place or -1 [N], threads
KW_EXPORT(embedding_bag_grad_scales) {
    const Tensor out = args.tensor(0), grad = args.tensor(1), weight = args.tensor(3);
    const Integers ids(args.tensor(2));
    const int64_t *bag = args.tensor(4).ptr<const int64_t>(), D = weight.shape[1];
    with_dtype(weight.dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel(worth(args.integer(5), ids.count * D * 4, GRAIN), [&](int64_t ith, int64_t nth) {
            const Range range = slice(ids.count, ith, nth);
            for (int64_t i = range.begin; i < range.end; ++i) {
                vf sum = splat(0.0f);
                for (int64_t j = 0; bag[i] >= 0 && j < D; j += LANES)
                    sum = fma(load(grad.ptr<const T>() + bag[i] * D + j, tail(j, D)),
                              load(weight.ptr<const T>() + ids[i] * weight.stride[0] + j, tail(j, D)), sum);
                float all = 0.0f;
                for (int l = 0; l < LANES; ++l) all += sum[l];
                out.ptr<T>()[i] = from_float<T>(all);
            }
        });
    });
}
