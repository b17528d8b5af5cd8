// title: Unrolled loads: eight before the first sum
// launch: threads 512, tile 16384 x 1, grid multiprocessors, each 2, workspace 16384
// hypothesis: Written out: a thread asks for eight times 16 bytes, and then adds all of them. 1024 threads have 128 KiB on
//   their way in each multiprocessor, at the top of every turn, whatever the compiler thinks, with half the warps and
//   an eighth of the loop's own instructions. If memory is what is waited for, little is left: the rung before had as
//   many bytes on their way wherever four turns were put together.
// predicts: 1.03
// next: All the loads of a block go out together and come back together: while it adds, and until the next eight are
//   out, it asks for nothing. The other block fills in, by luck. Registers hold what comes, and they are all taken.

constexpr int THREADS = 512, WARPS = THREADS / 32, AHEAD = 8;

struct Scratch {
    unsigned came;  // 0 before the launch and after it
    float left[1];  // by every block
};

__device__ float of_warp(float mine) {
    for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
    return mine;
}

// y = the sum of x[N].
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    sum(const float* __restrict__ x, float* y, long long N, Scratch* scratch) {
    __shared__ float part[WARPS];
    __shared__ bool last;
    int t = threadIdx.x;
    auto of_block = [&](float mine) {  // what the first thread gets
        mine = of_warp(mine);
        if (t % 32 == 0) part[t / 32] = mine;
        __syncthreads();
        return t < 32 ? of_warp(t < WARPS ? part[t] : 0) : 0;
    };
    const float4* wide = reinterpret_cast<const float4*>(x);
    constexpr int TILE = THREADS * AHEAD;  // loads of a block's turn
    long long tiles = N / (4 * TILE), first = static_cast<long long>(blockIdx.x) * THREADS + t;
    float4 sums = {};
    auto add = [&](float4 v) { sums.x += v.x, sums.y += v.y, sums.z += v.z, sums.w += v.w; };
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float4 v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) v[i] = wide[tile * TILE + i * THREADS + t];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) add(v[i]);
    }
    float found = (sums.x + sums.y) + (sums.z + sums.w);
    for (long long i = tiles * 4 * TILE + first; i < N; i += gridDim.x * THREADS) found += x[i];
    found = of_block(found);
    if (t == 0) {
        scratch->left[blockIdx.x] = found;
        __threadfence();
        last = atomicInc(&scratch->came, gridDim.x - 1) == gridDim.x - 1;  // from the last number on to 0
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    found = 0;
    for (unsigned b = t; b < gridDim.x; b += THREADS) found += __ldcg(&scratch->left[b]);
    found = of_block(found);
    if (t == 0) *y = found;
}
