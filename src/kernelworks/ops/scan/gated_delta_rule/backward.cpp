// The gradients of the gated delta rule, by chunks (state_chunks.hpp). Given: the gradients of q, k, v, g, beta and the first
// state, each a contiguous tensor or none; the gradient of the output (its last dimension contiguous), that of the last
// state or none; then q, k, v, g, beta, the first state or none, scale, normal, threads, as the forward has them.
#include "states/state_chunks.hpp"

namespace {

using namespace kw;

template <class T>
struct DeltaGradients {
    static constexpr bool DELTA = true, FACTOR = false;
    Tensor grad, q, k, v, g, beta, d[5];
    bool wanted[5];
    const float *first, *grad_last;
    float* d_first;
    int64_t batch, steps, heads, value_heads;
    int dim, value_dim;
    float scale;
    bool normal;

    explicit DeltaGradients(const Args& a)
        : grad(a.tensor(6)), q(a.tensor(8)), k(a.tensor(9)), v(a.tensor(10)), g(a.tensor(11)), beta(a.tensor(12)),
          first(a.none(13) ? nullptr : a.tensor(13).ptr<float>()), grad_last(a.none(7) ? nullptr : a.tensor(7).ptr<float>()),
          d_first(a.none(5) ? nullptr : a.tensor(5).ptr<float>()), batch(q.shape[0]), steps(q.shape[1]), heads(q.shape[2]),
          value_heads(v.shape[2]), dim(static_cast<int>(q.shape[3])), value_dim(static_cast<int>(v.shape[3])),
          scale(static_cast<float>(a.real(14))), normal(a.integer(15) != 0) {
        for (int i = 0; i < 5; ++i) {
            wanted[i] = !a.none(i);
            if (wanted[i]) d[i] = a.tensor(i);
        }
    }

    template <class U>
    static U* at(const Tensor& t, int64_t b, int64_t step, int64_t head) {
        return t.ptr<U>() + b * t.stride[0] + step * t.stride[1] + head * t.stride[2];
    }
    static float number(const Tensor& t, int64_t b, int64_t step, int64_t head) {
        return t.dtype.bits == 32 ? *at<float>(t, b, step, head) : to_float(*at<T>(t, b, step, head));
    }
    int64_t key_head(int64_t head) const { return head / (value_heads / heads); }
    int64_t state_place(int64_t b, int64_t head, int64_t i, int64_t j) const {
        return ((b * value_heads + head) * dim + i) * value_dim + j;
    }

    // What brings a vector to a length of 1, times `factor`; that factor if it keeps its length.
    double length(const T* from, double factor) const {
        if (!normal) return factor;
        float parts[8] = {};
        for (int i = 0; i < dim; ++i) parts[i % 8] += to_float(from[i]) * to_float(from[i]);
        double squares = 1e-6;
        for (float part : parts) squares += static_cast<double>(part);
        return factor / std::sqrt(squares);
    }
    void read(float* to, const Tensor& t, int64_t b, int64_t step, int64_t head, float times) const {
        const T* from = at<T>(t, b, step, head);
        const float factor = static_cast<float>(length(from, static_cast<double>(times)));
        for (int i = 0; i < dim; ++i) to[i] = to_float(from[i]) * factor;
    }
    void read_key(float* to, int64_t b, int64_t step, int64_t head) const { read(to, k, b, step, head, 1.0f); }
    void read_query(float* to, int64_t b, int64_t step, int64_t head) const { read(to, q, b, step, head, scale); }
    double gate(int64_t b, int64_t step, int64_t head) const {  // as in the forward
        const double x = static_cast<double>(number(g, b, step, head));
        return x < -1e4 ? -1e4 : x;
    }
    float rate(int64_t b, int64_t step, int64_t head) const { return number(beta, b, step, head); }
    float factor(int64_t, int64_t, int64_t) const { return 1.0f; }
    const T* values(int64_t b, int64_t step, int64_t head) const { return at<T>(v, b, step, head); }
    const T* flows(int64_t b, int64_t step, int64_t head) const { return at<T>(grad, b, step, head); }

    double put_value(const float* from, const float*, int64_t b, int64_t step, int64_t head, int column) const {
        for (int j = 0; wanted[2] && j < chunks::COLUMNS; j += LANES)
            chunks::put(at<T>(d[2], b, step, head) + column + j, load(from + j), value_dim - column - j);
        return 0.0;
    }
    void put_number(int which, double x, int64_t b, int64_t step, int64_t head) const {
        if (!wanted[which]) return;
        if (d[which].dtype.bits == 32) *at<float>(d[which], b, step, head) = static_cast<float>(x);
        else *at<T>(d[which], b, step, head) = from_float<T>(static_cast<float>(x));
    }
    void put_numbers(double d_gate, double d_rate, double, int64_t b, int64_t step, int64_t head) const {
        put_number(3, d_gate, b, step, head);
        put_number(4, d_rate, b, step, head);
    }
    // Of x' = r x with r = 1 / sqrt(|x|^2 + eps): dx = r (dx' - x' (x' dx')).
    void put_vector(int which, const Tensor& t, const float* made, double times, int64_t b, int64_t step, int64_t head) const {
        if (!wanted[which]) return;
        const T* from = at<T>(t, b, step, head);
        T* to = at<T>(d[which], b, step, head);
        const double r = length(from, 1.0);
        double along = 0;
        for (int i = 0; normal && i < dim; ++i) along += static_cast<double>(to_float(from[i])) * static_cast<double>(made[i]);
        along *= r * r;
        for (int i = 0; i < dim; ++i)
            to[i] = from_float<T>(static_cast<float>(
                times * r * (static_cast<double>(made[i]) - along * static_cast<double>(to_float(from[i])))));
    }
    void put_query(const float* made, int64_t b, int64_t step, int64_t head) const {
        put_vector(0, q, made, static_cast<double>(scale), b, step, head);
    }
    void put_key(const float* made, int64_t b, int64_t step, int64_t head) const {
        put_vector(1, k, made, 1.0, b, step, head);
    }
};

}  // namespace

KW_EXPORT(gated_delta_rule_backward) {
    with_dtype(args.tensor(8).dtype, [&](auto zero) {
        chunks::backward(DeltaGradients<decltype(zero)>(args), args.integer(16));
    });
}
