// Few rows of x: each weight row is read once, straight from where it lies, and its dot products with all rows of x are
// kept in registers. The speed is that of memory.
#pragma once

#include "operand.hpp"

namespace {

thread_local Scratch rows_of_x;

constexpr int64_t FEW = 32;  // rows of x that `stream` takes at most

// How one step along K is read and multiplied. X is the type that the few rows are copied to, zero-padded to STEP.
template <class T>
struct Plain {  // LANES elements a step, widened to float32
    using X = float;
    static constexpr int STEP = LANES, ROWS = LANES == 16 ? 6 : 3;
    using V = vf;
    static V load_x(const float* p) { return kw::load(p); }
    static V load_w(const T* p) { return kw::load(p); }
    static V load_w(const T* p, int n) { return kw::load(p, n); }
    static vf mac(V x, V w, vf sum) { return kw::fma(x, w, sum); }
    static void copy(float* to, const T* from, int n) { kw::store(to, n == STEP ? kw::load(from) : kw::load(from, n)); }
};

struct Pairs {  // 2 LANES bfloat16 a step: even elements shifted up, odd ones masked, so no lane crosses the vector
    using X = float;
    static constexpr int STEP = 2 * LANES, ROWS = LANES == 16 ? 4 : 2;
    struct V {
        vf even, odd;
    };
    static V split(vu both) { return V{(vf)(both << 16), (vf)(both & 0xffff0000u)}; }
    static V load_x(const float* p) { return V{kw::load(p), kw::load(p + LANES)}; }
    static V load_w(const kw::bf16* p) { return split(kw::load_bits<vu>(p)); }
    static V load_w(const kw::bf16* p, int n) {
        kw::bf16 buffer[STEP] = {};
        for (int i = 0; i < n; ++i) buffer[i] = p[i];
        return load_w(buffer);
    }
    static vf mac(V x, V w, vf sum) { return kw::fma(x.odd, w.odd, kw::fma(x.even, w.even, sum)); }
    static void copy(float* to, const kw::bf16* from, int n) {
        V v = n == STEP ? load_w(from) : load_w(from, n);
        kw::store(to, v.even);
        kw::store(to + LANES, v.odd);
    }
};

#if defined(__AVX512BF16__)
struct DotPairs {  // 32 bfloat16 a step: the instruction multiplies pairs and adds them to a float32 lane
    using X = kw::bf16;
    static constexpr int STEP = 32, ROWS = 6;
    using V = __m512i;
    static V load_x(const kw::bf16* p) { return _mm512_loadu_si512(p); }
    static V load_w(const kw::bf16* p) { return _mm512_loadu_si512(p); }
    static V load_w(const kw::bf16* p, int n) { return _mm512_maskz_loadu_epi16((1u << n) - 1u, p); }
    static vf mac(V x, V w, vf sum) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w); }
    static void copy(kw::bf16* to, const kw::bf16* from, int n) {
        _mm512_storeu_si512(to, n == STEP ? load_w(from) : load_w(from, n));
    }
};
template <class T>
struct Policy : Plain<T> {};
template <>
struct Policy<kw::bf16> : DotPairs {};
#else
template <class T>
struct Policy : Plain<T> {};
template <>
struct Policy<kw::bf16> : Pairs {};
#endif

constexpr int64_t AHEAD_BYTES = 1024;  // measured best of 0, 512, 1024, 1536, 2048, 4096 and 8192

// sums[m * R + r] += x row m . w row r over `count` elements.
template <class P, int M, int R, class T>
inline void dot_tile(const typename P::X* x, int64_t x_stride, const T* w, int64_t w_stride, int64_t count,
                     vf* sums) {
    vf acc[M][R];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[m][r] = sums[m * R + r];
    auto step = [&](auto read) __attribute__((always_inline)) {
        typename P::V wide[R];
        if constexpr (M == 1) {  // each stream runs on past its row's end, into the next row
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                __builtin_prefetch(reinterpret_cast<const char*>(w + r * w_stride) + AHEAD_BYTES, 0, 3);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) wide[r] = read(w + r * w_stride);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            typename P::V one = P::load_x(x + m * x_stride);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) acc[m][r] = P::mac(one, wide[r], acc[m][r]);
        }
        w += P::STEP;
        x += P::STEP;
    };
    for (; count >= P::STEP; count -= P::STEP)
        step([](const T* p) __attribute__((always_inline)) { return P::load_w(p); });
    int rest = static_cast<int>(count);
    if (rest > 0) step([rest](const T* p) __attribute__((always_inline)) { return P::load_w(p, rest); });
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sums[m * R + r] = acc[m][r];
}

// How far `stream` goes along K before it turns to the next rows of x: all the way for a few rows, whose sums stay in
// registers; else 1 KiB of each row, less where the rows together would not stay in L1.
constexpr int GROUP = 4;  // rows of x in a register tile
constexpr int64_t CHUNK_BYTES = 1024, CHUNKS_BYTES = 24 * 1024;
template <class P>
int64_t chunk_of(int64_t M, int64_t K) {
    int64_t whole = round_up(K, P::STEP);
    if (M <= GROUP) return whole;
    int64_t bytes = smaller(CHUNK_BYTES, CHUNKS_BYTES / M);
    return smaller(whole, round_up(bytes / static_cast<int64_t>(sizeof(typename P::X)), 2 * P::STEP));
}

// Lane i of the result is the sum of all lanes of v[i].
inline vf sum_each(const vf* v) {
    vf t[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) t[i] = v[i];
#pragma GCC unroll 5
    for (int width = 1; width < LANES; width *= 2)
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i += 2 * width)
            t[i] = interleaved(t[i], t[i + width], width, 0) + interleaved(t[i], t[i + width], width, width);
    return t[0];
}

// R weight rows against all M rows of x, which lie chunk by chunk.
template <class P, int R, class T>
__attribute__((noinline)) void dot_rows(int64_t M, const typename P::X* x, int64_t chunk, const T* w, int64_t w_stride,
                                        int64_t K, Result<T> out, const T* bias, int64_t bias_row,
                                        int64_t bias_column) {
    vf sums[FEW * R + LANES];
    for (int i = 0; i < M * R + LANES; ++i) sums[i] = vf{};
    constexpr int64_t LINE = 64 / static_cast<int64_t>(sizeof(T));
    int64_t groups = (M + GROUP - 1) / GROUP;
    for (int64_t k = 0; k < K; k += chunk) {
        int64_t count = smaller(chunk, K - k);
        // The chunk after the next one, which may begin the following R rows, is fetched while this one is used.
        int64_t ahead = k + 2 * chunk < K ? k + 2 * chunk : R * w_stride + k + 2 * chunk - round_up(K, chunk);
        for (int64_t g = 0; g < groups; ++g) {
            int64_t m = M * g / groups, height = M * (g + 1) / groups - m;
            if (groups > 1)
                for (int64_t r = g; r < R; r += groups)
                    for (int64_t i = 0; i < chunk; i += LINE) __builtin_prefetch(w + r * w_stride + ahead + i, 0, 3);
            const typename P::X* part = x + M * k + m * chunk;
            switch (height) {
                case 1: dot_tile<P, 1, R>(part, chunk, w + k, w_stride, count, sums + m * R); break;
                case 2: dot_tile<P, 2, R>(part, chunk, w + k, w_stride, count, sums + m * R); break;
                case 3: dot_tile<P, 3, R>(part, chunk, w + k, w_stride, count, sums + m * R); break;
                default: dot_tile<P, 4, R>(part, chunk, w + k, w_stride, count, sums + m * R); break;
            }
        }
    }
    float totals[FEW * R + LANES];
    for (int64_t i = 0; i < M * R; i += LANES) kw::store(totals + i, sum_each(sums + i));
    for (int64_t m = 0; m < M; ++m)
        for (int r = 0; r < R; ++r) {
            float sum = totals[m * R + r];
            if (bias) sum += kw::to_float(bias[m * bias_row + r * bias_column]);
            out.data[m * out.row_stride + r * out.column_stride] = kw::from_float<T>(sum);
        }
}

// out[m, n] = x line m . w line n + bias, both with unit inner stride, M <= FEW.
template <class T>
__attribute__((noinline)) void stream(int64_t M, int64_t N, int64_t K, Operand<T> x, Operand<T> w, Result<T> out,
                                      const T* bias, int64_t bias_row, int64_t bias_column, int64_t threads) {
    using P = Policy<T>;
    using X = typename P::X;
    constexpr int R = P::ROWS;
    kw::parallel(threads, [&](int64_t ith, int64_t nth) {
        int64_t chunk = chunk_of<P>(M, K);
        X* rows = rows_of_x.room<X>(M * round_up(K, chunk));
        for (int64_t m = 0; m < M; ++m)
            for (int64_t k0 = 0; k0 < K; k0 += chunk)
                for (int64_t k = k0; k < smaller(k0 + chunk, K); k += P::STEP)
                    P::copy(rows + M * k0 + m * chunk + k - k0, x.at(m, k), static_cast<int>(smaller(P::STEP, K - k)));
        kw::Range mine = kw::slice(N, ith, nth, R);
        // A few rows of x: the weight rows of a tile lie far apart, so that each is a stream of its own that the
        // prefetchers follow from row to row. With more rows of x they are neighbours.
        int64_t tiles = (mine.end - mine.begin) / R, apart = M <= GROUP ? tiles : 1, step = M <= GROUP ? 1 : R;
        auto run = [&](auto dot, int64_t n, int64_t distance) {
            Result<T> part{out.data + n * out.column_stride, out.row_stride, distance * out.column_stride};
            dot(M, rows, chunk, w.at(n, 0), distance * w.line_stride, K, part,
                bias ? bias + n * bias_column : nullptr, bias_row, distance * bias_column);
        };
        for (int64_t i = 0; i < tiles; ++i) run(dot_rows<P, R, T>, mine.begin + i * step, apart);
        for (int64_t n = mine.begin + tiles * R; n < mine.end; ++n) run(dot_rows<P, 1, T>, n, 1);
    });
}

}  // namespace
