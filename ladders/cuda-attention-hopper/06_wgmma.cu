// title: Warpgroup MMA (wgmma)
// launch: threads 256, tile 128 x 128, grid tiles, shared 163840
// hypothesis: Hopper's own matrix instruction reads keys and values out of shared memory by itself, for 64 queries at a
//   time: no ldmatrix, a quarter of the bytes, and four times the rate of a warp's mma.sync. Two groups of four warps
//   have 64 queries each and pass over 128 keys at a time. But it is asynchronous, and a group that waits for its
//   scores, then works out weights, then waits for its sum has the matrix units idle while it thinks: two groups take
//   turns only by luck. Some 400 TFLOP/s.
// predicts: 1.4
// next: 256 threads each ask for 16 times 16 bytes every block of keys, work out where these go, and meet twice.
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

constexpr int D = 128, TILE = 128, BAND = 16, BYTES = TILE * D * 2, PANEL = TILE * 128;
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
// Starts to copy 128 rows of 128 to shared memory, each 16 bytes where the swizzle wants them.
__device__ void fetch(u32 to, const u16* from) {
#pragma unroll
    for (int i = 0; i < BYTES / 16 / 256; ++i) {
        int at = i * 256 + threadIdx.x, row = at / 16, chunk = at % 16;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         to + chunk / 8 * PANEL + row * 128 + ((chunk % 8 ^ row % 8) << 4)),
                     "l"(from + at * 8));
    }
    asm volatile("cp.async.commit_group;");
}
// All but the last LEFT groups of copies are there, for all threads and for the matrix units.
template <int LEFT>
__device__ void arrived() {
    asm volatile("cp.async.wait_group %0;\nfence.proxy.async.shared::cta;" ::"n"(LEFT) : "memory");
    __syncthreads();
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
extern "C" __global__ void __launch_bounds__(256, 1)
    attention(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v, u16* out, i64 H, i64 L) {
    extern __shared__ __align__(1024) unsigned char room[];
    u32 queries = shared_address(room), keys = queries + BYTES, values = keys + 2 * BYTES;  // of these two places
    int group = threadIdx.x / 128, row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    i64 tiles = L / TILE, band = blockIdx.x / (BAND * tiles) * BAND, heads = H - band < BAND ? H - band : BAND;
    i64 number = blockIdx.x - band * tiles, head = (band + number % heads) * L, mine = tiles - 1 - number / heads;
    fetch(queries, q + (head + mine * TILE) * D);
    fetch(keys, k + head * D);
    Softmax softmax;
    float s[64], sum[64];
    for (i64 tile = 0; tile <= mine; ++tile) {
        int place = tile % 2 * BYTES;
        fetch(values + place, v + (head + tile * TILE) * D);
        arrived<1>();
        // The next keys; behind the last ones the same again, which nobody reads.
        fetch(keys + (BYTES - place), k + (head + (tile < mine ? tile + 1 : tile) * TILE) * D);
        u64 left = descriptor(queries + group * 64 * 128), right = descriptor(keys + place);
        begin();
#pragma unroll
        for (int t = 0; t < D / 16; ++t)
            score(s, left + t / 4 * (PANEL >> 4) + t % 4 * 2, right + t / 4 * (PANEL >> 4) + t % 4 * 2, t > 0);
        commit();
        ended<0>(s);
        if (tile == mine) cut(s, row);
        softmax(s);
        u32 weights[32];
#pragma unroll
        for (int j = 0; j < 32; ++j) weights[j] = round(s[2 * j], s[2 * j + 1]);
        if (tile) {
#pragma unroll
            for (int j = 0; j < 64; ++j) sum[j] *= softmax.shrink[j / 2 % 2];
        }
        arrived<1>();  // the values
        right = descriptor(values + place, PANEL);
        begin();
#pragma unroll
        for (int t = 0; t < TILE / 16; ++t) weigh(sum, weights + 4 * t, right + t * 128, t > 0 || tile);
        commit();
        ended<0>(sum);
    }
    write(out, head + mine * TILE + row, sum, softmax);
}
