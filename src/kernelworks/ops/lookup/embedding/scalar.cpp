// embedding, to be read: out[i] = weight[ids[i]].
#include "ids.hpp"

// embedding(out [n, D], ids [n], weight [V, D], threads): the position of the first id outside the table, or -1
KW_EXPORT_INTEGER(embedding) {
    const kw::Tensor out = args.tensor(0), ids = args.tensor(1), weight = args.tensor(2);
    const int64_t outside = kw::first_outside(ids, weight.shape[0]);
    if (outside >= 0) return outside;
    const int64_t D = weight.shape[1];
    kw::with_dtype(weight.dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::with_ids(ids, [&](auto id) {
            for (int64_t i = 0; i < ids.numel(); ++i)
                for (int64_t j = 0; j < D; ++j)
                    out.ptr<T>()[i * D + j] = weight.ptr<T>()[id[i] * weight.stride[0] + j];
        });
    });
    return -1;
}

// Row v of the gradient is the sum of the gradients of every place that looked row v up.
// embedding_backward(grad_weight [V, D], grad [n, D], sorted ids [n], the place that each came from [n], threads)
KW_EXPORT(embedding_backward) {
    const kw::Tensor out = args.tensor(0), grad = args.tensor(1);
    const int64_t *sorted = args.tensor(2).ptr<const int64_t>(), *places = args.tensor(3).ptr<const int64_t>();
    const int64_t n = args.tensor(2).shape[0], V = out.shape[0], D = out.shape[1];
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t at = 0;
        for (int64_t v = 0; v < V; ++v) {
            const int64_t first = at;
            while (at < n && sorted[at] == v) ++at;
            for (int64_t j = 0; j < D; ++j) {
                double sum = 0.0;
                for (int64_t i = first; i < at; ++i) sum += kw::to_float(grad.ptr<T>()[places[i] * grad.stride[0] + j]);
                out.ptr<T>()[v * D + j] = kw::from_float<T>(static_cast<float>(sum));
            }
        }
    });
}
