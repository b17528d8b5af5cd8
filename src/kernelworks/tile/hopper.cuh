// What the kernels of this op package share: element types of 16 bits, and the instructions that C++ has no words for.
#pragma once

using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(16) Words {  // eight elements
    u32 a, b, c, d;
};

// d += a b on the matrix unit: a is 16 x 16, b 16 x 8, the sums are float32.
#define KW_MMA(type)                                                                                          \
    static __device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                   \
                     ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                             \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                         \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                 \
    }

#define KW_EIGHT(b) "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3]), "+f"(d[b + 4]), "+f"(d[b + 5]), \
                    "+f"(d[b + 6]), "+f"(d[b + 7])

// d = a b (fresh) or d += a b: a is 64 x 16, b 256 x 16, both in shared memory as their descriptors say, their 16 along
// rows or (A_DOWN, B_DOWN) down them. Asynchronous.
#define KW_WGMMA(type)                                                                                              \
    template <int A_DOWN = 0, int B_DOWN = 0>                                                                       \
    static __device__ __forceinline__ void wgmma(float (&d)[128], u64 a, u64 b, int add) {                          \
        asm volatile(                                                                                               \
            "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                                           \
            "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " "                                        \
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"   \
            "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"  \
            "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,"  \
            "%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,"     \
            "%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,"  \
            "%121,%122,%123,%124,%125,%126,%127}, %128, %129, p, 1, 1, %131, %132;\n}"                              \
            : KW_EIGHT(0), KW_EIGHT(8), KW_EIGHT(16), KW_EIGHT(24), KW_EIGHT(32), KW_EIGHT(40), KW_EIGHT(48),       \
              KW_EIGHT(56), KW_EIGHT(64), KW_EIGHT(72), KW_EIGHT(80), KW_EIGHT(88), KW_EIGHT(96), KW_EIGHT(104),    \
              KW_EIGHT(112), KW_EIGHT(120)                                                                          \
            : "l"(a), "l"(b), "r"(add), "n"(A_DOWN), "n"(B_DOWN));                                                  \
    }

struct Bf16 {
    KW_MMA("bf16")
    KW_WGMMA("bf16")
    static __device__ __forceinline__ float widen(u16 v) { return __uint_as_float(static_cast<u32>(v) << 16); }
    static __device__ __forceinline__ u16 round(float v) {
        u16 r;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
        return r;
    }
    static __device__ __forceinline__ u32 round(float low, float high) {
        u32 r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
};

struct F16 {
    KW_MMA("f16")
    KW_WGMMA("f16")
    static __device__ __forceinline__ float widen(u16 v) {
        float r;
        asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
        return r;
    }
    static __device__ __forceinline__ u16 round(float v) {
        u16 r;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
        return r;
    }
    static __device__ __forceinline__ u32 round(float low, float high) {
        u32 r;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
};

inline __device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// ---------------------------------------------------------------- barriers in shared memory

inline __device__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
inline __device__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
inline __device__ void barrier_wait(u32 barrier, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra GONE;\nbra AGAIN;\nGONE:\n}" ::"r"(barrier), "r"(phase)
        : "memory");
}
// At the barrier of the same place in another block of the cluster. With cluster-wide release semantics this would be a
// fence of all memory: the product of 4096^3 then ran at 560 TFLOP/s, and runs at 700.
inline __device__ void barrier_arrive_at(u32 barrier, u32 block) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(block)
        : "memory");
}
