// Pooling of [B, C, D, H, W] on vectors of any width; what has fewer dimensions has one element along the first ones.
//
//     KW_EXPORT(max_pool) { kw::pool<kw::MAX>(args); }
//
// A row of outputs is made in two steps if elements lie side by side along W: the rows of its windows are joined, over the
// whole width, as vectors; then the columns of each window. If channels lie side by side they are joined as vectors. Of
// equal elements the first one is the largest, and of several NaN the last one, as torch has it: what a column, or two
// vectors, come to is joined so that the order of the steps does not show.
#pragma once

#include <cstdlib>

#include "simd.hpp"

namespace kw {

enum Fold { MEAN, MAX, MAX_WITH_INDEX };

constexpr int64_t WINDOW_GRAIN = 64 * 1024;  // elements that make a second thread worth waking
constexpr int32_t NOWHERE = INT32_MAX;       // the index of what lies around the picture

struct Span {  // what of a window lies in the picture, and by how many a sum is divided
    int64_t first, count, divided;
};

struct Window {
    int64_t size[3], stride[3], padding[3], dilation[3], picture[3], outputs[3];
    bool whole;
    int64_t divisor;

    // arguments: 12 numbers (size, stride, padding, dilation), whole, divisor or 0
    Window(Args args, int first, Tensor out, Tensor x) : whole(args.integer(first + 12)), divisor(args.integer(first + 13)) {
        for (int i = 0; i < 3; ++i) {
            size[i] = args.integer(first + i), stride[i] = args.integer(first + 3 + i);
            padding[i] = args.integer(first + 6 + i), dilation[i] = args.integer(first + 9 + i);
            picture[i] = x.shape[2 + i], outputs[i] = out.shape[2 + i];
        }
    }
    int64_t planes_outputs() const { return outputs[0] * outputs[1]; }
    int64_t elements() const { return picture[0] * picture[1] * picture[2]; }
    int64_t reach(int d) const { return (size[d] - 1) * dilation[d] + 1; }
    int64_t taps() const { return size[0] * size[1] * size[2]; }

    Span span(int d, int64_t at) const {
        const int64_t begin = at * stride[d] - padding[d], n = picture[d], step = dilation[d];
        const int64_t skipped = begin < 0 ? (-begin + step - 1) / step : 0;
        const int64_t first = begin + skipped * step;
        int64_t count = first < n ? (n - first + step - 1) / step : 0;
        if (count > size[d] - skipped) count = size[d] - skipped;
        const int64_t end = begin + size[d] < n + padding[d] ? begin + size[d] : n + padding[d];
        return Span{first, count, whole ? end - begin : count};
    }
    float scale(const Span& d, const Span& h, const Span& w) const {
        return 1.0f / static_cast<float>(divisor ? divisor : d.divided * h.divided * w.divided);
    }
};

// ---------------------------------------------------------------- joining

// Which elements come after what there is: larger ones, and NaN.
template <class V>
inline auto comes_after(V value, V more) {
    return (more > value) | (more != more);
}

template <Fold FOLD>
struct Joined {
    static vf none() { return splat(FOLD == MEAN ? 0.0f : -__builtin_inff()); }
    static void join(vf& value, vi& at, vf more, vi there) {
        if constexpr (FOLD == MEAN) {
            value += more;
        } else {
            const vi after = comes_after(value, more) | ((at == NOWHERE) & (more == value));
            value = after ? more : value;
            if constexpr (FOLD == MAX_WITH_INDEX) at = after ? there : at;
        }
    }
};

// The larger of what two columns came to, whichever of them was joined first.
inline void join_columns(vf& value, vi& at, vf more, vi there) {
    const vi nan = more != more, was = value != value;
    const vi after = (nan & (~was | (there > at))) | (more > value) | ((more == value) & (there < at));
    value = after ? more : value;
    at = after ? there : at;
}

// A row of windows: the joined columns of the picture, with what lies around it, and their indices.
struct RowBuffer {
    float* values;
    int32_t* at;
    explicit RowBuffer(int64_t width) {
        values = static_cast<float*>(std::malloc(static_cast<size_t>(width + 4 * LANES) * 4));
        at = static_cast<int32_t*>(std::malloc(static_cast<size_t>(width + 4 * LANES) * 4));
    }
    ~RowBuffer() {
        std::free(values);
        std::free(at);
    }
    RowBuffer(const RowBuffer&) = delete;
    RowBuffer& operator=(const RowBuffer&) = delete;
};

inline int tail(int64_t from, int64_t n) { return static_cast<int>(n - from < LANES ? n - from : LANES); }

// One row of outputs, of a plane whose rows have unit stride: put(first output, values, indices, how many).
template <Fold FOLD, class T, class Put>
void pool_row(const Window& g, const T* plane, const int64_t* step, int64_t od, int64_t oh, RowBuffer& row, Put put) {
    const Span d = g.span(0, od), h = g.span(1, oh);
    const int64_t W = g.picture[2], left = g.padding[2], OW = g.outputs[2];
    int64_t width = (OW - 1) * g.stride[2] + g.reach(2);
    if (width < left + W) width = left + W;
    const vf none = Joined<FOLD>::none();
    const vi nowhere = vi{} + NOWHERE;
    auto blank = [&](int64_t from, int64_t to) {
        for (int64_t j = from; j < to; ++j) row.values[j] = none[0], row.at[j] = NOWHERE;
    };
    blank(0, left);
    blank(left + W, width);
    for (int64_t j = 0; j < W; j += LANES) {
        vf value = none;
        vi at = nowhere;
        for (int64_t a = 0; a < d.count; ++a)
            for (int64_t b = 0; b < h.count; ++b) {
                const int64_t y = d.first + a * g.dilation[0], z = h.first + b * g.dilation[1];
                const vi there = lane_index() + static_cast<int32_t>((y * g.picture[1] + z) * W + j);
                Joined<FOLD>::join(value, at, load(plane + y * step[0] + z * step[1] + j, tail(j, W)), there);
            }
        const int many = tail(j, W);
        if (many == LANES) {
            store(row.values + left + j, value);
            if constexpr (FOLD == MAX_WITH_INDEX) __builtin_memcpy(row.at + left + j, &at, sizeof at);
        } else {
            for (int i = 0; i < many; ++i) row.values[left + j + i] = value[i], row.at[left + j + i] = at[i];
        }
    }
    for (int64_t ow = 0; ow < OW; ow += LANES) {
        const int many = tail(ow, OW);
        vf value = none;
        vi at = nowhere;
        for (int64_t j = 0; j < g.size[2]; ++j) {
            vf more = {};
            vi there = {};
            const int64_t from = ow * g.stride[2] + j * g.dilation[2];
            if (g.stride[2] == 1 && many == LANES) {
                more = load(row.values + from);
                if constexpr (FOLD == MAX_WITH_INDEX) __builtin_memcpy(&there, row.at + from, sizeof there);
            } else {
                for (int i = 0; i < LANES; ++i) {
                    const int64_t k = from + (i < many ? i : 0) * g.stride[2];
                    more[i] = row.values[k], there[i] = row.at[k];
                }
            }
            if constexpr (FOLD == MAX_WITH_INDEX) join_columns(value, at, more, there);
            else Joined<FOLD>::join(value, at, more, vi{});
        }
        if constexpr (FOLD == MEAN)
            for (int i = 0; i < many; ++i) value[i] *= g.scale(d, h, g.span(2, ow + i));
        put(ow, value, at, many);
    }
}

// One row of outputs of a picture whose channels lie side by side.
template <Fold FOLD, class T>
void pool_channels(const Window& g, T* to, int64_t* indices, const T* from, const Tensor& out, const Tensor& x, int64_t od,
                   int64_t oh) {
    const Span d = g.span(0, od), h = g.span(1, oh);
    const int64_t C = x.shape[1];
    for (int64_t ow = 0; ow < g.outputs[2]; ++ow) {
        const Span w = g.span(2, ow);
        for (int64_t c = 0; c < C; c += LANES) {
            const int many = tail(c, C);
            vf value = Joined<FOLD>::none();
            vi at = vi{} + NOWHERE;
            for (int64_t a = 0; a < d.count; ++a)
                for (int64_t b = 0; b < h.count; ++b)
                    for (int64_t j = 0; j < w.count; ++j) {
                        const int64_t y = d.first + a * g.dilation[0], z = h.first + b * g.dilation[1],
                                      k = w.first + j * g.dilation[2];
                        const vi there = vi{} + static_cast<int32_t>((y * g.picture[1] + z) * g.picture[2] + k);
                        const vf more = load(from + y * x.stride[2] + z * x.stride[3] + k * x.stride[4] + c, many);
                        Joined<FOLD>::join(value, at, more, there);
                    }
            if constexpr (FOLD == MEAN) value *= g.scale(d, h, w);
            const int64_t place = od * out.stride[2] + oh * out.stride[3] + ow * out.stride[4] + c;
            store(to + place, value, many);
            if constexpr (FOLD == MAX_WITH_INDEX)
                for (int i = 0; i < many; ++i) indices[place + i] = at[i];
        }
    }
}

template <Fold FOLD, class T>
void pool_of(Args args) {
    const Tensor out = args.tensor(0), x = args.tensor(2);
    const Window g(args, 3, out, x);
    int64_t* indices = FOLD == MAX_WITH_INDEX ? args.tensor(1).ptr<int64_t>() : nullptr;
    const bool channels = args.integer(17);
    const int64_t C = x.shape[1], groups = channels ? 1 : C, rows = g.planes_outputs();
    parallel(worth(args.integer(18), out.numel() * g.taps(), WINDOW_GRAIN), [&](int64_t ith, int64_t nth) {
        const Range range = slice(x.shape[0] * groups * rows, ith, nth);
        RowBuffer buffer(channels ? 0 : g.picture[2] + 2 * g.padding[2] + g.outputs[2] * g.stride[2] + g.reach(2));
        for (int64_t r = range.begin; r < range.end; ++r) {
            const int64_t row = r % rows, c = r / rows % groups, b = r / rows / groups;
            const int64_t od = row / g.outputs[1], oh = row % g.outputs[1];
            const T* from = x.ptr<const T>() + b * x.stride[0] + c * x.stride[1];
            const int64_t at = b * out.stride[0] + c * out.stride[1];
            if (channels) {
                pool_channels<FOLD, T>(g, out.ptr<T>() + at, indices ? indices + at : nullptr, from, out, x, od, oh);
                continue;
            }
            const int64_t place = at + od * out.stride[2] + oh * out.stride[3];
            pool_row<FOLD, T>(g, from, x.stride + 2, od, oh, buffer, [&](int64_t ow, vf value, vi where, int many) {
                if (out.stride[4] == 1) {
                    store(out.ptr<T>() + place + ow, value, many);
                } else {
                    for (int i = 0; i < many; ++i) out.ptr<T>()[place + (ow + i) * out.stride[4]] = from_float<T>(value[i]);
                }
                if constexpr (FOLD == MAX_WITH_INDEX)
                    for (int i = 0; i < many; ++i) indices[place + (ow + i) * out.stride[4]] = where[i];
            });
        }
    });
}

// pool(out, indices or None, x, size, stride, padding, dilation (three each), whole, divisor or 0, along channels, threads)
// x with unit stride along W, or along channels if out has it there too; indices lie as out
template <Fold FOLD>
void pool(Args args) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        if constexpr (FOLD == MEAN) {
            pool_of<MEAN, T>(args);
        } else if (args.none(1)) {
            pool_of<MAX, T>(args);
        } else {
            pool_of<MAX_WITH_INDEX, T>(args);
        }
    });
}

// ---------------------------------------------------------------- gradients

// What flows back into one plane, summed in float32 in the order of the outputs.
template <Fold FOLD, class T>
void pool_back(const Window& g, float* sums, const T* grad, int64_t grad_d, int64_t grad_h, const T* plane,
               const int64_t* step, RowBuffer& row) {
    const int64_t W = g.picture[2], left = g.padding[2];
    int64_t width = (g.outputs[2] - 1) * g.stride[2] + g.reach(2);
    if (width < left + W) width = left + W;
    for (int64_t i = 0; i < g.elements(); ++i) sums[i] = 0.0f;
    for (int64_t r = 0; r < g.planes_outputs(); ++r) {
        const int64_t od = r / g.outputs[1], oh = r % g.outputs[1];
        const T* flow = grad + od * grad_d + oh * grad_h;
        if constexpr (FOLD == MAX_WITH_INDEX) {
            pool_row<FOLD, T>(g, plane, step, od, oh, row, [&](int64_t ow, vf, vi at, int many) {
                for (int i = 0; i < many; ++i) sums[at[i]] += to_float(flow[ow + i]);
            });
            continue;
        }
        const Span d = g.span(0, od), h = g.span(1, oh);
        for (int64_t j = 0; j < width; ++j) row.values[j] = 0.0f;
        for (int64_t ow = 0; ow < g.outputs[2]; ++ow) {
            const float part = to_float(flow[ow]) * g.scale(d, h, g.span(2, ow));
            for (int64_t j = 0; j < g.size[2]; ++j) row.values[ow * g.stride[2] + j] += part;
        }
        for (int64_t a = 0; a < d.count; ++a)
            for (int64_t b = 0; b < h.count; ++b) {
                float* to = sums + ((d.first + a) * g.picture[1] + h.first + b) * W;
                for (int64_t j = 0; j < W; j += LANES) {
                    const int many = tail(j, W);
                    store(to + j, load(to + j, many) + load(row.values + left + j, many), many);
                }
            }
    }
}

// pool_backward(grad_x, grad, x or None, size, ..., whole, divisor or 0, threads): grad_x and grad contiguous
template <Fold FOLD>
void pool_backward(Args args) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Tensor to = args.tensor(0), grad = args.tensor(1), x = args.tensor(FOLD == MEAN ? 0 : 2);
        const Window g(args, 3, grad, to);
        const int64_t planes = to.shape[0] * to.shape[1], C = to.shape[1], n = g.elements();
        parallel(worth(args.integer(17), to.numel() + grad.numel() * g.taps(), WINDOW_GRAIN), [&](int64_t ith, int64_t nth) {
            const Range range = slice(planes, ith, nth);
            RowBuffer row(g.picture[2] + 2 * g.padding[2] + g.outputs[2] * g.stride[2] + g.reach(2)), plane(n);
            for (int64_t p = range.begin; p < range.end; ++p) {
                const T* from = x.ptr<const T>() + p / C * x.stride[0] + p % C * x.stride[1];
                const T* flow = grad.ptr<const T>() + p * g.planes_outputs() * g.outputs[2];
                pool_back<FOLD, T>(g, plane.values, flow, g.outputs[1] * g.outputs[2], g.outputs[2], from, x.stride + 2, row);
                T* out = to.ptr<T>() + p * n;
                for (int64_t i = 0; i < n; i += LANES) store(out + i, load(plane.values + i, tail(i, n)), tail(i, n));
            }
        });
    });
}

// ---------------------------------------------------------------- convolutions
//
// Convolution of [B, C, D, H, W] and its gradients on vectors of any width; what has fewer dimensions has one element along
// the first ones.
//
// It is a matrix product whose one factor is laid out a tile of positions at a time: what each place of a window finds at
// these positions, zeros outside. A transposed convolution, which is also the gradient of the input, differs from it in
// what is found: the outputs whose windows hold the position.


constexpr int64_t POSITIONS = 4 * LANES;     // of a tile
constexpr int64_t DEPTH = 256;               // taps that are laid out at a time
constexpr int64_t TAPS_AT_ONCE = 64;         // of a gradient of filters, that one thread adds up
constexpr int64_t CONVOLVE_GRAIN = 1 << 18;  // products that make a second thread worth waking

struct Sliding {
    int64_t size[3], stride[3], padding[3], dilation[3];
    Sliding(Args args, int first) {
        for (int i = 0; i < 3; ++i) {
            size[i] = args.integer(first + i), stride[i] = args.integer(first + 3 + i);
            padding[i] = args.integer(first + 6 + i), dilation[i] = args.integer(first + 9 + i);
        }
    }
    int64_t taps() const { return size[0] * size[1] * size[2]; }
    // Where along dimension d place k of a window finds position p's element; -1 outside of n.
    template <bool TRANSPOSED>
    int64_t find(int d, int64_t p, int64_t k, int64_t n) const {
        if constexpr (TRANSPOSED) {
            const int64_t far = p + padding[d] - k * dilation[d];
            if (far < 0 || far % stride[d]) return -1;
            const int64_t at = far / stride[d];
            return at < n ? at : -1;
        } else {
            const int64_t at = p * stride[d] - padding[d] + k * dilation[d];
            return at >= 0 && at < n ? at : -1;
        }
    }
};

// What the taps [begin, begin + count) of a group (channel by channel) find at `many` positions from `first` on, whose
// output has the sizes `outputs`: a row of POSITIONS each, zeros outside and behind.
template <bool TRANSPOSED, class T>
void lay_out(float* rows, const Sliding& g, const Tensor& x, int64_t b, int64_t channel, int64_t begin, int64_t count,
             const int64_t* outputs, int64_t first, int64_t many) {
    const int64_t taps = g.taps(), HW = outputs[1] * outputs[2];
    const T* data = x.ptr<const T>() + b * x.stride[0];
    for (int64_t t = 0; t < count; ++t) {
        float* row = rows + t * POSITIONS;
        const int64_t c = channel + (begin + t) / taps, tap = (begin + t) % taps;
        const int64_t i = tap / (g.size[1] * g.size[2]), j = tap / g.size[2] % g.size[1], k = tap % g.size[2];
        const T* plane = data + c * x.stride[1];
        int64_t p = 0;
        while (p < many) {  // as far as a line of outputs goes
            const int64_t place = first + p, w0 = place % outputs[2];
            int64_t run = outputs[2] - w0;
            run = run < many - p ? run : many - p;
            const int64_t d = g.find<TRANSPOSED>(0, place / HW, i, x.shape[2]);
            const int64_t h = g.find<TRANSPOSED>(1, place / outputs[2] % outputs[1], j, x.shape[3]);
            if (d < 0 || h < 0) {
                for (int64_t q = 0; q < run; ++q) row[p + q] = 0.0f;
            } else {
                const T* line = plane + d * x.stride[2] + h * x.stride[3];
                for (int64_t q = 0; q < run; ++q) {
                    const int64_t w = g.find<TRANSPOSED>(2, w0 + q, k, x.shape[4]);
                    row[p + q] = w < 0 ? 0.0f : to_float(line[w * x.stride[4]]);
                }
            }
            p += run;
        }
        for (; p < POSITIONS; ++p) row[p] = 0.0f;
    }
}

// sums[f] += filters[f] times the rows, for N filters that lie `apart` apart.
template <int N>
inline void multiply(float* sums, const float* filters, int64_t apart, const float* rows, int64_t depth) {
    vf total[N][4];
    for (int f = 0; f < N; ++f)
        for (int v = 0; v < 4; ++v) total[f][v] = load(sums + f * POSITIONS + v * LANES);
    for (int64_t t = 0; t < depth; ++t)
        for (int f = 0; f < N; ++f) {
            const vf factor = splat(filters[f * apart + t]);
            for (int v = 0; v < 4; ++v) total[f][v] = fma(factor, load(rows + t * POSITIONS + v * LANES), total[f][v]);
        }
    for (int f = 0; f < N; ++f)
        for (int v = 0; v < 4; ++v) store(sums + f * POSITIONS + v * LANES, total[f][v]);
}

template <bool TRANSPOSED, class T>
void convolve_of(Args args) {
    const Tensor out = args.tensor(0), x = args.tensor(1), filters = args.tensor(2);
    const Sliding g(args, 4);
    const int64_t groups = args.integer(16), many_filters = filters.shape[1], depth = filters.shape[2];
    const int64_t channels = x.shape[1] / groups, *outputs = out.shape + 2;
    const int64_t places = outputs[0] * outputs[1] * outputs[2], tiles = (places + POSITIONS - 1) / POSITIONS;
    const float* bias = args.none(3) ? nullptr : args.tensor(3).ptr<const float>();
    const int64_t work = out.numel() * depth;
    parallel(worth(args.integer(18), work, CONVOLVE_GRAIN), [&](int64_t ith, int64_t nth) {
        const Range range = slice(out.shape[0] * groups * tiles, ith, nth);
        if (range.begin == range.end) return;
        const int64_t held = DEPTH < depth ? DEPTH : depth;
        float* rows = static_cast<float*>(std::malloc(static_cast<size_t>((held + many_filters) * POSITIONS) * 4));
        float* sums = rows + held * POSITIONS;
        for (int64_t part = range.begin; part < range.end; ++part) {
            const int64_t first = part % tiles * POSITIONS, group = part / tiles % groups, b = part / tiles / groups;
            const int64_t many = places - first < POSITIONS ? places - first : POSITIONS;
            for (int64_t f = 0; f < many_filters; ++f)
                for (int64_t p = 0; p < POSITIONS; ++p) sums[f * POSITIONS + p] = bias ? bias[group * many_filters + f] : 0.0f;
            for (int64_t t = 0; t < depth; t += DEPTH) {
                const int64_t some = depth - t < DEPTH ? depth - t : DEPTH;
                lay_out<TRANSPOSED, T>(rows, g, x, b, group * channels, t, some, outputs, first, many);
                const float* from = filters.ptr<const float>() + group * many_filters * depth + t;
                int64_t f = 0;
                for (; f + 4 <= many_filters; f += 4) multiply<4>(sums + f * POSITIONS, from + f * depth, depth, rows, some);
                for (; f < many_filters; ++f) multiply<1>(sums + f * POSITIONS, from + f * depth, depth, rows, some);
            }
            for (int64_t f = 0; f < many_filters; ++f) {
                T* to = out.ptr<T>() + b * out.stride[0] + (group * many_filters + f) * out.stride[1];
                for (int64_t p = 0; p < many; ++p) {
                    const int64_t place = first + p, d = place / (outputs[1] * outputs[2]);
                    const int64_t h = place / outputs[2] % outputs[1], w = place % outputs[2];
                    to[d * out.stride[2] + h * out.stride[3] + w * out.stride[4]] = from_float<T>(sums[f * POSITIONS + p]);
                }
            }
        }
        std::free(rows);
    });
}

// convolve(out, x, filters [groups, filters, channels taps] float32, bias float32 or None, size, stride, padding, dilation
// (three each), groups, transposed, threads): filters and bias contiguous, out and x of any strides
inline void convolve(Args args) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        if (args.integer(17)) {
            convolve_of<true, T>(args);
        } else {
            convolve_of<false, T>(args);
        }
    });
}

// filters_gradient(out [groups, filters, channels taps] float32, grad, x, None, size, ..., groups, threads): grad [B, filters
// of all groups, D, H, W] contiguous, x of any strides. Positions are added up in order, whatever the number of threads.
inline void filters_gradient(Args args) {
    const Tensor out = args.tensor(0), grad = args.tensor(1), x = args.tensor(2);
    const Sliding g(args, 4);
    const int64_t groups = args.integer(16), many_filters = out.shape[1], depth = out.shape[2];
    const int64_t channels = x.shape[1] / groups, *outputs = grad.shape + 2;
    const int64_t places = outputs[0] * outputs[1] * outputs[2], blocks = (depth + TAPS_AT_ONCE - 1) / TAPS_AT_ONCE;
    with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel(worth(args.integer(17), grad.numel() * depth, CONVOLVE_GRAIN), [&](int64_t ith, int64_t nth) {
            const Range range = slice(groups * blocks, ith, nth);
            if (range.begin == range.end) return;
            const size_t held = static_cast<size_t>((TAPS_AT_ONCE + many_filters) * POSITIONS) * 4;
            float* rows = static_cast<float*>(std::malloc(held));
            float* flow = rows + TAPS_AT_ONCE * POSITIONS;
            for (int64_t part = range.begin; part < range.end; ++part) {
                const int64_t group = part / blocks, begin = part % blocks * TAPS_AT_ONCE;
                const int64_t some = depth - begin < TAPS_AT_ONCE ? depth - begin : TAPS_AT_ONCE;
                float* to = out.ptr<float>() + group * many_filters * depth + begin;
                for (int64_t f = 0; f < many_filters; ++f)
                    for (int64_t t = 0; t < some; ++t) to[f * depth + t] = 0.0f;
                for (int64_t b = 0; b < x.shape[0]; ++b)
                    for (int64_t first = 0; first < places; first += POSITIONS) {
                        const int64_t many = places - first < POSITIONS ? places - first : POSITIONS;
                        lay_out<false, T>(rows, g, x, b, group * channels, begin, some, outputs, first, many);
                        for (int64_t f = 0; f < many_filters; ++f) {
                            const T* from = grad.ptr<const T>() + ((b * groups + group) * many_filters + f) * places + first;
                            for (int64_t p = 0; p < POSITIONS; ++p) flow[f * POSITIONS + p] = p < many ? to_float(from[p]) : 0.0f;
                        }
                        for (int64_t f = 0; f < many_filters; ++f)
                            for (int64_t t = 0; t < some; ++t) {
                                vf sum = {};
                                for (int v = 0; v < 4; ++v)
                                    sum = fma(load(flow + f * POSITIONS + v * LANES), load(rows + t * POSITIONS + v * LANES), sum);
                                to[f * depth + t] += reduce_add(sum);
                            }
                    }
            }
            std::free(rows);
        });
    });
}

}  // namespace kw
