// The gradients of attention on Hopper for a head_dim of 256 and 16-bit elements: a number for each query, then dk, dv and
// dS, then dq of dS. Integers arrive as 64 bits.
#include "sm90_wide.cuh"
#include "sm90_wide_queries.cuh"

#define KW_SHARE                                                                                                      \
    {static_cast<int>(heads), static_cast<int>(group), static_cast<int>(first), static_cast<int>(pairs),              \
     static_cast<int>(queries), static_cast<int>(keys), static_cast<int>(section), static_cast<int>(shift)}
#define KW_PREPARE(name, T)                                                                                            \
    extern "C" __global__ __launch_bounds__(256) void name(const u16* g, const u16* out, const float* lse, float* rows, \
                                                           int* taken, i64 g_b, i64 g_h, i64 g_l, i64 o_b, i64 o_h,    \
                                                           i64 o_l, i64 heads, i64 queries) {                          \
        wide::prepare<T>({g, out, lse, rows, taken, g_b, g_h, g_l, o_b, o_h, o_l, static_cast<int>(heads),             \
                          static_cast<int>(queries)});                                                                 \
    }
#define KW_KEYS(name, T, HELD, AHEAD)                                                                                   \
    extern "C" __global__ __launch_bounds__(384, 1) void name(                                                          \
        const float* rows, u16* dk, u16* dv, int* taken, const __grid_constant__ TensorMap q,                           \
        const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap g,  \
        const __grid_constant__ TensorMap ds, i64 heads, i64 group, i64 first, i64 pairs, i64 queries, i64 keys,        \
        i64 section, i64 shift, float factor, float scale) {                                                            \
        wide::gradients<T, HELD, AHEAD>({q, k, v, g, ds, rows, dk, dv, taken, KW_SHARE, factor, scale});                \
    }
#define KW_QUERIES(name, T)                                                                                           \
    extern "C" __global__ __launch_bounds__(384, 1) void name(                                                        \
        u16* dq, int* taken, const __grid_constant__ TensorMap ds, const __grid_constant__ TensorMap k, i64 heads,    \
        i64 group, i64 first, i64 pairs, i64 queries, i64 keys, i64 section, i64 shift, float scale) {                \
        wide::queries<T>({ds, k, dq, taken, KW_SHARE, scale});                                                        \
    }

#ifndef KW_VARIANTS
KW_PREPARE(prepare_bfloat16_256, Bf16)
KW_PREPARE(prepare_float16_256, F16)
KW_KEYS(keys_bfloat16_256, Bf16, 8, false)
KW_KEYS(keys_float16_256, F16, 8, false)
KW_QUERIES(queries_bfloat16_256, WideBf16)
KW_QUERIES(queries_float16_256, WideF16)
#endif
