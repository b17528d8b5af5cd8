// title: Warp specialisation: warps that only fetch
// launch: threads 384, tile 128 x 128, grid tiles, shared 163840
// maps: q 128 x 64, k 128 x 64, v 128 x 64
// hypothesis: Four more warps, of which one thread fetches: it waits for places to become free, and nobody waits for it.
//   Each group of the others tells a barrier when it has read a place, and goes on. The groups no longer meet, so one
//   may work out weights while the other's products run. The warps that fetch give back registers, which the others
//   take.
// predicts: 1.2
// next: A group still does one thing after the other: scores, weights, sum. Two of them leave the matrix units idle
//   wherever both are at their weights, and nothing makes them take turns.
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

constexpr int D = 128, TILE = 128, BAND = 16, GROUPS = 2, STAGES = 2, BYTES = TILE * D * 2, PANEL = TILE * 128;
constexpr float FACTOR = 0.08838834764831845f * 1.4426950408889634f;  // exponentials are of base 2
constexpr float NOTHING = -1.f / 0.f;

#define EIGHT(b) \
    "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3]), "+f"(d[b + 4]), "+f"(d[b + 5]), "+f"(d[b + 6]), "+f"(d[b + 7])
#define SUMS \
    EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56)
#define NAMES \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
    "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
    "%58,%59,%60,%61,%62,%63}"

// d = a b, or d += a b: a is 64 x 16, b 16 x 128. Asynchronous. Queries and keys, both in shared memory:
__device__ void score(float (&d)[64], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " NAMES
                 ", %64, %65, p, 1, 1, 0, 0;\n}"
                 : SUMS
                 : "l"(a), "l"(b), "r"(add));
}
// Weights in registers, and values in shared memory, k down their rows:
__device__ void weigh(float (&d)[64], const u32* a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " NAMES
                 ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
                 : SUMS
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
__device__ void ended(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (int j = 0; j < 64; ++j) asm volatile("" : "+f"(d[j])::"memory");  // not read before the wait
}
// What the matrix units need to know of rows in shared memory: panels of 64 columns, rows of 128 bytes, 128-byte swizzle.
// Read along its rows; or down them, then `panel` bytes lie between panels.
__device__ u64 descriptor(u32 address, u32 panel = 16) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (static_cast<u64>(panel >> 4) << 16) | (64ull << 32) | (1ull << 62);
}
__device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
__device__ u32 round(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

struct alignas(64) TensorMap { char bytes[128]; };
// A barrier's phase ends when as many have arrived, and as many bytes, as it expects.
__device__ void init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ void wait(u32 barrier, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra GONE;\nbra AGAIN;\nGONE:\n}" ::"r"(barrier), "r"(phase)
        : "memory");
}
// A warp has read what lies in a place.
__device__ void free(u32 barrier) {
    if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Starts to copy 128 rows of 128, swizzled; their bytes arrive at the barrier.
__device__ void fetch(u32 to, const TensorMap& map, int row, u32 barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(BYTES) : "memory");
    for (int column = 0; column < D; column += 64)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                to + column / 64 * PANEL),
            "l"(&map), "r"(barrier), "r"(column), "r"(row)
            : "memory");
}

// Of a thread's two rows: largest score so far, sum of the weights, and what was summed of values before must shrink by.
struct Softmax {
    float top[2] = {NOTHING, NOTHING}, total[2] = {}, shrink[2];

    // Scores to weights.
    __device__ void operator()(float (&s)[64]) {
        float high[2] = {top[0], top[1]};
#pragma unroll
        for (int j = 0; j < 64; ++j) high[j / 2 % 2] = fmaxf(high[j / 2 % 2], s[j]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            high[r] = fmaxf(high[r], __shfl_xor_sync(~0u, high[r], 1));
            high[r] = fmaxf(high[r], __shfl_xor_sync(~0u, high[r], 2));
            shrink[r] = exponential((top[r] - high[r]) * FACTOR);
            top[r] = high[r], total[r] *= shrink[r];
        }
        float base[2] = {-top[0] * FACTOR, -top[1] * FACTOR};
#pragma unroll
        for (int j = 0; j < 64; ++j) s[j] = exponential(fmaf(s[j], FACTOR, base[j / 2 % 2])), total[j / 2 % 2] += s[j];
    }
};
// Keys behind their query, in the block on the diagonal.
__device__ void cut(float (&s)[64], int row) {
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < 64; ++j)
        if (j / 4 * 8 + column + j % 2 > row + j / 2 % 2 * 8) s[j] = NOTHING;
}
// The output of a group.
__device__ void write(u16* out, i64 row, const float (&sum)[64], const Softmax& softmax) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float total = softmax.total[r] + __shfl_xor_sync(~0u, softmax.total[r], 1);
        total += __shfl_xor_sync(~0u, total, 2);
        u16* to = out + (row + 8 * r) * D + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < 16; ++j)
            *reinterpret_cast<u32*>(to + j * 8) = round(sum[4 * j + 2 * r] / total, sum[4 * j + 2 * r + 1] / total);
    }
}

// q, k, v and out are [H, L, 128], L a multiple of 128.
extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
              const __grid_constant__ TensorMap v, u16* out, i64 H, i64 L) {
    extern __shared__ __align__(1024) unsigned char room[];
    __shared__ u64 barriers[1 + 4 * STAGES];
    u32 queries = shared_address(room), keys = queries + BYTES, values = keys + STAGES * BYTES;
    u32 q_full = shared_address(barriers), k_full = q_full + 8, k_free = k_full + 8 * STAGES;
    u32 v_full = k_free + 8 * STAGES, v_free = v_full + 8 * STAGES;
    int tiles = L / TILE, band = blockIdx.x / (BAND * tiles) * BAND, heads = H - band < BAND ? H - band : BAND;
    int number = blockIdx.x - band * tiles, head = (band + number % heads) * L, mine = tiles - 1 - number / heads;
    if (threadIdx.x == 0) {
        init(q_full, 1);
        for (int i = 0; i < STAGES; ++i) {
            init(k_full + i * 8, 1), init(v_full + i * 8, 1);
            init(k_free + i * 8, 4 * GROUPS), init(v_free + i * 8, 4 * GROUPS);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy unit sees the barriers
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x) return;
        fetch(queries, q, head + mine * TILE, q_full);
        for (int tile = 0; tile <= mine; ++tile) {
            int place = tile % STAGES, phase = tile / STAGES % 2 ^ 1;
            wait(k_free + place * 8, phase);
            fetch(keys + place * BYTES, k, head + tile * TILE, k_full + place * 8);
            wait(v_free + place * 8, phase);
            fetch(values + place * BYTES, v, head + tile * TILE, v_full + place * 8);
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    int group = threadIdx.x / 128 - 1, row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + group * 64;
    Softmax softmax;
    float s[64], sum[64];
    u64 left = descriptor(queries + group * 64 * 128);
    wait(q_full, 0);
    for (int tile = 0; tile <= mine; ++tile) {
        int place = tile % STAGES, phase = tile / STAGES % 2;
        u64 right = descriptor(keys + place * BYTES);
        wait(k_full + place * 8, phase);
        begin();
#pragma unroll
        for (int t = 0; t < D / 16; ++t)
            score(s, left + t / 4 * (PANEL >> 4) + t % 4 * 2, right + t / 4 * (PANEL >> 4) + t % 4 * 2, t > 0);
        commit();
        ended<0>(s);
        free(k_free + place * 8);
        if (tile == mine) cut(s, row);
        softmax(s);
        u32 weights[32];
#pragma unroll
        for (int j = 0; j < 32; ++j) weights[j] = round(s[2 * j], s[2 * j + 1]);
        if (tile) {
#pragma unroll
            for (int j = 0; j < 64; ++j) sum[j] *= softmax.shrink[j / 2 % 2];
        }
        right = descriptor(values + place * BYTES, PANEL);
        wait(v_full + place * 8, phase);
        begin();
#pragma unroll
        for (int t = 0; t < TILE / 16; ++t) weigh(sum, weights + 4 * t, right + t * 128, t > 0 || tile);
        commit();
        ended<0>(sum);
        free(v_free + place * 8);
    }
    write(out, i64{head} + mine * TILE + row, sum, softmax);
}
