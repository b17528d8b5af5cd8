// What lies around the gradients of k and v for a head_dim of 256. Before: lse and -delta = -g . output of every query.
// After: the gradient of q, dq = scale dS k, of dS in memory; a block has 128 queries, 64 to each of two groups of 128
// threads, whose sums are 128 registers a thread, and one thread brings dS and k, 64 keys at a time.
#pragma once

#include "sm90_more_instructions.cuh"
#include "sm90_wide_order.cuh"

namespace wide {

struct Before {
    const u16 *g, *out;
    const float* lse;
    float* rows;
    int* taken;
    i64 g_b, g_h, g_l, o_b, o_h, o_l;
    int heads, queries;
};

// One block a step of queries, on eight warps, each of which has every eighth row.
template <class T>
__device__ __forceinline__ void prepare(const Before& p) {
    constexpr int WARPS = 8;
    let_kernels_start();
    int tiles = (p.queries + STEP - 1) / STEP, head = blockIdx.x / tiles, tile = blockIdx.x - head * tiles;
    int b = head / p.heads, h = head - b * p.heads, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const u16* g = p.g + b * p.g_b + h * p.g_h + 8 * lane;
    const u16* o = p.out + b * p.o_b + h * p.o_h + 8 * lane;
    float* rows = p.rows + i64{blockIdx.x} * (2 * STEP);
    wait_for_kernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.taken = 0;
    Words left[STEP / WARPS], right[STEP / WARPS];
#pragma unroll
    for (int i = 0; i < STEP / WARPS; ++i) {
        int row = tile * STEP + i * WARPS + warp;
        bool there = row < p.queries;
        left[i] = there ? *reinterpret_cast<const Words*>(g + row * p.g_l) : Words{};
        right[i] = there ? *reinterpret_cast<const Words*>(o + row * p.o_l) : Words{};
    }
#pragma unroll
    for (int i = 0; i < STEP / WARPS; ++i) {
        const u32 *x = &left[i].a, *y = &right[i].a;
        float sum = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            sum = fmaf(T::widen(static_cast<u16>(x[e])), T::widen(static_cast<u16>(y[e])), sum);
            sum = fmaf(T::widen(static_cast<u16>(x[e] >> 16)), T::widen(static_cast<u16>(y[e] >> 16)), sum);
        }
#pragma unroll
        for (int far = 16; far; far /= 2) sum += __shfl_xor_sync(~0u, sum, far);
        int inside = i * WARPS + warp, row = tile * STEP + inside;
        if (lane) continue;
        // A query that sees nothing, or does not exist, gives every key the weight exp2(S - inf) = 0.
        float infinite = __int_as_float(0x7f800000);
        float lse = row < p.queries ? p.lse[i64{head} * p.queries + row] : -infinite;
        rows[inside] = lse == -infinite ? infinite : lse * 1.4426950408889634f;
        rows[STEP + inside] = -sum;
    }
}

struct Queries {
    const TensorMap &ds, &k;
    u16* dq;     // contiguous
    int* taken;  // cleared for the launch that follows
    Share share;
    float scale;
};

constexpr u32 DEEP = 4, SLOPES = 2 * 64 * 128, STAGE = SLOPES + KEYS * D * 2;  // dS of both groups, then keys
constexpr u32 QUERIES_BYTES = DEEP * STAGE;

template <class T>
__device__ __forceinline__ void queries(const Queries& p) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    __shared__ __align__(8) u64 barriers[2 * DEEP];
    u32 start = shared_address(bytes), full = shared_address(barriers), empty = full + 8 * DEEP;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < DEEP; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 8);
        barriers_made(), expect_map(&p.ds), expect_map(&p.k);
    }
    __syncthreads();
    let_kernels_start();
    // Of each head the last queries first, which see most.
    int rows = (steps_of(p.share) + 1) / 2, head = blockIdx.x / rows, step = (rows - 1 - (blockIdx.x - head * rows)) * 2;
    int tiles = seen_tiles(p.share, step), others = seen_tiles(p.share, step + 1);
    int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        keep_registers<40>();
        if (threadIdx.x) return;
        wait_for_kernels();
        if (blockIdx.x == 0) *p.taken = 0;
        int pair = p.share.first + head / p.share.group, batch = pair / p.share.heads, kv_head = pair - batch * p.share.heads;
        if (others > tiles) tiles = others;
        for (int c = 0; c < tiles; ++c) {
            u32 at = c % DEEP, to = start + at * STAGE, barrier = full + 8 * at;
            barrier_wait(empty + 8 * at, ~(c / DEEP) & 1);
            barrier_expect(barrier, STAGE);
            copy_in(to, &p.ds, c * KEYS, step * 64, head, 0, barrier);
            copy_in(to + SLOPES / 2, &p.ds, c * KEYS, step * 64 + 64, head, 0, barrier);
            for (int panel = 0; panel < PANELS; ++panel)
                copy_in(to + SLOPES + panel * 64 * 128, &p.k, panel * 64, c * KEYS, kv_head, batch, barrier);
        }
        return;
    }
    take_registers<232>();
    wait_for_kernels();
    int part = group - 1, thread = threadIdx.x & 127, lane = thread & 31;
    int mine = part ? others : tiles, every = tiles > others ? tiles : others;
    float sums[D / 2];
#pragma unroll
    for (int j = 0; j < D / 2; ++j) sums[j] = 0;
    for (int c = 0; c < every; ++c) {
        u32 at = c % DEEP, place = start + at * STAGE;
        barrier_wait(full + 8 * at, c / DEEP & 1);
        if (c < mine) {  // what it does not see was never written
            u64 a = tile_at(place + part * (SLOPES / 2)), b = tile_at(place + SLOPES, 64 * 128);
            products_begin();
#pragma unroll
            for (int k = 0; k < KEYS / 16; ++k) T::template product<1>(sums, a + 2 * k, b + k * 128, 1);
            products_commit();
            products_wait<1>();
        } else {
            products_wait<0>();
        }
        if (c && lane == 0) barrier_arrive(empty + 8 * ((c - 1) % DEEP));
    }
    products_wait<0>(sums);
    bool odd = lane & 1;
    u16* to = p.dq + (i64{p.share.first} * p.share.group + head) * p.share.queries * D + 8 * odd + 2 * (lane & 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        int row = (step + part) * 64 + thread / 32 * 16 + lane / 4 + 8 * r;
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
            const float* d = sums + 8 * j + 2 * r;
            u32 left = T::round(d[0] * p.scale, d[1] * p.scale), right = T::round(d[4] * p.scale, d[5] * p.scale);
            u32 other = __shfl_xor_sync(~0u, odd ? left : right, 1);
            uint2 both = odd ? uint2{other, right} : uint2{left, other};
            if (row < p.share.queries) *reinterpret_cast<uint2*>(to + i64{row} * D + 16 * j) = both;
        }
    }
}

}  // namespace wide
