// router_topk in portable vectors: the choice is select.hpp's, of a line at a time; scores are vectors of floats.
#include "exp.hpp"
#include "select.hpp"

namespace {

using namespace kw;

constexpr float EPS = 1e-20f;             // beside a sum of sigmoids
constexpr int64_t GRAIN = 16 << 10;       // bytes that are worth another thread

struct Way {
    bool sigmoid, normed;
    float scale;
    bool all() const { return !sigmoid && !normed; }  // whether a weight depends on all logits
};

inline int left_of(int64_t n, int64_t i) { return n - i < LANES ? static_cast<int>(n - i) : LANES; }

// The score of each of n logits: sigmoids, or e^(x - top). Returns their sum. Behind them up to LANES more are written.
template <class T>
float score(float* to, const T* x, int64_t n, float top, bool sigmoid) {
    vf sum = {};
    for (int64_t i = 0; i < n; i += LANES) {
        const int left = left_of(n, i);
        const vf v = load(x + i, left);
        const vf own = keep_first(sigmoid ? kw::sigmoid(v) : exp_nonpositive(v - top), left, 0.0f);
        store(to + i, own);
        sum += own;
    }
    return reduce_add(sum);
}

template <class T>
float largest(const T* x, int64_t n) {
    vf top = splat(-INFINITY);
    for (int64_t i = 0; i < n; i += LANES) {
        const int left = left_of(n, i);
        const vf v = keep_first(load(x + i, left), left, -INFINITY);
        top = max(v, top) == top ? (v != v ? v : top) : v;
    }
    return reduce_max(top);
}

template <class T>
void route(T* weights, int64_t* indices, const T* x, int64_t experts, int64_t k, const Way& way, Candidate* room,
           float* chosen, float* scores) {
    const Candidate* found = select_line<true>(room, x, experts, 0, k, true);
    for (int64_t j = 0; j < k; ++j) {
        indices[j] = place_of(found[j]);
        chosen[j] = to_float(x[indices[j]]);
    }
    const float top = chosen[0];
    float factor = way.scale;
    if (way.all()) {
        factor /= score(scores, x, experts, top, false);
        score(scores, chosen, k, top, false);
    } else {
        const float total = score(scores, chosen, k, top, way.sigmoid);
        if (way.normed) factor /= total + (way.sigmoid ? EPS : 0.0f);
    }
    for (int64_t j = 0; j < k; j += LANES) store(weights + j, load(scores + j) * factor, left_of(k, j));
}

// Of one token; `flow`, `chosen` and `scores` have room for its logits.
template <class T>
void slopes(T* out, const T* grad, const T* x, const int64_t* indices, int64_t experts, int64_t k, const Way& way,
            float* chosen, float* scores, float* flow) {
    for (int64_t j = 0; j < k; ++j) {
        chosen[j] = to_float(x[indices[j]]);
        flow[j] = to_float(grad[j]);
    }
    const float top = way.all() ? largest(x, experts) : way.sigmoid ? 0.0f : largest(chosen, k);
    const float total = way.all() ? score(scores, x, experts, top, false) : score(scores, chosen, k, top, way.sigmoid);
    const float each = way.sigmoid ? (way.normed ? 1.0f / (total + EPS) : 1.0f) : 1.0f / total;
    float mean = 0.0f;
    for (int64_t j = 0; j < k && (!way.sigmoid || way.normed); ++j)
        mean += flow[j] * (scores[way.all() ? indices[j] : j] * each);
    if (way.all()) {
        // Each expert loses its part of the mean; the chosen ones gain what flows in.
        for (int64_t e = 0; e < experts; e += LANES)
            store(out + e, (load(scores + e) * each) * (-mean * way.scale), left_of(experts, e));
        for (int64_t j = 0; j < k; ++j)
            out[indices[j]] = from_float<T>(scores[indices[j]] * each * ((flow[j] - mean) * way.scale));
        return;
    }
    for (int64_t e = 0; e < experts; e += LANES) store(out + e, vf{}, left_of(experts, e));
    for (int64_t j = 0; j < k; j += LANES) {
        const int left = left_of(k, j);
        const vf own = load(scores + j), slope = way.sigmoid ? own * kw::sigmoid(-load(chosen + j, left)) : own;
        store(chosen + j, (load(flow + j, left) - mean) * way.scale * (slope * each), left);
    }
    for (int64_t j = 0; j < k; ++j) out[indices[j]] = from_float<T>(chosen[j]);
}

Way way_of(const Args& args, int at) {
    return Way{args.integer(at) != 0, args.integer(at + 1) != 0, static_cast<float>(args.real(at + 2))};
}

}  // namespace

// router_topk(weights [T, k], indices [T, k], logits [T, E], sigmoid, normed, scale, threads)
KW_EXPORT(router_topk) {
    const Tensor weights = args.tensor(0), logits = args.tensor(2);
    const Way way = way_of(args, 3);
    const int64_t tokens = logits.shape[0], experts = logits.shape[1], k = weights.shape[1];
    const int64_t bytes = tokens * (experts * logits.dtype.bits / 8 + 64 * k);
    with_dtype(logits.dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel(worth(args.integer(6), bytes, GRAIN), [&](int64_t ith, int64_t nth) {
            const Range r = slice(tokens, ith, nth);
            if (r.begin == r.end) return;
            Candidate* room = room_for<Candidate>(candidate_room(experts, k));
            float* chosen = room_for<float>(k + experts + 2 * LANES);
            for (int64_t t = r.begin; t < r.end; ++t)
                route(weights.ptr<T>() + t * k, args.tensor(1).ptr<int64_t>() + t * k,
                      logits.ptr<T>() + t * logits.stride[0], experts, k, way, room, chosen, chosen + k + LANES);
            std::free(chosen);
            std::free(room);
        });
    });
}

// router_topk_backward(grad_logits [T, E], grad_weights [T, k], logits [T, E], indices [T, k], sigmoid, normed, scale,
// threads)
KW_EXPORT(router_topk_backward) {
    const Tensor out = args.tensor(0), grad = args.tensor(1), logits = args.tensor(2);
    const Way way = way_of(args, 4);
    const int64_t tokens = logits.shape[0], experts = logits.shape[1], k = grad.shape[1];
    with_dtype(logits.dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel(worth(args.integer(7), 2 * tokens * experts * logits.dtype.bits / 8, GRAIN), [&](int64_t ith, int64_t nth) {
            const Range r = slice(tokens, ith, nth);
            if (r.begin == r.end) return;
            float* chosen = room_for<float>(2 * k + experts + 3 * LANES);
            float *flow = chosen + k + LANES, *scores = flow + k + LANES;
            for (int64_t t = r.begin; t < r.end; ++t)
                slopes(out.ptr<T>() + t * experts, grad.ptr<T>() + t * grad.stride[0], logits.ptr<T>() + t * logits.stride[0],
                       args.tensor(3).ptr<int64_t>() + t * k, experts, k, way, chosen, scores, flow);
            std::free(chosen);
        });
    });
}
