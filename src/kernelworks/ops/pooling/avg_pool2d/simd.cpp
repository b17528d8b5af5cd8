// avg_pool2d on vectors of any width. The rows of a window are added up first, over the whole width of the picture; then
// the columns of each window, of which only few are left. Channels that lie side by side are added up as vectors.
#include "simd.hpp"

namespace {

using kw::LANES;
using kw::vf;

constexpr int64_t WIDEST = 8192;      // columns of a picture: __init__.py declines more
constexpr int64_t GRAIN = 64 * 1024;  // elements that make a second thread worth waking

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
inline int part(int64_t from, int64_t n) { return static_cast<int>(least(LANES, n - from)); }

struct Span {  // what of a window lies in the picture
    int64_t begin, end;
    Span(int64_t at, int64_t stride, int64_t padding, int64_t size, int64_t picture)
        : begin(most(0, at * stride - padding)), end(least(picture, at * stride - padding + size)) {}
    int64_t count() const { return end - begin; }
};

template <class T>
void run(kw::Args args) {
    const kw::Tensor out = args.tensor(0), x = args.tensor(1);
    const int64_t KH = args.integer(2), KW = args.integer(3), down = args.integer(4), right = args.integer(5),
                  top = args.integer(6), left = args.integer(7);
    const bool whole = args.integer(8), channels = args.integer(9);
    const int64_t C = x.shape[1], H = x.shape[2], W = x.shape[3], OH = out.shape[2], OW = out.shape[3];
    auto scale = [&](const Span& h, const Span& w) {
        return 1.0f / static_cast<float>(whole ? KH * KW : h.count() * w.count());
    };
    kw::parallel(kw::worth(args.integer(10), x.numel(), GRAIN), [&](int64_t ith, int64_t nth) {
        const kw::Range rows = kw::slice(x.shape[0] * OH * (channels ? 1 : C), ith, nth);
        for (int64_t r = rows.begin; r < rows.end; ++r) {
            const int64_t oh = r % OH, c0 = channels ? 0 : r / OH % C, b = r / OH / (channels ? 1 : C);
            const T* from = x.ptr<const T>() + b * x.stride[0] + c0 * x.stride[1];
            T* to = out.ptr<T>() + b * out.stride[0] + c0 * out.stride[1] + oh * out.stride[2];
            const Span h(oh, down, top, KH, H);
            if (channels) {
                for (int64_t ow = 0; ow < OW; ++ow) {
                    const Span w(ow, right, left, KW, W);
                    for (int64_t c = 0; c < C; c += LANES) {
                        vf sum = {};
                        for (int64_t i = h.begin; i < h.end; ++i)
                            for (int64_t j = w.begin; j < w.end; ++j)
                                sum += kw::load(from + i * x.stride[2] + j * x.stride[3] + c, part(c, C));
                        kw::store(to + ow * out.stride[3] + c, sum * scale(h, w), part(c, C));
                    }
                }
                continue;
            }
            float sums[WIDEST + LANES];
            for (int64_t j = 0; j < W; j += LANES) {
                vf sum = {};
                for (int64_t i = h.begin; i < h.end; ++i) sum += kw::load(from + i * x.stride[2] + j, part(j, W));
                kw::store(sums + j, sum);
            }
            for (int64_t ow = 0; ow < OW; ++ow) {
                const Span w(ow, right, left, KW, W);
                float sum = 0.0f;
                for (int64_t j = w.begin; j < w.end; ++j) sum += sums[j];
                to[ow * out.stride[3]] = kw::from_float<T>(sum * scale(h, w));
            }
        }
    });
}

}  // namespace

// avg_pool2d(out, x, KH, KW, stride_h, stride_w, padding_h, padding_w, count_include_pad, along channels, threads)
// x with unit stride along W, or along channels if out has it there too
KW_EXPORT(avg_pool2d) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) { run<decltype(zero)>(args); });
}
