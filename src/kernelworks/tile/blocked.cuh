// Many rows of x: tiles of 128 x 256 sums. One thread moves tiles of x and w into a ring of shared memory with bulk
// tensor copies; two groups of 128 threads each hold 64 x 256 sums in registers and feed the matrix units from there.
// Two blocks form a cluster: their tiles lie below each other, and each fetches half of the tile of w for both. Which
// tiles those are, shares.cuh says. The sums of a tile are stored while those of the next one are multiplied.
//
// An operand lies ALONG k (x is M x K in memory, w N x K) or DOWN (K x M, K x N), as gradients find theirs. A tile that
// lies along k is one box of rows with 64 of k; of one that lies down, boxes of 64 rows of k with 64 columns stand one
// behind the other. Both fill the same bytes, and those of a group's 64 rows, or of a block's half of w, are the same.
#pragma once

#include "hopper.cuh"
#include "shares.cuh"

struct alignas(64) TensorMap {
    char bytes[128];
};
// What a launch asks for; the maps copy 128 x 64 of x, 128 x 64 of w (64 x 64 of what lies down) and 64 x 64 of out.
struct Blocked {
    const TensorMap &x, &w, &out;
    const u16* bias;
    int M, N, K, streamed;
    float* partials;  // sums of tiles that several clusters share, and behind them a flag for each
    i64 token;        // what a flag says when its sums are there
};

constexpr int STAGES = 4, PARTS = 4;
constexpr u32 BYTES_X = TILE_M * TILE_K * 2, BYTES_W = TILE_N * TILE_K * 2, BYTES_PANEL = 64 * 64 * 2;
enum { GROUP = 1, WRITTEN = 3, READABLE = 5 };  // barriers of threads, each for both groups
enum Lies { ALONG, DOWN };

// What the matrix units need to know of a tile: rows of 128 bytes, 128-byte swizzle, 8 rows every 1024 bytes. Of one that
// lies down also how far its boxes are apart.
inline __device__ u64 descriptor(u32 address, u32 apart = 16) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (static_cast<u64>(apart >> 4) << 16) | (64ull << 32) |
           (1ull << 62);
}
// How far apart the descriptors of 16 along k are: 32 bytes of a row, or 16 rows.
template <Lies LIES>
constexpr u64 STEP = (LIES == DOWN ? 16 * 128 : 32) >> 4;

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

// The place of a group's partial sums: 128 threads with 128 numbers each, and a flag.
inline __device__ float4* partial(const Blocked& p, int cluster, u32 rank, int part) {
    return reinterpret_cast<float4*>(p.partials) + ((cluster * CLUSTER + rank) * 2 + part) * i64{32 * 128};
}
inline __device__ u64* flag(const Blocked& p, const Shares& shares, int cluster, u32 rank, int part) {
    return reinterpret_cast<u64*>(partial(p, shares.clusters, 0, 0)) + (cluster * CLUSTER + rank) * 2 + part;
}

// ---------------------------------------------------------------- the threads that do not multiply

// What kernels before this one wrote may be read, and what they read may be written, from here on.
inline __device__ void wait_for_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

struct Ring {
    u32 x, w, full, empty;  // addresses in shared memory
    int2* places;           // by stage: row and column of the tile that begins there
};

// ROWS rows of an operand from `row` on, and 64 of k from `k` on: copy(to, column, row) for each box.
template <Lies LIES, int ROWS, class Copy>
__device__ __forceinline__ void fetch_tile(u32 to, int k, int row, Copy copy) {
    if constexpr (LIES == ALONG) {
        copy(to, k, row);
    } else {
#pragma unroll
        for (int box = 0; box < ROWS / 64; ++box) copy(to + box * BYTES_PANEL, row + box * 64, k);
    }
}

// Fills the ring. Whole tiles are walked forwards and backwards in turn: what was read last is read first, and is in L2
// yet. So are pieces of tiles: clusters that begin together read the same columns, and so do those that end together.
template <Lies X, Lies W>
__device__ __forceinline__ void fetch(const Blocked& p, const Shares& shares, const Ring& ring, u32 rank) {
    int stage = 0, m = 0, n = 0;
    u32 phase = 1;
    Piece piece;
    bool more = shares.piece(0, piece);
    if (more) shares.place(piece.tile, static_cast<int>(rank), m, n);
    wait_for_kernels();  // only now: all this was worked out while the kernel before still ran
    for (int i = 0; more; more = shares.piece(++i, piece)) {
        if (i) shares.place(piece.tile, static_cast<int>(rank), m, n);
        bool back = i < shares.turns ? (shares.turns - i) & 1 : piece.begin > 0;
        int at = back ? piece.end - 1 : piece.begin;
        for (int left = piece.end - piece.begin; left; --left, at += back ? -1 : 1) {
            u32 barrier = ring.full + stage * 8;
            barrier_wait(ring.empty + stage * 8, phase);
            ring.places[stage] = {m, n};
            barrier_expect(barrier, BYTES_X + BYTES_W);
            fetch_tile<X, TILE_M>(ring.x + stage * BYTES_X, at * TILE_K, m, [&](u32 to, int column, int row) {
                copy_in(to, &p.x, column, row, barrier);
            });
            fetch_tile<W, TILE_N / CLUSTER>(
                ring.w + stage * BYTES_W + rank * (BYTES_W / CLUSTER), at * TILE_K,
                n + static_cast<int>(rank) * (TILE_N / CLUSTER),
                [&](u32 to, int column, int row) { copy_in_everywhere(to, &p.w, column, row, barrier); });
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
    // The shared memory of a block stays until the other one has sent its last arrival there.
    for (int s = 0; s < STAGES; ++s) {
        barrier_wait(ring.empty + stage * 8, phase);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
}

// Says that a group's partial sums are in memory, and waits until those of other clusters are: a warp for each group,
// so that no fence stands in the way of those who multiply. Only clusters before this one are waited for, so that some
// cluster can always go on. A flag is wiped once it was seen: a launch repeated by a graph brings the same token.
__device__ __forceinline__ void exchange(const Blocked& p, const Shares& shares, u32 rank, int part) {
    wait_for_kernels();
    bool leader = (threadIdx.x & 31) == 0;
    Piece piece;
    for (int i = shares.turns; shares.piece(i, piece); ++i) {
        if (piece.end < shares.steps) {
            asm volatile("bar.sync %0, 160;" ::"r"(WRITTEN + part) : "memory");
            if (leader) {
                asm volatile("fence.acq_rel.gpu;" ::: "memory");
                asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(flag(p, shares, shares.me, rank, part)),
                             "l"(p.token)
                             : "memory");
            }
        } else if (piece.begin > 0) {
            if (leader)
                shares.earlier(piece, [&](int cluster) {
                    u64 *at = flag(p, shares, cluster, rank, part), seen;
                    while (true) {
                        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(at) : "memory");
                        if (seen == static_cast<u64>(p.token)) break;
                        __nanosleep(100);
                    }
                    asm volatile("fence.acq_rel.gpu;" ::: "memory");
                    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(0ull) : "memory");
                });
            __syncwarp();
            asm volatile("bar.arrive %0, 160;" ::"r"(READABLE + part) : "memory");
        }
    }
}

// ---------------------------------------------------------------- the threads that multiply

__device__ __forceinline__ void write_partial(const float (&d)[TILE_N / 2], float4* to) {
#pragma unroll
    for (int j = 0; j < 32; ++j)
        asm volatile("st.global.cg.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to + j * 128), "f"(d[4 * j]), "f"(d[4 * j + 1]),
                     "f"(d[4 * j + 2]), "f"(d[4 * j + 3])
                     : "memory");
}

__device__ __forceinline__ void add_partial(float (&d)[TILE_N / 2], const float4* from) {
    constexpr int DEEP = 16;  // loads under way
#pragma unroll
    for (int j = 0; j < 32; j += DEEP) {
        float v[4 * DEEP];
#pragma unroll
        for (int e = 0; e < DEEP; ++e)
            asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                         : "=f"(v[4 * e]), "=f"(v[4 * e + 1]), "=f"(v[4 * e + 2]), "=f"(v[4 * e + 3])
                         : "l"(from + (j + e) * 128)
                         : "memory");
#pragma unroll
        for (int e = 0; e < 4 * DEEP; ++e) d[4 * j + e] += v[e];
    }
}

// A group's rounded 64 x 256 sums on their way to out, 64 columns at a time through two places in shared memory.
struct Leaving {
    u32 packed[TILE_N / 4], panels;
    int group, parts, m, n;  // parts that are still here

    __device__ __forceinline__ bool leader() const { return (threadIdx.x & 127) == 0; }
    __device__ __forceinline__ void meet() const { asm volatile("bar.sync %0, 128;" ::"r"(GROUP + group) : "memory"); }
    // To shared memory, in the swizzle of the copies.
    __device__ __forceinline__ void put(int part, u32 panel) const {
        int lane = threadIdx.x & 31, row = (threadIdx.x & 127) / 32 * 16 + (lane & 15);
        const u32* v = packed + 16 * part;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            u32 at = panel + row * 128 + (((q * 2 + (lane >> 4)) ^ (row & 7)) << 4);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v[4 * q]),
                         "r"(v[4 * q + 1]), "r"(v[4 * q + 2]), "r"(v[4 * q + 3])
                         : "memory");
        }
    }
    __device__ __forceinline__ void send(const TensorMap* out, int part, u32 panel) {
        put(part, panel);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet();
        if (!leader()) return;
        copy_out(out, n + part * 64, m, panel);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
    __device__ __forceinline__ void one(const TensorMap* out) {
        if (leader()) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the panel was read
        meet();
        if (parts == 4) send(out, 0, panels);
        if (parts == 3) send(out, 1, panels + BYTES_PANEL);
        if (parts == 2) send(out, 2, panels);
        if (parts == 1) send(out, 3, panels + BYTES_PANEL);
        --parts;
    }
    // The last tile: nothing more comes into the ring, whose stages have this group's rows of x at such distances.
    __device__ __forceinline__ void rest(const TensorMap* out, u32 x) {
        meet();
#pragma unroll
        for (int part = 0; part < PARTS; ++part) put(part, x + part * BYTES_X);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet();
        if (!leader()) return;
        for (int part = 0; part < PARTS; ++part) copy_out(out, n + part * 64, m, x + part * BYTES_X);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
};

// Bias, rounding: what is left in d's place are two numbers a register.
template <class T>
__device__ __forceinline__ void pack(float (&d)[TILE_N / 2], const u16* bias, int n, int N, Leaving& leaving) {
    if (bias) {
        u32 pairs[TILE_N / 8];
#pragma unroll
        for (int j = 0; j < TILE_N / 8; ++j) {
            int column = n + j * 8 + 2 * static_cast<int>(threadIdx.x & 3);
            pairs[j] = column < N ? *reinterpret_cast<const u32*>(bias + column) : 0;
        }
#pragma unroll
        for (int j = 0; j < TILE_N / 2; ++j) d[j] += T::widen(static_cast<u16>(pairs[j / 4] >> (j & 1) * 16));
    }
#pragma unroll
    for (int j = 0; j < TILE_N / 4; ++j) leaving.packed[j] = T::round(d[2 * j], d[2 * j + 1]);
}

template <class T, Lies X, Lies W>
__device__ __forceinline__ void multiply(const Blocked& p, const Shares& shares, const Ring& ring, u32 panels,
                                         u32 rank) {
    int thread = threadIdx.x & 127, part = threadIdx.x / 128 - 1, stage = 0;
    u32 phase = 0, my_x = ring.x + part * BYTES_PANEL;
    float d[TILE_N / 2];
    Leaving leaving;
    leaving.panels = panels + part * 2 * BYTES_PANEL, leaving.group = part, leaving.parts = 0;
    Piece piece;
    wait_for_kernels();
    for (int i = 0; shares.piece(i, piece); ++i) {
        int last = -1, length = piece.end - piece.begin;
        int2 place;
        auto release = [&](int s) {
            if (thread < CLUSTER) barrier_arrive_at(ring.empty + s * 8, thread);
        };
        for (int k = 0; k < length; ++k) {
            barrier_wait(ring.full + stage * 8, phase);
            if (k == 0) place = ring.places[stage];
            u64 x = descriptor(my_x + stage * BYTES_X, X == DOWN ? BYTES_PANEL : 16);
            u64 w = descriptor(ring.w + stage * BYTES_W, W == DOWN ? BYTES_PANEL : 16);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int q = 0; q < TILE_K / 16; ++q)
                T::template wgmma<X == DOWN, W == DOWN>(d, x + STEP<X> * q, w + STEP<W> * q, k | q);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            if (leaving.parts) leaving.one(&p.out);  // of the tile before
            else if (k == 0) leaving.meet();         // all have read the place before the stage is given back
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");  // the stage before this one is read
            if (last >= 0) release(last);
            last = stage;
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        while (leaving.parts) leaving.one(&p.out);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        release(last);
#pragma unroll
        for (int j = 0; j < TILE_N / 2; ++j) asm volatile("" : "+f"(d[j]));  // not read before the wait
        if (piece.end < shares.steps) {
            write_partial(d, partial(p, shares.me, rank, part) + thread);
            asm volatile("bar.arrive %0, 160;" ::"r"(WRITTEN + part) : "memory");
            continue;
        }
        if (piece.begin > 0) {
            asm volatile("bar.sync %0, 160;" ::"r"(READABLE + part) : "memory");
            shares.earlier(piece, [&](int cluster) { add_partial(d, partial(p, cluster, rank, part) + thread); });
        }
        pack<T>(d, p.bias, place.y, p.N, leaving);
        leaving.parts = PARTS, leaving.m = place.x + part * 64, leaving.n = place.y;
    }
    if (leaving.parts) leaving.rest(&p.out, my_x);
    if (leaving.leader()) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

template <class T, Lies X = ALONG, Lies W = ALONG>
__device__ __forceinline__ void blocked(const Blocked& p) {
    extern __shared__ __align__(1024) unsigned char ring_bytes[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    __shared__ int2 places[STAGES];
    u32 start = shared_address(ring_bytes), rank;
    Ring ring{start, start + STAGES * BYTES_X, shared_address(barriers), shared_address(barriers + STAGES), places};
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(ring.full + i * 8, 1);
            barrier_init(ring.empty + i * 8, 2 * CLUSTER);  // both groups of both blocks
        }
        asm volatile("fence.mbarrier_init.release.cluster;");
        for (const TensorMap* map : {&p.x, &p.w, &p.out})
            asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
    }
    // Relaxed: the fence above is enough for the barriers, and an ordinary arrival would be one of all memory.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    Shares shares(p.M, p.N, p.K, p.streamed);
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");  // which wait in turn
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        u32 warp = threadIdx.x / 32;
        if (threadIdx.x == 0) fetch<X, W>(p, shares, ring, rank);
        else if (p.streamed && (warp == 1 || warp == 2)) exchange(p, shares, rank, static_cast<int>(warp) - 1);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply<T, X, W>(p, shares, ring, ring.w + STAGES * BYTES_W, rank);
    }
}
