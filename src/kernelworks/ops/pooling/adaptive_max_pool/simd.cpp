// The largest elements of windows that follow from the sizes, of [B, C, D, H, W], in portable vectors. The rows of a window
// are joined as vectors over the whole width, then the columns of each window; if channels lie side by side, they are the
// vectors. Ties are those of window.hpp.
#include "window.hpp"

namespace {

using namespace kw;

struct Part {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
};

struct Sizes {
    int64_t n[3], outputs[3];
    Sizes(const Tensor& picture, const Tensor& out) {
        for (int i = 0; i < 3; ++i) n[i] = picture.shape[2 + i], outputs[i] = out.shape[2 + i];
    }
    Part part(int d, int64_t o) const { return Part{o * n[d] / outputs[d], ((o + 1) * n[d] + outputs[d] - 1) / outputs[d]}; }
    int32_t index(int64_t d, int64_t h, int64_t w) const { return static_cast<int32_t>((d * n[1] + h) * n[2] + w); }
    int64_t rows() const { return outputs[0] * outputs[1]; }
};

// The largest of joined columns, and its index.
template <Fold FOLD>
struct Largest {
    float value;
    int32_t at;
    Largest(const RowBuffer& row, Part w) {
        vf best = Joined<FOLD>::none();
        vi found = vi{} + NOWHERE;
        int64_t j = w.begin;
        for (; j + LANES <= w.end; j += LANES) {
            vi there = {};
            if constexpr (FOLD == MAX_WITH_INDEX) __builtin_memcpy(&there, row.at + j, sizeof there);
            join(best, found, load(row.values + j), there);
        }
        vf last = Joined<FOLD>::none();
        vi behind = vi{} + NOWHERE;
        for (int i = 0; j < w.end; ++i, ++j) last[i] = row.values[j], behind[i] = row.at[j];
        join(best, found, last, behind);
        value = best[0], at = found[0];
        for (int i = 1; i < LANES; ++i) {
            const bool nan = best[i] != best[i], was = value != value;
            if ((nan && (!was || found[i] > at)) || best[i] > value || (best[i] == value && found[i] < at))
                value = best[i], at = found[i];
        }
    }
    static void join(vf& value, vi& at, vf more, vi there) {
        if constexpr (FOLD == MAX_WITH_INDEX) join_columns(value, at, more, there);
        else Joined<FOLD>::join(value, at, more, there);
    }
};

// put(output, value, index) for each output of a row, of a plane whose rows have unit stride.
template <Fold FOLD, class T, class Put>
void largest_row(const Sizes& s, const T* plane, const int64_t* step, int64_t od, int64_t oh, RowBuffer& row, Put put) {
    const Part d = s.part(0, od), h = s.part(1, oh);
    const int64_t W = s.n[2];
    for (int64_t j = 0; j < W; j += LANES) {
        vf value = Joined<FOLD>::none();
        vi at = vi{} + NOWHERE;
        for (int64_t a = d.begin; a < d.end; ++a)
            for (int64_t b = h.begin; b < h.end; ++b)
                Joined<FOLD>::join(value, at, load(plane + a * step[0] + b * step[1] + j, tail(j, W)),
                                   lane_index() + s.index(a, b, j));
        store(row.values + j, value);  // with room for a whole vector behind the last
        __builtin_memcpy(row.at + j, &at, sizeof at);
    }
    for (int64_t ow = 0; ow < s.outputs[2]; ++ow) {
        const Largest<FOLD> found(row, s.part(2, ow));
        put(ow, found.value, found.at);
    }
}

template <Fold FOLD, class T>
void largest_channels(const Sizes& s, T* to, int64_t* indices, int64_t step, const Tensor& x, const T* from, Part d, Part h) {
    const int64_t C = x.shape[1];
    for (int64_t ow = 0; ow < s.outputs[2]; ++ow) {
        const Part w = s.part(2, ow);
        for (int64_t c = 0; c < C; c += LANES) {
            vf value = Joined<FOLD>::none();
            vi at = vi{} + NOWHERE;
            for (int64_t a = d.begin; a < d.end; ++a)
                for (int64_t b = h.begin; b < h.end; ++b)
                    for (int64_t j = w.begin; j < w.end; ++j)
                        Joined<FOLD>::join(value, at,
                                           load(from + a * x.stride[2] + b * x.stride[3] + j * x.stride[4] + c, tail(c, C)),
                                           vi{} + s.index(a, b, j));
            store(to + ow * step + c, value, tail(c, C));
            if constexpr (FOLD == MAX_WITH_INDEX)
                for (int i = 0; i < tail(c, C); ++i) indices[ow * step + c + i] = at[i];
        }
    }
}

template <Fold FOLD, class T>
void largest_of(Args args) {
    const Tensor out = args.tensor(0), x = args.tensor(2);
    const Sizes s(x, out);
    int64_t* indices = FOLD == MAX_WITH_INDEX ? args.tensor(1).ptr<int64_t>() : nullptr;
    const bool channels = args.integer(3) != 0;
    const int64_t groups = channels ? 1 : x.shape[1], rows = s.rows();
    parallel(worth(args.integer(4), x.numel(), WINDOW_GRAIN), [&](int64_t ith, int64_t nth) {
        const Range range = slice(x.shape[0] * groups * rows, ith, nth);
        RowBuffer row(channels ? 0 : s.n[2]);
        for (int64_t r = range.begin; r < range.end; ++r) {
            const int64_t c = r / rows % groups, b = r / rows / groups, oh = r % s.outputs[1];
            const int64_t od = r / s.outputs[1] % s.outputs[0];
            const T* from = x.ptr<const T>() + b * x.stride[0] + c * x.stride[1];
            const int64_t at = b * out.stride[0] + c * out.stride[1] + od * out.stride[2] + oh * out.stride[3];
            T* to = out.ptr<T>() + at;
            int64_t* places = indices ? indices + at : nullptr;
            if (channels) {
                largest_channels<FOLD, T>(s, to, places, out.stride[4], x, from, s.part(0, od), s.part(1, oh));
                continue;
            }
            largest_row<FOLD, T>(s, from, x.stride + 2, od, oh, row, [&](int64_t ow, float value, int32_t found) {
                to[ow * out.stride[4]] = from_float<T>(value);
                if constexpr (FOLD == MAX_WITH_INDEX) places[ow * out.stride[4]] = found;
            });
        }
    });
}

}  // namespace

// out; indices, which lie as out, or None; x with unit stride along W, or along channels if out has it there too; along
// channels, threads
KW_EXPORT(adaptive_max_pool) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        if (args.none(1)) largest_of<MAX, T>(args);
        else largest_of<MAX_WITH_INDEX, T>(args);
    });
}

// grad_x and grad, both contiguous; x with unit stride along W; threads. Sums are of float32, in the order of the outputs.
KW_EXPORT(adaptive_max_pool_backward) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Tensor to = args.tensor(0), grad = args.tensor(1), x = args.tensor(2);
        const Sizes s(x, grad);
        const int64_t elements = s.n[0] * s.n[1] * s.n[2], C = x.shape[1];
        parallel(worth(args.integer(3), x.numel(), WINDOW_GRAIN), [&](int64_t ith, int64_t nth) {
            const Range range = slice(x.shape[0] * C, ith, nth);
            RowBuffer row(s.n[2]), sums(elements);
            for (int64_t plane = range.begin; plane < range.end; ++plane) {
                const T* from = x.ptr<const T>() + plane / C * x.stride[0] + plane % C * x.stride[1];
                const T* flow = grad.ptr<const T>() + plane * s.rows() * s.outputs[2];
                for (int64_t i = 0; i < elements; ++i) sums.values[i] = 0.0f;
                for (int64_t r = 0; r < s.rows(); ++r, flow += s.outputs[2])
                    largest_row<MAX_WITH_INDEX, T>(s, from, x.stride + 2, r / s.outputs[1], r % s.outputs[1], row,
                                                   [&](int64_t ow, float, int32_t at) { sums.values[at] += to_float(flow[ow]); });
                T* out = to.ptr<T>() + plane * elements;
                for (int64_t i = 0; i < elements; i += LANES)
                    store(out + i, load(sums.values + i, tail(i, elements)), tail(i, elements));
            }
        });
    });
}
