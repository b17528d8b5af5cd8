// title: Warp shuffles
// launch: threads 1024, tile 1024 x 1, grid tiles, workspace 16777216
// hypothesis: Five shuffles add up a warp without shared memory or barrier, 32 sums go through shared memory, and the
//   first warp adds those with five more: two barriers in place of eleven. Some 0.3 us for the tree in place of 1, so
//   a block lives for its load and little more.
// predicts: 1.6
// next: A block still lives for one load. Then it ends, another is started, its addresses are worked out, and only then
//   is the next load on its way; and a million blocks count themselves at one place in memory, one after the other.

constexpr int THREADS = 1024, WARPS = THREADS / 32;

struct Scratch {
    unsigned came;  // 0 before the launch and after it
    float left[1];  // by every block
};

__device__ float of_warp(float mine) {
    for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
    return mine;
}

// y = the sum of x[N].
extern "C" __global__ void __launch_bounds__(THREADS)
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
    long long i = static_cast<long long>(blockIdx.x) * THREADS + t;
    float found = of_block(i < N ? x[i] : 0);
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
