// The forward of attention on Hopper. One thread has the copy engine bring queries, and blocks of keys and of values,
// into rings of shared memory; two to four groups of 128 threads take 64 queries each. A group starts the scores of the
// next block and the weighted sum of this one together; while one group's are multiplied, others work out weights. The
// next block may be the first of the next tile: the stream of blocks has no seam where a tile ends. Where shared memory
// has room for the queries of one tile only, a group's next ones come as soon as its last scores are there.
#pragma once

#include "sm90_instructions.cuh"
#include "sm90_order.cuh"

// What a launch asks for. The maps copy 64 columns of: a tile's queries (64 of them, where they have one place), BN keys,
// BN values, 64 rows of the output.
struct Attention {
    const TensorMap &q, &k, &v, &o;
    u16* out;
    i64 out_b, out_h, out_l;  // its strides
    float* lse;
    Order order;
    int group, Lq;
    float factor;      // of the scores, before exponentials of base 2
    const u16* sinks;  // a score of each head that has no value and is not scaled, or null
};

template <int D_, int BN_, int GROUPS_, int STAGES_, int PLACES_, int SIGHT_, bool HELD_>
struct Cut {
    static constexpr int D = D_, BN = BN_, GROUPS = GROUPS_;  // a tile has GROUPS times 64 queries, a block BN keys
    static constexpr int STAGES = STAGES_, PLACES = PLACES_;  // of the rings: blocks, and tiles of queries
    static constexpr int SIGHT = SIGHT_;                      // which keys a query sees
    static constexpr bool HELD = HELD_;                       // queries are kept in registers
    static constexpr bool TURNS = GROUPS > 2;                 // groups take turns at starting products
    static constexpr bool ONE = PLACES == 1;                  // a group's queries go before its next ones come
    static constexpr int CHUNK = HELD || TURNS || ONE ? 8 : 16;  // scores of a thread that become weights together
    static constexpr int AHEAD = CHUNK / 8;                   // chunks
    static constexpr int BM = 64 * GROUPS, PANELS = D / 64, THREADS = 128 * (GROUPS + 1);
    static constexpr int HALVES = ONE ? GROUPS : PLACES;  // barriers of each kind for queries, and tiles that are kept
    static constexpr u32 BYTES_Q = BM * D * 2, BYTES_K = BN * D * 2, PANEL_Q = BM * 128, PANEL_K = BN * 128;
    // Registers a thread. All together are as many as the launch took: 65536 / THREADS a thread, in eights.
    static constexpr int FEW = GROUPS == 2 ? 40 : 32, MANY = GROUPS == 2 ? 232 : GROUPS == 3 ? 160 : 112;
};

constexpr float HEADROOM = 8;  // a weight may reach 2^HEADROOM before the maximum that it is relative to is raised
constexpr float LOWEST = -1.f / 0.f, LN2 = 0.6931471805599453f, LOG2E = 1.4426950408889634f;
enum { TURN = 1, MEET = 5 };  // barriers of threads, one of each for every group

struct Ring {
    u32 q, k, v;  // addresses in shared memory
    u32 q_full, q_free, k_full, k_free, v_full, v_free;
    Tile* tiles;  // by place of q; where there is one, by group
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
__device__ __forceinline__ void fetch_block(const TensorMap* map, u32 to, int row, int head, int batch, u32 barrier) {
    barrier_expect(barrier, C::BYTES_K);
#pragma unroll
    for (int panel = 0; panel < C::PANELS; ++panel)
        copy_in(to + panel * C::PANEL_K, map, panel * 64, row, head, batch, barrier);
}

// The queries of a tile, each group's when it has its last scores of the tile before.
template <class C>
__device__ __forceinline__ void queries_in_one_place(const Attention& p, const Ring& ring, const Tile& tile, u32 phase) {
    if (tile.blocks)
        for (int panel = 0; panel < C::PANELS * C::GROUPS; ++panel)
            copy_to_l2(&p.q, panel % C::PANELS * 64, tile.first + panel / C::PANELS * 64, tile.h, tile.b);
    for (int part = 0; part < C::GROUPS; ++part) {
        u32 full = ring.q_full + part * 8;
        barrier_wait(ring.q_free + part * 8, phase ^ 1);
        ring.tiles[part] = tile;
        if (!tile.blocks) {
            barrier_arrive(full);
            continue;
        }
        barrier_expect(full, C::BYTES_Q / C::GROUPS);
        for (int panel = 0; panel < C::PANELS; ++panel)
            copy_in(ring.q + panel * C::PANEL_Q + part * 64 * 128, &p.q, panel * 64, tile.first + part * 64, tile.h,
                    tile.b, full);
    }
}

template <class C>
__device__ __forceinline__ void fetch(const Attention& p, const Ring& ring) {
    Cursor<C::PLACES> q;
    Cursor<C::STAGES> k, v;
    int v_row = -1, v_head = 0, v_batch = 0;  // the values that are still to be fetched: after the keys behind theirs
    auto values = [&] {
        if (v_row < 0) return;
        barrier_wait(ring.v_free + v.at * 8, v.phase ^ 1);
        fetch_block<C>(&p.v, ring.v + v.at * C::BYTES_K, v_row, v_head, v_batch, ring.v_full + v.at * 8);
        v.next();
        v_row = -1;
    };
    for (int turn = 0;; ++turn) {
        Tile tile = tile_of<C>(p.order, number_of(p.order, turn));
        int head = tile.h / p.group, left = tile.blocks, row = (end_of<C>(p.order, tile.first) - 1) * C::BN;
        auto block = [&] {
            barrier_wait(ring.k_free + k.at * 8, k.phase ^ 1);
            fetch_block<C>(&p.k, ring.k + k.at * C::BYTES_K, row, head, tile.b, ring.k_full + k.at * 8);
            k.next();
            values();
            v_row = row, v_head = head, v_batch = tile.b;
            row -= C::BN, --left;
        };
        if constexpr (C::ONE) {
            // The places are free late: till then the tile's first keys, and the last values of the tile before.
            if (left) block();
            else values();
            queries_in_one_place<C>(p, ring, tile, q.phase);
            if (!tile.blocks) break;
        } else {
            barrier_wait(ring.q_free + q.at * 8, q.phase ^ 1);
            ring.tiles[q.at] = tile;
            u32 full = ring.q_full + q.at * 8;
            if (!tile.blocks) {
                barrier_arrive(full);
                break;
            }
            barrier_expect(full, C::BYTES_Q);
#pragma unroll
            for (int panel = 0; panel < C::PANELS; ++panel) {
                u32 to = ring.q + q.at * C::BYTES_Q + panel * C::PANEL_Q;
                copy_in(to, &p.q, panel * 64, tile.first, tile.h, tile.b, full);
            }
        }
        q.next();
        while (left) block();
    }
    values();
}

// ---------------------------------------------------------------- the threads that multiply

inline __device__ float exponential(float x) {  // of base 2; 0 below 2^-126
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
inline __device__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
inline __device__ float across(float x, int lanes) { return __shfl_xor_sync(0xFFFFFFFF, x, lanes); }

// Of a thread's two rows of scores: maximum (times factor) and sum of the weights.
struct Softmax {
    float top[2], total[2], shrink[2];

    __device__ __forceinline__ void clear() { top[0] = top[1] = LOWEST, total[0] = total[1] = 0; }

    // Whether what was summed before must shrink for these scores. The maximum is raised only where a weight would pass
    // 2^HEADROOM: what is divided by at the end is relative to the same one.
    template <int R>
    __device__ __forceinline__ bool rise(const float (&s)[R], float factor) {
        float peak[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
#pragma unroll
        for (int j = 4; j < R; ++j) peak[j >> 1 & 1][j & 1] = fmaxf(peak[j >> 1 & 1][j & 1], s[j]);
        float high[2] = {fmaxf(peak[0][0], peak[0][1]) * factor, fmaxf(peak[1][0], peak[1][1]) * factor};
        bool grown = __any_sync(0xFFFFFFFF, high[0] > top[0] + HEADROOM || high[1] > top[1] + HEADROOM);
        if (grown) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                high[r] = fmaxf(high[r], across(high[r], 1));
                high[r] = fmaxf(top[r], fmaxf(high[r], across(high[r], 2)));
                shrink[r] = exponential(top[r] - (high[r] == LOWEST ? 0 : high[r]));
                total[r] *= shrink[r];
                top[r] = high[r];
            }
        }
        return grown;
    }
    // Scores to weights, C::CHUNK at a time, each of which `taken` may take away. Left to itself the assembler puts all
    // multiply-adds ahead of all exponentials, and these ahead of all sums: so a chunk's base is made of an exponential
    // of a chunk before it, times 0.
    template <class C, int R, class Taken>
    __device__ __forceinline__ void spread(float (&s)[R], float factor, Taken taken) {
        // Nothing seen so far: -inf less -inf would be NaN.
        float base[2] = {top[0] == LOWEST ? 0 : -top[0], top[1] == LOWEST ? 0 : -top[1]};
        float sum[2][2] = {{total[0], 0}, {total[1], 0}};
#pragma unroll
        for (int c = 0; c < R; c += C::CHUNK) {
            int then = c - C::AHEAD * C::CHUNK;
            float from[2] = {base[0], base[1]};
            if (then >= 0) from[0] = fmaf(s[then], 0, base[0]), from[1] = fmaf(s[then + 2], 0, base[1]);
#pragma unroll
            for (int j = c; j < c + C::CHUNK; ++j) s[j] = exponential(fmaf(s[j], factor, from[j >> 1 & 1]));
#pragma unroll
            for (int j = c; j < c + C::CHUNK; ++j) sum[j >> 1 & 1][j & 1] += s[j];
            taken(c);
        }
        total[0] = sum[0][0] + sum[0][1], total[1] = sum[1][0] + sum[1][1];
    }
};

// What a group knows of the tile it is at.
struct Rows {
    int first;      // the group's first query
    int left, row;  // blocks that have no scores yet, and the first key of the next one
};

template <class T, class C>
struct Group {
    const Attention& p;
    const Ring& ring;
    int part, lane, warp;
    Cursor<C::PLACES> q;
    Cursor<C::STAGES> k, v;
    Softmax softmax;
    Rows rows;
    Tile tile;
    bool leaving = false;  // the output of the tile before is on its way out of its queries' place
    float s[C::BN / 2], o[C::D / 2];
    u32 w[C::BN / 4], held[C::HELD ? C::D / 4 : 1];

    __device__ __forceinline__ Group(const Attention& p, const Ring& ring)
        : p(p), ring(ring), lane(threadIdx.x & 31), warp(threadIdx.x / 32 & 3) {
        part = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0) - 1;  // so the compiler sees that it is one for a warp
    }

    __device__ __forceinline__ bool leader() const { return (threadIdx.x & 127) == 0; }
    __device__ __forceinline__ u32 queries() const { return ring.q + q.at * C::BYTES_Q + part * 64 * 128; }

    __device__ __forceinline__ void release(u32 barrier) const {
        if (lane == 0) barrier_arrive(barrier);
    }

    // Of a thread's two rows; and the last key that one sees, and the first, where there is a window.
    __device__ __forceinline__ int row_of(const Tile& tile, int r) const {
        return tile.first + part * 64 + warp * 16 + lane / 4 + 8 * r;
    }
    __device__ __forceinline__ int last_of(int row) const {
        return C::SIGHT == WHOLE ? p.order.Lk - 1 : least(p.order.Lk - 1, row + p.order.shift);
    }
    __device__ __forceinline__ int first_of(int row) const { return row + p.order.shift - p.order.window + 1; }
    __device__ __forceinline__ bool sees(int row) const {
        return last_of(row) >= (C::SIGHT == WINDOW ? most(first_of(row), 0) : 0);
    }

    // The tile at the place that q is at; false behind the last one. Its queries are there.
    __device__ __forceinline__ bool begin() {
        int place = C::ONE ? part : q.at;
        barrier_wait(ring.q_full + place * 8, q.phase);
        tile = ring.tiles[place];
        if (!tile.blocks) return false;
        rows.left = tile.blocks;
        rows.row = ((C::SIGHT == WINDOW ? end_of<C>(p.order, tile.first) : rows.left) - 1) * C::BN;
        rows.first = tile.first + part * 64;
        if constexpr (C::HELD) {
            u32 at = ring.q + q.at * C::BYTES_Q + (part * 64 + warp * 16 + (lane & 15)) * 128;
#pragma unroll
            for (int t = 0; t < C::D / 16; ++t) {
                u32 from = at + t / 4 * C::PANEL_Q + (((t % 4 * 2 + lane / 16) ^ (lane & 7)) << 4);
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(held[4 * t]), "=r"(held[4 * t + 1]), "=r"(held[4 * t + 2]), "=r"(held[4 * t + 3])
                             : "r"(from)
                             : "memory");
            }
        }
        return true;
    }
    __device__ __forceinline__ void start_scores() {
        u64 left = tile_at(queries()), right = tile_at(ring.k + k.at * C::BYTES_K);
#pragma unroll
        for (int t = 0; t < C::D / 16; ++t) {
            u64 b = right + t / 4 * (C::PANEL_K >> 4) + t % 4 * 2;
            if constexpr (C::HELD) T::template product<0>(s, held + 4 * t, b, t > 0);
            else T::template product<0>(s, left + t / 4 * (C::PANEL_Q >> 4) + t % 4 * 2, b, t > 0);
        }
        products_commit();
    }
    __device__ __forceinline__ void start_sum(bool fresh) {
        u64 right = tile_at(ring.v + v.at * C::BYTES_K, C::PANEL_K);
#pragma unroll
        for (int t = 0; t < C::BN / 16; ++t) T::template product<1>(o, w + 4 * t, right + t * 128, t > 0 || !fresh);
        products_commit();
    }
    // Scores that are not to be seen. Of the block whose scores are there; goes on to the next one.
    __device__ __forceinline__ void cut() {
        if (rows.row + C::BN - 1 > last_of(rows.first)) {
            int row = rows.first + warp * 16 + lane / 4, key = rows.row + 2 * (lane & 3);
            int to[2] = {last_of(row) - key, last_of(row + 8) - key};
#pragma unroll
            for (int j = 0; j < C::BN / 2; ++j) s[j] = j / 4 * 8 + (j & 1) <= to[j >> 1 & 1] ? s[j] : LOWEST;
        }
        if (C::SIGHT == WINDOW && rows.row < first_of(rows.first + 63)) {
            int row = rows.first + warp * 16 + lane / 4, key = rows.row + 2 * (lane & 3);
            int from[2] = {first_of(row) - key, first_of(row + 8) - key};
#pragma unroll
            for (int j = 0; j < C::BN / 2; ++j) s[j] = j / 4 * 8 + (j & 1) >= from[j >> 1 & 1] ? s[j] : LOWEST;
        }
        rows.row -= C::BN, --rows.left;
    }
    __device__ __forceinline__ void pack() {
#pragma unroll
        for (int j = 0; j < C::BN / 4; ++j) w[j] = T::round(s[2 * j], s[2 * j + 1]);
    }
    // Weights of the scores, as an operand of the sum.
    __device__ __forceinline__ void spread() {
        softmax.template spread<C>(s, p.factor, [&](int c) {
#pragma unroll
            for (int j = c / 2; j < (c + C::CHUNK) / 2; ++j) w[j] = T::round(s[2 * j], s[2 * j + 1]);
        });
    }

    // The place of an output that has left may take other queries.
    __device__ __forceinline__ void left() {
        if (leader()) {
            copies_read();
            barrier_arrive(ring.q_free + before(q.at) * 8);
        }
        leaving = false;
    }
    __device__ __forceinline__ static int before(int place) { return (place ? place : C::PLACES) - 1; }
    // The beginning of a tile's softmax: nothing was seen, or a key without a value, whose score is the head's sink and
    // whose weight one thread of a row counts. A sink of -inf is none.
    __device__ __forceinline__ void open(const Tile& tile) {
        softmax.clear();
        if (!p.sinks) return;
        float sink = T::widen(__ldg(p.sinks + tile.h)) * LOG2E;
        softmax.top[0] = softmax.top[1] = sink;
        softmax.total[0] = softmax.total[1] = (lane & 3) == 0 && sink != LOWEST;
    }
    // The end of a tile's softmax: lse, and what its sums are multiplied by.
    __device__ __forceinline__ void close(float (&inverse)[2], const Tile& tile) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float total = softmax.total[r] + across(softmax.total[r], 1);
            total += across(total, 2);
            int row = row_of(tile, r);
            inverse[r] = sees(row) ? reciprocal(total) : 0;
            if (p.lse && (lane & 3) == 0 && row < p.Lq)
                p.lse[(i64{tile.b} * p.order.H + tile.h) * p.Lq + row] = (softmax.top[r] + log2f(total)) * LN2;
        }
    }
    // The output of a tile, by way of its queries' place.
    __device__ __forceinline__ void finish(const float (&inverse)[2], int place) {
        u32 to = ring.q + place * C::BYTES_Q + part * 64 * 128, line = to + (warp * 16 + (lane & 15)) * 128;
        if constexpr (!C::TURNS) meet(MEET + part, 128);  // all have read the queries
#pragma unroll
        for (int t = 0; t < C::D / 16; ++t) {
            u32 pairs[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                int r = j & 1;
                pairs[j] = T::round(o[8 * t + 2 * j] * inverse[r], o[8 * t + 2 * j + 1] * inverse[r]);
            }
            u32 put = line + t / 4 * C::PANEL_Q + (((t % 4 * 2 + lane / 16) ^ (lane & 7)) << 4);
            store_matrices(put, pairs);
        }
        publish();
        meet(MEET + part, 128);
        if (leader()) {
            Tile tile = ring.tiles[place];
#pragma unroll
            for (int panel = 0; panel < C::PANELS; ++panel)
                copy_out(&p.o, panel * 64, tile.first + part * 64, tile.h, tile.b, to + panel * C::PANEL_Q);
            close_copies();
        }
        leaving = true;
    }

    // The same straight to memory: threads exchange halves with their neighbours, and each stores four numbers at once.
    __device__ __forceinline__ void finish(const float (&inverse)[2], const Tile& tile) {
        bool odd = lane & 1;
        u16* to = p.out + tile.b * p.out_b + tile.h * p.out_h + 8 * odd + 2 * (lane & 2);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int row = row_of(tile, r);
#pragma unroll
            for (int t = 0; t < C::D / 16; ++t) {
                const float* d = o + 8 * t + 2 * r;
                u32 left = T::round(d[0] * inverse[r], d[1] * inverse[r]);
                u32 right = T::round(d[4] * inverse[r], d[5] * inverse[r]);
                u32 other = __shfl_xor_sync(0xFFFFFFFF, odd ? left : right, 1);
                uint2 both = odd ? uint2{other, right} : uint2{left, other};
                if (row < p.Lq) *reinterpret_cast<uint2*>(to + row * p.out_l + 16 * t) = both;
            }
        }
    }

    // A store that never happens: no sum of weights is negative. The assembler may not move the wait for the matrix
    // units that follows ahead of it, nor therefore ahead of the softmax, as it does when left to itself.
    __device__ __forceinline__ void hold() const {
        asm volatile(
            "{\n.reg .pred never;\nsetp.lt.f32 never, %0, 0f00000000;\n"
            "@never st.volatile.shared.f32 [%1], %0;\n}" ::"f"(softmax.total[0] + softmax.total[1]),
            "r"(ring.q)
            : "memory");
    }

    __device__ __forceinline__ void wait_sum() {
        products_wait<0>(o);
#pragma unroll
        for (int j = 0; j < C::BN / 4; ++j) asm volatile("" : "+r"(w[j])::"memory");  // read until now
        release(ring.v_free + v.at * 8);
        v.next();
    }

    __device__ __forceinline__ void run() {
        if (C::TURNS && part == C::GROUPS - 1) come(TURN, 256);
        bool any = begin(), fresh = true;
        float inverse[2];
        if (any) {
            open(ring.tiles[q.at]);
            barrier_wait(ring.k_full + k.at * 8, k.phase);
            products_begin();
            start_scores();
            products_wait<0>(s);
            release(ring.k_free + k.at * 8);
            k.next();
            cut();
            softmax.rise(s, p.factor);
            spread();
        }
        while (any) {
            bool over = rows.left == 0;
            int place = q.at;
            if (over) {
                if (leaving) left();
                q.next();
                if (!begin()) break;
            }
            barrier_wait(ring.k_full + k.at * 8, k.phase);
            barrier_wait(ring.v_full + v.at * 8, v.phase);
            if constexpr (C::TURNS) meet(TURN + part, 256);
            products_begin();
            start_scores();
            start_sum(fresh);
            if constexpr (C::TURNS) come(TURN + (part + 1) % C::GROUPS, 256);
            products_wait<1>(s);
            release(ring.k_free + k.at * 8);
            k.next();
            if (leaving) left();
            cut();
            if (over) {
                close(inverse, ring.tiles[place]);
                open(ring.tiles[q.at]);
            }
            bool grown = softmax.rise(s, p.factor);
            if constexpr (C::TURNS) {
                softmax.template spread<C>(s, p.factor, [](int) {});
                hold();
            }
            wait_sum();
            if (over) {
                finish(inverse, place);
            } else if (grown) {
#pragma unroll
                for (int j = 0; j < C::D / 2; ++j) o[j] *= softmax.shrink[j >> 1 & 1];
            }
            fresh = over;
            if constexpr (C::TURNS) pack();
            else spread();
        }
        if (any) {
            barrier_wait(ring.v_full + v.at * 8, v.phase);
            products_begin();
            start_sum(fresh);
            int place = before(q.at);
            close(inverse, ring.tiles[place]);
            wait_sum();
            finish(inverse, place);
        }
        if (C::TURNS && part == 0) meet(TURN, 256);
        if (leader()) copies_read();
    }

    // The scores of a block are there: its keys' place is free, and behind a tile's last one that of its queries.
    __device__ __forceinline__ void scored() {
        release(ring.k_free + k.at * 8);
        k.next();
        cut();
        if (rows.left) return;
        __syncwarp();  // all have read what tile it is
        release(ring.q_free + part * 8);
    }
    __device__ __forceinline__ void run_in_one_place() {
        for (; begin(); q.next()) {
            open(tile);
            barrier_wait(ring.k_full + k.at * 8, k.phase);
            products_begin();
            start_scores();
            products_wait<0>(s);
            scored();
            softmax.rise(s, p.factor);
            spread();
            bool fresh = true;
            for (; rows.left; fresh = false) {
                barrier_wait(ring.k_full + k.at * 8, k.phase);
                barrier_wait(ring.v_full + v.at * 8, v.phase);
                products_begin();
                start_scores();
                start_sum(fresh);
                products_wait<1>(s);
                scored();
                bool grown = softmax.rise(s, p.factor);
                wait_sum();
                if (grown) {
#pragma unroll
                    for (int j = 0; j < C::D / 2; ++j) o[j] *= softmax.shrink[j >> 1 & 1];
                }
                spread();
            }
            barrier_wait(ring.v_full + v.at * 8, v.phase);
            products_begin();
            start_sum(fresh);
            float inverse[2];
            close(inverse, tile);
            wait_sum();
            finish(inverse, tile);
        }
    }
};

template <class T, class C>
__device__ __forceinline__ void attention(const Attention& p) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    __shared__ __align__(8) u64 barriers[2 * C::HALVES + 4 * C::STAGES];
    __shared__ Tile tiles[C::HALVES];
    u32 start = shared_address(bytes), at = shared_address(barriers);
    Ring ring;
    ring.q = start, ring.k = start + C::PLACES * C::BYTES_Q, ring.v = ring.k + C::STAGES * C::BYTES_K;
    ring.q_full = at, ring.q_free = at + 8 * C::HALVES;
    ring.k_full = at + 16 * C::HALVES, ring.k_free = ring.k_full + 8 * C::STAGES;
    ring.v_full = ring.k_free + 8 * C::STAGES, ring.v_free = ring.v_full + 8 * C::STAGES;
    ring.tiles = tiles;
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::HALVES; ++i) {
            barrier_init(ring.q_full + i * 8, 1);
            barrier_init(ring.q_free + i * 8, C::ONE ? 4 : C::GROUPS);  // the warps of one group, or all groups
        }
        for (int i = 0; i < C::STAGES; ++i) {
            barrier_init(ring.k_full + i * 8, 1);
            barrier_init(ring.v_full + i * 8, 1);
            barrier_init(ring.k_free + i * 8, 4 * C::GROUPS);  // every warp
            barrier_init(ring.v_free + i * 8, 4 * C::GROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;");
        for (const TensorMap* map : {&p.q, &p.k, &p.v, &p.o})
            asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(C::FEW));
        if (threadIdx.x == 0) fetch<C>(p, ring);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(C::MANY));
        Group<T, C> group(p, ring);
        if constexpr (C::ONE) group.run_in_one_place();
        else group.run();
    }
}
