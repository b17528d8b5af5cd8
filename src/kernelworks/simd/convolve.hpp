// Convolution of [B, C, D, H, W] and its gradients on vectors of any width; what has fewer dimensions has one element along
// the first ones.
//
// It is a matrix product whose one factor is laid out a tile of positions at a time: what each place of a window finds at
// these positions, zeros outside. A transposed convolution, which is also the gradient of the input, differs from it in
// what is found: the outputs whose windows hold the position.
#pragma once

#include <cstdlib>

#include "simd.hpp"

namespace kw {

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
