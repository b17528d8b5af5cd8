// float32 with vectors of 8: the register tile reads one operand where it lies, row by row, and only the other one is
// packed: the weight, or x if it has few rows. Packing both takes a fifth of the time at 32 rows and a tenth at 128.
#pragma once

#include "blocked.hpp"

#if defined(__AVX2__) && !defined(__AVX512F__)

namespace {

constexpr int64_t CHAIN = 384;                // products that one float32 sum takes before it is added to the total
constexpr int64_t WHOLE_K = 4096;             // steps along K without going back to the result
constexpr int64_t PACKED = 256 * 1024;        // packed elements, 1 MiB: they stay in L2 or come from L3
constexpr int64_t FEW_IN_PLACE = 10;          // rows of x up to which `stream` is faster: a tile has 16
constexpr int64_t MANY_IN_PLACE = 256;        // rows of x from which the weight is packed: that is under 3% of the time
constexpr int64_t PACK_AHEAD = 64;            // elements of each line
alignas(32) constexpr float NOTHING[TILE_N] = {};  // in the place of a bias

// c + (R lines of a) (TILE_N packed lines of b) over `count` steps. Element (i, j) lies at c[i * c_stride + j], and with
// TURNED at c[i + j * c_stride]. If `start` is given, it stands in the place of c: a number for each j, TURNED for each i.
template <int R, bool TURNED>
void in_place_tile(int64_t count, const float* a, int64_t a_stride, const float* b, float* c, int64_t c_stride,
                   const float* start, int64_t columns) {
    vf acc[R][2], total[R][2];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
        acc[i][0] = acc[i][1] = total[i][0] = total[i][1] = vf{};
        if constexpr (!TURNED) {
            __builtin_prefetch(c + i * c_stride, 1, 3);
            __builtin_prefetch(c + i * c_stride + TILE_N - 1, 1, 3);
        }
    }
    const float *upper = a, *lower = a + 3 * a_stride;
    for (bool whole = count <= CHAIN;;) {
        int64_t steps = smaller(count, CHAIN);
        count -= steps;
        for (; steps > 0; --steps) {
            vf b0 = kw::load(b), b1 = kw::load(b + LANES);
#pragma GCC unroll 8
            for (int i = 0; i < R; ++i) {
                vf one = kw::splat(i < 3 ? upper[i * a_stride] : lower[(i - 3) * a_stride]);
                acc[i][0] = kw::fma(one, b0, acc[i][0]);
                acc[i][1] = kw::fma(one, b1, acc[i][1]);
            }
            ++upper;
            ++lower;
            b += TILE_N;
        }
        if (whole) break;
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                total[i][half] += acc[i][half];
                acc[i][half] = count > 0 ? vf{} : total[i][half];
            }
        if (count == 0) break;
    }
    if constexpr (TURNED) {
        float lines[TILE_N][LANES];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            vf v[LANES];
#pragma GCC unroll 8
            for (int i = 0; i < LANES; ++i)
                v[i] = i < R ? acc[i < R ? i : 0][half] + (start ? start[i < R ? i : 0] : 0.0f) : vf{};
            transpose(v);
#pragma GCC unroll 8
            for (int i = 0; i < LANES; ++i) kw::store(lines[half * LANES + i], v[i]);
        }
        for (int64_t j = 0; j < columns; ++j) {
            float* to = c + j * c_stride;
            if (!start)
                for (int i = 0; i < R; ++i) lines[j][i] += to[i];
            __builtin_memcpy(to, lines[j], R * sizeof(float));
        }
        return;
    }
    const float* add = start ? start : c;
    int64_t add_stride = start ? 0 : c_stride;
    int n0 = static_cast<int>(smaller(columns, LANES)), n1 = static_cast<int>(columns) - n0;
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
        float* to = c + i * c_stride;
        if (columns == TILE_N) {
            kw::store(to, acc[i][0] + kw::load(add + i * add_stride));
            kw::store(to + LANES, acc[i][1] + kw::load(add + i * add_stride + LANES));
        } else {
            kw::store(to, acc[i][0] + kw::load(add + i * add_stride, n0), n0);
            if (n1) kw::store(to + LANES, acc[i][1] + kw::load(add + i * add_stride + LANES, n1), n1);
        }
    }
}

using InPlaceTile = void (*)(int64_t, const float*, int64_t, const float*, float*, int64_t, const float*, int64_t);
template <bool TURNED, int... I>
InPlaceTile in_place_tile_of(int64_t rows, std::integer_sequence<int, I...>) {
    static constexpr InPlaceTile all[] = {in_place_tile<I + 1, TURNED>...};
    return all[rows - 1];
}

// 8 lines by 8 steps to to[step * TILE_N + line]. Halves of two lines are loaded into one vector, so that no shuffle
// crosses the halves.
inline void turn_8x8(float* to, const float* from, int64_t stride) {
    auto halves = [&](int line, int k) __attribute__((always_inline)) {
        const float *low = from + line * stride + k, *high = from + (line + 4) * stride + k;
        return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
    };
#pragma GCC unroll 2
    for (int k = 0; k < 8; k += 4) {
        __m256 a = halves(0, k), b = halves(1, k), c = halves(2, k), d = halves(3, k);
        __m256 ab0 = _mm256_unpacklo_ps(a, b), ab1 = _mm256_unpackhi_ps(a, b);
        __m256 cd0 = _mm256_unpacklo_ps(c, d), cd1 = _mm256_unpackhi_ps(c, d);
        _mm256_storeu_ps(to + k * TILE_N, _mm256_shuffle_ps(ab0, cd0, 0x44));
        _mm256_storeu_ps(to + (k + 1) * TILE_N, _mm256_shuffle_ps(ab0, cd0, 0xee));
        _mm256_storeu_ps(to + (k + 2) * TILE_N, _mm256_shuffle_ps(ab1, cd1, 0x44));
        _mm256_storeu_ps(to + (k + 3) * TILE_N, _mm256_shuffle_ps(ab1, cd1, 0xee));
    }
}

// `pack` with a width of TILE_N. A cache line of each of 8 lines is used up at once: lines whose distance is a multiple
// of 4 KiB lie in the same set of L1, which holds 8.
__attribute__((noinline)) inline void pack_panel(float* to, Operand<float> from, int64_t lines, int64_t count) {
    int64_t k = 0;
    if (from.inner_stride == 1 && lines == TILE_N)
        for (; k + 16 <= count; k += 16)
            for (int half = 0; half < TILE_N; half += 8) {
                const float* at = from.at(half, k);
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) __builtin_prefetch(at + i * from.line_stride + PACK_AHEAD, 0, 3);
                turn_8x8(to + k * TILE_N + half, at, from.line_stride);
                turn_8x8(to + (k + 8) * TILE_N + half, at + 8, from.line_stride);
            }
    if (k < count)
        pack(to + k * TILE_N, Operand<float>{from.at(0, k), from.line_stride, from.inner_stride}, lines, TILE_N, count - k);
}

// out = a b + bias, where a has M lines of unit inner stride, is read where it lies and shared among the threads, and b
// has N lines of any strides. Element (i, j) lies at out[i * stride + j], and with TURNED at out[i + j * stride]; then
// the bias has a number for each i.
template <bool TURNED>
__attribute__((noinline)) void in_place(int64_t M, int64_t N, int64_t K, Operand<float> a, Operand<float> b, float* out,
                                        int64_t stride, const float* bias, int64_t threads) {
    int64_t panels = (M + TILE_M - 1) / TILE_M, blocks_k = (K + WHOLE_K - 1) / WHOLE_K;
    int64_t block_k = round_up((K + blocks_k - 1) / blocks_k, 16), most = PACKED / block_k / TILE_N * TILE_N;
    int64_t blocks_n = (N + most - 1) / most, block_n = round_up((N + blocks_n - 1) / blocks_n, TILE_N);
    float* packed = panels_of_b.room<float>(block_n * block_k);
    for (int64_t n0 = 0; n0 < N; n0 += block_n)
        for (int64_t k0 = 0; k0 < K; k0 += block_k) {
            int64_t width = smaller(block_n, N - n0), depth = smaller(block_k, K - k0);
            int64_t tiles = (width + TILE_N - 1) / TILE_N;
            kw::parallel(threads, [&](int64_t ith, int64_t nth) {
                for (int64_t t = tiles * ith / nth; t < tiles * (ith + 1) / nth; ++t)
                    pack_panel(packed + t * TILE_N * depth,
                               Operand<float>{b.at(n0 + t * TILE_N, k0), b.line_stride, b.inner_stride},
                               smaller(TILE_N, width - t * TILE_N), depth);
            });
            kw::parallel(threads, [&](int64_t ith, int64_t nth) {
                for (int64_t p = panels * ith / nth; p < panels * (ith + 1) / nth; ++p) {
                    int64_t begin = M * p / panels, height = M * (p + 1) / panels - begin;
                    const float *lines = a.at(begin, k0), *next = lines + height * a.line_stride;
                    auto tile = in_place_tile_of<TURNED>(height, std::make_integer_sequence<int, TILE_M>{});
                    int64_t line = 0, k = 0, share = (height * depth + tiles - 1) / tiles;
                    for (int64_t t = 0; t < tiles; ++t) {
                        for (int64_t i = 0; i < share && line < height; i += 16) {  // of the next lines, from memory
                            __builtin_prefetch(next + line * a.line_stride + k, 0, 3);
                            k += 16;
                            if (k >= depth) k = 0, ++line;
                        }
                        int64_t n = n0 + t * TILE_N;
                        float* c = TURNED ? out + n * stride + begin : out + begin * stride + n;
                        const float* start = bias ? bias + (TURNED ? begin : n) : NOTHING;
                        tile(depth, lines, a.line_stride, packed + t * TILE_N * depth, c, stride, k0 ? nullptr : start,
                             smaller(TILE_N, N - n));
                    }
                }
            });
        }
}

// Whether it was done in place: x [M, K] and the weight [N, K] are a and b.
inline bool multiplied_in_place(int64_t M, int64_t N, int64_t K, Operand<float> a, Operand<float> b, Result<float> out,
                                const float* bias, int64_t threads) {
    if (M <= FEW_IN_PLACE || N <= FEW_IN_PLACE || out.column_stride != 1) return false;
    bool few = M < MANY_IN_PLACE || M < 8 * TILE_M * threads;  // rows of x, to be shared among threads
    if (b.inner_stride == 1 && few && M < N)
        in_place<true>(N, M, K, b, a, out.data, out.row_stride, bias, threads);
    else if (a.inner_stride == 1)
        in_place<false>(M, N, K, a, b, out.data, out.row_stride, bias, threads);
    else
        return false;
    return true;
}

}  // namespace

#endif
