// Many rows of x: both operands are packed into panels that a register tile reads in order, and one packed element of
// the weight is used once per row of x. The speed is that of the multipliers.
#pragma once

#include <utility>

#include "operand.hpp"

namespace {

thread_local Scratch panels_of_a, panels_of_b, partial_sums;

constexpr int TILE_M = LANES == 16 ? 14 : 6;  // rows of the register tile
constexpr int TILE_N = 2 * LANES;             // its columns: TILE_M * 2 sums, 2 weights and 1 element of x in registers
constexpr int64_t BLOCK_K = 384;              // a TILE_M x BLOCK_K panel of x stays in L1 while it meets
constexpr int64_t BLOCK_N = 16 * TILE_N;      // a BLOCK_K x BLOCK_N block of the weight, which stays in L2

// Rows of x packed at a time: what L3 holds, but enough to pay for packing the weight again, within 32 MiB of scratch.
inline int64_t rows_at_a_time(int64_t K) {
    int64_t cached = (2 << 20) / K, most = (8 << 20) / K + TILE_M;
    return smaller(most, cached < 512 ? 512 : smaller(cached, 4096));
}

// LANES lines by LANES inner elements, turned: row k of the result holds element k of every line.
inline void transpose(vf (&v)[LANES]) {
#pragma GCC unroll 5
    for (int width = 1; width < LANES; width *= 2)
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) {
            if (i & width) continue;
            vf low = interleaved(v[i], v[i + width], width, 0), high = interleaved(v[i], v[i + width], width, width);
            v[i] = low;
            v[i + width] = high;
        }
}

// LANES lines, of which `here` exist, by LANES steps to to[step * width]; each store may run over the next step's room,
// which is written after it, except the last, which writes `wide` elements.
template <class T>
inline void turn(float* to, Operand<T> from, int64_t here, int64_t width, int wide) {
    vf v[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) v[i] = i < here ? kw::load(from.at(i, 0)) : vf{};
    transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < LANES - 1; ++i) kw::store(to + i * width, v[i]);
    kw::store(to + (LANES - 1) * width, v[LANES - 1], wide);
}

// Packs `lines` by `count` inner elements into to[k * width + line], zeros for the missing lines. A width beyond LANES
// is a multiple of it.
template <class T>
__attribute__((noinline)) void pack(float* to, Operand<T> from, int64_t lines, int64_t width, int64_t count) {
    for (int64_t line = 0; line < width; line += LANES) {
        int64_t here = lines - line < LANES ? (lines > line ? lines - line : 0) : LANES;
        int wide = static_cast<int>(smaller(LANES, width - line));
        float* column = to + line;
        Operand<T> block{from.at(line, 0), from.line_stride, from.inner_stride};
        int64_t k = 0;
        if (from.inner_stride == 1) {
            for (; k + LANES <= count; k += LANES) {
                Operand<T> part{block.at(0, k), from.line_stride, 1};
                if (here == LANES && wide == LANES) {
                    for (int i = 0; i < LANES; ++i)
                        __builtin_prefetch(part.at(i, 256 / static_cast<int64_t>(sizeof(T))), 0, 3);
                    turn(column + k * width, part, LANES, width, LANES);
                } else {
                    turn(column + k * width, part, here, width, wide);
                }
            }
            for (; k < count; ++k)
                for (int i = 0; i < wide; ++i)
                    column[k * width + i] = i < here ? kw::to_float(*block.at(i, k)) : 0.0f;
        } else if (from.line_stride == 1 && here == LANES) {
            for (; k < count; ++k) kw::store(column + k * width, kw::load(block.at(0, k)));
        } else {  // line_stride is 1
            int tail = static_cast<int>(here);
            for (; k < count; ++k) kw::store(column + k * width, kw::load(block.at(0, k), tail), wide);
        }
    }
}

// c[M, TILE_N] = (first ? start : c) + a b, where a and b are panels of `count` steps. `columns` of c exist.
template <int M>
void tile(int64_t count, const float* a, const float* b, float* c, int64_t c_stride, const float* start,
          int64_t columns) {
    vf acc[M][2];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
        acc[i][0] = acc[i][1] = vf{};
        __builtin_prefetch(c + i * c_stride, 1, 3);
        __builtin_prefetch(c + i * c_stride + TILE_N - 1, 1, 3);
    }
    for (; count > 0; --count) {
        vf b0 = kw::load(b), b1 = kw::load(b + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
            vf one = kw::splat(a[i]);
            acc[i][0] = kw::fma(one, b0, acc[i][0]);
            acc[i][1] = kw::fma(one, b1, acc[i][1]);
        }
        a += M;
        b += TILE_N;
    }
    int64_t add_stride = start ? 0 : c_stride;
    const float* add = start ? start : c;
    if (columns == TILE_N) {
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
            kw::store(c + i * c_stride, acc[i][0] + kw::load(add + i * add_stride));
            kw::store(c + i * c_stride + LANES, acc[i][1] + kw::load(add + i * add_stride + LANES));
        }
        return;
    }
    int n0 = static_cast<int>(smaller(columns, LANES)), n1 = static_cast<int>(columns) - n0;
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
        kw::store(c + i * c_stride, acc[i][0] + kw::load(add + i * add_stride, n0), n0);
        if (n1) kw::store(c + i * c_stride + LANES, acc[i][1] + kw::load(add + i * add_stride + LANES, n1), n1);
    }
}

using Tile = void (*)(int64_t, const float*, const float*, float*, int64_t, const float*, int64_t);
template <int... I>
Tile tile_of(int64_t rows, std::integer_sequence<int, I...>) {
    static constexpr Tile all[] = {tile<I + 1>...};
    return all[rows - 1];
}
Tile tile_of(int64_t rows) { return tile_of(rows, std::make_integer_sequence<int, TILE_M>{}); }

// out = a b + bias: a has M lines, b has N lines, both summed over K. Any strides.
template <class T>
__attribute__((noinline)) void blocked(int64_t M, int64_t N, int64_t K, Operand<T> a, Operand<T> b, Result<T> out,
                                       const T* bias, int64_t threads) {
    // Panels of 1 to TILE_M rows, as equal as can be; N or M is cut between the threads, whichever balances better.
    int64_t blocks_m = (M + rows_at_a_time(K) - 1) / rows_at_a_time(K);
    int64_t blocks_k = (K + BLOCK_K - 1) / BLOCK_K, block_k = (K + blocks_k - 1) / blocks_k;
    for (int64_t block = 0; block < blocks_m; ++block) {
        int64_t m0 = M * block / blocks_m, rows = M * (block + 1) / blocks_m - m0;
        int64_t panels = (rows + TILE_M - 1) / TILE_M;
        auto first_row = [&](int64_t panel) { return rows * panel / panels; };
        int64_t columns = (N + TILE_N - 1) / TILE_N;
        int64_t cut_n = (columns + threads - 1) / threads * panels, cut_m = (panels + threads - 1) / threads * columns;
        bool by_n = cut_n <= cut_m;
        float* pa = panels_of_a.room<float>(rows * K);
        // Panel p, block k0 of x: its rows side by side, k0 major.
        kw::parallel(threads, [&](int64_t ith, int64_t nth) {
            for (int64_t p = panels * ith / nth; p < panels * (ith + 1) / nth; ++p) {
                int64_t begin = first_row(p), height = first_row(p + 1) - begin;
                for (int64_t k0 = 0; k0 < K; k0 += block_k) {
                    int64_t depth = smaller(block_k, K - k0);
                    Operand<T> part{a.at(m0 + begin, k0), a.line_stride, a.inner_stride};
                    pack(pa + rows * k0 + begin * depth, part, height, height, depth);
                }
            }
        });
        kw::parallel(threads, [&](int64_t ith, int64_t nth) {
            kw::Range cols = by_n ? kw::slice(N, ith, nth, TILE_N) : kw::Range{0, N};
            kw::Range mine = by_n ? kw::Range{0, panels} : kw::slice(panels, ith, nth);
            int64_t my_row = first_row(mine.begin), my_rows = first_row(mine.end) - my_row;
            if (my_rows == 0 || cols.begin == cols.end) return;
            float* pb = panels_of_b.room<float>(block_k * BLOCK_N);
            constexpr bool direct = sizeof(T) == 4;
            float* partial = nullptr;
            if (!direct) partial = partial_sums.room<float>(my_rows * BLOCK_N);
            float start[BLOCK_N];
            for (int64_t n0 = cols.begin; n0 < cols.end; n0 += BLOCK_N) {
                int64_t width = smaller(BLOCK_N, cols.end - n0);
                for (int64_t j = 0; j < BLOCK_N; ++j) start[j] = bias && j < width ? kw::to_float(bias[n0 + j]) : 0.0f;
                for (int64_t k0 = 0; k0 < K; k0 += block_k) {
                    int64_t depth = smaller(block_k, K - k0);
                    for (int64_t j = 0; j < width; j += TILE_N)
                        pack(pb + j * depth, Operand<T>{b.at(n0 + j, k0), b.line_stride, b.inner_stride},
                             smaller(TILE_N, width - j), TILE_N, depth);
                    auto one = [&](int64_t p, int64_t j) {
                        int64_t begin = first_row(p), height = first_row(p + 1) - begin;
                        float* c;
                        int64_t c_stride;
                        if constexpr (direct) {
                            c = out.data + (m0 + begin) * out.row_stride + n0;
                            c_stride = out.row_stride;
                        } else {
                            c = partial + (begin - my_row) * BLOCK_N;
                            c_stride = BLOCK_N;
                        }
                        const float* panel = pa + rows * k0 + begin * depth;
                        // The next panel of x comes from L3: fetch the share of it that falls to this tile.
                        int64_t share = height * depth * TILE_N / width;
                        const float* next = panel + height * depth + j / TILE_N * share;
                        for (int64_t i = 0; i < share; i += 16) __builtin_prefetch(next + i, 0, 3);
                        tile_of(height)(depth, panel, pb + j * depth, c + j, c_stride,
                                        k0 == 0 ? start + j : nullptr, smaller(TILE_N, width - j));
                    };
                    for (int64_t p = mine.begin; p < mine.end; ++p)
                        for (int64_t j = 0; j < width; j += TILE_N) one(p, j);
                }
                if constexpr (!direct)
                    for (int64_t i = 0; i < my_rows; ++i) {
                        const float* from = partial + i * BLOCK_N;
                        T* to = out.data + (m0 + my_row + i) * out.row_stride + n0;
                        int64_t j = 0;
                        for (; j + LANES <= width; j += LANES) kw::store(to + j, kw::load(from + j));
                        if (j < width) kw::store(to + j, kw::load(from + j), static_cast<int>(width - j));
                    }
            }
        });
    }
}

}  // namespace
