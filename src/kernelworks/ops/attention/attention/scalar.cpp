// Attention, to be read: one query at a time, with a softmax that is kept up to date while keys go by.
//
// After some keys, m is the largest score so far, l the sum of exp(score - m), and o the sum of exp(score - m) value.
// A larger score s makes m too small: l and o are multiplied by exp(m - s), and m becomes s. In the end o / l is the
// softmax's average of the values. No row of scores is ever kept. (Milakov and Gimelshein 2018, arXiv:1805.02867.)
// A softcap (0: none) bends every score s to softcap tanh(s / softcap) before anything else. A sink is a score that was
// there before the first key, of no value.
#include <cstdlib>

#include "problem.hpp"

namespace kw::attention {

// May query i of head h see key j, as far as the mask says?
static bool unmasked(const Problem& p, int64_t b, int64_t h, int64_t i, int64_t j) {
    return !p.mask || p.mask_row(b, h, i)[j * p.mask_stride[3]];
}

template <class T>
static float dot(const T* a, const T* b, int64_t n) {
    double sum = 0;
    for (int64_t d = 0; d < n; ++d) sum += static_cast<double>(to_float(a[d])) * static_cast<double>(to_float(b[d]));
    return static_cast<float>(sum);
}

// How far a score is on its way to the softcap, from -1 to 1.
static double bent(float s, double softcap) { return std::tanh(static_cast<double>(s) / softcap); }

template <class T>
static void one_query(const Problem& p, double softcap, const float* sink, T* out, float* lse, const T* q,
                      const Heads<T>& k, const Heads<T>& v, int64_t b, int64_t h, int64_t i) {
    const int64_t kv_head = h / p.group;
    const float scale = static_cast<float>(p.scale);
    double o[256] = {}, l = sink ? 1 : 0;
    float m = sink ? *sink : -INFINITY;
    bool seen = false;
    for (int64_t j = p.first_key(i); j < p.end_key(i); ++j) {
        if (!unmasked(p, b, h, i, j)) continue;
        seen = true;
        float s = scale * dot(q, k.at(b, kv_head, j), p.D);
        if (softcap > 0) s = static_cast<float>(softcap * bent(s, softcap));
        if (s == -INFINITY) continue;  // weight 0, and m may still be -inf
        if (s > m) {
            const double factor = std::exp(static_cast<double>(m) - static_cast<double>(s));
            l *= factor;
            for (int64_t d = 0; d < p.D; ++d) o[d] *= factor;
            m = s;
        }
        const double e = std::exp(static_cast<double>(s) - static_cast<double>(m));
        const T* value = v.at(b, kv_head, j);
        l += e;
        for (int64_t d = 0; d < p.D; ++d) o[d] += e * static_cast<double>(to_float(value[d]));
    }
    // A query that saw no key gives 0; one that saw only scores of -inf gives 0 / 0, as softmax does.
    for (int64_t d = 0; d < p.D; ++d) out[d] = from_float<T>(seen ? static_cast<float>(o[d] / l) : 0.0f);
    if (lse) *lse = seen || sink ? static_cast<float>(static_cast<double>(m) + std::log(l)) : -INFINITY;
}

template <class T>
struct Gradients {
    Heads<T> dq, dk, dv, grad, q, k, v, out;
    const float* lse;
};

// All queries of one key-value head, so that dk and dv (Lk x D, in float64 until the end) have one owner.
template <class T>
static void one_kv_head(const Problem& p, double softcap, const Gradients<T>& x, int64_t b, int64_t kv_head, double* dk,
                        double* dv) {
    for (int64_t h = kv_head * p.group; h < (kv_head + 1) * p.group; ++h)
        for (int64_t i = 0; i < p.Lq; ++i) {
            const T *q = x.q.at(b, h, i), *grad = x.grad.at(b, h, i);
            const float lse = x.lse[(b * p.H + h) * p.Lq + i];
            const float delta = dot(grad, static_cast<const T*>(x.out.at(b, h, i)), p.D);
            double dq[256] = {};
            for (int64_t j = p.first_key(i); j < p.end_key(i); ++j) {
                if (!unmasked(p, b, h, i, j)) continue;
                const T *key = x.k.at(b, kv_head, j), *value = x.v.at(b, kv_head, j);
                float s = static_cast<float>(p.scale) * dot(q, key, p.D);
                double slope = p.scale;
                if (softcap > 0) {
                    const double t = bent(s, softcap);
                    s = static_cast<float>(softcap * t);
                    slope *= 1 - t * t;
                }
                const float e = std::exp(s - lse);
                const double ds = static_cast<double>(e * (dot(grad, value, p.D) - delta)) * slope;
                for (int64_t d = 0; d < p.D; ++d) {
                    dq[d] += ds * static_cast<double>(to_float(key[d]));
                    dk[j * p.D + d] += ds * static_cast<double>(to_float(q[d]));
                    dv[j * p.D + d] += static_cast<double>(e) * static_cast<double>(to_float(grad[d]));
                }
            }
            T* to = x.dq.at(b, h, i);
            for (int64_t d = 0; d < p.D; ++d) to[d] = from_float<T>(static_cast<float>(dq[d]));
        }
    for (int64_t j = 0; j < p.Lk; ++j)
        for (int64_t d = 0; d < p.D; ++d) {
            x.dk.at(b, kv_head, j)[d] = from_float<T>(static_cast<float>(dk[j * p.D + d]));
            x.dv.at(b, kv_head, j)[d] = from_float<T>(static_cast<float>(dv[j * p.D + d]));
        }
}

}  // namespace kw::attention

// attention(out, lse or None, q, k, v, mask or None, scale, causal, shift, window, threads, softcap, sinks or None)
KW_EXPORT(attention) {
    using namespace kw::attention;
    kw::Tensor out = args.tensor(0);
    Problem p(args.tensor(2), args.tensor(3), args, 5);
    float* lse = args.none(1) ? nullptr : args.tensor(1).ptr<float>();
    const double softcap = args.real(11);
    const float* sinks = args.none(12) ? nullptr : args.tensor(12).ptr<float>();
    const int64_t threads = kw::worth(args.integer(10), 4 * seen_pairs(p) * p.D, 1 << 18);
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        Heads<T> o(out), q(args.tensor(2)), k(args.tensor(3)), v(args.tensor(4));
        kw::parallel(threads, [&](int64_t ith, int64_t nth) {
            kw::Range r = kw::slice(p.B * p.H * p.Lq, ith, nth);
            for (int64_t n = r.begin; n < r.end; ++n) {
                const int64_t b = n / (p.H * p.Lq), h = n / p.Lq % p.H, i = n % p.Lq;
                one_query<T>(p, softcap, sinks ? sinks + h : nullptr, o.at(b, h, i), lse ? lse + n : nullptr,
                             q.at(b, h, i), k, v, b, h, i);
            }
        });
    });
}

// attention_backward(dq, dk, dv, grad, q, k, v, out, lse, mask or None, scale, causal, shift, window, threads, softcap)
KW_EXPORT(attention_backward) {
    using namespace kw::attention;
    Problem p(args.tensor(4), args.tensor(5), args, 9);
    const double softcap = args.real(15);
    kw::with_dtype(args.tensor(4).dtype, [&](auto zero) {
        using T = decltype(zero);
        auto heads = [&](int i) { return Heads<T>(args.tensor(i)); };
        Gradients<T> x{heads(0), heads(1), heads(2), heads(3), heads(4), heads(5), heads(6), heads(7),
                       args.tensor(8).ptr<float>()};
        kw::parallel(args.integer(14), [&](int64_t ith, int64_t nth) {
            kw::Range r = kw::slice(p.B * p.Hkv, ith, nth);
            const size_t size = static_cast<size_t>(p.Lk * p.D);
            double* sums = static_cast<double*>(malloc(2 * sizeof(double) * (size + 1)));
            for (int64_t n = r.begin; n < r.end; ++n) {
                std::memset(sums, 0, 2 * sizeof(double) * size);
                one_kv_head<T>(p, softcap, x, n / p.Hkv, n % p.Hkv, sums, sums + size);
            }
            free(sums);
        });
    });
}
