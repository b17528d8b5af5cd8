// Causal depthwise convolutions on vectors of any width. Where L has unit stride a line of one channel is walked, of which
// float32 is read where it lies and 16-bit types from a block that was widened once; where D has (channels last) W rows of
// channels meet W rows of taps, a few hundred channels at a time so that both stay in L1.
//
//     kw::causal::run_forward(args), run_backward(args): see ops/convolution/causal_conv1d/simd.cpp
//     kw::causal::shift(state, x, threads): the last S of a state [B, D, S] and x in a row, written to the state
#pragma once

#include <type_traits>

#include "sigmoid.hpp"

namespace kw::causal {

constexpr int64_t MOST = 64;          // taps: op packages decline more
constexpr int64_t BLOCK = 512;        // elements of a line that are widened at once
constexpr int64_t CHANNELS = 256;     // of a row that are taken at once
constexpr int64_t ROWS = 64;          // of one entry of the batch that a thread takes at once
constexpr int64_t GRAIN = 64 * 1024;  // bytes that make a second thread worth waking

inline int part(int64_t from, int64_t n) { return static_cast<int>(n - from < LANES ? n - from : LANES); }

template <class T>
void copy_wide(float* to, const T* from, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) kw::store(to + i, kw::load(from + i));
    if (i < n) kw::store(to + i, kw::load(from + i, part(i, n)), part(i, n));
}

// d silu(s) / ds, without cancelling.
inline vf silu_slope(vf s) {
    const kw::Sigmoids both = kw::sigmoids(s);
    return kw::fma(both.up * both.down, s, both.up);
}

template <bool SILU>
inline vf activated(vf s) {
    if constexpr (SILU) return kw::silu(s);
    return s;
}

// What both passes are given. States and bias may be null; states are [B, D, W - 1] of any strides.
template <class T>
struct Given {
    kw::Tensor x, weight;
    const T *bias = nullptr, *states = nullptr;
    int64_t bias_step = 0, state_b = 0, state_d = 0, state_l = 0, B, D, L, W;

    Given(kw::Tensor x_, kw::Tensor weight_, const kw::Args& args, int bias_at, int states_at) : x(x_), weight(weight_) {
        B = x.shape[0], D = x.shape[1], L = x.shape[2], W = weight.shape[1];
        if (!args.none(bias_at)) {
            bias = args.tensor(bias_at).ptr<const T>();
            bias_step = args.tensor(bias_at).stride[0];
        }
        if (!args.none(states_at)) {
            const kw::Tensor t = args.tensor(states_at);
            states = t.ptr<const T>();
            state_b = t.stride[0], state_d = t.stride[1], state_l = t.stride[2];
        }
    }
    const T* at(int64_t b, int64_t d) const { return x.ptr<const T>() + b * x.stride[0] + d * x.stride[1]; }
    T state(int64_t b, int64_t d, int64_t j) const {
        return states ? states[b * state_b + d * state_d + j * state_l] : kw::from_float<T>(0.0f);
    }
    float tap(int64_t d, int64_t k) const {
        return kw::to_float(weight.ptr<const T>()[d * weight.stride[0] + k * weight.stride[1]]);
    }
    float offset(int64_t d) const { return bias ? kw::to_float(bias[d * bias_step]) : 0.0f; }
    // Input j of the states and x in a row: the W that make output l are j = l .. l + W - 1.
    T padded(int64_t b, int64_t d, int64_t j) const {
        return j < W - 1 ? state(b, d, j) : at(b, d)[(j - (W - 1)) * x.stride[2]];
    }
};

// ---------------------------------------------------------------- L has unit stride

// n outputs of the inputs that begin W - 1 before them. What is read past the end is not used.
template <int TAPS, bool SILU, class T>
void convolve(T* out, const float* from, const float* taps, float offset, int64_t W, int64_t n) {
    if constexpr (TAPS) W = TAPS;
    auto at = [&](int64_t i) {
        vf sum = kw::splat(offset);
        for (int64_t k = 0; k < W; ++k) sum = kw::fma(kw::splat(taps[k]), kw::load(from + i + k), sum);
        return activated<SILU>(sum);
    };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) kw::store(out + i, at(i));
    if (i < n) kw::store(out + i, at(i), part(i, n));
}

template <int TAPS, bool SILU, class T>
void forward_line(const Given<T>& given, T* out, int64_t b, int64_t d) {
    const int64_t W = TAPS ? TAPS : given.W, before = W - 1, L = given.L;
    const T* x = given.at(b, d);
    const float offset = given.offset(d);
    float taps[MOST], held[MOST + BLOCK + LANES] = {};
    for (int64_t k = 0; k < W; ++k) taps[k] = given.tap(d, k);
    for (int64_t j = 0; j < before; ++j) held[j] = kw::to_float(given.state(b, d, j));
    int64_t l = 0;
    if constexpr (sizeof(T) == 4) {
        l = before + LANES < L ? (before + LANES - 1) / LANES * LANES : L < BLOCK ? L : BLOCK;
        copy_wide(held + before, x, l);
        convolve<TAPS, SILU>(out, held, taps, offset, W, l);
        if (l < L) {
            const int64_t whole = (L - l) / LANES * LANES;
            convolve<TAPS, SILU>(out + l, x + l - before, taps, offset, W, whole);
            l += whole;
            copy_wide(held, x + l - before, L - l + before);
            convolve<TAPS, SILU>(out + l, held, taps, offset, W, L - l);
        }
    } else {
        for (; l < L; l += BLOCK) {
            const int64_t n = L - l < BLOCK ? L - l : BLOCK;
            copy_wide(held + before, x + l, n);
            convolve<TAPS, SILU>(out + l, held, taps, offset, W, n);
            std::memmove(held, held + n, static_cast<size_t>(before) * sizeof(float));
        }
    }
}

// The gradients of a line, in blocks of the inputs with the states before them: input p meets the gradients of the
// outputs p - W + 1 .. p. `sums` takes those of the taps and of the bias.
template <int TAPS, bool SILU, class T>
void backward_line(const Given<T>& given, T* grad_x, T* grad_states, const T* grad, const T* later, double* sums,
                   int64_t b, int64_t d) {
    const int64_t W = TAPS ? TAPS : given.W, before = W - 1, L = given.L;
    const T* x = given.at(b, d);
    const float offset = given.offset(d);
    float taps[MOST], held[MOST + BLOCK + LANES] = {}, flow[MOST + BLOCK + LANES] = {}, made[BLOCK + LANES];
    for (int64_t k = 0; k < W; ++k) taps[k] = given.tap(d, k);
    for (int64_t j = 0; j < before; ++j) held[j] = kw::to_float(given.state(b, d, j));
    for (int64_t p = 0; p < L + before; p += BLOCK) {
        const int64_t n = L + before - p < BLOCK ? L + before - p : BLOCK, of_x = L - p < n ? (L > p ? L - p : 0) : n;
        copy_wide(held + before, x + p, of_x);
        copy_wide(flow + before, grad + p, of_x);
        for (int64_t i = of_x; i < n + LANES; ++i) flow[before + i] = 0.0f;
        vf of_taps[TAPS ? TAPS : MOST] = {}, of_bias = {};
        for (int64_t i = 0; i < of_x; i += LANES) {
            vf g = kw::load(flow + before + i);
            if constexpr (SILU) {
                vf s = kw::splat(offset);
                for (int64_t k = 0; k < W; ++k) s = kw::fma(kw::splat(taps[k]), kw::load(held + i + k), s);
                g = kw::keep_first(g * silu_slope(s), part(i, of_x), 0.0f);
                kw::store(flow + before + i, g);
            }
            of_bias += g;
            for (int64_t k = 0; k < W; ++k) {
                const vf from = kw::load(held + i + k);
                of_taps[k] = kw::fma(g, of_x - i < LANES ? kw::keep_first(from, part(i, of_x), 0.0f) : from, of_taps[k]);
            }
        }
        for (int64_t k = 0; k < W; ++k) sums[k] += kw::reduce_add(of_taps[k]);
        sums[W] += kw::reduce_add(of_bias);
        for (int64_t i = 0; i < n; i += LANES) {
            vf sum = {};
            for (int64_t k = 0; k < W; ++k) sum = kw::fma(kw::splat(taps[k]), kw::load(flow + before + i - k), sum);
            kw::store(made + i, sum);
        }
        if (later)
            for (int64_t q = L > p ? L : p; q < p + n; ++q) made[q - p] += kw::to_float(later[q - L]);
        int64_t i = 0;
        for (; i < n && p + i < before; ++i)
            if (grad_states) grad_states[p + i] = kw::from_float<T>(made[i]);
        T* to = grad_x + (p + i - before);
        for (int64_t j = 0; i + j < n; j += LANES) kw::store(to + j, kw::load(made + i + j), part(i + j, n));
        std::memmove(held, held + n, static_cast<size_t>(before) * sizeof(float));
        std::memmove(flow, flow + n, static_cast<size_t>(before) * sizeof(float));
    }
}

// ---------------------------------------------------------------- D has unit stride

// The taps, offsets and states of up to CHANNELS channels as rows of channels.
template <class T>
struct Channels {
    float taps[MOST * CHANNELS], offsets[CHANNELS];
    T states[MOST * CHANNELS];

    void take(const Given<T>& given, int64_t first, int64_t n) {
        for (int64_t d = 0; d < n; ++d) {
            offsets[d] = given.offset(first + d);
            for (int64_t k = 0; k < given.W; ++k) taps[k * CHANNELS + d] = given.tap(first + d, k);
        }
    }
    void take_states(const Given<T>& given, int64_t b, int64_t first, int64_t n) {
        for (int64_t j = 0; j < given.W - 1; ++j)
            for (int64_t d = 0; d < n; ++d) states[j * CHANNELS + d] = given.state(b, first + d, j);
    }
    // The row of inputs that tap k of output l meets.
    const T* row(const Given<T>& given, int64_t b, int64_t first, int64_t l, int64_t k) const {
        const int64_t j = l + k - (given.W - 1);
        return j < 0 ? states + (l + k) * CHANNELS : given.at(b, first) + j * given.x.stride[2];
    }
};

template <int TAPS, bool SILU, class T>
void forward_rows(const Given<T>& given, const Channels<T>& of, T* out, int64_t step, int64_t b, int64_t first,
                  int64_t n, int64_t begin, int64_t end) {
    const int64_t W = TAPS ? TAPS : given.W;
    for (int64_t l = begin; l < end; ++l) {
        const T* rows[TAPS ? TAPS : MOST];
        for (int64_t k = 0; k < W; ++k) rows[k] = of.row(given, b, first, l, k);
        T* to = out + l * step;
        auto at = [&](int64_t d, auto load) {
            vf sum = kw::load(of.offsets + d);
            for (int64_t k = 0; k < W; ++k) sum = kw::fma(kw::load(of.taps + k * CHANNELS + d), load(rows[k] + d), sum);
            return activated<SILU>(sum);
        };
        int64_t d = 0;
        for (; d + LANES <= n; d += LANES) kw::store(to + d, at(d, [](const T* p) { return kw::load(p); }));
        if (d < n) {
            const int rest = part(d, n);
            kw::store(to + d, at(d, [&](const T* p) { return kw::load(p, rest); }), rest);
        }
    }
}

// The sums of the gradients of taps and bias of up to CHANNELS channels, over a few rows in float32, then in float64.
struct ChannelSums {
    float few[(MOST + 1) * CHANNELS];
    double all[(MOST + 1) * CHANNELS];
    float flow[MOST * CHANNELS];  // the gradients of the last W rows of sums

    void clear(int64_t W) {
        std::memset(few, 0, static_cast<size_t>((W + 1) * CHANNELS) * sizeof(float));
        std::memset(all, 0, static_cast<size_t>((W + 1) * CHANNELS) * sizeof(double));
    }
    void settle(int64_t W) {
        for (int64_t i = 0; i < (W + 1) * CHANNELS; ++i) all[i] += few[i];
        std::memset(few, 0, static_cast<size_t>((W + 1) * CHANNELS) * sizeof(float));
    }
};

struct Target {  // where gradients go, [B, D, .] of any strides; null if nobody asked
    char* data;
    int64_t b, d, l;
};

template <int TAPS, bool SILU, class T>
void backward_rows(const Given<T>& given, const Channels<T>& of, ChannelSums& sums, T* grad_x, int64_t x_step,
                   Target to_states, const T* grad, int64_t grad_step, Target later, int64_t b, int64_t first,
                   int64_t n) {
    const int64_t W = TAPS ? TAPS : given.W, before = W - 1, L = given.L;
    std::memset(sums.flow, 0, static_cast<size_t>(W * CHANNELS) * sizeof(float));
    for (int64_t p = 0; p < L + before; ++p) {
        float* flow = sums.flow + p % W * CHANNELS;
        if (p < L) {
            const T* rows[TAPS ? TAPS : MOST];
            for (int64_t k = 0; k < W; ++k) rows[k] = of.row(given, b, first, p, k);
            for (int64_t d = 0; d < n; d += LANES) {
                const int m = part(d, n);
                vf g = kw::load(grad + p * grad_step + d, m);
                if constexpr (SILU) {
                    vf s = kw::load(of.offsets + d);
                    for (int64_t k = 0; k < W; ++k)
                        s = kw::fma(kw::load(of.taps + k * CHANNELS + d), kw::load(rows[k] + d, m), s);
                    g *= silu_slope(s);
                }
                kw::store(flow + d, g);
                float* few = sums.few + d;
                for (int64_t k = 0; k < W; ++k)
                    kw::store(few + k * CHANNELS,
                              kw::fma(g, kw::load(rows[k] + d, m), kw::load(few + k * CHANNELS)));
                kw::store(few + W * CHANNELS, kw::load(few + W * CHANNELS) + g);
            }
        } else {
            std::memset(flow, 0, CHANNELS * sizeof(float));
        }
        if (p % BLOCK == BLOCK - 1) sums.settle(W);
        for (int64_t d = 0; d < n; d += LANES) {
            vf sum = {};
            for (int64_t k = 0; k < W; ++k)
                sum = kw::fma(kw::load(of.taps + k * CHANNELS + d), kw::load(sums.flow + (p + W - k) % W * CHANNELS + d),
                              sum);
            const int m = part(d, n);
            if (p >= L && later.data)
                for (int i = 0; i < m; ++i)
                    sum[i] += kw::to_float(reinterpret_cast<const T*>(later.data)[b * later.b + (first + d + i) * later.d +
                                                                                  (p - L) * later.l]);
            if (p >= before) {
                kw::store(grad_x + (p - before) * x_step + d, sum, m);
            } else if (to_states.data) {
                for (int i = 0; i < m; ++i)
                    reinterpret_cast<T*>(to_states.data)[b * to_states.b + (first + d + i) * to_states.d +
                                                         p * to_states.l] = kw::from_float<T>(sum[i]);
            }
        }
    }
    sums.settle(W);
}

// ---------------------------------------------------------------- all of a call

template <class T>
void final_states(const Given<T>& given, kw::Tensor to, int64_t ith, int64_t nth) {
    const kw::Range lines = kw::slice(given.B * given.D, ith, nth);
    for (int64_t i = lines.begin; i < lines.end; ++i) {
        T* line = to.ptr<T>() + i / given.D * to.stride[0] + i % given.D * to.stride[1];
        for (int64_t j = 0; j < given.W - 1; ++j)
            line[j * to.stride[2]] = given.padded(i / given.D, i % given.D, given.L + j);
    }
}

template <int TAPS, bool SILU, class T>
void forward(kw::Args args) {
    const kw::Tensor out = args.tensor(0);
    const Given<T> given(args.tensor(2), args.tensor(3), args, 4, 5);
    const bool along_channels = args.integer(7);
    const int64_t bytes = 2 * out.numel() * static_cast<int64_t>(sizeof(T));
    kw::parallel(kw::worth(args.integer(8), bytes, GRAIN), [&](int64_t ith, int64_t nth) {
        if (!args.none(1)) final_states(given, args.tensor(1), ith, nth);
        T* to = out.ptr<T>();
        if (!along_channels) {
            const kw::Range lines = kw::slice(given.B * given.D, ith, nth);
            for (int64_t i = lines.begin; i < lines.end; ++i) {
                const int64_t b = i / given.D, d = i % given.D;
                forward_line<TAPS, SILU>(given, to + b * out.stride[0] + d * out.stride[1], b, d);
            }
            return;
        }
        Channels<T> of;
        const int64_t blocks = (given.L + ROWS - 1) / ROWS, chunks = (given.D + CHANNELS - 1) / CHANNELS;
        const kw::Range units = kw::slice(chunks * given.B * blocks, ith, nth);
        int64_t taken = -1;
        for (int64_t i = units.begin; i < units.end; ++i) {
            const int64_t chunk = i / (given.B * blocks), b = i / blocks % given.B, begin = i % blocks * ROWS;
            const int64_t first = chunk * CHANNELS, n = given.D - first < CHANNELS ? given.D - first : CHANNELS;
            if (chunk != taken) of.take(given, first, n);
            taken = chunk;
            if (begin < given.W - 1) of.take_states(given, b, first, n);
            forward_rows<TAPS, SILU>(given, of, to + b * out.stride[0] + first, out.stride[2], b, first, n, begin,
                                     begin + ROWS < given.L ? begin + ROWS : given.L);
        }
    });
}

inline Target target(const kw::Args& args, int i) {
    if (args.none(i)) return Target{nullptr, 0, 0, 0};
    const kw::Tensor t = args.tensor(i);
    return Target{t.data, t.stride[0], t.stride[1], t.stride[2]};
}

template <int TAPS, bool SILU, class T>
void backward(kw::Args args) {
    const kw::Tensor grad_x = args.tensor(0), grad = args.tensor(4);
    const Given<T> given(args.tensor(6), args.tensor(7), args, 8, 9);
    const Target to_states = target(args, 3), later = target(args, 5);
    const bool along_channels = args.integer(11);
    const int64_t W = given.W, D = given.D, bytes = 3 * grad.numel() * static_cast<int64_t>(sizeof(T));
    auto put = [&](int64_t d, const double* sums, int64_t step) {
        if (!args.none(1))
            for (int64_t k = 0; k < W; ++k)
                args.tensor(1).ptr<T>()[d * W + k] = kw::from_float<T>(static_cast<float>(sums[k * step]));
        if (!args.none(2)) args.tensor(2).ptr<T>()[d] = kw::from_float<T>(static_cast<float>(sums[W * step]));
    };
    kw::parallel(kw::worth(args.integer(12), bytes, GRAIN), [&](int64_t ith, int64_t nth) {
        if (!along_channels) {
            const kw::Range channels = kw::slice(D, ith, nth);
            for (int64_t d = channels.begin; d < channels.end; ++d) {
                double sums[MOST + 1] = {};
                for (int64_t b = 0; b < given.B; ++b) {
                    T* states = reinterpret_cast<T*>(to_states.data);  // contiguous: it is made for this
                    const T* more = reinterpret_cast<const T*>(later.data);
                    backward_line<TAPS, SILU>(given, grad_x.ptr<T>() + b * grad_x.stride[0] + d * grad_x.stride[1],
                                              states ? states + b * to_states.b + d * to_states.d : nullptr,
                                              grad.ptr<const T>() + b * grad.stride[0] + d * grad.stride[1],
                                              more ? more + b * later.b + d * later.d : nullptr, sums, b, d);
                }
                put(d, sums, 1);
            }
            return;
        }
        Channels<T> of;
        ChannelSums sums;
        const kw::Range channels = kw::slice(D, ith, nth, LANES);
        for (int64_t first = channels.begin; first < channels.end; first += CHANNELS) {
            const int64_t n = channels.end - first < CHANNELS ? channels.end - first : CHANNELS;
            of.take(given, first, n);
            sums.clear(W);
            for (int64_t b = 0; b < given.B; ++b) {
                of.take_states(given, b, first, n);
                backward_rows<TAPS, SILU>(given, of, sums, grad_x.ptr<T>() + b * grad_x.stride[0] + first,
                                          grad_x.stride[2], to_states, grad.ptr<const T>() + b * grad.stride[0] + first,
                                          grad.stride[2], later, b, first, n);
            }
            for (int64_t d = 0; d < n; ++d) put(first + d, sums.all + d, CHANNELS);
        }
    });
}

// f(width, activated) with the number of taps as a constant where it is one that models have.
template <class F>
void with_taps(int64_t W, bool silu, F f) {
    auto of = [&](auto taps) { silu ? f(taps, std::true_type{}) : f(taps, std::false_type{}); };
    if (W == 4) return of(std::integral_constant<int, 4>{});
    if (W == 3) return of(std::integral_constant<int, 3>{});
    of(std::integral_constant<int, 0>{});
}

inline void run_forward(kw::Args args) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        with_taps(args.tensor(3).shape[1], args.integer(6),
                  [&](auto taps, auto silu) { forward<taps.value, silu.value, T>(args); });
    });
}

inline void run_backward(kw::Args args) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        with_taps(args.tensor(7).shape[1], args.integer(10),
                  [&](auto taps, auto silu) { backward<taps.value, silu.value, T>(args); });
    });
}

inline void shift(kw::Tensor state, kw::Tensor x, int64_t threads) {
    kw::with_dtype(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        const int64_t D = x.shape[1], L = x.shape[2], S = state.shape[2];
        kw::parallel(kw::worth(threads, x.shape[0] * D * S, GRAIN), [&](int64_t ith, int64_t nth) {
            const kw::Range lines = kw::slice(x.shape[0] * D, ith, nth);
            for (int64_t i = lines.begin; i < lines.end; ++i) {
                T* to = state.ptr<T>() + i / D * state.stride[0] + i % D * state.stride[1];
                const T* from = x.ptr<T>() + i / D * x.stride[0] + i % D * x.stride[1];
                for (int64_t j = 0; j < S; ++j)  // what is read lies behind what is written
                    to[j * state.stride[2]] =
                        j + L < S ? to[(j + L) * state.stride[2]] : from[(j + L - S) * x.stride[2]];
            }
        });
    });
}

}  // namespace kw::causal
