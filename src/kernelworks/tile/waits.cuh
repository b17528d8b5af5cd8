// A wait at an mbarrier; with KW_PATIENCE (cycles) one that never ends traps instead: for kernels that are being tried.
#pragma once

#include "hopper.cuh"

inline __device__ void lose_patience(i64& begin) {
#ifdef KW_PATIENCE
    i64 now = clock64();
    if (!begin) begin = now;
    if (now - begin > KW_PATIENCE) __trap();
#endif
}

inline __device__ void wait_at(u32 barrier, u32 phase) {
#ifdef KW_PATIENCE
    i64 begin = 0;
    for (u32 done = 0; !done; lose_patience(begin))
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(phase)
                     : "memory");
#else
    barrier_wait(barrier, phase);
#endif
}
