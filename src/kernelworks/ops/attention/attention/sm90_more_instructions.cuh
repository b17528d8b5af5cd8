// Instructions of Hopper's that the kernels for a head_dim of 256 have beside those of all.
#pragma once

#include "sm90_instructions.cuh"

inline __device__ float exponential_in_order(float x) {  // of base 2, 0 below 2^-126, in the order that they are written
    float y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// A thread's number in its block, asked anew each time where registers are short.
inline __device__ u32 thread_of_block() {
    u32 t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}
template <int N>
__device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
inline __device__ void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;"); }
inline __device__ void expect_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Four matrices of 8 x 8 numbers of 16 bits, as the matrix units take the left side of a product.
inline __device__ void load_matrices(u32* v, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}
inline __device__ float4 load_four(u32 address) {
    float4 r;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
                 : "r"(address)
                 : "memory");
    return r;
}
// Until all but the last copy out of shared memory have read it; until all have written memory.
inline __device__ void copies_read_but_one() { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }
inline __device__ void copies_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Numbers that products still read stay as they are up to here.
template <int R>
__device__ __forceinline__ void used(u32 (&v)[R]) {
#pragma unroll
    for (int j = 0; j < R; ++j) asm volatile("" : "+r"(v[j])::"memory");
}

// With products whose left side lies in shared memory beside 256 columns.
struct WideBf16 : Bf16 {
    using Bf16::product;
    KW_BOTH_SHARED("bf16", 128, "256", "%128", "%129", "%130", "%131")
};
struct WideF16 : F16 {
    using F16::product;
    KW_BOTH_SHARED("f16", 128, "256", "%128", "%129", "%130", "%131")
};
