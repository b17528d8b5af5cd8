// output = x dequantize(weight)^T + bias and the gradients, float32 inside: weights are decoded in registers, exactly.
//
// Few rows of x: the bytes are read once, each block is decoded and meets all rows (`stream`). More: a panel of rows of
// the weight is decoded into memory of a core's own, and tiles of it and of x are multiplied (`panels`).
#include "decoded.hpp"

namespace {

constexpr int64_t FEW = 8;  // rows of x that `stream` takes at most

// R rows of the weight with a tile of M rows of x.
template <class F, int M, int R, class T>
__attribute__((noinline)) void stream_tile(const float* x, int64_t K, const uint8_t* w, int64_t step, T* out,
                                           int64_t out_stride, int64_t distance, const T* bias) {
    constexpr int V = F::BLOCK / LANES;
    vf sums[M][R] = {};
    for (int64_t b = 0; b < K / F::BLOCK; ++b, x += M * F::BLOCK) {
        vf wide[R][V];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const uint8_t* p = w + r * step + b * F::BYTES;
            __builtin_prefetch(p + AHEAD_BYTES, 0, 3);
            F::decode(p, wide[r]);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
            for (int i = 0; i < V; ++i) {
                const vf one = kw::load(x + m * F::BLOCK + i * LANES);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) sums[m][r] = kw::fma(one, wide[r][i], sums[m][r]);
            }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
        for (int r = 0; r < R; ++r) {
            const float sum = kw::reduce_add(sums[m][r]);
            out[m * out_stride + r * distance] = kw::from_float<T>(bias ? sum + kw::to_float(bias[r * distance]) : sum);
        }
}

template <class F, int M, class T>
void stream(const float* x, int64_t N, int64_t K, const uint8_t* w, T* out, const T* bias, int64_t threads) {
    constexpr int R = M == 1 ? 4 : LANES == 16 || M <= 4 ? 2 : 1;
    const int64_t bytes = K / F::BLOCK * F::BYTES;
    kw::parallel(threads, [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(N, ith, nth, R);
        in_streams<R>(mine.begin, mine.end, bytes, [&](int64_t n, auto height, int64_t distance) {
            stream_tile<F, M, decltype(height)::value>(x, K, w + n * bytes, distance * bytes, out + n, N, distance,
                                                       bias ? bias + n : nullptr);
        });
    });
}

template <class F, class T>
void stream_any(int64_t M, const float* x, int64_t N, int64_t K, const uint8_t* w, T* out, const T* bias,
                int64_t threads) {
    switch (M) {
        case 1: return stream<F, 1>(x, N, K, w, out, bias, threads);
        case 2: return stream<F, 2>(x, N, K, w, out, bias, threads);
        case 3: return stream<F, 3>(x, N, K, w, out, bias, threads);
        case 4: return stream<F, 4>(x, N, K, w, out, bias, threads);
        case 5: return stream<F, 5>(x, N, K, w, out, bias, threads);
        case 6: return stream<F, 6>(x, N, K, w, out, bias, threads);
        case 7: return stream<F, 7>(x, N, K, w, out, bias, threads);
        default: return stream<F, 8>(x, N, K, w, out, bias, threads);
    }
}

// ---------------------------------------------------------------- more rows of x

constexpr int TILE_M = LANES == 16 ? 4 : 2, TILE_N = LANES == 16 ? 4 : 3;
constexpr int64_t PANEL = 12;  // rows of the weight that are decoded at once, a multiple of TILE_N

// A tile of M rows of x with one of N rows of the weight.
template <class F, int M, int N, class T>
inline void panel_tile(const float* x, const float* w, int64_t K, T* out, int64_t out_stride, const T* bias) {
    vf sums[M][N] = {};
    for (int64_t b = 0; b < K / F::BLOCK; ++b, x += M * F::BLOCK, w += N * F::BLOCK)
#pragma GCC unroll 8
        for (int i = 0; i < F::BLOCK; i += LANES) {
            vf wide[N];
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) wide[n] = kw::load(w + n * F::BLOCK + i);
#pragma GCC unroll 4
            for (int m = 0; m < M; ++m) {
                const vf one = kw::load(x + m * F::BLOCK + i);
#pragma GCC unroll 4
                for (int n = 0; n < N; ++n) sums[m][n] = kw::fma(one, wide[n], sums[m][n]);
            }
        }
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) {
            const float sum = kw::reduce_add(sums[m][n]);
            out[m * out_stride + n] = kw::from_float<T>(bias ? sum + kw::to_float(bias[n]) : sum);
        }
}

template <class F, int M, class T>
void panel_row(int64_t height, const float* x, const float* panel, int64_t K, T* out, int64_t N, const T* bias) {
    for (int64_t n = 0; n < height; n += TILE_N) {
        const float* w = panel + n * K;
        const T* more = bias ? bias + n : nullptr;
        switch (smaller(TILE_N, height - n)) {
            case 1: panel_tile<F, M, 1>(x, w, K, out + n, N, more); break;
            case 2: panel_tile<F, M, 2>(x, w, K, out + n, N, more); break;
            case 3: panel_tile<F, M, 3>(x, w, K, out + n, N, more); break;
            default: panel_tile<F, M, TILE_N>(x, w, K, out + n, N, more); break;
        }
    }
}

template <class F, class T>
void panels(int64_t M, const float* x, int64_t N, int64_t K, const uint8_t* w, T* out, const T* bias,
            int64_t threads) {
    const int64_t bytes = K / F::BLOCK * F::BYTES;
    kw::parallel(threads, [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(N, ith, nth, TILE_N);
        float* panel = decoded_rows.room<float>(PANEL * K);
        for (int64_t n0 = mine.begin; n0 < mine.end; n0 += PANEL) {
            const int64_t height = smaller(PANEL, mine.end - n0);
            for (int64_t n = 0; n < height; n += TILE_N)
                decode_tile<F>(w + (n0 + n) * bytes, bytes, smaller(TILE_N, height - n), K / F::BLOCK, panel + n * K);
            const T* more = bias ? bias + n0 : nullptr;
            for (int64_t m = 0; m < M; m += TILE_M) {
                const float* rows = x + m * K;
                T* to = out + m * N + n0;
                switch (smaller(TILE_M, M - m)) {
                    case 1: panel_row<F, 1>(height, rows, panel, K, to, N, more); break;
                    case 2: panel_row<F, 2>(height, rows, panel, K, to, N, more); break;
                    case 3: panel_row<F, 3>(height, rows, panel, K, to, N, more); break;
                    default: panel_row<F, TILE_M>(height, rows, panel, K, to, N, more); break;
                }
            }
        }
    });
}

// ---------------------------------------------------------------- the gradient of x

constexpr int64_t ROWS_AT_ONCE = 256;  // of the weight, decoded over one stripe of its columns

// grad_x[m, stripe] += sum over n of grad[m, n] w[n, stripe]; M rows, all of a stripe's columns.
template <class F, int M>
inline void stripe_tile(const float* grad, int64_t grad_stride, const float* w, int64_t count, float* sums) {
    constexpr int V = F::BLOCK / LANES;
    vf total[M][V];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int i = 0; i < V; ++i) total[m][i] = kw::load(sums + m * F::BLOCK + i * LANES);
    for (int64_t n = 0; n < count; ++n) {
        vf wide[V];
#pragma GCC unroll 8
        for (int i = 0; i < V; ++i) wide[i] = kw::load(w + n * F::BLOCK + i * LANES);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
            const vf g = kw::splat(grad[m * grad_stride + n]);
#pragma GCC unroll 8
            for (int i = 0; i < V; ++i) total[m][i] = kw::fma(g, wide[i], total[m][i]);
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int i = 0; i < V; ++i) kw::store(sums + m * F::BLOCK + i * LANES, total[m][i]);
}

template <class F, class T>
void gradient_of_x(int64_t M, const float* grad, int64_t N, int64_t K, const uint8_t* w, T* grad_x, int64_t threads) {
    constexpr int HEIGHT = LANES == 16 ? 4 : 2;
    const int64_t bytes = K / F::BLOCK * F::BYTES;
    kw::parallel(threads, [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(K / F::BLOCK, ith, nth);
        float* stripe = decoded_rows.room<float>((ROWS_AT_ONCE + M) * F::BLOCK);
        float* sums = stripe + ROWS_AT_ONCE * F::BLOCK;
        for (int64_t b = mine.begin; b < mine.end; ++b) {
            std::memset(sums, 0, static_cast<size_t>(M * F::BLOCK) * sizeof(float));
            for (int64_t n0 = 0; n0 < N; n0 += ROWS_AT_ONCE) {
                const int64_t count = smaller(ROWS_AT_ONCE, N - n0);
                for (int64_t n = 0; n < count; ++n)
                    decode_tile<F>(w + (n0 + n) * bytes + b * F::BYTES, bytes, 1, 1, stripe + n * F::BLOCK);
                int64_t m = 0;
                for (; m + HEIGHT <= M; m += HEIGHT)
                    stripe_tile<F, HEIGHT>(grad + m * N + n0, N, stripe, count, sums + m * F::BLOCK);
                for (; m < M; ++m) stripe_tile<F, 1>(grad + m * N + n0, N, stripe, count, sums + m * F::BLOCK);
            }
            for (int64_t m = 0; m < M; ++m)
                for (int64_t i = 0; i < F::BLOCK; i += LANES)
                    kw::store(grad_x + m * K + b * F::BLOCK + i, kw::load(sums + m * F::BLOCK + i));
        }
    });
}

}  // namespace

// quantized_linear(output[M, N], x[M, K], weight[N, bytes], bias[N] or None, room[M, K] float32 or None, format's
// number, threads). Without room x is one row of float32.
KW_EXPORT(quantized_linear) {
    const kw::Tensor output = args.tensor(0), weight = args.tensor(2);
    const int64_t threads = args.integer(6);
    kw::with_dtype(output.dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::Rows<const T> x(args.tensor(1));
        const int64_t M = kw::Rows<T>(output).M, K = x.N, N = weight.shape[0];
        const T* bias = args.none(3) ? nullptr : args.tensor(3).ptr<T>();
        kw::with_format(args.integer(5), [&](auto format) {
            using F = decltype(format);
            const float* rows = reinterpret_cast<const float*>(x.data);
            if (!args.none(4)) {
                float* room = args.tensor(4).ptr<float>();
                arrange<F>(M, K, x.data, x.stride, M <= FEW ? M : TILE_M, room, kw::worth(threads, M * K, 65536));
                rows = room;
            }
            const uint8_t* w = weight.ptr<uint8_t>();
            if (M <= FEW)
                stream_any<F, T>(M, rows, N, K, w, output.ptr<T>(), bias, threads);
            else
                panels<F, T>(M, rows, N, K, w, output.ptr<T>(), bias, threads);
        });
    });
}

// grad_x[M, K] = grad_output[M, N] float32 dequantize(weight[N, bytes])
KW_EXPORT(quantized_linear_grad_x) {
    const kw::Tensor grad_x = args.tensor(0), grad = args.tensor(1), weight = args.tensor(2);
    const int64_t K = grad_x.shape[grad_x.ndim - 1], M = grad.shape[0], N = weight.shape[0];
    kw::with_dtype(grad_x.dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::with_format(args.integer(3), [&](auto format) {
            gradient_of_x<decltype(format), T>(M, grad.ptr<float>(), N, K, weight.ptr<uint8_t>(), grad_x.ptr<T>(),
                                               args.integer(4));
        });
    });
}

// grad_bias[N] = sum over M of grad_output[M, N]
KW_EXPORT(quantized_linear_grad_bias) {
    const kw::Tensor grad_bias = args.tensor(0);
    kw::with_dtype(grad_bias.dtype, [&](auto zero) {
        using T = decltype(zero);
        const kw::Rows<const T> grad(args.tensor(1));
        T* to = grad_bias.ptr<T>();
        kw::parallel(kw::worth(args.integer(2), grad.M * grad.N, 32 * 1024), [&](int64_t ith, int64_t nth) {
            const kw::Range mine = kw::slice(grad.N, ith, nth, LANES);
            for (int64_t n = mine.begin; n < mine.end; n += LANES) {
                const int here = static_cast<int>(smaller(LANES, mine.end - n));
                vf sum{};
                for (int64_t m = 0; m < grad.M; ++m) sum += kw::load(grad[m] + n, here);
                kw::store(to + n, sum, here);
            }
        });
    });
}
