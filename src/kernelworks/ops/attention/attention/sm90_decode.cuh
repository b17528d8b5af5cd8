// attention for few queries: up to 16 rows (queries times heads of a group) to a key-value head, whose keys and values
// cross memory once. A block takes one share of the keys of one key-value head. Each of its warps takes every WARPS-th
// 16 keys by itself, through a ring of its own: no warp waits for another before the end, where their sums are joined.
#pragma once

#include "sm90_instructions.cuh"

namespace few {

constexpr int ROWS = 16;  // of a tile: what the matrix units take
constexpr int KEYS = 16;  // of a step
constexpr float NONE = __builtin_bit_cast(float, 0xff800000u);  // minus infinity

// What becomes of a block's sums: they are the output; they go to memory for a second kernel; the blocks of a cluster,
// which are all shares of a head, hand them to each other.
enum { WHOLE, APART, CLUSTER };

struct Problem {
    u16* out;
    float* lse;      // null where it is not asked for
    float* partial;  // for APART: [pairs, shares, rows, D] and behind it two numbers for each [pairs, shares, rows]
    const u16 *q, *k, *v;
    i64 q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, o_b, o_h, o_l;
    // `part` / 256 is 1 / queries, rounded up: enough to divide a row's number by.
    int heads, group, queries, keys, first, last, length, shares, shift, window, part;
    float factor;  // of scores, for exponentials of base 2
};

// Lines of keys and values leave L2 first: they are read once. With evict_normal said, 32 sequences of 4096 keys took
// 141 us on an H200, with this or nothing said 126.
inline __device__ u64 read_once() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
inline __device__ void copy_16(u32 to, const u16* from, int bytes, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes),
                 "l"(policy)
                 : "memory");
}
inline __device__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
inline __device__ void matrices(u32 (&v)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}
inline __device__ void matrices_turned(u32 (&v)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
}
inline __device__ float power(float x) {  // of 2; 0 below 2^-126
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
inline __device__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
inline __device__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
inline __device__ u32 in_block(u32 address, int rank) {
    u32 r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
    return r;
}
inline __device__ void hand_over(u32 to, float a, float b) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(a), "f"(b) : "memory");
}

#define KW_FEW_TYPE(Name, Base, type)                                                                            \
    struct Name : Base {                                                                                         \
        static __device__ __forceinline__ void sum(float (&d)[4], const u32 (&a)[4], u32 b, u32 c) {             \
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                  \
                         ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                            \
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                        \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(c));                          \
        }                                                                                                        \
    };
KW_FEW_TYPE(FewBf16, Bf16, "bf16")
KW_FEW_TYPE(FewF16, F16, "f16")

template <int D_, int WARPS_, int STAGES_, int JOIN_>
struct Cut {
    static constexpr int D = D_, WARPS = WARPS_, STAGES = STAGES_, JOIN = JOIN_;
    static constexpr int PITCH = 2 * D, SLOT = KEYS * PITCH, RING = 2 * STAGES * SLOT;
    static constexpr int LINE = D + 8;  // floats from row to row of a warp's sums: no two rows in one bank
    static constexpr int SUMS = WARPS * ROWS * (LINE + 2) * 4;
    static constexpr int OWN = WARPS * RING > SUMS ? WARPS * RING : SUMS;  // the sums take the rings' place
    static constexpr int MOST = 8;  // blocks of a cluster
    static constexpr int INBOX = JOIN == CLUSTER ? (ROWS * D / 2 + MOST) * 8 : 0;
    static constexpr int STATS = JOIN == CLUSTER ? MOST * ROWS * 8 : 0;
    static constexpr int BYTES = OWN + INBOX + STATS;
};

// 16 keys (or values) to a slot of a ring, chunks of 16 bytes in another order in each row; zeros behind the last.
template <int D>
__device__ __forceinline__ void fetch(u32 slot, const u16* from, i64 stride, int key, int last, u64 policy) {
    constexpr int CHUNKS = D / 8, STEP = 32 / CHUNKS;
    int lane = threadIdx.x & 31, chunk = lane % CHUNKS, row = lane / CHUNKS;
    const u16* p = from + (key + row) * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < KEYS / STEP; ++i) {
        int r = row + i * STEP;
        copy_16(slot + r * (2 * D) + ((chunk ^ (r & 7)) << 4), p, key + r < last ? 16 : 0, policy);
        p += STEP * stride;
    }
}

inline __device__ int head_of(const Problem& p, int row) { return row * p.part >> 8; }  // row / queries
inline __device__ int query_of(const Problem& p, int row) { return row - head_of(p, row) * p.queries; }

struct Place {  // of a block's work
    int batch, head, begin, end, share, pair;
};

inline __device__ Place place_of(const Problem& p) {
    int kv_heads = p.heads / p.group;
    Place w;
    w.share = blockIdx.x % p.shares;
    w.pair = blockIdx.x / p.shares;
    w.batch = w.pair / kv_heads;
    w.head = w.pair % kv_heads;
    w.begin = p.first + w.share * p.length;
    w.end = min(w.begin + p.length, p.last);
    return w;
}

// Whether any key is seen by the row's query.
inline __device__ bool sees(const Problem& p, int row) {
    int position = query_of(p, row) + p.shift;
    return position >= 0 && position - p.window + 1 < p.keys;
}

// Queries as the left side of a product: rows lane / 4 and 8 more. Rows that there are not are zeros.
template <class C>
__device__ __forceinline__ void load_queries(u32 (&a)[C::D / 16][4], const Problem& p, const Place& w) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int row = lane / 4 + 8 * half;
        bool there = row < p.group * p.queries;
        const u16* from = p.q + w.batch * p.q_b + (w.head * p.group + head_of(p, row)) * p.q_h +
                          query_of(p, row) * p.q_l + 2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < C::D / 16; ++i) {
            a[i][half] = there ? *reinterpret_cast<const u32*>(from + 16 * i) : 0;
            a[i][half + 2] = there ? *reinterpret_cast<const u32*>(from + 16 * i + 8) : 0;
        }
    }
}

// A warp's softmax so far: of rows lane / 4 and 8 more, sums of this lane's keys alone.
struct Running {
    float top[2], sum[2];
};

// Scores become weights; all sums so far are scaled where the largest score has grown.
template <class T, class C>
__device__ __forceinline__ void weigh(float (&s)[2][4], u32 (&weights)[4], Running& run, float (&acc)[C::D / 8][4]) {
    float shrink[2];
    bool grew = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float top = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        top = fmaxf(top, run.top[half]);
        float base = top == NONE ? 0.f : top;
        grew |= top != run.top[half];
        shrink[half] = power(run.top[half] - base);
        run.top[half] = top;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float& x = s[i / 2][2 * half + i % 2];
            x = power(x - base);
            sum += x;
        }
        run.sum[half] = run.sum[half] * shrink[half] + sum;
    }
    if (__any_sync(~0u, grew)) {
#pragma unroll
        for (int j = 0; j < C::D / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[j][i] *= shrink[i / 2];
    }
    weights[0] = T::round(s[0][0], s[0][1]);
    weights[1] = T::round(s[0][2], s[0][3]);
    weights[2] = T::round(s[1][0], s[1][1]);
    weights[3] = T::round(s[1][2], s[1][3]);
}

// Hides what the rows' queries do not see of 16 keys.
inline __device__ void hide(float (&s)[2][4], const Problem& p, int key, int end) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int position = query_of(p, lane / 4 + 8 * half) + p.shift;
        int last = min(position, end - 1), first = position - p.window + 1;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int at = key + i / 2 * 8 + 2 * (lane % 4) + i % 2;
            if (at > last || at < first) s[i / 2][2 * half + i % 2] = NONE;
        }
    }
}

// All of a warp's steps: its sums, in registers.
template <class T, class C>
__device__ __forceinline__ void pass(const Problem& p, const Place& w, u32 ring, Running& run, float (&acc)[C::D / 8][4]) {
    constexpr int STAGES = C::STAGES, WARPS = C::WARPS;
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const u16* k = p.k + w.batch * p.k_b + w.head * p.k_h;
    const u16* v = p.v + w.batch * p.v_b + w.head * p.v_h;
    u32 q[C::D / 16][4];
    load_queries<C>(q, p, w);
    // Where a lane reads: of keys, rows 0-7 twice and 8-15 twice; of values, rows 0-15 twice.
    u32 k_row = (lane / 16) * 8 + lane % 8, k_chunk = lane / 8 % 2;
    u32 v_row = lane % 16, v_chunk = lane / 16;
    int seen_by_all = min(w.end - 1, p.shift), seen_from = p.shift + p.queries - p.window;
    u64 policy = read_once();
    // The first STAGES rounds only fetch.
    int stage = 0, ahead = w.begin + warp * KEYS;
    for (int key = ahead - STAGES * WARPS * KEYS; key < w.end; key += WARPS * KEYS, ahead += WARPS * KEYS) {
        u32 slot = ring + 2 * stage * C::SLOT;
        float s[2][4] = {}, t[2][4] = {};
        if (key >= w.begin) {
            copies_wait<2 * STAGES - 1>();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < C::D / 16; ++i) {
                u32 b[4];
                matrices(b, slot + k_row * C::PITCH + (((2 * i + k_chunk) ^ (k_row & 7)) << 4));
                T::sum(i % 2 ? t[0] : s[0], q[i], b[0], b[1]);
                T::sum(i % 2 ? t[1] : s[1], q[i], b[2], b[3]);
            }
            __syncwarp();
        }
        if (ahead < w.end) fetch<C::D>(slot, k, p.k_l, ahead, w.end, policy);
        copies_commit();
        if (key >= w.begin) {
#pragma unroll
            for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = (s[i / 4][i % 4] + t[i / 4][i % 4]) * p.factor;
            if (key + KEYS - 1 > seen_by_all || key < seen_from) hide(s, p, key, w.end);
            u32 weights[4];
            weigh<T, C>(s, weights, run, acc);
            copies_wait<2 * STAGES - 1>();
            __syncwarp();
#pragma unroll
            for (int j = 0; j < C::D / 16; ++j) {
                u32 b[4];
                matrices_turned(b, slot + C::SLOT + v_row * C::PITCH + (((2 * j + v_chunk) ^ (v_row & 7)) << 4));
                T::sum(acc[2 * j], weights, b[0], b[1]);
                T::sum(acc[2 * j + 1], weights, b[2], b[3]);
            }
            __syncwarp();
        }
        if (ahead < w.end) fetch<C::D>(slot + C::SLOT, v, p.v_l, ahead, w.end, policy);
        copies_commit();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}

// Two numbers of a row joined from several parts: their largest score, the sum of weights, the weighted values.
struct Joined {
    float top, sum, a, b;
};

// The order is the parts' own, so the same bits come out every time. part(i) gives the largest score and the sum, and
// pair(i) two of the weighted values.
template <class Part, class Pair>
__device__ __forceinline__ Joined join(int parts, Part part, Pair pair) {
    Joined r = {NONE, 0, 0, 0};
    for (int i = 0; i < parts; ++i) r.top = fmaxf(r.top, part(i).x);
    float base = r.top == NONE ? 0.f : r.top;
    for (int i = 0; i < parts; ++i) {
        float2 one = part(i), two = pair(i);
        float weight = power(one.x - base);
        r.sum += weight * one.y;
        r.a += weight * two.x;
        r.b += weight * two.y;
    }
    return r;
}

// Two neighbours of an output, and with the first of a row its lse.
template <class T>
__device__ __forceinline__ void finish(const Problem& p, int batch, int kv_head, int row, int column, const Joined& r) {
    int head = kv_head * p.group + head_of(p, row), query = query_of(p, row);
    bool some = sees(p, row);
    u32 two = some ? T::round(r.a / r.sum, r.b / r.sum) : 0;
    *reinterpret_cast<u32*>(p.out + batch * p.o_b + head * p.o_h + query * p.o_l + column) = two;
    if (p.lse && !column)
        p.lse[(static_cast<i64>(batch) * p.heads + head) * p.queries + query] =
            0.6931471805599453f * (r.top + __log2f(r.sum));
}

template <class T, class C>
__device__ __forceinline__ void attention(const Problem& p) {
    extern __shared__ __align__(128) unsigned char memory[];
    u32 base = shared_address(memory);
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31, rows = p.group * p.queries;
    Place w = place_of(p);
    if (C::JOIN == CLUSTER) cluster_arrive();  // every block of it has begun, before anything is handed over
    wait_for_kernels();
    if (C::JOIN == APART) let_kernels_start();
    Running run = {{NONE, NONE}, {0, 0}};
    float acc[C::D / 8][4] = {};
    pass<T, C>(p, w, base + warp * C::RING, run, acc);
    copies_wait<0>();
    __syncthreads();

    float* sums = reinterpret_cast<float*>(memory);  // [WARPS][ROWS][LINE]
    float2* stats = reinterpret_cast<float2*>(sums + C::WARPS * ROWS * C::LINE);  // [WARPS][ROWS]
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int row = warp * ROWS + lane / 4 + 8 * half;
        float sum = run.sum[half];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0) stats[row] = {run.top[half], sum};
        if (lane / 4 + 8 * half < rows) {
#pragma unroll
            for (int j = 0; j < C::D / 8; ++j)
                *reinterpret_cast<float2*>(sums + row * C::LINE + 8 * j + 2 * (lane % 4)) =
                    {acc[j][2 * half], acc[j][2 * half + 1]};
        }
    }
    __syncthreads();

    constexpr int PAIRS = C::D / 2;
    int each = (rows * PAIRS + p.shares - 1) / p.shares;  // pairs of numbers that a block of a cluster finishes
    u32 inbox = base + C::OWN, told = inbox + C::INBOX;
    if (C::JOIN == CLUSTER) cluster_wait();
    for (int i = threadIdx.x; i < rows * PAIRS; i += C::WARPS * 32) {
        int row = i / PAIRS, column = i % PAIRS * 2;
        Joined r = join(
            C::WARPS, [&](int n) { return stats[n * ROWS + row]; },
            [&](int n) { return *reinterpret_cast<float2*>(sums + (n * ROWS + row) * C::LINE + column); });
        if (C::JOIN == WHOLE) finish<T>(p, w.batch, w.head, row, column, r);
        if (C::JOIN == APART) {
            i64 slot = (static_cast<i64>(w.pair) * p.shares + w.share) * rows + row;
            i64 slots = static_cast<i64>(gridDim.x) * rows;
            *reinterpret_cast<float2*>(p.partial + slot * C::D + column) = {r.a, r.b};
            if (!column) *reinterpret_cast<float2*>(p.partial + slots * C::D + 2 * slot) = {r.top, r.sum};
        }
        if (C::JOIN == CLUSTER) {
            hand_over(in_block(inbox + 8 * (w.share * each + i % each), i / each), r.a, r.b);
            if (!column)
                for (int n = 0; n < p.shares; ++n)
                    hand_over(in_block(told + 8 * (w.share * ROWS + row), n), r.top, r.sum);
        }
    }
    if (C::JOIN == CLUSTER) {
        cluster_arrive();
        cluster_wait();
        float2* parts = reinterpret_cast<float2*>(memory + C::OWN);
        float2* tops = reinterpret_cast<float2*>(memory + C::OWN + C::INBOX);
        for (int n = threadIdx.x; n < each && w.share * each + n < rows * PAIRS; n += C::WARPS * 32) {
            int i = w.share * each + n, row = i / PAIRS;
            Joined r = join(
                p.shares, [&](int s) { return tops[s * ROWS + row]; }, [&](int s) { return parts[s * each + n]; });
            finish<T>(p, w.batch, w.head, row, i % PAIRS * 2, r);
        }
    }
}

// One block a row: what the shares of its head left in memory. A warp takes every JOINERS-th share, a lane D / 32
// neighbours, so that all that is read is on its way at once.
constexpr int JOINERS = 8, AT_ONCE = 4;
template <class T, int D>
__device__ __forceinline__ void join_shares(const Problem& p) {
    constexpr int EACH = D / 32;
    __shared__ float parts[JOINERS][D];
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31, rows = p.group * p.queries;
    int pair = blockIdx.x / rows, row = blockIdx.x - pair * rows, kv_heads = p.heads / p.group;
    i64 slot = static_cast<i64>(pair) * p.shares * rows + row;
    i64 slots = static_cast<i64>(gridDim.x) * p.shares;
    const float* sums = p.partial + slot * D + EACH * lane;
    const float* stats = p.partial + slots * D + 2 * slot;
    wait_for_kernels();
    float held[AT_ONCE][EACH], tops[AT_ONCE];
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) {
        int i = warp + n * JOINERS;
        bool there = i < p.shares;
        tops[n] = there ? stats[2 * i * rows] : NONE;
#pragma unroll
        for (int j = 0; j < EACH; ++j) held[n][j] = there ? sums[static_cast<i64>(i) * rows * D + j] : 0.f;
    }
    float top = NONE, sum = 0, acc[EACH] = {};
    for (int i = lane; i < p.shares; i += 32) top = fmaxf(top, stats[2 * i * rows]);
#pragma unroll
    for (int i = 1; i < 32; i *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
    float base = top == NONE ? 0.f : top;
    for (int i = lane; i < p.shares; i += 32) {
        float2 one = *reinterpret_cast<const float2*>(stats + 2 * i * rows);
        sum += power(one.x - base) * one.y;
    }
#pragma unroll
    for (int i = 1; i < 32; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
        for (int j = 0; j < EACH; ++j) acc[j] += power(tops[n] - base) * held[n][j];
    for (int i = warp + AT_ONCE * JOINERS; i < p.shares; i += JOINERS) {
        float weight = power(stats[2 * i * rows] - base);
#pragma unroll
        for (int j = 0; j < EACH; ++j) acc[j] += weight * sums[static_cast<i64>(i) * rows * D + j];
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) parts[warp][EACH * lane + j] = acc[j];
    __syncthreads();
    for (int i = threadIdx.x; i < D / 2; i += 32 * JOINERS) {
        Joined r = {top, sum, 0, 0};
#pragma unroll
        for (int n = 0; n < JOINERS; ++n) r.a += parts[n][2 * i], r.b += parts[n][2 * i + 1];
        finish<T>(p, pair / kv_heads, pair % kv_heads, row, 2 * i, r);
    }
}

}  // namespace few
