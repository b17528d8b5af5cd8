// Some 17 to 512 rows of x: one tile a block, as wide along N as makes the blocks about as many as multiprocessors, so
// that all of them read the weight at once and end together. The matrix units take rows of x 64 at a time, which costs
// little where there are fewer: then reading the weight is the time. A block has LOADED rows of x, WIDTH of the weight
// and one of PARTS parts of K; it fetches them with bulk tensor copies into a ring of stages, each DEPTH times 64 along
// K. PARTS blocks of a cluster have the parts of K of one tile: each sends the others the sums that they will store,
// from registers into their shared memory, and adds what comes in the order of the parts. DOWN blocks of a cluster have
// tiles below each other along M, and each fetches a share of the rows of the weight for all; or ACROSS blocks have
// tiles beside each other along N, and each fetches a share of the rows of x.
#pragma once

#include "blocked.cuh"
#include "waits.cuh"
#include "widths.cuh"

struct Middle {
    const TensorMap &x, &w;  // boxes: x of LOADED / ACROSS rows x 64, w of WIDTH / DOWN x 64
    u16* out;
    const u16* bias;
    int M, N, K, streamed;  // whether L2 is to keep x, and not what is read of the weight
};

// What a bulk copy tells L2 of its lines: the words that createpolicy makes of whole lines.
constexpr u64 AS_USUAL = 0x1000000000000000, LEAVES_FIRST = 0x12F0000000000000, LEAVES_LAST = 0x14F0000000000000;

template <class T_, int GROUPS_, int HEIGHT_, int LOADED_, int WIDTH_, int DEPTH_, int STAGES_, int DOWN_,
          int ACROSS_, int PARTS_, int RESIDENT_>
struct Cut {
    using T = T_;
    static constexpr int GROUPS = GROUPS_, HEIGHT = HEIGHT_, LOADED = LOADED_, WIDTH = WIDTH_, DEPTH = DEPTH_;
    static constexpr int RING_OF = STAGES_, DOWN = DOWN_, ACROSS = ACROSS_, SPLIT = PARTS_, RESIDENT = RESIDENT_;
    static constexpr int SHARE = DOWN * ACROSS, BLOCKS = SHARE * SPLIT, THREADS = 128 * GROUPS;
    static constexpr int ROWS = 64 * GROUPS * HEIGHT;
    static constexpr u32 BYTES_X = LOADED * 128 * DEPTH, BYTES_W = WIDTH * 128 * DEPTH, STAGE = BYTES_X + BYTES_W;
    // The parts of K store these eights of the columns: first(part) to first(part + 1), at most MOST.
    static constexpr int EIGHTS = WIDTH / 8, MOST = (EIGHTS + SPLIT - 1) / SPLIT;
    static constexpr __device__ int first(int part) { return EIGHTS * part / SPLIT; }
    static constexpr u32 RING = RING_OF * STAGE, RECEIVED = (SPLIT > 1) * SPLIT * HEIGHT * MOST * THREADS * 16;
    static constexpr bool REUSE = RING + RECEIVED > 224 * 1024 / RESIDENT;  // sums come to where the ring was
    static constexpr u32 PITCH = (MOST | 1) * 16, LEAVING = ROWS * PITCH;   // odd: rows begin at different banks
    static constexpr u32 NEEDED = REUSE ? RECEIVED + LEAVING : LEAVING;
    static_assert(NEEDED <= RING && WIDTH % (8 * DOWN) == 0 && LOADED % (8 * ACROSS) == 0 && LOADED <= ROWS);
    static_assert((DOWN == 1 || ACROSS == 1) && 2 * RING_OF + 2 <= 32);
    // Where fewer rows are loaded than are multiplied, the others are what lies behind them in the stage: not stored.
    static_assert(LOADED == ROWS || (GROUPS * HEIGHT == 1 && (DEPTH - 1) * LOADED * 128 + 8192 <= STAGE));
};

// For what other blocks of the cluster have stored here.
inline __device__ void wait_for_cluster(u32 barrier, u32 phase) {
    wait_at(barrier, phase);
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra GONE;\nbra AGAIN;\nGONE:\n}" ::"r"(barrier), "r"(phase)
        : "memory");
}
inline __device__ u32 address_in(u32 address, u32 block) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
inline __device__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Sixteen bytes into the shared memory of a block of the cluster, counted by a barrier there; or, if it is this block,
// straight to ``here``. One text, for a branch would have the compiler end the matrix units' work before every use of a
// sum.
inline __device__ void send(u32 to, const float* v, u32 barrier, u32 here, bool mine) {
    asm volatile(
        "{\n.reg .pred mine;\nsetp.ne.u32 mine, %7, 0;\n"
        "@!mine st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];\n"
        "@mine st.shared.v4.b32 [%6], {%1,%2,%3,%4};\n}" ::"r"(to),
        "r"(__float_as_uint(v[0])), "r"(__float_as_uint(v[1])), "r"(__float_as_uint(v[2])), "r"(__float_as_uint(v[3])),
        "r"(barrier), "r"(here), "r"(static_cast<u32>(mine))
        : "memory");
}
inline __device__ void copy_in_kept(u32 to, const TensorMap* map, int column, int row, u32 barrier, u64 keep) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "l"(keep)
        : "memory");
}
inline __device__ void copy_in_some(u32 to, const TensorMap* map, int column, int row, u32 barrier, u32 blocks,
                                    u64 keep) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "h"(static_cast<u16>(blocks)), "l"(keep)
        : "memory");
}
inline __device__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

struct Place {
    u32 ring, full, empty, received, ready;  // addresses in shared memory
    int m, n, begin, end;                    // the tile; steps of 64 DEPTH along K
    int which, part;                         // of DOWN or ACROSS, of SPLIT
};

// A box for this block, or the share of one that this block fetches for all of the cluster that need it.
template <class C, int OF>
__device__ __forceinline__ void fetch(u32 to, const TensorMap* map, int column, int row, int rows, const Place& at,
                                      u32 barrier, u64 keep) {
    if constexpr (OF == 1) {
        copy_in_kept(to, map, column, row, barrier, keep);
    } else {
        int share = at.which * (rows / OF);
        copy_in_some(to + share * 128, map, column, row + share, barrier, ((1 << OF) - 1) << (at.part * OF), keep);
    }
}

template <class C>
__device__ __forceinline__ void fill(const Middle& p, const Place& at) {
    wait_for_kernels();
    int stage = 0;
    u32 phase = 1;
    u64 keep_w = p.streamed ? LEAVES_FIRST : AS_USUAL, keep_x = p.streamed ? LEAVES_LAST : AS_USUAL;
    for (int k = at.begin; k < at.end; ++k) {
        u32 barrier = at.full + stage * 8, to = at.ring + stage * C::STAGE;
        wait_at(at.empty + stage * 8, phase);
        barrier_expect(barrier, C::STAGE);
#pragma unroll
        for (int d = 0; d < C::DEPTH; ++d)
            fetch<C, C::DOWN>(to + C::BYTES_X + d * C::WIDTH * 128, &p.w, (k * C::DEPTH + d) * 64, at.n, C::WIDTH, at,
                              barrier, keep_w);
#pragma unroll
        for (int d = 0; d < C::DEPTH; ++d)
            fetch<C, C::ACROSS>(to + d * C::LOADED * 128, &p.x, (k * C::DEPTH + d) * 64, at.m, C::LOADED, at, barrier,
                                keep_x);
        if (++stage == C::RING_OF) stage = 0, phase ^= 1;
    }
    if (C::SHARE > 1)  // the shared memory of a block stays until the others have sent their last arrivals there
        for (int s = 0; s < C::RING_OF; ++s) {
            wait_at(at.empty + stage * 8, phase);
            if (++stage == C::RING_OF) stage = 0, phase ^= 1;
        }
}

template <class C>
__device__ __forceinline__ void multiply_steps(float (&d)[C::HEIGHT][C::WIDTH / 2], const Place& at) {
    int thread = threadIdx.x & 127, group = threadIdx.x / 128, stage = 0, last = -1;
    u32 phase = 0;
    auto release = [&](int s) {
        if constexpr (C::SHARE == 1) {
            if (thread == 0) barrier_arrive(at.empty + s * 8);
        } else if (thread < C::SHARE) {
            barrier_arrive_at(at.empty + s * 8, at.part * C::SHARE + thread);
        }
    };
#pragma unroll 1  // unrolled, the compiler finds no place for its waits and ends every step's products before the next
    for (int k = at.begin; k < at.end; ++k) {
        wait_at(at.full + stage * 8, phase);
        u32 here = at.ring + stage * C::STAGE;
        u64 x = descriptor(here + group * C::HEIGHT * 8192), w = descriptor(here + C::BYTES_X);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int e = 0; e < C::DEPTH; ++e)
#pragma unroll
            for (int q = 0; q < 4; ++q)
#pragma unroll
                for (int h = 0; h < C::HEIGHT; ++h)
                    wgmma_add<typename C::T>(d[h], x + (e * C::LOADED * 128 + h * 8192 + q * 32) / 16,
                                             w + (e * C::WIDTH * 128 + q * 32) / 16);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");  // the stage before this one is read
        if (last >= 0) release(last);
        last = stage;
        if (++stage == C::RING_OF) stage = 0, phase ^= 1;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (last >= 0) release(last);
#pragma unroll
    for (int h = 0; h < C::HEIGHT; ++h)
#pragma unroll
        for (int j = 0; j < C::WIDTH / 2; ++j) asm volatile("" : "+f"(d[h][j]));  // not read before the wait
}

// The sums that this block will store, added up in the order of the parts of K. Its own lie where the others' come to.
template <class C>
__device__ __forceinline__ void gather(const float (&d)[C::HEIGHT][C::WIDTH / 2], float (&sums)[C::HEIGHT][4 * C::MOST],
                                       const Place& at, u32 buffer) {
    constexpr u32 PART = C::HEIGHT * C::MOST * C::THREADS * 16;
    buffer += threadIdx.x * 16;
#pragma unroll
    for (int owner = 0; owner < C::SPLIT; ++owner) {
        u32 block = static_cast<u32>(owner * C::SHARE + at.which), barrier = address_in(at.received, block);
        u32 here = buffer + at.part * PART, to = address_in(here, block);
#pragma unroll
        for (int h = 0; h < C::HEIGHT; ++h)
#pragma unroll
            for (int e = 0; e < C::MOST; ++e)
                if (e < C::first(owner + 1) - C::first(owner)) {
                    u32 offset = (h * C::MOST + e) * C::THREADS * 16;
                    send(to + offset, &d[h][4 * (C::first(owner) + e)], barrier, here + offset, owner == at.part);
                }
    }
    wait_for_cluster(at.received, 0);
#pragma unroll
    for (int part = 0; part < C::SPLIT; ++part)
#pragma unroll
        for (int h = 0; h < C::HEIGHT; ++h)
#pragma unroll
            for (int e = 0; e < C::MOST; ++e) {  // where a part has one eight less, what is read there is not stored
                float v[4];
                asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                             : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                             : "r"(buffer + part * PART + (h * C::MOST + e) * C::THREADS * 16)
                             : "memory");
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[h][4 * e + i] = part ? sums[h][4 * e + i] + v[i] : v[i];
            }
}

// Bias, rounding, and out: a warp turns its 16 rows about in shared memory, for 16 bytes a thread beside each other.
template <class C>
__device__ __forceinline__ void leave(const float (&sums)[C::HEIGHT][4 * C::MOST], const float* bias, const Middle& p,
                                      const Place& at, u32 leaving) {
    using T = typename C::T;
    int lane = threadIdx.x & 31, eights = C::first(at.part + 1) - C::first(at.part);
    int column = C::first(at.part) * 8, warp = static_cast<int>(threadIdx.x) / 32;
    bias += column + 2 * (lane & 3);
#pragma unroll
    for (int h = 0; h < C::HEIGHT; ++h) {
        int inside = (warp / 4 * C::HEIGHT + h) * 64 + warp % 4 * 16;  // the warp's rows in the tile
        u32 rows = leaving + inside * C::PITCH, mine = rows + (lane & 15) * C::PITCH + (lane >> 4) * 16;
#pragma unroll
        for (int e = 0; e < C::MOST; e += 2) {
            const float *v = sums[h] + 4 * e, *b = bias + 8 * e;
            u32 low = T::round(v[0] + b[0], v[1] + b[1]), high = T::round(v[2] + b[0], v[3] + b[1]);
            if (e + 1 < C::MOST)
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(mine + 16 * e),
                             "r"(low), "r"(high), "r"(T::round(v[4] + b[8], v[5] + b[9])),
                             "r"(T::round(v[6] + b[8], v[7] + b[9]))
                             : "memory");
            else
                asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};" ::"r"(mine + 16 * e), "r"(low),
                             "r"(high)
                             : "memory");
        }
        __syncwarp();
#pragma unroll 4
        for (int i = lane; i < 16 * C::MOST; i += 32) {
            int row = i / C::MOST, eight = i % C::MOST, m = at.m + inside + row, n = at.n + column + 8 * eight;
            u32 a, b, c, d;
            asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                         : "r"(rows + row * C::PITCH + 16 * eight)
                         : "memory");
            if (eight < eights && inside + row < C::LOADED && m < p.M && n < p.N)
                *reinterpret_cast<Words*>(p.out + static_cast<i64>(m) * p.N + n) = {a, b, c, d};
        }
    }
}

template <class C>
__device__ __forceinline__ void finish(float (&d)[C::HEIGHT][C::WIDTH / 2], const float* bias, const Middle& p,
                                       const Place& at) {
    if constexpr (C::SPLIT == 1) {
        asm volatile("bar.sync 1, %0;" ::"n"(C::THREADS) : "memory");  // the ring is all read
        leave<C>(d, bias, p, at, at.ring);
    } else {
        float sums[C::HEIGHT][4 * C::MOST];
        if constexpr (C::SHARE == 1) cluster_wait();
        asm volatile("bar.sync 1, %0;" ::"n"(C::THREADS) : "memory");
        if constexpr (C::REUSE) {
            if (threadIdx.x < C::SPLIT && static_cast<int>(threadIdx.x) != at.part)
                barrier_arrive_at(at.ready, threadIdx.x * C::SHARE + at.which);
            wait_for_cluster(at.ready, 0);
        }
        gather<C>(d, sums, at, C::REUSE ? at.ring : at.ring + C::RING);
        leave<C>(sums, bias, p, at, C::REUSE ? at.ring + C::RECEIVED : at.ring);
    }
}

template <class C>
__device__ __forceinline__ void middle(const Middle& p) {
    extern __shared__ __align__(1024) unsigned char ring_bytes[];
    __shared__ __align__(8) u64 barriers[2 * C::RING_OF + 2];
    __shared__ float bias[C::WIDTH + 8];  // and what is read for an eight that a part has not
    u32 rank = 0, full = shared_address(barriers), empty = full + C::RING_OF * 8, received = empty + C::RING_OF * 8;
    int thread = static_cast<int>(threadIdx.x), lane = thread - C::THREADS;  // of the warp that fetches
    if (lane == 0)
        for (const TensorMap* map : {&p.w, &p.x}) asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
    if (C::BLOCKS > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    int which = static_cast<int>(rank) % C::SHARE, part = static_cast<int>(rank) / C::SHARE;
    int cluster = static_cast<int>(blockIdx.x) / C::BLOCKS, rows = C::LOADED * C::DOWN, down = (p.M + rows - 1) / rows;
    int m = cluster % down * C::DOWN + (C::DOWN > 1 ? which : 0);
    int n = cluster / down * C::ACROSS + (C::ACROSS > 1 ? which : 0);
    int steps = (p.K + 64 * C::DEPTH - 1) / (64 * C::DEPTH);
    Place at{shared_address(ring_bytes), full, empty, received, received + 8, m * C::LOADED, n * C::WIDTH,
             steps * part / C::SPLIT, steps * (part + 1) / C::SPLIT, which, part};
    bool multiplies = thread < C::THREADS;
    // A lane a barrier: full and empty ones, then the two of the cluster's sums.
    if (lane >= 0 && lane < 2 * C::RING_OF + 2) {
        int others = C::SPLIT > 1 ? C::SPLIT - 1 : 1, late = lane - 2 * C::RING_OF;
        barrier_init(full + lane * 8, late == 1 ? others : late == 0 || lane < C::RING_OF ? 1 : C::GROUPS * C::SHARE);
        asm volatile("fence.mbarrier_init.release.cluster;");
        int eights = C::first(part + 1) - C::first(part);
        if (C::SPLIT > 1 && late == 0)
            barrier_expect(received, static_cast<u32>((C::SPLIT - 1) * C::HEIGHT * C::THREADS * 16 * eights));
    }
    __syncwarp();  // what comes next is one instruction of whole warps
    if (C::BLOCKS > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    if (C::SHARE > 1) cluster_wait();
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");  // which wait in turn
    if (!multiplies) {
        asm volatile("bar.arrive 2, %0;" ::"n"(C::THREADS + 32) : "memory");  // the barriers are there: go on at once
        if (lane == 0) fill<C>(p, at);
        __syncwarp();
        if (C::SPLIT > 1 && C::SHARE == 1) cluster_wait();
    } else {
        float d[C::HEIGHT][C::WIDTH / 2] = {};
        wait_for_kernels();
        for (int i = thread; i < C::WIDTH + 8; i += C::THREADS)
            bias[i] = p.bias && i < C::WIDTH && at.n + i < p.N ? C::T::widen(p.bias[at.n + i]) : 0.0f;
        asm volatile("bar.sync 2, %0;" ::"n"(C::THREADS + 32) : "memory");
        multiply_steps<C>(d, at);
        finish<C>(d, bias, p, at);
    }
}

// middle_TYPE_GROUPS_HEIGHT_LOADED_WIDTH_DEPTH_STAGES_DOWN_ACROSS_PARTS_BLOCKS, as sm90_middle.py names them.
#define KW_MIDDLE_OF(T, type, g, h, l, w, d, s, down, across, parts, blocks)                                         \
    extern "C" __global__ __launch_bounds__(128 * g + 32, blocks)                                                    \
        void middle_##type##_##g##_##h##_##l##_##w##_##d##_##s##_##down##_##across##_##parts##_##blocks(             \
            u16* out, const u16* bias, const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w_map, \
            i64 M, i64 N, i64 K, i64 streamed) {                                                                     \
        middle<Cut<T, g, h, l, w, d, s, down, across, parts, blocks>>(                                               \
            {x, w_map, out, bias, static_cast<int>(M), static_cast<int>(N), static_cast<int>(K),                     \
             static_cast<int>(streamed)});                                                                           \
    }
#define KW_MIDDLE(...)                        \
    KW_MIDDLE_OF(Bf16, bfloat16, __VA_ARGS__) \
    KW_MIDDLE_OF(F16, float16, __VA_ARGS__)
