// The forward of attention in 8 bits (e4m3) on Hopper, for a head_dim of 128. As sm90_forward.cuh, but for this:
// - Both sides of a product in 8 bits must lie along what is summed over. Values are turned beforehand (`turn`), and their
//   keys put into the order in which a thread's scores become its weights, so that nothing is exchanged between threads.
// - Matrix units add 8-bit products with 13 bits behind the point. What a block of 128 keys gives is therefore added to
//   float32 sums, by the multiply-add that shrinks them where the maximum has grown.
// - Weights are relative to 2^-RISE of the maximum so far: the largest lies near e4m3's upper end.
#pragma once

#include "sm90_more_instructions.cuh"
#include "sm90_order.cuh"

namespace e4m3 {

constexpr int D = 128;
constexpr float RISE = 8, LOWEST = -1.f / 0.f, LN2 = 0.6931471805599453f, LOG2E = 1.4426950408889634f;
enum { MEET = 1 };

template <int BN_, int STAGES_, int SIGHT_, bool HELD_>
struct Cut {
    static constexpr int BN = BN_, BM = 128, SIGHT = SIGHT_, STAGES = STAGES_, PLACES = 2;
    static constexpr bool HELD = HELD_;  // queries are kept in registers
    static constexpr u32 QUERIES = BM * D, KEYS = BN * D;  // bytes
    static constexpr u32 BYTES = PLACES * QUERIES + 2 * STAGES * KEYS;
    static constexpr int FEW = HELD ? 24 : 40, MANY = HELD ? 240 : 232;  // registers a thread
};

struct Attention {
    const TensorMap &q, &k, &v;  // of bytes; v turned
    u16* out;
    i64 out_b, out_h, out_l;  // its strides
    float* lse;
    const float *q_scale, *k_scale, *v_scale;  // of each batch and key-value head
    Order order;
    int group, Lq;
    float scale;
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

template <class C>
__device__ __forceinline__ void fetch(const Attention& p, const Ring& ring) {
    Cursor<C::PLACES> q;
    Cursor<C::STAGES> k, v;
    int v_row = -1, v_head = 0, v_batch = 0;  // the values that are still to be fetched: after the keys behind theirs
    auto values = [&] {
        if (v_row < 0) return;
        u32 full = ring.v_full + v.at * 8;
        barrier_wait(ring.v_free + v.at * 8, v.phase ^ 1);
        barrier_expect(full, C::KEYS);
        copy_in(ring.v + v.at * C::KEYS, &p.v, v_row, 0, v_head, v_batch, full);
        v.next();
        v_row = -1;
    };
    wait_for_kernels();
    for (int turn = 0;; ++turn) {
        Tile tile = tile_of<C>(p.order, number_of(p.order, turn));
        int head = tile.h / p.group, row = (end_of<C>(p.order, tile.first) - 1) * C::BN;
        int scales = tile.blocks ? tile.b * (p.order.H / p.group) + head : 0;
        barrier_wait(ring.q_free + q.at * 8, q.phase ^ 1);
        Work& work = ring.work[q.at];
        work.tile = tile;
        work.factor = p.scale * p.q_scale[scales] * p.k_scale[scales];
        work.out = p.v_scale[scales];
        u32 full = ring.q_full + q.at * 8;
        if (!tile.blocks) {
            barrier_arrive(full);
            break;
        }
        barrier_expect(full, C::QUERIES);
        copy_in(ring.q + q.at * C::QUERIES, &p.q, 0, tile.first, tile.h, tile.b, full);
        q.next();
        for (int left = tile.blocks; left; --left, row -= C::BN) {
            full = ring.k_full + k.at * 8;
            barrier_wait(ring.k_free + k.at * 8, k.phase ^ 1);
            barrier_expect(full, C::KEYS);
            copy_in(ring.k + k.at * C::KEYS, &p.k, 0, row, head, tile.b, full);
            k.next();
            values();
            v_row = row, v_head = head, v_batch = tile.b;
        }
    }
    values();
}

// ---------------------------------------------------------------- the threads that multiply

// Of a thread's two rows of scores: 2^-RISE of the maximum, the sum of the weights, and what sums shrink by.
struct Softmax {
    float top[2], total[2], shrink[2];

    __device__ __forceinline__ void clear() { top[0] = top[1] = LOWEST, total[0] = total[1] = 0; }

    template <int R>
    __device__ __forceinline__ void rise(const float (&s)[R], float factor) {
        float peak[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
#pragma unroll
        for (int j = 4; j < R; ++j) peak[j >> 1 & 1][j & 1] = fmaxf(peak[j >> 1 & 1][j & 1], s[j]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float high = fmaxf(peak[r][0], peak[r][1]);
            high = fmaxf(high, across(high, 1));
            high = fmaxf(top[r], fmaxf(high, across(high, 2)) * factor - RISE);
            shrink[r] = exponential(top[r] - (high == LOWEST ? 0 : high));
            total[r] *= shrink[r];
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
    Cursor<C::STAGES> k, v;
    Softmax softmax;
    Tile tile;
    float factor;
    int left, row, first;  // blocks that have no scores yet, the first key of the next one; the group's first query
    float s[C::BN / 2], o[D / 2], more[D / 2];
    u32 w[C::BN / 8], held[C::HELD ? D / 8 : 1];

    __device__ __forceinline__ Group(const Attention& p, const Ring& ring)
        : p(p), ring(ring), lane(threadIdx.x & 31), warp(threadIdx.x / 32 & 3) {
        part = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0) - 1;  // so the compiler sees that it is one for a warp
    }
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
        tile = ring.work[q.at].tile;
        if (!tile.blocks) return false;
        factor = ring.work[q.at].factor;
        left = tile.blocks, row = (left - 1) * C::BN, first = tile.first + part * 64;
        if constexpr (C::HELD) {
            u32 at = queries() + (warp * 16 + (lane & 15)) * 128;
#pragma unroll
            for (int t = 0; t < D / 32; ++t) {
                load_matrices(held + 4 * t, at + (((t * 2 + lane / 16) ^ (lane & 7)) << 4));
            }
        }
        return true;
    }
    __device__ __forceinline__ void start_scores() {
        u64 a = tile_at(queries()), b = tile_at(ring.k + k.at * C::KEYS);
#pragma unroll
        for (int t = 0; t < D / 32; ++t) {
            if constexpr (C::HELD) E4m3::product(s, held + 4 * t, b + 2 * t, t > 0);
            else E4m3::product(s, a + 2 * t, b + 2 * t, t > 0);
        }
        products_commit();
    }
    __device__ __forceinline__ void start_sum() {
        u64 b = tile_at(ring.v + v.at * C::KEYS);
#pragma unroll
        for (int t = 0; t < C::BN / 32; ++t) E4m3::product(more, w + 4 * t, b + 2 * t, t > 0);
        products_commit();
    }
    // The scores of a block are there: its keys' place is free, and behind a tile's last one that of its queries (not of
    // what is said of the tile).
    __device__ __forceinline__ void cut() {
        release(ring.k_free + k.at * 8);
        k.next();
        if (row + C::BN - 1 > last_of(first)) {
            int query = first + warp * 16 + lane / 4, key = row + 2 * (lane & 3);
            int to[2] = {last_of(query) - key, last_of(query + 8) - key};
#pragma unroll
            for (int j = 0; j < C::BN / 2; ++j) s[j] = j / 4 * 8 + (j & 1) <= to[j >> 1 & 1] ? s[j] : LOWEST;
        }
        row -= C::BN, --left;
    }
    // Weights of the scores, as an operand of the sum: keys 0, 1, 8 and 9 beside each other, and so on, as `turn` has them.
    __device__ __forceinline__ void spread() {
        float base[2] = {softmax.top[0] == LOWEST ? 0 : -softmax.top[0], softmax.top[1] == LOWEST ? 0 : -softmax.top[1]};
        float sum[2][2] = {{softmax.total[0], 0}, {softmax.total[1], 0}};
#pragma unroll
        for (int c = 0; c < C::BN / 2; c += 8) {
            float from[2] = {base[0], base[1]};
            // Behind the exponentials of the chunk before: else the assembler puts all multiply-adds first.
            if (c) from[0] = fmaf(s[c - 8], 0, base[0]), from[1] = fmaf(s[c - 6], 0, base[1]);
#pragma unroll
            for (int j = c; j < c + 8; ++j) s[j] = exponential(fmaf(s[j], factor, from[j >> 1 & 1]));
#pragma unroll
            for (int j = c; j < c + 8; ++j) sum[j >> 1 & 1][j & 1] += s[j];
            w[c / 4] = E4m3::round(s[c], s[c + 1], s[c + 4], s[c + 5]);
            w[c / 4 + 1] = E4m3::round(s[c + 2], s[c + 3], s[c + 6], s[c + 7]);
        }
        softmax.total[0] = sum[0][0] + sum[0][1], softmax.total[1] = sum[1][0] + sum[1][1];
    }
    // What the block gave, and what was summed before.
    __device__ __forceinline__ void add(const float (&shrink)[2]) {
        products_wait<0>(more);
        used(w);  // read until now
        release(ring.v_free + v.at * 8);
        v.next();
#pragma unroll
        for (int j = 0; j < D / 2; ++j) o[j] = fmaf(o[j], shrink[j >> 1 & 1], more[j]);
    }
    // The end of a tile's softmax: lse, and what its sums are multiplied by.
    __device__ __forceinline__ void close(float (&inverse)[2], const Tile& tile, float out) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float total = softmax.total[r] + across(softmax.total[r], 1);
            total += across(total, 2);
            int row = tile.first + part * 64 + warp * 16 + lane / 4 + 8 * r;
            inverse[r] = last_of(row) >= 0 ? reciprocal(total) * out : 0;
            if (p.lse && (lane & 3) == 0 && row < p.Lq)
                p.lse[(i64{tile.b} * p.order.H + tile.h) * p.Lq + row] = (softmax.top[r] + log2f(total)) * LN2;
        }
        softmax.clear();
    }
    // The output, straight to memory: threads exchange halves with their neighbours, and each stores four numbers at once.
    __device__ __forceinline__ void finish(const float (&inverse)[2], const Tile& tile) {
        bool odd = lane & 1;
        u16* to = p.out + tile.b * p.out_b + tile.h * p.out_h + 8 * odd + 2 * (lane & 2);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int row = tile.first + part * 64 + warp * 16 + lane / 4 + 8 * r;
#pragma unroll
            for (int t = 0; t < D / 16; ++t) {
                const float* d = o + 8 * t + 2 * r;
                u32 left = Bf16::round(d[0] * inverse[r], d[1] * inverse[r]);
                u32 right = Bf16::round(d[4] * inverse[r], d[5] * inverse[r]);
                u32 other = __shfl_xor_sync(0xFFFFFFFF, odd ? left : right, 1);
                uint2 both = odd ? uint2{other, right} : uint2{left, other};
                if (row < p.Lq) *reinterpret_cast<uint2*>(to + row * p.out_l + 16 * t) = both;
            }
        }
        clear();
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int j = 0; j < D / 2; ++j) o[j] = 0;
    }

    // The scores of the next block, which may be the next tile's first, are begun together with the sum of this one.
    __device__ __forceinline__ void run() {
        if (!begin()) return;
        softmax.clear();
        clear();
        barrier_wait(ring.k_full + k.at * 8, k.phase);
        products_begin();
        start_scores();
        products_wait<0>(s);
        cut();
        softmax.rise(s, factor);
        spread();
        while (true) {
            bool over = left == 0;
            int place = q.at;
            if (over) {
                q.next();
                if (!begin()) break;
            }
            barrier_wait(ring.k_full + k.at * 8, k.phase);
            barrier_wait(ring.v_full + v.at * 8, v.phase);
            products_begin();
            start_scores();
            start_sum();
            products_wait<1>(s);
            cut();
            float inverse[2], shrink[2] = {softmax.shrink[0], softmax.shrink[1]};
            if (over) close(inverse, ring.work[place].tile, ring.work[place].out);
            softmax.rise(s, factor);
            add(shrink);
            if (over) {
                finish(inverse, ring.work[place].tile);
                __syncwarp();  // all have read the tile
                release(ring.q_free + place * 8);
            }
            spread();
        }
        barrier_wait(ring.v_full + v.at * 8, v.phase);
        products_begin();
        start_sum();
        int place = (q.at ? q.at : C::PLACES) - 1;
        float inverse[2], shrink[2] = {softmax.shrink[0], softmax.shrink[1]};
        close(inverse, ring.work[place].tile, ring.work[place].out);
        add(shrink);
        finish(inverse, ring.work[place].tile);
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
    __syncthreads();
    if (threadIdx.x < 128) {
        keep_registers<C::FEW>();
        if (threadIdx.x == 0) fetch<C>(p, ring);
    } else {
        take_registers<C::MANY>();
        Group<C>(p, ring).run();
    }
}

// ---------------------------------------------------------------- values, turned

// [key, column] to [column, key] of a key-value head, 128 keys a block of 256 threads. In every 16 keys the order is
// 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15; behind the last key are zeros, up to a multiple of 16.
struct Turn {
    const unsigned char* v;
    unsigned char* turned;  // contiguous, rows of `pitch` bytes
    int* drawn;             // the counter of tiles, cleared for the forward; or null
    i64 b, h, l;            // strides of v
    int heads, keys, pitch;
};

inline __device__ void turn(const Turn& p) {
    __shared__ __align__(16) u32 in[128][32];
    __shared__ __align__(16) Words out[D][8];
    let_kernels_start();
    int first = blockIdx.x * 128, head = blockIdx.y % p.heads, batch = blockIdx.y / p.heads;
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const unsigned char* from = p.v + batch * p.b + head * p.h;
    wait_for_kernels();
    if (p.drawn && blockIdx.x + blockIdx.y + threadIdx.x == 0) *p.drawn = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int at = i * 256 + threadIdx.x, key = first + at / 8;
        Words* to = reinterpret_cast<Words*>(&in[at / 8][0]) + at % 8;
        *to = key < p.keys ? *(reinterpret_cast<const Words*>(from + key * p.l) + at % 8) : Words{};
    }
    __syncthreads();
    u32 made[4][4];  // of four columns, 16 keys each
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const u32(*row)[32] = in + warp * 16 + 2 * c;
        u32 k0 = row[0][lane], k1 = row[1][lane], k8 = row[8][lane], k9 = row[9][lane];
        u32 low = chosen(k0, k1, 0x5140), high = chosen(k0, k1, 0x7362);    // columns 0, 1 and 2, 3 of keys 0, 1
        u32 low8 = chosen(k8, k9, 0x5140), high8 = chosen(k8, k9, 0x7362);  // of keys 8, 9
        made[0][c] = chosen(low, low8, 0x5410), made[1][c] = chosen(low, low8, 0x7632);
        made[2][c] = chosen(high, high8, 0x5410), made[3][c] = chosen(high, high8, 0x7632);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[4 * lane + i][warp ^ (lane & 7)] = {made[i][0], made[i][1], made[i][2], made[i][3]};
    __syncthreads();
    unsigned char* to = p.turned + i64{blockIdx.y} * D * p.pitch;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int at = i * 256 + threadIdx.x, column = at / 8, chunk = at % 8, key = first + 16 * chunk;
        if (key < p.pitch)
            *reinterpret_cast<Words*>(to + i64{column} * p.pitch + key) = out[column][chunk ^ (column / 4 & 7)];
    }
}

}  // namespace e4m3
