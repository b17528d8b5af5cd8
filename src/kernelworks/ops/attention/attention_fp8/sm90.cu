// attention_fp8 on Hopper: the kernels by element type of the output and sight. Integers arrive as 64 bits.
#include "sm90_e4m3.cuh"
#include "sm90_turn.cuh"

#define KW_FORWARD(name, T, SIGHT)                                                                                    \
    extern "C" __global__ __launch_bounds__(384, 1) void name(                                                       \
        u16* out, const float2* factors, int* drawn, const __grid_constant__ TensorMap q,                            \
        const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, i64 H, i64 Lk, i64 shift,          \
        i64 tiles, i64 heads, i64 band, i64 group, i64 Lq, i64 b, i64 h, i64 l) {                                    \
        Order order = {static_cast<int>(H),     static_cast<int>(Lk),    static_cast<int>(shift), 0,                 \
                       static_cast<int>(tiles), static_cast<int>(heads), static_cast<int>(band),  drawn};            \
        e4m3::attention<e4m3::Cut<T, SIGHT>>(                                                                        \
            {q, k, v, out, b, h, l, factors, order, static_cast<int>(group), static_cast<int>(Lq)});                 \
    }
KW_FORWARD(forward_bfloat16_0, Bf16, 0)
KW_FORWARD(forward_bfloat16_1, Bf16, 1)
KW_FORWARD(forward_float16_0, F16, 0)
KW_FORWARD(forward_float16_1, F16, 1)

extern "C" __global__ __launch_bounds__(256) void turn(
    unsigned char* turned, const unsigned char* v, float2* factors, int* drawn, const float* q_descale,
    const float* k_descale, const float* v_descale, i64 b, i64 h, i64 l, i64 heads, i64 keys, i64 pitch, i64 q_b,
    i64 q_h, i64 k_b, i64 k_h, i64 v_b, i64 v_h, float scale) {
    e4m3::turn({v, turned, b, h, l, static_cast<int>(heads), static_cast<int>(keys), static_cast<int>(pitch),
                {q_descale, q_b, q_h}, {k_descale, k_b, k_h}, {v_descale, v_b, v_h}, scale, factors, drawn});
}
