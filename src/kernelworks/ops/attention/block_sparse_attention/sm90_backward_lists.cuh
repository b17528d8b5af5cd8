// The gradients of attention over lists of blocks: a tile of keys passes over the blocks of queries on its column's list,
// two steps each, of all heads of the group. Which step it is, its queries and where its dq is added, comes in shared
// memory beside them; where a tile lies, and how many steps it has, beside its number. Only the threads that fetch read
// lists. What differs from attention's kernel is said by specialising its functions.
#pragma once

#include "../attention/sm90_gradients.cuh"

constexpr int IN_BLOCK = KEYS / STEP;

// What a launch asks for beside attention's. Strides count rows of blocks.
struct Listed : Problem {
    const int *lists, *counts, *ranked;  // of every column: its blocks of queries, how many; the columns by length
    int of_batch, of_head;
};

// Behind what attention's kernel has in shared memory, pairs of numbers: of every place of queries {its tile of a head,
// its tile of all}; of every place of keys {the first key, steps}.
template <int D>
struct Pairs {
    using S = Shape<D>;
    static constexpr u32 STEPS = S::BYTES + (8 - S::BYTES % 8) % 8, TILES = STEPS + 8 * S::STAGES_Q;
    static constexpr u32 ROUNDS = 4, NEXT = TILES + 16 * ROUNDS, HEADS = NEXT + 8, BYTES = HEADS + 8;
};

inline __device__ int2 load_numbers(u32 address) {
    int2 r;
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(r.x), "=r"(r.y) : "r"(address) : "memory");
    return r;
}
inline __device__ void store_numbers(u32 address, int x, int y) {
    asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}

// ---------------------------------------------------------------- the warps that copy

// How many steps a list has: the last block may have one less.
inline __device__ int steps_of(const Listed& p, int row, int columns) {
    int count = __ldg(p.counts + row), tiles = Work::tiles_of(p);
    if (!count) return 0;
    int last = __ldg(p.lists + static_cast<i64>(row) * columns + count - 1);
    return IN_BLOCK * count - max(IN_BLOCK * (last + 1) - tiles, 0);
}

inline __device__ int lane_of() {  // asked anew each time, for registers are short
    u32 t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return static_cast<int>(t & 31);
}
// Nothing follows: which warp it is needs no register till then.
inline __device__ void leave() { asm volatile("exit;"); }
inline __device__ int columns_of(const Listed& p) { return (Work::tiles_of(p) + IN_BLOCK - 1) / IN_BLOCK; }

// The tile of keys of a round, where the place for its number is free.
template <int D>
__device__ __forceinline__ void say(u32 start, volatile int* tiles, u32 round, int what) {
    using S = Shape<D>;
    u32 at = round % S::PLACES;
    barrier_wait(start + S::BARRIERS + 8 * (K_EMPTY + at), ~(round / S::PLACES) & 1);
    if (lane_of() == 0) tiles[at] = what, barrier_arrive(start + S::BARRIERS + 8 * (TAKEN + at));
    __syncwarp();
}

// Notes of a tile of keys where it lies, how many steps it has, its number and round; takes the next one.
template <int D>
__device__ __forceinline__ void note(const Listed& p, u32 start, u32 noted, int2 now) {
    using P = Pairs<D>;
    Work work = Work::of<false>(p, now.x);
    int batch = work.pair / p.heads, head = (work.pair - batch * p.heads) * p.group;
    int row = batch * p.of_batch + head * p.of_head;  // of the group's first head
    int block = __ldg(p.ranked + 2 * (row + work.key / KEYS)), steps = 0;  // the longest lists first
    row += block;
#pragma unroll 1
    for (int m = lane_of(); m < p.group; m += 32) steps += steps_of(p, row + m * p.of_head, columns_of(p));
#pragma unroll
    for (int far = 16; far; far /= 2) steps += __shfl_xor_sync(~0u, steps, far);
    if (lane_of() == 0) {
        store_numbers(noted, block * KEYS, steps);
        store_numbers(noted + 8, now.x, now.y);
        store_numbers(start + P::HEADS, batch << 16 | head, row);
        store_numbers(start + P::NEXT, atomicAdd(p.taken, 1) + gridDim.x, now.y + 1);
    }
    __syncwarp();
}

// Says what tile of keys it is, and fetches it.
template <int D>
__device__ __forceinline__ void keys_of(const Listed& p, u32 start, volatile int* tiles, u32 noted) {
    using S = Shape<D>;
    int2 now = load_numbers(noted + 8);
    say<D>(start, tiles, now.y, now.x);
    if (lane_of() == 0) {
        u32 at = now.y % S::PLACES, full = start + S::BARRIERS + 8 * (K_FULL + at);
        int pair = Work::of<false>(p, now.x).pair, batch = pair / p.heads, key = load_numbers(noted).x;
        barrier_expect(full, S::KEY_TILE);
        for (int c = 0; c < S::PANELS; ++c)
            copy_in(start + S::K + at * S::KEY_TILE + c * S::KEY_PANEL, &p.k, c * HALF, key, pair - batch * p.heads, batch,
                    full);
    }
    __syncwarp();
}

// The place on the list of a block, by its turn. Tiles that see the same begin at different queries, so that they add to
// different sums; under causal they do so by themselves.
inline __device__ int place_of(const Listed& p, int block, int length, int turn) {
    return p.shift == FAR ? (block + turn) % length : turn;
}

// Fetches the queries of a step, by one thread.
template <int D>
__device__ __forceinline__ void queries_of(const Listed& p, u32 start, u32 stage, int tile) {
    using S = Shape<D>;
    int both = load_numbers(start + Pairs<D>::HEADS).x, batch = both >> 16, head = both & 0xFFFF;
    u32 full = start + S::BARRIERS + 8 * (Q_FULL + stage);
    int line = (batch * p.heads * p.group + head) * Work::tiles_of(p) + tile;
    store_numbers(start + Pairs<D>::STEPS + 8 * stage, tile, line);
    barrier_expect(full, S::TILE + S::ROWS);
    for (int c = 0; c < S::PANELS; ++c)
        copy_in(start + S::Q + stage * S::TILE + c * S::PANEL, &p.q, c * HALF, tile * STEP, head, batch, full);
    copy_line_in(start + S::LINES + stage * S::ROWS, p.rows + static_cast<i64>(line) * (2 * STEP), S::ROWS, full);
}

// Queries and keys, with lse and delta. Takes the tiles of keys, one ahead, and says which, and reads their lists. It has
// 24 registers a thread: what is not needed for every step is noted in shared memory.
template <int D>
__device__ __forceinline__ void fetch_first(const Listed& p, u32 start, volatile int* tiles) {
    using S = Shape<D>;
    using P = Pairs<D>;
    u32 count = 0;
    if (lane_of() == 0) store_numbers(start + P::NEXT, blockIdx.x, 0);  // a tile of keys, and how many there were so far
    __syncwarp();
    wait_for_kernels();
#pragma unroll 1
    while (true) {
        int2 now = load_numbers(start + P::NEXT);
        if (now.x >= (p.keys + KEYS - 1) / KEYS * p.pairs) {
            say<D>(start, tiles, now.y, -1);
            return leave();
        }
        u32 noted = start + P::TILES + 16 * (now.y % P::ROUNDS);
        note<D>(p, start, noted, now);
        bool early = load_numbers(noted).y > 0;
        if (!early) keys_of<D>(p, start, tiles, noted);
#pragma unroll 1
        for (int left = p.group; left; --left) {
            int length = __ldg(p.counts + load_numbers(start + P::HEADS).y), held = 0;
#pragma unroll 1
            for (int more = length; more; --more) {
                int place = place_of(p, load_numbers(noted).x / KEYS, length, length - more);
                if (more == length || place % 32 == 0)
                    held = __ldg(p.lists + static_cast<i64>(load_numbers(start + P::HEADS).y) * columns_of(p) +
                                 min(place / 32 * 32 + lane_of(), length - 1));
                int tile = __shfl_sync(~0u, held, place % 32) * IN_BLOCK;
#pragma unroll 1
                for (int end = min(tile + IN_BLOCK, Work::tiles_of(p)); tile < end; ++tile, ++count) {
                    barrier_wait(start + S::BARRIERS + 8 * (Q_EMPTY + count % S::STAGES_Q), ~(count / S::STAGES_Q) & 1);
                    if (lane_of() == 0) queries_of<D>(p, start, count % S::STAGES_Q, tile);
                    __syncwarp();
                    if (early) keys_of<D>(p, start, tiles, noted), early = false;
                }
            }
            __syncwarp();
            if (lane_of() == 0) {
                int2 head = load_numbers(start + P::HEADS);
                store_numbers(start + P::HEADS, head.x + 1, head.y + p.of_head);
            }
            __syncwarp();
        }
    }
}

// Gradients and values: of the steps that come with the queries.
template <int D>
__device__ __forceinline__ void values_of(const Listed& p, u32 start, u32 noted) {
    using S = Shape<D>;
    int2 now = load_numbers(noted + 8);
    u32 at = now.y % S::PLACES, full = start + S::BARRIERS + 8 * (V_FULL + at);
    barrier_wait(start + S::BARRIERS + 8 * (V_EMPTY + at), ~(now.y / S::PLACES) & 1);
    if (lane_of() == 0) {
        int pair = Work::of<false>(p, now.x).pair, batch = pair / p.heads, key = load_numbers(noted).x;
        barrier_expect(full, S::KEY_TILE);
        for (int c = 0; c < S::PANELS; ++c)
            copy_in(start + S::V + at * S::KEY_TILE + c * S::KEY_PANEL, &p.v, c * HALF, key, pair - batch * p.heads, batch,
                    full);
    }
    __syncwarp();
}
template <int D>
__device__ __forceinline__ void gradients_of(const Listed& p, u32 start, u32 count) {
    using S = Shape<D>;
    u32 stage = count % S::STAGES_G, full = start + S::BARRIERS + 8 * (G_FULL + stage);
    int2 step = load_numbers(start + Pairs<D>::STEPS + 8 * (count % S::STAGES_Q));
    int every = step.y / Work::tiles_of(p), batch = every / (p.heads * p.group);
    barrier_expect(full, S::TILE);
    for (int c = 0; c < S::PANELS; ++c)
        copy_in(start + S::G + stage * S::TILE + c * S::PANEL, &p.g, c * HALF, step.x * STEP,
                every - batch * p.heads * p.group, batch, full);
}
template <int D>
__device__ __forceinline__ void fetch_second(const Listed& p, u32 start, volatile int* tiles) {
    using S = Shape<D>;
    u32 count = 0;
    wait_for_kernels();
#pragma unroll 1
    for (u32 round = 0;; ++round) {
        u32 at = round % S::PLACES;
        barrier_wait(start + S::BARRIERS + 8 * (TAKEN + at), round / S::PLACES & 1);
        int number = __shfl_sync(~0u, tiles[at], 0);
        __syncwarp();
        if (lane_of() == 0) barrier_arrive(start + S::BARRIERS + 8 * (K_EMPTY + at));  // has read it
        if (number < 0) return;
        u32 noted = start + Pairs<D>::TILES + 16 * (round % Pairs<D>::ROUNDS);
        int left = load_numbers(noted).y;
        bool early = left > 0;
        if (!early) values_of<D>(p, start, noted);
#pragma unroll 1
        for (; left; --left, ++count) {
            barrier_wait(start + S::BARRIERS + 8 * (G_EMPTY + count % S::STAGES_G), ~(count / S::STAGES_G) & 1);
            barrier_wait(start + S::BARRIERS + 8 * (Q_FULL + count % S::STAGES_Q), count / S::STAGES_Q & 1);
            if (lane_of() == 0) gradients_of<D>(p, start, count);
            __syncwarp();
            if (early) values_of<D>(p, start, noted), early = false;
        }
    }
}

// ---------------------------------------------------------------- the threads that multiply

template <int D, class G>
__device__ __forceinline__ void tile_listed(G& group, Work work) {
    using S = Shape<D>;
    int2 said = load_numbers(group.start + Pairs<D>::TILES + 16 * (group.round % Pairs<D>::ROUNDS));
    work.key = said.x;
    int left = said.y;
    auto step_at = [&] {  // {its tile of a head, its tile of all}, when its queries are there
        barrier_wait(group.barrier(Q_FULL + group.count % S::STAGES_Q), group.count / S::STAGES_Q & 1);
        return load_numbers(group.start + Pairs<D>::STEPS + 8 * (group.count % S::STAGES_Q));
    };
    barrier_wait(group.barrier(K_FULL + group.at()), group.turn());
#pragma unroll
    for (int j = 0; j < D / 2; ++j) group.dk[j] = group.dv[j] = 0;
    if (left) {
        u32 slopes[STEP / 4];
        int2 now = step_at();
        group.template step<true>(slopes, work, now.x, 0, left == 1);
        while (--left) {
            int before = now.y;
            now = step_at();
            group.template step<false>(slopes, work, now.x, before, left == 1);
        }
        group.follow(slopes);
        products_wait<0>();
        group.release_read(K_EMPTY + group.at());
        group.sent(now.y);
    } else {
        barrier_wait(group.barrier(V_FULL + group.at()), group.turn());
        group.release_read(K_EMPTY + group.at());
        group.release(V_EMPTY + group.at());
    }
    landed(group.dv);
    landed(group.dk);
    group.store(group.dv, 1, &group.p.dv, work);
    group.store(group.dk, group.p.scale, &group.p.dk, work);
    ++group.round;
}

// What of attention's kernel is otherwise for a head_dim.
#define KW_LISTED_FETCH(D, FIRST)                                                                                     \
    template <>                                                                                                       \
    __device__ __forceinline__ void fetch<D, false, FIRST>(const Problem& p, u32 start, volatile int* tiles) {        \
        if (FIRST) fetch_first<D>(static_cast<const Listed&>(p), start, tiles);                                       \
        else fetch_second<D>(static_cast<const Listed&>(p), start, tiles);                                            \
    }
#define KW_LISTED_GROUP(T, D)                                                                                         \
    template <>                                                                                                       \
    __device__ __forceinline__ void Group<T, D, false>::tile_of_keys(const Work& work) {                              \
        tile_listed<D>(*this, work);                                                                                  \
    }
