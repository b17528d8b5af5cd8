// What every C++ kernel of the gated delta rule is given: output, final_state or none, q, k, v, g, beta, initial_state or
// none, scale, normal, threads. Last dimensions of q, k and v are contiguous, output and states all; other strides are any.
#pragma once

#include "kernel.hpp"

namespace kw {

constexpr int MOST_DIM = 256;  // of a key, and of a value

template <class T>
struct DeltaRule {
    Tensor out, q, k, v, g, beta;
    float* last;
    const float* first;
    int64_t batch, steps, heads, value_heads, threads;
    int dim, value_dim;
    float scale;
    bool normal;

    explicit DeltaRule(const Args& a)
        : out(a.tensor(0)), q(a.tensor(2)), k(a.tensor(3)), v(a.tensor(4)), g(a.tensor(5)), beta(a.tensor(6)),
          last(a.none(1) ? nullptr : a.tensor(1).ptr<float>()), first(a.none(7) ? nullptr : a.tensor(7).ptr<float>()),
          batch(q.shape[0]), steps(q.shape[1]), heads(q.shape[2]), value_heads(v.shape[2]), threads(a.integer(10)),
          dim(static_cast<int>(q.shape[3])), value_dim(static_cast<int>(v.shape[3])), scale(static_cast<float>(a.real(8))),
          normal(a.integer(9) != 0) {}

    template <class U>
    static U* at(const Tensor& t, int64_t b, int64_t step, int64_t head) {
        return t.ptr<U>() + b * t.stride[0] + step * t.stride[1] + head * t.stride[2];
    }
    int64_t key_head(int64_t head) const { return head / (value_heads / heads); }
    int64_t state_of(int64_t b, int64_t head) const { return (b * value_heads + head) * dim * value_dim; }

    // A gate or a rate, of T or of float.
    static float number(const Tensor& t, int64_t b, int64_t step, int64_t head) {
        return t.dtype.bits == 32 ? *at<float>(t, b, step, head) : to_float(*at<T>(t, b, step, head));
    }
    // e^g; not even a whole chunk of the smallest gives an infinity.
    double gate(int64_t b, int64_t step, int64_t head) const {
        const double x = static_cast<double>(number(g, b, step, head));
        return x < -1e4 ? -1e4 : x;
    }

    // A key or a query in float32, brought to a length of 1 if asked for, and times `factor`.
    void read(float* to, const Tensor& t, int64_t b, int64_t step, int64_t head, float factor) const {
        const T* from = at<T>(t, b, step, head);
        for (int i = 0; i < dim; ++i) to[i] = to_float(from[i]);
        if (normal) {
            float parts[8] = {};
            for (int i = 0; i < dim; ++i) parts[i % 8] += to[i] * to[i];
            double squares = 1e-6;
            for (float part : parts) squares += static_cast<double>(part);
            factor = static_cast<float>(static_cast<double>(factor) / std::sqrt(squares));
        }
        for (int i = 0; i < dim; ++i) to[i] *= factor;
    }
};

}  // namespace kw
