// What the tiled kernels are made of: small matrix products in registers, packing, transposition and 2^x.
//
// Rows of a tile are queries and lie in the lanes of a vector, so the softmax over keys runs down registers and never
// across one. Scores are kept transposed, S^T[key][row], as are queries and outputs, Q^T[d][row] and O^T[d][row]:
//
//     S^T = K Q^T          O^T = V^T P^T
//
// and both products broadcast one element of K or V against vectors of rows: no reduction inside a vector, no packing
// of K or V beyond widening them to float32.
#pragma once

#include "problem.hpp"
#include "simd.hpp"

namespace kw::attention {

constexpr int64_t TILE = 64;       // keys in a tile, and rows at most
constexpr int64_t MAX_DIM = 256;   // head_dim at most
constexpr int64_t PAD_DIM = MAX_DIM + 16;
constexpr float LOG2E = 1.44269504f;
constexpr float LN2 = 0.693147181f;

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
// Rows of a packed tile lie this far apart: not a power of two, so that they spread over the cache's sets.
inline int64_t pitch(int64_t D) { return round_up(D, 16) + 16; }

// 2^x: x = n + r, |r| <= 1/2, n exact; 2^r by a degree-6 minimax polynomial (1.6e-8 with its coefficients
// rounded). +inf above
// 128, 0 below -150, NaN kept, and 2^0 is exactly 1.
inline vf exp2(vf x) {
    x = x > 129.0f ? splat(129.0f) : x;
    x = x < -151.0f ? splat(-151.0f) : x;
    vf n = round_nearest(x);
    vf r = x - n;
    vf p = splat(1.5353359e-4f);
    p = fma(p, r, splat(1.33988739e-3f));
    p = fma(p, r, splat(9.61843692e-3f));
    p = fma(p, r, splat(5.55033237e-2f));
    p = fma(p, r, splat(2.40226477e-1f));
    p = fma(p, r, splat(6.93147182e-1f));
    return scale_by_power_of_two(fma(p, r, splat(1.0f)), n);
}

// ---------------------------------------------------------------- products

enum Into { OVERWRITE, RESCALE, ADD };

// C[MR][NV vectors] = A B, or C * factor + A B with one factor a lane, or C + A B. A is row-major (A[i][k], rows lda
// apart) or k-major (A[k][i], MR at a time); B[k] and C[i] are rows of vectors. The sum is formed from zero.
template <int MR, int NV, bool KMAJOR, Into INTO>
inline void block(float* C, int64_t ldc, const float* A, int64_t lda, const float* B, int64_t ldb, int64_t depth,
                  const vf* factor) {
    vf acc[MR][NV] = {};
    for (int64_t k = 0; k < depth; ++k) {
        vf b[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) b[j] = load(B + k * ldb + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) {
            vf a = splat(KMAJOR ? A[k * lda + i] : A[i * lda + k]);
#pragma GCC unroll 4
            for (int j = 0; j < NV; ++j) acc[i][j] = fma(a, b[j], acc[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            float* c = C + i * ldc + j * LANES;
            if constexpr (INTO == RESCALE) acc[i][j] = fma(load(c), factor[j], acc[i][j]);
            if constexpr (INTO == ADD) acc[i][j] = load(c) + acc[i][j];
            store(c, acc[i][j]);
        }
    }
}

// The whole product: `rows` of C (rounded up to 8: A and C must have that many) by `vectors` vectors.
template <bool KMAJOR, Into INTO>
__attribute__((noinline)) void product(float* C, int64_t ldc, const float* A, int64_t lda, const float* B, int64_t ldb, int64_t rows,
                    int64_t vectors, int64_t depth, const vf* factor = nullptr) {
    constexpr int WIDE = LANES == 16 ? 4 : 2;  // 16 accumulators of 32 registers, 8 of 16
    auto columns = [&]<int MR, int NV>(int64_t j) {
        for (int64_t i = 0; i < rows; i += MR)
            block<MR, NV, KMAJOR, INTO>(C + i * ldc + j * LANES, ldc, KMAJOR ? A + i : A + i * lda, lda,
                                        B + j * LANES, ldb, depth, factor + j);
    };
    int64_t j = 0;
    for (; j + WIDE <= vectors; j += WIDE) columns.template operator()<4, WIDE>(j);
    if constexpr (WIDE == 4) {
        if (j + 2 <= vectors) {
            columns.template operator()<8, 2>(j);
            j += 2;
        }
    }
    if (j < vectors) columns.template operator()<8, 1>(j);
}

// ---------------------------------------------------------------- packing

// Lane l of vector i becomes lane i of vector l: blocks of `S` lanes change places, for S = 1, 2, 4, ...
template <int S>
inline void swap_blocks(vf* r) {
    vi low, high;
    for (int l = 0; l < LANES; ++l) {
        low[l] = l & S ? LANES + l - S : l;
        high[l] = l & S ? LANES + l : l + S;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) {
        if (i & S) continue;
        vf a = r[i], b = r[i + S];
        r[i] = __builtin_shuffle(a, b, low);
        r[i + S] = __builtin_shuffle(a, b, high);
    }
}
__attribute__((noinline)) inline void transpose(vf* r) {
    swap_blocks<1>(r);
    swap_blocks<2>(r);
    if constexpr (LANES >= 8) swap_blocks<4>(r);
    if constexpr (LANES >= 16) swap_blocks<8>(r);
}

inline int lanes_left(int64_t n) { return n < LANES ? static_cast<int>(n < 0 ? 0 : n) : LANES; }

// A row of D elements to float32, zero up to the next multiple of 16.
template <class T>
inline void pack_row(float* to, const T* from, int64_t D, float factor) {
    int64_t d = 0;
    for (; d + LANES <= D; d += LANES) store(to + d, load(from + d) * factor);
    if (d < D) store(to + d, load(from + d, static_cast<int>(D - d)) * factor), d += LANES;
    for (; d < round_up(D, 16); d += LANES) store(to + d, vf{});
}

// n rows, `pitch(D)` apart; those up to the next multiple of 8 are zeroed, since products work on 8 at a time.
template <class T>
inline void pack_rows(float* to, const T* from, int64_t stride, int64_t n, int64_t D) {
    for (int64_t i = 0; i < n; ++i, to += pitch(D), from += stride) pack_row(to, from, D, 1.0f);
    for (; n % 8; ++n, to += pitch(D)) std::memset(to, 0, sizeof(float) * static_cast<size_t>(pitch(D)));
}

// Rows of a query tile: row r of a key-value head is query r / group of its head r % group.
struct QueryRows {
    const Problem& p;
    int64_t b, kv_head, first, count;

    int64_t query(int64_t r) const { return (first + r) / p.group; }
    int64_t head(int64_t r) const { return kv_head * p.group + (first + r) % p.group; }
    template <class U>
    U* at(const Heads<U>& x, int64_t r) const {
        return x.at(b, head(r), query(r));
    }
    int64_t vectors() const { return round_up(count, LANES) / LANES; }
    int64_t pitch() const { return vectors() * LANES; }
};

// to[d][row] = x[row][d] * factor, rows beyond the tile as zero.
template <class T>
inline void pack_transposed(float* to, const Heads<T>& x, const QueryRows& rows, int64_t D, float factor) {
    int64_t ld = rows.pitch();
    for (int64_t r0 = 0; r0 < rows.count; r0 += LANES)
        for (int64_t d = 0; d < D; d += LANES) {
            int n = lanes_left(D - d);
            vf t[LANES];
            for (int i = 0; i < LANES; ++i) {
                if (r0 + i >= rows.count) {
                    t[i] = vf{};
                    continue;
                }
                const T* from = rows.at(x, r0 + i) + d;
                t[i] = (n == LANES ? load(from) : load(from, n)) * factor;
            }
            transpose(t);
            for (int i = 0; i < n; ++i) store(to + (d + i) * ld + r0, t[i]);
        }
}

// x[row][d] = from[d][row] * factor[row]
template <class T>
inline void unpack_transposed(const Heads<T>& x, const float* from, const QueryRows& rows, int64_t D, const vf* factor) {
    int64_t ld = rows.pitch();
    for (int64_t r0 = 0; r0 < rows.count; r0 += LANES)
        for (int64_t d = 0; d < D; d += LANES) {
            int n = lanes_left(D - d), m = lanes_left(rows.count - r0);
            vf t[LANES];
            for (int i = 0; i < LANES; ++i) t[i] = i < n ? load(from + (d + i) * ld + r0) * factor[r0 / LANES] : vf{};
            transpose(t);
            for (int i = 0; i < m; ++i) {
                T* to = rows.at(x, r0 + i) + d;
                if (n == LANES)
                    store(to, t[i]);
                else
                    store(to, t[i], n);
            }
        }
}

// ---------------------------------------------------------------- masking

// Scores that a row may not see become -inf. `seen` gathers which rows saw anything, where a mask could hide all.
struct Visibility {
    vi first[TILE / LANES], end[TILE / LANES];  // keys that each row sees, counted from the tile's first key

    Visibility(const QueryRows& rows, int64_t key) {
        for (int64_t r = 0; r < rows.pitch(); ++r) {
            int64_t i = rows.query(r < rows.count ? r : rows.count - 1);
            first[r / LANES][r % LANES] = clamped(rows.p.first_key(i) - key);
            end[r / LANES][r % LANES] = clamped(rows.p.end_key(i) - key);
        }
    }
    static int32_t clamped(int64_t x) { return static_cast<int32_t>(x < 0 ? 0 : (x < TILE ? x : TILE)); }
};

// Does every row of the tile see all of keys [key, key + n)?
inline bool all_visible(const QueryRows& rows, int64_t key, int64_t n) {
    const Problem& p = rows.p;
    return !p.mask && p.first_key(rows.query(rows.count - 1)) <= key && p.end_key(rows.query(0)) >= key + n;
}

// hidden[t][v]: all ones in the lanes of the rows that do not see key + t.
template <class F>
inline void for_hidden(const QueryRows& rows, int64_t key, int64_t n, F f) {
    const Problem& p = rows.p;
    Visibility visible(rows, key);
    for (int64_t v = 0; v < rows.vectors(); ++v) {
        const uint8_t* mask[LANES];
        if (p.mask)
            for (int i = 0; i < LANES; ++i) {
                int64_t r = v * LANES + i < rows.count ? v * LANES + i : rows.count - 1;
                mask[i] = p.mask_row(rows.b, rows.head(r), rows.query(r));
            }
        bool same_for_all = p.mask && p.mask_stride[1] == 0 && p.mask_stride[2] == 0;
        for (int64_t t = 0; t < n; ++t) {
            vi at = vi{} + static_cast<int32_t>(t);
            vi hidden = (at < visible.first[v]) | (at >= visible.end[v]);
            if (same_for_all) {
                hidden |= vi{} - (mask[0][(key + t) * p.mask_stride[3]] == 0);
            } else if (p.mask) {
                int64_t offset = (key + t) * p.mask_stride[3];
                vi masked;
                for (int i = 0; i < LANES; ++i) masked[i] = -(mask[i][offset] == 0);
                hidden |= masked;
            }
            f(t, v, hidden);
        }
    }
}

}  // namespace kw::attention
