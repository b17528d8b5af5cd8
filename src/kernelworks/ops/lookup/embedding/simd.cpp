// embedding: whole rows are copied as they are, bits and all; the gradient adds the rows of one id in vectors.
#include "ids.hpp"
#include "simd.hpp"

namespace {

using kw::LANES;
using kw::vf;

constexpr int64_t GRAIN = 64 * 1024;  // bytes that make a second thread worth waking

// One row of the weight's gradient: the sum, in float32, of the gradients of every place that looked it up.
template <class T>
void add_rows(T* out, const T* grad, int64_t step, const int64_t* places, int64_t count, int64_t D) {
    for (int64_t j = 0; j < D; j += LANES) {
        const int k = static_cast<int>(D - j < LANES ? D - j : LANES);
        vf sum = {};
        for (int64_t i = 0; i < count; ++i) sum += kw::load(grad + places[i] * step + j, k);
        kw::store(out + j, sum, k);
    }
}

// The first position of `sorted` [n] that is not below `id`.
int64_t lower_bound(const int64_t* sorted, int64_t n, int64_t id) {
    int64_t low = 0;
    while (n > 0) {
        const int64_t half = n / 2;
        if (sorted[low + half] < id) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

}  // namespace

// embedding(out [n, D], ids [n], weight [V, D], threads): the position of the first id outside the table, or -1
KW_EXPORT_INTEGER(embedding) {
    const kw::Tensor out = args.tensor(0), ids = args.tensor(1), weight = args.tensor(2);
    const int64_t outside = kw::first_outside(ids, weight.shape[0]);
    if (outside >= 0) return outside;
    const int64_t n = ids.numel(), size = weight.dtype.bits / 8, width = weight.shape[1] * size,
                  step = weight.stride[0] * size;
    kw::with_ids(ids, [&](auto id) {
        kw::parallel(kw::worth(args.integer(3), 2 * n * width, GRAIN), [&](int64_t ith, int64_t nth) {
            const kw::Range range = kw::slice(n, ith, nth);
            for (int64_t i = range.begin; i < range.end; ++i)
                std::memcpy(out.data + i * width, weight.data + id[i] * step, static_cast<size_t>(width));
        });
    });
    return -1;
}

// embedding_backward(grad_weight [V, D], grad [n, D], sorted ids [n], the place that each came from [n], threads)
KW_EXPORT(embedding_backward) {
    const kw::Tensor out = args.tensor(0), grad = args.tensor(1);
    const int64_t *sorted = args.tensor(2).ptr<const int64_t>(), *places = args.tensor(3).ptr<const int64_t>();
    const int64_t n = args.tensor(2).shape[0], V = out.shape[0], D = out.shape[1];
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::parallel(kw::worth(args.integer(4), (V + n) * D * 2, GRAIN), [&](int64_t ith, int64_t nth) {
            const kw::Range rows = kw::slice(V, ith, nth);
            int64_t at = lower_bound(sorted, n, rows.begin);
            for (int64_t v = rows.begin; v < rows.end; ++v) {
                const int64_t first = at;
                while (at < n && sorted[at] == v) ++at;
                add_rows(out.ptr<T>() + v * D, grad.ptr<const T>(), grad.stride[0], places + first, at - first, D);
            }
        });
    });
}
