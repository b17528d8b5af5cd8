// title: Tiling and online softmax
// launch: threads 256, tile 64 x 128, grid tiles, shared 101376
// hypothesis: A block has 64 queries and passes over 64 keys and values at a time, in shared memory and in float32. Of a
//   block of scores only its largest and its sum are kept: where a later one is larger, what was summed before shrinks
//   by e^(old - new). L2 is asked 64 times less. A thread has 4 x 4 scores, then 4 x 8 sums: 8 loads of 16 bytes
//   for 64 multiply-adds, as in a product of float32 matrices that reaches a third of the multipliers' rate, 65
//   TFLOP/s. Half of that third for softmax, barriers and the diagonal, whose tiles are computed whole.
// predicts: 4
// next: Multipliers of float32. The matrix units take bfloat16 as it came, sixteen times as quickly.
using u16 = unsigned short;
using i64 = long long;

constexpr int D = 128, TILE = 64, LINE = D + 4, WIDE = TILE + 4;
constexpr float FACTOR = 0.08838834764831845f * 1.4426950408889634f;  // exponentials are of base 2
constexpr float NOTHING = -1.f / 0.f;

__device__ float widen(u16 x) { return __uint_as_float(static_cast<unsigned>(x) << 16); }
__device__ unsigned round(float low, float high) {
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 64 rows of 128 to shared memory, widened.
__device__ void fetch(float* to, const u16* from, float factor) {
    for (int at = threadIdx.x; at < TILE * D / 8; at += 256) {
        uint4 words = reinterpret_cast<const uint4*>(from)[at];
        const u16* x = reinterpret_cast<const u16*>(&words);
        float* line = to + at / (D / 8) * LINE + at % (D / 8) * 8;
        for (int e = 0; e < 8; ++e) line[e] = widen(x[e]) * factor;
    }
}

// q, k, v and out are [H, L, 128], L a multiple of 64.
extern "C" __global__ void __launch_bounds__(256, 2)
    attention(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v, u16* out, i64 H, i64 L) {
    extern __shared__ __align__(16) float room[];
    float *queries = room, *keys = room + TILE * LINE, *values = room + 2 * TILE * LINE;
    float* weights = keys;  // once these have been used
    int t = threadIdx.x, down = t / 16 * 4, across = t % 16;  // 4 queries; keys across + 16 j, columns 4 across + 64 j
    i64 tiles = L / TILE, head = blockIdx.x / tiles * L, mine = blockIdx.x % tiles;
    fetch(queries, q + (head + mine * TILE) * D, FACTOR);
    float top[4], total[4] = {}, sum[4][8] = {};
    for (int i = 0; i < 4; ++i) top[i] = NOTHING;

    for (i64 tile = 0; tile <= mine; ++tile) {
        __syncthreads();
        fetch(keys, k + (head + tile * TILE) * D, 1);
        fetch(values, v + (head + tile * TILE) * D, 1);
        __syncthreads();
        float score[4][4] = {};
        for (int d = 0; d < D; d += 4) {
            float4 x[4], y[4];
            for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<float4*>(queries + (down + i) * LINE + d);
            for (int j = 0; j < 4; ++j) y[j] = *reinterpret_cast<float4*>(keys + (across + 16 * j) * LINE + d);
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j)
                    score[i][j] += x[i].x * y[j].x + x[i].y * y[j].y + x[i].z * y[j].z + x[i].w * y[j].w;
        }
        __syncthreads();
        for (int i = 0; i < 4; ++i) {
            float high = top[i];
            for (int j = 0; j < 4; ++j) {
                if (tile == mine && across + 16 * j > down + i) score[i][j] = NOTHING;  // keys behind the query
                high = fmaxf(high, score[i][j]);
            }
            for (int step = 8; step > 0; step /= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, step));
            float shrink = exponential(top[i] - high);
            top[i] = high, total[i] *= shrink;
            for (int j = 0; j < 8; ++j) sum[i][j] *= shrink;
            for (int j = 0; j < 4; ++j) {
                float weight = exponential(score[i][j] - high);
                total[i] += weight, weights[(down + i) * WIDE + across + 16 * j] = weight;
            }
        }
        __syncthreads();
        for (int j = 0; j < TILE; ++j) {
            float4 y[2];
            for (int c = 0; c < 2; ++c) y[c] = *reinterpret_cast<float4*>(values + j * LINE + 4 * across + 64 * c);
            for (int i = 0; i < 4; ++i) {
                float weight = weights[(down + i) * WIDE + j];
                for (int c = 0; c < 2; ++c) {
                    sum[i][4 * c] += weight * y[c].x, sum[i][4 * c + 1] += weight * y[c].y;
                    sum[i][4 * c + 2] += weight * y[c].z, sum[i][4 * c + 3] += weight * y[c].w;
                }
            }
        }
    }
    for (int i = 0; i < 4; ++i) {
        for (int step = 8; step > 0; step /= 2) total[i] += __shfl_xor_sync(~0u, total[i], step);
        u16* to = out + (head + mine * TILE + down + i) * D + 4 * across;
        for (int c = 0; c < 2; ++c) {
            const float* s = sum[i] + 4 * c;
            *reinterpret_cast<uint2*>(to + 64 * c) = {round(s[0] / total[i], s[1] / total[i]),
                                                      round(s[2] / total[i], s[3] / total[i])};
        }
    }
}
