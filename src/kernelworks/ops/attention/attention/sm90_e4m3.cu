// attention of e4m3 on Hopper: the kernels by cut, and the one that turns values. Integers arrive as 64 bits.
#include "sm90_e4m3.cuh"

#define KW_E4M3(name, ...)                                                                                           \
    extern "C" __global__ __launch_bounds__(384, 1) void name(                                                       \
        u16* out, float* lse, int* drawn, const float* q_scale, const float* k_scale, const float* v_scale,          \
        const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, \
        i64 H, i64 Lk, i64 shift, i64 tiles, i64 heads, i64 band, i64 group, i64 Lq, float scale, i64 b, i64 h,      \
        i64 l) {                                                                                                     \
        Order order = {static_cast<int>(H),     static_cast<int>(Lk),    static_cast<int>(shift), 0,                 \
                       static_cast<int>(tiles), static_cast<int>(heads), static_cast<int>(band),  drawn};            \
        e4m3::attention<e4m3::Cut<__VA_ARGS__>>({q, k, v, out, b, h, l, lse, q_scale, k_scale, v_scale, order,       \
                                                 static_cast<int>(group), static_cast<int>(Lq), scale});             \
    }

#ifndef KW_VARIANTS
KW_E4M3(forward_whole, 128, 4, 0, false)
KW_E4M3(forward_causal, 128, 4, 1, false)
#endif

extern "C" __global__ __launch_bounds__(256) void turn(const unsigned char* v, unsigned char* turned, int* drawn, i64 b,
                                                       i64 h, i64 l, i64 heads, i64 keys, i64 pitch) {
    e4m3::turn({v, turned, drawn, b, h, l, static_cast<int>(heads), static_cast<int>(keys), static_cast<int>(pitch)});
}
