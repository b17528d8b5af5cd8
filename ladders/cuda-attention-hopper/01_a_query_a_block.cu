// title: Naive: one block per query
// launch: threads 128, tile 1 x 128, grid tiles, shared 16384
// hypothesis: The formula as it is written: a block has one query, keeps its scores in shared memory, turns them into
//   weights, and sums the values. A thread forms the scores of every 128th key, each from 256 bytes that are its own, so
//   that a warp's load looks up 32 lines; then it owns one column of the values. Every query reads all keys and values
//   before it again: 275 GB out of L2 and L1 in all, of which L2 alone can give some 5.5 TB a second.
// next: One query for all that is read. Several queries must share a block of keys and values, and then there is no
//   room for all their scores: the softmax has to be kept up to date instead.
using u16 = unsigned short;
using i64 = long long;

constexpr int D = 128;
constexpr float FACTOR = 0.08838834764831845f * 1.4426950408889634f;  // exponentials are of base 2

__device__ float widen(u16 x) { return __uint_as_float(static_cast<unsigned>(x) << 16); }
__device__ u16 narrow(float x) {
    u16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}
__device__ float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// q, k, v and out are [H, L, 128]; L is at most 4096.
extern "C" __global__ void __launch_bounds__(D)
    attention(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v, u16* out, i64 H, i64 L) {
    extern __shared__ float scores[];
    __shared__ float query[D], part[D / 32];
    int t = threadIdx.x;
    i64 row = blockIdx.x, head = row / L * L, seen = row - head + 1;
    query[t] = widen(q[row * D + t]) * FACTOR;
    __syncthreads();

    float top = __int_as_float(0xff800000);
    for (i64 j = t; j < seen; j += D) {
        float score = 0;
        for (int d = 0; d < D; d += 8) {
            uint4 words = *reinterpret_cast<const uint4*>(k + (head + j) * D + d);
            const u16* x = reinterpret_cast<const u16*>(&words);
            for (int e = 0; e < 8; ++e) score += query[d + e] * widen(x[e]);
        }
        scores[j] = score;
        top = fmaxf(top, score);
    }
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    if (t % 32 == 0) part[t / 32] = top;
    __syncthreads();
    top = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    __syncthreads();

    float total = 0;
    for (i64 j = t; j < seen; j += D) total += scores[j] = exponential(scores[j] - top);
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
    if (t % 32 == 0) part[t / 32] = total;
    __syncthreads();
    total = part[0] + part[1] + part[2] + part[3];

    float sum = 0;
    for (i64 j = 0; j < seen; ++j) sum += scores[j] * widen(v[(head + j) * D + t]);
    out[row * D + t] = narrow(sum / total);
}
