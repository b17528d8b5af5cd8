// The gradients of k and v for a head_dim of 256, and dS, of which sm90_wide_queries.cuh makes the gradient of q.
// A block keeps a tile of 64 keys: its sums of dk and dv are 128 registers a thread each, so one group of 128 threads has
// dv, the other dk, and each makes what its sum needs, scores transposed, for 64 queries at a time:
//     values   S^T = k q^T     P^T            dv += P^T g
//     slopes   dP^T = v g^T    dS^T = P^T dP^T  dk += dS^T q
// P^T goes from one group to the other in float32 through shared memory, as registers hold it. dS goes to memory in 16
// bits: an eighth of the bytes that dq of a step has in float32, and what is made of it is the same every time.
#pragma once

#include "sm90_more_instructions.cuh"
#include "sm90_wide_order.cuh"

namespace wide {

enum { MEET = 1 };  // a barrier of threads

struct Problem {
    const TensorMap &q, &k, &v, &g, &ds;
    const float* rows;  // for each tile of queries STEP lse in base 2, then STEP times -delta
    u16 *dk, *dv;       // contiguous
    int* taken;         // tiles of keys that blocks have taken
    Share share;
    float factor, scale;
};

constexpr u32 TILE = 64 * D * 2, PANEL = 64 * 128, STAGES = 2, ROWS = 2 * STEP * 4;
// Where things lie in shared memory: a tile of keys, one of values, rings of queries and gradients, P^T, two places of dS.
constexpr u32 K = 0, V = K + TILE, Q = V + TILE, G = Q + STAGES * TILE, P = G + STAGES * TILE, DS = P + STEP * KEYS * 4;
constexpr u32 LINES = DS + 2 * PANEL, BARRIERS = LINES + STAGES * ROWS;

// Barriers, by number. Queries come in halves of head_dim, the first with its line.
enum {
    Q_FULL = 0,
    Q_REST = 2,
    Q_EMPTY = 4,
    G_FULL = 6,
    G_EMPTY = 8,
    K_FULL = 10,
    K_EMPTY,
    V_FULL,
    V_EMPTY,
    P_FULL,
    P_EMPTY,
    TAKEN,
    BARRIERS_IN_ALL
};
constexpr u32 NEXT = BARRIERS + 8 * BARRIERS_IN_ALL, BYTES = NEXT + 4;  // the number of the next tile
static_assert(BYTES <= 232448);

// ---------------------------------------------------------------- the warps that copy

// One of two warps: the first brings queries and keys, with lse and delta, and takes the tiles of keys, one ahead; the
// second brings gradients and values.
template <bool FIRST>
__device__ __forceinline__ void fetch(const Problem& p, u32 start, volatile int* next_tile) {
    const TensorMap *map = FIRST ? &p.q : &p.g, *key_map = FIRST ? &p.k : &p.v;
    u32 barriers = start + BARRIERS;
    int number = blockIdx.x;
    u32 count = 0, round = 0;
    bool one = (threadIdx.x & 31) == 0;
    auto say = [&](int what) {
        barrier_wait(barriers + 8 * K_EMPTY, (round & 1) ^ 1);
        if (one) *next_tile = what, barrier_arrive(barriers + 8 * TAKEN);
        __syncwarp();
    };
    wait_for_kernels();
    for (;; ++round) {
        if (FIRST) {
            if (number >= tiles_of_keys(p.share) * p.share.pairs) return say(-1);
        } else {
            barrier_wait(barriers + 8 * TAKEN, round & 1);
            number = __shfl_sync(~0u, *next_tile, 0);
            __syncwarp();
            if (one) barrier_arrive(barriers + 8 * K_EMPTY);  // has read it
            if (number < 0) return;
        }
        KeyTile tile = key_tile(p.share, number);
        int batch = tile.pair / p.share.heads, kv_head = tile.pair - batch * p.share.heads, head = kv_head * p.share.group;
        int step = tile.first, next = 0;
        if (FIRST && one) next = atomicAdd(p.taken, 1) + gridDim.x;
        auto keys = [&] {
            u32 full = barriers + 8 * (FIRST ? K_FULL : V_FULL);
            if (FIRST) say(number);
            else barrier_wait(barriers + 8 * V_EMPTY, (round & 1) ^ 1);
            if (one) {
                barrier_expect(full, TILE);
                for (int c = 0; c < PANELS; ++c)
                    copy_in(start + (FIRST ? K : V) + c * PANEL, key_map, c * 64, tile.key, kv_head, batch, full);
            }
            __syncwarp();
        };
        if (tile.first == tile.last) keys();
        for (int left = (tile.last - tile.first) * p.share.group, once = left; left; --left, ++count) {
            u32 stage = count % STAGES, full = barriers + 8 * ((FIRST ? Q_FULL : G_FULL) + stage);
            barrier_wait(barriers + 8 * ((FIRST ? Q_EMPTY : G_EMPTY) + stage), ~(count / STAGES) & 1);
            if (one) {
                u32 to = start + (FIRST ? Q : G) + stage * TILE;
                barrier_expect(full, FIRST ? TILE / 2 + ROWS : TILE);
                if (FIRST) {
                    i64 line = (i64{batch} * p.share.heads * p.share.group + head) * steps_of(p.share) + step;
                    copy_line_in(start + LINES + stage * ROWS, p.rows + line * (2 * STEP), ROWS, full);
                }
                for (int c = 0; c < PANELS; ++c) {
                    if (FIRST && c == PANELS / 2) {
                        full = barriers + 8 * (Q_REST + stage);
                        barrier_expect(full, TILE / 2);
                    }
                    copy_in(to + c * PANEL, map, c * 64, step * STEP, head, batch, full);
                }
            }
            __syncwarp();
            if (left == once) keys();
            if (++step == tile.last) step = tile.first, ++head;
        }
        if (FIRST) number = __shfl_sync(~0u, next, 0);
    }
}

// ---------------------------------------------------------------- the threads that multiply

// What both groups are made of. HELD of the 16 times 16 columns of the group's keys (or values) stay in registers: the left
// side of a product costs shared memory as much as 64 columns of the right.
template <class T, int HELD>
struct Side {
    const Problem& p;
    u32 start;
    u32 count = 0, round = 0;  // steps and tiles of keys so far
    float sums[D / 2], s[STEP / 2];
    u32 packed[STEP / 4], held[HELD ? 4 * HELD : 1];

    __device__ __forceinline__ Side(const Problem& p, u32 start) : p(p), start(start) {}
    __device__ __forceinline__ static int thread() { return static_cast<int>(thread_of_block() & 127); }
    __device__ __forceinline__ u32 barrier(u32 number) const { return start + BARRIERS + 8 * number; }
    __device__ __forceinline__ void release(u32 number) const {
        if ((thread() & 31) == 0) barrier_arrive(barrier(number));
    }
    // What all threads of a warp have read or written themselves, not the matrix units for them.
    __device__ __forceinline__ void release_read(u32 number) const {
        __syncwarp();
        release(number);
    }
    __device__ __forceinline__ u32 tile_in(u32 ring, u32 of) const { return start + ring + of % STAGES * TILE; }
    __device__ __forceinline__ u32 turn(u32 of) const { return of / STAGES & 1; }
    __device__ __forceinline__ u32 line(u32 of) const { return start + LINES + of % STAGES * ROWS + 8 * (thread() & 3); }

    __device__ __forceinline__ void begin_tile(u32 keys) {
#pragma unroll
        for (int j = 0; j < D / 2; ++j) sums[j] = 0;
        int t = thread(), lane = t & 31;
        u32 at = start + keys + (t / 32 * 16 + (lane & 15)) * 128;
#pragma unroll
        for (int k = 0; k < HELD; ++k) {
            load_matrices(held + 4 * k, at + k / 4 * PANEL + (((k % 4 * 2 + lane / 16) ^ (lane & 7)) << 4));
        }
    }
    // s = (or, ADD, s +=) the group's 64 keys times 64 queries along head_dim: columns 16 FROM to 16 TO.
    template <int ADD, int FROM, int TO>
    __device__ __forceinline__ void over_dim(u32 keys, u32 queries) {
        u64 a = tile_at(start + keys), b = tile_at(queries);
#pragma unroll
        for (int k = FROM; k < TO; ++k) {
            u64 at = k / 4 * (PANEL >> 4) + k % 4 * 2;
            if (k < HELD) T::template product<0>(s, held + 4 * k, b + at, ADD | k);
            else T::template product<0>(s, a + at, b + at, ADD | k);
        }
    }
    // sums += what is packed of 64 keys times a tile of queries, along the queries.
    __device__ __forceinline__ void over_queries(u32 queries) {
        u64 b = tile_at(queries, PANEL);
        products_begin();
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) T::template product<1>(sums, packed + 4 * k, b + k * 128, 1);
        products_commit();
    }
    __device__ __forceinline__ void pack() {
#pragma unroll
        for (int j = 0; j < STEP / 4; ++j) packed[j] = T::round(s[2 * j], s[2 * j + 1]);
    }
    // The sums, rounded, to memory: threads exchange halves with their neighbours, and each stores four numbers at once.
    __device__ __forceinline__ void store(u16* out, float scale, const KeyTile& tile) {
        landed(sums);
        int t = thread(), lane = t & 31;
        bool odd = lane & 1;
        u16* to = out + i64{tile.pair} * p.share.keys * D + 8 * odd + 2 * (lane & 2);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int key = tile.key + t / 32 * 16 + lane / 4 + 8 * r;
#pragma unroll
            for (int j = 0; j < D / 16; ++j) {
                const float* d = sums + 8 * j + 2 * r;
                u32 left = T::round(d[0] * scale, d[1] * scale), right = T::round(d[4] * scale, d[5] * scale);
                u32 other = __shfl_xor_sync(~0u, odd ? left : right, 1);
                uint2 both = odd ? uint2{other, right} : uint2{left, other};
                if (key < p.share.keys) *reinterpret_cast<uint2*>(to + i64{key} * D + 16 * j) = both;
            }
        }
    }
};

// S^T, P^T and dv.
template <class T, int HELD, bool AHEAD>
struct Values : Side<T, HELD> {
    using Base = Side<T, HELD>;
    using Base::Base, Base::p, Base::start, Base::count, Base::round, Base::s, Base::sums;

    __device__ __forceinline__ void score(u32 of) {
        u32 queries = this->tile_in(Q, of);
        barrier_wait(this->barrier(Q_FULL + of % STAGES), this->turn(of));
        products_begin();
        this->template over_dim<0, 0, 8>(K, queries);
        products_commit();
        barrier_wait(this->barrier(Q_REST + of % STAGES), this->turn(of));
        products_begin();
        this->template over_dim<0, 8, 16>(K, queries);
        products_commit();
    }
    __device__ __forceinline__ void value() {
        barrier_wait(this->barrier(G_FULL + count % STAGES), this->turn(count));
        this->over_queries(this->tile_in(G, count));
    }
    // s becomes P^T, 0 where a query does not see a key.
    __device__ __forceinline__ void weigh(const KeyTile& tile, int step, u32 of) {
        u32 from = this->line(of);
#pragma unroll
        for (int j = 0; j < STEP / 8; ++j) {
            float2 lse = load_pair(from + 32 * j);
            s[4 * j] = exponential_in_order(s[4 * j] * p.factor - lse.x);
            s[4 * j + 1] = exponential_in_order(s[4 * j + 1] * p.factor - lse.y);
            s[4 * j + 2] = exponential_in_order(s[4 * j + 2] * p.factor - lse.x);
            s[4 * j + 3] = exponential_in_order(s[4 * j + 3] * p.factor - lse.y);
        }
        this->release_read(Q_EMPTY + of % STAGES);
        if (tile.key + KEYS - 1 <= step * STEP + p.share.shift && tile.key + KEYS <= p.share.keys) return;
        int t = this->thread(), key = tile.key + t / 32 * 16 + (t >> 2 & 7), column = step * STEP + 2 * (t & 3);
        int low = key < p.share.keys ? key - p.share.shift - column : FAR * 2 - 1;
        int high = key + 8 < p.share.keys ? key + 8 - p.share.shift - column : FAR * 2 - 1;
#pragma unroll
        for (int j = 0; j < STEP / 8; ++j) {
            s[4 * j] = low <= 8 * j ? s[4 * j] : 0;
            s[4 * j + 1] = low <= 8 * j + 1 ? s[4 * j + 1] : 0;
            s[4 * j + 2] = high <= 8 * j ? s[4 * j + 2] : 0;
            s[4 * j + 3] = high <= 8 * j + 1 ? s[4 * j + 3] : 0;
        }
    }
    // P^T to the other group.
    __device__ __forceinline__ void hand_over(u32 of) {
        u32 to = start + P + this->thread() * 16;
        barrier_wait(this->barrier(P_EMPTY), (of & 1) ^ 1);
#pragma unroll
        for (int j = 0; j < STEP / 8; ++j)
            store_four(to + j * 128 * 16, s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
        this->release_read(P_FULL);
    }

    // The scores of the next step are begun together with dv of this one, ahead of it or behind it.
    __device__ __forceinline__ void tile_of_keys(const KeyTile& tile) {
        int left = (tile.last - tile.first) * p.share.group, step = tile.first;
        barrier_wait(this->barrier(K_FULL), round & 1);
        this->begin_tile(K);
        if (left) {
            score(count);
            products_wait<0>(s);
            if (left == 1) this->release_read(K_EMPTY);
            weigh(tile, step, count);
            hand_over(count);
            this->pack();
        } else {
            this->release_read(K_EMPTY);
        }
        for (; left > 1; --left, ++count) {
            if (++step == tile.last) step = tile.first;
            if (AHEAD) score(count + 1), value(), products_wait<1>();
            else value(), score(count + 1), products_wait<2>(), this->release(G_EMPTY + count % STAGES), products_wait<0>();
            landed(s);
            if (left == 2) this->release_read(K_EMPTY);
            weigh(tile, step, count + 1);
            hand_over(count + 1);
            if (AHEAD) products_wait<0>(), this->release(G_EMPTY + count % STAGES);
            used(this->packed);
            this->pack();
        }
        if (left) {
            value();
            products_wait<0>();
            this->release(G_EMPTY + count % STAGES);
            ++count;
        }
        this->store(p.dv, 1, tile);
        ++round;
    }
};

// dP^T, dS^T and dk; dS to memory.
template <class T, int HELD>
struct Slopes : Side<T, HELD> {
    using Base = Side<T, HELD>;
    using Base::Base, Base::p, Base::start, Base::count, Base::round, Base::s, Base::sums, Base::packed;

    // dP^T is added to -delta of every query.
    __device__ __forceinline__ void slope(u32 of) {
        barrier_wait(this->barrier(Q_FULL + of % STAGES), this->turn(of));
        u32 from = this->line(of) + 4 * STEP;
#pragma unroll
        for (int j = 0; j < STEP / 4; ++j) {
            float2 delta = load_pair(from + 32 * (j / 2));
            s[2 * j] = delta.x, s[2 * j + 1] = delta.y;
        }
        barrier_wait(this->barrier(G_FULL + of % STAGES), this->turn(of));
        products_begin();
        this->template over_dim<1, 0, 16>(V, this->tile_in(G, of));
        products_commit();
    }
    __device__ __forceinline__ void follow() {
        barrier_wait(this->barrier(Q_REST + count % STAGES), this->turn(count));
        this->over_queries(this->tile_in(Q, count));
    }
    // Times P^T, which the other group has made.
    __device__ __forceinline__ void multiply(u32 of) {
        u32 from = start + P + this->thread() * 16;
        barrier_wait(this->barrier(P_FULL), of & 1);
#pragma unroll
        for (int j = 0; j < STEP / 8; ++j) {
            float4 w = load_four(from + j * 128 * 16);
            s[4 * j] *= w.x, s[4 * j + 1] *= w.y, s[4 * j + 2] *= w.z, s[4 * j + 3] *= w.w;
        }
        this->release_read(P_EMPTY);
    }
    // dS of a step to memory by way of shared memory: queries down, keys along.
    __device__ __forceinline__ void share(const KeyTile& tile, int head, int step, u32 of) {
        int t = this->thread(), row = (t & 7) + (t >> 4 & 1) * 8, chunk = t / 32 * 2 + (t >> 3 & 1);
        u32 place = start + DS + of % 2 * PANEL, at = place + row * 128 + ((chunk ^ (row & 7)) << 4);
        if (t == 0) copies_read_but_one();
        meet(MEET, 128);
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) store_turned(at + k * 16 * 128, packed + 4 * k);
        publish();
        meet(MEET, 128);
        if (t == 0) {
            copy_out(&p.ds, tile.key, step * STEP, (tile.pair - p.share.first) * p.share.group + head, 0, place);
            close_copies();
        }
    }

    __device__ __forceinline__ void tile_of_keys(const KeyTile& tile) {
        int left = (tile.last - tile.first) * p.share.group, step = tile.first, head = 0;
        this->release_read(K_EMPTY);  // has read which tile it is
        barrier_wait(this->barrier(V_FULL), round & 1);
        this->begin_tile(V);
        if (left) {
            slope(count);
            products_wait<0>(s);
            this->release(G_EMPTY + count % STAGES);
            if (left == 1) this->release_read(V_EMPTY);
            multiply(count);
            this->pack();
            share(tile, head, step, count);
        } else {
            this->release_read(V_EMPTY);
        }
        for (; left > 1; --left, ++count) {
            if (++step == tile.last) step = tile.first, ++head;
            follow();
            slope(count + 1);
            products_wait<1>();
            used(this->packed);
            this->release_read(Q_EMPTY + count % STAGES);
            products_wait<0>(s);
            this->release(G_EMPTY + (count + 1) % STAGES);
            if (left == 2) this->release_read(V_EMPTY);
            multiply(count + 1);
            this->pack();
            share(tile, head, step, count + 1);
        }
        if (left) {
            follow();
            products_wait<0>();
            this->release_read(Q_EMPTY + count % STAGES);
            ++count;
        }
        this->store(p.dk, p.scale, tile);
        ++round;
    }
};

template <class S>
__device__ __forceinline__ void each_tile(const Problem& p, S side, volatile int* next_tile) {
    while (true) {
        barrier_wait(side.barrier(TAKEN), side.round & 1);
        int number = __shfl_sync(~0u, *next_tile, 0);  // one for all: no register a thread
        if (number < 0) break;
        side.tile_of_keys(key_tile(p.share, number));
    }
}

template <class T, int HELD, bool AHEAD>
__device__ __forceinline__ void gradients(const Problem& p) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    u32 start = shared_address(bytes);
    volatile int* next_tile = reinterpret_cast<int*>(bytes + NEXT);
    if (threadIdx.x == 0) {
        auto init = [&](int first, int many, u32 arrivals) {
            for (int i = 0; i < many; ++i) barrier_init(start + BARRIERS + 8 * (first + i), arrivals);
        };
        init(Q_FULL, 4, 1), init(Q_EMPTY, 2, 8), init(G_FULL, 2, 1), init(G_EMPTY, 2, 8);
        // Keys: when the first group has made its last scores, and the second and the other copying warp know the tile.
        init(K_FULL, 1, 1), init(K_EMPTY, 1, 9), init(V_FULL, 1, 1), init(V_EMPTY, 1, 4);
        init(P_FULL, 1, 4), init(P_EMPTY, 1, 4), init(TAKEN, 1, 1);
        barriers_made();
        for (const TensorMap* map : {&p.q, &p.k, &p.v, &p.g, &p.ds}) expect_map(map);
    }
    __syncthreads();
    let_kernels_start();
    int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        keep_registers<24>();
        u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        if (warp == 0) fetch<true>(p, start, next_tile);
        if (warp == 1) fetch<false>(p, start, next_tile);
    } else {
        take_registers<240>();
        wait_for_kernels();
        if (group == 1) {
            each_tile(p, Values<T, HELD, AHEAD>(p, start), next_tile);
        } else {
            each_tile(p, Slopes<T, HELD>(p, start), next_tile);
            if ((threadIdx.x & 127) == 0) copies_done();
        }
    }
}

}  // namespace wide
