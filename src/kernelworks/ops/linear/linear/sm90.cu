// linear for 16-bit elements on Hopper: the kernels by element type and number of rows. Integers arrive as 64 bits.
#include "blocked.cuh"
#include "stream.cuh"

#define KW_STREAM(name, threads, blocks, ...)                                                                         \
    extern "C" __global__ __launch_bounds__(threads, blocks) void name(                                               \
        u16* out, const u16* x, const u16* w, const u16* bias, i64 x_stride, i64 w_stride, i64 M, i64 N, i64 K,       \
        i64 rounds, i64 per_block) {                                                                                  \
        Product p{x, w, bias, out, x_stride, w_stride, static_cast<int>(M), static_cast<int>(N), static_cast<int>(K), \
                  static_cast<int>(rounds), static_cast<int>(per_block)};                                             \
        __VA_ARGS__(p);                                                                                               \
    }
#define KW_BLOCKED(name, T)                                                                                        \
    extern "C" __global__ __launch_bounds__(384, 1) void name(                                                     \
        u16*, const u16* bias, const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,           \
        const __grid_constant__ TensorMap out, i64 M, i64 N, i64 K) {                                              \
        blocked<T>(x, w, out, bias, static_cast<int>(M), static_cast<int>(N), static_cast<int>(K));                \
    }
#define KW_KERNELS(T, suffix)                                                            \
    KW_STREAM(stream_1_##suffix, 256, 2, stream_pair<T, 8, 8, false>)                    \
    KW_STREAM(stream_2_##suffix, 256, 2, stream_pair<T, 8, 8, true>)                     \
    KW_STREAM(stream_8_##suffix, 256, 2, stream_rows<T, 8, 2, 4, false>)                 \
    KW_STREAM(stream_16_##suffix, 256, 2, stream_rows<T, 8, 2, 2, true>)                 \
    KW_BLOCKED(blocked_##suffix, T)

KW_KERNELS(Bf16, bfloat16)
KW_KERNELS(F16, float16)
