// The gradients of block_sparse_attention on Hopper, for 16-bit elements: the kernels by element type and head_dim. What
// lies before and after the one that multiplies is attention's.
#include "sm90_backward_lists.cuh"
#include "../attention/sm90_rows.cuh"

#define KW_AROUND(type, T, D)                                                                                      \
    extern "C" __global__ __launch_bounds__(256) void prepare_##type##_##D(                                        \
        const u16* g, const u16* out, const float* lse, float* rows, float* sums, int* taken, i64 g_b, i64 g_h,    \
        i64 g_l, i64 o_b, i64 o_h, i64 o_l, i64 heads, i64 queries) {                                              \
        prepare<T, D>({g, out, lse, rows, sums, taken, g_b, g_h, g_l, o_b, o_h, o_l, static_cast<int>(heads),      \
                       static_cast<int>(queries)});                                                                \
    }                                                                                                              \
    extern "C" __global__ __launch_bounds__(256) void finish_##type##_##D(u16* dq, const float* sums, i64 queries, \
                                                                          float scale) {                           \
        finish<T, D>(dq, sums, static_cast<int>(queries), scale);                                                  \
    }
#define KW_GRADIENTS(type, T, D)                                                                                       \
    KW_LISTED_GROUP(T, D)                                                                                              \
    extern "C" __global__ __launch_bounds__(384, 1) void gradients_##type##_##D(                                       \
        const float* rows, float* sums, int* taken, const int* lists, const int* counts, const int* ranked,            \
        const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, \
        const __grid_constant__ TensorMap g, const __grid_constant__ TensorMap dk,                                     \
        const __grid_constant__ TensorMap dv, i64 of_batch, i64 of_head, i64 heads, i64 group, i64 pairs, i64 queries, \
        i64 keys, i64 section, i64 shift, float factor, float scale) {                                                 \
        Listed listed = {{q, k, v, g, dk, dv, rows, sums, taken, static_cast<int>(heads), static_cast<int>(group),     \
                          static_cast<int>(pairs), static_cast<int>(queries), static_cast<int>(keys),                  \
                          static_cast<int>(section), static_cast<int>(shift), FAR, factor, scale},                     \
                         lists, counts, ranked, static_cast<int>(of_batch), static_cast<int>(of_head)};                \
        gradients<T, D, false>(listed);                                                                                \
    }
#define KW_KERNELS(D)               \
    KW_LISTED_FETCH(D, true)        \
    KW_LISTED_FETCH(D, false)       \
    KW_AROUND(bfloat16, Bf16, D)    \
    KW_AROUND(float16, F16, D)      \
    KW_GRADIENTS(bfloat16, Bf16, D) \
    KW_GRADIENTS(float16, F16, D)

KW_KERNELS(128)
KW_KERNELS(64)
