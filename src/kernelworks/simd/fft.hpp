// The discrete Fourier transform of real lines: real to complex and back, for lengths whose prime factors are 2, 3, 5, 7.
//
// All arithmetic is vertical: a lane is a line, and a butterfly is the same instructions for all lanes. Lines side by
// side in memory are lanes as they lie; rows are turned (transpose.hpp). A few long rows are cut: a row of N1 N2
// numbers is N2 lines of N1 and then N1 lines of N2, so that its own columns are the lanes. What is left is one line a
// "vector" of one lane, in the same code.
//
// A real line of even length N is N/2 complex numbers (x[2 j], x[2 j + 1]); the spectrum of the line follows from theirs
// by one more butterfly. One of odd length is taken for complex numbers.
//
// Twiddle factors come from Python (ops/spectral/rfft/plan.py), rounded once from float64.
#pragma once

#include <cstdlib>

#include "transpose.hpp"

namespace kw::fft {

constexpr int64_t GRAIN = 32 << 10;  // bytes that are worth another thread

inline float splat_as(float x, float) { return x; }
inline vf splat_as(float x, vf) { return splat(x); }
inline float multiply_add(float a, float b, float c) { return a * b + c; }
inline vf multiply_add(vf a, vf b, vf c) { return kw::fma(a, b, c); }

template <class V>
struct Complex {
    V re, im;
    Complex operator+(Complex o) const { return {re + o.re, im + o.im}; }
    Complex operator-(Complex o) const { return {re - o.re, im - o.im}; }
    Complex operator*(Complex w) const {
        return {multiply_add(re, w.re, -(im * w.im)), multiply_add(re, w.im, im * w.re)};
    }
    Complex scaled(V s) const { return {re * s, im * s}; }
    Complex times_minus_i() const { return {im, -re}; }
    Complex conjugate() const { return {re, -im}; }
};

// Complex numbers of many lanes, parts apart.
template <class V>
struct Line {
    V *re, *im;
    Complex<V> operator[](int64_t i) const { return {re[i], im[i]}; }
    void put(int64_t i, Complex<V> z) const { re[i] = z.re, im[i] = z.im; }
    Line swapped() const { return {im, re}; }  // the inverse transform is the transform of numbers whose parts changed places
};

// e^(-2 pi i k / n), k < n; parts apart.
struct Circle {
    const float *re, *im;
    int64_t n;
    template <class V>
    Complex<V> at(int64_t k) const {
        return {splat_as(re[k], V{}), splat_as(im[k], V{})};
    }
};

// Memory for one thread's lines, aligned for vectors.
class Scratch {
  public:
    explicit Scratch(int64_t bytes) : p_(static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64)))) {
        if (p_ == nullptr) std::abort();
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(p_); }
    template <class V>
    Line<V> line(int64_t which, int64_t n) const {
        V* first = reinterpret_cast<V*>(p_) + 2 * which * n;
        return {first, first + n};
    }

  private:
    char* p_;
};

// ---------------------------------------------------------------- butterflies

template <class V>
inline void butterfly(Complex<V> (&a)[2]) {
    const Complex<V> b = a[1];
    a[1] = a[0] - b;
    a[0] = a[0] + b;
}
template <class V>
inline void butterfly(Complex<V> (&a)[4]) {
    const Complex<V> s = a[0] + a[2], d = a[0] - a[2], t = a[1] + a[3], e = (a[1] - a[3]).times_minus_i();
    a[0] = s + t, a[1] = d + e, a[2] = s - t, a[3] = d - e;
}
// An odd prime: x[i] and x[R - i] meet cosines as their sum and sines as their difference.
template <int R, class V>
inline void butterfly_of_prime(Complex<V> (&a)[R], const float (&cosine)[R], const float (&sine)[R]) {
    constexpr int H = R / 2;
    Complex<V> sum[H], difference[H], out[R];
    out[0] = a[0];
    for (int i = 0; i < H; ++i) {
        sum[i] = a[i + 1] + a[R - 1 - i];
        difference[i] = (a[i + 1] - a[R - 1 - i]).times_minus_i();
        out[0] = out[0] + sum[i];
    }
    for (int k = 1; k <= H; ++k) {
        Complex<V> even = a[0], odd{};
        for (int i = 0; i < H; ++i) {
            const V c = splat_as(cosine[(i + 1) * k % R], V{}), s = splat_as(sine[(i + 1) * k % R], V{});
            even = {multiply_add(sum[i].re, c, even.re), multiply_add(sum[i].im, c, even.im)};
            odd = {multiply_add(difference[i].re, s, odd.re), multiply_add(difference[i].im, s, odd.im)};
        }
        out[k] = even + odd, out[R - k] = even - odd;
    }
    for (int k = 0; k < R; ++k) a[k] = out[k];
}
template <class V>
inline void butterfly(Complex<V> (&a)[3]) {
    constexpr float c[3] = {1, -0.5f, -0.5f}, s[3] = {0, 0.86602540378443865f, -0.86602540378443865f};
    butterfly_of_prime<3>(a, c, s);
}
template <class V>
inline void butterfly(Complex<V> (&a)[5]) {
    constexpr float c1 = 0.30901699437494742f, c2 = -0.80901699437494742f;
    constexpr float s1 = 0.95105651629515357f, s2 = 0.58778525229247313f;
    constexpr float c[5] = {1, c1, c2, c2, c1}, s[5] = {0, s1, s2, -s2, -s1};
    butterfly_of_prime<5>(a, c, s);
}
template <class V>
inline void butterfly(Complex<V> (&a)[7]) {
    constexpr float c1 = 0.62348980185873353f, c2 = -0.22252093395631440f, c3 = -0.90096886790241913f;
    constexpr float s1 = 0.78183148246802981f, s2 = 0.97492791218182361f, s3 = 0.43388373911755812f;
    constexpr float c[7] = {1, c1, c2, c3, c3, c2, c1}, s[7] = {0, s1, s2, s3, -s3, -s2, -s1};
    butterfly_of_prime<7>(a, c, s);
}

// Stockham's stage: of lines of n numbers, `step` of them side by side, to R as many of n / R. In order at the end.
template <int R, class V>
void stage(Line<V> from, Line<V> to, int64_t n, int64_t step, Circle circle) {
    const int64_t m = n / R, each = circle.n / n;
    for (int64_t p = 0; p < m; ++p) {
        Complex<V> w[R];
        for (int i = 1; i < R; ++i) w[i] = circle.at<V>(each * p * i);
        for (int64_t q = 0; q < step; ++q) {
            Complex<V> a[R];
            for (int i = 0; i < R; ++i) a[i] = from[q + step * (p + m * i)];
            butterfly(a);
            to.put(q + step * R * p, a[0]);
            for (int i = 1; i < R; ++i) to.put(q + step * (R * p + i), p ? a[i] * w[i] : a[i]);
        }
    }
}

// The transform of n numbers in `a`; `b` is as long. Returns the one of the two that holds it.
template <class V>
Line<V> transform(Line<V> a, Line<V> b, int64_t n, Circle circle) {
    for (int64_t left = n, step = 1; left > 1;) {
        int64_t radix = 0;
        if (left % 4 == 0) stage<4>(a, b, left, step, circle), radix = 4;
        else if (left % 2 == 0) stage<2>(a, b, left, step, circle), radix = 2;
        else if (left % 3 == 0) stage<3>(a, b, left, step, circle), radix = 3;
        else if (left % 5 == 0) stage<5>(a, b, left, step, circle), radix = 5;
        else stage<7>(a, b, left, step, circle), radix = 7;
        left /= radix, step *= radix;
        const Line<V> c = a;
        a = b, b = c;
    }
    return a;
}

// ---------------------------------------------------------------- a real line's spectrum

// What a call says: see `call_of`.
struct Call {
    int64_t outer, n, inner, outer_stride, stride;  // the input's lines (contract/row_layout.py)
    int64_t out_n;                                  // elements along a line of the output, [outer, out_n, inner]
    int64_t N;                                      // the transform's length
    float scale, middle;  // of the result; and a factor of what stands for two frequencies, all but the ends
    Circle circle, second, whole;  // of the complex length or its first factor, of its second factor, of N
    const float* twist;   // for a line that is cut: e^(-2 pi i k1 j2 / (N1 N2)), [N1, N2], parts apart
    int64_t N1, N2;       // 0 where a line is not cut
    int64_t M() const { return N % 2 ? N : N / 2; }
    int64_t K() const { return N / 2 + 1; }
    // How a frequency is scaled.
    float weight(int64_t k) const { return k == 0 || 2 * k == N ? scale : scale * middle; }
};

// From the transform Z of a line's complex numbers to its frequencies k < K, scaled.
template <class V>
void split(Line<V> z, Line<V> out, const Call& c) {
    const int64_t M = c.M();
    const V zero{};
    if (c.N % 2) {
        for (int64_t k = 0; k < c.K(); ++k) out.put(k, z[k].scaled(splat_as(c.weight(k), zero)));
        out.im[0] = zero;
        return;
    }
    const V ends = splat_as(c.scale, zero), half = splat_as(0.5f * c.scale * c.middle, zero);
    const Complex<V> first = z[0];
    out.put(0, {(first.re + first.im) * ends, zero});
    out.put(M, {(first.re - first.im) * ends, zero});
    for (int64_t k = 1; 2 * k <= M; ++k) {
        const Complex<V> a = z[k], b = z[M - k].conjugate();
        const Complex<V> even = a + b, odd = (a - b).times_minus_i() * c.whole.at<V>(k);
        out.put(M - k, (even - odd).conjugate().scaled(half));
        out.put(k, (even + odd).scaled(half));
    }
}

// The inverse, without scaling: from frequencies to complex numbers whose inverse transform is the line.
template <class V>
void join(Line<V> x, Line<V> out, const Call& c) {
    const int64_t M = c.M();
    const V zero{}, middle = splat_as(c.middle, zero);
    x.im[0] = zero;
    if (c.N % 2) {
        out.put(0, x[0]);
        for (int64_t k = 1; k < c.K(); ++k) {
            const Complex<V> a = x[k].scaled(middle);
            out.put(k, a), out.put(c.N - k, a.conjugate());
        }
        return;
    }
    x.im[M] = zero;
    out.put(0, {x.re[0] + x.re[M], x.re[0] - x.re[M]});
    for (int64_t k = 1; 2 * k <= M; ++k) {
        const Complex<V> a = x[k].scaled(middle), b = x[M - k].conjugate().scaled(middle);
        const Complex<V> even = a + b, odd = (a - b) * c.whole.at<V>(k).conjugate();
        out.put(M - k, Complex<V>{even.re + odd.im, odd.re - even.im});  // of the conjugates of both
        out.put(k, Complex<V>{even.re - odd.im, even.im + odd.re});
    }
}

// ---------------------------------------------------------------- lines in lanes

// The numbers of lanes that stand side by side in memory (`apart` is 1), or are rows.
struct Lanes {
    int count;
    bool columns;
    int64_t row_stride;  // of rows
};

// put(e, v) for elements e < n, `stride` apart where lanes are columns.
template <class V, class Put>
inline void gather(const float* p, int64_t stride, int64_t n, Lanes lanes, Put put) {
    if constexpr (sizeof(V) == sizeof(float)) {
        for (int64_t e = 0; e < n; ++e) put(e, p[e * stride]);
    } else if (lanes.columns) {
        for (int64_t e = 0; e < n; ++e)
            put(e, lanes.count == LANES ? load(p + e * stride) : load(p + e * stride, lanes.count));
    } else {
        load_rows(p, lanes.row_stride, lanes.count, n, put);
    }
}
template <class V, class Get>
inline void scatter(float* p, int64_t stride, int64_t n, Lanes lanes, Get get) {
    if constexpr (sizeof(V) == sizeof(float)) {
        for (int64_t e = 0; e < n; ++e) p[e * stride] = get(e);
    } else if (lanes.columns) {
        for (int64_t e = 0; e < n; ++e) {
            if (lanes.count == LANES) store(p + e * stride, get(e));
            else store(p + e * stride, get(e), lanes.count);
        }
    } else {
        store_rows(p, lanes.row_stride, lanes.count, n, get);
    }
}

// The same of complex numbers, whose parts lie side by side: put(i, z) and get(i).
template <class V, class Put>
inline void gather_complex(const float* p, int64_t stride, int64_t n, Lanes lanes, Put put) {
    if constexpr (sizeof(V) == sizeof(float)) {
        for (int64_t i = 0; i < n; ++i) put(i, Complex<V>{p[2 * i * stride], p[2 * i * stride + 1]});
    } else if (lanes.columns) {
        const int low = lanes.count * 2 < LANES ? lanes.count * 2 : LANES, high = lanes.count * 2 - low;
        for (int64_t i = 0; i < n; ++i) {
            const float* at = p + 2 * i * stride;
            const vf a = load(at, low), b = high ? load(at + LANES, high) : vf{};
            put(i, Complex<V>{even_lanes(a, b), odd_lanes(a, b)});
        }
    } else {
        vf real{};
        load_rows(p, 2 * lanes.row_stride, lanes.count, 2 * n, [&](int64_t e, vf v) {
            if (e % 2) put(e / 2, Complex<V>{real, v});
            else real = v;
        });
    }
}
template <class V, class Get>
inline void scatter_complex(float* p, int64_t stride, int64_t n, Lanes lanes, Get get) {
    if constexpr (sizeof(V) == sizeof(float)) {
        for (int64_t i = 0; i < n; ++i) {
            const Complex<V> z = get(i);
            p[2 * i * stride] = z.re, p[2 * i * stride + 1] = z.im;
        }
    } else if (lanes.columns) {
        const int low = lanes.count * 2 < LANES ? lanes.count * 2 : LANES, high = lanes.count * 2 - low;
        for (int64_t i = 0; i < n; ++i) {
            const Complex<V> z = get(i);
            float* at = p + 2 * i * stride;
            store(at, interleave_low(z.re, z.im), low);
            if (high) store(at + LANES, interleave_high(z.re, z.im), high);
        }
    } else {
        Complex<V> z{};
        store_rows(p, 2 * lanes.row_stride, lanes.count, 2 * n, [&](int64_t e) {
            if (e % 2) return z.im;
            z = get(e / 2);
            return z.re;
        });
    }
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Lines of V, from real numbers to frequencies. Both buffers hold N + 2 numbers.
template <class V>
void forward_lanes(const float* in, float* out, Lanes from, Lanes to, const Call& c, const Scratch& memory) {
    const int64_t used = least(c.n, c.N), M = c.M(), room = M + 1, kept = least(c.out_n, c.K());
    Line<V> a = memory.line<V>(0, room), b = memory.line<V>(1, room);
    if (c.N % 2) {
        gather<V>(in, c.stride, used, from, [&](int64_t e, V v) { a.put(e, {v, V{}}); });
        for (int64_t e = used; e < M; ++e) a.put(e, {V{}, V{}});
    } else {
        gather<V>(in, c.stride, used, from, [&](int64_t e, V v) { (e % 2 ? a.im : a.re)[e / 2] = v; });
        for (int64_t e = used; e < c.N; ++e) (e % 2 ? a.im : a.re)[e / 2] = V{};
    }
    const Line<V> z = transform(a, b, M, c.circle), x = z.re == a.re ? b : a;
    split(z, x, c);
    scatter_complex<V>(out, c.inner, kept, to, [&](int64_t k) { return x[k]; });
}

template <class V>
void inverse_lanes(const float* in, float* out, Lanes from, Lanes to, const Call& c, const Scratch& memory) {
    const int64_t used = least(c.n, c.K()), M = c.M(), room = M + 1, kept = least(c.out_n, c.N);
    Line<V> a = memory.line<V>(0, room), b = memory.line<V>(1, room);
    gather_complex<V>(in, c.stride, used, from, [&](int64_t k, Complex<V> z) { a.put(k, z); });
    for (int64_t k = used; k < c.K(); ++k) a.put(k, {V{}, V{}});
    join(a, b, c);
    const Line<V> x = transform(b.swapped(), a.swapped(), M, c.circle).swapped();
    const V scale = splat_as(c.scale, V{});
    if (c.N % 2) scatter<V>(out, c.inner, kept, to, [&](int64_t e) { return x.re[e] * scale; });
    else scatter<V>(out, c.inner, kept, to, [&](int64_t e) { return (e % 2 ? x.im : x.re)[e / 2] * scale; });
}

// ---------------------------------------------------------------- one long row

// The transform of M = N1 N2 numbers of one row, N1 and N2 multiples of LANES: into `to`. `work` holds as many.
inline void transform_cut(Line<float> from, Line<float> work, Line<float> to, const Call& c, const Scratch& lanes) {
    const int64_t N1 = c.N1, N2 = c.N2, M = N1 * N2, most = N1 > N2 ? N1 : N2;
    Line<vf> a = lanes.line<vf>(0, most), b = lanes.line<vf>(1, most);
    for (int64_t j = 0; j < N2; j += LANES) {
        for (int64_t i = 0; i < N1; ++i) a.put(i, {load(from.re + i * N2 + j), load(from.im + i * N2 + j)});
        const Line<vf> z = transform(a, b, N1, c.circle);
        for (int64_t k = 0; k < N1; ++k) {
            const int64_t at = k * N2 + j;
            const Complex<vf> w{load(c.twist + at), load(c.twist + M + at)}, turned = k ? z[k] * w : z[k];
            store(work.re + at, turned.re), store(work.im + at, turned.im);
        }
    }
    for (int64_t k = 0; k < N1; k += LANES) {
        load_rows(work.re + k * N2, N2, LANES, N2, [&](int64_t j, vf v) { a.re[j] = v; });
        load_rows(work.im + k * N2, N2, LANES, N2, [&](int64_t j, vf v) { a.im[j] = v; });
        const Line<vf> z = transform(a, b, N2, c.second);
        for (int64_t i = 0; i < N2; ++i) store(to.re + i * N1 + k, z.re[i]), store(to.im + i * N1 + k, z.im[i]);
    }
}

inline void forward_row(const float* in, float* out, const Call& c, const Scratch& memory, const Scratch& lanes) {
    const int64_t used = least(c.n, c.N), room = c.M() + 16, kept = least(c.out_n, c.K());
    Line<float> a = memory.line<float>(0, room), b = memory.line<float>(1, room), z = memory.line<float>(2, room);
    for (int64_t j = 0; j < used / 2; ++j) a.re[j] = in[2 * j], a.im[j] = in[2 * j + 1];
    for (int64_t e = used / 2 * 2; e < c.N; ++e) (e % 2 ? a.im : a.re)[e / 2] = e < used ? in[e] : 0.0f;
    transform_cut(a, b, z, c, lanes);
    split(z, a, c);
    for (int64_t k = 0; k < kept; ++k) out[2 * k] = a.re[k], out[2 * k + 1] = a.im[k];
}

inline void inverse_row(const float* in, float* out, const Call& c, const Scratch& memory, const Scratch& lanes) {
    const int64_t used = least(c.n, c.K()), room = c.M() + 16, kept = least(c.out_n, c.N);
    Line<float> a = memory.line<float>(0, room), b = memory.line<float>(1, room), z = memory.line<float>(2, room);
    for (int64_t k = 0; k < used; ++k) a.re[k] = in[2 * k], a.im[k] = in[2 * k + 1];
    for (int64_t k = used; k < c.K(); ++k) a.put(k, {0.0f, 0.0f});
    join(a, b, c);
    transform_cut(b.swapped(), a.swapped(), z.swapped(), c, lanes);
    for (int64_t j = 0; j < kept / 2; ++j) out[2 * j] = z.re[j] * c.scale, out[2 * j + 1] = z.im[j] * c.scale;
    if (kept % 2) out[kept - 1] = z.re[kept / 2] * c.scale;
}

// ---------------------------------------------------------------- calls

// output, input, outer, n, inner, outer stride, stride, N, scale, middle, circle, second, whole, twist, N1, N2, threads.
// Complex tensors come as their parts; strides are in numbers. Tables are [2, n].
inline Call call_of(Args args, bool to_complex) {
    auto circle = [&](int i) {
        const Tensor t = args.tensor(i);
        return Circle{t.ptr<float>(), t.ptr<float>() + t.shape[1], t.shape[1]};
    };
    Call c{};
    c.outer = args.integer(2), c.n = args.integer(3), c.inner = args.integer(4);
    c.outer_stride = args.integer(5), c.stride = args.integer(6), c.N = args.integer(7);
    c.scale = static_cast<float>(args.real(8)), c.middle = static_cast<float>(args.real(9));
    c.circle = circle(10), c.second = circle(11), c.whole = circle(12), c.twist = args.tensor(13).ptr<float>();
    c.N1 = args.integer(14), c.N2 = args.integer(15);
    const int64_t lines = c.outer * c.inner;
    c.out_n = lines ? args.tensor(0).numel() / (to_complex ? 2 : 1) / lines : 0;
    return c;
}

template <bool TO_COMPLEX>
void run(Args args) {
    const Call c = call_of(args, TO_COMPLEX);
    const float* in = args.tensor(1).ptr<float>();
    float* out = args.tensor(0).ptr<float>();
    const int64_t lines = c.outer * c.inner, known = TO_COMPLEX ? c.K() : c.N;
    constexpr int64_t IN = TO_COMPLEX ? 1 : 2, OUT = TO_COMPLEX ? 2 : 1;
    if (!lines) return;
    const bool columns = c.inner > 1, cut = !columns && c.N1 > 0;
    const bool single = !columns && !cut && c.outer < LANES / 4;
    const int64_t groups = (c.inner + LANES - 1) / LANES;
    const int64_t tasks = columns ? c.outer * groups : cut || single ? c.outer : (c.outer + LANES - 1) / LANES;
    const int64_t together = columns ? c.inner : cut || single ? 1 : LANES;
    kw::parallel(kw::worth(args.integer(16), lines * c.N * 4, GRAIN), [&](int64_t ith, int64_t nth) {
        const Range mine = slice(tasks, ith, nth);
        if (mine.begin == mine.end) return;
        const Scratch memory(cut || single ? 24 * (c.M() + 16) : 16 * LANES * (c.M() + 1));
        const Scratch lanes(cut ? 16 * LANES * (c.N1 > c.N2 ? c.N1 : c.N2) : 1);
        for (int64_t task = mine.begin; task < mine.end; ++task) {
            const int64_t o = columns ? task / groups : task * together, first = columns ? task % groups * LANES : 0;
            const float* p = in + IN * (o * c.outer_stride + first);
            float* to = out + OUT * (o * c.out_n * c.inner + first);
            const int64_t left = columns ? c.inner - first : c.outer - o;
            const Lanes from{static_cast<int>(least(left, LANES)), columns, c.outer_stride};
            const Lanes into{from.count, columns, c.out_n};
            if (cut) {
                if constexpr (TO_COMPLEX) forward_row(p, to, c, memory, lanes);
                else inverse_row(p, to, c, memory, lanes);
            } else if (single) {
                if constexpr (TO_COMPLEX) forward_lanes<float>(p, to, from, into, c, memory);
                else inverse_lanes<float>(p, to, from, into, c, memory);
            } else {
                if constexpr (TO_COMPLEX) forward_lanes<vf>(p, to, from, into, c, memory);
                else inverse_lanes<vf>(p, to, from, into, c, memory);
            }
        }
    });
    // What a longer output holds beyond the transform's end: no number of it depends on the input there.
    for (int64_t o = 0; o < c.outer && known < c.out_n; ++o)
        std::memset(out + OUT * (o * c.out_n + known) * c.inner, 0, static_cast<size_t>(4 * OUT * (c.out_n - known) * c.inner));
}

}  // namespace kw::fft
