// fft, ifft and their gradients: transforms of complex lines by the butterflies of fft.hpp. A gradient is the transform
// with the other sign.
#include "fft.hpp"

namespace {

using namespace kw;
using namespace kw::fft;

// Lines of V. Both buffers hold N numbers. An inverse is the transform of numbers whose parts changed places.
template <bool INVERSE, class V>
void complex_lanes(const float* in, float* out, Lanes from, Lanes to, const Call& c, const Scratch& memory) {
    const int64_t used = least(c.n, c.N), kept = least(c.out_n, c.N);
    const Line<V> a = memory.line<V>(0, c.N), b = memory.line<V>(1, c.N);
    gather_complex<V>(in, c.stride, used, from, [&](int64_t k, Complex<V> z) { a.put(k, z); });
    for (int64_t k = used; k < c.N; ++k) a.put(k, {V{}, V{}});
    const Line<V> x =
        INVERSE ? transform(a.swapped(), b.swapped(), c.N, c.circle).swapped() : transform(a, b, c.N, c.circle);
    const V scale = splat_as(c.scale, V{});
    scatter_complex<V>(out, c.inner, kept, to, [&](int64_t k) { return x[k].scaled(scale); });
}

// One long row, cut to N1 N2 numbers.
template <bool INVERSE>
void complex_row(const float* in, float* out, const Call& c, const Scratch& memory, const Scratch& lanes) {
    const int64_t used = least(c.n, c.N), room = c.N + 16, kept = least(c.out_n, c.N);
    const Line<float> a = memory.line<float>(0, room), b = memory.line<float>(1, room), z = memory.line<float>(2, room);
    for (int64_t k = 0; k < used; ++k) a.re[k] = in[2 * k], a.im[k] = in[2 * k + 1];
    for (int64_t k = used; k < c.N; ++k) a.put(k, {0.0f, 0.0f});
    if (INVERSE) transform_cut(a.swapped(), b.swapped(), z.swapped(), c, lanes);
    else transform_cut(a, b, z, c, lanes);
    for (int64_t k = 0; k < kept; ++k) out[2 * k] = z.re[k] * c.scale, out[2 * k + 1] = z.im[k] * c.scale;
}

template <bool INVERSE>
void run_complex(Args args) {
    const Call c = call_of(args, true);
    const float* in = args.tensor(1).ptr<float>();
    float* out = args.tensor(0).ptr<float>();
    const int64_t lines = c.outer * c.inner;
    if (!lines) return;
    const bool columns = c.inner > 1, cut = !columns && c.N1 > 0;
    const bool single = !columns && !cut && c.outer < LANES / 4;
    const int64_t groups = (c.inner + LANES - 1) / LANES;
    const int64_t tasks = columns ? c.outer * groups : cut || single ? c.outer : (c.outer + LANES - 1) / LANES;
    const int64_t together = columns ? c.inner : cut || single ? 1 : LANES;
    kw::parallel(kw::worth(args.integer(16), lines * c.N * 8, GRAIN), [&](int64_t ith, int64_t nth) {
        const Range mine = slice(tasks, ith, nth);
        if (mine.begin == mine.end) return;
        const Scratch memory(cut || single ? 24 * (c.N + 16) : 16 * LANES * c.N);
        const Scratch lanes(cut ? 16 * LANES * (c.N1 > c.N2 ? c.N1 : c.N2) : 1);
        for (int64_t task = mine.begin; task < mine.end; ++task) {
            const int64_t o = columns ? task / groups : task * together, first = columns ? task % groups * LANES : 0;
            const float* p = in + 2 * (o * c.outer_stride + first);
            float* to = out + 2 * (o * c.out_n * c.inner + first);
            const int64_t left = columns ? c.inner - first : c.outer - o;
            const Lanes from{static_cast<int>(least(left, LANES)), columns, c.outer_stride};
            const Lanes into{from.count, columns, c.out_n};
            if (cut) complex_row<INVERSE>(p, to, c, memory, lanes);
            else if (single) complex_lanes<INVERSE, float>(p, to, from, into, c, memory);
            else complex_lanes<INVERSE, vf>(p, to, from, into, c, memory);
        }
    });
    // What a longer output holds beyond the transform's end: no number of it depends on the input there.
    for (int64_t o = 0; o < c.outer && c.N < c.out_n; ++o)
        std::memset(out + 2 * (o * c.out_n + c.N) * c.inner, 0, static_cast<size_t>(8 * (c.out_n - c.N) * c.inner));
}

}  // namespace

KW_EXPORT(fft) { run_complex<false>(args); }
KW_EXPORT(fft_backward) { run_complex<true>(args); }
KW_EXPORT(ifft) { run_complex<true>(args); }
KW_EXPORT(ifft_backward) { run_complex<false>(args); }
