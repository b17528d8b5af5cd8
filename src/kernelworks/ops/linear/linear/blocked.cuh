// Many rows of x: tiles of 128 x 256 sums. One thread moves tiles of x and w into a ring of shared memory with bulk
// tensor copies; two groups of 128 threads each hold 64 x 256 sums in registers and feed the matrix units from the ring.
// Two blocks form a cluster: their tiles lie below each other, and each fetches half of the tile of w for both.
#pragma once

#include "hopper.cuh"

struct alignas(64) TensorMap {
    char bytes[128];
};

constexpr int TILE_M = 128, TILE_N = 256, TILE_K = 64, STAGES = 4, CLUSTER = 2;
constexpr int GROUP = 8;  // pairs of tiles down M before the next tile along N: what runs at a time is about square
constexpr u32 BYTES_X = TILE_M * TILE_K * 2, BYTES_W = TILE_N * TILE_K * 2, BYTES_PANEL = 64 * TILE_K * 2;

// What the matrix units need to know of a tile: rows of 128 bytes, 128-byte swizzle, 8 rows every 1024 bytes.
inline __device__ u64 descriptor(u32 address) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

inline __device__ void copy_in(u32 to, const TensorMap* map, int column, int row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            to),
        "l"(map), "r"(barrier), "r"(column), "r"(row)
        : "memory");
}
// Into the same place of every block of the cluster, counted by the barrier of each.
inline __device__ void copy_in_everywhere(u32 to, const TensorMap* map, int column, int row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "h"(static_cast<u16>((1 << CLUSTER) - 1))
        : "memory");
}
inline __device__ void copy_out(const TensorMap* map, int column, int row, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
                 "r"(column), "r"(row)
                 : "memory");
}

struct Tiles {
    int down, across, rank;

    __device__ Tiles(int M, int N, int rank)
        : down((M + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER)), across((N + TILE_N - 1) / TILE_N), rank(rank) {}
    __device__ int count() const { return down * across; }
    __device__ void place(int i, int& m, int& n) const {
        int group = i / (GROUP * across), first = group * GROUP, height = min(GROUP, down - first);
        int inside = i - group * GROUP * across;
        m = ((first + inside % height) * CLUSTER + rank) * TILE_M;
        n = inside / height * TILE_N;
    }
};

// The sums of 64 x 256, plus bias, rounded, into panels of 64 x 64 in shared memory, and from there to out: two panels
// at a time, so that four stages of the ring still fit beside them.
template <class T>
__device__ __forceinline__ void store(float (&d)[TILE_N / 2], u32 panels, int group, const TensorMap* out,
                                      const u16* bias, int m, int n, int N) {
    int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
#pragma unroll
    for (int half = 0; half < TILE_N / 128; ++half) {
        if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
#pragma unroll
        for (int q = 0; q < 8; ++q) {  // 16 columns
            int j = half * 16 + q * 2, column = n + j * 8 + 2 * (lane & 3);
            float add[4] = {0, 0, 0, 0};
            if (bias) {
                if (column < N) add[0] = T::widen(bias[column]);
                if (column + 1 < N) add[1] = T::widen(bias[column + 1]);
                if (column + 8 < N) add[2] = T::widen(bias[column + 8]);
                if (column + 9 < N) add[3] = T::widen(bias[column + 9]);
            }
            u32 v0 = T::round(d[j * 4] + add[0], d[j * 4 + 1] + add[1]);
            u32 v1 = T::round(d[j * 4 + 2] + add[0], d[j * 4 + 3] + add[1]);
            u32 v2 = T::round(d[j * 4 + 4] + add[2], d[j * 4 + 5] + add[3]);
            u32 v3 = T::round(d[j * 4 + 6] + add[2], d[j * 4 + 7] + add[3]);
            int row = warp * 16 + (lane & 15), word = (q & 3) * 2 + (lane >> 4);
            u32 at = panels + (q >> 2) * BYTES_PANEL + row * 128 + ((word ^ (row & 7)) << 4);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v0), "r"(v1),
                         "r"(v2), "r"(v3)
                         : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
        if (thread == 0) {
            copy_out(out, n + half * 128, m, panels);
            copy_out(out, n + half * 128 + 64, m, panels + BYTES_PANEL);
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
    }
}

template <class T>
__device__ __forceinline__ void blocked(const TensorMap& map_x, const TensorMap& map_w, const TensorMap& map_out,
                                        const u16* bias, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
    u32 ring_x = shared_address(ring), ring_w = ring_x + STAGES * BYTES_X, panels = ring_w + STAGES * BYTES_W;
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared_address(&full[i]), 1);
            barrier_init(shared_address(&empty[i]), 2 * CLUSTER);  // both groups of both blocks
        }
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    Tiles tiles(M, N, static_cast<int>(rank));
    int steps = (K + TILE_K - 1) / TILE_K, stage = 0, first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        u32 phase = 1;
        for (int i = first; threadIdx.x == 0 && i < tiles.count(); i += stride) {
            int m, n;
            tiles.place(i, m, n);
            for (int k = 0; k < steps; ++k) {
                u32 barrier = shared_address(&full[stage]);
                barrier_wait(shared_address(&empty[stage]), phase);
                barrier_expect(barrier, BYTES_X + BYTES_W);
                copy_in(ring_x + stage * BYTES_X, &map_x, k * TILE_K, m, barrier);
                copy_in_everywhere(ring_w + stage * BYTES_W + rank * (BYTES_W / CLUSTER), &map_w, k * TILE_K,
                                   n + static_cast<int>(rank) * (TILE_N / CLUSTER), barrier);
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float d[TILE_N / 2];
        int thread = threadIdx.x & 127, group = threadIdx.x / 128, part = group - 1;
        u32 phase = 0;
        auto release = [&](int s) {
            if (thread < CLUSTER) barrier_arrive_at(shared_address(&empty[s]), thread);
        };
        for (int i = first; i < tiles.count(); i += stride) {
            int m, n, last = -1;
            tiles.place(i, m, n);
            for (int k = 0; k < steps; ++k) {
                barrier_wait(shared_address(&full[stage]), phase);
                u64 x = descriptor(ring_x + stage * BYTES_X + part * (64 * 128));
                u64 w = descriptor(ring_w + stage * BYTES_W);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int q = 0; q < TILE_K / 16; ++q) T::wgmma(d, x + 2 * q, w + 2 * q, k | q);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");  // the stage before this one is read
                if (last >= 0) release(last);
                last = stage;
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            release(last);
#pragma unroll
            for (int j = 0; j < TILE_N / 2; ++j) asm volatile("" : "+f"(d[j]));  // not read before the wait
            store<T>(d, panels + part * 2 * BYTES_PANEL, group, &map_out, bias, m + part * 64, n, N);
        }
        if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    // A block's shared memory stays until the other has sent its last arrival and half-tile there.
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
