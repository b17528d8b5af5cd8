// What attention's kernels share on Hopper: element types of 16 bits, and the instructions that C++ has no words for.
#pragma once

using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

// ---------------------------------------------------------------- products on the matrix units
//
// N / 2 sums a thread: of rows lane / 4 and 8 more, two neighbours in every eight columns. Asynchronous.

#define KW_EIGHT(b) \
    "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3]), "+f"(d[b + 4]), "+f"(d[b + 5]), "+f"(d[b + 6]), \
        "+f"(d[b + 7])
#define KW_SUMS32                                                                                             \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
    "%28,%29,%30,%31}"
#define KW_OUT32 \
    KW_EIGHT(0), KW_EIGHT(8), KW_EIGHT(16), KW_EIGHT(24)
#define KW_SUMS64                                                                                              \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"  \
    "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
    "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define KW_OUT64 \
    KW_EIGHT(0), KW_EIGHT(8), KW_EIGHT(16), KW_EIGHT(24), KW_EIGHT(32), KW_EIGHT(40), KW_EIGHT(48), \
    KW_EIGHT(56)
#define KW_SUMS80                                                                                              \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"  \
    "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
    "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79}"
#define KW_OUT80 \
    KW_EIGHT(0), KW_EIGHT(8), KW_EIGHT(16), KW_EIGHT(24), KW_EIGHT(32), KW_EIGHT(40), KW_EIGHT(48), \
    KW_EIGHT(56), KW_EIGHT(64), KW_EIGHT(72)

// d = a b^T (fresh) or d += a b^T: a is 64 x 16, b N x 16, both in shared memory as their descriptors say.
#define KW_BOTH_SHARED(type, R, COLUMNS, A, B, P)                                                             \
    static __device__ __forceinline__ void scores(float (&d)[R], u64 a, u64 b, int add) {                     \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\nwgmma.mma_async.sync.aligned.m64n" COLUMNS  \
                     "k16.f32." type "." type " " KW_SUMS##R ", " A ", " B ", p, 1, 1, 0, 0;\n}"             \
                     : KW_OUT##R                                                                              \
                     : "l"(a), "l"(b), "r"(add));                                                             \
    }
// The same with a in registers.
#define KW_LEFT_HELD(type, R, COLUMNS, A, B, P)                                                               \
    static __device__ __forceinline__ void scores(float (&d)[R], const u32* a, u64 b, int add) {              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\nwgmma.mma_async.sync.aligned.m64n" COLUMNS  \
                     "k16.f32." type "." type " " KW_SUMS##R ", {" A "}, " B ", p, 1, 1, 0;\n}"              \
                     : KW_OUT##R                                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                         \
    }
// d = a b or d += a b: a is 64 x 16 in registers, b 16 x N in shared memory.
#define KW_VALUES(type, R, COLUMNS, A, B, P)                                                                  \
    static __device__ __forceinline__ void values(float (&d)[R], const u32* a, u64 b, int add) {              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\nwgmma.mma_async.sync.aligned.m64n" COLUMNS  \
                     "k16.f32." type "." type " " KW_SUMS##R ", {" A "}, " B ", p, 1, 1, 1;\n}"              \
                     : KW_OUT##R                                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                         \
    }
#define KW_PRODUCTS(type)                                                            \
    KW_BOTH_SHARED(type, 32, "64", "%32", "%33", "%34")                              \
    KW_BOTH_SHARED(type, 64, "128", "%64", "%65", "%66")                             \
    KW_BOTH_SHARED(type, 80, "160", "%80", "%81", "%82")                             \
    KW_LEFT_HELD(type, 64, "128", "%64, %65, %66, %67", "%68", "%69")                \
    KW_VALUES(type, 32, "64", "%32, %33, %34, %35", "%36", "%37")                    \
    KW_VALUES(type, 64, "128", "%64, %65, %66, %67", "%68", "%69")

struct Bf16 {
    KW_PRODUCTS("bf16")
    static __device__ __forceinline__ u32 round(float low, float high) {
        u32 r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
};

struct F16 {
    KW_PRODUCTS("f16")
    static __device__ __forceinline__ u32 round(float low, float high) {
        u32 r;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
};

// The products that follow may read what registers hold now.
inline __device__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline __device__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until no more than LEFT groups of products are under way; d, which the others made, is not read before.
template <int LEFT, int R>
__device__ __forceinline__ void products_wait(float (&d)[R]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (int j = 0; j < R; ++j) asm volatile("" : "+f"(d[j])::"memory");
}

// What the matrix units need to know of a tile in shared memory, in rows of 128 bytes with the 128-byte swizzle: 8 rows
// every 1024 bytes. `panels` lies between panels of 64 columns, where the product runs along rows.
inline __device__ u64 descriptor(u32 address, u32 panels = 16) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (static_cast<u64>(panels >> 4) << 16) | (64ull << 32) |
           (1ull << 62);
}

// ---------------------------------------------------------------- shared memory and its barriers

inline __device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

inline __device__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
inline __device__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
inline __device__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
inline __device__ void barrier_wait(u32 barrier, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra GONE;\nbra AGAIN;\nGONE:\n}" ::"r"(barrier),
        "r"(phase)
        : "memory");
}
// Barriers of threads, in numbers from 1 on: all `threads` that meet or come are waited for by those who meet.
inline __device__ void meet(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
inline __device__ void come(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---------------------------------------------------------------- the copy engine

struct alignas(64) TensorMap {
    char bytes[128];
};

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
