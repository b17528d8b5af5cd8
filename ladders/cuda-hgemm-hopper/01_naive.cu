// title: Naive
// launch: threads 256, tile 8 x 32
// loads: L1 4
// hypothesis: The formula as it is written: one thread for each output, a sum over k on the ordinary cores. The 32
//   threads of a warp read one element of A and 32 of B that lie K elements apart, each in a cache line of its own. L1
//   looks up about one line a cycle, so 32 multiply-adds take 33 cycles: one a cycle, where the ordinary cores of a
//   multiprocessor could do 128 and its matrix units 2048.
// next: The lines that L1 looks up, for very little multiplying each. A matrix instruction does 2048 multiply-adds with
//   what a warp loads in six reads.
using u16 = unsigned short;
using i64 = long long;

__device__ float widen(u16 v) { return __uint_as_float(static_cast<unsigned>(v) << 16); }
__device__ u16 rounded(float v) {
    u16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
    return r;
}

// C[M, N] = A[M, K] B[N, K]^T, all row-major and contiguous.
extern "C" __global__ __launch_bounds__(256) void hgemm(const u16* __restrict__ A, const u16* __restrict__ B, u16* C,
                                                        i64 M, i64 N, i64 K) {
    i64 row = blockIdx.y * 8 + threadIdx.x / 32, column = blockIdx.x * 32 + threadIdx.x % 32;
    if (row >= M || column >= N) return;
    float sum = 0;
    for (i64 k = 0; k < K; ++k) sum += widen(A[row * K + k]) * widen(B[column * K + k]);
    C[row * N + column] = rounded(sum);
}
