// block_sparse_attention for 16-bit elements on Hopper: the kernels by element type and cut. Integers arrive as 64 bits.
#include "sm90_blocks.cuh"

#define KW_FORWARD(name, T, C)                                                                                      \
    KW_LISTED_GROUP(T, C)                                                                                           \
    extern "C" __global__ __launch_bounds__(C::THREADS, 1) void name(                                               \
        u16* out, float* lse, int* drawn, const int* lists, const int* ranked, const __grid_constant__ TensorMap q, \
        const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o, \
        i64 of_batch, i64 of_head, i64 columns, i64 H, i64 Lk, i64 tiles, i64 heads, i64 band, i64 group, i64 Lq,   \
        float factor, i64 b, i64 h, i64 l) {                                                                        \
        Order order = {static_cast<int>(H),     static_cast<int>(Lk),    0,                                         \
                       static_cast<int>(Lk),    static_cast<int>(tiles), static_cast<int>(heads),                   \
                       static_cast<int>(band),  drawn};                                                             \
        Blocks blocks = {                                                                                           \
            {q, k, v, o, out, b, h, l, lse, order, static_cast<int>(group), static_cast<int>(Lq), factor},          \
            lists, ranked, static_cast<int>(of_batch), static_cast<int>(of_head), static_cast<int>(columns)};       \
        wait_for_kernels();                                                                                         \
        attention<T, C>(blocks);                                                                                    \
    }
// D, BN, STAGES, PLACES, SIGHT, HELD, as tuning.toml names the first five.
#define KW_CUT(d, bn, stages, places, sight, held)                                                     \
    using Listed_##d##_##sight = Listed<Cut<d, bn, 2, stages, places, sight, held>>;                   \
    KW_LISTED(Listed_##d##_##sight)                                                                    \
    KW_FORWARD(forward_bfloat16_##d##_##bn##_##stages##_##places##_##sight, Bf16, Listed_##d##_##sight) \
    KW_FORWARD(forward_float16_##d##_##bn##_##stages##_##places##_##sight, F16, Listed_##d##_##sight)

KW_CUT(256, 64, 2, 1, 0, false)
KW_CUT(256, 64, 2, 1, 1, false)
KW_CUT(128, 128, 2, 2, 0, true)
KW_CUT(128, 128, 2, 2, 1, true)
KW_CUT(64, 128, 5, 4, 0, false)
KW_CUT(64, 128, 5, 4, 1, false)
