// attention for 16-bit elements on Hopper: the kernels by element type and cut. Integers arrive as 64 bits.
#include "sm90_forward.cuh"

// Products of 176 columns, whose left side lies in shared memory too.
#define KW_SUMS88 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
    "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
    "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87}"
#define KW_OUT88 KW_OUT80, KW_EIGHT(80)

struct BroadBf16 : Bf16 {
    using Bf16::product;
    KW_BOTH_SHARED("bf16", 88, "176", "%88", "%89", "%90", "%91")
};
struct BroadF16 : F16 {
    using F16::product;
    KW_BOTH_SHARED("f16", 88, "176", "%88", "%89", "%90", "%91")
};

#define KW_FORWARD(name, T, ...)                                                                                \
    extern "C" __global__ __launch_bounds__(Cut<__VA_ARGS__>::THREADS, 1) void name(                            \
        u16* out, float* lse, int* drawn, const u16* sinks, const __grid_constant__ TensorMap q,                \
        const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,                               \
        const __grid_constant__ TensorMap o, i64 H, i64 Lk, i64 shift, i64 window, i64 tiles, i64 heads,        \
        i64 band, i64 group, i64 Lq, float factor, i64 b, i64 h, i64 l) {                                       \
        Order order = {static_cast<int>(H),     static_cast<int>(Lk),    static_cast<int>(shift),               \
                       static_cast<int>(window), static_cast<int>(tiles), static_cast<int>(heads),               \
                       static_cast<int>(band),  drawn};                                                         \
        attention<T, Cut<__VA_ARGS__>>(                                                                         \
            {q, k, v, o, out, b, h, l, lse, order, static_cast<int>(group), static_cast<int>(Lq), factor, sinks}); \
    }
// forward_TYPE_D_BN_GROUPS_STAGES_PLACES_SIGHT, as tuning.toml names them.
#define KW_CUT(T, type, d, bn, groups, stages, places, sight, held)                                      \
    KW_FORWARD(forward_##type##_##d##_##bn##_##groups##_##stages##_##places##_##sight, T, d, bn, groups, \
               stages, places, sight, held)
#define KW_KERNELS(T, type)                      \
    KW_CUT(T, type, 256, 64, 2, 2, 1, 0, false)  \
    KW_CUT(T, type, 256, 64, 2, 2, 1, 1, false)  \
    KW_CUT(T, type, 256, 64, 2, 2, 1, 2, false)  \
    KW_CUT(T, type, 128, 128, 2, 2, 2, 1, true)  \
    KW_CUT(T, type, 128, 128, 2, 2, 2, 2, true)  \
    KW_CUT(T, type, 128, 128, 2, 2, 2, 0, false) \
    KW_CUT(T, type, 128, 176, 2, 2, 1, 0, false) \
    KW_CUT(T, type, 64, 128, 2, 5, 4, 0, false)  \
    KW_CUT(T, type, 64, 128, 2, 5, 4, 1, false)  \
    KW_CUT(T, type, 64, 128, 2, 5, 4, 2, false)  \
    KW_CUT(T, type, 64, 128, 3, 4, 3, 0, false)  \
    KW_CUT(T, type, 64, 128, 3, 4, 3, 1, false)  \
    KW_CUT(T, type, 64, 64, 4, 6, 3, 0, false)   \
    KW_CUT(T, type, 64, 64, 4, 6, 3, 1, false)

KW_KERNELS(BroadBf16, bfloat16)
KW_KERNELS(BroadF16, float16)
