// Instructions of Hopper's for 8 bits (e4m3: 4 bits of exponent, 3 behind the point, up to 448), beside those of attention.
#pragma once

#include "../attention/sm90_more_instructions.cuh"

namespace e4m3 {

inline __device__ float exponential(float x) {  // of base 2; 0 below 2^-126
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
inline __device__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
inline __device__ float across(float x, int lanes) { return __shfl_xor_sync(0xFFFFFFFF, x, lanes); }
inline __device__ int largest(int a, int b, int c) { return __vimax3_s32(a, b, c); }

// Stores four weights where each of them is -0, which none ever is.
inline __device__ void never_store(u32 address, u32 word) {
    asm volatile("{\n.reg .pred never;\nsetp.eq.b32 never, %0, 0x80808080;\n@never st.volatile.shared.b32 [%1], %0;\n}" ::"r"(word),
                 "r"(address)
                 : "memory");
}
inline __device__ void store_word(u32 address, u32 word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
// Bytes of two words, by number.
inline __device__ u32 chosen(u32 a, u32 b, u32 bytes) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(bytes));
    return r;
}

#define KW_SUMS68 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
    "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
    "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67}"

// d = a b or (add) d += a b: a is 64 x 32, b 32 x N in shared memory, both along k. Of 128 columns, a in shared memory:
inline __device__ void product(float (&d)[64], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " KW_SUMS64 ", %64, %65, p, 1, 1;\n}"
                 : KW_OUT64
                 : "l"(a), "l"(b), "r"(add));
}
// Of 136, a in registers: of the last eight columns each thread has two sums a row.
inline __device__ void product(float (&d)[68], const u32* a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %73, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 " KW_SUMS68
                 ", {%68, %69, %70, %71}, %72, p, 1, 1;\n}"
                 : KW_OUT64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// About 2^x of four x, each given as 8 x + 56: the bits of e4m3 grow by 8 a power of two, and between two of them as a
// straight line. 0 below 2^-7. No more than 126 may be given.
inline __device__ u32 powers(float a, float b, float c, float d) {
    u32 low, high;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(b), "f"(a));
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(d), "f"(c));
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(low) : "r"(low), "r"(0x64006400));  // 1024: whole numbers in the low bits
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(high) : "r"(high), "r"(0x64006400));
    return chosen(low, high, 0x6420);
}

}  // namespace e4m3
