// The gradients of q, k and v from tiles of 128 keys. A block keeps a tile's sums of dk and dv in registers, 64 keys to
// each of two groups of 128 threads, and passes over the queries that see it, 64 at a time, of all heads of the group.
// Five products a step, scores formed transposed:
//     S^T = k q^T      dP^T = v g^T      dv += P^T g      dk += dS^T q      dq = dS k
// P^T and dS^T enter their products from the registers that they were formed in; dS also goes through shared memory,
// for dq needs all 128 keys, half of which the other group has. dq of a step is added to float32 sums in memory.
#pragma once

#include "sm90_instructions.cuh"
#include "sm90_steps.cuh"

enum { MEET = 1 };  // barriers of threads, one for each group

struct Problem {
    const TensorMap &q, &k, &v, &g, &dk, &dv;
    const float* rows;  // for each tile of queries STEP lse in base 2, then STEP times -delta
    float* sums;        // of dq: half of the columns of a step at a time, as a group's registers hold them
    int* taken;         // tiles of keys that blocks have taken
    int heads, group, pairs, queries, keys, section;
    int shift, window;  // query i sees keys up to i + shift (FAR: all of them), with a window so many up to there
    float factor, scale;
};

// Barriers, by number; as many for each ring as it may have places.
enum {
    Q_FULL = 0,
    Q_EMPTY = 4,
    G_FULL = 8,
    G_EMPTY = 12,
    K_FULL = 16,
    V_FULL = 18,
    K_EMPTY = 20,
    V_EMPTY = 22,
    DS_FULL = 24,
    TAKEN = 26,
    BARRIERS_IN_ALL = 28
};

template <int D>
struct Shape {
    static constexpr int PANELS = D / HALF;
    static constexpr u32 STAGES_Q = 4, STAGES_G = D == HALF ? 4 : 2;  // powers of two
    static constexpr u32 PLACES = D == HALF ? 2 : 1;                  // for keys and values: the next tile's come early
    static_assert(STAGES_Q <= Q_EMPTY - Q_FULL && STAGES_G <= G_EMPTY - G_FULL && PLACES <= V_FULL - K_FULL);
    static constexpr u32 TILE = STEP * D * 2, PANEL = STEP * 128, KEY_TILE = KEYS * D * 2, KEY_PANEL = KEYS * 128;
    static constexpr u32 WEIGHTS = STEP * KEYS * 2, ROWS = 2 * STEP * 4, PART = STEP * D / 2 * 4;
    // Where things lie in shared memory.
    static constexpr u32 K = 0, V = K + PLACES * KEY_TILE, Q = V + PLACES * KEY_TILE, G = Q + STAGES_Q * TILE, DS = G + STAGES_G * TILE;
    static constexpr u32 DQ = DS + 2 * WEIGHTS, LINES = DQ + 2 * PART, BARRIERS = LINES + STAGES_Q * ROWS;
    static constexpr u32 TILES = BARRIERS + 8 * BARRIERS_IN_ALL, BYTES = TILES + 4 * PLACES;  // which tiles are next
};

// ---------------------------------------------------------------- the warps that copy

// One of two warps: the first brings queries and keys, with lse and delta, the second brings gradients and values. The
// first also takes the tiles of keys, one ahead, and says which. All threads go the same way, so that what they work
// out needs no register a thread; one of them copies.
template <int D, bool WINDOW, bool FIRST>
__device__ __forceinline__ void fetch(const Problem& p, u32 start, volatile int* tiles) {
    using S = Shape<D>;
    constexpr int FULL = FIRST ? Q_FULL : G_FULL, EMPTY = FIRST ? Q_EMPTY : G_EMPTY;
    constexpr u32 STAGES = FIRST ? S::STAGES_Q : S::STAGES_G;
    const TensorMap *map = FIRST ? &p.q : &p.g, *key_map = FIRST ? &p.k : &p.v;
    u32 barriers = start + S::BARRIERS;
    int number = blockIdx.x;
    u32 count = 0, round = 0;
    bool one = (threadIdx.x & 31) == 0;
    u32 at = 0, phase = 0;  // of the tile of keys
    auto say = [&](int what) {
        barrier_wait(barriers + 8 * (K_EMPTY + at), phase ^ 1);
        if (one) tiles[at] = what, barrier_arrive(barriers + 8 * (TAKEN + at));
        __syncwarp();
    };
    wait_for_kernels();
    for (;; ++round) {
        at = round % S::PLACES, phase = round / S::PLACES & 1;
        if (FIRST) {
            if (number >= (p.keys + KEYS - 1) / KEYS * p.pairs) return say(-1);
        } else {
            barrier_wait(barriers + 8 * (TAKEN + at), phase);
            number = __shfl_sync(~0u, tiles[at], 0);
            __syncwarp();
            if (one) barrier_arrive(barriers + 8 * (K_EMPTY + at));  // has read it
            if (number < 0) return;
        }
        Work work = Work::of<WINDOW>(p, number);
        int batch = work.pair / p.heads, kv_head = work.pair - batch * p.heads, head = kv_head * p.group;
        int tile = work.begin, next = 0;
        if (FIRST && one) next = atomicAdd(p.taken, 1) + gridDim.x;
        auto keys = [&] {
            u32 full = barriers + 8 * ((FIRST ? K_FULL : V_FULL) + at);
            if (FIRST) say(number);
            else barrier_wait(barriers + 8 * (V_EMPTY + at), phase ^ 1);
            if (one) {
                barrier_expect(full, S::KEY_TILE);
                u32 to = start + (FIRST ? S::K : S::V) + at * S::KEY_TILE;
                for (int c = 0; c < S::PANELS; ++c)
                    copy_in(to + c * S::KEY_PANEL, key_map, c * HALF, work.key, kv_head, batch, full);
            }
            __syncwarp();
        };
        if (work.first == work.last) keys();
        for (int left = (work.last - work.first) * p.group, once = left; left; --left, ++count) {
            u32 stage = count % STAGES, full = barriers + 8 * (FULL + stage);
            barrier_wait(barriers + 8 * (EMPTY + stage), ~(count / STAGES) & 1);
            if (one) {
                barrier_expect(full, S::TILE + (FIRST ? S::ROWS : 0));
                for (int c = 0; c < S::PANELS; ++c)
                    copy_in(start + (FIRST ? S::Q : S::G) + stage * S::TILE + c * S::PANEL, map, c * HALF, tile * STEP,
                            head, batch, full);
                if (FIRST) {
                    i64 line = (batch * p.heads * p.group + head) * Work::tiles_of(p) + tile;
                    copy_line_in(start + S::LINES + stage * S::ROWS, p.rows + line * (2 * STEP), S::ROWS, full);
                }
            }
            __syncwarp();
            if (left == once) keys();
            if (work.next(tile)) ++head;
        }
        if (FIRST) number = __shfl_sync(~0u, next, 0);
    }
}

// ---------------------------------------------------------------- the threads that multiply

inline __device__ float exp2_of(float x) {  // volatile: in the order that they are written
    float r;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

template <class T, int D, bool WINDOW>
struct Group {
    using S = Shape<D>;
    static constexpr bool AHEAD = D == HALF;    // registers are left to begin dP^T of a step early
    static constexpr bool THROUGH = D != HALF;  // dq leaves through shared memory
    const Problem& p;
    u32 start;
    int part;                  // which of the two groups
    u32 count = 0, round = 0;  // steps and tiles of keys so far
    float dk[D / 2], dv[D / 2], s[STEP / 2], dp[STEP / 2], dq[D / 4];

    __device__ __forceinline__ Group(const Problem& p, u32 start, int part) : p(p), start(start), part(part) {}
    // Asked anew each time, for registers are short.
    __device__ __forceinline__ static int thread() {
        u32 t;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
        return static_cast<int>(t & 127);
    }
    __device__ __forceinline__ u32 barrier(u32 number) const { return start + S::BARRIERS + 8 * number; }
    __device__ __forceinline__ void release(u32 number) const {
        if ((thread() & 31) == 0) barrier_arrive(barrier(number));
    }
    // What all threads of a warp have read themselves, not the matrix units for them, is released behind this.
    __device__ __forceinline__ void release_read(u32 number) const {
        __syncwarp();
        release(number);
    }
    // The place of the tile of keys and of its values, and how often it was used before, odd or even.
    __device__ __forceinline__ u32 at() const { return round % S::PLACES; }
    __device__ __forceinline__ u32 turn() const { return round / S::PLACES & 1; }
    __device__ __forceinline__ u32 key_tile(u32 first) const { return first + at() * S::KEY_TILE; }
    __device__ __forceinline__ u32 q_tile(u32 of) const { return start + S::Q + of % S::STAGES_Q * S::TILE; }
    __device__ __forceinline__ u32 g_tile() const { return start + S::G + count % S::STAGES_G * S::TILE; }
    __device__ __forceinline__ u32 line() const {
        return start + S::LINES + count % S::STAGES_Q * S::ROWS + 8 * (thread() & 3);
    }
    __device__ __forceinline__ u32 weights_of(u32 of) const { return start + S::DS + of % 2 * S::WEIGHTS; }

    // d = (or, ADD, d +=) 64 keys of this group times a tile of queries, both along head_dim.
    template <int ADD>
    __device__ __forceinline__ void over_dim(float (&d)[STEP / 2], u32 keys, u32 queries) const {
        u64 a = tile_at(start + keys + part * (HALF * 128)), b = tile_at(queries);
#pragma unroll
        for (int c = 0; c < S::PANELS; ++c)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                T::template product<0>(d, a + (c * S::KEY_PANEL >> 4) + 2 * k, b + (c * S::PANEL >> 4) + 2 * k, ADD | c | k);
    }
    // d += what a holds of 64 keys times a tile of queries, along the queries.
    __device__ __forceinline__ void over_queries(float (&d)[D / 2], const u32* a, u32 queries) const {
        u64 b = tile_at(queries, S::PANEL);
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) T::template product<1>(d, a + 4 * k, b + (k * 16 * 128 >> 4), 1);
    }
    // dq = dS k: half of the columns.
    __device__ __forceinline__ void over_keys() {
        u64 a = tile_at(weights_of(count - 1)), b = tile_at(start + key_tile(S::K) + part * (D == HALF ? 64 : S::KEY_PANEL));
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k)
            T::template product<1>(dq, a + (k / 4 * S::PANEL >> 4) + 2 * (k & 3), b + (k * 16 * 128 >> 4), k);
    }

    // s becomes P^T, 0 where a query does not see a key.
    __device__ __forceinline__ void weigh(const Work& work, int query) {
        u32 from = line();
#pragma unroll
        for (int j = 0; j < STEP / 8; ++j) {
            float2 lse = load_pair(from + 32 * j);
            s[4 * j] = exp2_of(s[4 * j] * p.factor - lse.x);
            s[4 * j + 1] = exp2_of(s[4 * j + 1] * p.factor - lse.y);
            s[4 * j + 2] = exp2_of(s[4 * j + 2] * p.factor - lse.x);
            s[4 * j + 3] = exp2_of(s[4 * j + 3] * p.factor - lse.y);
        }
        int first = work.key + part * HALF;
        if (first + HALF - 1 <= query + p.shift && first + HALF <= p.keys &&
            (!WINDOW || first > query + STEP - 1 + p.shift - p.window))
            return;
        int at = thread(), key = first + at / 32 * 16 + (at >> 2 & 7), column = query + 2 * (at & 3);
        int low = key < p.keys ? key - p.shift - column : FAR * 2 - 1;
        int high = key + 8 < p.keys ? key + 8 - p.shift - column : FAR * 2 - 1;
#pragma unroll
        for (int j = 0; j < STEP / 8; ++j) {
            s[4 * j] = low <= 8 * j ? s[4 * j] : 0;
            s[4 * j + 1] = low <= 8 * j + 1 ? s[4 * j + 1] : 0;
            s[4 * j + 2] = high <= 8 * j ? s[4 * j + 2] : 0;
            s[4 * j + 3] = high <= 8 * j + 1 ? s[4 * j + 3] : 0;
        }
        if (!WINDOW) return;
        low += p.window, high += p.window;
#pragma unroll
        for (int j = 0; j < STEP / 8; ++j) {
            s[4 * j] = low > 8 * j ? s[4 * j] : 0;
            s[4 * j + 1] = low > 8 * j + 1 ? s[4 * j + 1] : 0;
            s[4 * j + 2] = high > 8 * j ? s[4 * j + 2] : 0;
            s[4 * j + 3] = high > 8 * j + 1 ? s[4 * j + 3] : 0;
        }
    }
    // What dP^T is added to: -delta of every query.
    __device__ __forceinline__ void begin_slopes() {
        u32 from = line() + 4 * STEP;
#pragma unroll
        for (int j = 0; j < STEP / 4; ++j) {
            float2 delta = load_pair(from + 32 * (j / 2));
            dp[2 * j] = delta.x, dp[2 * j + 1] = delta.y;
        }
    }
    // As the matrix units take it from the left.
    __device__ __forceinline__ static void pack(u32* packed, const float (&d)[STEP / 2]) {
#pragma unroll
        for (int j = 0; j < STEP / 4; ++j) packed[j] = T::round(d[2 * j], d[2 * j + 1]);
    }
    // dS^T of this group to shared memory: queries down, keys along.
    __device__ __forceinline__ void share(const u32* packed) {
        int t = thread(), row = (t & 7) + (t >> 4 & 1) * 8;
        int chunk = t / 32 * 2 + (t >> 3 & 1);
        u32 at = weights_of(count) + part * S::PANEL + row * 128 + ((chunk ^ (row & 7)) << 4);
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) store_turned(at + k * 16 * 128, packed + 4 * k);
        publish();
        __syncwarp();
        release(DS_FULL + count % 2);
    }
    // The place that dq goes through is free.
    __device__ __forceinline__ void clear() {
        if (!THROUGH) return;
        if (thread() == 0) copies_read();
        meet(MEET + part, 128);
    }
    // Adds dq of a step to the sums: by the copy engine, or from the registers.
    __device__ __forceinline__ void send(int block) {
        float* to = p.sums + (static_cast<i64>(block) * 2 + part) * (S::PART / 4);
        int thread = this->thread();
        if (!THROUGH) {
#pragma unroll
            for (int j = 0; j < D / 16; ++j)
                add_four(to + (j * 128 + thread) * 4, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
            return;
        }
        u32 place = start + S::DQ + part * S::PART;
#pragma unroll
        for (int j = 0; j < D / 16; ++j)
            store_four(place + (j * 128 + thread) * 16, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
        publish();
        meet(MEET + part, 128);
        if (thread == 0) {
            add_line(to, place, S::PART);
            close_copies();
        }
    }
    // A group's sums of dk or dv, rounded, out through the place that dq goes through.
    __device__ __forceinline__ void store(const float (&d)[D / 2], float scale, const TensorMap* map,
                                          const Work& work) {
        u32 place = start + S::DQ + part * S::PART;
        int thread = this->thread(), row = thread / 32 * 16 + (thread & 15);
        if (thread == 0) copies_read();
        meet(MEET + part, 128);
#pragma unroll
        for (int q = 0; q < D / 16; ++q) {
            u32 v[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) v[e] = T::round(d[8 * q + 2 * e] * scale, d[8 * q + 2 * e + 1] * scale);
            int chunk = q % 4 * 2 + (thread >> 4 & 1);
            store_matrices(place + q / 4 * (HALF * 128) + row * 128 + ((chunk ^ (row & 7)) << 4), v);
        }
        publish();
        meet(MEET + part, 128);
        int first = work.key + part * HALF, batch = work.pair / p.heads;
        if (thread == 0 && first < p.keys) {
            for (int c = 0; c < S::PANELS; ++c)
                copy_out(map, c * HALF, first, work.pair - batch * p.heads, batch, place + c * (HALF * 128));
            close_copies();
        }
    }

    // The parts of a step: S^T, dP^T, dv, and dS^T, which the other group waits for.
    __device__ __forceinline__ void score() {
        barrier_wait(barrier(Q_FULL + count % S::STAGES_Q), count / S::STAGES_Q & 1);
        products_begin();
        over_dim<0>(s, key_tile(S::K), q_tile(count));
        products_commit();
    }
    __device__ __forceinline__ void slope() {
        barrier_wait(barrier(G_FULL + count % S::STAGES_G), count / S::STAGES_G & 1);
        begin_slopes();
        products_begin();
        over_dim<1>(dp, key_tile(S::V), g_tile());
        products_commit();
    }
    __device__ __forceinline__ void value(u32* weights) {
        pack(weights, s);
        products_begin();
        over_queries(dv, weights, g_tile());
        products_commit();
    }
    __device__ __forceinline__ void multiply(bool last) {
        landed(dp);
        if (last) release(V_EMPTY + at());
#pragma unroll
        for (int j = 0; j < STEP / 2; ++j) dp[j] *= s[j];
    }
    __device__ __forceinline__ void sent(int block) {
        landed(dq);
        release_read(Q_EMPTY + (count - 1) % S::STAGES_Q);
        send(block);
    }
    // dk and dq of the step before; the first waits for nobody, and the other group's dS comes meanwhile.
    __device__ __forceinline__ void follow(const u32* slopes) {
        products_begin();
        over_queries(dk, slopes, q_tile(count - 1));
        products_commit();
        barrier_wait(barrier(DS_FULL + (count - 1) % 2), (count - 1) / 2 & 1);
        products_begin();
        over_keys();
        products_commit();
        clear();
    }

    // A step; all but the first of a tile of keys begin with what is left of the one before, whose dq has the place
    // `before`. dP^T is begun at once where registers allow that, else when dq has left some. dS is handed over before
    // the next products are begun: a warp that begins them stands until they are nearly done, and the other group with
    // it.
    template <bool FIRST>
    __device__ __forceinline__ void step(u32* slopes, const Work& work, int tile, int before, bool last) {
        u32 weights[STEP / 4];
        score();
        if (FIRST) barrier_wait(barrier(V_FULL + at()), turn());
        if (AHEAD) slope();
        if (!FIRST) follow(slopes);
        products_wait<(FIRST ? 0 : 2) + AHEAD>();
        landed(s);
        weigh(work, tile * STEP);
        if (!AHEAD) {
            if (!FIRST) products_wait<0>(), sent(before);
            slope();
            value(weights);
            products_wait<1>();
            multiply(last);
            products_wait<0>();  // dv needs its left side no more: dS^T takes the registers
            release(G_EMPTY + count % S::STAGES_G);
        } else {
            value(weights);
            products_wait<FIRST ? 1 : 3>();
            multiply(last);
            products_wait<1>();
            if (!FIRST) sent(before);
        }
        pack(slopes, dp);
        share(slopes);
        if (AHEAD) products_wait<0>(), release(G_EMPTY + count % S::STAGES_G);
        ++count;
    }

    __device__ __forceinline__ void tile_of_keys(const Work& work) {
        int left = (work.last - work.first) * p.group, tile = work.begin;
        int block = work.pair * p.group * Work::tiles_of(p) + tile;
        barrier_wait(barrier(K_FULL + at()), turn());
#pragma unroll
        for (int j = 0; j < D / 2; ++j) dk[j] = dv[j] = 0;
        if (left) {
            u32 slopes[STEP / 4];
            step<true>(slopes, work, tile, 0, left == 1);
            while (--left) {
                int before = block;
                block -= tile;
                if (work.next(tile)) block += Work::tiles_of(p);
                block += tile;
                step<false>(slopes, work, tile, before, left == 1);
            }
            follow(slopes);
            products_wait<0>();
            release_read(K_EMPTY + at());
            sent(block);
        } else {
            barrier_wait(barrier(V_FULL + at()), turn());
            release_read(K_EMPTY + at());
            release(V_EMPTY + at());
        }
        landed(dv);
        landed(dk);
        store(dv, 1, &p.dv, work);
        store(dk, p.scale, &p.dk, work);
        ++round;
    }
};

template <class T, int D, bool WINDOW>
__device__ __forceinline__ void gradients(const Problem& p) {
    using S = Shape<D>;
    extern __shared__ __align__(1024) unsigned char bytes[];
    u32 start = shared_address(bytes);
    volatile int* tiles = reinterpret_cast<int*>(bytes + S::TILES);
    if (threadIdx.x == 0) {
        auto init = [&](int first, int many, u32 arrivals) {
            for (int i = 0; i < many; ++i) barrier_init(start + S::BARRIERS + 8 * (first + i), arrivals);
        };
        init(Q_FULL, 4, 1), init(Q_EMPTY, 4, 8), init(G_FULL, 4, 1), init(G_EMPTY, 4, 8);
        init(K_FULL, 4, 1), init(K_EMPTY, 2, 9), init(V_EMPTY, 2, 8), init(DS_FULL, 2, 8), init(TAKEN, 2, 1);
        asm volatile("fence.mbarrier_init.release.cluster;");
        for (const TensorMap* map : {&p.q, &p.k, &p.v, &p.g, &p.dk, &p.dv})
            asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
    }
    __syncthreads();
    let_kernels_start();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        if (warp == 0) fetch<D, WINDOW, true>(p, start, tiles);
        if (warp == 1) fetch<D, WINDOW, false>(p, start, tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        wait_for_kernels();
        Group<T, D, WINDOW> group(p, start, __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128) - 1, 0));
        while (true) {
            barrier_wait(group.barrier(TAKEN + group.at()), group.turn());
            int number = __shfl_sync(~0u, tiles[group.at()], 0);  // one for all: no register a thread
            if (number < 0) break;
            group.tile_of_keys(Work::of<WINDOW>(p, number));
        }
        if (group.thread() == 0) copies_read();
    }
}
