// Means of windows that follow from the sizes, of [B, C, D, H, W], in portable vectors. Rows of a window are added up as
// vectors over the whole width, then the columns of each window; if channels lie side by side, they are the vectors.
#include <cstdlib>

#include "simd.hpp"

namespace {

using namespace kw;

constexpr int64_t GRAIN = 64 * 1024;  // elements that make a second thread worth waking

struct Part {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
};
// What an output is made of; with n and outputs exchanged, the outputs that an element is in.
Part part_of(int64_t o, int64_t n, int64_t outputs) {
    return Part{o * n / outputs, ((o + 1) * n + outputs - 1) / outputs};
}
int tail(int64_t from, int64_t n) { return static_cast<int>(n - from < LANES ? n - from : LANES); }

struct Room {
    float* values;
    explicit Room(int64_t n) : values(static_cast<float*>(std::malloc(static_cast<size_t>(n + LANES) * 4))) {}
    ~Room() { std::free(values); }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
};

float sum_of(const float* p, int64_t n) {
    vf sum = splat(0.0f);
    for (int64_t i = 0; i < n; i += LANES) sum += load(p + i, tail(i, n));
    float all = sum[0];
    for (int i = 1; i < LANES && i < n; ++i) all += sum[i];
    return all;
}

struct Sizes {
    int64_t n[3], outputs[3];
    Sizes(const Tensor& picture, const Tensor& out) {
        for (int i = 0; i < 3; ++i) n[i] = picture.shape[2 + i], outputs[i] = out.shape[2 + i];
    }
    Part part(int d, int64_t o) const { return part_of(o, n[d], outputs[d]); }
    Part windows(int d, int64_t i) const { return part_of(i, outputs[d], n[d]); }
};

template <class T>
void mean_row(const Sizes& s, const Tensor& out, const Tensor& x, T* to, const T* from, Part d, Part h, float* row) {
    const int64_t W = s.n[2];
    bool first = true;
    for (int64_t a = d.begin; a < d.end; ++a)
        for (int64_t b = h.begin; b < h.end; ++b, first = false) {
            const T* p = from + a * x.stride[2] + b * x.stride[3];
            for (int64_t j = 0; j < W; j += LANES) {
                const vf v = load(p + j, tail(j, W));
                store(row + j, first ? v : load(row + j) + v);
            }
        }
    for (int64_t ow = 0; ow < s.outputs[2]; ++ow) {
        const Part w = s.part(2, ow);
        const float scale = 1.0f / static_cast<float>(d.count() * h.count() * w.count());
        to[ow * out.stride[4]] = from_float<T>(sum_of(row + w.begin, w.count()) * scale);
    }
}

template <class T>
void mean_channels(const Sizes& s, const Tensor& out, const Tensor& x, T* to, const T* from, Part d, Part h) {
    const int64_t C = x.shape[1];
    for (int64_t ow = 0; ow < s.outputs[2]; ++ow) {
        const Part w = s.part(2, ow);
        const vf scale = splat(1.0f / static_cast<float>(d.count() * h.count() * w.count()));
        for (int64_t c = 0; c < C; c += LANES) {
            vf sum = splat(0.0f);
            for (int64_t a = d.begin; a < d.end; ++a)
                for (int64_t b = h.begin; b < h.end; ++b)
                    for (int64_t j = w.begin; j < w.end; ++j)
                        sum += load(from + a * x.stride[2] + b * x.stride[3] + j * x.stride[4] + c, tail(c, C));
            store(to + ow * out.stride[4] + c, sum * scale, tail(c, C));
        }
    }
}

}  // namespace

// out, x with unit stride along W, or along channels if out has it there too; along channels, threads
KW_EXPORT(adaptive_avg_pool) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Tensor out = args.tensor(0), x = args.tensor(1);
        const Sizes s(x, out);
        const bool channels = args.integer(2) != 0;
        const int64_t groups = channels ? 1 : x.shape[1], rows = s.outputs[0] * s.outputs[1];
        parallel(worth(args.integer(3), x.numel(), GRAIN), [&](int64_t ith, int64_t nth) {
            const Range range = slice(x.shape[0] * groups * rows, ith, nth);
            Room row(s.n[2]);
            for (int64_t r = range.begin; r < range.end; ++r) {
                const int64_t c = r / rows % groups, b = r / rows / groups, oh = r % s.outputs[1];
                const int64_t od = r / s.outputs[1] % s.outputs[0];
                const T* from = x.ptr<const T>() + b * x.stride[0] + c * x.stride[1];
                T* to = out.ptr<T>() + b * out.stride[0] + c * out.stride[1] + od * out.stride[2] + oh * out.stride[3];
                if (channels) mean_channels<T>(s, out, x, to, from, s.part(0, od), s.part(1, oh));
                else mean_row<T>(s, out, x, to, from, s.part(0, od), s.part(1, oh), row.values);
            }
        });
    });
}

// grad_x, grad, both contiguous; threads
KW_EXPORT(adaptive_avg_pool_backward) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Tensor to = args.tensor(0), grad = args.tensor(1);
        const Sizes s(to, grad);
        const int64_t rows = s.n[0] * s.n[1], planes = to.shape[0] * to.shape[1], OW = s.outputs[2], W = s.n[2];
        parallel(worth(args.integer(2), to.numel(), GRAIN), [&](int64_t ith, int64_t nth) {
            const Range range = slice(planes * rows, ith, nth);
            Room flow(OW), row(W);
            for (int64_t r = range.begin; r < range.end; ++r) {
                const Part d = s.windows(0, r / s.n[1] % s.n[0]), h = s.windows(1, r % s.n[1]);
                const T* from = grad.ptr<const T>() + r / rows * s.outputs[0] * s.outputs[1] * OW;
                for (int64_t ow = 0; ow < OW; ++ow) {
                    float sum = 0.0f;
                    for (int64_t a = d.begin; a < d.end; ++a)
                        for (int64_t b = h.begin; b < h.end; ++b) {
                            const int64_t count = s.part(0, a).count() * s.part(1, b).count() * s.part(2, ow).count();
                            sum += to_float(from[(a * s.outputs[1] + b) * OW + ow]) * (1.0f / static_cast<float>(count));
                        }
                    flow.values[ow] = sum;
                }
                for (int64_t j = 0; j < W; ++j) {
                    const Part w = s.windows(2, j);
                    float sum = flow.values[w.begin];
                    for (int64_t ow = w.begin + 1; ow < w.end; ++ow) sum += flow.values[ow];
                    row.values[j] = sum;
                }
                T* out = to.ptr<T>() + r * W;
                for (int64_t j = 0; j < W; j += LANES) store(out + j, load(row.values + j, tail(j, W)), tail(j, W));
            }
        });
    });
}
