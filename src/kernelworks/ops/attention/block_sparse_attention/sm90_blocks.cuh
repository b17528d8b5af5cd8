// Attention's forward over lists of blocks: a tile's blocks of keys are those on its row's list, from the last one on.
// Only the list's last block, with which a tile begins, may be cut: by the diagonal, or by the end of the keys. So the
// groups need to know where that one lies and how many there are, and nothing of those that follow; where these lie only
// the thread that fetches reads. What differs from attention's kernel is said by specialising its functions for `Listed`.
#pragma once

#include "../attention/sm90_forward.cuh"

constexpr int BLOCK = 128, FAR_OFF = 0x7FFF;  // the last block of an empty list: behind all keys, so that all is cut

// Attention's `blocks` of a tile holds both: how many blocks are on the list (1 if none), and from bit 16 on the last one.
inline __device__ int count_of(const Tile& tile) { return tile.blocks & 0xFFFF; }
inline __device__ int last_on(const Tile& tile) { return tile.blocks >> 16; }

// What a launch asks for beside attention's. Strides count rows of blocks.
struct Blocks : Attention {
    const int *lists, *ranked;  // of every row of blocks; the rows by length, each with a tile's `blocks`
    int of_batch, of_head, columns;
};

// A cut of attention's kernel: tiles of 128 queries, blocks of 128 keys or of half as many.
template <class C>
struct Listed : C {
    static constexpr int PARTS = BLOCK / C::BN;
    static_assert(C::BM == BLOCK && PARTS * C::BN == BLOCK);
};

struct Listing {
    Tile tile;
    const int* list;
    int ahead;  // the block before the last one, if there is one
};

// The tile of a number is found in two reads: where it lies, then what its list begins with.
struct Found {
    int mask, h, b;
    int2 row;  // and a tile's `blocks`
};

// The longest lists of all heads of a band first.
inline __device__ Found found_of(const Blocks& p, int number) {
    const Order& o = p.order;
    if (number >= o.tiles * o.heads) return {0, 0, 0, {0, 0}};
    int band = number / (o.band * o.tiles), rest = number - band * o.band * o.tiles;
    int heads = least(o.band, o.heads - band * o.band), rank = rest / heads;
    int head = band * o.band + rest - rank * heads, b = head / o.H, h = head - b * o.H;
    int mask = b * p.of_batch + h * p.of_head;
    return {mask, h, b, __ldg(reinterpret_cast<const int2*>(p.ranked) + mask + rank)};
}
inline __device__ Listing listing_of(const Blocks& p, const Found& f) {
    Tile tile = {f.row.x * BLOCK, f.row.y, f.h, f.b};
    const int* list = p.lists + static_cast<i64>(f.mask + f.row.x) * p.columns;
    return {tile, list, count_of(tile) > 1 ? __ldg(list + count_of(tile) - 2) : 0};
}

// ---------------------------------------------------------------- the thread that fetches

template <class C>
__device__ __forceinline__ void fetch_listed(const Blocks& p, const Ring& ring) {
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
    Listing next = listing_of(p, found_of(p, number_of(p.order, 0)));
    for (int turn = 1;; ++turn) {
        Listing listing = next;
        const Tile& tile = listing.tile;
        int head = tile.h / p.group, more = count_of(tile) - 1, left = count_of(tile) * C::PARTS;
        int row = last_on(tile) * BLOCK + BLOCK - C::BN, ahead = listing.ahead;
        auto block = [&] {
            barrier_wait(ring.k_free + k.at * 8, k.phase ^ 1);
            fetch_block<C>(&p.k, ring.k + k.at * C::BYTES_K, row, head, tile.b, ring.k_full + k.at * 8);
            k.next();
            values();
            v_row = row, v_head = head, v_batch = tile.b;
            --left;
            if (row % BLOCK) {
                row -= C::BN;
            } else {
                row = ahead * BLOCK + BLOCK - C::BN;
                if (--more > 0) ahead = __ldg(listing.list + more - 1);
            }
        };
        if constexpr (C::ONE) {
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
        if (!C::ONE) block();
        // Drawing the next tile and the two reads take a while each: a block is fetched in between.
        int number = number_of(p.order, turn);
        if (left) block();
        Found found = found_of(p, number);
        if (left) block();
        next = listing_of(p, found);
        while (left) block();
    }
    values();
}

// ---------------------------------------------------------------- the threads that multiply

inline __device__ void load_matrices(u32* v, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}

// The tile at the place that q is at; false behind the last one.
template <class C, class G>
__device__ __forceinline__ bool begin_listed(G& group) {
    const Ring& ring = group.ring;
    int place = C::ONE ? group.part : group.q.at;
    barrier_wait(ring.q_full + place * 8, group.q.phase);
    group.tile = ring.tiles[place];
    if (!group.tile.blocks) return false;
    group.rows.left = count_of(group.tile) * C::PARTS;
    group.rows.row = last_on(group.tile) * BLOCK + BLOCK - C::BN;
    group.rows.first = group.tile.first + group.part * 64;
    if constexpr (C::HELD) {
        u32 at = ring.q + group.q.at * C::BYTES_Q + (group.part * 64 + group.warp * 16 + (group.lane & 15)) * 128;
#pragma unroll
        for (int t = 0; t < C::D / 16; ++t)
            load_matrices(group.held + 4 * t,
                          at + t / 4 * C::PANEL_Q + (((t % 4 * 2 + group.lane / 16) ^ (group.lane & 7)) << 4));
    }
    return true;
}

// The end of a tile's softmax. Every query sees a key of a list that is not empty.
template <class G>
__device__ __forceinline__ void close_listed(G& group, float (&inverse)[2], const Tile& tile) {
    const Attention& p = group.p;
    bool none = last_on(tile) == FAR_OFF;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float total = group.softmax.total[r] + across(group.softmax.total[r], 1);
        total += across(total, 2);
        int row = group.row_of(tile, r);
        inverse[r] = none ? 0 : reciprocal(total);
        if (p.lse && (group.lane & 3) == 0 && row < p.Lq)
            p.lse[(i64{tile.b} * p.order.H + tile.h) * p.Lq + row] = (group.softmax.top[r] + log2f(total)) * LN2;
    }
}

// What of attention's kernel is otherwise for a cut.
#define KW_LISTED(C)                                                                     \
    template <>                                                                          \
    __device__ __forceinline__ void fetch<C>(const Attention& p, const Ring& ring) {     \
        fetch_listed<C>(static_cast<const Blocks&>(p), ring);                            \
    }
#define KW_LISTED_GROUP(T, C)                                                                  \
    template <>                                                                                \
    __device__ __forceinline__ bool Group<T, C>::begin() {                                     \
        return begin_listed<C>(*this);                                                         \
    }                                                                                          \
    template <>                                                                                \
    __device__ __forceinline__ void Group<T, C>::close(float (&inverse)[2], const Tile& tile) { \
        close_listed(*this, inverse, tile);                                                    \
    }
