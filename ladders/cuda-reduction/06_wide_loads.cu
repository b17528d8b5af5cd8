// title: Vectorised loads: four numbers a load
// launch: threads 1024, tile 4096 x 1, grid multiprocessors, each 2, workspace 16384
// hypothesis: 16 bytes a thread and load: a quarter of the instructions and addresses, four times the bytes on their way,
//   128 KiB in each multiprocessor where 28 would do. Memory itself is what is left to wait for.
// predicts: 1.15
// next: The compiler decides how many loads go out before the first is added. Nothing says that it is four.

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
    const float4* wide = reinterpret_cast<const float4*>(x);
    long long width = static_cast<long long>(gridDim.x) * THREADS;
    long long first = static_cast<long long>(blockIdx.x) * THREADS + t;
    float4 sums = {};
    for (long long i = first; i < N / 4; i += width) {
        float4 v = wide[i];
        sums.x += v.x, sums.y += v.y, sums.z += v.z, sums.w += v.w;
    }
    float found = (sums.x + sums.y) + (sums.z + sums.w);
    if (first < N % 4) found += x[N / 4 * 4 + first];
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
