// linear for 16-bit elements on Hopper: the kernels by element type and number of rows, and those of the gradients.
// Integers arrive as 64 bits.
#include "blocked.cuh"
#include "column_sums.cuh"
#include "stream.cuh"

#define KW_STREAM(name, warps, blocks, ...)                                                                            \
    extern "C" __global__ __launch_bounds__(32 * warps, blocks) void name(                                             \
        u16* out, const u16* x, const u16* w, const u16* bias, i64 x_stride, i64 w_stride, i64 M, i64 N, i64 K) {      \
        Product p{x, w, bias, out, x_stride, w_stride, static_cast<int>(M), static_cast<int>(N), static_cast<int>(K)}; \
        __VA_ARGS__(p);                                                                                                \
    }
#define KW_BLOCKED(name, T)                                                                              \
    extern "C" __global__ __launch_bounds__(384, 1) void name(                                           \
        u16*, const u16* bias, const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, \
        const __grid_constant__ TensorMap out, i64 M, i64 N, i64 K, i64 streamed, float* partials,       \
        i64 token) {                                                                                     \
        blocked<T>({x, w, out, bias, static_cast<int>(M), static_cast<int>(N), static_cast<int>(K),      \
                    static_cast<int>(streamed), partials, token});                                       \
    }
// The products of two gradients, which have no bias: grad weight, and grad^T x.
#define KW_GRADIENT(name, T, X, W)                                                                              \
    extern "C" __global__ __launch_bounds__(384, 1) void name(                                                  \
        u16*, const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,                         \
        const __grid_constant__ TensorMap out, i64 M, i64 N, i64 K, i64 streamed, float* partials, i64 token) { \
        blocked<T, X, W>({x, w, out, nullptr, static_cast<int>(M), static_cast<int>(N), static_cast<int>(K),    \
                          static_cast<int>(streamed), partials, token});                                        \
    }
#define KW_SUMS(T, type)                                                                                               \
    extern "C" __global__ __launch_bounds__(SUM_THREADS) void sum_rows_##type(float* shares, const u16* g, i64 stride, \
                                                                              i64 M, i64 N) {                          \
        sum_rows<T>(shares, g, stride, static_cast<int>(M), static_cast<int>(N));                                      \
    }                                                                                                                  \
    extern "C" __global__ __launch_bounds__(SUM_THREADS) void add_shares_##type(u16* out, const float* shares,         \
                                                                                i64 many, i64 N) {                     \
        add_shares<T>(out, shares, static_cast<int>(many), static_cast<int>(N));                                       \
    }
// stream_TYPE_ROWS_WARPS_R_U, as tuning.toml names them; ROWS of x at most.
#define KW_FEW(T, type, rows, warps, r, u, blocks) \
    KW_STREAM(stream_##type##_##rows##_##warps##_##r##_##u, warps, blocks, stream<T, rows, warps, r, u>)
#define KW_MANY(T, type, rows, warps, r, u, blocks) \
    KW_STREAM(stream_##type##_##rows##_##warps##_##r##_##u, warps, blocks, stream_many<T, (rows > 8), warps, r, u>)
#define KW_KERNELS(T, type)                        \
    KW_FEW(T, type, 1, 8, 4, 1, 4)                 \
    KW_FEW(T, type, 1, 4, 1, 4, 8)                 \
    KW_FEW(T, type, 1, 16, 2, 2, 2)                \
    KW_FEW(T, type, 1, 16, 1, 4, 2)                \
    KW_FEW(T, type, 2, 8, 4, 2, 2)                 \
    KW_FEW(T, type, 2, 16, 2, 2, 2)                \
    KW_FEW(T, type, 4, 8, 4, 2, 1)                 \
    KW_MANY(T, type, 8, 4, 1, 4, 6)                \
    KW_MANY(T, type, 8, 8, 1, 4, 4)                \
    KW_MANY(T, type, 8, 8, 2, 4, 2)                \
    KW_MANY(T, type, 16, 8, 2, 2, 2)               \
    KW_BLOCKED(blocked_##type, T)                  \
    KW_GRADIENT(grad_x_##type, T, ALONG, DOWN)     \
    KW_GRADIENT(grad_weight_##type, T, DOWN, DOWN) \
    KW_SUMS(T, type)

KW_KERNELS(Bf16, bfloat16)
KW_KERNELS(F16, float16)
