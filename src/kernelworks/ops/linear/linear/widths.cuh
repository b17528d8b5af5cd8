// wgmma of 64 rows by N columns, both operands in shared memory as their descriptors say, K on end, for the widths of
// middle.cuh: d += a b, a 64 x 16, b N x 16, sums in float32. Asynchronous. The text of the lists of registers is all
// that differs from one N to the next: each is the one before it and some more.
#pragma once

#include "hopper.cuh"

template <class T>
constexpr bool IS_HALF = false;
template <>
constexpr bool IS_HALF<F16> = true;

#define KW_WGMMA_OF(N, type, list, a, b, ...)                                        \
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type    \
                 " {" list "}, %" #a ", %" #b ", p, 1, 1, 0, 0;\n}"                 \
                 : __VA_ARGS__                                                      \
                 : "l"(left), "l"(right))
#define KW_WGMMA_SIZE(N, list, a, b, ...)                                            \
    template <class T>                                                              \
    __device__ __forceinline__ void wgmma_add(float (&d)[N / 2], u64 left, u64 right) { \
        if constexpr (IS_HALF<T>)                                                   \
            KW_WGMMA_OF(N, "f16", list, a, b, __VA_ARGS__);                         \
        else                                                                        \
            KW_WGMMA_OF(N, "bf16", list, a, b, __VA_ARGS__);                        \
    }
#define KW_FOUR(b) "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3])

#define KW_LIST_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define KW_SUMS_32 KW_EIGHT(0), KW_EIGHT(8)
#define KW_LIST_40 KW_LIST_32 ",%16,%17,%18,%19"
#define KW_SUMS_40 KW_SUMS_32, KW_FOUR(16)
#define KW_LIST_48 KW_LIST_40 ",%20,%21,%22,%23"
#define KW_SUMS_48 KW_SUMS_40, KW_FOUR(20)
#define KW_LIST_56 KW_LIST_48 ",%24,%25,%26,%27"
#define KW_SUMS_56 KW_SUMS_48, KW_FOUR(24)
#define KW_LIST_64 KW_LIST_56 ",%28,%29,%30,%31"
#define KW_SUMS_64 KW_SUMS_56, KW_FOUR(28)
#define KW_LIST_88 KW_LIST_64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43"
#define KW_SUMS_88 KW_SUMS_64, KW_EIGHT(32), KW_FOUR(40)
#define KW_LIST_96 KW_LIST_88 ",%44,%45,%46,%47"
#define KW_SUMS_96 KW_SUMS_88, KW_FOUR(44)
#define KW_LIST_112 KW_LIST_96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define KW_SUMS_112 KW_SUMS_96, KW_EIGHT(48)
#define KW_LIST_128 KW_LIST_112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define KW_SUMS_128 KW_SUMS_112, KW_EIGHT(56)
#define KW_LIST_160 KW_LIST_128 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define KW_SUMS_160 KW_SUMS_128, KW_EIGHT(64), KW_EIGHT(72)
#define KW_LIST_192 KW_LIST_160 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define KW_SUMS_192 KW_SUMS_160, KW_EIGHT(80), KW_EIGHT(88)

KW_WGMMA_SIZE(32, KW_LIST_32, 16, 17, KW_SUMS_32)
KW_WGMMA_SIZE(40, KW_LIST_40, 20, 21, KW_SUMS_40)
KW_WGMMA_SIZE(48, KW_LIST_48, 24, 25, KW_SUMS_48)
KW_WGMMA_SIZE(56, KW_LIST_56, 28, 29, KW_SUMS_56)
KW_WGMMA_SIZE(64, KW_LIST_64, 32, 33, KW_SUMS_64)
KW_WGMMA_SIZE(88, KW_LIST_88, 44, 45, KW_SUMS_88)
KW_WGMMA_SIZE(96, KW_LIST_96, 48, 49, KW_SUMS_96)
KW_WGMMA_SIZE(112, KW_LIST_112, 56, 57, KW_SUMS_112)
KW_WGMMA_SIZE(128, KW_LIST_128, 64, 65, KW_SUMS_128)
KW_WGMMA_SIZE(160, KW_LIST_160, 80, 81, KW_SUMS_160)
KW_WGMMA_SIZE(192, KW_LIST_192, 96, 97, KW_SUMS_192)
