// What attention's kernels share on Hopper: element types of 16 bits, and the instructions that C++ has no words for.
#pragma once

using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(16) Words {  // eight elements
    u32 a, b, c, d;
};

// ---------------------------------------------------------------- products on the matrix units
//
// N / 2 sums a thread: of rows lane / 4 and 8 more, two neighbours in every eight columns. Asynchronous.

#define KW_EIGHT(b) \
    "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3]), "+f"(d[b + 4]), "+f"(d[b + 5]), "+f"(d[b + 6]), \
        "+f"(d[b + 7])
#define KW_SUMS16 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define KW_OUT16 \
    KW_EIGHT(0), KW_EIGHT(8)
#define KW_SUMS32 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
    "%28,%29,%30,%31}"
#define KW_OUT32 \
    KW_EIGHT(0), KW_EIGHT(8), KW_EIGHT(16), KW_EIGHT(24)
#define KW_SUMS64 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
    "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
    "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define KW_OUT64 \
    KW_EIGHT(0), KW_EIGHT(8), KW_EIGHT(16), KW_EIGHT(24), KW_EIGHT(32), KW_EIGHT(40), KW_EIGHT(48), KW_EIGHT(56)
#define KW_SUMS80 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
    "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
    "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79}"
#define KW_OUT80 \
    KW_EIGHT(0), KW_EIGHT(8), KW_EIGHT(16), KW_EIGHT(24), KW_EIGHT(32), KW_EIGHT(40), KW_EIGHT(48), KW_EIGHT(56), \
    KW_EIGHT(64), KW_EIGHT(72)
#define KW_SUMS128 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
    "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
    "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103," \
    "%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123," \
    "%124,%125,%126,%127}"
#define KW_OUT128 \
    KW_EIGHT(0), KW_EIGHT(8), KW_EIGHT(16), KW_EIGHT(24), KW_EIGHT(32), KW_EIGHT(40), KW_EIGHT(48), KW_EIGHT(56), \
    KW_EIGHT(64), KW_EIGHT(72), KW_EIGHT(80), KW_EIGHT(88), KW_EIGHT(96), KW_EIGHT(104), KW_EIGHT(112), KW_EIGHT(120)

// d = a b or (add) d += a b: a is 64 x 16, b 16 x N in shared memory, its rows along k or (DOWN) k down its rows.
// a too is in shared memory, as its descriptor says.
#define KW_BOTH_SHARED(type, R, COLUMNS, A, B, P, DOWN)                                                               \
    template <int down>                                                                                               \
    static __device__ __forceinline__ void product(float (&d)[R], u64 a, u64 b, int add) {                            \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\nwgmma.mma_async.sync.aligned.m64n" COLUMNS          \
                     "k16.f32." type "." type " " KW_SUMS##R ", " A ", " B ", p, 1, 1, 0, " DOWN ";\n}"               \
                     : KW_OUT##R                                                                                      \
                     : "l"(a), "l"(b), "r"(add), "n"(down));                                                          \
    }
// The same with a in registers.
#define KW_LEFT_HELD(type, R, COLUMNS, A, B, P, DOWN)                                                                 \
    template <int down>                                                                                               \
    static __device__ __forceinline__ void product(float (&d)[R], const u32* a, u64 b, int add) {                     \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\nwgmma.mma_async.sync.aligned.m64n" COLUMNS          \
                     "k16.f32." type "." type " " KW_SUMS##R ", {" A "}, " B ", p, 1, 1, " DOWN ";\n}"                \
                     : KW_OUT##R                                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(down));                      \
    }
#define KW_PRODUCTS(type) \
    KW_BOTH_SHARED(type, 16, "32", "%16", "%17", "%18", "%19") \
    KW_BOTH_SHARED(type, 32, "64", "%32", "%33", "%34", "%35") \
    KW_BOTH_SHARED(type, 64, "128", "%64", "%65", "%66", "%67") \
    KW_BOTH_SHARED(type, 80, "160", "%80", "%81", "%82", "%83") \
    KW_LEFT_HELD(type, 32, "64", "%32, %33, %34, %35", "%36", "%37", "%38") \
    KW_LEFT_HELD(type, 64, "128", "%64, %65, %66, %67", "%68", "%69", "%70") \
    KW_LEFT_HELD(type, 128, "256", "%128, %129, %130, %131", "%132", "%133", "%134")

struct Bf16 {
    KW_PRODUCTS("bf16")
    static __device__ __forceinline__ float widen(u16 v) { return __uint_as_float(static_cast<u32>(v) << 16); }
    static __device__ __forceinline__ u32 round(float low, float high) {
        u32 r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
};

struct F16 {
    KW_PRODUCTS("f16")
    static __device__ __forceinline__ float widen(u16 v) {
        float r;
        asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
        return r;
    }
    static __device__ __forceinline__ u32 round(float low, float high) {
        u32 r;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
};

// The products that follow may read what registers hold now.
inline __device__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline __device__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until no more than LEFT groups of products are under way.
template <int LEFT>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Sums that products make are not read before this place.
template <int R>
__device__ __forceinline__ void landed(float (&d)[R]) {
#pragma unroll
    for (int j = 0; j < R; ++j) asm volatile("" : "+f"(d[j])::"memory");
}
template <int LEFT, int R>
__device__ __forceinline__ void products_wait(float (&d)[R]) {
    products_wait<LEFT>();
    landed(d);
}

// What the matrix units need to know of a tile in shared memory, as the copies write it: panels of 64 columns, rows of
// 128 bytes, 128-byte swizzle. Read along its rows, or down them; then `panel` bytes lie between panels.
inline __device__ u64 tile_at(u32 address, u32 panel = 16) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (static_cast<u64>(panel >> 4) << 16) | (64ull << 32) |
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
// Only as far as L2.
inline __device__ void copy_to_l2(const TensorMap* map, int column, int row, int head, int batch) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(column),
                 "r"(row), "r"(head), "r"(batch)
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
// What kernels before this one wrote may be read, and what they read may be written, from here on.
inline __device__ void wait_for_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
inline __device__ void let_kernels_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

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
