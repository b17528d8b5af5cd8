// The forward of attention in 8 bits (e4m3) on Hopper, for a head_dim of 128. As attention's own, but for this:
// - Both sides of a product in 8 bits must lie along what is summed over. Values are turned beforehand (sm90_turn.cuh), and
//   their keys put into the order in which a thread's scores become its weights, so that threads exchange nothing.
// - Weights are relative to 2^-RISE of the maximum so far, or of one that has since been passed by no more than a factor of
//   2^SLACK: the largest lies near e4m3's upper end, and what is summed is seldom shrunk. They are made without
//   exponentials: a weight's bits are its logarithm, with a straight line between powers of two (README.md: 4% off at most).
// - The matrix units add up the weights too, by eight columns of ones behind the values: the sum is that of the weights as
//   they are, so that what is common to all their errors drops out.
// - Matrix units add 8-bit products with 13 bits behind the point. What a block of 128 keys gives is therefore added to
//   float32 sums, by the multiply-add that shrinks them where the maximum has grown.
#pragma once

#include "../attention/sm90_order.cuh"
#include "sm90_e4m3_instructions.cuh"

namespace e4m3 {

constexpr int D = 128, SUMS = D / 2 + 4;        // sums of a thread: of two rows, with those of the weights behind
constexpr float LINE = 56 - 8 * 0.0564f;  // where e4m3 has 1, less what a straight line is above 2^x
constexpr float RISE = 7, SLACK = 1, LOWEST = -1.f / 0.f;
constexpr u32 ONES = 0x38383838;  // four times 1

template <class T_, int SIGHT_>
struct Cut {
    using T = T_;  // of the output
    static constexpr int BN = 128, BM = 128, SIGHT = SIGHT_, STAGES = 4, PLACES = 2;
    static constexpr u32 QUERIES = BM * D, KEYS = BN * D, VALUES = KEYS + 8 * BN;  // bytes
    static constexpr int FEW = 24, MANY = 240;  // registers a thread: together what the launch took, 168 a thread
};

struct Attention {
    const TensorMap &q, &k, &v;  // of pairs of bytes; v turned
    u16* out;
    i64 out_b, out_h, out_l;  // its strides
    const float2* factors;  // of each batch and key-value head: what scores and what outputs are multiplied by
    Order order;
    int group, Lq;
};

struct Work {  // a tile, and what its scores and its output are multiplied by
    Tile tile;
    float factor, out;
};

struct Ring {
    u32 q, k, v;  // addresses in shared memory
    u32 q_full, q_free, k_full, k_free, v_full, v_free;
    Work* work;  // by place of q
};

template <int SIZE>
struct Cursor {
    int at = 0;
    u32 phase = 0;
    __device__ __forceinline__ void next() {
        if (++at == SIZE) at = 0, phase ^= 1;
    }
};

// ---------------------------------------------------------------- the thread that fetches

// It has few registers: what it is at follows from two counts, of tiles and of blocks of keys.
template <class C>
__device__ __forceinline__ void fetch(const Attention& p, const Ring& ring) {
    u32 block = 0;
    wait_for_kernels();
    for (int turn = 0;; ++turn) {
        Tile tile = tile_of<C>(p.order, number_of(p.order, turn));
        u32 place = static_cast<u32>(turn) % C::PLACES, full = ring.q_full + place * 8;
        barrier_wait(ring.q_free + place * 8, (static_cast<u32>(turn) / C::PLACES & 1) ^ 1);
        Work& work = ring.work[place];
        work.tile = tile;
        if (!tile.blocks) {
            barrier_arrive(full);
            break;
        }
        int head = tile.h / p.group, row = (tile.blocks - 1) * C::BN;
        float2 factors = p.factors[tile.b * (p.order.H / p.group) + head];
        work.factor = factors.x, work.out = factors.y;
        barrier_expect(full, C::QUERIES);
        copy_in(ring.q + place * C::QUERIES, &p.q, 0, tile.first, tile.h, tile.b, full);
#pragma unroll 1
        for (; row >= 0; row -= C::BN, ++block) {
            u32 at = block % C::STAGES, phase = (block / C::STAGES & 1) ^ 1;
            barrier_wait(ring.k_free + at * 8, phase);
            barrier_expect(ring.k_full + at * 8, C::KEYS);
            copy_in(ring.k + at * C::KEYS, &p.k, 0, row, head, tile.b, ring.k_full + at * 8);
            barrier_wait(ring.v_free + at * 8, phase);
            barrier_expect(ring.v_full + at * 8, C::KEYS);
            copy_in(ring.v + at * C::VALUES, &p.v, row / 2, 0, head, tile.b, ring.v_full + at * 8);
        }
    }
}

// ---------------------------------------------------------------- the threads that multiply

// Of a thread's two rows of scores: 2^-RISE of about the maximum, and what sums shrink by.
struct Softmax {
    float top[2], shrink[2];

    __device__ __forceinline__ void clear() { top[0] = top[1] = LOWEST; }

    template <int R>
    __device__ __forceinline__ void rise(const float (&s)[R], float factor) {
        float most[2];
        int found[2][2] = {};  // as integers three are compared at once, as long as one is not negative
#pragma unroll
        for (int j = 0; j < R; j += 8)
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    found[r][e] = largest(found[r][e], __float_as_int(s[j + 2 * r + e]), __float_as_int(s[j + 4 + 2 * r + e]));
#pragma unroll
        for (int r = 0; r < 2; ++r) most[r] = __int_as_float(largest(found[r][0], found[r][1], 0));
        bool fits = most[0] * factor <= top[0] + (RISE + SLACK) && most[1] * factor <= top[1] + (RISE + SLACK);
        if (!__any_sync(0xFFFFFFFF, !fits)) {  // as nearly always, behind the first blocks
            shrink[0] = shrink[1] = 1;
            return;
        }
        if (__any_sync(0xFFFFFFFF, most[0] == 0 || most[1] == 0)) {
            float peak[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
#pragma unroll
            for (int j = 4; j < R; ++j) peak[j >> 1 & 1][j & 1] = fmaxf(peak[j >> 1 & 1][j & 1], s[j]);
            most[0] = fmaxf(peak[0][0], peak[0][1]), most[1] = fmaxf(peak[1][0], peak[1][1]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float high = most[r];
            high = fmaxf(high, across(high, 1));
            high = fmaxf(top[r], fmaxf(high, across(high, 2)) * factor - RISE);
            shrink[r] = exponential(top[r] - (high == LOWEST ? 0 : high));
            top[r] = high;
        }
    }
};

template <class C>
struct Group {
    const Attention& p;
    const Ring& ring;
    int part, lane, warp;
    Cursor<C::PLACES> q;
    int block = 0;  // how many blocks' scores were made: what follows says where keys and values lie
    Softmax softmax;
    float factor;
    float late[2] = {0, 0};  // what sums shrink by when the block that was summed last is added
    int left, first;  // blocks that have no scores yet, the last of which comes next; the group's first query
    float s[C::BN / 2], o[SUMS], more[SUMS];
    u32 w[C::BN / 8];

    __device__ __forceinline__ Group(const Attention& p, const Ring& ring)
        : p(p), ring(ring), lane(threadIdx.x & 31), warp(threadIdx.x / 32 & 3) {
        part = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0) - 1;  // so the compiler sees that it is one for a warp
    }
    static __device__ __forceinline__ u32 place_of(int block) { return static_cast<u32>(block) % C::STAGES; }
    static __device__ __forceinline__ u32 phase_of(int block) { return static_cast<u32>(block) / C::STAGES & 1; }
    __device__ __forceinline__ void release(u32 barrier) const {
        if (lane == 0) barrier_arrive(barrier);
    }
    __device__ __forceinline__ int last_of(int row) const {
        return C::SIGHT == WHOLE ? p.order.Lk - 1 : least(p.order.Lk - 1, row + p.order.shift);
    }
    __device__ __forceinline__ u32 queries() const { return ring.q + q.at * C::QUERIES + part * 64 * D; }

    // The tile at the place that q is at; false behind the last one. Its queries are there.
    __device__ __forceinline__ bool begin() {
        barrier_wait(ring.q_full + q.at * 8, q.phase);
        const Tile& tile = ring.work[q.at].tile;
        if (!tile.blocks) return false;
        factor = ring.work[q.at].factor;
        left = tile.blocks, first = tile.first + part * 64;
        return true;
    }
    __device__ __forceinline__ void start_scores() {
        barrier_wait(ring.k_full + place_of(block) * 8, phase_of(block));
        products_begin();
        u64 a = tile_at(queries()), b = tile_at(ring.k + place_of(block) * C::KEYS);
#pragma unroll
        for (int t = 0; t < D / 32; ++t) product(s, a + 2 * t, b + 2 * t, t > 0);
        products_commit();
    }
    __device__ __forceinline__ void start_sum() {  // of the block before the one whose scores are next, or are begun
        barrier_wait(ring.v_full + place_of(block - 1) * 8, phase_of(block - 1));
        products_begin();
        u64 b = tile_at(ring.v + place_of(block - 1) * C::VALUES);
#pragma unroll
        for (int t = 0; t < C::BN / 32; ++t) product(more, w + 4 * t, b + 2 * t, t > 0);
        products_commit();
    }
    // The scores of a block are there: its keys' place is free, and behind a tile's last one that of its queries (not of
    // what is said of the tile).
    __device__ __forceinline__ void cut() {
        release(ring.k_free + place_of(block) * 8);
        ++block, --left;
        int row = left * C::BN;
        if (row + C::BN - 1 > last_of(first)) {
            int query = first + warp * 16 + lane / 4, key = row + 2 * (lane & 3);
            int to[2] = {last_of(query) - key, last_of(query + 8) - key};
#pragma unroll
            for (int j = 0; j < C::BN / 2; ++j) s[j] = j / 4 * 8 + (j & 1) <= to[j >> 1 & 1] ? s[j] : LOWEST;
        }
    }
    // Weights of the scores, as an operand of the sum: keys 0, 1, 8 and 9 beside each other, and so on, as `turn` has them.
    // They take the scores' places: the operand's own are read by the sum before until it is waited for.
    __device__ __forceinline__ void spread() {
        float eight = 8 * factor, start[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) start[r] = fmaf(softmax.top[r] == LOWEST ? 0 : -softmax.top[r], 8, LINE);
#pragma unroll
        for (int c = 0; c < C::BN / 2; c += 8)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float* x = s + c + 2 * r;
                u32 word = powers(fmaf(x[0], eight, start[r]), fmaf(x[1], eight, start[r]), fmaf(x[4], eight, start[r]),
                                  fmaf(x[5], eight, start[r]));
                s[c / 4 + r] = __uint_as_float(word);
            }
    }
    // A store that never happens: weights are 0 or above, or NaN. The assembler may not move the wait for the matrix units that
    // follows ahead of it, nor therefore ahead of the weights, as it does when left to itself.
    __device__ __forceinline__ void hold() const {
        u32 all = ~0u;
#pragma unroll
        for (int j = 0; j < C::BN / 8; ++j) all &= __float_as_uint(s[j]);
        never_store(ring.q, all);
    }
    __device__ __forceinline__ void take() {
#pragma unroll
        for (int j = 0; j < C::BN / 8; ++j) w[j] = __float_as_uint(s[j]);
        used(w);  // they are there before products that take their places
    }
    // A block's sum is there: its values' place is free.
    __device__ __forceinline__ void done(int summed) {
        products_wait<0>(more);
        used(w);  // read until now
        release(ring.v_free + place_of(summed) * 8);
    }
    // What the block gave, and what was summed before.
    __device__ __forceinline__ void add() {
#pragma unroll
        for (int j = 0; j < SUMS; ++j) o[j] = fmaf(o[j], late[j >> 1 & 1], more[j]);
    }
    // The output, straight to memory: threads exchange halves with their neighbours, and each stores four numbers at once.
    __device__ __forceinline__ void finish(const Tile& tile, float out) {
        bool odd = lane & 1;
        u16* to = p.out + tile.b * p.out_b + tile.h * p.out_h + 8 * odd + 2 * (lane & 2);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int row = tile.first + part * 64 + warp * 16 + lane / 4 + 8 * r;
            float inverse = last_of(row) >= 0 ? reciprocal(o[D / 2 + 2 * r]) * out : 0;
#pragma unroll
            for (int t = 0; t < D / 16; ++t) {
                const float* d = o + 8 * t + 2 * r;
                u32 left = C::T::round(d[0] * inverse, d[1] * inverse);
                u32 right = C::T::round(d[4] * inverse, d[5] * inverse);
                u32 other = __shfl_xor_sync(0xFFFFFFFF, odd ? left : right, 1);
                uint2 both = odd ? uint2{other, right} : uint2{left, other};
                if (row < p.Lq) *reinterpret_cast<uint2*>(to + row * p.out_l + 16 * t) = both;
            }
        }
        clear();
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int j = 0; j < SUMS; ++j) o[j] = more[j] = 0;
    }

    // The scores of the next block, which may be the next tile's first, are begun ahead of the sum of this one, and while
    // they are made the sum of the block before is added.
    __device__ __forceinline__ void run() {
        if (!begin()) return;
        softmax.clear();
        clear();
        start_scores();
        products_wait<0>(s);
        cut();
        softmax.rise(s, factor);
        spread();
        take();
        while (true) {
            bool over = left == 0;
            int place = q.at;
            if (over) {
                q.next();
                if (!begin()) break;
            }
            start_scores();
            add();
            start_sum();
            products_wait<1>(s);
            cut();
            late[0] = softmax.shrink[0], late[1] = softmax.shrink[1];
            if (over) softmax.clear();
            softmax.rise(s, factor);
            spread();
            hold();
            done(block - 2);
            if (over) {
                add();
                finish(ring.work[place].tile, ring.work[place].out);
                __syncwarp();  // all have read the tile
                release(ring.q_free + place * 8);
            }
            take();
        }
        add();
        start_sum();
        done(block - 1);
        late[0] = softmax.shrink[0], late[1] = softmax.shrink[1];
        add();
        int place = (q.at ? q.at : C::PLACES) - 1;
        finish(ring.work[place].tile, ring.work[place].out);
    }
};

template <class C>
__device__ __forceinline__ void attention(const Attention& p) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    __shared__ __align__(8) u64 barriers[2 * C::PLACES + 4 * C::STAGES];
    __shared__ Work work[C::PLACES];
    u32 start = shared_address(bytes), at = shared_address(barriers);
    Ring ring;
    ring.q = start, ring.k = start + C::PLACES * C::QUERIES, ring.v = ring.k + C::STAGES * C::KEYS;
    ring.q_full = at, ring.q_free = at + 8 * C::PLACES, ring.k_full = at + 16 * C::PLACES;
    ring.k_free = ring.k_full + 8 * C::STAGES, ring.v_full = ring.k_free + 8 * C::STAGES;
    ring.v_free = ring.v_full + 8 * C::STAGES;
    ring.work = work;
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::PLACES; ++i) barrier_init(ring.q_full + i * 8, 1), barrier_init(ring.q_free + i * 8, 8);
        for (int i = 0; i < C::STAGES; ++i) {
            barrier_init(ring.k_full + i * 8, 1), barrier_init(ring.k_free + i * 8, 8);
            barrier_init(ring.v_full + i * 8, 1), barrier_init(ring.v_free + i * 8, 8);
        }
        barriers_made();
        for (const TensorMap* map : {&p.q, &p.k, &p.v}) expect_map(map);
    }
    for (int i = threadIdx.x; i < C::STAGES * 2 * C::BN; i += 384)
        store_word(ring.v + i / (2 * C::BN) * C::VALUES + C::KEYS + i % (2 * C::BN) * 4, ONES);
    publish();
    __syncthreads();
    if (threadIdx.x < 128) {
        keep_registers<C::FEW>();
        if (threadIdx.x == 0) fetch<C>(p, ring);
    } else {
        take_registers<C::MANY>();
        Group<C>(p, ring).run();
    }
}

}  // namespace e4m3
