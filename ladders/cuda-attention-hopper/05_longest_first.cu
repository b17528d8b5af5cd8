// title: Longest-first tile order
// launch: threads 128, tile 64 x 128, grid tiles, shared 87040
// hypothesis: The last queries of all heads start first: they take longest, and the short ones fill the gaps at the end.
//   Sixteen heads at a time, whose keys and values (34 MB) fit L2 together; as soon as some of their blocks have ended,
//   the next sixteen begin. With the short ones first, a head's last block took 64 turns while others had ended, but
//   4096 blocks on 264 places hide most of that.
// predicts: 1.06
// next: mma.sync. A warp's 16 queries want every key and value through ldmatrix, so shared memory gives as many bytes as
//   the matrix units take steps; and the instruction was made for the units before these.
using u16 = unsigned short;
using u32 = unsigned;
using i64 = long long;

constexpr int D = 128, TILE = 64, LINE = D + 8, BAND = 16;  // a line is padded, so that eight of them lie in different banks
constexpr float FACTOR = 0.08838834764831845f * 1.4426950408889634f;  // exponentials are of base 2
constexpr float NOTHING = -1.f / 0.f;

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
__device__ void load(u32 (&v)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at)
                 : "memory");
}
__device__ void load_turned(u32 (&v)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at)
                 : "memory");
}
// d += a b: 16 x 16 times 16 x 8.
__device__ void multiply(float* d, const u32* a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Starts to copy 64 rows of 128 to shared memory.
__device__ void fetch(u16* to, const u16* from) {
#pragma unroll
    for (int i = 0; i < TILE * D / 8 / 128; ++i) {
        int at = i * 128 + threadIdx.x;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         shared_address(to + at / (D / 8) * LINE + at % (D / 8) * 8)),
                     "l"(from + at * 8));
    }
    asm volatile("cp.async.commit_group;");
}
// All but the last LEFT groups of copies are there, for all threads; and nobody uses what was there before.
template <int LEFT>
__device__ void arrived() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
    __syncthreads();
}

// q, k, v and out are [H, L, 128], L a multiple of 64.
extern "C" __global__ void __launch_bounds__(128, 2)
    attention(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v, u16* out, i64 H, i64 L) {
    extern __shared__ __align__(16) u16 room[];
    u16 *queries = room, *keys = room + TILE * LINE, *values = room + 3 * TILE * LINE;  // of the last two, two places
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i64 tiles = L / TILE, band = blockIdx.x / (BAND * tiles) * BAND, heads = H - band < BAND ? H - band : BAND;
    i64 number = blockIdx.x - band * tiles, head = (band + number % heads) * L, mine = tiles - 1 - number / heads;
    fetch(queries, q + (head + mine * TILE) * D);
    fetch(keys, k + head * D);
    arrived<1>();
    u32 held[D / 16][4];  // 16 queries
#pragma unroll
    for (int d = 0; d < D / 16; ++d)
        load(held[d], shared_address(queries + (warp * 16 + lane % 16) * LINE + d * 16 + lane / 16 * 8));
    // Of ldmatrix: the first of 16 keys, or (turned) of 16 values, and 8 more columns for half of the threads.
    u32 key = shared_address(keys + (lane / 16 * 8 + lane % 8) * LINE + lane / 8 % 2 * 8);
    u32 value = shared_address(values + lane % 16 * LINE + lane / 16 * 8);
    float top[2] = {NOTHING, NOTHING}, total[2] = {}, sum[D / 8][4] = {};

    for (i64 tile = 0; tile <= mine; ++tile) {
        int place = tile % 2 * TILE * LINE;
        fetch(values + place, v + (head + tile * TILE) * D);
        arrived<1>();
        // The next keys; behind the last ones the same again, which nobody reads.
        fetch(keys + (TILE * LINE - place), k + (head + (tile < mine ? tile + 1 : tile) * TILE) * D);
        float score[TILE / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
#pragma unroll
            for (int j = 0; j < TILE / 16; ++j) {
                u32 b[4];
                load(b, key + (place + j * 16 * LINE + d * 16) * 2);
                multiply(score[2 * j], held[d], b[0], b[1]);
                multiply(score[2 * j + 1], held[d], b[2], b[3]);
            }
        if (tile == mine) {  // keys behind the query
#pragma unroll
            for (int j = 0; j < TILE / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (j * 8 + lane % 4 * 2 + e % 2 > warp * 16 + lane / 4 + e / 2 * 8) score[j][e] = NOTHING;
        }
        float high[2] = {top[0], top[1]};
#pragma unroll
        for (int j = 0; j < TILE / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) high[e / 2] = fmaxf(high[e / 2], score[j][e]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            high[r] = fmaxf(high[r], __shfl_xor_sync(~0u, high[r], 1));
            high[r] = fmaxf(high[r], __shfl_xor_sync(~0u, high[r], 2));
            float shrink = exponential((top[r] - high[r]) * FACTOR);
            top[r] = high[r], total[r] *= shrink;
#pragma unroll
            for (int c = 0; c < D / 8; ++c) sum[c][2 * r] *= shrink, sum[c][2 * r + 1] *= shrink;
        }
#pragma unroll
        for (int j = 0; j < TILE / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                total[e / 2] += score[j][e] = exponential((score[j][e] - top[e / 2]) * FACTOR);
        arrived<1>();  // the values
#pragma unroll
        for (int j = 0; j < TILE / 16; ++j) {
            const float *left = score[2 * j], *right = score[2 * j + 1];
            u32 weights[4] = {round(left[0], left[1]), round(left[2], left[3]), round(right[0], right[1]),
                              round(right[2], right[3])};
#pragma unroll
            for (int c = 0; c < D / 16; ++c) {
                u32 b[4];
                load_turned(b, value + (place + j * 16 * LINE + c * 16) * 2);
                multiply(sum[2 * c], weights, b[0], b[1]);
                multiply(sum[2 * c + 1], weights, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        total[r] += __shfl_xor_sync(~0u, total[r], 1);
        total[r] += __shfl_xor_sync(~0u, total[r], 2);
        i64 row = head + mine * TILE + warp * 16 + lane / 4 + r * 8;
#pragma unroll
        for (int c = 0; c < D / 8; ++c)
            *reinterpret_cast<u32*>(out + row * D + c * 8 + lane % 4 * 2) =
                round(sum[c][2 * r] / total[r], sum[c][2 * r + 1] / total[r]);
    }
}
