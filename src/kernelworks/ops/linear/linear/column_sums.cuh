// The gradient of the bias: sums over the rows of a matrix, in float32. Blocks sum up shares of the rows, a second kernel
// adds those, both in a fixed order.
#pragma once

#include "blocked.cuh"

constexpr int SUM_THREADS = 256, SUM_COLUMNS = 256;  // eight columns a thread, and a row of them a warp
constexpr int SUM_WARPS = SUM_THREADS / 32, ADDED = 32;  // columns of a block that adds shares

// A block has 256 columns and every gridDim.y-th eight rows. N and stride are multiples of 8.
template <class T>
__device__ __forceinline__ void sum_rows(float* shares, const u16* g, i64 stride, int M, int N) {
    __shared__ float sums[SUM_WARPS][SUM_COLUMNS];
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32, column = blockIdx.x * SUM_COLUMNS + lane * 8;
    float total[8] = {};
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    wait_for_kernels();
    if (column < N) {
        const u16* at = g + column;
#pragma unroll 4
        for (int m = blockIdx.y * SUM_WARPS + warp; m < M; m += gridDim.y * SUM_WARPS) {
            Words v = *reinterpret_cast<const Words*>(at + m * stride);
            u32 pairs[4] = {v.a, v.b, v.c, v.d};
#pragma unroll
            for (int e = 0; e < 8; ++e) total[e] += T::widen(static_cast<u16>(pairs[e / 2] >> e % 2 * 16));
        }
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[warp][e * 32 + lane] = total[e];  // so that no two lanes meet in a bank
    __syncthreads();
    int own = blockIdx.x * SUM_COLUMNS + threadIdx.x;
    if (own >= N) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < SUM_WARPS; ++w) sum += sums[w][(threadIdx.x & 7) * 32 + threadIdx.x / 8];
    shares[i64{blockIdx.y} * N + own] = sum;
}

// A block has 32 columns, and each of its warps every eighth share.
template <class T>
__device__ __forceinline__ void add_shares(u16* out, const float* shares, int many, int N) {
    __shared__ float sums[SUM_WARPS][ADDED];
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32, column = blockIdx.x * ADDED + lane;
    float total = 0;
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    wait_for_kernels();
    if (column < N)
#pragma unroll 4
        for (int i = warp; i < many; i += SUM_WARPS) total += shares[i64{i} * N + column];
    sums[warp][lane] = total;
    __syncthreads();
    if (warp || column >= N) return;
#pragma unroll
    for (int w = 1; w < SUM_WARPS; ++w) total += sums[w][lane];
    out[column] = T::round(total);
}
