// layer_norm over portable vectors, three passes over a row that stays in the L1 cache after the first.
//
//   1. a float32 number near the mean (the mean itself, rounded);
//   2. sums of the deviations d = x - centre and of d^2: the first corrects the mean, so the variance and the output
//      lose nothing to a mean that is large beside the spread (x - centre is rounded relative to itself);
//   3. output = ((d - correction) rstd) weight + bias.
//
// Sums run in 4 LANES float32 accumulators over at most PIECE elements and are carried on in float64, so the error
// does not grow with the row. A row whose variance leaves the range where float32 carries it (huge, tiny, inf, NaN,
// or a mean so large that the centre is off by a good part of the spread) is done in float64, element by element.
#include "simd.hpp"
#include "stream.hpp"

namespace {

using namespace kw;

constexpr int64_t PIECE = 4096;
constexpr int64_t GRAIN = 32 << 10;        // bytes that are worth another thread
constexpr int64_t STREAM_BYTES = 8 << 20;  // outputs from here on are written past the caches
constexpr int64_t BLOCK = 128;             // rows summed in float32 before the sum moves on to float64

struct Moments {
    double mean, rstd;
    bool exact;  // float32 does not carry this row: work in float64
};

template <class T>
double exact_at(const T* x, int64_t j, double otherwise) {
    return x ? static_cast<double>(to_float(x[j])) : otherwise;
}

template <class T>
Moments exact_moments(const T* x, int64_t n, double eps) {
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < n; ++j) sum += to_float(x[j]);
    const double mean = sum / static_cast<double>(n);
    for (int64_t j = 0; j < n; ++j) squares += (to_float(x[j]) - mean) * (to_float(x[j]) - mean);
    return {mean, 1.0 / std::sqrt(squares / static_cast<double>(n) + eps), true};
}

template <class T>
double piece_sum(const T* x, int64_t n) {
    vf a = {}, b = {}, c = {}, d = {};
    int64_t j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES) {
        a += load(x + j);
        b += load(x + j + LANES);
        c += load(x + j + 2 * LANES);
        d += load(x + j + 3 * LANES);
    }
    for (; j + LANES <= n; j += LANES) a += load(x + j);
    if (j < n) b += load(x + j, static_cast<int>(n - j));
    return reduce_add((a + b) + (c + d));
}

struct Deviations {
    double sum = 0, squares = 0;
};

// The elements at `ahead` (as many as there are here) are on their way into the cache afterwards.
template <class T>
void piece_deviations(Deviations& to, const T* x, int64_t n, float centre, const T* ahead) {
    vf s[4] = {}, q[4] = {};
    auto add = [&](int lane, vf d) {
        s[lane] += d;
        q[lane] = fma(d, d, q[lane]);
    };
    int64_t j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES) {
        for (int64_t byte = 0; byte < 4 * LANES * static_cast<int64_t>(sizeof(T)); byte += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(ahead + j) + byte);
        add(0, load(x + j) - centre);
        add(1, load(x + j + LANES) - centre);
        add(2, load(x + j + 2 * LANES) - centre);
        add(3, load(x + j + 3 * LANES) - centre);
    }
    for (; j + LANES <= n; j += LANES) add(0, load(x + j) - centre);
    if (j < n) {
        const int k = static_cast<int>(n - j);
        add(1, keep_first(load(x + j, k) - centre, k, 0.0f));
    }
    to.sum += reduce_add((s[0] + s[1]) + (s[2] + s[3]));
    to.squares += reduce_add((q[0] + q[1]) + (q[2] + q[3]));
}

template <class T>
Moments moments(const T* x, int64_t n, double eps, const T* next) {
    const double inverse = 1.0 / static_cast<double>(n);
    double sum = 0;
    for (int64_t j = 0; j < n; j += PIECE) sum += piece_sum(x + j, n - j < PIECE ? n - j : PIECE);
    const float centre = static_cast<float>(sum * inverse);
    Deviations d;
    for (int64_t j = 0; j < n; j += PIECE)
        piece_deviations(d, x + j, n - j < PIECE ? n - j : PIECE, centre, next + j);
    const double correction = d.sum * inverse, off = correction * correction;
    const double spread = d.squares * inverse - off + eps;
    if (spread > 0x1p-90 && spread < 0x1p100 && off <= spread * 0x1p-6)  // NaN fails too
        return {static_cast<double>(centre) + correction, 1.0 / std::sqrt(spread), false};
    return exact_moments(x, n, eps);
}

// (x - mean) rstd for a row of moments that float32 carries. The mean as two float32 numbers: x - centre comes first.
struct Normalise {
    float centre, rstd, shift;

    explicit Normalise(const Moments& m)
        : centre(static_cast<float>(m.mean)), rstd(static_cast<float>(m.rstd)),
          shift(static_cast<float>((static_cast<double>(centre) - m.mean) * m.rstd)) {}
    vf operator()(vf x) const { return fma(x - centre, splat(rstd), splat(shift)); }
};

template <bool STREAM, bool WEIGHT, bool BIAS, class T>
void write_normalised(T* out, const T* x, const T* weight, const T* bias, int64_t n, const Normalise& z) {
    auto affine = [](vf v, vf w, vf b) {
        if constexpr (WEIGHT && BIAS) return fma(v, w, b);
        else if constexpr (WEIGHT) return v * w;
        else if constexpr (BIAS) return v + b;
        else return v;
    };
    write_row<STREAM>(
        out, n,
        [&](int64_t j) {
            return affine(z(load(x + j)), WEIGHT ? load(weight + j) : vf{}, BIAS ? load(bias + j) : vf{});
        },
        [&](int64_t j, int k) {
            return affine(z(load(x + j, k)), WEIGHT ? load(weight + j, k) : vf{}, BIAS ? load(bias + j, k) : vf{});
        });
}

template <bool STREAM, class T>
void forward_row(T* out, const T* x, const T* weight, const T* bias, int64_t n, double eps, const T* next) {
    const Moments m = moments(x, n, eps, next);
    if (m.exact) {
        for (int64_t j = 0; j < n; ++j) {
            const double z = (to_float(x[j]) - m.mean) * m.rstd;
            out[j] = from_float<T>(static_cast<float>(z * exact_at(weight, j, 1.0) + exact_at(bias, j, 0.0)));
        }
        return;
    }
    const Normalise z(m);
    if (weight && bias) write_normalised<STREAM, true, true>(out, x, weight, bias, n, z);
    else if (weight) write_normalised<STREAM, true, false>(out, x, weight, bias, n, z);
    else if (bias) write_normalised<STREAM, false, true>(out, x, weight, bias, n, z);
    else write_normalised<STREAM, false, false>(out, x, weight, bias, n, z);
}

template <bool STREAM, class T>
void forward(Rows<T> out, Rows<T> x, const T* weight, const T* bias, double eps, int64_t threads) {
    parallel(threads, [&](int64_t ith, int64_t nth) {
        const Range r = slice(x.M, ith, nth);
        for (int64_t i = r.begin; i < r.end; ++i)
            forward_row<STREAM>(out[i], x[i], weight, bias, x.N, eps, x[i + 1 < r.end ? i + 1 : i]);
        if constexpr (STREAM) stream_end();
    });
}

// ---------------------------------------------------------------- backward

// One row: grad_x = rstd (gw - mean(gw) - z mean(gw z)), gw = grad weight, z = (x - mean) rstd.
template <class T>
void backward_row(T* grad_x, const T* grad, const T* x, const T* weight, int64_t n, const Moments& m) {
    const double inverse = 1.0 / static_cast<double>(n);
    double mean_gw = 0, mean_gwz = 0;
    if (m.exact) {
        auto gw = [&](int64_t j) { return to_float(grad[j]) * exact_at(weight, j, 1.0); };
        auto z = [&](int64_t j) { return (to_float(x[j]) - m.mean) * m.rstd; };
        for (int64_t j = 0; j < n; ++j) {
            mean_gw += gw(j) * inverse;
            mean_gwz += gw(j) * z(j) * inverse;
        }
        for (int64_t j = 0; j < n; ++j)
            grad_x[j] = from_float<T>(static_cast<float>(m.rstd * (gw(j) - mean_gw - z(j) * mean_gwz)));
        return;
    }
    const Normalise z(m);
    auto gw = [&](int64_t j, int k) { return weight ? load(grad + j, k) * load(weight + j, k) : load(grad + j, k); };
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        const int64_t end = n - begin < PIECE ? n : begin + PIECE;
        vf sum[2] = {}, sum_z[2] = {};
        int which = 0;
        for (int64_t j = begin; j < end; j += LANES, which ^= 1) {
            const int k = end - j < LANES ? static_cast<int>(end - j) : LANES;
            const vf g = gw(j, k);
            sum[which] += g;
            sum_z[which] = fma(g, z(load(x + j, k)), sum_z[which]);
        }
        mean_gw += reduce_add(sum[0] + sum[1]) * inverse;
        mean_gwz += reduce_add(sum_z[0] + sum_z[1]) * inverse;
    }
    const float a = static_cast<float>(mean_gw), b = static_cast<float>(mean_gwz);
    for (int64_t j = 0; j < n; j += LANES) {
        const int k = n - j < LANES ? static_cast<int>(n - j) : LANES;
        store(grad_x + j, (gw(j, k) - a - z(load(x + j, k)) * b) * z.rstd, k);
    }
}

// One strip of at most LANES columns: grad_weight = sum over rows of grad z, grad_bias = sum of grad. Float32 within
// BLOCK rows, float64 between, so the number of rows does not enter the error.
template <class T>
void backward_strip(T* grad_weight, T* grad_bias, Rows<T> grad, Rows<T> x, const double* stats, int64_t j, int k) {
    double weight_sum[LANES] = {}, bias_sum[LANES] = {};
    for (int64_t begin = 0; begin < x.M; begin += BLOCK) {
        const int64_t end = x.M - begin < BLOCK ? x.M : begin + BLOCK;
        vf w = {}, b = {};
        for (int64_t i = begin; i < end; ++i) {
            const Moments m{stats[3 * i], stats[3 * i + 1], stats[3 * i + 2] != 0.0};
            const vf g = load(grad[i] + j, k);
            b += g;
            if (!m.exact) {
                w = fma(g, Normalise(m)(load(x[i] + j, k)), w);
                continue;
            }
            for (int lane = 0; lane < k; ++lane)
                weight_sum[lane] += to_float(grad[i][j + lane]) * ((to_float(x[i][j + lane]) - m.mean) * m.rstd);
        }
        for (int lane = 0; lane < k; ++lane) {
            weight_sum[lane] += w[lane];
            bias_sum[lane] += b[lane];
        }
    }
    for (int lane = 0; lane < k; ++lane) {
        if (grad_weight) grad_weight[j + lane] = from_float<T>(static_cast<float>(weight_sum[lane]));
        if (grad_bias) grad_bias[j + lane] = from_float<T>(static_cast<float>(bias_sum[lane]));
    }
}

}  // namespace

// output, x, weight or None, bias or None, eps, threads
KW_EXPORT(layer_norm) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Rows<T> out(args.tensor(0)), x(args.tensor(1));
        const T* weight = args.none(2) ? nullptr : args.tensor(2).ptr<T>();
        const T* bias = args.none(3) ? nullptr : args.tensor(3).ptr<T>();
        const int64_t bytes = x.M * x.N * static_cast<int64_t>(sizeof(T));
        const int64_t threads = worth(args.integer(5), 2 * bytes, GRAIN);
        if (bytes >= STREAM_BYTES) forward<true>(out, x, weight, bias, args.real(4), threads);
        else forward<false>(out, x, weight, bias, args.real(4), threads);
    });
}

// grad_x, grad_weight or None, grad_bias or None, stats [M, 3] float64 (written: mean, rstd, is it an exact row),
// grad_output, x, weight or None, eps, threads
KW_EXPORT(layer_norm_backward) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        const Rows<T> grad_x(args.tensor(0)), grad(args.tensor(4)), x(args.tensor(5));
        T* grad_weight = args.none(1) ? nullptr : args.tensor(1).ptr<T>();
        T* grad_bias = args.none(2) ? nullptr : args.tensor(2).ptr<T>();
        double* stats = args.tensor(3).ptr<double>();
        const T* weight = args.none(6) ? nullptr : args.tensor(6).ptr<T>();
        const double eps = args.real(7);
        const int64_t threads = worth(args.integer(8), 3 * x.M * x.N * static_cast<int64_t>(sizeof(T)), GRAIN);
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(x.M, ith, nth);
            for (int64_t i = r.begin; i < r.end; ++i) {
                const Moments m = moments(x[i], x.N, eps, x[i + 1 < r.end ? i + 1 : i]);
                stats[3 * i] = m.mean;
                stats[3 * i + 1] = m.rstd;
                stats[3 * i + 2] = m.exact;
                backward_row(grad_x[i], grad[i], x[i], weight, x.N, m);
            }
        });
        if (!grad_weight && !grad_bias) return;
        // The columns of a tensor without rows still have gradients: zeros.
        const int64_t n = args.tensor(1 + args.none(1)).numel();
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(n, ith, nth, LANES);
            for (int64_t j = r.begin; j < r.end; j += LANES)
                backward_strip(grad_weight, grad_bias, grad, x, stats, j,
                               r.end - j < LANES ? static_cast<int>(r.end - j) : LANES);
        });
    });
}
