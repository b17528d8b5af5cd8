// output = x dequantize(weight)^T + bias and the gradients, float32 inside: weights are decoded in registers, exactly.
//
// Few rows of x: the bytes are read once, each group is decoded and meets all rows (`stream`). More: a panel of rows of
// the weight is decoded into memory of a core's own, and tiles of it and of x are multiplied (`panels`). Only what decodes
// is compiled once for each format.
#include "decoded.hpp"

namespace {

constexpr int64_t FEW = 8;  // rows of x that `stream` takes at most

// Where results go: numbers of any dtype, with a bias of that dtype or none.
struct Output {
    char *data, *bias;
    DLDataType dtype;

    explicit Output(const kw::Tensor& output, char* bias) : data(output.data), bias(bias), dtype(output.dtype) {}
    // From column n on.
    Output at(int64_t index, int64_t n) const {
        Output moved = *this;
        const int64_t size = dtype.bits / 8;
        moved.data += index * size;
        if (bias) moved.bias += n * size;
        return moved;
    }
    // M rows of N columns that lie so far apart.
    template <int M, int N>
    void put(const float (&sums)[M][N], int64_t row, int64_t column) const {
        kw::with_dtype(dtype, [&](auto zero) {
            using T = decltype(zero);
            T* to = reinterpret_cast<T*>(data);
            const T* more = reinterpret_cast<const T*>(bias);
            for (int m = 0; m < M; ++m)
                for (int n = 0; n < N; ++n)
                    to[m * row + n * column] =
                        kw::from_float<T>(more ? sums[m][n] + kw::to_float(more[n * column]) : sums[m][n]);
        });
    }
};

// R rows of the weight with a tile of M rows of x.
template <class F, int M, int R>
__attribute__((noinline)) void stream_tile(const float* x, int64_t K, const uint8_t* w, int64_t step, Output out,
                                           int64_t out_stride, int64_t distance) {
    vf sums[M][R] = {};
    for (int64_t b = 0; b < K / F::BLOCK; ++b) {
        auto row = [&](int r) { return w + r * step + b * F::BYTES; };
        auto group = [&](const Factors<F>* by, int g) {
            vf wide[R][VECTORS];
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) kw::decode<F>(row(r), by[r], g, wide[r]);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
                for (int i = 0; i < VECTORS; ++i) {
                    const vf one = kw::load(x + m * GROUP + i * LANES);
#pragma GCC unroll 4
                    for (int r = 0; r < R; ++r) sums[m][r] = kw::fma(one, wide[r][i], sums[m][r]);
                }
            x += M * GROUP;
        };
        auto with = [&](auto... r) {
            (__builtin_prefetch(row(r) + AHEAD_BYTES, 0, 3), ...);
            if constexpr (F::BYTES > 128) (__builtin_prefetch(row(r) + AHEAD_BYTES + 64, 0, 3), ...);
            if constexpr (F::BYTES > 128) (__builtin_prefetch(row(r) + AHEAD_BYTES + 128, 0, 3), ...);
            const Factors<F> by[R] = {Factors<F>(row(r))...};
            for (int g = 0; g < F::BLOCK / GROUP; ++g) group(by, g);
        };
        if constexpr (R == 4)
            with(0, 1, 2, 3);
        else if constexpr (R == 2)
            with(0, 1);
        else
            with(0);
    }
    float found[M][R];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) found[m][r] = kw::reduce_add(sums[m][r]);
    out.put(found, out_stride, distance);
}

template <class F, int M>
void stream(const float* x, int64_t N, int64_t K, const uint8_t* w, Output out, int64_t threads) {
    constexpr int R = M == 1 ? 4 : LANES == 16 || M <= 4 ? 2 : 1;
    const int64_t bytes = K / F::BLOCK * F::BYTES;
    kw::parallel(threads, [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(N, ith, nth, R);
        in_streams<R>(mine.begin, mine.end, bytes, [&](int64_t n, auto height, int64_t distance) {
            stream_tile<F, M, decltype(height)::value>(x, K, w + n * bytes, distance * bytes, out.at(n, n), N, distance);
        });
    });
}

template <class F>
void stream_any(int64_t M, const float* x, int64_t N, int64_t K, const uint8_t* w, Output out, int64_t threads) {
    switch (M) {
        case 1: return stream<F, 1>(x, N, K, w, out, threads);
        case 2: return stream<F, 2>(x, N, K, w, out, threads);
        case 3: return stream<F, 3>(x, N, K, w, out, threads);
        case 4: return stream<F, 4>(x, N, K, w, out, threads);
        case 5: return stream<F, 5>(x, N, K, w, out, threads);
        case 6: return stream<F, 6>(x, N, K, w, out, threads);
        case 7: return stream<F, 7>(x, N, K, w, out, threads);
        default: return stream<F, 8>(x, N, K, w, out, threads);
    }
}

// ---------------------------------------------------------------- more rows of x

constexpr int TILE_M = LANES == 16 ? 4 : 2, TILE_N = LANES == 16 ? 4 : 3;
constexpr int64_t PANEL = 12;  // rows of the weight that are decoded at once, a multiple of TILE_N

// A tile of M rows of x with one of N rows of the weight.
template <int M, int N>
__attribute__((noinline)) void panel_tile(const float* x, const float* w, int64_t K, Output out, int64_t out_stride) {
    vf sums[M][N] = {};
    for (int64_t g = 0; g < K / GROUP; ++g, x += M * GROUP, w += N * GROUP)
#pragma GCC unroll 8
        for (int i = 0; i < GROUP; i += LANES) {
            vf wide[N];
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) wide[n] = kw::load(w + n * GROUP + i);
#pragma GCC unroll 4
            for (int m = 0; m < M; ++m) {
                const vf one = kw::load(x + m * GROUP + i);
#pragma GCC unroll 4
                for (int n = 0; n < N; ++n) sums[m][n] = kw::fma(one, wide[n], sums[m][n]);
            }
        }
    float found[M][N];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) found[m][n] = kw::reduce_add(sums[m][n]);
    out.put(found, out_stride, 1);
}

template <int M>
void panel_row(int64_t height, const float* x, const float* panel, int64_t K, Output out, int64_t N) {
    for (int64_t n = 0; n < height; n += TILE_N) {
        const float* w = panel + n * K;
        const Output to = out.at(n, n);
        switch (smaller(TILE_N, height - n)) {
            case 1: panel_tile<M, 1>(x, w, K, to, N); break;
            case 2: panel_tile<M, 2>(x, w, K, to, N); break;
            case 3: panel_tile<M, 3>(x, w, K, to, N); break;
            default: panel_tile<M, TILE_N>(x, w, K, to, N); break;
        }
    }
}

void panel_rows(int64_t M, int64_t height, const float* x, const float* panel, int64_t K, Output out, int64_t N) {
    for (int64_t m = 0; m < M; m += TILE_M) {
        const float* rows = x + m * K;
        const Output to = out.at(m * N, 0);
        switch (smaller(TILE_M, M - m)) {
            case 1: panel_row<1>(height, rows, panel, K, to, N); break;
            case 2: panel_row<2>(height, rows, panel, K, to, N); break;
            case 3: panel_row<3>(height, rows, panel, K, to, N); break;
            default: panel_row<TILE_M>(height, rows, panel, K, to, N); break;
        }
    }
}

template <class F>
void panels(int64_t M, const float* x, int64_t N, int64_t K, const uint8_t* w, Output out, int64_t threads) {
    const int64_t bytes = K / F::BLOCK * F::BYTES;
    kw::parallel(threads, [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(N, ith, nth, TILE_N);
        float* panel = decoded_rows.room<float>(PANEL * K);
        for (int64_t n0 = mine.begin; n0 < mine.end; n0 += PANEL) {
            const int64_t height = smaller(PANEL, mine.end - n0);
            for (int64_t n = 0; n < height; n += TILE_N)
                decode_tile<F>(w + (n0 + n) * bytes, bytes, smaller(TILE_N, height - n), K / F::BLOCK, panel + n * K);
            panel_rows(M, height, x, panel, K, out.at(n0, n0), N);
        }
    });
}

// ---------------------------------------------------------------- the gradient of x

constexpr int64_t ROWS_AT_ONCE = 256;  // of the weight, decoded over one stripe of its columns, a block

// sums[m, group] += sum over n of grad[m, n] w[n, group]; M rows, all of a group's columns.
template <int M>
inline void group_tile(const float* grad, int64_t grad_stride, const float* w, int64_t count, float* sums) {
    vf total[M][VECTORS];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; ++i) total[m][i] = kw::load(sums + m * GROUP + i * LANES);
    for (int64_t n = 0; n < count; ++n) {
        vf wide[VECTORS];
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; ++i) wide[i] = kw::load(w + n * GROUP + i * LANES);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
            const vf g = kw::splat(grad[m * grad_stride + n]);
#pragma GCC unroll 8
            for (int i = 0; i < VECTORS; ++i) total[m][i] = kw::fma(g, wide[i], total[m][i]);
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; ++i) kw::store(sums + m * GROUP + i * LANES, total[m][i]);
}

void group_rows(int64_t M, const float* grad, int64_t grad_stride, const float* w, int64_t count, float* sums) {
    constexpr int HEIGHT = LANES == 16 ? 4 : 2;
    int64_t m = 0;
    for (; m + HEIGHT <= M; m += HEIGHT)
        group_tile<HEIGHT>(grad + m * grad_stride, grad_stride, w, count, sums + m * GROUP);
    for (; m < M; ++m) group_tile<1>(grad + m * grad_stride, grad_stride, w, count, sums + m * GROUP);
}

template <class F>
void gradient_of_x(int64_t M, const float* grad, int64_t N, int64_t K, const uint8_t* w, const kw::Tensor& grad_x,
                   int64_t threads) {
    const int64_t bytes = K / F::BLOCK * F::BYTES;
    kw::parallel(threads, [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(K / F::BLOCK, ith, nth);
        float* stripe = decoded_rows.room<float>((ROWS_AT_ONCE + M) * F::BLOCK);
        float* sums = stripe + ROWS_AT_ONCE * F::BLOCK;  // [group][row of x][number of the group]
        for (int64_t b = mine.begin; b < mine.end; ++b) {
            std::memset(sums, 0, static_cast<size_t>(M * F::BLOCK) * sizeof(float));
            for (int64_t n0 = 0; n0 < N; n0 += ROWS_AT_ONCE) {
                const int64_t count = smaller(ROWS_AT_ONCE, N - n0);
                decode_tile<F>(w + n0 * bytes + b * F::BYTES, bytes, count, 1, stripe);
                for (int g = 0; g < F::BLOCK / GROUP; ++g)
                    group_rows(M, grad + n0, N, stripe + g * count * GROUP, count, sums + g * M * GROUP);
            }
            kw::with_dtype(grad_x.dtype, [&](auto zero) {
                for (int64_t g = 0; g < F::BLOCK / GROUP; ++g)
                    for (int64_t m = 0; m < M; ++m)
                        for (int64_t i = 0; i < GROUP; i += LANES)
                            kw::store(grad_x.ptr<decltype(zero)>() + m * K + b * F::BLOCK + g * GROUP + i,
                                      kw::load(sums + (g * M + m) * GROUP + i));
            });
        }
    });
}

}  // namespace

// quantized_linear(output[M, N], x[M, K], weight[N, bytes], bias[N] or None, room[M, K] float32 or None, format's
// number, threads). Without room x is one row of float32.
KW_EXPORT(quantized_linear) {
    const kw::Tensor output = args.tensor(0), weight = args.tensor(2);
    const int64_t threads = args.integer(6), M = kw::Rows<float>(output).M, N = weight.shape[0];
    const float* rows = args.tensor(1).ptr<float>();
    int64_t K = 0;
    kw::with_dtype(output.dtype, [&](auto zero) {
        const kw::Rows<const decltype(zero)> x(args.tensor(1));
        K = x.N;
        if (args.none(4)) return;
        float* room = args.tensor(4).ptr<float>();
        arrange(M, K, x.data, x.stride, M <= FEW ? M : TILE_M, room, kw::worth(threads, M * K, 65536));
        rows = room;
    });
    const Output out(output, args.none(3) ? nullptr : args.tensor(3).data);
    kw::with_format(args.integer(5), [&](auto format) {
        using F = decltype(format);
        const uint8_t* w = weight.ptr<uint8_t>();
        if (M <= FEW)
            stream_any<F>(M, rows, N, K, w, out, threads);
        else
            panels<F>(M, rows, N, K, w, out, threads);
    });
}

// grad_x[M, K] = grad_output[M, N] float32 dequantize(weight[N, bytes])
KW_EXPORT(quantized_linear_grad_x) {
    const kw::Tensor grad_x = args.tensor(0), grad = args.tensor(1), weight = args.tensor(2);
    const int64_t K = grad_x.shape[grad_x.ndim - 1], M = grad.shape[0], N = weight.shape[0];
    kw::with_format(args.integer(3), [&](auto format) {
        gradient_of_x<decltype(format)>(M, grad.ptr<float>(), N, K, weight.ptr<uint8_t>(), grad_x, args.integer(4));
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
