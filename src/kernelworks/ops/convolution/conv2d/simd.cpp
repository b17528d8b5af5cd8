// conv2d on vectors of any width, one of three loops by shape and memory format:
//
// - depthwise, channels_last: vectors of channels, the taps of each position that lie in the picture
// - depthwise, else: rows of one channel with what is around them, cut by the stride, so that each tap is an unaligned load
// - all else: an implicit matrix product. The inputs of a tile of positions are laid out tap by tap (`gather`), and six
//   filters at a time meet them; the picture is never unfolded as a whole, and pictures of any strides are read in place.
#include "simd.hpp"

namespace {

using kw::LANES;
using kw::vf;

constexpr int64_t TILE = 64;          // positions of a tile of the product
constexpr int64_t DEPTH = 256;        // products that are added up before the sums are put down
constexpr int64_t FILTERS = 6;        // that meet a vector of positions at once
constexpr int64_t STEP = LANES == 16 ? 4 : 2;  // vectors of positions that they meet
constexpr int64_t MOST_TAPS = 1024;   // of a depthwise window: __init__.py declines more
constexpr int64_t ROOM = 16384;       // floats of rows that a depthwise strip holds
constexpr int64_t GRAIN = 1 << 18;    // products that make a second thread worth waking

inline int part(int64_t from, int64_t n) { return static_cast<int>(n - from < LANES ? n - from : LANES); }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

template <class T>
struct Given {
    kw::Tensor out, x;
    const float* taps;  // [O, C of a group, KH, KW], of depthwise channels_last [KH, KW, O]
    const T* bias;
    int64_t bias_step, KH, KW, down, right, top, left, apart_h, apart_w, groups;
    int64_t B, C, H, W, O, OH, OW, filters, channels;  // the last two of a group

    explicit Given(kw::Args args) : out(args.tensor(0)), x(args.tensor(1)), taps(args.tensor(2).ptr<const float>()) {
        bias = args.none(3) ? nullptr : args.tensor(3).ptr<const T>();
        bias_step = args.none(3) ? 0 : args.tensor(3).stride[0];
        KH = args.integer(4), KW = args.integer(5), down = args.integer(6), right = args.integer(7);
        top = args.integer(8), left = args.integer(9), apart_h = args.integer(10), apart_w = args.integer(11);
        groups = args.integer(12);
        B = x.shape[0], C = x.shape[1], H = x.shape[2], W = x.shape[3];
        O = out.shape[1], OH = out.shape[2], OW = out.shape[3], filters = O / groups, channels = C / groups;
    }
    const T* row(int64_t b, int64_t c, int64_t h) const {
        return x.ptr<const T>() + b * x.stride[0] + c * x.stride[1] + h * x.stride[2];
    }
    T* to(int64_t b, int64_t o, int64_t oh, int64_t ow) const {
        return out.ptr<T>() + b * out.stride[0] + o * out.stride[1] + oh * out.stride[2] + ow * out.stride[3];
    }
    float offset(int64_t o) const { return bias ? kw::to_float(bias[o * bias_step]) : 0.0f; }
};

// n elements `step` apart, widened.
template <class T>
void copy_wide(float* to, const T* from, int64_t n, int64_t step) {
    if (step != 1) {
        for (int64_t i = 0; i < n; ++i) to[i] = kw::to_float(from[i * step]);
        return;
    }
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) kw::store(to + i, kw::load(from + i));
    for (; i < n; ++i) to[i] = kw::to_float(from[i]);
}

inline void zero(float* to, int64_t n) { std::memset(to, 0, static_cast<size_t>(n) * sizeof(float)); }

// Elements first, first + stride, ... of a row of the picture, n of them; 0 outside of it.
template <class T>
void copy_row(float* to, const Given<T>& given, const T* row, int64_t first, int64_t stride, int64_t n) {
    const int64_t before = first < 0 ? least(n, (-first + stride - 1) / stride) : 0;
    const int64_t inside = first < given.W ? least(n, (given.W - first + stride - 1) / stride) : 0;
    zero(to, before);
    if (inside > before)
        copy_wide(to + before, row + (first + before * stride) * given.x.stride[3], inside - before,
                  stride * given.x.stride[3]);
    zero(to + most(before, inside), n - most(before, inside));
}

// ---------------------------------------------------------------- the product

// What taps [first, first + depth) of a group meet at positions [begin, begin + n), a row of TILE for each tap.
template <class T>
void gather(float* to, const Given<T>& given, int64_t b, int64_t group, int64_t first, int64_t depth, int64_t begin,
            int64_t n) {
    for (int64_t k = 0; k < depth; ++k, to += TILE) {
        const int64_t tap = first + k, c = group * given.channels + tap / (given.KH * given.KW);
        const int64_t i = tap / given.KW % given.KH, j = tap % given.KW;
        for (int64_t p = 0; p < n;) {
            const int64_t oh = (begin + p) / given.OW, ow = (begin + p) % given.OW, some = least(given.OW - ow, n - p);
            const int64_t h = oh * given.down - given.top + i * given.apart_h;
            if (h < 0 || h >= given.H) {
                zero(to + p, some);
            } else {
                copy_row(to + p, given, given.row(b, c, h), ow * given.right - given.left + j * given.apart_w,
                         given.right, some);
            }
            p += some;
        }
        if (n < TILE) zero(to + n, TILE - n);
    }
}

// Sums of so many filters at `vectors` vectors of positions, onto what is there.
template <int ROWS, int VECTORS>
void multiply(float* sums, const float* taps, int64_t taps_step, const float* inputs, int64_t depth) {
    vf total[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) total[r][v] = kw::load(sums + r * TILE + v * LANES);
    for (int64_t k = 0; k < depth; ++k) {
        vf in[VECTORS];
        for (int v = 0; v < VECTORS; ++v) in[v] = kw::load(inputs + k * TILE + v * LANES);
        for (int r = 0; r < ROWS; ++r) {
            const vf tap = kw::splat(taps[r * taps_step + k]);
            for (int v = 0; v < VECTORS; ++v) total[r][v] = kw::fma(tap, in[v], total[r][v]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) kw::store(sums + r * TILE + v * LANES, total[r][v]);
}

template <int VECTORS>
void multiply_rows(int64_t rows, float* sums, const float* taps, int64_t taps_step, const float* inputs, int64_t depth) {
    for (; rows >= FILTERS; rows -= FILTERS, sums += FILTERS * TILE, taps += FILTERS * taps_step)
        multiply<FILTERS, VECTORS>(sums, taps, taps_step, inputs, depth);
    if (rows >= 3) {
        multiply<3, VECTORS>(sums, taps, taps_step, inputs, depth);
        rows -= 3, sums += 3 * TILE, taps += 3 * taps_step;
    }
    for (; rows > 0; --rows, sums += TILE, taps += taps_step)
        multiply<1, VECTORS>(sums, taps, taps_step, inputs, depth);
}

// Sums of a tile, [filters of the group, TILE], where they belong.
template <class T>
void put(const Given<T>& given, const float* sums, int64_t b, int64_t group, int64_t begin, int64_t n) {
    const bool in_line = given.out.stride[3] == 1 && (given.OH == 1 || given.out.stride[2] == given.OW);
    const int64_t first = group * given.filters;
    if (in_line) {
        for (int64_t o = 0; o < given.filters; ++o, sums += TILE) {
            T* to = given.to(b, first + o, 0, 0) + begin;
            for (int64_t p = 0; p < n; p += LANES) kw::store(to + p, kw::load(sums + p), part(p, n));
        }
        return;
    }
    for (int64_t p = 0; p < n; ++p) {
        T* to = given.to(b, first, (begin + p) / given.OW, (begin + p) % given.OW);
        for (int64_t o = 0; o < given.filters; ++o)
            to[o * given.out.stride[1]] = kw::from_float<T>(sums[o * TILE + p]);
    }
}

template <class T>
void product(const Given<T>& given, float* sums, int64_t b, int64_t group, int64_t begin, int64_t n) {
    alignas(64) float inputs[DEPTH * TILE];
    const int64_t depth = given.channels * given.KH * given.KW, vectors = (n + LANES - 1) / LANES;
    for (int64_t o = 0; o < given.filters; ++o) {
        const vf offset = kw::splat(given.offset(group * given.filters + o));
        for (int64_t p = 0; p < TILE; p += LANES) kw::store(sums + o * TILE + p, offset);
    }
    const float* taps = given.taps + group * given.filters * depth;
    for (int64_t first = 0; first < depth; first += DEPTH) {
        const int64_t some = least(DEPTH, depth - first);
        gather(inputs, given, b, group, first, some, begin, n);
        int64_t v = 0;
        for (; v + STEP <= vectors; v += STEP)
            multiply_rows<STEP>(given.filters, sums + v * LANES, taps + first, depth, inputs + v * LANES, some);
        for (; v < vectors; ++v)
            multiply_rows<1>(given.filters, sums + v * LANES, taps + first, depth, inputs + v * LANES, some);
    }
    put(given, sums, b, group, begin, n);
}

// ---------------------------------------------------------------- depthwise

// Output rows [begin, end) of one channel. A row of the picture lies in `right` parts, of every right-th element each, so
// that a tap of neighbouring windows is a run of neighbours.
template <class T>
void depthwise_rows(const Given<T>& given, int64_t b, int64_t o, int64_t begin, int64_t end) {
    alignas(64) float rows[ROOM + LANES];
    const int64_t per = given.OW + (given.KW - 1) * given.apart_w / given.right + 1, wide = per * given.right;
    const int64_t high = (end - begin - 1) * given.down + (given.KH - 1) * given.apart_h + 1;
    const float *taps = given.taps + o * given.KH * given.KW, offset = given.offset(o);
    for (int64_t r = 0; r < high; ++r) {
        const int64_t h = begin * given.down - given.top + r;
        for (int64_t phase = 0; phase < given.right; ++phase) {
            float* to = rows + r * wide + phase * per;
            if (h < 0 || h >= given.H) {
                zero(to, per);
            } else {
                copy_row(to, given, given.row(b, o / given.filters, h), phase - given.left, given.right, per);
            }
        }
    }
    for (int64_t oh = begin; oh < end; ++oh) {
        const float* at = rows + (oh - begin) * given.down * wide;
        for (int64_t ow = 0; ow < given.OW; ow += LANES) {
            vf sum = kw::splat(offset);
            for (int64_t i = 0; i < given.KH; ++i)
                for (int64_t j = 0; j < given.KW; ++j) {
                    const int64_t from = j * given.apart_w;
                    const float* in = at + i * given.apart_h * wide + from % given.right * per + from / given.right + ow;
                    sum = kw::fma(kw::splat(taps[i * given.KW + j]), kw::load(in), sum);
                }
            const int n = part(ow, given.OW);
            T* to = given.to(b, o, oh, ow);
            if (given.out.stride[3] == 1) {
                kw::store(to, sum, n);
            } else {
                for (int k = 0; k < n; ++k) to[k * given.out.stride[3]] = kw::from_float<T>(sum[k]);
            }
        }
    }
}

template <class T>
void depthwise_channels(const Given<T>& given, int64_t b, int64_t oh) {
    struct Tap {
        const T* x;
        const float* tap;
    } taps[MOST_TAPS];
    for (int64_t ow = 0; ow < given.OW; ++ow) {
        int64_t count = 0;
        for (int64_t i = 0; i < given.KH; ++i)
            for (int64_t j = 0; j < given.KW; ++j) {
                const int64_t h = oh * given.down - given.top + i * given.apart_h;
                const int64_t w = ow * given.right - given.left + j * given.apart_w;
                if (h >= 0 && h < given.H && w >= 0 && w < given.W)
                    taps[count++] = Tap{given.row(b, 0, h) + w * given.x.stride[3], given.taps + (i * given.KW + j) * given.O};
            }
        T* to = given.to(b, 0, oh, ow);
        for (int64_t c = 0; c < given.C; c += LANES) {
            const int n = part(c, given.C);
            vf sum = {};
            if (given.bias) sum = kw::load(given.bias + c, n);
            if (n == LANES) {
                for (int64_t k = 0; k < count; ++k) sum = kw::fma(kw::load(taps[k].tap + c), kw::load(taps[k].x + c), sum);
            } else {
                for (int64_t k = 0; k < count; ++k)
                    sum = kw::fma(kw::load(taps[k].tap + c, n), kw::load(taps[k].x + c, n), sum);
            }
            kw::store(to + c, sum, n);
        }
    }
}

template <class T>
void run(kw::Args args) {
    const Given<T> given(args);
    const int64_t kind = args.integer(13), threads = args.integer(15);
    float* scratch = args.none(14) ? nullptr : args.tensor(14).ptr<float>();
    const int64_t work = given.out.numel() * given.channels * given.KH * given.KW;
    kw::parallel(kw::worth(threads, work, GRAIN), [&](int64_t ith, int64_t nth) {
        if (kind == 1) {
            const kw::Range rows = kw::slice(given.B * given.OH, ith, nth);
            for (int64_t i = rows.begin; i < rows.end; ++i) depthwise_channels(given, i / given.OH, i % given.OH);
        } else if (kind == 2) {
            const int64_t per = given.OW + (given.KW - 1) * given.apart_w / given.right + 1, wide = per * given.right;
            const int64_t held = ROOM / wide - (given.KH - 1) * given.apart_h - 1;
            const int64_t strip = held / given.down + 1, strips = (given.OH + strip - 1) / strip;
            const kw::Range units = kw::slice(given.B * given.O * strips, ith, nth);
            for (int64_t i = units.begin; i < units.end; ++i)
                depthwise_rows(given, i / strips / given.O, i / strips % given.O, i % strips * strip,
                               least(given.OH, (i % strips + 1) * strip));
        } else {
            const int64_t tiles = (given.OH * given.OW + TILE - 1) / TILE;
            const kw::Range units = kw::slice(given.B * given.groups * tiles, ith, nth);
            for (int64_t i = units.begin; i < units.end; ++i) {
                const int64_t begin = i % tiles * TILE, n = least(TILE, given.OH * given.OW - begin);
                product(given, scratch + ith * given.filters * TILE, i / tiles / given.groups, i / tiles % given.groups,
                        begin, n);
            }
        }
    });
}

}  // namespace

// conv2d(out, x, weight, bias, KH, KW, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, groups, kind,
//        scratch, threads); weight float32 and contiguous, of kind 1 (depthwise channels_last) [KH, KW, O] with bias
//        contiguous; kind 2 depthwise rows, 0 the product, with scratch of TILE floats for each thread and filter
KW_EXPORT(conv2d) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) { run<decltype(zero)>(args); });
}
