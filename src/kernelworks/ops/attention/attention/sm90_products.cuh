// The matrix units of Hopper as the gradients of attention need them: 64 rows a group of four warps, 32 to 128 columns,
// the left side from registers or from shared memory. All is asynchronous until wait_groups says otherwise.
#pragma once

#include "../../linear/linear/hopper.cuh"

#define KW_FIRST_32                                                                                                    \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
    "%30,%31"
#define KW_NEXT_32                                                                                                     \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,"    \
    "%59,%60,%61,%62,%63"
#define KW_SUMS_16 KW_EIGHT(0), KW_EIGHT(8)
#define KW_SUMS_32 KW_EIGHT(0), KW_EIGHT(8), KW_EIGHT(16), KW_EIGHT(24)
#define KW_SUMS_64 KW_SUMS_32, KW_EIGHT(32), KW_EIGHT(40), KW_EIGHT(48), KW_EIGHT(56)

// d = a b or d += a b, 16 deep: b as rows of k, or (DOWN) with k down the rows. `a` by descriptor or in registers.
#define KW_PRODUCTS(T, type)                                                                                           \
    template <int DOWN>                                                                                                \
    __device__ __forceinline__ void product(T, float (&d)[16], u64 a, u64 b, int add) {                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                                                      \
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,"    \
                     "%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 0, %19;\n}"                                        \
                     : KW_SUMS_16                                                                                      \
                     : "l"(a), "l"(b), "r"(add), "n"(DOWN));                                                           \
    }                                                                                                                  \
    template <int DOWN>                                                                                                \
    __device__ __forceinline__ void product(T, float (&d)[32], u64 a, u64 b, int add) {                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                      \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" KW_FIRST_32                      \
                     "}, %32, %33, p, 1, 1, 0, %35;\n}"                                                                \
                     : KW_SUMS_32                                                                                      \
                     : "l"(a), "l"(b), "r"(add), "n"(DOWN));                                                           \
    }                                                                                                                  \
    template <int DOWN>                                                                                                \
    __device__ __forceinline__ void product(T, float (&d)[64], u64 a, u64 b, int add) {                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                                      \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" KW_FIRST_32 KW_NEXT_32          \
                     "}, %64, %65, p, 1, 1, 0, %67;\n}"                                                                \
                     : KW_SUMS_64                                                                                      \
                     : "l"(a), "l"(b), "r"(add), "n"(DOWN));                                                           \
    }                                                                                                                  \
    __device__ __forceinline__ void add_product(T, float (&d)[32], const u32* a, u64 b) {                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" KW_FIRST_32                      \
                     "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                                          \
                     : KW_SUMS_32                                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }                                                                                                                  \
    __device__ __forceinline__ void add_product(T, float (&d)[64], const u32* a, u64 b) {                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" KW_FIRST_32 KW_NEXT_32          \
                     "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                                          \
                     : KW_SUMS_64                                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }

KW_PRODUCTS(Bf16, "bf16")
KW_PRODUCTS(F16, "f16")

inline __device__ void open_group() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline __device__ void close_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N groups of products are under way.
template <int N>
__device__ __forceinline__ void wait_groups() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Sums are not read before this place.
template <int N>
__device__ __forceinline__ void landed(float (&d)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) asm volatile("" : "+f"(d[j])::"memory");
}

// A tile in shared memory as the copies write it: panels of 64 columns, rows of 128 bytes, 128-byte swizzle. Read along
// its rows, or down them; then `panel` bytes lie between one panel and the next.
inline __device__ u64 tile_at(u32 address, u32 panel = 16) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (static_cast<u64>(panel >> 4) << 16) | (64ull << 32) |
           (1ull << 62);
}

struct alignas(64) TensorMap {
    char bytes[128];
};
// A box of a [batch, head, row, column] tensor; rows that it does not have are read as zero and not written.
inline __device__ void copy_in(u32 to, const TensorMap* map, int column, int row, int head, int batch, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
inline __device__ void copy_out(const TensorMap* map, int column, int row, int head, int batch, u32 from) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}
inline __device__ void copy_line_in(u32 to, const float* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
// Adds float32 numbers to those in memory, in no particular order with what other blocks add.
inline __device__ void add_line(float* to, u32 from, u32 bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
inline __device__ void close_copies() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until the copies out of shared memory have read it.
inline __device__ void copies_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// What was written to shared memory is seen by copies and matrix units.
inline __device__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
inline __device__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
inline __device__ void meet(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }
// What kernels before this one wrote may be read, and what they read may be written, from here on.
inline __device__ void wait_for_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
inline __device__ void let_kernels_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

inline __device__ float exp2_of(float x) {
    float r;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
inline __device__ float2 load_pair(u32 address) {
    float2 r;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(r.x), "=f"(r.y) : "r"(address) : "memory");
    return r;
}
inline __device__ void store_four(u32 address, float a, float b, float c, float d) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
inline __device__ void add_four(float* to, float a, float b, float c, float d) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
                 : "memory");
}
inline __device__ void store_matrices(u32 address, const u32* v) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
}
inline __device__ void store_turned(u32 address, const u32* v) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v[0]),
                 "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
