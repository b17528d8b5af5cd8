// attention for few queries on Hopper: the kernels by element type and cut. Integers arrive as 64 bits.
#include "sm90_decode.cuh"

#define KW_PROBLEM                                                                                                  \
    u16 *out, float *lse, float *partial, const u16 *q, const u16 *k, const u16 *v, i64 q_b, i64 q_h, i64 q_l,      \
        i64 k_b, i64 k_h, i64 k_l, i64 v_b, i64 v_h, i64 v_l, i64 o_b, i64 o_h, i64 o_l, i64 heads, i64 group,      \
        i64 queries, i64 keys, i64 first, i64 last, i64 length, i64 shares, i64 shift, i64 window, i64 part,        \
        float factor
#define KW_GIVEN                                                                                                    \
    {out, lse, partial, q, k, v, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, o_b, o_h, o_l,                        \
     static_cast<int>(heads), static_cast<int>(group), static_cast<int>(queries), static_cast<int>(keys),           \
     static_cast<int>(first), static_cast<int>(last), static_cast<int>(length), static_cast<int>(shares),           \
     static_cast<int>(shift), static_cast<int>(window), static_cast<int>(part), factor}

#define KW_SHARE(T, type, d, warps, stages, how, join, blocks)                                                      \
    extern "C" __global__ __launch_bounds__(32 * warps, blocks) void how##_##type##_##d##_##warps(KW_PROBLEM) {     \
        few::attention<few::T, few::Cut<d, warps, stages, few::join>>(KW_GIVEN);                                    \
    }
#define KW_JOIN(T, type, d)                                                                                         \
    extern "C" __global__ __launch_bounds__(32 * few::JOINERS) void join_##type##_##d(KW_PROBLEM) {                 \
        few::join_shares<few::T, d>(KW_GIVEN);                                                                      \
    }
#define KW_CUT(T, type, d, warps, stages, blocks)               \
    KW_SHARE(T, type, d, warps, stages, whole, WHOLE, blocks)   \
    KW_SHARE(T, type, d, warps, stages, apart, APART, blocks)   \
    KW_SHARE(T, type, d, warps, stages, cluster, CLUSTER, blocks)
#define KW_KERNELS(T, type)        \
    KW_CUT(T, type, 64, 8, 6, 1)   \
    KW_CUT(T, type, 128, 8, 3, 1)  \
    KW_CUT(T, type, 256, 4, 3, 1)  \
    KW_JOIN(T, type, 64)           \
    KW_JOIN(T, type, 128)          \
    KW_JOIN(T, type, 256)

KW_KERNELS(FewBf16, bfloat16)
KW_KERNELS(FewF16, float16)
