// What lies before and after the products: lse and -delta = -g . output of every query, cleared sums; and dq, rounded.
#pragma once

#include "sm90_gradients.cuh"

struct Before {
    const u16 *g, *out;
    const float* lse;
    float *rows, *sums;
    int* taken;
    i64 g_b, g_h, g_l, o_b, o_h, o_l;
    int heads, queries;
};

// One block a step of queries, on 256 threads.
template <class T, int D>
__device__ __forceinline__ void prepare(const Before& p) {
    constexpr int LANES = D / 8, AT_ONCE = 256 / LANES;  // threads a row, rows at once
    let_kernels_start();
    int tiles = (p.queries + STEP - 1) / STEP, head = blockIdx.x / tiles, tile = blockIdx.x - head * tiles;
    int b = head / p.heads, h = head - b * p.heads, lane = threadIdx.x % LANES;
    const u16* g = p.g + b * p.g_b + h * p.g_h + 8 * lane;
    const u16* o = p.out + b * p.o_b + h * p.o_h + 8 * lane;
    float* rows = p.rows + static_cast<i64>(blockIdx.x) * (2 * STEP);
    wait_for_kernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.taken = 0;
    float4* sums = reinterpret_cast<float4*>(p.sums) + static_cast<i64>(blockIdx.x) * (STEP * D / 4) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < STEP * D / 4; i += 256) sums[i] = {0, 0, 0, 0};
    Words left[STEP / AT_ONCE], right[STEP / AT_ONCE];
#pragma unroll
    for (int i = 0; i < STEP / AT_ONCE; ++i) {
        int row = tile * STEP + i * AT_ONCE + threadIdx.x / LANES;
        bool there = row < p.queries;
        left[i] = there ? *reinterpret_cast<const Words*>(g + row * p.g_l) : Words{};
        right[i] = there ? *reinterpret_cast<const Words*>(o + row * p.o_l) : Words{};
    }
#pragma unroll
    for (int i = 0; i < STEP / AT_ONCE; ++i) {
        const u32 *x = &left[i].a, *y = &right[i].a;
        float sum = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            sum = fmaf(T::widen(static_cast<u16>(x[e])), T::widen(static_cast<u16>(y[e])), sum);
            sum = fmaf(T::widen(static_cast<u16>(x[e] >> 16)), T::widen(static_cast<u16>(y[e] >> 16)), sum);
        }
#pragma unroll
        for (int far = LANES / 2; far; far /= 2) sum += __shfl_xor_sync(~0u, sum, far);
        int inside = i * AT_ONCE + threadIdx.x / LANES, row = tile * STEP + inside;
        if (lane) continue;
        // A query that sees nothing, or does not exist, gives every key the weight exp2(S - inf) = 0.
        float lse = row < p.queries ? p.lse[static_cast<i64>(head) * p.queries + row] : -__int_as_float(0x7f800000);
        rows[inside] = lse == -__int_as_float(0x7f800000) ? -lse : lse * 1.4426950408889634f;
        rows[STEP + inside] = -sum;
    }
}

// One block a step of dq, in two parts as the groups' registers held them; 256 threads.
template <class T, int D>
__device__ __forceinline__ void finish(u16* dq, const float* sums, int queries, float scale) {
    constexpr int EACH = D / 16, CHUNKS = D / 8;  // float4 a thread; chunks of 16 bytes a row
    __shared__ __align__(16) u32 rounded[STEP][D / 2 + 4];
    let_kernels_start();
    int tiles = (queries + STEP - 1) / STEP, head = blockIdx.x / tiles, tile = blockIdx.x - head * tiles;
    int part = threadIdx.x / 128, thread = threadIdx.x & 127, row = thread / 32 * 16 + (thread >> 2 & 7);
    const float4* from = reinterpret_cast<const float4*>(sums) + static_cast<i64>(blockIdx.x) * (STEP * D / 4) +
                         part * (STEP * D / 8) + thread;
    wait_for_kernels();
    float4 v[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) v[j] = __ldcs(from + j * 128);
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        int column = part * (D / 4) + j * 4 + (thread & 3);
        rounded[row][column] = T::round(v[j].x * scale, v[j].y * scale);
        rounded[row + 8][column] = T::round(v[j].z * scale, v[j].w * scale);
    }
    __syncthreads();
    int chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int i = threadIdx.x / CHUNKS; i < STEP; i += 256 / CHUNKS) {
        if (tile * STEP + i >= queries) break;
        u16* to = dq + (static_cast<i64>(head) * queries + tile * STEP + i) * D + 8 * chunk;
        *reinterpret_cast<Words*>(to) = *reinterpret_cast<const Words*>(&rounded[i][4 * chunk]);
    }
}
