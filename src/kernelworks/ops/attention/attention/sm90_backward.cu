// The gradients of attention on Hopper, for 16-bit elements: the kernels by element type and head_dim. Before and after
// the one that multiplies lie one that forms a number for each query, and one that rounds the sums of dq.
#include "sm90_gradients.cuh"
#include "sm90_rows.cuh"

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
#define KW_GRADIENTS(name, T, D, WINDOW)                                                                               \
    extern "C" __global__ __launch_bounds__(384, 1) void name(                                                         \
        const float* rows, float* sums, int* taken, const __grid_constant__ TensorMap q,                               \
        const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap g, \
        const __grid_constant__ TensorMap dk, const __grid_constant__ TensorMap dv, i64 heads, i64 group, i64 pairs,   \
        i64 queries, i64 keys, i64 section, i64 shift, i64 window, float factor, float scale) {                        \
        gradients<T, D, WINDOW>({q, k, v, g, dk, dv, rows, sums, taken, static_cast<int>(heads),                       \
                                 static_cast<int>(group), static_cast<int>(pairs), static_cast<int>(queries),          \
                                 static_cast<int>(keys), static_cast<int>(section), static_cast<int>(shift),           \
                                 static_cast<int>(window), factor, scale});                                            \
    }
#define KW_KERNELS(type, T, D)                         \
    KW_AROUND(type, T, D)                              \
    KW_GRADIENTS(gradients_##type##_##D, T, D, false)  \
    KW_GRADIENTS(gradients_##type##_##D##_window, T, D, true)

KW_KERNELS(bfloat16, Bf16, 128)
KW_KERNELS(float16, F16, 128)
KW_KERNELS(bfloat16, Bf16, 64)
KW_KERNELS(float16, F16, 64)
