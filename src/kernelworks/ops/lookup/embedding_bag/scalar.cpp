// embedding_bag, to be read: out[b] = the sum of weight[ids[i]] over the places i of bag b, their mean, or the largest.
#include "bags.hpp"

using namespace kw;

// out [B, D], ids [N], weight [V, D], offsets [B], mode, weights [N] or None, padding or -1, threads
KW_EXPORT(embedding_bag) {
    const Tensor out = args.tensor(0), weight = args.tensor(2);
    const Bags bags(args.tensor(1), args.tensor(3), args.integer(6));
    const int64_t D = weight.shape[1], mode = args.integer(4);
    with_dtype(weight.dtype, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t b = 0; b < bags.count(); ++b)
            for (int64_t j = 0; j < D; ++j) {
                double sum = 0.0;
                int64_t count = 0;
                for (int64_t i = bags.begin(b); i < bags.end(b); ++i) {
                    if (bags.ids[i] == bags.padding) continue;
                    double v = to_float(weight.ptr<const T>()[bags.ids[i] * weight.stride[0] + j]);
                    if (!args.none(5)) v *= to_float(args.tensor(5).ptr<const T>()[i]);
                    if (mode == BAG_MAX) sum = count == 0 || v > sum ? v : sum;
                    else sum += v;
                    ++count;
                }
                if (mode == BAG_MEAN && count > 0) sum /= static_cast<double>(count);
                out.ptr<T>()[b * D + j] = from_float<T>(static_cast<float>(sum));
            }
    });
}

// Of a maximum: chosen [B, D] int64, ids, weight, offsets, padding or -1, threads
KW_EXPORT(embedding_bag_chosen) {
    const Tensor chosen = args.tensor(0), weight = args.tensor(2);
    const Bags bags(args.tensor(1), args.tensor(3), args.integer(4));
    const int64_t D = weight.shape[1];
    with_dtype(weight.dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto at = [&](int64_t i, int64_t j) {
            return to_float(weight.ptr<const T>()[bags.ids[i] * weight.stride[0] + j]);
        };
        for (int64_t b = 0; b < bags.count(); ++b)
            for (int64_t j = 0; j < D; ++j) {
                int64_t most = -1;
                for (int64_t i = bags.begin(b); i < bags.end(b); ++i)
                    if (bags.ids[i] != bags.padding && (most < 0 || at(i, j) > at(most, j))) most = i;
                chosen.ptr<int64_t>()[b * D + j] = most;
            }
    });
}

// grad_weight [V, D], grad [B, D], sorted ids [N], the place that each came from [N], the bag of each place or -1 [N],
// what its flow is multiplied by, float32 [N], chosen [B, D] or None, threads
KW_EXPORT(embedding_bag_grad_weight) {
    const Tensor out = args.tensor(0), grad = args.tensor(1);
    const int64_t *sorted = args.tensor(2).ptr<const int64_t>(), *places = args.tensor(3).ptr<const int64_t>();
    const int64_t* bag = args.tensor(4).ptr<const int64_t>();
    const int64_t n = args.tensor(2).shape[0], V = out.shape[0], D = out.shape[1];
    with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t at = 0;
        for (int64_t v = 0; v < V; ++v) {
            const int64_t first = at;
            while (at < n && sorted[at] == v) ++at;
            for (int64_t j = 0; j < D; ++j) {
                double sum = 0.0;
                for (int64_t i = first; i < at; ++i) {
                    const int64_t place = places[i], b = bag[place];
                    if (b < 0) continue;
                    if (!args.none(6) && args.tensor(6).ptr<const int64_t>()[b * D + j] != place) continue;
                    sum += static_cast<double>(to_float(grad.ptr<const T>()[b * D + j])) *
                           static_cast<double>(args.tensor(5).ptr<const float>()[place]);
                }
                out.ptr<T>()[v * D + j] = from_float<T>(static_cast<float>(sum));
            }
        }
    });
}

// Of each place's weight: out [N], grad [B, D], ids [N], weight [V, D], the bag of each place or -1 [N], threads
KW_EXPORT(embedding_bag_grad_scales) {
    const Tensor out = args.tensor(0), grad = args.tensor(1), weight = args.tensor(3);
    const Integers ids(args.tensor(2));
    const int64_t *bag = args.tensor(4).ptr<const int64_t>(), D = weight.shape[1];
    with_dtype(weight.dtype, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < ids.count; ++i) {
            double sum = 0.0;
            for (int64_t j = 0; bag[i] >= 0 && j < D; ++j)
                sum += static_cast<double>(to_float(grad.ptr<const T>()[bag[i] * D + j])) *
                       static_cast<double>(to_float(weight.ptr<const T>()[ids[i] * weight.stride[0] + j]));
            out.ptr<T>()[i] = from_float<T>(static_cast<float>(sum));
        }
    });
}
