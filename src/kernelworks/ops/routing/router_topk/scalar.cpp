// router_topk, to be read: again and again the largest logit that is left, then what each of those weighs.
#include "router.hpp"

namespace {

using kw::RouterWay;

// The k largest of n, of equals the first one first; NaN is above all numbers.
void choose(int64_t* indices, const std::vector<double>& x, int64_t k) {
    kw::Element last{0.0f, -1};
    for (int64_t j = 0; j < k; ++j) {
        kw::Element next{0.0f, -1};
        for (size_t i = 0; i < x.size(); ++i) {
            const kw::Element own{static_cast<float>(x[i]), static_cast<int64_t>(i)};
            if (last.place >= 0 && !kw::comes_before(last, own, true)) continue;
            if (next.place < 0 || kw::comes_before(own, next, true)) next = own;
        }
        indices[j] = next.place;
        last = next;
    }
}

}  // namespace

// router_topk(weights [T, k], indices [T, k], logits [T, E], sigmoid, normed, scale, threads)
KW_EXPORT(router_topk) {
    const kw::Tensor weights = args.tensor(0), logits = args.tensor(2);
    const RouterWay way{args.integer(3) != 0, args.integer(4) != 0, args.real(5)};
    const int64_t tokens = logits.shape[0], experts = logits.shape[1], k = weights.shape[1];
    kw::with_dtype(logits.dtype, [&](auto zero) {
        using T = decltype(zero);
        std::vector<double> x(experts), chosen(k), scores(experts);
        for (int64_t t = 0; t < tokens; ++t) {
            int64_t* indices = args.tensor(1).ptr<int64_t>() + t * k;
            for (int64_t e = 0; e < experts; ++e) x[e] = kw::to_float(logits.ptr<T>()[t * logits.stride[0] + e]);
            choose(indices, x, k);
            for (int64_t j = 0; j < k; ++j) chosen[j] = x[indices[j]];
            const bool all = !way.sigmoid && !way.normed;
            kw::scores_of(scores.data(), all ? x.data() : chosen.data(), all ? experts : k, way.sigmoid);
            double total = way.sigmoid && way.normed ? kw::ROUTER_EPS : 1.0;
            for (int64_t j = 0; j < k && way.sigmoid && way.normed; ++j) total += scores[j];
            for (int64_t j = 0; j < k; ++j) {
                const double score = scores[all ? indices[j] : j] / total * way.scale;
                weights.ptr<T>()[t * k + j] = kw::from_float<T>(static_cast<float>(score));
            }
        }
    });
}

// router_topk_backward(grad_logits [T, E], grad_weights [T, k], logits [T, E], indices [T, k], sigmoid, normed, scale,
// threads)
KW_EXPORT(router_topk_backward) {
    const kw::Tensor out = args.tensor(0), grad = args.tensor(1), logits = args.tensor(2);
    const RouterWay way{args.integer(4) != 0, args.integer(5) != 0, args.real(6)};
    const int64_t tokens = logits.shape[0], experts = logits.shape[1], k = grad.shape[1];
    kw::with_dtype(logits.dtype, [&](auto zero) {
        using T = decltype(zero);
        const bool all = !way.sigmoid && !way.normed;
        const int64_t count = all ? experts : k;
        std::vector<double> x(count), scores(count), flow(count);
        for (int64_t t = 0; t < tokens; ++t) {
            const int64_t* indices = args.tensor(3).ptr<int64_t>() + t * k;
            const T* row = logits.ptr<T>() + t * logits.stride[0];
            for (int64_t i = 0; i < count; ++i) x[i] = kw::to_float(row[all ? i : indices[i]]);
            for (int64_t i = 0; i < count; ++i) flow[i] = 0.0;
            for (int64_t j = 0; j < k; ++j)
                flow[all ? indices[j] : j] = kw::to_float(grad.ptr<T>()[t * grad.stride[0] + j]);
            kw::scores_of(scores.data(), x.data(), count, way.sigmoid);
            double total = way.sigmoid && way.normed ? kw::ROUTER_EPS : 1.0, mean = 0.0;
            for (int64_t i = 0; i < count && way.sigmoid && way.normed; ++i) total += scores[i];
            for (int64_t i = 0; i < count && (!way.sigmoid || way.normed); ++i) mean += flow[i] * scores[i] / total;
            for (int64_t e = 0; e < experts; ++e) out.ptr<T>()[t * experts + e] = kw::from_float<T>(0.0f);
            for (int64_t i = 0; i < count; ++i) {
                const double slope = way.sigmoid ? scores[i] * kw::sigmoid_of(-x[i]) : scores[i];
                const double found = way.scale * (flow[i] - mean) / total * slope;
                out.ptr<T>()[t * experts + (all ? i : indices[i])] = kw::from_float<T>(static_cast<float>(found));
            }
        }
    });
}
